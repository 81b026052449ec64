/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two rules from killing workers thousands of times: nothing may fault inside a read or write of /dev/fuse, or a
 * SIGKILL that is pending turns into an error for somebody's read, so receive buffers are touched first and replies
 * go out from resident memory (read.c); and INTERRUPT, which confuses with requests that are sent again, is
 * declined when it first comes, whereupon the kernel sends no more.
 */
#include "fs/session.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/log.h"
#include "fs/ops.h"

#define RECEIVE_BYTES  ((1u << 20) + 4096u) /* libfuse offers 1 MiB of max_write; the kernel wants room for it */
#define RESIDENT_BYTES (128u << 10)         /* more than anything but a write, and nobody can write */
#define RESEND_FLAG2   (1u << 7)            /* FUSE_HAS_RESEND is bit 39 of the flags */
#define NOTIFY_RESEND  7
/* Linux 6.9; libfuse before 3.17 knows nothing of it, so replies are patched on their way out */
#define PASS_FLAG2     (1u << 5) /* FUSE_PASSTHROUGH is bit 37 of the flags */
#define RING_FLAG2     (1u << 9) /* FUSE_OVER_IO_URING is bit 41 of the flags; Linux 6.14 */
#define PASS_OPEN      (1u << 7) /* FOPEN_PASSTHROUGH */
#define WAKE_SIGNAL    SIGUSR1

/* what the write hook does with a reply to INIT; set while no thread serves */
static enum { IO_SERVE, IO_CAPTURE, IO_REPLAY } io_mode;
static struct session_init *io_init;
static int io_error;
static _Thread_local uint32_t io_backing;
static bool over_ring; /* set before any thread serves */

static ssize_t io_read(int fd, void *buf, size_t len, void *userdata)
{
	ssize_t n;

	(void)userdata;
	do
		n = read(fd, buf, len);
	while (n < 0 && errno == EINTR);
	return n;
}

static size_t flatten(const struct iovec *iov, int count, uint8_t *buf, size_t room)
{
	size_t len = 0;

	for (int i = 0; i < count; i++) {
		if (iov[i].iov_len > room - len)
			return 0;
		memcpy(buf + len, iov[i].iov_base, iov[i].iov_len);
		len += iov[i].iov_len;
	}
	return len;
}

/*
 * The answer to INIT says that opens may be passed through, to a file system that is not itself stacked, and that
 * requests may come over io_uring.
 */
static void patch_init(uint8_t *msg, size_t len)
{
	struct fuse_init_out out;

	if (len != sizeof(struct fuse_out_header) + sizeof(out)) {
		io_error = -EPROTO;
		return;
	}
	memcpy(&out, msg + sizeof(struct fuse_out_header), sizeof(out));
	out.flags |= FUSE_INIT_EXT;
	if (io_init->passthrough) {
		out.flags2 |= PASS_FLAG2;
		out.unused[0] = 1; /* max_stack_depth */
	}
	if (io_init->io_uring)
		out.flags2 |= RING_FLAG2;
	memcpy(msg + sizeof(struct fuse_out_header), &out, sizeof(out));
}

static ssize_t write_open(int fd, struct iovec *iov, int count)
{
	struct {
		struct fuse_out_header head;
		struct fuse_open_out open;
	} msg;

	if (flatten(iov, count, (uint8_t *)&msg, sizeof(msg)) == sizeof(msg) && !msg.head.error) {
		msg.open.open_flags |= PASS_OPEN;
		msg.open.padding = (int32_t)io_backing; /* backing_id */
		return write(fd, &msg, sizeof(msg));
	}
	return writev(fd, iov, count);
}

void session_pass_open(uint32_t id)
{
	io_backing = id;
}

static ssize_t io_writev(int fd, struct iovec *iov, int count, void *userdata)
{
	uint8_t out[sizeof(io_init->out)];
	size_t len;

	(void)userdata;
	if (io_mode == IO_SERVE && io_backing)
		return write_open(fd, iov, count);
	if (io_mode == IO_SERVE)
		return writev(fd, iov, count);
	len = flatten(iov, count, out, sizeof(out));
	if (len < sizeof(struct fuse_out_header))
		io_error = -EPROTO;
	else if (io_init->passthrough || io_init->io_uring)
		patch_init(out, len);
	if (io_mode == IO_REPLAY) {
		if (len != io_init->out_len || memcmp(out, io_init->out, len) != 0)
			io_error = -EPROTO;
		return (ssize_t)len;
	}
	memcpy(io_init->out, out, len);
	io_init->out_len = (uint32_t)len;
	return write(fd, out, len);
}

