/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Thread model. One thread reads events and faults; faults go to a bounded queue. Worker 0 only serves the queue, the
 * others serve it first and else fill. A worker decodes without any lock.
 *
 * A table may change at any moment, so a page is placed in these steps: look up (table read-locked, its generation
 * noted), decode (unlocked), place (read-locked; only if the generation is the same, else from the start). Events
 * are read and applied under the write lock: from the moment a process discards or moves memory until its event is
 * read the kernel refuses to place pages (EAGAIN), and from then on the lock does, until the table is right. So no
 * old page is placed where memory was discarded.
 *
 * What a successor needs is in the roster. Events are read straight into its log, and only the thread that reads them
 * changes tables, so a table is always the snapshot's with the log's events behind it. A mark tells up to where a
 * process is filled; it may be too low, never too high, so it goes down when memory is moved below it before that is
 * forgotten. A successor wakes all who wait: their faults were read by the dead.
 *
 * Locks: task.lock (table, generation), then ps.lock (queue, cursors, claims, list of tasks). Tasks stay until the
 * end, so that a pointer to one is good for ever; their descriptors are closed at the end, too.
 */
#include "restore/pageserver.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "common/bytes.h"
#include "common/cleanup.h"
#include "common/io.h"
#include "common/log.h"
#include "restore/pagetable.h"
#include "restore/plain.h"
#include "restore/ranges.h"
#include "restore/roster.h"

#ifndef UFFDIO_POISON
struct uffdio_poison {
	struct uffdio_range range;
	__u64 mode;
	__s64 updated;
};
#define UFFDIO_POISON _IOWR(UFFDIO, 0x08, struct uffdio_poison)
#endif

#define PAGE        4096ull
#define WINDOW      (1ull << 20) /* what a filler takes at once */
#define PIECE       (64ull << 10)
#define PLAIN_PIECE (256ull << 10) /* read at once where there are no chunks */
#define QUEUE       256u
#define MAX_THREADS 64u
#define MAX_TASKS   PAGESERVER_TASKS
#define NOWHERE     UINT64_MAX
/* all that mmap() gives out */
#define LOWEST      65536ull
#define HIGHEST     ((1ull << 47) - PAGE)

/* a snapshot: this, then for each process the other and its ranges. Both sides are the same program */
struct saved_head {
	uint64_t n_tasks;
	uint32_t n_taken, unused;
};
struct saved_task {
	int32_t uffd;
	pid_t pid;
	uint32_t space, gone;
	uint64_t n_ranges;
};

struct task {
	int uffd;
	pid_t pid;
	uint32_t space_index;
	size_t index;
	struct image_space space;
	pthread_rwlock_t lock;
	struct pagetable table; /* by lock */
	uint64_t generation;    /* by lock: counts changes of the table */
	uint64_t cursor;        /* by ps.lock: below it everything is placed or claimed; NOWHERE at the end */
	bool again;             /* by ps.lock: faults did not fit into the queue; wake them when there is room */
	atomic_bool gone;
};

struct worker {
	struct pageserver *ps;
	pthread_t thread;
	unsigned index;
	struct chunk_ctx *ctx;
	uint8_t *buf;
	size_t room;
	/* what @buf holds: nothing if img is NULL */
	struct image *img;
	uint32_t chunk, len;
	/* by ps.lock: what it works at */
	struct task *task;
	uint64_t at;
};

struct fault {
	struct task *task;
	uint64_t addr;
};

struct pageserver {
	struct image *img; /* or */
	const struct plain *plain;
	pthread_mutex_t lock;
	pthread_cond_t work, done;
	struct task *tasks[MAX_TASKS];
	size_t n_tasks;
	struct fault queue[QUEUE];
	unsigned first, n_queued;
	bool filling;
	bool stuck; /* a process waits for ever for memory that it may not have: never complete */
	atomic_bool stop;
	struct worker workers[MAX_THREADS + 1];
	unsigned n_workers;
	pthread_t events;
	bool has_events;
	struct roster *roster, *own_roster;
	struct roster_counts *counts; /* in the roster */
	_Atomic uint32_t n_taken;     /* of the roster's processes */
	/* of the thread that reads events */
	uint64_t seq, snapshot_seq; /* next slot of the log, and the first that the snapshot does not have */
	bool replaying;
};

/* -- placing ---------------------------------------------------------------------------------- */

enum placing { PLACED, AGAIN, GONE };

static void wake(const struct task *task, uint64_t addr, uint64_t len)
{
	struct uffdio_range r = { addr, len };

	(void)ioctl(task->uffd, UFFDIO_WAKE, &r);
}

