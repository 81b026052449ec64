/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/served.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/userfaultfd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/io.h"
#include "common/log.h"
#include "restore/fdpass.h"
#include "restore/keeper.h"
#include "restore/member.h"
#include "restore/plan.h"

#define MAX_SPANS (1u << 16) /* as in restore/mtcp/mtcp.h */

#ifndef USERFAULTFD_IOC_NEW
#define USERFAULTFD_IOC_NEW _IO(0xAA, 0x00)
#endif

/* in memory that a keeper shares with its successor */
struct meeting {
	int sock;
	_Atomic int met;
	uint32_t space;
	const struct pageserver_range *ranges;
	size_t n_ranges;
};

static size_t watch(void *ctx, struct pollfd *ret_fds)
{
	const struct meeting *m = ctx;

	if (m->met)
		return 0;
	ret_fds[0] = (struct pollfd){ .fd = m->sock, .events = POLLIN };
	return 1;
}

/* the restarter sends its pid and its userfaultfd, and waits for a byte */
static int ready(void *ctx, struct roster *roster, const struct pollfd *fds, size_t n_fds)
{
	struct meeting *m = ctx;
	_cleanup_close_ int uffd = -1;
	int32_t pid;
	int err;

	(void)fds;
	(void)n_fds;
	if (fdpass_receive(m->sock, &pid, sizeof(pid), &uffd) != sizeof(pid) || uffd < 0)
		return -ECONNRESET; /* it said what is wrong, and ended */
	err = roster_add(roster, steal_fd(&uffd), pid, m->space, m->ranges, m->n_ranges);
	if (err) {
		log_error("cannot serve process %d: %s", (int)pid, strerror(-err));
		return err;
	}
	m->met = 1;
	keeper_fill(roster);
	return send(m->sock, "", 1, MSG_NOSIGNAL) == 1 ? 0 : -ECONNRESET;
}

static const struct keeper_events events = { watch, ready };

static uint64_t now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static void say_profile(const struct roster *roster, uint64_t us)
{
	const struct roster_counts *c = &roster->counts;

	log_note("profile: all memory after %" PRIu64 " us: %" PRIu64 " faults, %" PRIu64 " bytes on demand, %" PRIu64
		 " bytes filled, %" PRIu64 " zero pages, %" PRIu64 " bytes poisoned, %" PRIu64 " processes",
		 us, c->faults, c->demand_bytes, c->fill_bytes, c->zero_pages, c->poisoned_bytes, c->processes);
}

static void leave_descriptors(const struct served_opts *opts)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	/* whoever reads what the process writes must see its end */
	if (null >= 0) {
		dup2(null, STDIN_FILENO);
		dup2(null, STDOUT_FILENO);
		close(null);
	}
	for (size_t i = 0; i < opts->n_inherited; i++)
		close(opts->inherited[i]);
}

static int keep(const struct served_opts *opts, int sock, const struct pageserver_range *ranges, size_t n_ranges)
{
	struct meeting *m = mmap(NULL, sizeof(*m), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct roster *roster = roster_new();
	uint64_t start = now_us();
	int err;

	if (m == MAP_FAILED || !roster)
		return -ENOMEM;
	*m = (struct meeting){ sock, 0, opts->space, ranges, n_ranges };
	err = keeper_run(opts->img, NULL, opts->threads, roster, &events, m);
	if (!err && opts->profile)
		say_profile(roster, now_us() - start);
	return err;
}

/* not a child of the process that is restarted: it may wait for its children */
static int start_keeper(const struct served_opts *opts, const struct pageserver_range *ranges, size_t n_ranges,
			int *ret_sock)
{
	int sock[2], status;
	pid_t pid;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sock))
		return -errno;
	pid = fork();
	if (pid == 0) {
		close(sock[0]);
		setsid();
		pid = fork();
		if (pid)
			_exit(pid < 0);
		prctl(PR_SET_NAME, "thawfs-keeper");
		leave_descriptors(opts);
		_exit(keep(opts, sock[1], ranges, n_ranges) ? 1 : 0);
	}
	close(sock[1]);
	if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0) {
		close(sock[0]);
		return -EAGAIN;
	}
	*ret_sock = sock[0];
	return 0;
}

