/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cli/dmtcp_tree.h"
#include "cli/restart_dmtcp.h"
#include "common/cleanup.h"
#include "common/io.h"
#include "common/log.h"
#include "fs/mountpoint.h"
#include "imgfmt/format.h"

#define SIGNATURE "DMTCP_CHECKPOINT_IMAGE_v4.0\n"
#define SELF_MARK "selfckpt" /* examples/selfckpt leaves it in the header's padding */
#define MARK_OFF  (4096u + 2304u)
#define POLL_MS   200

struct mounted {
	char *image, *point;
};

/* what is under way, with all that has to be cleaned up */
struct session {
	const struct cli *cli;
	const struct restart_dmtcp *how;
	char dir[PATH_MAX]; /* of the mount points; empty: none */
	struct mounted *mounts;
	size_t n_mounts;
	char **files; /* as dmtcp_restart gets them */
	size_t n_files;
};

/* -- what there is to restart ------------------------------------------------------------------ */

static int judge(const char *path, const uint8_t *head, size_t len, enum restart_maker *ret)
{
	if (len >= 2 && head[0] == 0x1f && head[1] == 0x8b) {
		*ret = MADE_BY_DMTCP_GZIP;
		return 0;
	}
	if (len < RESTART_HEAD_BYTES || memcmp(head + 4096, SIGNATURE, strlen(SIGNATURE)) != 0) {
		log_error("cannot restart '%s': it is not a DMTCP v4.0 image", path);
		return -EBADMSG;
	}
	*ret = memcmp(head + MARK_OFF, SELF_MARK, strlen(SELF_MARK)) == 0 ? MADE_BY_ITSELF : MADE_BY_DMTCP;
	return 0;
}

static int examine_member(const struct cli *cli, const char *path, const char *member, enum restart_maker *ret)
{
	_cleanup_free_ char *name = strndup(path, (size_t)(member - path));
	uint8_t head[RESTART_HEAD_BYTES];
	struct chunk_ctx *ctx = chunk_ctx_new();
	struct image *img = NULL;
	struct image_inode inode;
	size_t len = 0;
	uint32_t ino;
	int err = name && ctx ? cli_open_image(cli, name, &img) : -ENOMEM;

	if (!err)
		err = cli_walk(img, member + 1, &ino);
	if (!err)
		err = image_inode(img, ino, &inode);
	if (!err) {
		len = inode.size < sizeof(head) ? (size_t)inode.size : sizeof(head);
		err = image_read(img, ctx, ino, 0, head, len);
		if (err)
			log_error("cannot read '%s' in '%s': %s", member + 1, name,
				  err == -EBADMSG ? chunk_ctx_error(ctx) : strerror(-err));
	}
	image_close(img);
	chunk_ctx_free(ctx);
	return err ? err : judge(path, head, len, ret);
}

int restart_examine(const struct cli *cli, const char *path, const char **ret_member, bool *ret_all,
		    enum restart_maker *ret)
{
	_cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
	int err = fd < 0 ? -errno : 0;
	uint8_t head[RESTART_HEAD_BYTES];
	ssize_t n;

	*ret_member = NULL;
	*ret_all = false;
	if (err == -ENOTDIR && (*ret_member = cli_image_end(path)))
		return examine_member(cli, path, *ret_member, ret);
	if (err) {
		log_error("cannot open '%s': %s", path, strerror(-err));
		return err;
	}
	n = pread(fd, head, sizeof(head), 0);
	if (n < 0) {
		err = -errno;
		log_error("cannot read '%s': %s", path, strerror(-err));
		return err;
	}
	if ((size_t)n >= sizeof(struct thaw_header) && memcmp(head, THAW_MAGIC, strlen(THAW_MAGIC)) == 0) {
		*ret_all = true;
		*ret = MADE_BY_DMTCP;
		return 0;
	}
	return judge(path, head, (size_t)n, ret);
}

/* -- mounts ------------------------------------------------------------------------------------ */

static int add_file(struct session *s, char *file)
{
	char **more = file ? realloc(s->files, (s->n_files + 1) * sizeof(*more)) : NULL;

	if (!more) {
		free(file);
		return -ENOMEM;
	}
	s->files = more;
	s->files[s->n_files++] = file;
	return 0;
}

static int run_mount(const struct session *s, const char *image, const char *point)
{
	const char *argv[CLI_BASES_MAX * 2 + 8];
	size_t n = 0;
	int status;
	pid_t pid;

	argv[n++] = "thawfs";
	argv[n++] = "mount";
	if (s->how->record) {
		argv[n++] = "-o";
		argv[n++] = "record";
	}
	for (size_t i = 0; i < s->cli->n_base_path; i++) {
		argv[n++] = "--base-path";
		argv[n++] = s->cli->base_path[i];
	}
	argv[n++] = image;
	argv[n++] = point;
	argv[n] = NULL;
	pid = fork();
	if (pid == 0) {
		/* what it prints belongs to us, its daemon's life does not end with the terminal's */
		execv("/proc/self/exe", (char *const *)argv);
		_exit(127);
	}
	while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (pid < 0 || !WIFEXITED(status))
		return -ECHILD;
	return WEXITSTATUS(status) == 0 ? 0 : WEXITSTATUS(status) == CLI_DAMAGED ? -EBADMSG : -EIO;
}

