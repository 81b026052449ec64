/* SPDX-License-Identifier: Apache-2.0 */
#include "imgfmt/writer.h"
#include "common/stop.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "common/bytes.h"
#include "common/cleanup.h"
#include "common/log.h"
#include "imgfmt/chunk.h"
#include "imgfmt/dedup.h"
#include "imgfmt/zero.h"

/* Jobs in flight for each thread; fewer with large chunks, so that a thread costs about 8 MiB. */
#define JOBS_PER_THREAD  6
#define BYTES_PER_THREAD (6u << 20)
/* Files that may be open at a time because jobs wait for them. */
#define MAX_OPEN_INPUTS  24

#define POOL_FLAG        0x80000000u /* in wextent.chunk_off: chunk is the number of a pool */

enum verdict {
	JOB_ZERO,      /* a hole */
	JOB_KNOWN,     /* equal to chunk @known of this image, compared */
	JOB_IN_BASE,   /* equal to chunk @known of @base, compared */
	JOB_ENCODED,   /* compressed into @out */
	JOB_UNDECIDED, /* an equal hash is in flight: the committer decides */
};

struct job {
	uint8_t *in, *out;
	struct writer_input *input; /* NULL: @in is filled already */
	bool is_pool;               /* what it becomes is for many extents */
	uint64_t off;
	uint32_t len;
	uint32_t ino;
	uint64_t pending; /* which pending extent it decides; pools: unused */
	uint32_t pool;    /* number of the pool, when it is one */
	/* results */
	uint64_t hash;
	struct encoded encoded;
	struct image *base;
	uint32_t known;
	enum verdict verdict;
	int error;
	bool hashed, done; /* under writer.lock */
};

struct worker {
	pthread_t thread;
	bool started;
	struct writer *w;
	struct encoder *encoder;
	struct chunk_ctx *ctx;
	uint8_t *check; /* room for a chunk to compare with */
};

/* an extent that waits for its turn */
struct pending {
	uint64_t off, len;
	uint32_t ino, chunk, chunk_off;
	bool decided;
};

struct wextent {
	uint64_t off;
	uint32_t chunk, chunk_off;
};

struct origin {
	uint64_t off;
	uint32_t ino;
};

struct writer {
	struct writer_opts opts;
	uint32_t chunk_size;
	struct encoder_opts encoder_opts;

	/* the ring: jobs [committed, submitted) are in flight, [committed, taken) have a worker */
	pthread_mutex_t lock; /* guards what is marked so, and the chunk table against appending */
	pthread_cond_t work, finished;
	struct job *jobs;
	unsigned n_jobs;
	uint64_t committed, taken, submitted; /* under lock, except that the caller's thread may read its own */
	bool quit;
	struct worker *workers;
	unsigned n_workers;
	struct worker committer; /* no thread: what the caller's thread needs */

	struct table chunks; /* struct thaw_chunk; appended under lock */
	struct dedup known;  /* under lock */
	struct dedup *base_known;
	struct table origins; /* where a chunk was first seen; only if the output cannot be read */
	struct image **used_bases;
	unsigned n_used_bases;

	uint8_t *pool_buf;
	uint32_t pool_len;
	struct table pools; /* uint32_t: pool number -> chunk */

	struct pending *pending; /* circular, cap_pending is a power of two */
	uint64_t pending_head, pending_tail, cap_pending;
	struct table extents; /* struct wextent */
	struct table files;   /* struct writer_file */
	uint64_t last_end;    /* where the last extent ends */
	uint32_t last_ino;
	struct writer_counts counts;
	unsigned open_inputs;
	int error;
	atomic_bool said_shorter;
};

/* -- extents ---------------------------------------------------------------------------------- */

static struct pending *pending_at(struct writer *w, uint64_t i)
{
	return &w->pending[i & (w->cap_pending - 1)];
}

