/* SPDX-License-Identifier: Apache-2.0 */
#include "imgfmt/unpack_pool.h"
#include "common/stop.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "common/bytes.h"
#include "common/cleanup.h"
#include "common/log.h"

#define THREADS_MAX 256u
#define ITEM_BYTES  ((uint64_t)8 << 20)
#define SMALL_BYTES ((uint64_t)256 << 10) /* files up to here go in batches of this many bytes in all */
#define WRITE_BYTES                                                                                       \
	((size_t)256 << 10) /* still in the cache of the core that decoded it: 1 MiB costs twice the time \
			     */
#define FILES_MAX          256u
#define FDS_RESERVED       32u /* standard ones, the image, bases, the walk */
#define CACHED_CHUNKS      4u
#define PROGRESS_PERIOD_MS 100

/* -- directories and files -------------------------------------------------------------------- */

struct unpack_dir *unpack_dir_new(int fd)
{
	struct unpack_dir *dir = malloc(sizeof(*dir));

	if (!dir) {
		close(fd);
		return NULL;
	}
	dir->fd = fd;
	atomic_init(&dir->users, 1);
	return dir;
}

struct unpack_dir *unpack_dir_hold(struct unpack_dir *dir)
{
	atomic_fetch_add(&dir->users, 1);
	return dir;
}

void unpack_dir_put(struct unpack_dir *dir)
{
	if (!dir || atomic_fetch_sub(&dir->users, 1) != 1)
		return;
	close(dir->fd);
	free(dir);
}

void unpack_file_free(struct unpack_file *file)
{
	if (!file)
		return;
	if (file->fd >= 0)
		close(file->fd);
	unpack_dir_put(file->dir);
	free(file->path);
	free(file->own_name);
	free(file);
}

void pool_fail(struct unpack_pool *pool, int err)
{
	LOCK_GUARD(&pool->lock);
	if (!pool->err)
		pool->err = err;
	atomic_store(&pool->stopping, true);
	pthread_cond_broadcast(&pool->more);
	pthread_cond_broadcast(&pool->less);
}

/* with the lock held */
static void count_lost(struct unpack_pool *pool, int err)
{
	if (pool->image_err == 0 || err == -EBADMSG)
		pool->image_err = err;
	pool->n_failed++;
}

void pool_lost(struct unpack_pool *pool, int err)
{
	LOCK_GUARD(&pool->lock);
	count_lost(pool, err);
}

/* all bytes are there: metadata and the name. An error of the image leaves err in the file */
static void complete_file(struct unpack_pool *pool, struct unpack_file *file)
{
	int err = out_metadata(pool->img, &file->inode, file->fd, file->path, &pool->notes);

	if (!err && close(steal_fd(&file->fd)))
		err = -errno;
	if (!err)
		err = out_publish(file->dir->fd, file->temp, file->name);
	if (!err)
		return;
	atomic_store(&file->err, err);
	if (err != -EBADMSG) {
		log_error("cannot write '%s': %s", file->path, strerror(-err));
		pool_fail(pool, err);
	}
}

/* the last thread is done with it */
static void end_file(struct unpack_pool *pool, struct unpack_file *file)
{
	bool stopped = atomic_load(&pool->stopping);
	uint64_t size = file->inode.size;
	int err;

	if (!stopped && !atomic_load(&file->err))
		complete_file(pool, file);
	err = atomic_load(&file->err);
	if (err || stopped) {
		unlinkat(file->dir->fd, file->temp[0] ? file->temp : file->name, 0);
		if (file->lost)
			atomic_store(file->lost, true);
	}
	unpack_file_free(file);

	LOCK_GUARD(&pool->lock);
	if (err) {
		count_lost(pool, err);
	} else if (!stopped) {
		pool->n_files++;
		pool->n_bytes += size;
	}
	pool->n_in_flight--;
	pthread_cond_broadcast(&pool->less);
}

static void put_part(struct unpack_pool *pool, struct unpack_file *file)
{
	if (atomic_fetch_sub(&file->parts, 1) == 1)
		end_file(pool, file);
}

/* -- the threads ------------------------------------------------------------------------------ */

struct cached_chunk {
	struct image *img;
	uint32_t chunk, len;
	size_t room;
	uint64_t used; /* tick of the last use, 0: nothing in it */
	uint8_t *data;
};

struct worker {
	struct unpack_pool *pool;
	struct chunk_ctx *ctx;
	struct cached_chunk cache[CACHED_CHUNKS];
	uint64_t tick;
	uint8_t *out; /* decoded, not yet written: out_len bytes for out_off */
	size_t out_len;
	uint64_t out_off;
};

