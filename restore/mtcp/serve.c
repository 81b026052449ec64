/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that a page server in another process fills, through a userfaultfd that is made here and sent to it. */
#include <linux/ioctl.h>
#include <linux/mman.h>
#include <linux/userfaultfd.h>

#include "restore/mtcp/mtcp.h"

#define O_UFFD        (02000000 | 04000) /* O_CLOEXEC | O_NONBLOCK */
#define NEW_UFFD      _IO(0xAA, 0x00)    /* USERFAULTFD_IOC_NEW, of /dev/userfaultfd */
#define SOL_SOCKET_   1
#define SCM_RIGHTS_   1
#define MSG_NOSIGNAL_ 0x4000
#define EINTR_        4

static void read_spans(struct restart *r)
{
	uint64_t end = 0, off = 0;

	for (;; r->n_spans++) {
		struct span s = { 0, 0 };
		long n = sys4(__NR_pread64, r->spans_fd, &s, sizeof(s), off);

		if (n == 0)
			return;
		if (n != (long)sizeof(s) || s.start < end || s.start >= s.end || s.end > ADDRESS_END ||
		    s.start % PAGE || s.end % PAGE)
			fail(r, EXIT_USAGE, "THAWFS_RESTART_SPANS: the span at offset # is impossible", NULL, off);
		if (r->n_spans == MAX_SPANS)
			fail(r, EXIT_FAILED, "cannot restart: more than # pieces of memory to be served", NULL,
			     MAX_SPANS);
		r->spans[r->n_spans] = s;
		end = s.end;
		off += sizeof(s);
	}
}

static long new_uffd(void)
{
	long fd = sys3(__NR_userfaultfd, O_UFFD, 0, 0), device;

	if (fd >= 0)
		return fd;
	device = sys3(__NR_open, "/dev/userfaultfd", 02000002 /* O_RDWR | O_CLOEXEC */, 0);
	if (device < 0)
		return fd;
	fd = sys3(__NR_ioctl, device, NEW_UFFD, O_UFFD);
	sys3(__NR_close, device, 0, 0);
	return fd;
}

void serve_prepare(struct restart *r)
{
	struct uffdio_api api = { .api = UFFD_API,
				  .features = UFFD_FEATURE_EVENT_FORK | UFFD_FEATURE_EVENT_REMAP |
					      UFFD_FEATURE_EVENT_REMOVE | UFFD_FEATURE_EVENT_UNMAP };
	long fd, err;

	if (r->server_fd < 0 || r->spans_fd < 0)
		fail(r, EXIT_USAGE, "THAWFS_RESTART_MODE=uffd is for thawfs restart alone", NULL, 0);
	read_spans(r);
	fd = new_uffd();
	if (fd < 0)
		fail(r, EXIT_FAILED, "cannot use userfaultfd: error #; another mode may do", NULL, (uint64_t)-fd);
	err = sys3(__NR_ioctl, fd, UFFDIO_API, &api);
	if (err < 0)
		fail(r, EXIT_FAILED, "cannot follow forks by userfaultfd: error #; another mode may do", NULL,
		     (uint64_t)-err);
	r->uffd = (int)fd;
}

const struct span *serve_span(const struct restart *r, uint64_t addr)
{
	uint32_t lo = 0, hi = r->n_spans;

	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;

		if (r->spans[mid].end <= addr)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo < r->n_spans ? &r->spans[lo] : NULL;
}

/* the kernel's struct msghdr and what goes with it */
struct message {
	void *name;
	int name_len, pad;
	struct {
		void *base;
		uint64_t len;
	} * parts;
	uint64_t n_parts;
	void *control;
	uint64_t control_len;
	int flags, pad2;
};

static bool send_uffd(struct restart *r)
{
	struct {
		uint64_t len;
		int level, type, fd, pad;
	} control = { 20, SOL_SOCKET_, SCM_RIGHTS_, r->uffd, 0 };
	int pid = (int)sys3(__NR_getpid, 0, 0, 0);
	__typeof__(*((struct message *)0)->parts) part = { &pid, sizeof(pid) };
	struct message m = {
		.parts = (void *)&part, .n_parts = 1, .control = &control, .control_len = sizeof(control)
	};

	return sys3(__NR_sendmsg, r->server_fd, &m, MSG_NOSIGNAL_) == (long)sizeof(pid);
}

void serve_start(struct restart *r)
{
	char ready;
	long n;

	for (uint32_t i = 0; i < r->n_spans; i++) {
		struct uffdio_register reg = { .range = { r->spans[i].start, r->spans[i].end - r->spans[i].start },
					       .mode = UFFDIO_REGISTER_MODE_MISSING };

		if (sys3(__NR_ioctl, r->uffd, UFFDIO_REGISTER, &reg) < 0)
			fail(r, EXIT_FAILED, "cannot have the memory at @ served", NULL, r->spans[i].start);
		r->bytes_served += r->spans[i].end - r->spans[i].start;
	}
	n = send_uffd(r) ? -EINTR_ : 0;
	while (n == -EINTR_)
		n = sys3(__NR_read, r->server_fd, &ready, 1);
	if (n != 1)
		fail(r, EXIT_FAILED, "the page server does not answer", NULL, 0);
	sys3(__NR_close, r->spans_fd, 0, 0);
	sys3(__NR_close, r->server_fd, 0, 0);
	sys3(__NR_close, r->uffd, 0, 0);
}
