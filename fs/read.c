/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Locks: a request that holds pins never waits for a buffer (cache.h): when none is free it copies what it has
 * gathered into its own buffer, lets its pins go and waits with empty hands.
 */
#include "fs/read.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "common/bytes.h"
#include "common/cleanup.h"
#include "common/log.h"
#include "fs/record.h"
#include "fs/view.h"

#define MAX_PINS     16
#define ZERO_BYTES   ((size_t)64 << 10)
#define BUFFER_BYTES ((size_t)1 << 20) /* the largest read the kernel sends, at first */
#define TRIES        4
#define SMALL_BYTES  16384u /* less than any read-ahead */
#define PUSH_AT_ASK  2      /* on the first, sparse access would fill the page cache */

/* written once at start, so that its pages are there when a reply is sent from them */
static char zeros[ZERO_BYTES];

struct reader {
	struct fs *fs;
	struct chunk_ctx *ctx;
	char *buf;
	size_t buf_room;
	/* what is being gathered */
	struct iovec *iov;
	int n_iov;
	struct cache_ref *pins[MAX_PINS];
	int n_pins;
	bool spilled; /* all bytes so far are in buf, and so will the rest be */
	bool had_data;
	uint64_t push_at;
	size_t len;
};

int read_file_init(struct slot *slot, const struct node *node, struct read_file *ret)
{
	struct read_file file = { .slot = slot, .number = node->number, .node = node_encode(node) };
	int err = slot_image(slot, &file.img);

	if (err)
		return err;
	if (node->kind == NODE_MEMBER) {
		struct image_inode inode;

		err = image_inode(file.img, node->number, &inode);
		if (err)
			return err == -ENOENT ? -ESTALE : err;
		if (!S_ISREG(inode.mode))
			return S_ISDIR(inode.mode) ? -EISDIR : -EINVAL;
		file.size = inode.size;
	} else {
		struct views *views;
		struct view_node view;

		err = slot_views(slot, &views);
		if (!err)
			err = views_node(views, node->number, &view);
		if (!err && view.is_dir)
			err = -EISDIR;
		if (!err)
			err = image_space(file.img, view.space, &file.space);
		if (!err)
			err = image_view_size(file.img, &file.space, &file.size);
		if (err)
			return err;
		file.is_view = true;
	}
	*ret = file;
	return 0;
}

/* the segment at @off lies in a base that is not to be had */
static int map_missing(const struct read_file *file, uint64_t off, struct image_run *ret)
{
	struct image_segment seg;
	uint32_t index;
	int err = image_segment_at(file->img, &file->space, off, &index);

	if (!err)
		err = image_segment(file->img, &file->space, index, &seg);
	if (err)
		return err;
	*ret = (struct image_run){ .off = off, .len = seg.addr + seg.len - off, .kind = RUN_ABSENT };
	return 0;
}

int read_map(const struct read_file *file, uint64_t off, struct image_run *ret)
{
	int err;

	if (!file->is_view)
		return image_map(file->img, file->number, off, ret);
	err = image_map_view(file->img, &file->space, off, ret);
	return err == -ENOENT ? map_missing(file, off, ret) : err;
}

int read_seek(const struct read_file *file, uint64_t off, bool hole, uint64_t *ret_off)
{
	if (!file->is_view)
		return image_seek(file->img, file->number, off, hole, ret_off);
	while (off < file->size) {
		struct image_run run;
		int err = read_map(file, off, &run);

		if (err)
			return err;
		if ((run.kind == RUN_HOLE) == hole) {
			*ret_off = off;
			return 0;
		}
		off = run.off + run.len;
	}
	/* every file ends with a hole that has no bytes */
	if (!hole || off > file->size)
		return -ENXIO;
	*ret_off = file->size;
	return 0;
}

/* fault them in: not between read(2) and write(2) on /dev/fuse */
static void touch_zeros(void)
{
	/* volatile, or the compiler knows that they are zero already */
	for (size_t i = 0; i < ZERO_BYTES; i += 4096)
		*(volatile char *)&zeros[i] = 0;
}

int reader_new(struct fs *fs, struct reader **ret)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct reader *reader = calloc(1, sizeof(*reader));

	if (!reader)
		return -ENOMEM;
	reader->fs = fs;
	reader->ctx = chunk_ctx_new();
	reader->buf = malloc(BUFFER_BYTES);
	reader->buf_room = BUFFER_BYTES;
	if (!reader->ctx || !reader->buf) {
		reader_free(reader);
		return -ENOMEM;
	}
	pthread_once(&once, touch_zeros);
	*ret = reader;
	return 0;
}

void reader_free(struct reader *reader)
{
	if (!reader)
		return;
	chunk_ctx_free(reader->ctx);
	free(reader->buf);
	free(reader);
}

/* -- errors ----------------------------------------------------------------------------------- */