static void worker_release(struct worker *w)
{
	for (size_t i = 0; i < CACHED_CHUNKS; i++)
		free(w->cache[i].data);
	free(w->out);
	chunk_ctx_free(w->ctx);
}

static int worker_init(struct worker *w, struct unpack_pool *pool)
{
	memset(w, 0, sizeof(*w));
	w->pool = pool;
	w->ctx = chunk_ctx_new();
	/* a chunk is decoded to its place while there are less than WRITE_BYTES in it, so one more must fit */
	w->out = malloc(WRITE_BYTES + THAW_CHUNK_MAX);
	if (w->ctx && w->out)
		return 0;
	worker_release(w);
	memset(w, 0, sizeof(*w));
	return -ENOMEM;
}

static int flush(struct worker *w, struct unpack_file *file)
{
	size_t done = 0;

	while (done < w->out_len) {
		ssize_t n = pwrite(file->fd, w->out + done, w->out_len - done, (off_t)(w->out_off + done));
		int err = n < 0 ? -errno : n == 0 ? -EIO : 0;

		if (err == -EINTR)
			continue;
		if (err) {
			log_error("cannot write '%s' at offset %llu: %s", file->path,
				  (unsigned long long)(w->out_off + done), strerror(-err));
			pool_fail(w->pool, err);
			return err;
		}
		done += (size_t)n;
	}
	/* so that the disk writes while we decode, and not all at the end; where it does not work the end does all */
	if (!w->pool->opts->no_fsync)
		(void)sync_file_range(file->fd, (off_t)w->out_off, (off_t)w->out_len, SYNC_FILE_RANGE_WRITE);
	atomic_fetch_add(&w->pool->done_bytes, w->out_len);
	w->out_len = 0;
	return 0;
}

/* a file ends here, the others do not. Said once for each: more of it may be damaged, verify tells what */
static void lose(struct worker *w, struct unpack_file *file, int err, const struct image_run *run, const char *why)
{
	int none = 0;

	if (err == -ENOMEM)
		pool_fail(w->pool, err);
	if (!atomic_compare_exchange_strong(&file->err, &none, err))
		return;
	if (run)
		log_error("cannot unpack '%s': offset %llu: chunk %u: %s", file->path, (unsigned long long)run->off,
			  run->chunk, why ? why : chunk_ctx_error(w->ctx));
	else
		log_error("cannot unpack '%s': %s", file->path, why ? why : strerror(-err));
}

/* pieces of pooled chunks come one after the other, so the chunks used last are kept */
static int cached_chunk(struct worker *w, const struct image_run *run, const struct cached_chunk **ret)
{
	struct cached_chunk *c = &w->cache[0];
	size_t room = image_info(run->img)->chunk_size;
	int err;

	for (size_t i = 0; i < CACHED_CHUNKS; i++) {
		struct cached_chunk *at = &w->cache[i];

		if (at->used && at->img == run->img && at->chunk == run->chunk) {
			at->used = ++w->tick;
			*ret = at;
			return 0;
		}
		if (at->used < c->used)
			c = at;
	}
	c->used = 0;
	if (c->room < room) {
		free(c->data);
		c->room = 0;
		c->data = malloc(room);
		if (!c->data)
			return -ENOMEM;
		c->room = room;
	}
	err = image_chunk_read(run->img, w->ctx, run->chunk, c->data, &c->len);
	if (err)
		return err;
	c->img = run->img;
	c->chunk = run->chunk;
	c->used = ++w->tick;
	*ret = c;
	return 0;
}

/*
 * The bytes of a run, behind what is to be written already
 * @ret_why: set when the reader of the chunk has not said what is wrong
 */
static int decode_run(struct worker *w, const struct image_run *run, const char **ret_why)
{
	uint32_t chunk_size = image_info(run->img)->chunk_size, len = 0;
	const struct cached_chunk *c;
	bool in_place = run->chunk_off == 0 && run->len >= chunk_size / 2;
	int err;

	if (in_place)
		err = image_chunk_read(run->img, w->ctx, run->chunk, w->out + w->out_len, &len);
	else
		err = cached_chunk(w, run, &c);
	if (err)
		return err;
	if (!in_place)
		len = c->len;
	if (!range_inside(run->chunk_off, run->len, len)) {
		*ret_why = "it is shorter than the file needs";
		return -EBADMSG;
	}
	if (!in_place)
		memcpy(w->out + w->out_len, c->data + run->chunk_off, run->len);
	w->out_len += run->len;
	return 0;
}

static int write_data(struct worker *w, struct unpack_file *file, const struct image_run *run)
{
	const char *why = NULL;
	int err = 0;

	if (w->out_len && (w->out_off + w->out_len != run->off || w->out_len >= WRITE_BYTES))
		err = flush(w, file);
	if (err)
		return err;
	if (!w->out_len)
		w->out_off = run->off;
	err = decode_run(w, run, &why);
	if (err)
		lose(w, file, err, run, why);
	return err;
}

