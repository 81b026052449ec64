/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Thread model: a few threads take units (a run of the working set, or a window of the file) of jobs (files that are
 * open). One lock over the table, the jobs and the units under way; not held while an image is read, decoded or
 * pushed. The table is shared with workers before and after us, but only one is active.
 *
 * A file's `low` says before what all is done. Units are taken in order and end in any, so it is the lowest of those
 * under way: a successor repeats at most what was under way then.
 */
#include "fs/prefetch.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>
#include <time.h>

#include "common/bytes.h"
#include "common/cleanup.h"
#include "common/log.h"
#include "fs/push.h"
#include "fs/read.h"
#include "fs/view.h"
#include "imgfmt/workset.h"

#define MAX_THREADS  16
#define MAX_JOBS     8                   /* files under way at once, in turns; the others wait */
#define WAYS         8                   /* entries that a file may have its place in */
#define WINDOW       ((uint64_t)2 << 20) /* taken at a time of a whole file */
#define PLAN_MAX     (1u << 17)          /* runs of a working set that are used: 32 GiB of 256 KiB each */
#define MAX_FAILURES 16                  /* so many chunks that cannot be had, one after the other, end a job */
#define NONE         UINT64_MAX
#define MAX_PUSHES   64 /* that wait */

_Static_assert(PREFETCH_FILES % WAYS == 0, "table");

struct rank {
	uint32_t chunk, rank;
};

struct run {
	uint64_t off;
	uint32_t len, rank;
};

struct job {
	enum { JOB_FREE, JOB_NEW, JOB_READY, JOB_OVER } state; /* NEW and OVER: one thread has it for itself */
	struct prefetch_file *f;
	struct slot *slot;
	struct read_file file;
	/* the working set: chunks by number, and the file's runs in their order. Fixed once READY */
	struct rank *ranks;
	uint32_t n_ranks;
	struct run *plan;
	uint32_t n_plan;
	uint64_t next;               /* to be taken: of the plan, or an offset */
	uint64_t given_up;           /* the lowest unit that was stopped, or NONE */
	unsigned under_way;          /* units */
	_Atomic unsigned n_failures; /* in a row; not under lock */
	int error;
	bool ends; /* nothing more is taken */
};

struct worker {
	struct prefetcher *p;
	struct pusher *pusher;
	pthread_t thread;
	bool has_turn; /* counted in turns */
	struct job *job;
	enum prefetch_phase phase;
	uint64_t unit; /* NONE: nothing under way */
};

struct prefetcher {
	struct fs *fs;
	unsigned n_processors, n_threads;
	struct worker threads[MAX_THREADS];
	_Atomic unsigned demand; /* requests that are being answered */
	_Atomic unsigned turns;  /* threads of ours that decode or push */
	_Atomic bool stop;
	pthread_mutex_t lock;
	pthread_cond_t wake;
	/* under lock */
	struct job jobs[MAX_JOBS];
	unsigned last_job;
	struct push {
		struct node node;
		uint64_t off;
	} pushes[MAX_PUSHES]; /* a ring */
	unsigned first_push, n_pushes;
	uint64_t next_ns;              /* when the next bytes may go, by the bound of bandwidth */
	uint8_t said[STATS_SLOTS / 8]; /* working sets that cannot be used */
};

static struct stats_prefetch *table(const struct prefetcher *p)
{
	return &p->fs->stats->prefetch;
}

/* -- the table ----------------------------------------------------------------------------------- */

static struct prefetch_file *set_of(const struct prefetcher *p, uint64_t node)
{
	uint64_t h = node * 0x9e3779b97f4a7c15u;

	return &table(p)->files[(h >> 32) % (PREFETCH_FILES / WAYS) * WAYS];
}

static struct job *job_of(struct prefetcher *p, const struct prefetch_file *f)
{
	for (struct job *job = p->jobs; job < p->jobs + MAX_JOBS; job++)
		if (job->state != JOB_FREE && job->f == f)
			return job;
	return NULL;
}