/* there is no way to keep the process from zeros but to end it, or to keep its descriptor and let it wait */
static void give_up(struct pageserver *ps, struct task *task, const char *what, int err)
{
	if (atomic_exchange(&task->gone, true))
		return;
	if (task->pid > 0) {
		log_error("cannot %s process %d: %s; it is killed", what, (int)task->pid, strerror(err));
		(void)kill(task->pid, SIGKILL);
		return;
	}
	log_error("cannot %s a process: %s; it waits for its memory for ever", what, strerror(err));
	LOCK_GUARD(&ps->lock);
	ps->stuck = true;
}

/* one ioctl's result: how far it came, and what next. @addr may be passed by pages that cannot be had or are there */
static enum placing after(struct pageserver *ps, struct task *task, int64_t done, int err, uint64_t *addr,
			  uint64_t *len, uint64_t *piece)
{
	uint64_t step = 0;

	if (done > 0)
		step = (uint64_t)done;
	else if (err == ENOENT && *piece > PAGE)
		*piece = PAGE; /* it passes a border of mappings */
	else if (err == EEXIST || err == ENOENT) {
		wake(task, *addr, PAGE);
		step = PAGE;
	} else if (err == EAGAIN)
		return AGAIN;
	else {
		if (err == ESRCH || err == ENOSPC)
			task->gone = true;
		else
			give_up(ps, task, "fill the memory of", err);
		return GONE;
	}
	*addr += step;
	*len -= step;
	return PLACED;
}

static enum placing copy(struct pageserver *ps, struct task *task, uint64_t addr, const uint8_t *from, uint64_t len,
			 _Atomic uint64_t *count)
{
	uint64_t piece = PIECE;

	while (len) {
		struct uffdio_copy c = { .dst = addr, .src = (uintptr_t)from, .len = min_u64(len, piece) };
		int err = ioctl(task->uffd, UFFDIO_COPY, &c) < 0 ? errno : 0;
		uint64_t old = addr;
		enum placing r = after(ps, task, c.copy, c.copy < 0 ? (int)-c.copy : err, &addr, &len, &piece);

		if (r != PLACED)
			return r;
		if (c.copy > 0)
			*count += (uint64_t)c.copy;
		from += addr - old;
	}
	return PLACED;
}

static enum placing place_zeros(struct pageserver *ps, struct task *task, uint64_t addr, uint64_t len)
{
	uint64_t piece = PIECE;

	while (len) {
		struct uffdio_zeropage z = { .range = { addr, min_u64(len, piece) } };
		int err = ioctl(task->uffd, UFFDIO_ZEROPAGE, &z) < 0 ? errno : 0;
		enum placing r =
			after(ps, task, z.zeropage, z.zeropage < 0 ? (int)-z.zeropage : err, &addr, &len, &piece);

		if (r != PLACED)
			return r;
		if (z.zeropage > 0)
			ps->counts->zero_pages += (uint64_t)z.zeropage / PAGE;
	}
	return PLACED;
}

static enum placing place_poison(struct pageserver *ps, struct task *task, uint64_t addr, uint64_t len)
{
	uint64_t piece = len;

	while (len) {
		struct uffdio_poison p = { .range = { addr, min_u64(len, piece) } };
		int err = ioctl(task->uffd, UFFDIO_POISON, &p) < 0 ? errno : 0;
		enum placing r;

		if (p.updated < 0)
			err = (int)-p.updated;
		if (p.updated <= 0 && (err == EINVAL || err == ENOTTY)) {
			give_up(ps, task, "poison memory of", err);
			return GONE;
		}
		r = after(ps, task, p.updated, err, &addr, &len, &piece);
		if (r != PLACED)
			return r;
		if (p.updated > 0)
			ps->counts->poisoned_bytes += (uint64_t)p.updated;
	}
	return PLACED;
}

/* -- finding ---------------------------------------------------------------------------------- */

/* a piece of a process's memory that is placed in one go */
struct piece {
	uint64_t addr, len;
	enum run_kind kind;
	const uint8_t *from; /* RUN_DATA */
	uint64_t generation;
};

static void say_lost(const struct worker *w, const struct task *task, uint64_t src, uint64_t len, const char *why)
{
	if (w->ps->plain)
		log_error("cannot read '%s': memory at address 0x%" PRIx64 ": %s; %" PRIu64 " bytes are poisoned",
			  plain_path(w->ps->plain), src, why, len);
	else
		log_error("cannot read '%s': memory view '%.*s' at address 0x%" PRIx64 ": %s; %" PRIu64
			  " bytes are poisoned",
			  image_path(w->ps->img), (int)task->space.name_len, task->space.name, src, why, len);
}

static int reserve(struct worker *w, size_t want)
{
	if (w->room >= want)
		return 0;
	w->img = NULL;
	free(w->buf);
	w->room = 0;
	w->buf = malloc(want);
	if (!w->buf)
		return -ENOMEM;
	w->room = want;
	return 0;
}