static const struct fuse_custom_io custom_io = { .writev = io_writev, .read = io_read };

/* takes @fd, also on failure */
static int new_session(void *userdata, int fd, struct fuse_session **ret)
{
	char *argv[] = { "thawfs", NULL };
	struct fuse_args args = FUSE_ARGS_INIT(1, argv);
	struct fuse_session *se = fuse_session_new(&args, &fs_ops, sizeof(fs_ops), userdata);
	int err;

	fuse_opt_free_args(&args);
	if (!se) {
		close(fd);
		return -ENOMEM;
	}
	err = fuse_session_custom_io(se, &custom_io, fd);
	if (err) {
		fuse_session_destroy(se);
		close(fd);
		return err < 0 ? err : -EINVAL;
	}
	*ret = se;
	return 0;
}

/* let libfuse answer the saved INIT, with the hook in @mode */
static int process_init(struct fuse_session *se, struct session_init *init, int mode)
{
	struct fuse_buf buf = { .size = init->in_len, .mem = init->in };

	io_init = init;
	io_error = 0;
	io_mode = mode;
	fuse_session_process_buf(se, &buf);
	io_mode = IO_SERVE;
	io_init = NULL;
	return io_error;
}

static uint32_t kernel_flags2(const struct session_init *init)
{
	struct fuse_init_in in;

	if (init->in_len < sizeof(struct fuse_in_header) + offsetof(struct fuse_init_in, unused))
		return 0;
	memcpy(&in, init->in + sizeof(struct fuse_in_header), sizeof(in));
	return in.flags & FUSE_INIT_EXT ? in.flags2 : 0;
}

bool session_knows_io_uring(void)
{
#ifdef FUSE_CAP_OVER_IO_URING
	return true;
#else
	return false;
#endif
}

int session_negotiate(int fuse_fd, bool passthrough, bool io_uring, struct session_init *ret)
{
	_cleanup_free_ uint8_t *buf = malloc(FUSE_MIN_READ_BUFFER);
	struct session_init init = { 0 };
	struct fuse_out_header out;
	struct fuse_session *se = NULL;
	ssize_t n;
	int fd, err;

	if (!buf)
		return -ENOMEM;
	n = io_read(fuse_fd, buf, FUSE_MIN_READ_BUFFER, NULL);
	if (n < 0 || (size_t)n > sizeof(init.in) || (size_t)n < sizeof(struct fuse_in_header)) {
		err = n < 0 ? -errno : -EPROTO;
		log_error("cannot begin with the kernel: %s", strerror(-err));
		return err;
	}
	memcpy(init.in, buf, (size_t)n);
	init.in_len = (uint32_t)n;
	init.passthrough = passthrough && kernel_flags2(&init) & PASS_FLAG2;
	init.io_uring = io_uring && session_knows_io_uring() && kernel_flags2(&init) & RING_FLAG2;
	fd = fcntl(fuse_fd, F_DUPFD_CLOEXEC, 3);
	err = fd < 0 ? -errno : new_session(NULL, fd, &se);
	if (err || !se) {
		log_error("cannot begin with the kernel: %s", strerror(-err));
		return err;
	}
	err = process_init(se, &init, IO_CAPTURE);
	fuse_session_destroy(se);
	memcpy(&out, init.out, sizeof(out));
	if (!err && (init.out_len < sizeof(out) || out.error))
		err = -EPROTO;
	if (err) {
		log_error("cannot begin with the kernel: it and libfuse do not agree");
		return err;
	}
	*ret = init;
	return 0;
}

bool session_can_resend(const struct session_init *init)
{
	return kernel_flags2(init) & RESEND_FLAG2;
}

void session_resend(int fuse_fd)
{
	struct fuse_out_header out = { .len = sizeof(out), .error = NOTIFY_RESEND };

	/* fails when the session is over, and then there is nothing to send again */
	if (write(fuse_fd, &out, sizeof(out)) < 0)
		return;
}