static int grow_pending(struct writer *w)
{
	uint64_t cap = w->cap_pending ? 2 * w->cap_pending : 256;
	struct pending *bigger = malloc(cap * sizeof(*bigger));

	if (!bigger)
		return -ENOMEM;
	for (uint64_t i = w->pending_head; i < w->pending_tail; i++)
		bigger[i & (cap - 1)] = *pending_at(w, i);
	free(w->pending);
	w->pending = bigger;
	w->cap_pending = cap;
	return 0;
}

/* does @p go on where the extent @last, which began at last->off, has come to? */
static bool continues(const struct writer *w, const struct wextent *last, const struct pending *p)
{
	uint64_t done = p->off - last->off;

	if (p->chunk == THAW_HOLE || last->chunk == THAW_HOLE)
		return p->chunk == last->chunk;
	if ((p->chunk_off | last->chunk_off) & POOL_FLAG)
		return p->chunk == last->chunk && p->chunk_off == last->chunk_off + done;
	/* a run of whole chunks: it has come to a border exactly when its length is a multiple */
	return last->chunk_off == 0 && p->chunk_off == 0 && done % w->chunk_size == 0 &&
	       p->chunk == last->chunk + done / w->chunk_size;
}

static int add_extent(struct writer *w, const struct pending *p)
{
	struct writer_file *file = table_at(&w->files, p->ino);
	struct wextent *e;

	if (p->chunk == THAW_HOLE)
		file->hole_bytes += p->len;
	if (file->count) {
		e = table_at(&w->extents, w->extents.n - 1);
		if (continues(w, e, p))
			return 0;
	}
	if (!file->count)
		file->first = w->extents.n;
	e = table_push(&w->extents);
	if (!e)
		return -ENOMEM;
	*e = (struct wextent){ .off = p->off, .chunk = p->chunk, .chunk_off = p->chunk_off };
	file->count++;
	return 0;
}

/* move what is decided, in order, to the final table */
static int flush_pending(struct writer *w)
{
	while (w->pending_head < w->pending_tail && pending_at(w, w->pending_head)->decided) {
		int r = add_extent(w, pending_at(w, w->pending_head));

		if (r)
			return r;
		w->pending_head++;
	}
	return 0;
}

static int add_pending(struct writer *w, const struct pending *p)
{
	if (w->pending_tail - w->pending_head == w->cap_pending) {
		int r = grow_pending(w);

		if (r)
			return r;
	}
	*pending_at(w, w->pending_tail++) = *p;
	return p->decided ? flush_pending(w) : 0;
}

/* -- looking for known chunks ----------------------------------------------------------------- */

static uint64_t hash_of_chunk(const void *ctx, uint32_t number)
{
	const struct thaw_chunk *c = table_at(ctx, number);

	return le64_get(c->hash);
}

static uint64_t hash_of_base_chunk(const void *ctx, uint32_t number)
{
	struct image_chunk c;

	return image_chunk((struct image *)(uintptr_t)ctx, number, &c) ? 0 : c.hash;
}

static int index_base(struct dedup *d, struct image *base)
{
	uint64_t n = image_info(base)->n_chunks;

	d->hash = hash_of_base_chunk;
	d->ctx = base;
	for (uint32_t i = 0; i < n; i++) {
		struct image_chunk c;
		int r = image_chunk(base, i, &c);

		if (!r)
			r = dedup_add(d, c.hash, i);
		if (r)
			return r;
	}
	return 0;
}

/* the stored form of chunk @number of this image, decoded into @worker->check */
static int read_own_chunk(struct worker *worker, const struct thaw_chunk *c)
{
	struct writer *w = worker->w;
	const struct image_chunk entry = {
		.stored_off = le64_get(c->stored_off),
		.hash = le64_get(c->hash),
		.stored_len = le32_get(c->stored_len),
		.logical_len = le32_get(c->logical_len),
		.codec = c->codec,
		.shuffle = c->shuffle,
	};
	uint8_t *stored = chunk_ctx_room(worker->ctx, entry.stored_len);
	int r;

	if (!stored)
		return -ENOMEM;
	r = output_read_back(w->opts.out, stored, entry.stored_len, entry.stored_off);
	return r ? r : chunk_decode(worker->ctx, &entry, w->chunk_size, stored, worker->check);
}