static struct prefetch_file *find(struct prefetcher *p, uint64_t node)
{
	struct prefetch_file *set = set_of(p, node);

	for (int i = 0; i < WAYS; i++)
		if (set[i].node == node)
			return &set[i];
	return NULL;
}

/* in place of the file that nobody has open and was opened longest ago. Return: NULL if all are open */
static struct prefetch_file *add(struct prefetcher *p, uint64_t node)
{
	struct prefetch_file *set = set_of(p, node), *f = NULL;

	for (int i = 0; i < WAYS; i++)
		if (!set[i].opens && !job_of(p, &set[i]) && (!f || set[i].used_ns < f->used_ns))
			f = &set[i];
	if (!f)
		return NULL;
	memset(f, 0, sizeof(*f));
	f->node = node;
	return f;
}

static bool is_under_way(const struct prefetch_file *f)
{
	return f->opens && f->phase >= PREFETCH_WAITS && f->phase <= PREFETCH_WHOLE;
}

uint32_t prefetch_opened(struct prefetcher *p, const struct node *node)
{
	uint64_t id = node_encode(node);
	struct prefetch_file *f;

	if (!p)
		return 0;
	LOCK_GUARD(&p->lock);
	f = find(p, id);
	if (!f)
		f = add(p, id);
	if (!f)
		return 0;
	f->used_ns = stats_now_ns();
	/* what was made resident and is read nevertheless has been evicted since */
	if (f->phase == PREFETCH_IDLE || f->phase == PREFETCH_FAILED || (f->phase == PREFETCH_DONE && f->missed)) {
		f->phase = PREFETCH_WAITS;
		f->low = 0;
		f->done = 0;
		f->total = 0;
	}
	f->missed = 0;
	f->opens++;
	if (is_under_way(f))
		pthread_cond_broadcast(&p->wake);
	return (uint32_t)(f - table(p)->files) + 1;
}

static struct prefetch_file *of_handle(const struct prefetcher *p, const struct node *node, uint32_t handle)
{
	struct prefetch_file *f;

	if (!p || handle == 0 || handle > PREFETCH_FILES)
		return NULL;
	f = &table(p)->files[handle - 1];
	return f->node == node_encode(node) ? f : NULL;
}

void prefetch_closed(struct prefetcher *p, const struct node *node, uint32_t handle)
{
	struct prefetch_file *f = of_handle(p, node, handle);

	if (!p || !f)
		return;
	LOCK_GUARD(&p->lock);
	if (f->opens && --f->opens == 0)
		pthread_cond_broadcast(&p->wake);
}

void prefetch_read_begins(struct prefetcher *p)
{
	if (p)
		p->demand++;
}

void prefetch_read_ends(struct prefetcher *p, const struct node *node, uint32_t handle, bool had_data)
{
	struct prefetch_file *f = of_handle(p, node, handle);

	if (p)
		p->demand--;
	if (f && had_data && f->phase == PREFETCH_DONE)
		f->missed = 1;
}

/* -- beside a read ------------------------------------------------------------------------------- */

void prefetch_push(struct prefetcher *p, const struct node *node, uint64_t off)
{
	if (!p)
		return;
	LOCK_GUARD(&p->lock);
	if (p->n_pushes == MAX_PUSHES) {
		stats_add(&p->fs->stats->push_dropped, 1);
		return;
	}
	p->pushes[(p->first_push + p->n_pushes++) % MAX_PUSHES] = (struct push){ *node, off };
	pthread_cond_signal(&p->wake);
}

static bool push_goes_on(void *ctx, uint64_t len)
{
	const struct prefetcher *p = ctx;

	(void)len;
	return !p->stop;
}

static void beside(void *ctx, uint64_t len)
{
	const struct prefetcher *p = ctx;

	stats_add(&p->fs->stats->pushed_bytes, len);
}

