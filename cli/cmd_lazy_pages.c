/* SPDX-License-Identifier: Apache-2.0 */
/* thawfs lazy-pages: serve the memory of processes that criu restores lazily. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/verbs.h"
#include "common/cleanup.h"
#include "common/log.h"
#include "restore/criu_lazy.h"
#include "restore/plain.h"

enum { OPT_PIDFILE = CLI_OPT_OWN, OPT_DAEMON };

static const struct option longs[] = {
	{ "images-dir", required_argument, NULL, 'D' },
	{ "work-dir", required_argument, NULL, 'W' },
	{ "pidfile", required_argument, NULL, OPT_PIDFILE },
	{ "daemon", no_argument, NULL, OPT_DAEMON },
	CLI_LONG_THREADS,
	CLI_LONG_QUIET,
	CLI_LONG_BYTES,
	CLI_LONG_BASE_PATH,
	CLI_LONG_END,
};

struct lazy_opts {
	const char *images, *work, *pidfile;
	bool daemon;
};

/* who waits in the process that was started by hand; -1: nobody */
struct waiter {
	const struct lazy_opts *opts;
	int pipe;
};

/* where memory comes from: a directory of an image, or one that is not packed */
struct images {
	struct image *img;
	char *dir;
	struct plain *plain;
};

/* Return: 0; -errno (logged) */
static int find_images(const struct cli *cli, const char *path, struct images *ret)
{
	_cleanup_free_ char *full = NULL, *image = NULL, *dir = NULL;
	const char *end = NULL;
	struct stat st;
	int err = stat(path, &st) < 0 ? -errno : 0;

	if (!err && S_ISREG(st.st_mode)) {
		full = strdup(path);
		end = full ? full + strlen(full) : NULL;
	} else if (!err) {
		/* with a part behind it, so that the directory itself may be an image's root */
		_cleanup_free_ char *real = realpath(path, NULL);

		if (!real || asprintf(&full, "%s/", real) < 0) {
			full = NULL;
			return -ENOMEM;
		}
		end = cli_mount_end(full);
	} else if (err == -ENOTDIR) {
		full = strdup(path);
		end = full ? cli_image_end(full) : NULL;
	}
	if (!end && !err)
		return plain_open(path, &ret->plain);
	if (!end) {
		log_error("cannot serve from '%s': %s", path, strerror(-err));
		return err;
	}
	image = strndup(full, (size_t)(end - full));
	dir = strdup(*end ? end + 1 : "");
	if (!image || !dir)
		return -ENOMEM;
	for (size_t n = strlen(dir); n && dir[n - 1] == '/'; n--)
		dir[n - 1] = '\0';
	err = cli_open_image(cli, image, &ret->img);
	if (!err)
		ret->dir = steal_ptr(&dir);
	return err;
}

static int write_pidfile(const char *path)
{
	_cleanup_fclose_ FILE *f = fopen(path, "we");

	if (f && fprintf(f, "%d\n", (int)getpid()) > 0 && fflush(f) == 0)
		return 0;
	log_error("cannot write '%s': %s", path, strerror(errno));
	return -EIO;
}

static void on_listening(void *ctx)
{
	const struct waiter *w = ctx;
	char good = CLI_GOOD;

	if (w->pipe < 0)
		return;
	if (write(w->pipe, &good, 1) < 0)
		log_detail("nobody waits for the page server");
	close(w->pipe);
}

static void print_summary(const struct cli *cli, const struct pageserver_stats *s)
{
	char demand[SIZE_TEXT_EXACT], fill[SIZE_TEXT_EXACT], poisoned[SIZE_TEXT_EXACT];

	printf("%" PRIu64 " process%s: %s on demand (%" PRIu64 " fault%s, %" PRIu64
	       " zero page%s), %s in the background",
	       s->processes, s->processes == 1 ? "" : "es", cli_size_text(cli, s->demand_bytes, demand), s->faults,
	       cli_plural(s->faults), s->zero_pages, cli_plural(s->zero_pages),
	       cli_size_text(cli, s->fill_bytes, fill));
	if (s->poisoned_bytes)
		printf(", %s poisoned", cli_size_text(cli, s->poisoned_bytes, poisoned));
	printf("\n");
}

