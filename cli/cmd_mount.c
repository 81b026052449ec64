/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pwd.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <syslog.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/verbs.h"
#include "common/bytes.h"
#include "common/cleanup.h"
#include "common/log.h"
#include "fs/cache.h"
#include "fs/mountpoint.h"
#include "fs/store.h"
#include "fs/supervisor.h"
#include "fs/worker.h"

#define DEFAULT_CACHE     ((uint64_t)256 << 20)
#define DEFAULT_HYDRATE   ((uint64_t)1 << 30)
#define DEFAULT_TIMEOUT   86400
#define DEFAULT_READAHEAD 256 /* KiB: the usual chunk */
#define MAX_THREADS       256

/* -- options ------------------------------------------------------------------------------------ */

enum option_id {
	OPT_THREADS,
	OPT_CACHE,
	OPT_ALLOW_OTHER,
	OPT_NONEMPTY,
	OPT_UID,
	OPT_GID,
	OPT_NOTIFY_FD,
	OPT_TIMEOUT,
	OPT_READAHEAD,
	OPT_RECORD,
	OPT_IO_URING,
	OPT_PREFETCH,
	OPT_PREFETCH_RATE,
	OPT_HYDRATE_DIR,
	OPT_HYDRATE_MAX,
	OPT_IGNORED,
};

static const struct mount_option {
	const char *name;
	enum option_id id;
	bool has_value;
} mount_options[] = {
	{ "threads", OPT_THREADS, true },
	{ "cache", OPT_CACHE, true },
	{ "allow_other", OPT_ALLOW_OTHER, false },
	{ "nonempty", OPT_NONEMPTY, false },
	{ "uid", OPT_UID, true },
	{ "gid", OPT_GID, true },
	{ "notify_fd", OPT_NOTIFY_FD, true },
	{ "timeout", OPT_TIMEOUT, true },
	{ "readahead", OPT_READAHEAD, true },
	{ "record", OPT_RECORD, false },
	{ "io_uring", OPT_IO_URING, false },
	{ "prefetch", OPT_PREFETCH, true },
	{ "prefetch_rate", OPT_PREFETCH_RATE, true },
	{ "hydrate_dir", OPT_HYDRATE_DIR, true },
	{ "hydrate_max", OPT_HYDRATE_MAX, true },
	/* what mount(8) and fstab hand on, and what is so anyway */
	{ "ro", OPT_IGNORED, false },
	{ "rw", OPT_IGNORED, false },
	{ "dev", OPT_IGNORED, false },
	{ "nodev", OPT_IGNORED, false },
	{ "suid", OPT_IGNORED, false },
	{ "nosuid", OPT_IGNORED, false },
	{ "exec", OPT_IGNORED, false },
	{ "auto", OPT_IGNORED, false },
	{ "noauto", OPT_IGNORED, false },
	{ "nofail", OPT_IGNORED, false },
	{ "_netdev", OPT_IGNORED, false },
	{ "default_permissions", OPT_IGNORED, false },
	{ "defaults", OPT_IGNORED, false },
};

static int number_option(const char *text, long min, long max, uint32_t *ret)
{
	long v;
	int err = cli_number(text, min, max, &v);

	if (!err)
		*ret = (uint32_t)v;
	return err;
}

static int size_option(const char *text, uint64_t min, uint64_t *ret)
{
	uint64_t v;
	int err = cli_size(text, &v);

	if (!err && v < min)
		err = -ERANGE;
	if (!err)
		*ret = v;
	return err;
}

static int dir_option(const char *text, char ret[PATH_MAX])
{
	struct stat st;

	if (!realpath(text, ret) || stat(ret, &st))
		return -errno;
	return S_ISDIR(st.st_mode) ? 0 : -ENOTDIR;
}

static int prefetch_option(const char *text, struct fs_config *cfg)
{
	static const char *const names[] = { "off", "ws", "all" };

	for (size_t i = 0; i < ARRAY_SIZE(names); i++)
		if (!strcmp(text, names[i])) {
			cfg->prefetch = (enum fs_prefetch)i;
			cfg->has_prefetch = true;
			return 0;
		}
	return -EINVAL;
}

/* standard output and its kin have uses of their own: what we write to and close is a copy */
static int notify_option(int fd, struct fs_config *cfg)
{
	int own = fd <= STDERR_FILENO ? fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1) : fd;

	if (own < 0 || fcntl(own, F_SETFD, FD_CLOEXEC) < 0)
		return -EBADF;
	cfg->notify_fd = own;
	return 0;
}

