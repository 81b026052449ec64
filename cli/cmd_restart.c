/* SPDX-License-Identifier: Apache-2.0 */
/* thawfs restart: bring a process back from its image, by the restarter beside this program. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/restart_dmtcp.h"
#include "common/bytes.h"
#include "common/cleanup.h"
#include "common/json.h"
#include "common/log.h"
#include "restore/member.h"
#include "restore/plan.h"
#include "restore/served.h"

#define RESTARTER  "thawfs-mtcp-restart"
#define HEAD_BYTES 4096u
#define BUFFER_OFF 168u
#define SERVED_MIN RESTART_LAZY_MIN
#define MAX_FILES  4096
#define FDS_MAX    1024u

enum { OPT_MODE = CLI_OPT_OWN, OPT_PROFILE, OPT_DRY_RUN, OPT_RECORD, OPT_DMTCP, OPT_CKPTDIR };

static const struct option longs[] = {
	{ "mode", required_argument, NULL, OPT_MODE },
	{ "profile", no_argument, NULL, OPT_PROFILE },
	{ "dry-run", no_argument, NULL, OPT_DRY_RUN },
	{ "record", no_argument, NULL, OPT_RECORD },
	{ "dmtcp", required_argument, NULL, OPT_DMTCP },
	{ "ckptdir", required_argument, NULL, OPT_CKPTDIR },
	CLI_LONG_JSON,
	CLI_LONG_THREADS,
	CLI_LONG_BASE_PATH,
	CLI_LONG_END,
};

enum mode { MODE_AUTO, MODE_EAGER, MODE_LAZY, MODE_UFFD, N_MODES };
static const char *const mode_names[N_MODES] = { "auto", "eager", "lazy", "uffd" };

struct restart_opts {
	enum mode mode;
	bool profile, dry_run, record;
	const char *dmtcp, *ckptdir;
	char **options; /* for dmtcp_restart; NULL: none */
};

/* what is to be restarted: a file, or a member of an image, or both where it is a file on a mount */
struct target {
	const char *path;
	int fd; /* -1: there is only the member */
	struct image *img;
	char *image, *member; /* their paths; NULL without @img */
	uint32_t ino, space;
	bool has_space;
};

static void target_release(struct target *t)
{
	if (t->fd >= 0)
		close(t->fd);
	image_close(t->img);
	free(t->image);
	free(t->member);
}

/* the image and the member in it, where @slash separates them */
static int open_member(const struct cli *cli, const char *path, const char *slash, struct target *t)
{
	int err;

	t->image = strndup(path, (size_t)(slash - path));
	t->member = strdup(slash + 1);
	if (!t->image || !t->member)
		return -ENOMEM;
	err = cli_open_image(cli, t->image, &t->img);
	if (!err)
		err = cli_walk(t->img, t->member, &t->ino);
	if (err)
		return err;
	err = image_space_find(t->img, t->member, strlen(t->member), &t->space);
	t->has_space = !err;
	return err == -ENOENT ? 0 : err;
}

/* a file, or a member of an image that is a file; nothing is decoded */
static int open_target(const struct cli *cli, const struct restart_opts *opts, struct target *t)
{
	_cleanup_free_ char *full = NULL;
	const char *slash = NULL;
	int err;

	t->fd = open(t->path, O_RDONLY | O_CLOEXEC);
	err = t->fd < 0 ? errno : 0;
	if (err == ENOTDIR)
		slash = cli_image_end(t->path);
	if (slash)
		return open_member(cli, t->path, slash, t);
	if (err) {
		log_error("cannot open '%s': %s", t->path, strerror(err));
		return -err;
	}
	if (opts->mode == MODE_EAGER || opts->mode == MODE_LAZY)
		return 0;
	full = realpath(t->path, NULL);
	slash = full ? cli_mount_end(full) : NULL;
	return slash ? open_member(cli, full, slash, t) : 0;
}