static int decode(struct worker *w, const struct image_run *run)
{
	int err;

	if (w->img == run->img && w->chunk == run->chunk)
		return 0;
	w->img = NULL;
	if (reserve(w, image_info(run->img)->chunk_size) < 0)
		return -ENOMEM;
	err = image_chunk_read(run->img, w->ctx, run->chunk, w->buf, &w->len);
	if (err)
		return err;
	w->img = run->img;
	w->chunk = run->chunk;
	return 0;
}

/* a page whose bytes are in several chunks */
static int gather(struct worker *w, const struct task *task, uint64_t src)
{
	w->img = NULL;
	if (reserve(w, PAGE) < 0)
		return -ENOMEM;
	return image_read_view(w->ps->img, w->ctx, task->space_index, src, w->buf, PAGE);
}

static void load_plain(struct worker *w, const struct task *task, uint64_t src, struct piece *p)
{
	struct plain_run run;
	int err = 0;

	plain_map(w->ps->plain, task->space_index, src, &run);
	p->len = min_u64(p->len, run.len);
	p->kind = run.kind;
	if (run.kind != RUN_DATA)
		return;
	p->len = min_u64(p->len, PLAIN_PIECE);
	err = reserve(w, PLAIN_PIECE);
	if (!err)
		err = plain_read(w->ps->plain, &run, w->buf, p->len);
	p->from = w->buf;
	if (err) {
		p->kind = RUN_ABSENT;
		say_lost(w, task, src, p->len, strerror(-err));
	}
}

static void load(struct worker *w, struct task *task, uint64_t src, struct piece *p)
{
	struct image_run run;
	int err = image_map_view(w->ps->img, &task->space, src, &run);
	const char *why = "the memory is in no image";

	if (err) {
		why = strerror(-err);
		p->len = min_u64(p->len, PAGE);
		run.kind = RUN_ABSENT;
	} else if (run.len < PAGE) {
		p->len = PAGE;
		err = gather(w, task, src);
		p->from = w->buf;
		run.kind = err ? RUN_ABSENT : RUN_DATA;
		why = err == -ENODATA ? why : chunk_ctx_error(w->ctx);
	} else {
		p->len = min_u64(p->len, run.len / PAGE * PAGE);
		if (run.kind == RUN_DATA) {
			err = decode(w, &run);
			if (!err && !range_inside(run.chunk_off, p->len, w->len))
				err = -EBADMSG;
			p->from = w->buf + run.chunk_off;
			why = chunk_ctx_error(w->ctx);
			run.kind = err ? RUN_ABSENT : RUN_DATA;
		}
	}
	p->kind = run.kind;
	/* absent memory, as of mapped files, is nothing to speak of unless it was asked for */
	if (p->kind == RUN_ABSENT && (err && err != -ENODATA))
		say_lost(w, task, src, p->len, why);
}

enum why {
	ASKED, /* a fault: something has to be placed */
	NEAR,  /* beside one: zeros too */
	CHUNK, /* in its chunk: no zeros */
	FILL,  /* in the background: no zeros */
};

/* the piece of [addr, end) that comes first; len 0: there is none */
static void find(struct worker *w, struct task *task, uint64_t addr, uint64_t end, enum why why, struct piece *ret)
{
	const struct pageserver_range *r;
	uint64_t src = NOWHERE;

	*ret = (struct piece){ .addr = addr };
	pthread_rwlock_rdlock(&task->lock);
	ret->generation = task->generation;
	r = pagetable_at(&task->table, addr);
	if (r && r->addr <= addr) {
		src = r->src + (addr - r->addr);
		ret->len = min_u64(end, r->addr + r->len) - addr;
	} else if (why == ASKED) {
		ret->kind = RUN_HOLE; /* grown in place, or discarded */
		ret->len = PAGE;
	} else if (r && r->addr < end) {
		ret->addr = r->addr;
		src = r->src;
		ret->len = min_u64(end, r->addr + r->len) - r->addr;
	}
	pthread_rwlock_unlock(&task->lock);
	if (src == NOWHERE)
		return;
	if (w->ps->plain)
		load_plain(w, task, src, ret);
	else
		load(w, task, src, ret);
}

static enum placing place(struct worker *w, struct task *task, const struct piece *p, enum why why)
{
	struct pageserver *ps = w->ps;
	enum placing r = AGAIN;

	pthread_rwlock_rdlock(&task->lock);
	if (p->generation == task->generation) {
		if (p->kind == RUN_DATA)
			r = copy(ps, task, p->addr, p->from, p->len,
				 why == FILL ? &ps->counts->fill_bytes : &ps->counts->demand_bytes);
		else if (p->kind == RUN_ABSENT)
			r = place_poison(ps, task, p->addr, p->len);
		else
			r = why <= NEAR ? place_zeros(ps, task, p->addr, p->len) : PLACED;
	}
	pthread_rwlock_unlock(&task->lock);
	return r;
}