static int make_directory(struct session *s)
{
	const char *where = getenv("XDG_RUNTIME_DIR");

	if (!where || access(where, W_OK) != 0)
		where = getenv("TMPDIR");
	if (!where || *where != '/')
		where = "/tmp";
	if (snprintf(s->dir, sizeof(s->dir), "%s/thawfs-restart-XXXXXX", where) >= (int)sizeof(s->dir))
		return -ENAMETOOLONG;
	if (!mkdtemp(s->dir)) {
		log_error("cannot make a directory for the mount in '%s': %s", where, strerror(errno));
		*s->dir = '\0';
		return -errno;
	}
	return 0;
}

/* mounts an image once */
static int mount_image(struct session *s, const char *image, const char **ret_point)
{
	struct mounted m = { 0 }, *more;
	int err = *s->dir ? 0 : make_directory(s);

	for (size_t i = 0; i < s->n_mounts; i++)
		if (!strcmp(s->mounts[i].image, image)) {
			*ret_point = s->mounts[i].point;
			return 0;
		}
	if (err)
		return err;
	more = realloc(s->mounts, (s->n_mounts + 1) * sizeof(*more));
	if (!more)
		return -ENOMEM;
	s->mounts = more;
	m.image = strdup(image);
	if (asprintf(&m.point, "%s/%zu", s->dir, s->n_mounts) < 0)
		m.point = NULL;
	if (!m.image || !m.point)
		err = -ENOMEM;
	if (!err && mkdir(m.point, 0700) != 0)
		err = -errno;
	if (!err) {
		err = run_mount(s, image, m.point);
		if (err)
			rmdir(m.point);
	}
	if (err) {
		free(m.image);
		free(m.point);
		return err;
	}
	s->mounts[s->n_mounts++] = m;
	*ret_point = m.point;
	return 0;
}

/* all of an image's address spaces that are DMTCP's */
static int add_all(struct session *s, const char *path)
{
	struct image *img = NULL;
	const char *point;
	size_t before = s->n_files;
	int err = cli_open_image(s->cli, path, &img);

	if (!err)
		err = mount_image(s, path, &point);
	for (uint32_t i = 0; !err && i < image_info(img)->n_spaces; i++) {
		struct image_space space;
		char *file;

		err = image_space(img, i, &space);
		if (err || space.kind != THAW_SPACE_DMTCP)
			continue;
		if (asprintf(&file, "%s/%.*s", point, (int)space.name_len, space.name) < 0)
			file = NULL;
		err = add_file(s, file);
	}
	image_close(img);
	if (!err && s->n_files == before) {
		log_error("cannot restart '%s': it holds no DMTCP images", path);
		err = -ENOENT;
	}
	return err;
}

static int add_operand(struct session *s, const char *path)
{
	const char *member, *point;
	char *file = NULL;
	enum restart_maker maker = MADE_BY_DMTCP;
	bool all;
	int err = restart_examine(s->cli, path, &member, &all, &maker);

	if (err)
		return err;
	if (all)
		return add_all(s, path);
	if (maker == MADE_BY_ITSELF) {
		log_error("cannot restart '%s' with others: its program saved it without DMTCP", path);
		return -EINVAL;
	}
	if (maker == MADE_BY_DMTCP_GZIP && (s->how->lazily == RESTART_LAZILY || s->how->record || member)) {
		log_error("cannot restart '%s' lazily or from an image: DMTCP compressed it; 'thawfs pack --gunzip' "
			  "makes an image of it that can",
			  path);
		return -EINVAL;
	}
	if (member) {
		_cleanup_free_ char *image = strndup(path, (size_t)(member - path));

		err = image ? mount_image(s, image, &point) : -ENOMEM;
		if (!err && asprintf(&file, "%s%s", point, member) < 0)
			file = NULL;
	} else {
		file = realpath(path, NULL);
	}
	return err ? err : add_file(s, file);
}

/* -- the end of mounts ------------------------------------------------------------------------- */

/* Return: whether none is left */
static bool end_mounts(struct session *s)
{
	while (s->n_mounts) {
		struct mounted *m = &s->mounts[s->n_mounts - 1];
		int err = mountpoint_unmount(m->point, false);

		if (err == -EBUSY)
			return false;
		if (err && err != -EINVAL && err != -ENOENT)
			log_error("cannot unmount '%s': %s", m->point, strerror(-err));
		rmdir(m->point);
		free(m->image);
		free(m->point);
		s->n_mounts--;
	}
	if (*s->dir)
		rmdir(s->dir);
	*s->dir = '\0';
	return true;
}

static void wait_a_moment(void)
{
	struct timespec t = { 0, POLL_MS * 1000000L };

	nanosleep(&t, NULL);
}