/* what of the file is in the chunk at @off: to the chunk's end, and from its beginning if that is there as well */
static int chunk_range(const struct read_file *file, uint64_t off, struct image_run *ret)
{
	struct image_run run, first;
	int err = read_map(file, off, &run);

	if (!err && (run.kind != RUN_DATA || run.len == 0))
		err = -ENODATA;
	if (err)
		return err;
	if (run.chunk_off && run.chunk_off <= off && !read_map(file, off - run.chunk_off, &first) &&
	    first.kind == RUN_DATA && first.img == run.img && first.chunk == run.chunk &&
	    first.off + first.len == run.off + run.len)
		run = first;
	*ret = run;
	return 0;
}

static bool is_decoded(const struct prefetcher *p, const struct image_run *run)
{
	struct cache_key key;
	struct image *img;

	if (image_chunk_resolve(run->img, run->chunk, &img, &key.chunk))
		return false;
	memcpy(key.id, image_info(img)->id, sizeof(key.id));
	return cache_has(p->fs->cache, &key);
}

/* without the lock */
static void do_push(struct worker *w, const struct push *push)
{
	struct prefetcher *p = w->p;
	struct push_job job = { .ctx = p, .go_on = push_goes_on, .pushed = beside };
	struct slot *slot = NULL;
	struct read_file file;
	struct image_run run;
	int err = slots_get(p->fs->slots, push->node.slot, &slot);

	if (!err)
		err = read_file_init(slot, &push->node, &file);
	if (!err)
		err = chunk_range(&file, push->off, &run);
	if (!err && !is_decoded(p, &run))
		err = -EAGAIN;
	if (!err) {
		uint64_t end = run.off + run.len;

		/* whole pages only: what they share with another chunk would have that one decoded */
		job.file = &file;
		end = end == file.size ? end : end & ~(uint64_t)4095;
		if (align_up(run.off, 4096) < end)
			err = push_range(w->pusher, &job, align_up(run.off, 4096), end);
	}
	if (err)
		stats_add(&p->fs->stats->push_dropped, 1);
	slot_put(slot);
}

/* -- beginning and end of a job ------------------------------------------------------------------ */

static int by_chunk(const void *a, const void *b)
{
	const struct rank *x = a, *y = b;

	return (x->chunk > y->chunk) - (x->chunk < y->chunk);
}

static int by_rank(const void *a, const void *b)
{
	const struct run *x = a, *y = b;

	if (x->rank != y->rank)
		return x->rank < y->rank ? -1 : 1;
	return (x->off > y->off) - (x->off < y->off);
}

/* chunk numbers of a base mean nothing in this image's working set */
static const struct rank *rank_of(const struct job *job, const struct image_run *run)
{
	struct rank key = { .chunk = run->chunk };

	if (run->img != job->file.img || !job->n_ranks)
		return NULL;
	return bsearch(&key, job->ranks, job->n_ranks, sizeof(key), by_chunk);
}

static void say_unusable(struct prefetcher *p, const struct slot *slot, int err)
{
	uint32_t n = slot_number(slot);
	const char *why = err == -ESTALE ? "it belongs to another image" : "it is damaged";

	if (err == -ENOENT)
		return;
	{
		LOCK_GUARD(&p->lock);
		if (n < STATS_SLOTS && p->said[n / 8] & 1 << n % 8)
			return;
		if (n < STATS_SLOTS)
			p->said[n / 8] |= (uint8_t)(1 << n % 8);
	}
	log_note("cannot use the working set '%s" WORKSET_SUFFIX "': %s", slot_path(slot),
		 err == -ESTALE || err == -EBADMSG ? why : strerror(-err));
}

static int load_ranks(struct prefetcher *p, struct job *job)
{
	_cleanup_free_ uint32_t *list = NULL;
	_cleanup_free_ char *path = NULL;
	const struct image_info *info = image_info(job->file.img);
	uint32_t n;
	int err;

	/* the name is another image's by now, and so is what is beside it */
	if (!slot_listed(job->slot))
		return 0;
	if (asprintf(&path, "%s" WORKSET_SUFFIX, slot_path(job->slot)) < 0) {
		path = NULL;
		return -ENOMEM;
	}
	err = workset_load(path, info->id, info->n_chunks, &list, &n);
	if (err) {
		say_unusable(p, job->slot, err);
		return 0;
	}
	n = (uint32_t)min_u64(n, PLAN_MAX);
	job->ranks = malloc(n * sizeof(*job->ranks) + 1);
	if (!job->ranks)
		return -ENOMEM;
	for (uint32_t i = 0; i < n; i++)
		job->ranks[i] = (struct rank){ list[i], i };
	job->n_ranks = n;
	qsort(job->ranks, n, sizeof(*job->ranks), by_chunk);
	return 0;
}