/* the same failure again and again is one line in ten seconds */
static bool said_lately(const struct image *img, uint32_t chunk, uint64_t off)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static struct {
		const struct image *img;
		uint32_t chunk;
		uint64_t off, when;
	} said[32];
	uint64_t now = stats_now_ns();
	size_t oldest = 0;

	LOCK_GUARD(&lock);
	for (size_t i = 0; i < ARRAY_SIZE(said); i++) {
		if (said[i].when < said[oldest].when)
			oldest = i;
		if (said[i].when && said[i].img == img && said[i].chunk == chunk && said[i].off == off &&
		    now - said[i].when < 10000000000u)
			return true;
	}
	said[oldest].img = img;
	said[oldest].chunk = chunk;
	said[oldest].off = off;
	said[oldest].when = now;
	return false;
}

static void log_failure(const struct read_file *file, const struct image_run *run, const char *what)
{
	_cleanup_free_ char *path = NULL;
	const char *name = slot_path(file->slot);
	uint32_t chunk = run->kind == RUN_DATA ? run->chunk : THAW_HOLE;
	char where[48] = "";

	if (said_lately(file->img, chunk, run->off))
		return;
	if (run->kind == RUN_DATA)
		snprintf(where, sizeof(where), "chunk %u: ", run->chunk);
	if (file->is_view) {
		log_error("cannot read '%s': memory of '%.*s' at address 0x%llx: %s%s", name, (int)file->space.name_len,
			  file->space.name, (unsigned long long)run->off, where, what);
		return;
	}
	if (image_inode_path(file->img, file->number, &path))
		path = NULL;
	log_error("cannot read '%s': member '%s' at offset %llu: %s%s", name, path ? path : "?",
		  (unsigned long long)run->off, where, what);
}

static void count_error(struct stats *st, int err)
{
	enum stats_error kind = STATS_ERR_SOURCE;

	if (err == -EBADMSG)
		kind = STATS_ERR_DAMAGED;
	else if (err == -ENOENT)
		kind = STATS_ERR_BASE;
	else if (err == -ENODATA)
		kind = STATS_ERR_ABSENT;
	else if (err == -ENOMEM)
		kind = STATS_ERR_MEMORY;
	stats_add(&st->errors[kind], 1);
}

/* -- chunks ----------------------------------------------------------------------------------- */

struct load {
	struct reader *reader;
	const struct read_file *file;
	const struct image_run *run;
	struct image *img; /* where it is stored */
	uint32_t chunk;
};

/* an error that may be gone a moment later; damage and a missing base are not */
static bool is_transient(int err)
{
	return err != -EBADMSG && err != -ENOENT && err != -ENODATA && err != -EPROTONOSUPPORT;
}

/* in the thread that wants the chunk first; others wait for what it returns */
static int load_chunk(void *ctx, void *buf, uint32_t *ret_len)
{
	struct load *load = ctx;
	struct stats *st = load->reader->fs->stats;
	struct timespec pause = { .tv_nsec = 5000000 };
	uint64_t start = stats_now_ns();
	int err;

	for (int i = 0;; i++) {
		err = image_chunk_read(load->img, load->reader->ctx, load->chunk, buf, ret_len);
		if (!err || !is_transient(err) || i == TRIES - 1)
			break;
		stats_add(&st->source_retries, 1);
		nanosleep(&pause, NULL);
		pause.tv_nsec *= 4;
	}
	if (err) {
		log_failure(load->file, load->run, chunk_ctx_error(load->reader->ctx));
		return err;
	}
	stats_add(&st->decode_ns, stats_now_ns() - start);
	stats_add(&st->decoded_chunks, 1);
	stats_add(&st->decoded_bytes, *ret_len);
	return 0;
}

int reader_chunk(struct reader *reader, const struct read_file *file, const struct image_run *run, unsigned flags,
		 struct cache_ref **ret)
{
	struct load load = { .reader = reader, .file = file, .run = run };
	struct cache_key key;
	int err = image_chunk_resolve(run->img, run->chunk, &load.img, &load.chunk);

	if (err) {
		log_failure(file, run, err == -ENOENT ? "its base image is missing" : strerror(-err));
		if (!(flags & CACHE_AHEAD))
			count_error(reader->fs->stats, err);
		return -EIO;
	}
	/* chunk numbers of a base mean nothing in this image's working set */
	if (run->img == file->img && !(flags & CACHE_AHEAD))
		record_chunk(reader->fs->recorder, file->slot, file->img, run->chunk);
	memcpy(key.id, image_info(load.img)->id, sizeof(key.id));
	key.chunk = load.chunk;
	err = cache_get(reader->fs->cache, &key, image_info(load.img)->chunk_size, flags, load_chunk, &load, ret);
	if (err == -EAGAIN && flags & CACHE_NOWAIT)
		return err;
	if (!err && !range_inside(run->chunk_off, run->len, cache_len(*ret))) {
		cache_put(reader->fs->cache, *ret);
		log_failure(file, run, "the index wants more bytes than it has");
		err = -EBADMSG;
	}
	if (err && !(flags & CACHE_AHEAD))
		count_error(reader->fs->stats, err);
	return err ? -EIO : 0;
}

