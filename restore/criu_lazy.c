/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The protocol, on a stream socket: for each task its pid (negative: it is dead and has no memory), then one byte with
 * its userfaultfd; when all tasks are about to run, a word that says so. Nothing is ever sent back. Pids are
 * those inside the task's namespace, so they name images and nothing else.
 */
#include "restore/criu_lazy.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/log.h"
#include "restore/fdpass.h"
#include "restore/keeper.h"
#include "restore/plain.h"

#define RESTORE_FINISHED 0x52535446u
#define SPACE_NAME_MAX   4200

/* shared with whoever takes over */
struct lazy {
	struct image *img;
	const char *dir;
	const struct plain *plain;
	_Atomic int listener, conn; /* -1: closed */
	_Atomic int32_t pid;        /* its descriptor comes next; 0: none does */
};

static size_t watch(void *ctx, struct pollfd *ret_fds)
{
	const struct lazy *l = ctx;
	int fd = l->conn >= 0 ? l->conn : l->listener;

	if (fd < 0)
		return 0;
	ret_fds[0] = (struct pollfd){ .fd = fd, .events = POLLIN };
	return 1;
}

/* whoever is begun and cannot go on must not run; CRIU gives up when it cannot say that it finished */
static int fail(struct lazy *l, int err)
{
	close(l->conn);
	l->conn = -1;
	return err;
}

static int add_task(struct lazy *l, struct roster *roster, int32_t pid, int uffd)
{
	_cleanup_free_ struct pageserver_range *ranges = NULL;
	_cleanup_close_ int fd = uffd;
	char name[SPACE_NAME_MAX];
	uint32_t space;
	size_t n;
	int err, len = snprintf(name, sizeof(name), "%s%s%" PRId32, l->dir, *l->dir ? "/" : "", pid);

	if (len < 0 || (size_t)len >= sizeof(name))
		return -ENAMETOOLONG;
	err = l->plain ? plain_find(l->plain, name, &space) : image_space_find(l->img, name, (size_t)len, &space);
	if (err == -ENOENT)
		log_error("cannot serve process %" PRId32 ": '%s' has no memory of '%s'", pid,
			  l->plain ? plain_path(l->plain) : image_path(l->img), name);
	if (!err)
		err = l->plain ? plain_ranges(l->plain, space, &ranges, &n)
			       : pageserver_ranges(l->img, space, &ranges, &n);
	if (err)
		return err;
	err = roster_add(roster, steal_fd(&fd), 0, space, ranges, n);
	if (err)
		log_error("cannot serve process %" PRId32 ": %s", pid, strerror(-err));
	return err;
}

static int receive_task(struct lazy *l, struct roster *roster)
{
	_cleanup_close_ int uffd = -1;
	int32_t pid = l->pid;
	char byte;

	if (fdpass_receive(l->conn, &byte, 1, &uffd) != 1 || uffd < 0) {
		log_error("cannot serve process %" PRId32 ": its userfaultfd did not come", pid);
		return -EPROTO;
	}
	l->pid = 0;
	return add_task(l, roster, pid, steal_fd(&uffd));
}

static int receive(struct lazy *l, struct roster *roster)
{
	int32_t word;
	ssize_t n = recv(l->conn, &word, sizeof(word), MSG_WAITALL);

	if (n == 0 && l->listener >= 0) {
		/* somebody wanted to know whether we are here */
		close(l->conn);
		l->conn = -1;
		return 0;
	}
	if (n != (ssize_t)sizeof(word)) {
		log_error("the restore ended before its processes ran");
		return -ECONNRESET;
	}
	if (l->listener >= 0) {
		close(l->listener);
		l->listener = -1;
	}
	if ((uint32_t)word == RESTORE_FINISHED) {
		keeper_fill(roster);
		close(l->conn);
		l->conn = -1;
	} else if (word > 0) {
		l->pid = word;
	}
	/* negative: a dead task, which has no memory */
	return 0;
}

static int ready(void *ctx, struct roster *roster, const struct pollfd *fds, size_t n_fds)
{
	struct lazy *l = ctx;
	int err;

	(void)fds;
	(void)n_fds;
	if (l->conn < 0) {
		int fd = accept4(l->listener, NULL, NULL, SOCK_CLOEXEC);

		if (fd < 0)
			return errno == EINTR || errno == ECONNABORTED ? 0 : -errno;
		l->conn = fd;
		return 0;
	}
	err = l->pid ? receive_task(l, roster) : receive(l, roster);
	return err ? fail(l, err) : 0;
}

static const struct keeper_events events = { watch, ready };

/* a socket that nobody listens on is left over */
static bool left_over(const struct sockaddr_un *addr)
{
	_cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	return fd >= 0 && connect(fd, (const struct sockaddr *)addr, sizeof(*addr)) < 0 && errno == ECONNREFUSED;
}

/* @dir: the work directory. Its path may be longer than a socket's */
static int listen_in(int dir, const char *work)
{
	_cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	int err;

	if (fd < 0)
		return -errno;
	snprintf(addr.sun_path, sizeof(addr.sun_path), "/proc/self/fd/%d/" CRIU_LAZY_SOCKET, dir);
	err = bind(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0 ? -errno : 0;
	if (err == -EADDRINUSE && left_over(&addr)) {
		unlinkat(dir, CRIU_LAZY_SOCKET, 0);
		err = bind(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0 ? -errno : 0;
	}
	if (!err && listen(fd, 1) < 0)
		err = -errno;
	if (err) {
		log_error("cannot listen on '%s/" CRIU_LAZY_SOCKET "': %s", work, strerror(-err));
		return err;
	}
	return steal_fd(&fd);
}

static int serve(const struct criu_lazy_opts *opts, int listener, struct pageserver_stats *ret_counts)
{
	struct lazy *l = mmap(NULL, sizeof(*l), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct roster *roster = roster_new();
	const struct roster_counts *c;
	int err;

	if (l == MAP_FAILED || !roster) {
		close(listener);
		return -ENOMEM;
	}
	*l = (struct lazy){
		.img = opts->img, .dir = opts->dir, .plain = opts->plain, .listener = listener, .conn = -1
	};
	opts->listening(opts->ctx);
	err = keeper_run(opts->img, opts->plain, opts->threads, roster, &events, l);
	if (l->listener >= 0)
		close(l->listener);
	if (l->conn >= 0)
		close(l->conn);
	/* CRIU kills them; should one of them run all the same, it is not to see zeros */
	if (err && err != -EIO)
		pageserver_poison(roster);
	c = &roster->counts;
	*ret_counts = (struct pageserver_stats){ c->faults,     c->demand_bytes,   c->fill_bytes,
						 c->zero_pages, c->poisoned_bytes, c->processes };
	roster_free(roster);
	munmap(l, sizeof(*l));
	return err;
}

int criu_lazy_run(const struct criu_lazy_opts *opts, struct pageserver_stats *ret_counts)
{
	_cleanup_close_ int dir = open(opts->work, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int fd, err;

	*ret_counts = (struct pageserver_stats){ 0 };
	if (dir < 0) {
		err = -errno;
		log_error("cannot open work directory '%s': %s", opts->work, strerror(-err));
		return err;
	}
	fd = listen_in(dir, opts->work);
	if (fd < 0)
		return fd;
	err = serve(opts, fd, ret_counts);
	unlinkat(dir, CRIU_LAZY_SOCKET, 0);
	return err;
}