static void write_range(struct worker *w, struct unpack_file *file, uint64_t off, uint64_t end)
{
	struct image_run run = { .off = off };
	int err = 0;

	w->out_len = 0;
	while (!err && off < end) {
		if (atomic_load(&w->pool->stopping) || atomic_load(&file->err))
			return;
		err = image_map(w->pool->img, file->inode.ino, off, &run);
		if (err == -ENXIO || (!err && run.kind == RUN_ABSENT))
			err = -EBADMSG; /* only views have absent bytes */
		if (err) {
			lose(w, file, err, NULL, err == -EBADMSG ? "the index is damaged" : NULL);
			return;
		}
		run.len = min_u64(run.len, end - off);
		if (run.kind == RUN_DATA)
			err = write_data(w, file, &run);
		off += run.len;
	}
	if (!err)
		flush(w, file);
}

static void do_item(struct worker *w, const struct unpack_item *item)
{
	for (unsigned i = 0; i < item->n; i++) {
		struct unpack_file *file = item->file[i];

		if (item->n == 1)
			write_range(w, file, item->off, item->end);
		else
			write_range(w, file, 0, file->inode.size);
		put_part(w->pool, file);
	}
}

static void *work(void *arg)
{
	struct unpack_pool *pool = arg;
	struct unpack_item item;
	struct worker w;

	if (worker_init(&w, pool)) {
		log_error("cannot unpack '%s': %s", image_path(pool->img), strerror(ENOMEM));
		pool_fail(pool, -ENOMEM);
	}
	for (;;) {
		pthread_mutex_lock(&pool->lock);
		while (!pool->n_queued && !pool->closed)
			pthread_cond_wait(&pool->more, &pool->lock);
		if (!pool->n_queued) {
			pthread_mutex_unlock(&pool->lock);
			break;
		}
		item = pool->queue[pool->first];
		pool->first = (pool->first + 1) % UNPACK_QUEUE;
		pool->n_queued--;
		pthread_cond_broadcast(&pool->less);
		pthread_mutex_unlock(&pool->lock);
		do_item(&w, &item); /* when stopping it only lets go of the files */
	}
	if (w.ctx)
		worker_release(&w);
	return NULL;
}

/* -- the handing thread ------------------------------------------------------------------------ */

static unsigned files_limit(void)
{
	struct rlimit lim;
	rlim_t n = FILES_MAX;

	/* two descriptors a file: its own and its directory's */
	if (getrlimit(RLIMIT_NOFILE, &lim) == 0 && lim.rlim_cur != RLIM_INFINITY)
		n = lim.rlim_cur > FDS_RESERVED ? (lim.rlim_cur - FDS_RESERVED) / 2 : 0;
	return n < 4 ? 4 : n > FILES_MAX ? FILES_MAX : (unsigned)n;
}

int pool_start(struct unpack_pool *pool, struct image *img, const struct unpack_opts *opts)
{
	long n_cpu = sysconf(_SC_NPROCESSORS_ONLN);
	unsigned n = opts->threads ? opts->threads : n_cpu > 0 ? (unsigned)n_cpu : 1;
	pthread_condattr_t attr;
	int err = 0;

	memset(pool, 0, sizeof(*pool));
	pool->img = img;
	pool->opts = opts;
	pool->max_in_flight = files_limit();
	n = n > THREADS_MAX ? THREADS_MAX : n;
	pool->threads = calloc(n, sizeof(*pool->threads));
	if (!pool->threads)
		return -ENOMEM;
	pthread_mutex_init(&pool->lock, NULL);
	pthread_cond_init(&pool->more, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&pool->less, &attr);
	pthread_condattr_destroy(&attr);
	while (pool->n_threads < n && !err) {
		err = -pthread_create(&pool->threads[pool->n_threads], NULL, work, pool);
		pool->n_threads += !err;
	}
	/* fewer threads than wished are only slower */
	if (pool->n_threads)
		return 0;
	free(pool->threads);
	return err;
}

/* let time pass with the lock held: until something is done, at most a moment */
static void wait_a_moment(struct unpack_pool *pool)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	ts.tv_nsec += PROGRESS_PERIOD_MS * 1000000L;
	if (ts.tv_nsec >= 1000000000L) {
		ts.tv_nsec -= 1000000000L;
		ts.tv_sec++;
	}
	pthread_cond_timedwait(&pool->less, &pool->lock, &ts);
}