/* all of the member, which becomes the target's descriptor */
static int decode_target(const struct cli *cli, struct target *t)
{
	int err = t->fd >= 0 ? 0 : member_to_memory(t->img, t->ino, cli->threads, NULL, 0, &t->fd);

	if (err && err != -EBADMSG)
		log_error("cannot read '%s' in '%s': %s", t->member, t->image, strerror(-err));
	return err;
}

/* the restore buffer that the image names */
static int read_head(int fd, const char *path, uint64_t *ret_start, uint64_t *ret_len)
{
	uint8_t head[HEAD_BYTES];
	ssize_t n = pread(fd, head, sizeof(head), HEAD_BYTES);
	uint64_t start, end;

	if (n < 0) {
		log_error("cannot read '%s': %s", path, strerror(errno));
		return -errno;
	}
	if (n != sizeof(head)) {
		log_error("cannot restart '%s': it ends in its header", path);
		return -EBADMSG;
	}
	start = load_le64(head + BUFFER_OFF);
	end = load_le64(head + BUFFER_OFF + 8);
	if (end <= start) {
		log_error("cannot restart '%s': its restore buffer is empty", path);
		return -EBADMSG;
	}
	*ret_start = start;
	*ret_len = end - start;
	return 0;
}

static int find_restarter(char ret_path[PATH_MAX])
{
	ssize_t n = readlink("/proc/self/exe", ret_path, PATH_MAX - sizeof(RESTARTER) - 1);
	char *slash;

	if (n <= 0)
		return -errno;
	ret_path[n] = '\0';
	slash = strrchr(ret_path, '/');
	strcpy(slash + 1, RESTARTER);
	return 0;
}

static void set_number(const char *name, long value)
{
	char text[24];

	snprintf(text, sizeof(text), "%ld", value);
	setenv(name, text, 1);
}

static void set_environment(const struct cli *cli, const struct restart_opts *opts)
{
	if (opts->profile)
		setenv("DMTCP_RESTART_PROFILE", "1", 1);
	if (cli->threads)
		set_number("DMTCP_RESTART_READERS", cli->threads);
}

static int exec_restarter(const struct cli *cli, const struct restart_opts *opts, int fd, uint64_t start, uint64_t len)
{
	char path[PATH_MAX], addr[32], size[32], number[16], err_number[16];
	char *argv[] = { (char *)RESTARTER,
			 (char *)"--stderr-fd",
			 err_number,
			 (char *)"--restore-buffer-addr",
			 addr,
			 (char *)"--restore-buffer-len",
			 size,
			 (char *)"--fd",
			 number,
			 NULL };
	int err = find_restarter(path), err_fd = fcntl(STDERR_FILENO, F_DUPFD, 828);

	if (err)
		return err;
	snprintf(addr, sizeof(addr), "0x%" PRIx64, start);
	snprintf(size, sizeof(size), "0x%" PRIx64, len);
	snprintf(number, sizeof(number), "%d", fd);
	snprintf(err_number, sizeof(err_number), "%d", err_fd < 0 ? STDERR_FILENO : err_fd);
	setenv("THAWFS_RESTART_MODE", mode_names[opts->mode], 1);
	set_environment(cli, opts);
	if (lseek(fd, HEAD_BYTES, SEEK_SET) < 0 || fcntl(fd, F_SETFD, 0) < 0)
		return -errno;
	execv(path, argv);
	log_error("cannot run '%s': %s", path, strerror(errno));
	return -errno;
}

/* -- what would be done ------------------------------------------------------------------------ */

static void print_plan_json(const struct plan *plan, const char *path, enum mode mode)
{
	struct json js;

	json_begin(&js, stdout);
	json_object(&js, NULL);
	json_string(&js, "file", path);
	json_string(&js, "mode", mode_names[mode]);
	for (int i = 0; i < PLAN_N_ACTIONS; i++) {
		char key[32];

		snprintf(key, sizeof(key), "%s_bytes", plan_action_name((enum plan_action)i));
		json_u64(&js, key, plan->bytes[i]);
	}
	json_array(&js, "items");
	for (size_t i = 0; i < plan->n_items; i++) {
		json_object_line(&js, NULL);
		json_u64(&js, "addr", plan->items[i].addr);
		json_u64(&js, "len", plan->items[i].len);
		json_string(&js, "action", plan_action_name(plan->items[i].action));
		json_u64(&js, "region", plan->items[i].region);
		json_close(&js);
	}
	json_close(&js);
	json_close(&js);
	json_end(&js);
}

