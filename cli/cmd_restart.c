/* SPDX-License-Identifier: Apache-2.0 */
/* thawfs restart: bring a process back from its image, by the restarter beside this program. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/cli.h"
#include "common/bytes.h"
#include "common/cleanup.h"
#include "common/json.h"
#include "common/log.h"
#include "restore/member.h"
#include "restore/plan.h"

#define RESTARTER  "thawfs-mtcp-restart"
#define SIGNATURE  "DMTCP_CHECKPOINT_IMAGE_v4.0\n"
#define SELF_MARK  "selfckpt" /* examples/selfckpt leaves it in the header's padding */
#define HEAD_BYTES 4096u
#define BUFFER_OFF 168u
#define MARK_OFF   2304u

enum { OPT_MODE = CLI_OPT_OWN, OPT_PROFILE, OPT_DRY_RUN };

static const struct option longs[] = {
	{ "mode", required_argument, NULL, OPT_MODE },
	{ "profile", no_argument, NULL, OPT_PROFILE },
	{ "dry-run", no_argument, NULL, OPT_DRY_RUN },
	CLI_LONG_JSON,
	CLI_LONG_THREADS,
	CLI_LONG_BASE_PATH,
	CLI_LONG_END,
};

struct restart_opts {
	const char *mode;
	bool profile, dry_run;
};

/* where IMAGE ends in IMAGE/MEMBER: the first part of @path that is a file. NULL if none is */
static const char *find_image_end(const char *path)
{
	for (const char *slash = strchr(path, '/'); slash; slash = strchr(slash + 1, '/')) {
		_cleanup_free_ char *prefix = strndup(path, (size_t)(slash - path));
		struct stat st;

		if (prefix && *prefix && stat(prefix, &st) == 0 && S_ISREG(st.st_mode))
			return slash;
	}
	return NULL;
}

/* "IMAGE/MEMBER", where IMAGE is a file: decode the member */
static int open_member(const struct cli *cli, const char *path, const char *slash, int *ret_fd)
{
	_cleanup_free_ char *image = strndup(path, (size_t)(slash - path));
	struct image *img;
	uint32_t ino;
	int err;

	if (!image)
		return -ENOMEM;
	err = cli_open_image(cli, image, &img);
	if (err)
		return err;
	err = cli_walk(img, slash + 1, &ino);
	if (!err) {
		err = member_to_memory(img, ino, cli->threads, ret_fd);
		if (err && err != -EBADMSG)
			log_error("cannot read '%s' in '%s': %s", slash + 1, image, strerror(-err));
	}
	image_close(img);
	return err;
}