static int read_exactly(int fd, void *buf, size_t len, uint64_t off)
{
	uint8_t *p = buf;

	while (len) {
		ssize_t n = pread(fd, p, len, (off_t)off);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			return -ENODATA;
		p += n;
		off += (uint64_t)n;
		len -= (size_t)n;
	}
	return 0;
}

/* the source again, for an output that cannot be read; only in the caller's thread */
static int read_origin(struct worker *worker, uint32_t number, uint32_t len)
{
	const struct origin *o = table_at(&worker->w->origins, number);
	_cleanup_close_ int fd = worker->w->opts.reopen(worker->w->opts.ctx, o->ino);

	return fd < 0 ? fd : read_exactly(fd, worker->check, len, o->off);
}

/* is chunk @number (a copy of its entry in @c) the same bytes? 1, 0, -errno */
static int same_as_chunk(struct worker *worker, uint32_t number, const struct thaw_chunk *c, const struct job *job)
{
	uint16_t base = le16_get(c->base);
	int r;

	if (le32_get(c->logical_len) != job->len)
		return 0;
	if (base)
		r = image_chunk_read(worker->w->used_bases[base - 1], worker->ctx, (uint32_t)le64_get(c->stored_off),
				     worker->check, NULL);
	else if (worker->w->opts.out->seekable)
		r = read_own_chunk(worker, c);
	else
		r = read_origin(worker, number, job->len);
	if (r) {
		log_error("cannot compare with chunk %u of '%s': %s", number, worker->w->opts.out->name,
			  r == -EBADMSG ? "it was not written as it should be" : strerror(-r));
		return r == -EBADMSG ? -EIO : r;
	}
	return memcmp(worker->check, job->in, job->len) == 0;
}

/* the first committed chunk with these bytes: 1 (number in job->known), 0, -errno */
static int find_known(struct worker *worker, struct job *job)
{
	struct writer *w = worker->w;
	size_t cursor = 0;

	for (;;) {
		struct thaw_chunk copy;
		uint32_t number;
		int r;

		pthread_mutex_lock(&w->lock);
		number = dedup_next(&w->known, job->hash, &cursor);
		if (number != DEDUP_NONE)
			copy = *(struct thaw_chunk *)table_at(&w->chunks, number);
		pthread_mutex_unlock(&w->lock);
		if (number == DEDUP_NONE)
			return 0;
		r = same_as_chunk(worker, number, &copy, job);
		if (r) {
			job->known = number;
			return r;
		}
	}
}

/* the same in the bases. A base chunk that cannot be read is as good as none. */
static bool find_in_bases(struct worker *worker, struct job *job)
{
	struct writer *w = worker->w;

	for (unsigned b = 0; b < w->opts.n_bases; b++) {
		size_t cursor = 0;
		uint32_t number;

		while ((number = dedup_next(&w->base_known[b], job->hash, &cursor)) != DEDUP_NONE) {
			struct image_chunk c;

			if (image_chunk(w->opts.bases[b], number, &c) || c.logical_len != job->len ||
			    image_chunk_read(w->opts.bases[b], worker->ctx, number, worker->check, NULL) ||
			    memcmp(worker->check, job->in, job->len) != 0 ||
			    image_chunk_resolve(w->opts.bases[b], number, &job->base, &job->known))
				continue;
			return true;
		}
	}
	return false;
}

/* is there a job before this one, not committed yet, with the same hash? Also publishes this one's hash. */
static bool hash_in_flight(struct writer *w, struct job *job, uint64_t seq)
{
	LOCK_GUARD(&w->lock);

	job->hashed = true;
	for (uint64_t s = w->committed; s < seq; s++) {
		const struct job *other = &w->jobs[s % w->n_jobs];

		if (other->hashed && other->hash == job->hash && other->len == job->len)
			return true;
	}
	return false;
}