static int plan_add(struct job *job, uint32_t *room, const struct image_run *run, uint32_t rank)
{
	if (job->n_plan == *room) {
		uint32_t more = *room ? *room * 2 : 256;
		struct run *plan = realloc(job->plan, more * sizeof(*plan));

		if (!plan)
			return -ENOMEM;
		job->plan = plan;
		*room = more;
	}
	job->plan[job->n_plan++] = (struct run){ run->off, (uint32_t)run->len, rank };
	return 0;
}

/* which runs of the file are in the working set */
static int make_plan(const struct prefetcher *p, struct job *job)
{
	uint32_t room = 0;
	struct image_run run;

	for (uint64_t at = 0; at < job->file.size && job->n_ranks && job->n_plan < PLAN_MAX; at = run.off + run.len) {
		const struct rank *rank;
		int err = read_map(&job->file, at, &run);

		if (!err && run.len == 0)
			err = -EBADMSG;
		if (!err && p->stop)
			err = -ECANCELED;
		rank = !err && run.kind == RUN_DATA ? rank_of(job, &run) : NULL;
		if (rank)
			err = plan_add(job, &room, &run, rank->rank);
		if (err)
			return err;
	}
	if (job->n_plan)
		qsort(job->plan, job->n_plan, sizeof(*job->plan), by_rank);
	return 0;
}

static int data_bytes(const struct job *job, const struct node *node, uint64_t *ret)
{
	struct image_inode inode;
	struct views *views;
	struct view_size size;
	int err;

	if (job->file.is_view) {
		err = slot_views(job->slot, &views);
		if (!err)
			err = views_size(views, node->number, &size);
		if (!err)
			*ret = size.data_bytes;
		return err;
	}
	err = image_inode(job->file.img, node->number, &inode);
	if (!err)
		*ret = inode.size - min_u64(inode.hole_bytes, inode.size);
	return err;
}

/* without the lock: the job is this thread's alone */
static int prepare(struct prefetcher *p, struct job *job, uint64_t *ret_total)
{
	struct node node;
	uint64_t total = 0;
	int err = node_decode(job->f->node, &node);

	if (!err)
		err = slots_get(p->fs->slots, node.slot, &job->slot);
	if (!err)
		err = read_file_init(job->slot, &node, &job->file);
	if (!err)
		err = load_ranks(p, job);
	if (!err)
		err = make_plan(p, job);
	if (!err && p->fs->cfg.prefetch == FS_PREFETCH_ALL)
		err = data_bytes(job, &node, &total);
	else
		for (uint32_t i = 0; !err && i < job->n_plan; i++)
			total += job->plan[i].len;
	if (!err)
		*ret_total = total;
	return err;
}

static void begin_job(struct prefetcher *p, struct job *job, int err, uint64_t total)
{
	struct prefetch_file *f = job->f;

	job->state = JOB_READY;
	job->given_up = NONE;
	job->error = err;
	job->ends = err != 0;
	if (err)
		return;
	f->total = total;
	if (f->phase == PREFETCH_WAITS) {
		f->phase = PREFETCH_WS;
		f->low = 0;
	}
	job->next = f->low;
	pthread_cond_broadcast(&p->wake);
}

/* without the lock */
static void release_job(struct job *job)
{
	free(job->ranks);
	free(job->plan);
	slot_put(job->slot);
}