/* are there threads of libfuse's rings? It does not say when it could not set them up */
static bool has_rings(void)
{
	_cleanup_closedir_ DIR *dir = opendir("/proc/self/task");
	struct dirent *d;

	while (dir && (d = readdir(dir))) {
		char path[300], name[32] = "";
		_cleanup_close_ int fd = -1;

		snprintf(path, sizeof(path), "/proc/self/task/%s/comm", d->d_name);
		fd = open(path, O_RDONLY | O_CLOEXEC);
		if (fd >= 0 && read(fd, name, sizeof(name) - 1) > 0 && !strncmp(name, "fuse-ring", 9))
			return true;
	}
	return false;
}

/*
 * libfuse does not combine rings with hooks into its I/O, so the answer to INIT, which goes out again, is one that the
 * kernel does not wait for (ENOENT). Takes @fd.
 */
static int open_ring_session(struct fs *fs, int fd, struct session_init *init)
{
	char *argv[] = { "thawfs", "-oio_uring", NULL };
	struct fuse_args args = FUSE_ARGS_INIT(2, argv);
	char path[32];

	fs->se = fuse_session_new(&args, &fs_ring_ops, sizeof(fs_ring_ops), fs);
	fuse_opt_free_args(&args);
	snprintf(path, sizeof(path), "/dev/fd/%d", fd);
	if (!fs->se || fuse_session_mount(fs->se, path)) {
		log_error("cannot serve this mount: libfuse does not take its descriptor");
		close(fd);
		return -ENOMEM;
	}
	over_ring = true;
	process_init(fs->se, init, IO_REPLAY);
	if (has_rings())
		return 0;
	/* the kernel would wait for them for ever */
	log_error("cannot serve this mount: libfuse cannot set up io_uring");
	return -EOPNOTSUPP;
}

int session_open(struct fs *fs, int fuse_fd, const struct session_init *init)
{
	struct session_init copy = *init;
	int err;

	if (init->io_uring)
		return open_ring_session(fs, fuse_fd, &copy);
	err = new_session(fs, fuse_fd, &fs->se);
	if (!err)
		err = process_init(fs->se, &copy, IO_REPLAY);
	if (err)
		log_error("cannot serve this mount: %s", err == -EPROTO ? "another libfuse began it" : strerror(-err));
	return err;
}

/* -- serving ----------------------------------------------------------------------------------- */

struct server {
	struct fs *fs;
	pthread_t thread;
	_Atomic bool waiting; /* in read(2), or about to be */
	void *buf;
};

static struct server *servers;
static unsigned n_servers;
static _Atomic bool stopping;
static int ended;

static const uint8_t stats_of_opcode[64] = {
	[FUSE_LOOKUP] = STATS_LOOKUP + 1,       [FUSE_GETATTR] = STATS_GETATTR + 1,
	[FUSE_READLINK] = STATS_READLINK + 1,   [FUSE_OPEN] = STATS_OPEN + 1,
	[FUSE_OPENDIR] = STATS_OPEN + 1,        [FUSE_READ] = STATS_READ + 1,
	[FUSE_RELEASE] = STATS_RELEASE + 1,     [FUSE_RELEASEDIR] = STATS_RELEASE + 1,
	[FUSE_READDIR] = STATS_READDIR + 1,     [FUSE_READDIRPLUS] = STATS_READDIR + 1,
	[FUSE_STATFS] = STATS_STATFS + 1,       [FUSE_GETXATTR] = STATS_XATTR + 1,
	[FUSE_LISTXATTR] = STATS_XATTR + 1,     [FUSE_LSEEK] = STATS_LSEEK + 1,
	[FUSE_SETATTR] = STATS_REFUSED + 1,     [FUSE_SYMLINK] = STATS_REFUSED + 1,
	[FUSE_MKNOD] = STATS_REFUSED + 1,       [FUSE_MKDIR] = STATS_REFUSED + 1,
	[FUSE_UNLINK] = STATS_REFUSED + 1,      [FUSE_RMDIR] = STATS_REFUSED + 1,
	[FUSE_RENAME] = STATS_REFUSED + 1,      [FUSE_RENAME2] = STATS_REFUSED + 1,
	[FUSE_LINK] = STATS_REFUSED + 1,        [FUSE_CREATE] = STATS_REFUSED + 1,
	[FUSE_WRITE] = STATS_REFUSED + 1,       [FUSE_SETXATTR] = STATS_REFUSED + 1,
	[FUSE_REMOVEXATTR] = STATS_REFUSED + 1, [FUSE_FALLOCATE] = STATS_REFUSED + 1,
};