/* -- workers ---------------------------------------------------------------------------------- */

static int encode_job(struct worker *worker, struct job *job)
{
	job->verdict = JOB_ENCODED;
	return encode(worker->encoder, job->in, job->len, job->out, &job->encoded);
}

static int process(struct worker *worker, struct job *job, uint64_t seq)
{
	struct writer *w = worker->w;
	int r;

	if (job->input) {
		r = read_exactly(job->input->fd, job->in, job->len, job->off);
		if (r == -ENODATA) {
			if (!atomic_exchange(&w->said_shorter, true)) /* not for each piece at work */
				log_error("cannot pack '%s': it became shorter while it was read", job->input->name);
			return -EAGAIN;
		}
		if (r) {
			log_error("cannot read '%s' at offset %llu: %s", job->input->name, (unsigned long long)job->off,
				  strerror(-r));
			return r;
		}
	}
	if (!job->is_pool && is_zero(job->in, job->len)) {
		job->verdict = JOB_ZERO;
		return 0;
	}
	job->hash = XXH3_64bits(job->in, job->len);
	if (w->opts.out->seekable) {
		r = find_known(worker, job);
		if (r) {
			job->verdict = JOB_KNOWN;
			return r < 0 ? r : 0;
		}
	}
	job->verdict = JOB_UNDECIDED;
	if (hash_in_flight(w, job, seq))
		return 0;
	if (find_in_bases(worker, job)) {
		job->verdict = JOB_IN_BASE;
		return 0;
	}
	return encode_job(worker, job);
}

static void *work(void *arg)
{
	struct worker *worker = arg;
	struct writer *w = worker->w;

	pthread_mutex_lock(&w->lock);
	for (;;) {
		struct job *job;
		uint64_t seq;
		int r;

		while (!w->quit && w->taken == w->submitted)
			pthread_cond_wait(&w->work, &w->lock);
		if (w->quit)
			break;
		seq = w->taken++;
		job = &w->jobs[seq % w->n_jobs];
		pthread_mutex_unlock(&w->lock);
		r = process(worker, job, seq);
		pthread_mutex_lock(&w->lock);
		job->error = r;
		job->done = true;
		if (seq == w->committed)
			pthread_cond_signal(&w->finished);
	}
	pthread_mutex_unlock(&w->lock);
	return NULL;
}

/* -- committing ------------------------------------------------------------------------------- */

int writer_use_base(struct writer *w, struct image *base)
{
	for (unsigned i = 0; i < w->n_used_bases; i++)
		if (!memcmp(image_info(w->used_bases[i])->id, image_info(base)->id, 16))
			return (int)i + 1;
	if (w->n_used_bases == THAW_MAX_BASES) {
		log_error("cannot refer to more than %u bases; pack with --flatten", THAW_MAX_BASES);
		return -EMLINK;
	}
	/* room for all was made at the start, so workers may read the entries that chunks name already */
	w->used_bases[w->n_used_bases++] = base;
	return (int)w->n_used_bases;
}

/* append a chunk's entry and make it findable; its number, or -errno */
static int64_t add_chunk(struct writer *w, const struct thaw_chunk *c, const struct job *job)
{
	LOCK_GUARD(&w->lock);
	uint32_t number = (uint32_t)w->chunks.n;
	struct thaw_chunk *slot;

	if (w->chunks.n >= THAW_MAX_ENTRIES)
		return -EOVERFLOW;
	slot = table_push(&w->chunks);
	if (!slot)
		return -ENOMEM;
	*slot = *c;
	if (!w->opts.out->seekable) {
		struct origin *o = table_push(&w->origins);

		if (!o)
			return -ENOMEM;
		/* a pool has no single place in the source, and bytes that were given have none at all */
		if (!job->input)
			return number;
		*o = (struct origin){ .ino = job->ino, .off = job->off };
	}
	return dedup_add(&w->known, job->hash, number) ? -ENOMEM : (int64_t)number;
}