/* with the lock, nothing of it under way: what the file's state is now */
static void end_job(struct prefetcher *p, const struct job *job)
{
	struct prefetch_file *f = job->f;

	if (job->error == -ENOENT) {
		/* the kernel has forgotten it: opens that were counted twice. The next one begins anew */
		f->phase = PREFETCH_IDLE;
		f->opens = 0;
	} else if (job->error && job->error != -ECANCELED) {
		f->phase = PREFETCH_FAILED;
		if (!p->stop && job->error != -ENOTCONN && job->error != -ENODEV && !f->failed)
			log_warn("prefetch of a file of '%s' ends: %s", job->slot ? slot_path(job->slot) : "?",
				 strerror(-job->error));
		f->failed = 1;
	}
}

/* -- units --------------------------------------------------------------------------------------- */

static bool has_more(const struct job *job)
{
	if (job->f->phase == PREFETCH_WS)
		return job->next < job->n_plan;
	return job->f->phase == PREFETCH_WHOLE && job->next < job->file.size;
}

/* with the lock: nothing more to take and nothing under way */
static void next_phase(const struct prefetcher *p, struct job *job)
{
	struct prefetch_file *f = job->f;

	if (job->ends || job->under_way || has_more(job))
		return;
	if (f->phase == PREFETCH_WS && p->fs->cfg.prefetch == FS_PREFETCH_ALL) {
		f->phase = PREFETCH_WHOLE;
		f->low = job->next = 0;
	}
	if (!has_more(job)) {
		f->phase = PREFETCH_DONE;
		job->ends = true;
	}
}

/* with the lock: start a job for a file that needs one */
static struct job *new_job(struct prefetcher *p)
{
	struct stats_prefetch *t = table(p);
	struct job *job = p->jobs;

	while (job->state != JOB_FREE)
		if (++job == p->jobs + MAX_JOBS)
			return NULL;
	for (struct prefetch_file *f = t->files; f < t->files + PREFETCH_FILES; f++)
		if (is_under_way(f) && !job_of(p, f)) {
			*job = (struct job){ .state = JOB_NEW, .f = f };
			return job;
		}
	return NULL;
}

/* with the lock: the job whose turn it is, recorded working sets before the rest */
static struct job *pick_job(struct prefetcher *p)
{
	for (int phase = PREFETCH_WS; phase <= PREFETCH_WHOLE; phase++)
		for (unsigned i = 1; i <= MAX_JOBS; i++) {
			struct job *job = &p->jobs[(p->last_job + i) % MAX_JOBS];

			if (job->state == JOB_READY && !job->ends && job->f->phase == (uint32_t)phase &&
			    has_more(job)) {
				p->last_job = (unsigned)(job - p->jobs);
				return job;
			}
		}
	return NULL;
}

static struct job *ended_job(struct prefetcher *p)
{
	for (struct job *job = p->jobs; job < p->jobs + MAX_JOBS; job++) {
		if (job->state != JOB_READY)
			continue;
		next_phase(p, job);
		if (!job->f->opens || p->stop)
			job->ends = true;
		if (job->ends && !job->under_way)
			return job;
	}
	return NULL;
}

static enum push_class class(void *ctx, const struct image_run *run) {
	const struct worker *w = ctx; bool recorded = rank_of(w->job, run);

	if (w->phase == PREFETCH_WS) return recorded ? PUSH_WANTED : PUSH_NEVER;
	return recorded ? PUSH_DONE : PUSH_WANTED;
}

static void give_turn(struct worker *w)
{
	if (w->has_turn)
		w->p->turns--;
	w->has_turn = false;
}

/* readers have the processors that they need, we what is left */
static bool take_turn(struct worker *w)
{
	struct prefetcher *p = w->p;
	struct timespec pause = { .tv_nsec = 200000 };

	while (!p->stop && w->job->f->opens) {
		if (++p->turns + p->demand <= p->n_processors) {
			w->has_turn = true;
			return true;
		}
		p->turns--;
		nanosleep(&pause, NULL);
		if (pause.tv_nsec < 2000000)
			pause.tv_nsec *= 2;
	}
	return false;
}