static void print_plan(const struct cli *cli, const struct plan *plan)
{
	char text[SIZE_TEXT_EXACT];

	for (size_t i = 0; i < plan->n_items; i++) {
		const struct plan_item *item = &plan->items[i];

		printf("%012" PRIx64 "-%012" PRIx64 " %-9s %s\n", item->addr, item->addr + item->len,
		       plan_action_name(item->action), cli_size_text(cli, item->len, text));
	}
	for (int i = 0; i < PLAN_N_ACTIONS; i++)
		printf("%s: %s\n", plan_action_name((enum plan_action)i), cli_size_text(cli, plan->bytes[i], text));
}

static int make_plan(const struct target *t, enum plan_mode mode, struct plan *ret)
{
	struct image_space space;
	int err = image_space(t->img, t->space, &space);

	return err ? err : plan_make(t->img, &space, mode, ret);
}

/* the rule of auto: docs and the manual have it too */
static int choose_mode(const struct target *t, enum mode *ret)
{
	struct plan plan = { 0 };
	int err;

	*ret = MODE_EAGER;
	if (!t->img || !t->has_space)
		return 0;
	err = make_plan(t, PLAN_UFFD, &plan);
	if (!err && plan.bytes[PLAN_SERVE] >= SERVED_MIN) {
		if (served_allowed() == 0)
			*ret = MODE_UFFD;
		else if (t->fd >= 0)
			*ret = MODE_LAZY;
	}
	plan_release(&plan);
	return err;
}

static int do_dry_run(const struct cli *cli, struct restart_opts *opts, struct target *t)
{
	static const enum plan_mode modes[N_MODES] = { PLAN_EAGER, PLAN_EAGER, PLAN_LAZY, PLAN_UFFD };
	const char *slash = cli_image_end(t->path);
	struct plan plan = { 0 };
	int err;

	if (!slash) {
		log_error("cannot plan for '%s': it is not a member of an image (IMAGE/MEMBER)", t->path);
		return -EINVAL;
	}
	t->image = strndup(t->path, (size_t)(slash - t->path));
	t->member = strdup(slash + 1);
	if (!t->image || !t->member)
		return -ENOMEM;
	err = cli_open_image(cli, t->image, &t->img);
	if (err)
		return err;
	err = image_space_find(t->img, t->member, strlen(t->member), &t->space);
	if (err == -ENOENT)
		log_error("cannot find the memory of '%s' in '%s': 'thawfs maps' lists what there is", t->member,
			  t->image);
	t->has_space = !err;
	if (!err && opts->mode == MODE_AUTO)
		err = choose_mode(t, &opts->mode);
	if (!err)
		err = make_plan(t, modes[opts->mode], &plan);
	if (!err && cli->json)
		print_plan_json(&plan, t->path, opts->mode);
	else if (!err)
		print_plan(cli, &plan);
	plan_release(&plan);
	return err;
}

/* -- doing it ---------------------------------------------------------------------------------- */

/* what was open when this program began: the page server is not to keep it open */
struct inherited {
	int fds[FDS_MAX];
	size_t n;
};

static void list_inherited(struct inherited *ret)
{
	DIR *dir = opendir("/proc/self/fd");
	struct dirent *e;

	ret->n = 0;
	while (dir && (e = readdir(dir)) && ret->n < FDS_MAX) {
		int fd = (int)strtol(e->d_name, NULL, 10);

		if (fd > STDERR_FILENO && fd != dirfd(dir))
			ret->fds[ret->n++] = fd;
	}
	if (dir)
		closedir(dir);
}

