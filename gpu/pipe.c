/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/pipe.h"
#include "common/clock.h"
#include "common/stop.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/bytes.h"
#include "common/cleanup.h"

#define SLOT_BYTES  (8u << 20)
#define N_SLOTS     32u
#define N_STREAMS   2u
#define MAX_THREADS 256u

enum state { SLOT_FREE, SLOT_FILLING, SLOT_COPYING, SLOT_FAILED };

struct slot {
	uint8_t *buf;
	struct gpu_event *event;
	struct gpu_piece piece;
	enum state state;
};

struct gpu_pipe {
	struct gpu *gpu;
	struct gpu_pipe_opts opts;
	uint8_t *memory;
	size_t memory_bytes;
	bool registered; /* our own memory, pinned; else the driver's */
	struct slot *slots;
	struct gpu_stream **streams;
};

/* one transfer. Pieces are numbered; number n has slot n modulo n_slots; [reaped, begun) are under way */
struct run {
	struct gpu_pipe *pipe;
	enum gpu_direction direction;
	const struct gpu_feed *feed;
	struct gpu_profile profile; /* this and all below under @lock */
	uint64_t begun, reaped;
	unsigned active; /* workers */
	bool ended;      /* the feed has no more */
	int error;
	char error_text[320];
	pthread_mutex_t lock;
	pthread_cond_t space, ready;
};

struct pipe_worker {
	pthread_t thread;
	struct run *run;
	unsigned number;
};

/* -- the ring -------------------------------------------------------------------------------------- */

/* our own pages can be huge ones, and pinning them is cheap then; a driver that refuses gives of its own */
static int take_memory(struct gpu_pipe *pipe)
{
	size_t len = pipe->memory_bytes;
	void *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int r;

	if (p == MAP_FAILED)
		return gpu_fail(-ENOMEM, "cannot have %zu bytes to pin", len);
	madvise(p, len, MADV_HUGEPAGE);
	if (!gpu_host_register(pipe->gpu, p, len)) {
		pipe->memory = p;
		pipe->registered = true;
		return 0;
	}
	munmap(p, len);
	p = NULL;
	r = gpu_host_alloc(pipe->gpu, len, &p);
	pipe->memory = p;
	return r;
}

static int make_slots(struct gpu_pipe *pipe)
{
	int r = 0;

	for (unsigned i = 0; i < pipe->opts.n_slots && !r; i++) {
		pipe->slots[i].buf = pipe->memory + i * pipe->opts.slot_bytes;
		r = gpu_event_new(pipe->gpu, &pipe->slots[i].event);
	}
	for (unsigned i = 0; i < pipe->opts.n_streams && !r; i++)
		r = gpu_stream_new(pipe->gpu, &pipe->streams[i]);
	return r;
}

int gpu_pipe_new(struct gpu *gpu, const struct gpu_pipe_opts *opts, struct gpu_pipe **ret)
{
	struct gpu_pipe *pipe = calloc(1, sizeof(*pipe));
	uint64_t total = 0;
	int r;

	if (!pipe)
		return gpu_fail(-ENOMEM, "out of memory");
	pipe->gpu = gpu;
	if (opts)
		pipe->opts = *opts;
	pipe->opts.slot_bytes = pipe->opts.slot_bytes ? pipe->opts.slot_bytes : SLOT_BYTES;
	pipe->opts.n_slots = pipe->opts.n_slots ? pipe->opts.n_slots : N_SLOTS;
	pipe->opts.n_streams = pipe->opts.n_streams ? pipe->opts.n_streams : N_STREAMS;
	pipe->slots = calloc(pipe->opts.n_slots, sizeof(*pipe->slots));
	pipe->streams = calloc(pipe->opts.n_streams, sizeof(struct gpu_stream *));
	if (!pipe->slots || !pipe->streams || pipe->opts.slot_bytes % 4096 ||
	    mul_overflows(pipe->opts.slot_bytes, pipe->opts.n_slots, &total)) {
		gpu_pipe_free(pipe);
		return gpu_fail(-ENOMEM, "cannot have slots to copy with");
	}
	pipe->memory_bytes = (size_t)total;
	r = take_memory(pipe);
	if (!r)
		r = make_slots(pipe);
	if (r) {
		gpu_pipe_free(pipe);
		return r;
	}
	*ret = pipe;
	return 0;
}