/* -- gathering -------------------------------------------------------------------------------- */

static void drop_pins(struct reader *reader)
{
	while (reader->n_pins)
		cache_put(reader->fs->cache, reader->pins[--reader->n_pins]);
}

void reader_release(struct reader *reader)
{
	drop_pins(reader);
}

uint64_t reader_push_at(const struct reader *reader)
{
	return reader->push_at;
}

bool reader_had_data(const struct reader *reader)
{
	return reader->had_data;
}

/* from now on all bytes go to the reader's own buffer */
static void spill(struct reader *reader)
{
	size_t at = 0;

	if (reader->spilled)
		return;
	for (int i = 0; i < reader->n_iov; i++) {
		memcpy(reader->buf + at, reader->iov[i].iov_base, reader->iov[i].iov_len);
		at += reader->iov[i].iov_len;
	}
	reader->spilled = true;
	reader->n_iov = 0;
	drop_pins(reader);
}

static void add_bytes(struct reader *reader, const void *data, size_t len)
{
	if (!reader->spilled && reader->n_iov == READ_MAX_IOV)
		spill(reader);
	if (reader->spilled)
		memcpy(reader->buf + reader->len, data, len);
	else
		reader->iov[reader->n_iov++] = (struct iovec){ (void *)(uintptr_t)data, len };
	reader->len += len;
}

static void add_zeros(struct reader *reader, size_t len)
{
	for (size_t n; len; len -= n) {
		n = min_u64(len, ZERO_BYTES);
		add_bytes(reader, zeros, n);
	}
}

static int add_data(struct reader *reader, const struct read_file *file, const struct image_run *run)
{
	struct cache_ref *ref;
	int err;

	/* room for one more before it is pinned: spilling lets all pins go */
	if (reader->n_pins == MAX_PINS || reader->n_iov == READ_MAX_IOV)
		spill(reader);
	err = reader_chunk(reader, file, run, reader->n_pins ? CACHE_NOWAIT : 0, &ref);
	if (err == -EAGAIN) {
		spill(reader);
		err = reader_chunk(reader, file, run, 0, &ref);
	}
	if (err)
		return err;
	/* a second small read of a chunk: more will follow */
	if (run->len <= SMALL_BYTES && cache_len(ref) > run->len && cache_ask(ref) == PUSH_AT_ASK)
		reader->push_at = run->off;
	if (!reader->spilled)
		reader->pins[reader->n_pins++] = ref;
	add_bytes(reader, (const char *)cache_data(ref) + run->chunk_off, run->len);
	if (reader->spilled)
		cache_put(reader->fs->cache, ref);
	return 0;
}

static int add_run(struct reader *reader, const struct read_file *file, const struct image_run *run)
{
	switch (run->kind) {
	case RUN_HOLE:
		add_zeros(reader, run->len);
		return 0;
	case RUN_DATA:
		reader->had_data = true;
		return add_data(reader, file, run);
	case RUN_ABSENT:
		break;
	}
	log_failure(file, run, "the image does not have these bytes");
	count_error(reader->fs->stats, -ENODATA);
	return -EIO;
}

static int grow_buffer(struct reader *reader, size_t len)
{
	char *p;

	if (len <= reader->buf_room)
		return 0;
	p = realloc(reader->buf, len);
	if (!p)
		return -ENOMEM;
	reader->buf = p;
	reader->buf_room = len;
	return 0;
}

int reader_gather(struct reader *reader, const struct read_file *file, uint64_t off, size_t len, struct iovec *ret_iov)
{
	int err = grow_buffer(reader, len);

	reader->iov = ret_iov;
	reader->n_iov = 0;
	reader->spilled = false;
	reader->had_data = false;
	reader->push_at = READ_NO_PUSH;
	reader->len = 0;
	while (!err && reader->len < len) {
		struct image_run run;

		err = read_map(file, off + reader->len, &run);
		if (!err && run.len == 0)
			err = -EBADMSG;
		if (err) {
			/* the reader has logged what is wrong with the index */
			count_error(reader->fs->stats, err);
			err = -EIO;
			break;
		}
		run.len = min_u64(run.len, len - reader->len);
		err = add_run(reader, file, &run);
	}
	if (err) {
		drop_pins(reader);
		return err;
	}
	if (reader->spilled) {
		ret_iov[0] = (struct iovec){ reader->buf, reader->len };
		return 1;
	}
	return reader->n_iov;
}