/* prepare what the restarter needs for it; the target's descriptor becomes the member without what is served */
static int prepare_served(const struct cli *cli, const struct restart_opts *opts, struct target *t,
			  const struct inherited *inherited)
{
	struct served_opts so = { .img = t->img,
				  .ino = t->ino,
				  .space = t->space,
				  .threads = cli->threads,
				  .profile = opts->profile,
				  .inherited = inherited->fds,
				  .n_inherited = inherited->n };
	struct served served;
	int err;

	if (!t->img || !t->has_space) {
		log_error(
			"cannot restart '%s' by a page server: that takes IMAGE/MEMBER, or a file on a mount, in which "
			"thawfs knows memory",
			t->path);
		return -EINVAL;
	}
	err = served_allowed();
	if (err) {
		log_error("cannot restart '%s' by a page server: userfaultfd: %s", t->path, strerror(-err));
		return err;
	}
	err = served_start(&so, &served);
	if (err) {
		if (err != -EBADMSG)
			log_error("cannot restart '%s' by a page server: %s", t->path, strerror(-err));
		return err;
	}
	if (t->fd >= 0)
		close(t->fd);
	t->fd = served.image_fd;
	fcntl(served.spans_fd, F_SETFD, 0);
	fcntl(served.server_fd, F_SETFD, 0);
	set_number("THAWFS_RESTART_SPANS", served.spans_fd);
	set_number("THAWFS_RESTART_SERVER", served.server_fd);
	return 0;
}

/* a process that saved itself takes our place */
static int restart_self(const struct cli *cli, struct restart_opts *opts, struct target *t)
{
	struct inherited inherited;
	uint64_t start = 0, len = 0;
	int err;

	list_inherited(&inherited);
	err = open_target(cli, opts, t);
	if (!err && opts->mode == MODE_LAZY && t->fd < 0) {
		log_error("cannot restart '%s' lazily: that takes a file on a mount", t->path);
		return -EINVAL;
	}
	if (!err && opts->mode == MODE_AUTO)
		err = choose_mode(t, &opts->mode);
	if (!err)
		err = opts->mode == MODE_UFFD ? prepare_served(cli, opts, t, &inherited) : decode_target(cli, t);
	if (!err)
		err = read_head(t->fd, t->path, &start, &len);
	return err ? err : exec_restarter(cli, opts, t->fd, start, len);
}

static int restart_all(const struct cli *cli, const struct restart_opts *opts, char **files, int n_files)
{
	static const enum restart_lazily lazily[N_MODES] = { RESTART_BY_SIZE, RESTART_EAGERLY, RESTART_LAZILY };
	struct restart_dmtcp how = { .prefix = opts->dmtcp,
				     .ckptdir = opts->ckptdir,
				     .lazily = lazily[opts->mode],
				     .record = opts->record,
				     .options = opts->options };
	char restarter[PATH_MAX];
	int err = find_restarter(restarter);

	if (err)
		return cli_exit_code(err);
	if (opts->mode == MODE_UFFD) {
		log_error("cannot restart '%s' by a page server: DMTCP saved it, which saves what has not arrived yet "
			  "as zeros",
			  files[0]);
		return CLI_FAILED;
	}
	how.restarter = restarter;
	set_environment(cli, opts);
	return restart_dmtcp(cli, &how, files, n_files);
}

static int do_restart(const struct cli *cli, struct restart_opts *opts, char **files, int n_files)
{
	struct target target = { .fd = -1, .path = files[0] };
	const char *member;
	enum restart_maker maker;
	bool all;
	int err = restart_examine(cli, files[0], &member, &all, &maker);

	if (!err && (maker != MADE_BY_ITSELF || n_files > 1))
		return restart_all(cli, opts, files, n_files);
	if (!err)
		err = restart_self(cli, opts, &target);
	target_release(&target);
	return cli_exit_code(err);
}