/* a file, or a member of an image that is a file */
static int open_target(const struct cli *cli, const char *path, bool *ret_in_memory, int *ret_fd)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC), err = fd < 0 ? errno : 0;
	const char *slash = NULL;

	*ret_in_memory = false;
	if (fd >= 0) {
		*ret_fd = fd;
		return 0;
	}
	if (err == ENOTDIR)
		slash = find_image_end(path);
	if (slash) {
		*ret_in_memory = true;
		return open_member(cli, path, slash, ret_fd);
	}
	log_error("cannot open '%s': %s", path, strerror(err));
	return -err;
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
	if (n != sizeof(head) || memcmp(head, SIGNATURE, strlen(SIGNATURE)) != 0) {
		log_error("cannot restart '%s': it is not a DMTCP v4.0 image, or a compressed one", path);
		return -EBADMSG;
	}
	if (memcmp(head + MARK_OFF, SELF_MARK, strlen(SELF_MARK)) != 0) {
		log_error("cannot restart '%s': it was made by DMTCP, whose dmtcp_restart has to start it", path);
		return -ENOTSUP;
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

static int exec_restarter(const struct cli *cli, const struct restart_opts *opts, int fd, uint64_t start, uint64_t len)
{
	char path[PATH_MAX], addr[32], size[32], number[16], err_number[16], threads[16];
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
	snprintf(threads, sizeof(threads), "%u", cli->threads);
	setenv("THAWFS_RESTART_MODE", opts->mode, 1);
	if (opts->profile)
		setenv("DMTCP_RESTART_PROFILE", "1", 1);
	if (cli->threads)
		setenv("DMTCP_RESTART_READERS", threads, 1);
	if (lseek(fd, HEAD_BYTES, SEEK_SET) < 0 || fcntl(fd, F_SETFD, 0) < 0)
		return -errno;
	execv(path, argv);
	log_error("cannot run '%s': %s", path, strerror(errno));
	return -errno;
}

/* -- what would be done ------------------------------------------------------------------------ */

static void print_plan_json(const struct plan *plan, const char *path, const char *mode)
{
	struct json js;

	json_begin(&js, stdout);
	json_object(&js, NULL);
	json_string(&js, "file", path);
	json_string(&js, "mode", mode);
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

/* @slash is where IMAGE ends and MEMBER begins */
static int dry_run(const struct cli *cli, const struct restart_opts *opts, const char *path, const char *slash)
{
	_cleanup_free_ char *image = strndup(path, (size_t)(slash - path));
	struct plan plan = { 0 };
	struct image_space space;
	struct image *img;
	uint32_t index;
	int err;

	if (!image)
		return -ENOMEM;
	err = cli_open_image(cli, image, &img);
	if (err)
		return err;
	err = image_space_find(img, slash + 1, strlen(slash + 1), &index);
	if (err == -ENOENT)
		log_error("cannot find the memory of '%s' in '%s': 'thawfs maps' lists what there is", slash + 1,
			  image);
	if (!err)
		err = image_space(img, index, &space);
	if (!err)
		err = plan_make(img, &space, strcmp(opts->mode, "lazy") == 0 ? PLAN_LAZY : PLAN_EAGER, &plan);
	if (!err && cli->json)
		print_plan_json(&plan, path, opts->mode);
	else if (!err)
		print_plan(cli, &plan);
	plan_release(&plan);
	image_close(img);
	return err;
}

static int do_dry_run(const struct cli *cli, const struct restart_opts *opts, const char *path)
{
	const char *slash = find_image_end(path);

	if (!slash) {
		log_error("cannot plan for '%s': it is not a member of an image (IMAGE/MEMBER)", path);
		return CLI_FAILED;
	}
	return cli_exit_code(dry_run(cli, opts, path, slash));
}

static int do_restart(const struct cli *cli, struct restart_opts *opts, const char *path)
{
	_cleanup_close_ int fd = -1;
	uint64_t start = 0, len = 0;
	bool in_memory;
	int err = open_target(cli, path, &in_memory, &fd);

	if (!err)
		err = read_head(fd, path, &start, &len);
	if (err)
		return cli_exit_code(err);
	if (in_memory && !strcmp(opts->mode, "lazy")) {
		log_error("cannot restart '%s' lazily: that takes a file on a mount", path);
		return CLI_FAILED;
	}
	return cli_exit_code(exec_restarter(cli, opts, fd, start, len));
}

static int run_restart(const struct verb *verb, int argc, char **argv)
{
	struct cli cli = { .verb = verb };
	struct restart_opts opts = { .mode = "eager" };
	int c, rc;

	while ((c = cli_getopt(&cli, argc, argv, "j:", longs)) != -1) {
		if (c == OPT_PROFILE) {
			opts.profile = true;
		} else if (c == OPT_DRY_RUN) {
			opts.dry_run = true;
		} else if (c == OPT_MODE) {
			if (strcmp(optarg, "eager") != 0 && strcmp(optarg, "lazy") != 0)
				return cli_usage(&cli, "'%s' is not a mode: eager or lazy", optarg);
			opts.mode = optarg;
		} else {
			return cli_stop_code(&cli);
		}
	}
	rc = cli_operands(&cli, argc, argv, 1, 1);
	if (rc)
		return rc;
	return opts.dry_run ? do_dry_run(&cli, &opts, argv[optind]) : do_restart(&cli, &opts, argv[optind]);
}

const struct verb verb_restart = {
	.name = "restart",
	.synopsis = "[OPTION…] FILE",
	.summary = "Bring a process back from its checkpoint",
	.help = "FILE is a checkpoint in DMTCP's v4.0 layout that its program made itself (examples/selfckpt): a "
		"plain\n"
		"file, a file on a mount, or IMAGE/MEMBER. The process takes the place of this one. What is damaged "
		"or\n"
		"does not fit this machine is an error before the process starts; see thawfs-mtcp-restart for those of "
		"DMTCP.\n\n"
		"      --mode MODE      eager: all memory is read first, by several readers (default)\n"
		"                       lazy: memory is mapped from the mount or the file and read when touched; the "
		"mount\n"
		"                       or file must stay as long as the process\n"
		"      --profile        print phases and bytes when the process starts\n"
		"  -j, --threads N      threads that decode and read (default: as many as processors)\n"
		"      --dry-run        say what of IMAGE/MEMBER would be read, mapped and left, and do nothing\n"
		"      --json           that as JSON\n"
		"      --base-path DIR  look for base images there too; may be repeated\n",
	.run = run_restart,
};