static int serve(const struct cli *cli, struct waiter *waiter, const struct images *images)
{
	struct criu_lazy_opts lazy = { .img = images->img,
				       .dir = images->dir ? images->dir : "",
				       .plain = images->plain,
				       .work = waiter->opts->work,
				       .threads = cli->threads,
				       .listening = on_listening,
				       .ctx = waiter };
	struct pageserver_stats stats;
	int err = waiter->opts->pidfile ? write_pidfile(waiter->opts->pidfile) : 0;

	if (err)
		return err;
	err = criu_lazy_run(&lazy, &stats);
	if (!err && !cli->quiet)
		print_summary(cli, &stats);
	/* it was said, and whoever touches it dies of it; but this is no success */
	return !err && stats.poisoned_bytes ? -EBADMSG : err;
}

/* in the background, once it listens */
static int daemonize(const struct cli *cli, struct waiter *waiter, const struct images *images)
{
	int pipe[2], null, status;
	char code = CLI_FAILED;
	pid_t pid;

	if (pipe2(pipe, O_CLOEXEC))
		return -errno;
	pid = fork();
	if (pid == 0) {
		setsid();
		close(pipe[0]);
		null = open("/dev/null", O_RDWR | O_CLOEXEC);
		if (null >= 0) {
			dup2(null, STDIN_FILENO);
			dup2(null, STDOUT_FILENO);
			close(null);
		}
		waiter->pipe = pipe[1];
		_exit(cli_exit_code(serve(cli, waiter, images)));
	}
	close(pipe[1]);
	if (pid > 0 && read(pipe[0], &code, 1) != 1 && waitpid(pid, &status, 0) == pid && WIFEXITED(status))
		code = (char)WEXITSTATUS(status);
	close(pipe[0]);
	return code == CLI_GOOD ? 0 : code == CLI_DAMAGED ? -EBADMSG : -EIO;
}

static int run(const struct cli *cli, const struct lazy_opts *opts)
{
	struct waiter waiter = { .opts = opts, .pipe = -1 };
	struct images images = { 0 };
	int err = find_images(cli, opts->images, &images);

	if (!err)
		err = opts->daemon ? daemonize(cli, &waiter, &images) : serve(cli, &waiter, &images);
	image_close(images.img);
	plain_close(images.plain);
	free(images.dir);
	return err;
}

static int run_lazy_pages(const struct verb *verb, int argc, char **argv)
{
	struct cli cli = { .verb = verb };
	struct lazy_opts opts = { 0 };
	int c, rc;

	while ((c = cli_getopt(&cli, argc, argv, "D:W:j:qb", longs)) != -1) {
		if (c == 'D')
			opts.images = optarg;
		else if (c == 'W')
			opts.work = optarg;
		else if (c == OPT_PIDFILE)
			opts.pidfile = optarg;
		else if (c == OPT_DAEMON)
			opts.daemon = true;
		else
			return cli_stop_code(&cli);
	}
	rc = cli_operands(&cli, argc, argv, 0, 0);
	if (rc)
		return rc;
	if (!opts.images || !opts.work)
		return cli_usage(&cli, "-D and -W are needed");
	return cli_exit_code(run(&cli, &opts));
}

const struct verb verb_lazypages = {
	.name = "lazy-pages",
	.synopsis = "-D IMAGES_DIR -W WORK_DIR [OPTION…]",
	.summary = "Serve the memory of processes that criu restores lazily",
	.help = "Takes the place of 'criu lazy-pages' beside 'criu restore --lazy-pages -W WORK_DIR': start it first, "
		"wait "
		"for\n"
		"WORK_DIR/lazy-pages.socket. It serves one restore, what is touched first and the rest in the "
		"background, and "
		"ends\n"
		"when all memory is there. What is damaged is poisoned: who touches it dies; exit status 3.\n\n"
		"  -D, --images-dir DIR   an image (x.thaw), a directory inside one (x.thaw/sub/dir), or one on a "
		"mount, of "
		"which\n"
		"                         the image is read directly\n"
		"  -W, --work-dir DIR     criu's work directory: the socket is made there\n"
		"  -j, --threads N        threads that fill in the background (default: as many as processors)\n"
		"      --daemon           return when the socket is there, serve in the background\n"
		"      --pidfile FILE     write the server's process id there\n"
		"  -q, --quiet            no summary\n"
		"  -b, --bytes            sizes in bytes\n"
		"      --base-path DIR    look for base images there too; may be repeated\n",
	.run = run_lazy_pages,
};