/* what is due between two steps. Return: the error that ended everything, or 0 */
static int look_around(struct unpack_pool *pool)
{
	const struct unpack_opts *opts = pool->opts;
	int err;

	if (stop_asked(opts->stop))
		pool_fail(pool, -EINTR);
	if (opts->progress)
		opts->progress(opts->ctx, atomic_load(&pool->done_bytes), pool->total_bytes);
	pthread_mutex_lock(&pool->lock);
	err = pool->err;
	pthread_mutex_unlock(&pool->lock);
	return err;
}

static void drop_item(struct unpack_pool *pool, const struct unpack_item *item)
{
	for (unsigned i = 0; i < item->n; i++)
		put_part(pool, item->file[i]);
}

/* queue it; when everything ends, let go of its files instead */
static int push(struct unpack_pool *pool, const struct unpack_item *item)
{
	bool queued = false;
	int err;

	while (!(err = look_around(pool)) && !queued) {
		LOCK_GUARD(&pool->lock);
		if (pool->n_queued == UNPACK_QUEUE) {
			wait_a_moment(pool);
			continue;
		}
		pool->queue[(pool->first + pool->n_queued++) % UNPACK_QUEUE] = *item;
		pthread_cond_signal(&pool->more);
		queued = true;
	}
	if (!queued)
		drop_item(pool, item);
	return err;
}

static int push_batch(struct unpack_pool *pool)
{
	struct unpack_item item = pool->batch;

	if (!item.n)
		return 0;
	item.off = 0;
	item.end = item.file[0]->inode.size;
	pool->batch.n = 0;
	pool->batch_bytes = 0;
	return push(pool, &item);
}

int pool_wait(struct unpack_pool *pool, unsigned max)
{
	unsigned in_flight;
	int err;

	if (max >= pool->max_in_flight)
		max = pool->max_in_flight - 1;
	for (;;) {
		err = look_around(pool);
		if (err)
			return err;
		pthread_mutex_lock(&pool->lock);
		in_flight = pool->n_in_flight;
		pthread_mutex_unlock(&pool->lock);
		if (in_flight <= max)
			return 0;
		/* those in the batch would never end by waiting */
		err = push_batch(pool);
		if (err)
			return err;
		LOCK_GUARD(&pool->lock);
		if (pool->n_in_flight > max && !pool->err)
			wait_a_moment(pool);
	}
}

/* cut a large file into items that hold about ITEM_BYTES, holes left out */
static int push_ranges(struct unpack_pool *pool, struct unpack_file *file)
{
	struct unpack_item item = { .file = { file }, .n = 1 };
	uint64_t size = file->inode.size;
	int err = 0;

	while (!err && item.end < size) {
		err = image_seek(pool->img, file->inode.ino, item.end, false, &item.off);
		if (err == -ENXIO)
			return 0; /* a hole to the end */
		if (err) {
			log_error("cannot unpack '%s': %s", file->path,
				  err == -EBADMSG ? "the index is damaged" : strerror(-err));
			atomic_store(&file->err, err);
			return 0;
		}
		/* on multiples, so that neighbours do not both decode a chunk in the middle of which they meet */
		item.end = min_u64(align_down(item.off, ITEM_BYTES) + ITEM_BYTES, size);
		atomic_fetch_add(&file->parts, 1);
		err = push(pool, &item);
	}
	return err;
}

int pool_put(struct unpack_pool *pool, struct unpack_file *file)
{
	uint64_t data = file->inode.size - min_u64(file->inode.hole_bytes, file->inode.size);
	int err;

	atomic_init(&file->parts, 1);
	pthread_mutex_lock(&pool->lock);
	pool->n_in_flight++;
	pthread_mutex_unlock(&pool->lock);
	if (file->inode.size <= SMALL_BYTES) {
		pool->batch.file[pool->batch.n++] = file;
		pool->batch_bytes += data;
		if (pool->batch.n == UNPACK_BATCH || pool->batch_bytes >= SMALL_BYTES)
			return push_batch(pool);
		return 0;
	}
	err = push_batch(pool);
	if (!err)
		err = push_ranges(pool, file);
	put_part(pool, file);
	return err;
}

int pool_finish(struct unpack_pool *pool)
{
	int err;

	if (push_batch(pool) == 0)
		pool_wait(pool, 0);
	pthread_mutex_lock(&pool->lock);
	pool->closed = true;
	pthread_cond_broadcast(&pool->more);
	pthread_mutex_unlock(&pool->lock);
	for (unsigned i = 0; i < pool->n_threads; i++)
		pthread_join(pool->threads[i], NULL);
	err = look_around(pool);
	pthread_cond_destroy(&pool->less);
	pthread_cond_destroy(&pool->more);
	pthread_mutex_destroy(&pool->lock);
	free(pool->threads);
	return err;
}
