/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/roster.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/io.h"
#include "common/log.h"

struct roster *roster_new(void)
{
	struct roster *r =
		mmap(NULL, sizeof(*r), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	if (r == MAP_FAILED)
		return NULL;
	/* an event that is read into a page that is not there may be lost with its reader; where locking is not allowed
	 * the page is there all the same, but for a machine that swaps */
	(void)mlock(r->log, sizeof(r->log));
	r->poke = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (r->poke < 0) {
		munmap(r, sizeof(*r));
		return NULL;
	}
	return r;
}

void roster_free(struct roster *roster)
{
	if (!roster)
		return;
	for (uint32_t i = 0; i < roster->n_added; i++)
		close(roster->added[i].ranges_fd);
	for (int i = 0; i < 2; i++)
		if (roster->snapshots[i].fd)
			close(roster->snapshots[i].fd);
	close(roster->poke);
	munmap(roster, sizeof(*roster));
}

/* memory that holds a copy of @data */
static int memory_with(const void *data, size_t len)
{
	_cleanup_close_ int fd = memfd_create("thawfs-ranges", MFD_CLOEXEC);
	int err;

	if (fd < 0)
		return -errno;
	err = io_write_at(fd, data, len, 0);
	return err ? err : steal_fd(&fd);
}

int roster_add(struct roster *roster, int uffd, pid_t pid, uint32_t space, const struct pageserver_range *ranges,
	       size_t n_ranges)
{
	_cleanup_close_ int fd = uffd;
	uint32_t n = roster->n_added;
	struct roster_task *task = &roster->added[n];
	int copy;

	if (n == ROSTER_TASKS)
		return -EMFILE;
	copy = memory_with(ranges, n_ranges * sizeof(*ranges));
	if (copy < 0)
		return copy;
	*task = (struct roster_task){ steal_fd(&fd), pid, space, copy, n_ranges };
	roster->n_added = n + 1;
	roster_poke(roster);
	return 0;
}

int roster_ranges(const struct roster_task *task, struct pageserver_range **ret)
{
	_cleanup_free_ struct pageserver_range *ranges = calloc(task->n_ranges ? task->n_ranges : 1, sizeof(*ranges));
	int err;

	if (!ranges)
		return -ENOMEM;
	err = io_read_at(task->ranges_fd, ranges, task->n_ranges * sizeof(*ranges), 0);
	if (!err)
		*ret = steal_ptr(&ranges);
	return err;
}

void roster_poke(struct roster *roster)
{
	uint64_t one = 1;

	if (write(roster->poke, &one, sizeof(one)) < 0)
		log_error("cannot wake the reader of events: %s", strerror(errno));
}

struct roster_slot *roster_prepare(struct roster *roster, uint64_t seq, int uffd)
{
	struct roster_slot *slot = &roster->log[seq % ROSTER_SLOTS];

	/* the compiler must not put these behind the system call, and nobody else looks meanwhile */
	slot->msg.event = 0;
	atomic_signal_fence(memory_order_seq_cst);
	slot->seq = seq;
	slot->uffd = uffd;
	atomic_signal_fence(memory_order_seq_cst);
	return slot;
}

const struct roster_slot *roster_at(const struct roster *roster, uint64_t seq)
{
	const struct roster_slot *slot = &roster->log[seq % ROSTER_SLOTS];

	return slot->seq == seq && slot->msg.event && slot->msg.event != UFFD_EVENT_PAGEFAULT ? slot : NULL;
}

int roster_snapshot_begin(void)
{
	int fd = memfd_create("thawfs-tables", MFD_CLOEXEC);

	return fd < 0 ? -errno : fd;
}

void roster_snapshot_publish(struct roster *roster, int fd, uint64_t seq)
{
	uint32_t other = !roster->current;
	int old = roster->snapshots[!other].fd;

	roster->snapshots[other] = (struct roster_snapshot){ fd, seq };
	roster->current = other;
	roster->snapshots[!other].fd = 0;
	if (old)
		close(old);
}

void roster_mark(struct roster *roster, size_t index, int uffd, uint64_t below)
{
	struct roster_mark *m = &roster->marks[index];

	/* whoever takes over believes what it finds, so never an old address under another's descriptor */
	if (m->uffd != uffd) {
		m->below = 0;
		m->uffd = uffd;
	}
	m->below = below;
}

uint64_t roster_marked(const struct roster *roster, int uffd)
{
	for (size_t i = 0; i < ROSTER_TASKS && roster->marks[i].uffd; i++)
		if (roster->marks[i].uffd == uffd)
			return roster->marks[i].below;
	return 0;
}