static int cmp_range(const void *a, const void *b)
{
	const struct member_range *x = a, *y = b;

	return x->off < y->off ? -1 : x->off > y->off;
}

struct span {
	uint64_t start, end;
};

/* what is served, as everybody wants it */
struct division {
	struct span *spans;
	struct pageserver_range *ranges;
	struct member_range *leave; /* by offset */
	size_t n;
	uint64_t bytes;
};

static void division_release(struct division *d)
{
	free(d->spans);
	free(d->ranges);
	free(d->leave);
}

static int divide(const struct plan *plan, struct division *ret)
{
	struct division d = { 0 };

	d.spans = calloc(MAX_SPANS, sizeof(*d.spans));
	d.ranges = calloc(MAX_SPANS, sizeof(*d.ranges));
	d.leave = calloc(MAX_SPANS, sizeof(*d.leave));
	if (!d.spans || !d.ranges || !d.leave) {
		division_release(&d);
		return -ENOMEM;
	}
	/* what is too much is read at once */
	for (size_t i = 0; i < plan->n_items && d.n < MAX_SPANS; i++) {
		const struct plan_item *item = &plan->items[i];

		if (item->action != PLAN_SERVE)
			continue;
		d.spans[d.n] = (struct span){ item->addr, item->addr + item->len };
		d.ranges[d.n] = (struct pageserver_range){ item->addr, item->len, item->addr, 0 };
		d.leave[d.n] = (struct member_range){ item->off, item->len };
		d.bytes += item->len;
		d.n++;
	}
	qsort(d.leave, d.n, sizeof(*d.leave), cmp_range);
	*ret = d;
	return 0;
}

static int spans_file(const struct division *d)
{
	_cleanup_close_ int fd = memfd_create("thawfs-spans", MFD_CLOEXEC);
	int err = fd < 0 ? -errno : io_write_at(fd, d->spans, d->n * sizeof(*d->spans), 0);

	return err ? err : steal_fd(&fd);
}

int served_start(const struct served_opts *opts, struct served *ret)
{
	_cleanup_(division_release) struct division d = { 0 };
	_cleanup_close_ int image_fd = -1, spans_fd = -1;
	struct image_space space;
	struct plan plan = { 0 };
	int server_fd = -1, err = image_space(opts->img, opts->space, &space);

	if (!err)
		err = plan_make(opts->img, &space, PLAN_UFFD, &plan);
	if (!err)
		err = divide(&plan, &d);
	plan_release(&plan);
	if (!err)
		err = member_to_memory(opts->img, opts->ino, opts->threads, d.leave, d.n, &image_fd);
	if (err)
		return err;
	spans_fd = spans_file(&d);
	if (spans_fd < 0)
		return spans_fd;
	err = start_keeper(opts, d.ranges, d.n, &server_fd);
	if (!err)
		*ret = (struct served){ steal_fd(&image_fd), steal_fd(&spans_fd), server_fd, d.bytes };
	return err;
}

static int new_uffd(void)
{
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK), err = -errno;
	_cleanup_close_ int device = -1;

	if (fd >= 0)
		return fd;
	device = open("/dev/userfaultfd", O_RDWR | O_CLOEXEC);
	if (device < 0)
		return err;
	fd = ioctl(device, USERFAULTFD_IOC_NEW, O_CLOEXEC | O_NONBLOCK);
	return fd < 0 ? -errno : fd;
}

int served_allowed(void)
{
	struct uffdio_api api = { .api = UFFD_API,
				  .features = UFFD_FEATURE_EVENT_FORK | UFFD_FEATURE_EVENT_REMAP |
					      UFFD_FEATURE_EVENT_REMOVE | UFFD_FEATURE_EVENT_UNMAP };
	_cleanup_close_ int fd = new_uffd();

	if (fd < 0)
		return fd;
	return ioctl(fd, UFFDIO_API, &api) < 0 ? -errno : 0;
}