static int64_t commit_base_chunk(struct writer *w, struct job *job)
{
	int base = writer_use_base(w, job->base);
	const struct thaw_chunk c = {
		.stored_off = le64_make(job->known),
		.hash = le64_make(job->hash),
		.logical_len = le32_make(job->len),
		.base = le16_make((uint16_t)base),
	};

	if (base < 0)
		return base;
	w->counts.base_bytes += job->len;
	w->counts.n_base++;
	return add_chunk(w, &c, job);
}

static void count_chunk(struct writer_counts *counts, const struct thaw_chunk *c)
{
	counts->chunk_bytes += le32_get(c->logical_len);
	counts->stored_bytes += le32_get(c->stored_len);
	counts->n_raw += c->codec == THAW_RAW;
	counts->n_zstd += c->codec == THAW_ZSTD;
	counts->n_lz4 += c->codec == THAW_LZ4;
	counts->n_shuffled += c->shuffle != 0;
}

static int64_t commit_stored_chunk(struct writer *w, struct job *job)
{
	const struct encoded *e = &job->encoded;
	struct thaw_chunk c;
	int r = e->codec == THAW_RAW ? output_align(w->opts.out, THAW_PAGE) : 0;

	if (r)
		return r;
	c = (struct thaw_chunk){
		.stored_off = le64_make(w->opts.out->pos),
		.hash = le64_make(job->hash),
		.stored_len = le32_make(e->len),
		.logical_len = le32_make(job->len),
		.codec = e->codec,
		.shuffle = e->shuffle,
	};
	r = output_write(w->opts.out, e->data, e->len);
	if (!r && w->opts.stored)
		r = w->opts.stored(w->opts.ctx, &c, e->data);
	if (r)
		return r;
	count_chunk(&w->counts, &c);
	return add_chunk(w, &c, job);
}

/* the chunk that a job has become, or THAW_HOLE, or -errno */
static int64_t decide(struct writer *w, struct job *job)
{
	int r;

	if (job->verdict == JOB_ZERO)
		return THAW_HOLE;
	if (job->verdict == JOB_KNOWN)
		return job->known;
	/* an equal one may have been committed since the worker looked */
	r = find_known(&w->committer, job);
	if (r)
		return r < 0 ? r : (int64_t)job->known;
	if (job->verdict == JOB_UNDECIDED) {
		if (find_in_bases(&w->committer, job))
			job->verdict = JOB_IN_BASE;
		else if ((r = encode_job(&w->committer, job)))
			return r;
	}
	return job->verdict == JOB_IN_BASE ? commit_base_chunk(w, job) : commit_stored_chunk(w, job);
}

static void wait_for(struct writer *w, struct job *job)
{
	LOCK_GUARD(&w->lock);

	while (!job->done)
		pthread_cond_wait(&w->finished, &w->lock);
}

static int release_input(struct writer *w, struct writer_input *input)
{
	if (--input->refs)
		return 0;
	w->open_inputs--;
	return w->opts.input_done(w->opts.ctx, input);
}

static int place(struct writer *w, const struct job *job, uint32_t chunk)
{
	struct pending *p;

	if (job->is_pool) {
		*(uint32_t *)table_at(&w->pools, job->pool) = chunk;
		return 0;
	}
	p = pending_at(w, job->pending);
	p->chunk = chunk;
	p->decided = true;
	return flush_pending(w);
}