static void process(const struct server *server, size_t len)
{
	struct fuse_buf buf = { .size = len, .mem = server->buf };
	struct fuse_in_header in;
	uint64_t start = stats_now_ns();

	memcpy(&in, server->buf, sizeof(in));
	if (in.opcode == FUSE_INTERRUPT) {
		struct fuse_out_header out = { .len = sizeof(out), .error = -ENOSYS, .unique = in.unique };

		if (write(fuse_session_fd(server->fs->se), &out, sizeof(out)) < 0)
			log_detail("cannot decline an interrupt: %s", strerror(errno));
		return;
	}
	fuse_session_process_buf(server->fs->se, &buf);
	/* the operations of rings count by themselves */
	if (!over_ring && in.opcode < sizeof(stats_of_opcode) && stats_of_opcode[in.opcode])
		stats_request(server->fs->stats, stats_of_opcode[in.opcode] - 1, start);
}

static void *serve(void *arg)
{
	struct server *server = arg;
	uint64_t one = 1;

	while (!stopping) {
		ssize_t n;

		server->waiting = true;
		n = read(fuse_session_fd(server->fs->se), server->buf, RECEIVE_BYTES);
		server->waiting = false;
		if (n >= (ssize_t)sizeof(struct fuse_in_header)) {
			process(server, (size_t)n);
			continue;
		}
		/* EINTR: session_stop(); ENOENT: the request was given up while we were about to get it */
		if (n < 0 && (errno == EINTR || errno == ENOENT || errno == EAGAIN))
			continue;
		if (n < 0 && errno != ENODEV)
			log_error("cannot read requests: %s", strerror(errno));
		if (write(ended, &one, sizeof(one)) < 0)
			log_error("cannot say that the session ended: %s", strerror(errno));
		break;
	}
	return NULL;
}

static void *serve_thread(void *arg)
{
	struct server *server = arg;

	if (ops_thread_begin(server->fs)) {
		log_error("cannot start a serving thread: out of memory");
		return NULL;
	}
	serve(server);
	ops_thread_end();
	return NULL;
}

static void on_wake(int sig)
{
	(void)sig;
}

static int start_server(struct fs *fs, struct server *server)
{
	int err;

	server->fs = fs;
	server->buf = mmap(NULL, RECEIVE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (server->buf == MAP_FAILED)
		return -ENOMEM;
	memset(server->buf, 0xff, RESIDENT_BYTES);
	/* where not permitted, swapping is what remains to hope against */
	if (mlock(server->buf, RESIDENT_BYTES) && errno != EPERM && errno != ENOMEM)
		log_detail("cannot lock a receive buffer: %s", strerror(errno));
	err = pthread_create(&server->thread, NULL, serve_thread, server);
	if (err)
		munmap(server->buf, RECEIVE_BYTES);
	return -err;
}

int session_serve(struct fs *fs, int ended_fd)
{
	/* without SA_RESTART, so that it ends a read */
	struct sigaction wake = { .sa_handler = on_wake };

	sigaction(WAKE_SIGNAL, &wake, NULL);
	servers = calloc(fs->cfg.threads, sizeof(*servers));
	if (!servers)
		return -ENOMEM;
	ended = ended_fd;
	stopping = false;
	for (; n_servers < fs->cfg.threads; n_servers++) {
		int err = start_server(fs, &servers[n_servers]);

		/* one thread is enough to go on */
		if (err && n_servers == 0)
			return err;
		if (err)
			break;
	}
	return 0;
}

void session_stop(struct fs *fs)
{
	(void)fs;
	stopping = true;
	for (unsigned i = 0; i < n_servers; i++) {
		struct timespec until;

		/* again and again: the signal may come just before the thread waits */
		do {
			if (servers[i].waiting)
				pthread_kill(servers[i].thread, WAKE_SIGNAL);
			clock_gettime(CLOCK_REALTIME, &until);
			until.tv_nsec += 5000000;
			if (until.tv_nsec >= 1000000000) {
				until.tv_nsec -= 1000000000;
				until.tv_sec++;
			}
		} while (pthread_timedjoin_np(servers[i].thread, NULL, &until) == ETIMEDOUT);
		munmap(servers[i].buf, RECEIVE_BYTES);
	}
	free(servers);
	servers = NULL;
	n_servers = 0;
}

void session_close(struct fs *fs)
{
	if (fs->se)
		fuse_session_destroy(fs->se);
	fs->se = NULL;
}