/* nothing of ours may hold a terminal or pipe that somebody waits for */
static void end_mounts_in_background(struct session *s)
{
	pid_t pid = fork();

	if (pid < 0)
		log_error("'%s' stays mounted: %s", s->dir, strerror(errno));
	if (pid)
		return;
	setsid();
	for (int fd = 0, null = open("/dev/null", O_RDWR); fd < 3 && null >= 0; fd++)
		dup2(null, fd);
	if (chdir("/"))
		_exit(1);
	while (!end_mounts(s))
		wait_a_moment();
	_exit(0);
}

/* -- running it -------------------------------------------------------------------------------- */

static volatile sig_atomic_t child;

static void pass_on(int sig)
{
	if (child > 0)
		kill((pid_t)child, sig);
}

/* a directory that DMTCP can write the next checkpoint to, as it asserts */
static int choose_ckptdir(const struct session *s, char ret[PATH_MAX])
{
	const char *given = s->how->ckptdir ? s->how->ckptdir : getenv("DMTCP_CHECKPOINT_DIR");
	const char *slash;

	if (given) {
		if (realpath(given, ret) && access(ret, W_OK | X_OK) == 0)
			return 0;
		log_error("cannot keep checkpoints in '%s': %s", given, strerror(errno));
		return -errno;
	}
	slash = s->n_files ? strrchr(s->files[0], '/') : NULL;
	if (slash && slash - s->files[0] < PATH_MAX - 1) {
		size_t len = slash > s->files[0] ? (size_t)(slash - s->files[0]) : 1;

		memcpy(ret, s->files[0], len);
		ret[len] = '\0';
		if (access(ret, W_OK | X_OK) == 0)
			return 0;
	}
	if (getcwd(ret, PATH_MAX) && access(ret, W_OK | X_OK) == 0)
		return 0;
	log_error("cannot keep checkpoints here: neither the image's directory nor the current one can be written to; "
		  "--ckptdir DIR says where");
	return -EACCES;
}

/* the restarter reads or maps by the environment */
static void set_mode(const struct session *s)
{
	bool lazy = s->how->lazily == RESTART_LAZILY;

	for (size_t i = 0; i < s->n_files && s->how->lazily == RESTART_BY_SIZE; i++) {
		struct statfs fs;
		struct stat st;

		if (statfs(s->files[i], &fs) == 0 && fs.f_type == FUSE_SUPER_MAGIC && stat(s->files[i], &st) == 0)
			lazy |= (uint64_t)st.st_size >= RESTART_LAZY_MIN;
	}
	setenv("THAWFS_RESTART_MODE", lazy ? "lazy" : "eager", 1);
}

static char **arguments(const struct session *s, char *program, char *ckptdir)
{
	size_t n = 0, n_options = 0;
	char **argv;

	while (s->how->options && s->how->options[n_options])
		n_options++;
	argv = calloc(s->n_files + n_options + 4, sizeof(*argv));
	if (!argv)
		return NULL;
	argv[n++] = program;
	argv[n++] = (char *)"--ckptdir";
	argv[n++] = ckptdir;
	for (size_t i = 0; i < n_options; i++)
		argv[n++] = s->how->options[i];
	for (size_t i = 0; i < s->n_files; i++)
		argv[n++] = s->files[i];
	return argv;
}

static int run(struct session *s, const char *program, char **argv)
{
	static const int passed[] = { SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGCONT };
	struct sigaction sa = { .sa_handler = pass_on, .sa_flags = SA_RESTART };
	int status = 0;
	pid_t pid;

	/* the terminal's own signals reach both */
	if (s->n_mounts) {
		signal(SIGINT, SIG_IGN);
		signal(SIGQUIT, SIG_IGN);
	}
	pid = s->n_mounts ? fork() : 0;
	if (pid == 0) {
		signal(SIGINT, SIG_DFL);
		signal(SIGQUIT, SIG_DFL);
		execv(program, argv);
		log_error("cannot run '%s': %s", program, strerror(errno));
		if (s->n_mounts)
			_exit(CLI_FAILED);
		return CLI_FAILED;
	}
	if (pid < 0) {
		log_error("cannot run '%s': %s", program, strerror(errno));
		return CLI_FAILED;
	}
	child = pid;
	for (size_t i = 0; i < sizeof(passed) / sizeof(*passed); i++)
		sigaction(passed[i], &sa, NULL);
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	child = 0;
	return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

int restart_dmtcp(const struct cli *cli, const struct restart_dmtcp *how, char **files, int n_files)
{
	struct session s = { .cli = cli, .how = how };
	char program[PATH_MAX], ckptdir[PATH_MAX];
	_cleanup_free_ char **argv = NULL;
	int code = CLI_FAILED;
	int err = dmtcp_tree(how->prefix, how->restarter, program);

	for (int i = 0; !err && i < n_files; i++)
		err = add_operand(&s, files[i]);
	if (!err)
		err = choose_ckptdir(&s, ckptdir);
	if (!err && !(argv = arguments(&s, program, ckptdir)))
		err = -ENOMEM;
	if (!err) {
		set_mode(&s);
		code = run(&s, program, argv);
	}
	if (!end_mounts(&s))
		end_mounts_in_background(&s);
	for (size_t i = 0; i < s.n_files; i++)
		free(s.files[i]);
	free(s.files);
	free(s.mounts);
	return err ? cli_exit_code(err) : code;
}