/* wait until @len bytes may go, by the bound of bandwidth. Return: false to stop */
static bool wait_for_rate(struct worker *w, uint64_t len)
{
	struct prefetcher *p = w->p;
	uint64_t rate = p->fs->cfg.prefetch_rate, now = stats_now_ns(), due, cost;

	if (!rate)
		return true;
	cost = len * 1000000000u / rate;
	LOCK_GUARD(&p->lock);
	due = max_u64(p->next_ns, now);
	p->next_ns = due + cost;
	if (due > now)
		stats_add(&p->fs->stats->prefetch_throttled, 1);
	while (now < due) {
		struct timespec until = { .tv_sec = (time_t)(due / 1000000000u), .tv_nsec = (long)(due % 1000000000u) };

		if (p->stop || !w->job->f->opens) {
			p->next_ns -= cost; /* it is not used */
			return false;
		}
		pthread_cond_timedwait(&p->wake, &p->lock, &until);
		now = stats_now_ns();
	}
	return true;
}

static bool go_on(void *ctx, uint64_t len)
{
	struct worker *w = ctx;

	give_turn(w);
	return wait_for_rate(w, len) && take_turn(w);
}

static void pushed(void *ctx, uint64_t len)
{
	struct worker *w = ctx;

	stats_add(&w->p->fs->stats->prefetch_bytes, len);
	stats_add(&w->job->f->done, len);
	w->job->n_failures = 0;
}

static bool failed(void *ctx)
{
	struct worker *w = ctx;

	stats_add(&w->p->fs->stats->prefetch_errors, 1);
	return ++w->job->n_failures < MAX_FAILURES;
}

/* the window begins with a hole that goes on past it: its end is where to go on. Return: 0 for no, -errno */
static int skip_hole(struct worker *w, bool *ret_skipped)
{
	struct job *job = w->job;
	struct image_run run;
	int err = read_map(&job->file, w->unit, &run);

	*ret_skipped = false;
	if (err || run.kind != RUN_HOLE || run.len < WINDOW)
		return err;
	LOCK_GUARD(&w->p->lock);
	job->next = max_u64(job->next, (run.off + run.len) / WINDOW * WINDOW);
	*ret_skipped = true;
	return 0;
}

/* without the lock */
static int do_unit(struct worker *w)
{
	struct job *job = w->job;
	struct push_job push = { &job->file, w, class, go_on, pushed, failed };
	bool skipped = false;
	int err = 0;

	if (w->phase == PREFETCH_WS) {
		const struct run *run = &job->plan[w->unit];

		return push_range(w->pusher, &push, run->off & ~(uint64_t)4095,
				  min_u64(align_up(run->off + run->len, 4096), job->file.size));
	}
	err = skip_hole(w, &skipped);
	if (err || skipped)
		return err;
	return push_range(w->pusher, &push, w->unit, min_u64(w->unit + WINDOW, job->file.size));
}

static void set_low(struct prefetcher *p, const struct job *job)
{
	uint64_t low = min_u64(job->next, job->given_up);

	for (unsigned i = 0; i < p->n_threads; i++)
		if (p->threads[i].job == job)
			low = min_u64(low, p->threads[i].unit);
	job->f->low = low;
}

/* with the lock, which it lets go meanwhile */
static void work_on(struct worker *w, struct job *job)
{
	struct prefetcher *p = w->p;
	int err;

	w->job = job;
	w->phase = job->f->phase;
	w->unit = job->next;
	job->next += w->phase == PREFETCH_WS ? 1 : WINDOW;
	job->under_way++;
	pthread_mutex_unlock(&p->lock);
	err = do_unit(w);
	give_turn(w);
	pthread_mutex_lock(&p->lock);
	job->under_way--;
	if (err) {
		job->given_up = min_u64(job->given_up, w->unit);
		job->ends = true;
		if (!job->error || job->error == -ECANCELED)
			job->error = err == -ECANCELED && job->n_failures >= MAX_FAILURES ? -EIO : err;
	}
	w->unit = NONE;
	w->job = NULL;
	set_low(p, job);
	if (!job->under_way)
		pthread_cond_broadcast(&p->wake);
}