void gpu_pipe_free(struct gpu_pipe *pipe)
{
	if (!pipe)
		return;
	for (unsigned i = 0; pipe->streams && i < pipe->opts.n_streams; i++) {
		if (pipe->streams[i])
			gpu_stream_free(pipe->gpu, pipe->streams[i]);
	}
	for (unsigned i = 0; pipe->slots && i < pipe->opts.n_slots; i++) {
		if (pipe->slots[i].event)
			gpu_event_free(pipe->gpu, pipe->slots[i].event);
	}
	if (pipe->memory && pipe->registered) {
		gpu_host_unregister(pipe->gpu, pipe->memory);
		munmap(pipe->memory, pipe->memory_bytes);
	} else if (pipe->memory) {
		gpu_host_free(pipe->gpu, pipe->memory);
	}
	free(pipe->slots);
	free(pipe->streams);
	free(pipe);
}

size_t gpu_pipe_slot_bytes(const struct gpu_pipe *pipe)
{
	return pipe->opts.slot_bytes;
}

struct gpu *gpu_pipe_gpu(const struct gpu_pipe *pipe)
{
	return pipe->gpu;
}

/* -- workers --------------------------------------------------------------------------------------- */

/* under the lock, by the thread that met the error: its text is that thread's */
static void set_error(struct run *run, int r)
{
	if (!r || run->error)
		return;
	run->error = r;
	strncpy(run->error_text, gpu_error(), sizeof(run->error_text) - 1);
	pthread_cond_broadcast(&run->space);
	pthread_cond_broadcast(&run->ready);
}

/* copy the piece later, and let the slot's event tell when that was */
static int put_copy(struct run *run, struct slot *slot, uint64_t number)
{
	struct gpu *gpu = run->pipe->gpu;
	struct gpu_stream *stream = run->pipe->streams[number % run->pipe->opts.n_streams];
	const struct gpu_piece *piece = &slot->piece;
	int r;

	if (run->direction == GPU_OUT)
		r = gpu_copy_out(gpu, slot->buf, piece->addr, piece->len, stream);
	else if (piece->zero)
		r = gpu_zero(gpu, piece->addr, piece->len, stream);
	else
		r = gpu_copy_in(gpu, piece->addr, slot->buf, piece->len, stream);
	return r ? r : gpu_event_put(gpu, slot->event, stream);
}

static int take_piece(struct run *run, struct slot *slot)
{
	struct gpu_piece *piece = &slot->piece;
	int r;

	if (stop_asked(run->feed->stop)) {
		gpu_keep_error("given up");
		return -ECANCELED;
	}
	r = run->feed->next(run->feed->ctx, piece);
	if (r <= 0)
		return r;
	if (!piece->len || ((!piece->zero || run->direction == GPU_OUT) && piece->len > run->pipe->opts.slot_bytes))
		return gpu_fail(-EINVAL, "a piece of %llu bytes cannot be copied", (unsigned long long)piece->len);
	return 1;
}

/* take a piece and deal with it; false: there is nothing left to do. The lock is held, but for the work */
static bool work_once(struct run *run, unsigned number)
{
	uint64_t start = clock_ns(), seq, filled = 0;
	struct slot *slot;
	int r;

	while (!run->error && !run->ended && run->begun - run->reaped == run->pipe->opts.n_slots)
		pthread_cond_wait(&run->space, &run->lock);
	run->profile.slot_ns += clock_ns() - start;
	if (run->error || run->ended)
		return false;
	seq = run->begun;
	slot = &run->pipe->slots[seq % run->pipe->opts.n_slots];
	r = take_piece(run, slot);
	if (r <= 0) {
		run->ended = true;
		set_error(run, r);
		pthread_cond_broadcast(&run->space);
		return false;
	}
	run->begun++;
	slot->state = SLOT_FILLING;
	pthread_mutex_unlock(&run->lock);
	r = 0;
	if (run->direction == GPU_IN && !slot->piece.zero) {
		start = clock_ns();
		r = run->feed->fill(run->feed->ctx, number, &slot->piece, slot->buf);
		filled = clock_ns() - start;
	}
	if (!r)
		r = put_copy(run, slot, seq);
	pthread_mutex_lock(&run->lock);
	run->profile.fill_ns += filled;
	slot->state = r ? SLOT_FAILED : SLOT_COPYING;
	set_error(run, r);
	pthread_cond_signal(&run->ready);
	return true;
}

static void *work(void *arg)
{
	struct pipe_worker *worker = arg;
	struct run *run = worker->run;

	pthread_mutex_lock(&run->lock);
	while (work_once(run, worker->number))
		;
	run->active--;
	pthread_cond_signal(&run->ready);
	pthread_mutex_unlock(&run->lock);
	return NULL;
}