/* all of [addr, end) */
static void serve(struct worker *w, struct task *task, uint64_t addr, uint64_t end, enum why why)
{
	while (addr < end && !task->gone && !w->ps->stop) {
		struct piece p;
		enum placing r;

		find(w, task, addr, end, why, &p);
		if (!p.len)
			return;
		r = place(w, task, &p, why);
		if (r == PLACED)
			addr = p.addr + p.len;
		else if (r == AGAIN)
			sched_yield(); /* the thread that reads events has the next turn */
	}
}

/* the page that was asked for, what is beside it, and the rest of its chunk, which is decoded anyway */
static void serve_fault(struct worker *w, const struct fault *f)
{
	uint64_t size = w->ps->plain ? PLAIN_PIECE : min_u64(image_info(w->ps->img)->chunk_size, WINDOW);
	uint64_t addr = f->addr & ~(PAGE - 1), near = addr & ~(PIECE - 1), chunk = addr & ~(size - 1);

	serve(w, f->task, addr, addr + PAGE, ASKED);
	serve(w, f->task, near, near + PIECE, NEAR);
	serve(w, f->task, chunk, chunk + size, CHUNK);
}

/* -- workers ---------------------------------------------------------------------------------- */

static bool idle(const struct pageserver *ps)
{
	for (unsigned i = 0; i < ps->n_workers; i++) {
		if (ps->workers[i].task)
			return false;
	}
	return !ps->n_queued;
}

/* under ps.lock */
static bool complete(const struct pageserver *ps)
{
	if (!ps->filling || ps->stuck || ps->n_taken < ps->roster->n_added || !idle(ps))
		return false;
	for (size_t i = 0; i < ps->n_tasks; i++) {
		if (!ps->tasks[i]->gone && (ps->tasks[i]->cursor != NOWHERE || ps->tasks[i]->again))
			return false;
	}
	return true;
}

/* under ps.lock: a task with something to fill */
static struct task *unfilled(const struct pageserver *ps)
{
	for (size_t i = 0; ps->filling && i < ps->n_tasks; i++) {
		if (!ps->tasks[i]->gone && ps->tasks[i]->cursor != NOWHERE)
			return ps->tasks[i];
	}
	return NULL;
}

/* take the next window of a task; false: it has none left */
static bool claim(struct worker *w, struct task *task, uint64_t *ret_end)
{
	const struct pageserver_range *r = NULL;
	bool got = false;

	pthread_rwlock_rdlock(&task->lock);
	pthread_mutex_lock(&w->ps->lock);
	if (task->cursor != NOWHERE)
		r = pagetable_at(&task->table, task->cursor);
	while (r && r->on_demand)
		r = ++r < task->table.ranges + task->table.n ? r : NULL;
	if (!r) {
		task->cursor = NOWHERE;
	} else {
		uint64_t at = r->addr > task->cursor ? r->addr : task->cursor;

		*ret_end = min_u64(r->addr + r->len, (at | (WINDOW - 1)) + 1);
		w->at = at;
		w->task = task;
		task->cursor = *ret_end;
		got = true;
	}
	pthread_mutex_unlock(&w->ps->lock);
	pthread_rwlock_unlock(&task->lock);
	return got;
}

/* there is room in the queue: who did not fit in faults again */
static void wake_left_out(struct pageserver *ps)
{
	for (size_t i = 0; i < ps->n_tasks; i++) {
		struct task *task = ps->tasks[i];

		if (!task->again)
			continue;
		task->again = false;
		wake(task, LOWEST, HIGHEST - LOWEST);
	}
}

/* under ps.lock: below this everything is placed */
static uint64_t filled_below(const struct pageserver *ps, const struct task *task)
{
	uint64_t below = task->cursor;

	for (unsigned i = 0; i < ps->n_workers; i++)
		if (ps->workers[i].task == task)
			below = min_u64(below, ps->workers[i].at);
	return below;
}

static void finished(struct worker *w)
{
	struct task *task = w->task;

	w->task = NULL;
	if (task && w->ps->filling)
		roster_mark(w->ps->roster, task->index, task->uffd, filled_below(w->ps, task));
	if (!w->ps->n_queued)
		wake_left_out(w->ps);
	if (complete(w->ps))
		pthread_cond_broadcast(&w->ps->done);
}

static void *work(void *arg)
{
	struct worker *w = arg;
	struct pageserver *ps = w->ps;
	bool fills = w->index > 0;

	pthread_mutex_lock(&ps->lock);
	while (!ps->stop) {
		struct task *task = NULL;

		if (ps->n_queued) {
			struct fault f = ps->queue[ps->first];

			ps->first = (ps->first + 1) % QUEUE;
			ps->n_queued--;
			w->task = f.task;
			w->at = f.addr;
			pthread_mutex_unlock(&ps->lock);
			serve_fault(w, &f);
		} else if (fills && (task = unfilled(ps))) {
			uint64_t end;

			pthread_mutex_unlock(&ps->lock);
			if (claim(w, task, &end))
				serve(w, task, w->at, end, FILL);
		} else {
			pthread_cond_wait(&ps->work, &ps->lock);
			continue;
		}
		pthread_mutex_lock(&ps->lock);
		finished(w);
	}
	pthread_mutex_unlock(&ps->lock);
	return NULL;
}