/* finish the oldest job */
static void commit_one(struct writer *w)
{
	struct job *job = &w->jobs[w->committed % w->n_jobs];
	int r;

	wait_for(w, job);
	r = job->error;
	if (!r && !w->error) {
		int64_t chunk = decide(w, job);

		r = chunk < 0 ? (int)chunk : place(w, job, (uint32_t)chunk);
	}
	if (job->input) {
		int r2 = release_input(w, job->input);

		r = r ? r : r2;
	}
	if (r && !w->error)
		w->error = r;
	pthread_mutex_lock(&w->lock);
	job->hashed = job->done = false;
	w->committed++;
	pthread_mutex_unlock(&w->lock);
}

/* a free slot of the ring */
static struct job *next_job(struct writer *w)
{
	struct job *job;

	while (w->submitted - w->committed == w->n_jobs)
		commit_one(w);
	job = &w->jobs[w->submitted % w->n_jobs];
	job->input = NULL;
	job->is_pool = false;
	job->error = 0;
	return job;
}

static void submit(struct writer *w)
{
	LOCK_GUARD(&w->lock);

	w->submitted++;
	pthread_cond_signal(&w->work);
}

static int stopped(struct writer *w)
{
	if (!w->error && stop_asked(w->opts.stop))
		w->error = -EINTR;
	return w->error;
}

/* -- pieces ----------------------------------------------------------------------------------- */

int writer_hole(struct writer *w, uint32_t ino, uint64_t off, uint64_t len)
{
	const struct pending p = { .off = off, .len = len, .ino = ino, .chunk = THAW_HOLE, .decided = true };
	int r = w->error ? w->error : add_pending(w, &p);

	return w->error = r;
}

/* a job for a piece of a file, not submitted yet; NULL: see w->error */
static struct job *piece_job(struct writer *w, uint32_t ino, uint64_t off, uint32_t len)
{
	const struct pending p = { .off = off, .len = len, .ino = ino };
	struct job *job;

	if (stopped(w))
		return NULL;
	job = next_job(w);
	if (w->error)
		return NULL;
	w->error = add_pending(w, &p);
	if (w->error)
		return NULL;
	job->pending = w->pending_tail - 1;
	job->ino = ino;
	job->off = off;
	job->len = len;
	return job;
}

int writer_chunk(struct writer *w, struct writer_input *input, uint64_t off, uint32_t len)
{
	struct job *job = piece_job(w, input->ino, off, len);

	if (!job)
		return w->error;
	job->input = input;
	input->refs++;
	submit(w);
	return 0;
}

int writer_bytes(struct writer *w, uint32_t ino, uint64_t off, const void *bytes, uint32_t len)
{
	struct job *job = piece_job(w, ino, off, len);

	if (!job)
		return w->error;
	memcpy(job->in, bytes, len);
	submit(w);
	return 0;
}

static int close_pool(struct writer *w)
{
	struct job *job;
	uint8_t *buf;

	if (!w->pool_len)
		return w->error;
	job = next_job(w);
	if (w->error)
		return w->error;
	buf = job->in;
	job->in = w->pool_buf;
	w->pool_buf = buf;
	job->len = w->pool_len;
	job->is_pool = true;
	job->pool = (uint32_t)w->pools.n - 1;
	w->pool_len = 0;
	submit(w);
	return 0;
}

int writer_small(struct writer *w, uint32_t ino, uint64_t off, const void *bytes, uint32_t len)
{
	struct pending p = { .off = off, .len = len, .ino = ino, .decided = true };
	int r;

	if (stopped(w))
		return w->error;
	if (is_zero(bytes, len))
		return writer_hole(w, ino, off, len);
	if (len > w->chunk_size - w->pool_len && (r = close_pool(w)))
		return r;
	if (!w->pool_len && !table_push(&w->pools))
		return w->error = -ENOMEM;
	p.chunk = (uint32_t)w->pools.n - 1;
	p.chunk_off = w->pool_len | POOL_FLAG;
	memcpy(w->pool_buf + w->pool_len, bytes, len);
	w->pool_len += len;
	return w->error = add_pending(w, &p);
}

int writer_input_begin(struct writer *w, struct writer_input *input)
{
	input->refs = 1;
	w->open_inputs++;
	while (w->open_inputs > MAX_OPEN_INPUTS && w->committed < w->submitted)
		commit_one(w);
	return w->error;
}