/* -- the caller ------------------------------------------------------------------------------------ */

/* the oldest piece under way has come to its end */
static void reap(struct run *run)
{
	struct slot *slot = &run->pipe->slots[run->reaped % run->pipe->opts.n_slots];
	const struct gpu_piece *piece = &slot->piece;
	bool good = !run->error;
	uint64_t start, copied = 0, done = 0;
	int r = 0;

	if (slot->state == SLOT_COPYING) {
		pthread_mutex_unlock(&run->lock);
		start = clock_ns();
		r = gpu_event_wait(run->pipe->gpu, slot->event);
		copied = clock_ns();
		if (!r && good && run->feed->done)
			r = run->feed->done(run->feed->ctx, piece, run->direction == GPU_OUT ? slot->buf : NULL);
		done = clock_ns() - copied;
		copied -= start;
		pthread_mutex_lock(&run->lock);
	}
	run->profile.copy_ns += copied;
	run->profile.done_ns += done;
	run->profile.pieces++;
	if (piece->zero && run->direction == GPU_IN)
		run->profile.zero_bytes += piece->len;
	else
		run->profile.bytes += piece->len;
	slot->state = SLOT_FREE;
	run->reaped++;
	set_error(run, r);
	pthread_cond_broadcast(&run->space);
}

static void reap_all(struct run *run)
{
	LOCK_GUARD(&run->lock);

	for (;;) {
		const struct slot *slot = &run->pipe->slots[run->reaped % run->pipe->opts.n_slots];

		if (run->reaped < run->begun && slot->state != SLOT_FILLING)
			reap(run);
		else if (run->active || run->reaped < run->begun)
			pthread_cond_wait(&run->ready, &run->lock);
		else
			return;
	}
}

static unsigned start_workers(struct run *run, struct pipe_worker *workers, unsigned n)
{
	unsigned started = 0;

	run->active = n;
	for (unsigned i = 0; i < n; i++) {
		workers[i].run = run;
		workers[i].number = i;
		if (pthread_create(&workers[i].thread, NULL, work, &workers[i]))
			break;
		started++;
	}
	pthread_mutex_lock(&run->lock);
	run->active -= n - started;
	if (!started)
		set_error(run, gpu_fail(-EAGAIN, "cannot start a thread"));
	pthread_mutex_unlock(&run->lock);
	return started;
}

void gpu_profile_add(struct gpu_profile *to, const struct gpu_profile *from)
{
	to->bytes += from->bytes;
	to->zero_bytes += from->zero_bytes;
	to->pieces += from->pieces;
	to->wall_ns += from->wall_ns;
	to->fill_ns += from->fill_ns;
	to->slot_ns += from->slot_ns;
	to->copy_ns += from->copy_ns;
	to->done_ns += from->done_ns;
}

int gpu_pipe_run(struct gpu_pipe *pipe, enum gpu_direction direction, const struct gpu_feed *feed,
		 struct gpu_profile *profile)
{
	struct run run = { .pipe = pipe, .direction = direction, .feed = feed };
	unsigned n = direction == GPU_OUT || !feed->threads ? 1 : feed->threads, started;
	struct pipe_worker *workers;
	uint64_t start = clock_ns();

	n = n > MAX_THREADS ? MAX_THREADS : n;
	workers = calloc(n, sizeof(*workers));
	if (!workers)
		return gpu_fail(-ENOMEM, "out of memory");
	pthread_mutex_init(&run.lock, NULL);
	pthread_cond_init(&run.space, NULL);
	pthread_cond_init(&run.ready, NULL);
	started = start_workers(&run, workers, n);
	reap_all(&run);
	for (unsigned i = 0; i < started; i++)
		pthread_join(workers[i].thread, NULL);
	free(workers);
	/* a copy whose event could not be put is not waited for yet */
	for (unsigned i = 0; run.error && i < pipe->opts.n_streams; i++)
		gpu_stream_wait(pipe->gpu, pipe->streams[i]);
	if (run.error)
		gpu_keep_error(run.error_text);
	pthread_cond_destroy(&run.space);
	pthread_cond_destroy(&run.ready);
	pthread_mutex_destroy(&run.lock);
	run.profile.wall_ns = clock_ns() - start;
	if (profile)
		gpu_profile_add(profile, &run.profile);
	return run.error;
}