static int dry_run(const struct cli *cli, struct restart_opts *opts, const char *path)
{
	struct target target = { .fd = -1, .path = path };
	int err = do_dry_run(cli, opts, &target);

	target_release(&target);
	return cli_exit_code(err);
}

/* what comes after "--" is for dmtcp_restart; @argv ends there then. Return: the number of what is left */
static int split_arguments(int argc, char **argv, char ***ret_options)
{
	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--") == 0) {
			*ret_options = argv + i + 1;
			argv[i] = NULL;
			return i;
		}
	}
	return argc;
}

static int parse_mode(const char *text, enum mode *ret)
{
	for (int i = 0; i < N_MODES; i++) {
		if (strcmp(text, mode_names[i]) == 0) {
			*ret = (enum mode)i;
			return 0;
		}
	}
	return -EINVAL;
}

static int run_restart(const struct verb *verb, int argc, char **argv)
{
	struct cli cli = { .verb = verb };
	struct restart_opts opts = { .mode = MODE_AUTO };
	int c, rc;

	argc = split_arguments(argc, argv, &opts.options);
	while ((c = cli_getopt(&cli, argc, argv, "j:", longs)) != -1) {
		if (c == OPT_PROFILE) {
			opts.profile = true;
		} else if (c == OPT_DRY_RUN) {
			opts.dry_run = true;
		} else if (c == OPT_RECORD) {
			opts.record = true;
		} else if (c == OPT_DMTCP) {
			opts.dmtcp = optarg;
		} else if (c == OPT_CKPTDIR) {
			opts.ckptdir = optarg;
		} else if (c == OPT_MODE) {
			if (parse_mode(optarg, &opts.mode))
				return cli_usage(&cli, "'%s' is not a mode: auto, eager, lazy or uffd", optarg);
		} else {
			return cli_stop_code(&cli);
		}
	}
	rc = cli_operands(&cli, argc, argv, 1, opts.dry_run ? 1 : MAX_FILES);
	if (rc)
		return rc;
	if (opts.dry_run)
		return dry_run(&cli, &opts, argv[optind]);
	return do_restart(&cli, &opts, argv + optind, argc - optind);
}

const struct verb verb_restart = {
	.name = "restart",
	.synopsis = "[OPTION…] FILE… [-- OPTION…]",
	.summary = "Bring processes back from their checkpoint",
	.help = "FILE is a checkpoint of DMTCP 4: a plain file, a file on a mount, IMAGE/MEMBER, or an image, of which "
		"all\n"
		"DMTCP checkpoints are meant. Several are restarted together. The installed dmtcp_restart does it, "
		"with "
		"a\n"
		"restarter of ours and with the options after --. Images are mounted as long as a process uses them.\n"
		"Programs that saved themselves (examples/selfckpt) need no DMTCP and take the place of this process.\n"
		"What is damaged or does not fit this machine is an error before a process starts.\n\n"
		"      --mode MODE      eager: all memory is read first, by several readers\n"
		"                       uffd: a page server brings memory from the image, what is touched first; "
		"for\n"
		"                       IMAGE/MEMBER and files on a mount, if the program saved itself\n"
		"                       lazy: memory is mapped from the mount or the file and read when touched; the "
		"mount\n"
		"                       or file must stay as long as the process\n"
		"                       auto (default): uffd for 64 MiB and more from an image where it is allowed, "
		"else lazy\n"
		"                       from a mount, else eager\n"
		"      --dmtcp DIR      where DMTCP is installed (default: where $PATH has dmtcp_restart)\n"
		"      --ckptdir DIR    where its next checkpoints go (default: beside FILE, else the current "
		"directory)\n"
		"      --record         note what the process reads first, for later restarts of the same IMAGE\n"
		"      --profile        print phases and bytes when the process starts\n"
		"  -j, --threads N      threads that decode, read and fill (default: as many as processors)\n"
		"      --dry-run        say what of IMAGE/MEMBER would be read, mapped and left, and do nothing\n"
		"      --json           that as JSON\n"
		"      --base-path DIR  look for base images there too; may be repeated\n",
	.run = run_restart,
};