/* with the lock, which it lets go meanwhile. Return: false if there is nothing to do */
static bool work_once(struct worker *w)
{
	struct prefetcher *p = w->p;
	struct job *job = ended_job(p);

	if (job) {
		end_job(p, job);
		job->state = JOB_OVER;
		pthread_mutex_unlock(&p->lock);
		release_job(job);
		pthread_mutex_lock(&p->lock);
		*job = (struct job){ .state = JOB_FREE };
		return true;
	}
	if (p->stop)
		return false;
	if (p->n_pushes) {
		struct push push = p->pushes[p->first_push];

		p->first_push = (p->first_push + 1) % MAX_PUSHES;
		p->n_pushes--;
		pthread_mutex_unlock(&p->lock);
		do_push(w, &push);
		pthread_mutex_lock(&p->lock);
		return true;
	}
	job = new_job(p);
	if (job) {
		uint64_t total = 0;
		int err;

		pthread_mutex_unlock(&p->lock);
		err = prepare(p, job, &total);
		pthread_mutex_lock(&p->lock);
		begin_job(p, job, err, total);
		return true;
	}
	job = pick_job(p);
	if (job)
		work_on(w, job);
	return job != NULL;
}

static void *work(void *arg)
{
	struct worker *w = arg;
	struct prefetcher *p = w->p;

	pthread_mutex_lock(&p->lock);
	for (;;) {
		if (work_once(w))
			continue;
		if (p->stop)
			break;
		pthread_cond_wait(&p->wake, &p->lock);
	}
	pthread_mutex_unlock(&p->lock);
	return NULL;
}

/* -- beginning and end --------------------------------------------------------------------------- */

/*
 * Each may have a buffer of the cache pinned while it waits for the kernel: half of them are always left. One thread
 * pushes about 1 GB/s, so a bound below that needs no second one.
 */
static unsigned count_threads(const struct prefetcher *p)
{
	const struct fs_config *cfg = &p->fs->cfg;
	uint64_t n = min_u64(p->n_processors, MAX_THREADS);

	n = min_u64(n, cfg->cache_bytes / (2 * (uint64_t)THAW_CHUNK_MAX));
	if (cfg->prefetch_rate)
		n = min_u64(n, (cfg->prefetch_rate >> 30) + 1);
	return (unsigned)max_u64(n, 1);
}

int prefetch_start(struct prefetcher *p)
{
	unsigned n = count_threads(p);

	/* they look at one another */
	LOCK_GUARD(&p->lock);
	for (; p->n_threads < n; p->n_threads++) {
		struct worker *w = &p->threads[p->n_threads];
		int err;

		w->p = p;
		w->unit = NONE;
		err = pusher_new(p->fs, &w->pusher);
		if (!err)
			err = -pthread_create(&w->thread, NULL, work, w);
		if (err) {
			pusher_free(w->pusher);
			return p->n_threads ? 0 : err;
		}
	}
	return 0;
}

int prefetch_new(struct fs *fs, struct prefetcher **ret)
{
	struct prefetcher *p = calloc(1, sizeof(*p));
	pthread_condattr_t attr;

	if (!p)
		return -ENOMEM;
	p->fs = fs;
	p->n_processors = (unsigned)max_u64((uint64_t)get_nprocs(), 1);
	pthread_mutex_init(&p->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&p->wake, &attr);
	pthread_condattr_destroy(&attr);
	*ret = p;
	return 0;
}

void prefetch_stop(struct prefetcher *p)
{
	if (!p)
		return;
	{
		LOCK_GUARD(&p->lock);
		p->stop = true;
		pthread_cond_broadcast(&p->wake);
	}
	for (unsigned i = 0; i < p->n_threads; i++) {
		pthread_join(p->threads[i].thread, NULL);
		pusher_free(p->threads[i].pusher);
	}
	p->n_threads = 0;
}

void prefetch_free(struct prefetcher *p)
{
	if (!p)
		return;
	prefetch_stop(p);
	pthread_mutex_destroy(&p->lock);
	pthread_cond_destroy(&p->wake);
	free(p);
}