static int set_option(struct fs_config *cfg, enum option_id id, const char *value)
{
	uint64_t bytes;
	uint32_t n = 0;
	int err = 0;

	switch (id) {
	case OPT_THREADS:
		return number_option(value, 1, MAX_THREADS, &cfg->threads);
	case OPT_CACHE:
		return size_option(value, CACHE_MIN, &cfg->cache_bytes);
	case OPT_ALLOW_OTHER:
		cfg->allow_other = true;
		return 0;
	case OPT_NONEMPTY:
		cfg->nonempty = true;
		return 0;
	case OPT_UID:
		cfg->has_uid = true;
		return number_option(value, 0, UINT32_MAX - 1, &cfg->uid);
	case OPT_GID:
		cfg->has_gid = true;
		return number_option(value, 0, UINT32_MAX - 1, &cfg->gid);
	case OPT_NOTIFY_FD:
		err = number_option(value, 0, INT_MAX, &n);
		return err ? err : notify_option((int)n, cfg);
	case OPT_TIMEOUT:
		return number_option(value, 0, 10L * 365 * 86400, &cfg->timeout_s);
	case OPT_READAHEAD:
		err = size_option(value, 4096, &bytes);
		if (!err)
			cfg->readahead_kb = (uint32_t)min_u64(bytes >> 10, 1u << 20);
		return err;
	case OPT_RECORD:
		cfg->record = true;
		return 0;
	case OPT_IO_URING:
		cfg->io_uring = true;
		return 0;
	case OPT_PREFETCH:
		return prefetch_option(value ? value : "", cfg);
	case OPT_PREFETCH_RATE:
		return size_option(value, 1, &cfg->prefetch_rate);
	case OPT_HYDRATE_DIR:
		return dir_option(value, cfg->hydrate_dir);
	case OPT_HYDRATE_MAX:
		return size_option(value, 4096, &cfg->hydrate_bytes);
	case OPT_IGNORED:
		break;
	}
	return 0;
}

/* one "name" or "name=value", which is cut up. Return: 0, CLI_USAGE */
static int parse_option(const struct cli *cli, struct fs_config *cfg, char *text)
{
	char *value = strchr(text, '=');
	int err;

	if (value)
		*value++ = '\0';
	for (size_t i = 0; i < ARRAY_SIZE(mount_options); i++) {
		const struct mount_option *o = &mount_options[i];

		if (strcmp(text, o->name) != 0)
			continue;
		if (o->has_value != (value != NULL))
			return cli_usage(cli, "option '%s' %s", text, value ? "takes no value" : "needs a value");
		err = set_option(cfg, o->id, value);
		if (err)
			return cli_usage(cli, "option '%s': '%s' is not possible: %s", text, value, strerror(-err));
		return 0;
	}
	/* "x-" is for others, by fstab(5)'s rule */
	if (!strncmp(text, "x-", 2))
		return 0;
	return cli_usage(cli, "unknown mount option '%s'", text);
}

static int parse_options(const struct cli *cli, struct fs_config *cfg, const char *list)
{
	_cleanup_free_ char *copy = strdup(list);
	char *save, *word = copy ? strtok_r(copy, ",", &save) : NULL;
	int code = 0;

	for (; word && !code; word = strtok_r(NULL, ",", &save))
		code = parse_option(cli, cfg, word);
	return code;
}

/* -- answering whoever waits --------------------------------------------------------------------- */

/* who is told that the mount answers */
struct waiter {
	const struct fs_config *cfg;
	int pipe; /* to the process that was started by hand; -1 in the foreground */
};

static void to_syslog(enum log_level level, const char *line, void *ctx)
{
	static const int levels[] = { LOG_ERR, LOG_WARNING, LOG_NOTICE, LOG_DEBUG };

	(void)ctx;
	syslog(levels[level], "%s", line);
}

/* have the descriptors @first to @last lead nowhere */
static void to_null(int first, int last)
{
	int fd = open("/dev/null", O_RDWR | O_CLOEXEC);

	for (int i = first; i <= last && fd >= 0; i++)
		dup2(fd, i);
	if (fd > STDERR_FILENO)
		close(fd);
}

static int by_number(const void *a, const void *b)
{
	int x = *(const int *)a, y = *(const int *)b;

	return x < y ? -1 : x > y;
}

/*
 * What the caller left open for us would stay open as long as the mount: a pipe whose reader waits for its end, a lock.
 * Only standard error is still needed, until the mount answers, and @kept.
 */