int writer_input_end(struct writer *w, struct writer_input *input)
{
	int r = release_input(w, input);

	if (!w->error)
		w->error = r;
	return w->error;
}

int writer_drain(struct writer *w)
{
	int r = close_pool(w);

	while (w->committed < w->submitted)
		commit_one(w);
	if (!w->error && r)
		w->error = r;
	if (!w->error)
		w->error = flush_pending(w);
	return w->error;
}

/* -- results ---------------------------------------------------------------------------------- */

const struct table *writer_chunks(const struct writer *w)
{
	return &w->chunks;
}

uint64_t writer_n_extents(const struct writer *w)
{
	return w->extents.n;
}

struct thaw_extent writer_extent(const struct writer *w, uint64_t index)
{
	const struct wextent *e = table_at(&w->extents, index);
	uint32_t chunk = e->chunk, chunk_off = e->chunk_off;

	if (chunk != THAW_HOLE && (chunk_off & POOL_FLAG)) {
		chunk = *(uint32_t *)table_at(&w->pools, chunk);
		chunk_off &= ~POOL_FLAG;
	}
	return (struct thaw_extent){
		.off = le64_make(e->off),
		.chunk = le32_make(chunk),
		.chunk_off = le32_make(chunk == THAW_HOLE ? 0 : chunk_off),
	};
}

struct writer_file writer_file(const struct writer *w, uint32_t ino)
{
	return *(struct writer_file *)table_at(&w->files, ino);
}

const struct writer_counts *writer_counts(const struct writer *w)
{
	return &w->counts;
}

unsigned writer_n_used_bases(const struct writer *w)
{
	return w->n_used_bases;
}

struct image *writer_used_base(const struct writer *w, unsigned index)
{
	return w->used_bases[index];
}

/* -- set up and take down --------------------------------------------------------------------- */

static int set_up_worker(struct writer *w, struct worker *worker)
{
	worker->w = w;
	worker->encoder = encoder_new(&w->encoder_opts);
	worker->ctx = chunk_ctx_new();
	worker->check = malloc(w->chunk_size);
	return worker->encoder && worker->ctx && worker->check ? 0 : -ENOMEM;
}

static void release_worker(struct worker *worker)
{
	encoder_free(worker->encoder);
	chunk_ctx_free(worker->ctx);
	free(worker->check);
}

/* what is there already comes first in the table, as it does in the file; what the source no longer has just stays */
static int take_held(struct writer *w)
{
	for (size_t i = 0; w->opts.held && i < w->opts.held->n; i++) {
		const struct thaw_chunk *c = table_at(w->opts.held, i);
		struct thaw_chunk *slot = table_push(&w->chunks);

		if (!slot)
			return -ENOMEM;
		*slot = *c;
		if (dedup_add(&w->known, le64_get(c->hash), (uint32_t)i))
			return -ENOMEM;
		count_chunk(&w->counts, c);
	}
	w->counts.held_bytes = w->counts.chunk_bytes;
	return 0;
}

static int set_up_tables(struct writer *w)
{
	table_init(&w->chunks, sizeof(struct thaw_chunk));
	table_init(&w->origins, sizeof(struct origin));
	table_init(&w->pools, sizeof(uint32_t));
	table_init(&w->extents, sizeof(struct wextent));
	table_init(&w->files, sizeof(struct writer_file));
	w->known.hash = hash_of_chunk;
	w->known.ctx = &w->chunks;
	for (uint32_t i = 0; i < w->opts.n_inodes; i++)
		if (!table_push(&w->files))
			return -ENOMEM;
	w->used_bases = calloc(THAW_MAX_BASES, sizeof(struct image *));
	w->base_known = calloc(w->opts.n_bases + 1, sizeof(*w->base_known));
	if (!w->used_bases || !w->base_known)
		return -ENOMEM;
	for (unsigned i = 0; i < w->opts.n_bases; i++) {
		int r = index_base(&w->base_known[i], w->opts.bases[i]);

		if (r)
			return r;
	}
	return take_held(w);
}