/* -- events ----------------------------------------------------------------------------------- */

static void queue_fault(struct pageserver *ps, struct task *task, uint64_t addr)
{
	if (ps->replaying)
		return;
	LOCK_GUARD(&ps->lock);
	ps->counts->faults++;
	if (ps->n_queued == QUEUE) {
		task->again = true;
		return;
	}
	ps->queue[(ps->first + ps->n_queued++) % QUEUE] = (struct fault){ task, addr };
	pthread_cond_signal(&ps->work);
}

/* not its descriptor: once that is closed, what is missing reads as zeros */
static void task_free(struct task *task)
{
	if (!task)
		return;
	pthread_rwlock_destroy(&task->lock);
	pagetable_release(&task->table);
	free(task);
}

/* NULL: there is no memory, or the ranges are not what they must be */
static struct task *task_new(int uffd, pid_t pid, uint32_t index, const struct image_space *space,
			     const struct pageserver_range *ranges, size_t n_ranges)
{
	struct task *task = calloc(1, sizeof(*task));
	pthread_rwlockattr_t attr;
	int flags = fcntl(uffd, F_GETFL);

	/* poll() does not work on one that blocks, and a child's does not inherit it from what F_SETFL set */
	if (!task || flags < 0 || fcntl(uffd, F_SETFL, flags | O_NONBLOCK) < 0) {
		free(task);
		return NULL;
	}
	task->uffd = uffd;
	task->pid = pid;
	task->space_index = index;
	task->space = *space;
	pthread_rwlockattr_init(&attr);
	pthread_rwlockattr_setkind_np(&attr, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
	pthread_rwlock_init(&task->lock, &attr);
	pthread_rwlockattr_destroy(&attr);
	if (pagetable_init(&task->table, ranges, n_ranges) < 0) {
		task_free(task);
		return NULL;
	}
	return task;
}

/* Return: 0, -EMFILE */
static int list_task(struct pageserver *ps, struct task *task, const struct task *parent)
{
	LOCK_GUARD(&ps->lock);
	if (ps->n_tasks == MAX_TASKS)
		return -EMFILE;
	task->index = ps->n_tasks;
	/* what others are just placing into the parent may have come too late for the child */
	if (ps->replaying)
		task->cursor = roster_marked(ps->roster, task->uffd);
	else if (parent)
		task->cursor = filled_below(ps, parent);
	ps->tasks[ps->n_tasks++] = task;
	ps->counts->processes = ps->n_tasks;
	pthread_cond_broadcast(&ps->work);
	return 0;
}

/* the child has its parent's table; its descriptor stays open even if it cannot be served: it waits, and sees no zeros
 */
static int on_fork(struct pageserver *ps, struct task *parent, int uffd)
{
	struct task *child =
		task_new(uffd, 0, parent->space_index, &parent->space, parent->table.ranges, parent->table.n);
	int err = child ? list_task(ps, child, parent) : -ENOMEM;

	if (err)
		task_free(child);
	return err;
}

static int on_move(struct pageserver *ps, struct task *task, uint64_t from, uint64_t to, uint64_t len)
{
	int err = pagetable_move(&task->table, from, to, len);

	pthread_mutex_lock(&ps->lock);
	task->cursor = min_u64(task->cursor, to);
	roster_mark(ps->roster, task->index, task->uffd, filled_below(ps, task));
	pthread_cond_broadcast(&ps->work);
	pthread_mutex_unlock(&ps->lock);
	return err;
}

/* under the task's write lock */
static void apply(struct pageserver *ps, struct task *task, const struct uffd_msg *msg)
{
	int err = 0;

	switch (msg->event) {
	case UFFD_EVENT_PAGEFAULT:
		queue_fault(ps, task, msg->arg.pagefault.address);
		return;
	case UFFD_EVENT_FORK:
		err = on_fork(ps, task, (int)msg->arg.fork.ufd);
		break;
	case UFFD_EVENT_REMAP:
		err = on_move(ps, task, msg->arg.remap.from, msg->arg.remap.to, msg->arg.remap.len);
		break;
	case UFFD_EVENT_REMOVE:
	case UFFD_EVENT_UNMAP:
		err = pagetable_remove(&task->table, msg->arg.remove.start, msg->arg.remove.end);
		break;
	default:
		return;
	}
	task->generation++;
	if (err)
		give_up(ps, task, "follow the memory of", -err);
}

/* tables and all as they are now, so that the log's slots may be used again. Return: 0, -errno */
static int take_snapshot(struct pageserver *ps)
{
	struct saved_head head = { .n_tasks = ps->n_tasks, .n_taken = ps->n_taken };
	_cleanup_close_ int fd = roster_snapshot_begin();
	int err = fd < 0 ? fd : io_write(fd, &head, sizeof(head));

	for (size_t i = 0; !err && i < ps->n_tasks; i++) {
		const struct task *t = ps->tasks[i];
		struct saved_task saved = { t->uffd, t->pid, t->space_index, t->gone, t->table.n };

		err = io_write(fd, &saved, sizeof(saved));
		if (!err && t->table.n)
			err = io_write(fd, t->table.ranges, t->table.n * sizeof(*t->table.ranges));
	}
	if (err)
		return err;
	roster_snapshot_publish(ps->roster, steal_fd(&fd), ps->seq);
	ps->snapshot_seq = ps->seq;
	return 0;
}

static void make_room(struct pageserver *ps)
{
	while (ps->seq - ps->snapshot_seq >= ROSTER_SLOTS / 2 && take_snapshot(ps) < 0 &&
	       ps->seq - ps->snapshot_seq == ROSTER_SLOTS && !ps->stop)
		usleep(10000); /* no memory; whoever waits for events waits on */
}

/* Return: whether there may be more */
static bool read_event(struct pageserver *ps, struct task *task)
{
	struct roster_slot *slot;
	ssize_t n;

	make_room(ps);
	pthread_rwlock_wrlock(&task->lock);
	slot = roster_prepare(ps->roster, ps->seq, task->uffd);
	n = read(task->uffd, &slot->msg, sizeof(slot->msg));
	if (n == (ssize_t)sizeof(slot->msg)) {
		/* a fault that is lost comes again */
		if (slot->msg.event != UFFD_EVENT_PAGEFAULT)
			ps->seq++;
		apply(ps, task, &slot->msg);
	}
	pthread_rwlock_unlock(&task->lock);
	return n == (ssize_t)sizeof(slot->msg);
}

/* -- taking over ------------------------------------------------------------------------------- */

static int add_task(struct pageserver *ps, const struct roster_task *from)
{
	_cleanup_free_ struct pageserver_range *ranges = NULL;
	struct image_space space = { 0 };
	struct task *task;
	int err = ps->img ? image_space(ps->img, from->space, &space) : 0;

	if (!err)
		err = roster_ranges(from, &ranges);
	if (err)
		return err;
	task = task_new(from->uffd, from->pid, from->space, &space, ranges, from->n_ranges);
	err = task ? list_task(ps, task, NULL) : -ENOMEM;
	if (err)
		task_free(task);
	return err;
}

/* processes that were added since */
static void take_added(struct pageserver *ps)
{
	while (ps->n_taken < ps->roster->n_added) {
		const struct roster_task *from = &ps->roster->added[ps->n_taken];
		struct roster_slot *slot;
		int err;

		make_room(ps);
		slot = roster_prepare(ps->roster, ps->seq, from->uffd);
		slot->added = ps->n_taken;
		atomic_signal_fence(memory_order_seq_cst);
		slot->msg.event = ROSTER_ADDED;
		ps->seq++;
		err = add_task(ps, from);
		if (err) {
			log_error("cannot serve process %d: %s; it is killed", (int)from->pid, strerror(-err));
			if (from->pid > 0)
				kill(from->pid, SIGKILL);
		}
		ps->n_taken++;
	}
}

static int load_task(struct pageserver *ps, int fd, uint64_t *off)
{
	_cleanup_free_ struct pageserver_range *ranges = NULL;
	struct image_space space = { 0 };
	struct saved_task saved;
	struct task *task;
	int err = io_read_at(fd, &saved, sizeof(saved), *off);

	if (!err && ps->img)
		err = image_space(ps->img, saved.space, &space);
	if (err)
		return err;
	ranges = calloc(saved.n_ranges ? saved.n_ranges : 1, sizeof(*ranges));
	if (!ranges)
		return -ENOMEM;
	*off += sizeof(saved);
	err = io_read_at(fd, ranges, saved.n_ranges * sizeof(*ranges), *off);
	if (err)
		return err;
	*off += saved.n_ranges * sizeof(*ranges);
	task = task_new(saved.uffd, saved.pid, saved.space, &space, ranges, saved.n_ranges);
	err = task ? list_task(ps, task, NULL) : -ENOMEM;
	if (err)
		task_free(task);
	else
		task->gone = saved.gone;
	return err;
}

static int load_snapshot(struct pageserver *ps)
{
	const struct roster_snapshot *from = &ps->roster->snapshots[ps->roster->current];
	struct saved_head head;
	uint64_t off = sizeof(head);
	int err;

	ps->seq = ps->snapshot_seq = from->seq;
	if (!from->fd)
		return 0;
	err = io_read_at(from->fd, &head, sizeof(head), 0);
	for (uint64_t i = 0; !err && i < head.n_tasks; i++)
		err = load_task(ps, from->fd, &off);
	if (!err)
		ps->n_taken = head.n_taken;
	return err;
}

static int replay(struct pageserver *ps, const struct roster_slot *slot)
{
	if (slot->msg.event == ROSTER_ADDED) {
		int err = add_task(ps, &ps->roster->added[slot->added]);

		ps->n_taken++;
		return err == -EMFILE ? 0 : err;
	}
	for (size_t i = 0; i < ps->n_tasks; i++) {
		if (ps->tasks[i]->uffd == slot->uffd) {
			apply(ps, ps->tasks[i], &slot->msg);
			break;
		}
	}
	return 0;
}

/* what the server before knew; no thread runs yet */
static int take_over(struct pageserver *ps)
{
	const struct roster_slot *slot;
	int err;

	ps->replaying = true;
	err = load_snapshot(ps);
	while (!err && (slot = roster_at(ps->roster, ps->seq))) {
		err = replay(ps, slot);
		ps->seq++;
	}
	ps->replaying = false;
	ps->filling = ps->roster->filling;
	return err;
}

static void wake_all(struct pageserver *ps)
{
	for (size_t i = 0; i < ps->n_tasks; i++)
		wake(ps->tasks[i], LOWEST, HIGHEST - LOWEST);
}

static size_t poll_list(struct pageserver *ps, struct pollfd *fds)
{
	size_t n;

	LOCK_GUARD(&ps->lock);
	fds[0] = (struct pollfd){ .fd = ps->roster->poke, .events = POLLIN };
	for (n = 0; n < ps->n_tasks; n++)
		fds[n + 1] = (struct pollfd){ .fd = ps->tasks[n]->gone ? -1 : ps->tasks[n]->uffd, .events = POLLIN };
	return n;
}

static void lost(struct pageserver *ps, struct task *task)
{
	task->gone = true;
	LOCK_GUARD(&ps->lock);
	if (complete(ps))
		pthread_cond_broadcast(&ps->done);
}

static void start_filling(struct pageserver *ps)
{
	LOCK_GUARD(&ps->lock);
	ps->filling = true;
	pthread_cond_broadcast(&ps->work);
	if (complete(ps))
		pthread_cond_broadcast(&ps->done);
}

static void *read_events(void *arg)
{
	static const int burst = 64; /* of one task, before the others have a turn */
	struct pageserver *ps = arg;
	struct pollfd *fds = calloc(MAX_TASKS + 1, sizeof(*fds));

	while (fds && !ps->stop) {
		uint64_t pokes;
		size_t n;

		take_added(ps);
		if (ps->roster->filling && !ps->filling)
			start_filling(ps);
		n = poll_list(ps, fds);
		if (poll(fds, n + 1, -1) < 0)
			continue;
		if (fds[0].revents && read(ps->roster->poke, &pokes, sizeof(pokes)) < 0)
			continue;
		for (size_t i = 0; i < n; i++) {
			for (int k = 0; fds[i + 1].revents & POLLIN && k < burst; k++) {
				if (!read_event(ps, ps->tasks[i]))
					break;
			}
			if (fds[i + 1].revents & (POLLERR | POLLNVAL | POLLHUP))
				lost(ps, ps->tasks[i]);
		}
	}
	free(fds);
	return NULL;
}

/* -- from outside ----------------------------------------------------------------------------- */

static int start_workers(struct pageserver *ps, unsigned threads)
{
	long processors = sysconf(_SC_NPROCESSORS_ONLN);

	if (!threads)
		threads = processors > 0 ? (unsigned)processors : 1;
	threads = (unsigned)min_u64(threads, MAX_THREADS) + 1;
	for (unsigned i = 0; i < threads; i++) {
		struct worker *w = &ps->workers[i];

		w->ps = ps;
		w->index = i;
		w->ctx = chunk_ctx_new();
		if (!w->ctx || pthread_create(&w->thread, NULL, work, w) != 0) {
			chunk_ctx_free(w->ctx);
			w->ctx = NULL;
			break;
		}
		pthread_mutex_lock(&ps->lock);
		ps->n_workers++;
		pthread_mutex_unlock(&ps->lock);
	}
	return ps->n_workers >= 2 ? 0 : -ENOMEM;
}

static struct pageserver *server_alloc(struct image *img, const struct plain *plain, struct roster *roster)
{
	struct pageserver *ps = calloc(1, sizeof(*ps));

	if (!ps)
		return NULL;
	ps->img = img;
	ps->plain = plain;
	ps->own_roster = roster ? NULL : roster_new();
	ps->roster = roster ? roster : ps->own_roster;
	if (!ps->roster) {
		free(ps);
		return NULL;
	}
	ps->counts = &ps->roster->counts;
	pthread_mutex_init(&ps->lock, NULL);
	pthread_cond_init(&ps->work, NULL);
	pthread_cond_init(&ps->done, NULL);
	return ps;
}

/* @close_all: the processes' descriptors too */
static void server_free(struct pageserver *ps, bool close_all)
{
	for (size_t i = 0; i < ps->n_tasks; i++) {
		if (close_all)
			close(ps->tasks[i]->uffd);
		task_free(ps->tasks[i]);
	}
	pthread_cond_destroy(&ps->work);
	pthread_cond_destroy(&ps->done);
	pthread_mutex_destroy(&ps->lock);
	roster_free(ps->own_roster);
	free(ps);
}

static void stop_threads(struct pageserver *ps)
{
	pthread_mutex_lock(&ps->lock);
	ps->stop = true;
	pthread_cond_broadcast(&ps->work);
	pthread_mutex_unlock(&ps->lock);
	if (ps->has_events) {
		roster_poke(ps->roster);
		pthread_join(ps->events, NULL);
	}
	for (unsigned i = 0; i < ps->n_workers; i++) {
		pthread_join(ps->workers[i].thread, NULL);
		chunk_ctx_free(ps->workers[i].ctx);
		free(ps->workers[i].buf);
	}
}

int pageserver_new(struct image *img, const struct plain *plain, unsigned threads, struct roster *roster,
		   struct pageserver **ret)
{
	struct pageserver *ps = server_alloc(img, plain, roster);
	int err;

	if (!ps)
		return -ENOMEM;
	err = take_over(ps);
	if (!err)
		err = start_workers(ps, threads);
	if (!err) {
		err = -pthread_create(&ps->events, NULL, read_events, ps);
		ps->has_events = !err;
	}
	if (err) {
		stop_threads(ps);
		server_free(ps, false);
		return err;
	}
	wake_all(ps);
	*ret = ps;
	return 0;
}

void pageserver_free(struct pageserver *ps)
{
	if (!ps)
		return;
	stop_threads(ps);
	server_free(ps, true);
}

/* are they what a table takes? */
static int check_ranges(const struct pageserver_range *ranges, size_t n)
{
	struct pagetable t;
	int err = pagetable_init(&t, ranges, n);

	if (!err)
		pagetable_release(&t);
	return err;
}

int pageserver_add(struct pageserver *ps, int uffd, pid_t pid, uint32_t space, const struct pageserver_range *ranges,
		   size_t n_ranges)
{
	_cleanup_close_ int fd = uffd;
	struct image_space s;
	int err = image_space(ps->img, space, &s);

	if (!err)
		err = check_ranges(ranges, n_ranges);
	return err ? err : roster_add(ps->roster, steal_fd(&fd), pid, space, ranges, n_ranges);
}

int pageserver_ranges(struct image *img, uint32_t space, struct pageserver_range **ret, size_t *ret_n)
{
	_cleanup_free_ struct pageserver_range *ranges = NULL;
	struct image_space s;
	size_t n = 0;
	int err = image_space(img, space, &s);

	if (err)
		return err;
	ranges = calloc(s.n_regions ? s.n_regions : 1, sizeof(*ranges));
	if (!ranges)
		return -ENOMEM;
	for (uint32_t i = 0; i < s.n_regions; i++) {
		struct image_region r;

		err = image_region(img, &s, i, &r);
		if (err)
			return err;
		n += ranges_add(ranges + n, r.addr, r.len, r.flags);
	}
	err = check_ranges(ranges, n);
	if (err)
		return err == -EINVAL ? -EBADMSG : err;
	*ret = steal_ptr(&ranges);
	*ret_n = n;
	return 0;
}

void pageserver_fill(struct pageserver *ps)
{
	ps->roster->filling = 1;
	roster_poke(ps->roster);
}

void pageserver_wait(struct pageserver *ps)
{
	LOCK_GUARD(&ps->lock);
	while (!complete(ps))
		pthread_cond_wait(&ps->done, &ps->lock);
}

void pageserver_stats(struct pageserver *ps, struct pageserver_stats *ret)
{
	const struct roster_counts *c = ps->counts;

	*ret = (struct pageserver_stats){ c->faults,     c->demand_bytes,   c->fill_bytes,
					  c->zero_pages, c->poisoned_bytes, c->processes };
}

static void poison_task(struct pageserver *ps, struct task *task)
{
	for (size_t i = 0; i < task->table.n; i++) {
		const struct pageserver_range *r = &task->table.ranges[i];

		while (place_poison(ps, task, r->addr, r->len) == AGAIN) {
			/* it waits for somebody to read an event: its tables no longer matter */
			struct uffd_msg msg;

			if (read(task->uffd, &msg, sizeof(msg)) < 0)
				sched_yield();
		}
	}
}

void pageserver_poison(struct roster *roster)
{
	struct pageserver *ps = server_alloc(NULL, NULL, roster);

	if (!ps)
		return;
	if (take_over(ps) == 0) {
		/* those too that no server has ever seen */
		take_added(ps);
		for (size_t i = 0; i < ps->n_tasks; i++)
			poison_task(ps, ps->tasks[i]);
	}
	server_free(ps, false);
}