static void let_go(int kept[], size_t n)
{
	unsigned from = STDERR_FILENO + 1;

	to_null(STDIN_FILENO, STDOUT_FILENO);
	qsort(kept, n, sizeof(*kept), by_number);
	for (size_t i = 0; i < n; i++) {
		if (kept[i] < (int)from)
			continue;
		if (kept[i] > (int)from)
			close_range(from, (unsigned)kept[i] - 1, 0);
		from = (unsigned)kept[i] + 1;
	}
	close_range(from, ~0u, 0);
}

static void go_quiet(void)
{
	to_null(STDERR_FILENO, STDERR_FILENO);
	openlog("thawfs", LOG_PID, LOG_DAEMON);
	log_set_sink(to_syslog, NULL);
}

/* sd_notify(3): tell systemd, if it started us, that we are ready and which process to watch */
static void notify_systemd(void)
{
	const char *path = getenv("NOTIFY_SOCKET");
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	size_t len = path ? strlen(path) : 0;
	char text[48];
	int fd;

	if (len == 0 || len >= sizeof(addr.sun_path) || (path[0] != '/' && path[0] != '@'))
		return;
	memcpy(addr.sun_path, path, len);
	if (path[0] == '@')
		addr.sun_path[0] = '\0'; /* an abstract name */
	snprintf(text, sizeof(text), "READY=1\nMAINPID=%d", (int)getpid());
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || sendto(fd, text, strlen(text), MSG_NOSIGNAL, (const struct sockaddr *)&addr,
			     (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len)) < 0)
		log_warn("cannot notify '%s': %s", path, strerror(errno));
	if (fd >= 0)
		close(fd);
}

static void mount_answers(void *ctx, int err)
{
	struct waiter *waiter = ctx;
	char code = (char)cli_exit_code(err);

	if (!err && waiter->cfg->notify_fd >= 0) {
		if (write(waiter->cfg->notify_fd, "\n", 1) < 0)
			log_warn("cannot write to notify_fd %d: %s", waiter->cfg->notify_fd, strerror(errno));
		close(waiter->cfg->notify_fd);
	}
	if (!err)
		notify_systemd();
	if (!err && geteuid() != 0 && !waiter->cfg->allow_other)
		log_note("only this user may use '%s': others, and root, get 'Permission denied' "
			 "(-o allow_other lets them in)",
			 waiter->cfg->mnt);
	if (waiter->pipe < 0)
		return;
	if (!err)
		go_quiet();
	if (write(waiter->pipe, &code, 1) < 0)
		log_detail("nobody waits for the mount");
	close(waiter->pipe);
}

/* in the process that was started by hand */
static int wait_for_answer(int pipe, pid_t pid)
{
	char code;
	ssize_t n;
	int status;

	do
		n = read(pipe, &code, 1);
	while (n < 0 && errno == EINTR);
	if (n == 1 && code == CLI_GOOD)
		return CLI_GOOD;
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (n == 1)
		return code;
	log_error("cannot mount: the daemon ended at once");
	return CLI_FAILED;
}

static int run_mount(const struct fs_config *cfg, const struct control_msg *image, int image_fd)
{
	struct waiter waiter = { .cfg = cfg, .pipe = -1 };
	int pipe[2];
	pid_t pid;

	if (cfg->foreground)
		return cli_exit_code(supervisor_run(cfg, image, image_fd, mount_answers, &waiter));
	if (pipe2(pipe, O_CLOEXEC) || (pid = fork()) < 0) {
		log_error("cannot mount: %s", strerror(errno));
		return CLI_FAILED;
	}
	if (pid) {
		close(pipe[1]);
		return wait_for_answer(pipe[0], pid);
	}
	let_go((int[]){ pipe[1], image_fd, cfg->notify_fd }, 3);
	setsid();
	if (chdir("/"))
		log_detail("cannot change to /: %s", strerror(errno));
	waiter.pipe = pipe[1];
	_exit(cli_exit_code(supervisor_run(cfg, image, image_fd, mount_answers, &waiter)));
}

/* -- the verb ----------------------------------------------------------------------------------- */

static int real_path(const char *path, const char *what, char ret[PATH_MAX])
{
	if (realpath(path, ret))
		return 0;
	log_error("cannot mount %s '%s': %s", what, path, strerror(errno));
	return -errno;
}

static void set_defaults(struct fs_config *cfg)
{
	long n = get_nprocs();

	cfg->version = FS_CONFIG_VERSION;
	cfg->size = sizeof(*cfg);
	/* more than processors: some wait for storage or for another's decode */
	cfg->threads = (uint32_t)min_u64(max_u64((uint64_t)n * 2, 8), 64);
	cfg->cache_bytes = DEFAULT_CACHE;
	cfg->hydrate_bytes = DEFAULT_HYDRATE;
	cfg->timeout_s = DEFAULT_TIMEOUT;
	cfg->readahead_kb = DEFAULT_READAHEAD;
	cfg->notify_fd = -1;
}