static int set_up_ring(struct writer *w)
{
	size_t bound = encoder_bound(w->chunk_size);
	unsigned per_thread = BYTES_PER_THREAD / (2 * w->chunk_size);

	per_thread = per_thread < 1 ? 1 : per_thread > JOBS_PER_THREAD ? JOBS_PER_THREAD : per_thread;
	w->n_jobs = w->n_workers * per_thread + 2;
	w->jobs = calloc(w->n_jobs, sizeof(*w->jobs));
	w->workers = calloc(w->n_workers, sizeof(*w->workers));
	w->pool_buf = malloc(w->chunk_size);
	if (!w->jobs || !w->workers || !w->pool_buf)
		return -ENOMEM;
	for (unsigned i = 0; i < w->n_jobs; i++) {
		w->jobs[i].in = malloc(w->chunk_size);
		w->jobs[i].out = malloc(bound);
		if (!w->jobs[i].in || !w->jobs[i].out)
			return -ENOMEM;
	}
	return 0;
}

static int start_workers(struct writer *w)
{
	int r = set_up_worker(w, &w->committer);

	for (unsigned i = 0; i < w->n_workers && !r; i++) {
		r = set_up_worker(w, &w->workers[i]);
		if (!r)
			r = -pthread_create(&w->workers[i].thread, NULL, work, &w->workers[i]);
		w->workers[i].started = !r;
	}
	return r;
}

int writer_new(const struct writer_opts *opts, struct writer **ret)
{
	struct writer *w = calloc(1, sizeof(*w));
	int r;

	if (!w)
		return -ENOMEM;
	w->opts = *opts;
	w->encoder_opts = opts->encoder;
	w->chunk_size = opts->encoder.chunk_size;
	w->n_workers = opts->threads;
	pthread_mutex_init(&w->lock, NULL);
	pthread_cond_init(&w->work, NULL);
	pthread_cond_init(&w->finished, NULL);
	r = set_up_tables(w);
	if (!r)
		r = set_up_ring(w);
	if (!r)
		r = start_workers(w);
	if (r) {
		writer_free(w);
		return r;
	}
	*ret = w;
	return 0;
}

static void stop_workers(struct writer *w)
{
	/* jobs in flight hold inputs: let them end, ignoring what they say */
	if (!w->error)
		w->error = -ECANCELED;
	while (w->committed < w->submitted)
		commit_one(w);
	pthread_mutex_lock(&w->lock);
	w->quit = true;
	pthread_cond_broadcast(&w->work);
	pthread_mutex_unlock(&w->lock);
	for (unsigned i = 0; w->workers && i < w->n_workers; i++) {
		if (w->workers[i].started)
			pthread_join(w->workers[i].thread, NULL);
		release_worker(&w->workers[i]);
	}
	release_worker(&w->committer);
}

void writer_free(struct writer *w)
{
	if (!w)
		return;
	stop_workers(w);
	for (unsigned i = 0; w->jobs && i < w->n_jobs; i++) {
		free(w->jobs[i].in);
		free(w->jobs[i].out);
	}
	for (unsigned i = 0; w->base_known && i < w->opts.n_bases; i++)
		dedup_release(&w->base_known[i]);
	free(w->jobs);
	free(w->workers);
	free(w->pool_buf);
	free(w->pending);
	free(w->used_bases);
	free(w->base_known);
	dedup_release(&w->known);
	table_release(&w->chunks);
	table_release(&w->origins);
	table_release(&w->pools);
	table_release(&w->extents);
	table_release(&w->files);
	pthread_cond_destroy(&w->work);
	pthread_cond_destroy(&w->finished);
	pthread_mutex_destroy(&w->lock);
	free(w);
}