static int prepare(struct fs_config *cfg, char **operands, struct control_msg *ret_image, int *ret_fd)
{
	char *slash;
	struct stat st;
	int err = real_path(operands[0], "image", cfg->src);

	if (!err)
		err = real_path(operands[1], "on", cfg->mnt);
	if (!err && stat(cfg->src, &st)) {
		err = -errno;
		log_error("cannot mount image '%s': %s", cfg->src, strerror(-err));
	}
	if (!err)
		err = mountpoint_check(cfg);
	if (err)
		return err;
	cfg->store = S_ISDIR(st.st_mode);
	if (cfg->store)
		return 0;
	char dir[PATH_MAX];
	memcpy(dir, cfg->src, sizeof(dir));
	slash = strrchr(dir, '/');
	slash[slash == dir] = '\0';
	const char *const base_path[] = { dir, NULL };
	struct image_opts opts = { .base_path = base_path };
	return store_identify(cfg->src, &opts, ret_image, ret_fd);
}

/*
 * What is prefetched is not asked for, so a recording beside it would be nearly empty. Opens that are passed through
 * are answered by a way of ours that rings do not take.
 */
static int settle_options(const struct cli *cli, struct fs_config *cfg)
{
	if (cfg->io_uring && cfg->hydrate_dir[0])
		return cli_usage(cli, "options 'io_uring' and 'hydrate_dir' exclude each other");
	if (cfg->record && cfg->has_prefetch && cfg->prefetch != FS_PREFETCH_OFF)
		return cli_usage(
			cli, "options 'record' and 'prefetch' exclude each other: what is prefetched is not recorded");
	if (!cfg->has_prefetch)
		cfg->prefetch = cfg->record ? FS_PREFETCH_OFF : FS_PREFETCH_WS;
	return 0;
}

static int run(const struct verb *verb, int argc, char **argv)
{
	static const struct option longs[] = { CLI_LONG_QUIET, { "foreground", no_argument, NULL, 'f' }, CLI_LONG_END };
	static struct fs_config cfg;
	struct cli cli = { .verb = verb };
	struct control_msg image = { 0 };
	int opt, code, err, fd = -1;

	if (argc == 2 && !strcmp(argv[1], "--worker"))
		return worker_main();
	set_defaults(&cfg);
	while ((opt = cli_getopt(&cli, argc, argv, "fo:q", longs)) >= 0) {
		if (opt == '?')
			return cli_stop_code(&cli);
		if (opt == 'f')
			cfg.foreground = true;
		code = opt == 'o' ? parse_options(&cli, &cfg, optarg) : 0;
		if (code)
			return code;
	}
	code = cli_operands(&cli, argc, argv, 2, 2);
	if (!code)
		code = settle_options(&cli, &cfg);
	if (code)
		return code;
	err = prepare(&cfg, argv + optind, &image, &fd);
	return err ? cli_exit_code(err) : run_mount(&cfg, &image, fd);
}

const struct verb verb_mount = {
	.name = "mount",
	.synopsis = "[-f] [-o OPTION[,OPTION…]] IMAGE|STORE DIRECTORY",
	.summary = "Show an image, or all images of a directory, as files",
	.help = "Returns when the mount answers; 'thawfs umount' ends it.\n"
		"\n"
		"  -f, --foreground   stay in the foreground, with messages on standard error\n"
		"  -o threads=N       threads that serve requests (default: twice the processors, 8 to 64)\n"
		"  -o cache=SIZE      memory for decoded chunks (default 256M, at least 32M)\n"
		"  -o readahead=SIZE  the kernel's read-ahead, set where that is permitted (default 256K)\n"
		"  -o allow_other     let other users in, as the modes of the files allow\n"
		"  -o uid=N, gid=N    show all files as owned by N\n"
		"  -o timeout=S       seconds the kernel may keep names and attributes (default 86400)\n"
		"  -o notify_fd=N     write a line to descriptor N when the mount answers\n"
		"  -o record          keep beside each image which chunks were read (IMAGE.ws)\n"
		"  -o prefetch=WHAT   make open files resident: ws (what was recorded; default), all, off\n"
		"  -o prefetch_rate=N bytes a second for that (default: no bound)\n"
		"  -o hydrate_dir=D   decode files that are opened into D and serve them from there (root)\n"
		"  -o hydrate_max=N   room for that (default 1G)\n"
		"  -o io_uring        take requests over io_uring, where kernel and libfuse can; no failover then\n"
		"  -o nonempty        mount over a directory that has entries\n",
	.run = run,
};
