/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Locks: one, over the table, not held while decoding. The table is shared with workers before and after us, but only
 * one is active; what a killed one left half done is put right by hydrate_new().
 */
#include "fs/hydrate.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "common/bytes.h"
#include "common/cleanup.h"
#include "common/io.h"
#include "common/log.h"
#include "fs/ops.h"
#include "fs/read.h"

/* Linux 6.9; older headers do not have them */
struct backing_map {
	int32_t fd;
	uint32_t flags;
	uint64_t padding;
};
#define BACKING_OPEN  _IOW(229, 1, struct backing_map)
#define BACKING_CLOSE _IOW(229, 2, uint32_t)

struct hydrator {
	struct fs *fs;
	struct reader *reader;
	pthread_t thread;
	bool started;
	pthread_mutex_t lock;
	pthread_cond_t wake;
	_Atomic bool stop;
};

static struct stats_hydrate *table(const struct hydrator *h)
{
	return &h->fs->stats->hydrate;
}

static struct hydrate_file *find(const struct hydrator *h, uint64_t node)
{
	struct stats_hydrate *t = table(h);

	for (uint32_t i = 0; i < t->n; i++)
		if (t->files[i].node == node)
			return &t->files[i];
	return NULL;
}

/* an entry for a file that has none, which is one that nobody has open */
static struct hydrate_file *add(const struct hydrator *h, uint64_t node)
{
	struct stats_hydrate *t = table(h);
	struct hydrate_file *f = NULL;

	/* opens that were not counted: whether another file has any is no longer known */
	if (t->overflow)
		return NULL;
	for (uint32_t i = 0; i < t->n && !f; i++)
		if (t->files[i].state <= HYDRATE_WANTED && !t->files[i].cached && !t->files[i].passed)
			f = &t->files[i];
	if (!f && t->n == HYDRATE_FILES) {
		t->overflow = 1;
		log_warn("cannot hydrate more files: %d are open or hydrated", HYDRATE_FILES);
		return NULL;
	}
	if (!f)
		f = &t->files[t->n];
	memset(f, 0, sizeof(*f));
	f->node = node;
	if (f == &t->files[t->n])
		t->n++;
	return f;
}

static bool has_chunks(const struct node *node)
{
	return node->kind == NODE_MEMBER || node->kind == NODE_MEM;
}

uint32_t hydrate_opened(struct hydrator *h, const struct node *node)
{
	struct hydrate_file *f;
	uint64_t id = node_encode(node);

	if (!h || !has_chunks(node))
		return 0;
	LOCK_GUARD(&h->lock);
	f = find(h, id);
	if (!f)
		f = add(h, id);
	if (!f)
		return 0;
	f->used_ns = stats_now_ns();
	if (f->passed || (f->state == HYDRATE_READY && !f->cached)) {
		f->passed++;
		stats_add(&table(h)->opens, 1);
		return f->id;
	}
	f->cached++;
	if (f->state == HYDRATE_NONE && !table(h)->refused) {
		f->state = HYDRATE_WANTED;
		pthread_cond_signal(&h->wake);
	}
	return 0;
}

bool hydrate_has(struct hydrator *h, const struct node *node)
{
	const struct hydrate_file *f;

	if (!h || !has_chunks(node))
		return false;
	LOCK_GUARD(&h->lock);
	f = find(h, node_encode(node));
	return f && f->state >= HYDRATE_WANTED && f->state <= HYDRATE_READY;
}

void hydrate_closed(struct hydrator *h, const struct node *node, uint32_t id)
{
	struct hydrate_file *f;

	if (!h || !has_chunks(node))
		return;
	LOCK_GUARD(&h->lock);
	f = find(h, node_encode(node));
	if (f && id && f->passed)
		f->passed--;
	else if (f && !id && f->cached)
		f->cached--;
}

/* -- room ---------------------------------------------------------------------------------------- */

static void drop_backing(const struct hydrator *h, uint32_t id)
{
	if (ioctl(fuse_session_fd(h->fs->se), BACKING_CLOSE, &id))
		log_warn("cannot give a hydrated file back: %s", strerror(errno));
}

/* with the lock: let go of the file that nobody has open and was opened longest ago. Return: false if there is none */
static bool evict_one(const struct hydrator *h)
{
	struct stats_hydrate *t = table(h);
	struct hydrate_file *oldest = NULL;

	for (uint32_t i = 0; i < t->n; i++) {
		struct hydrate_file *f = &t->files[i];

		if (f->state == HYDRATE_READY && !f->passed && (!oldest || f->used_ns < oldest->used_ns))
			oldest = f;
	}
	if (!oldest)
		return false;
	oldest->state = HYDRATE_NONE;
	drop_backing(h, oldest->id);
	stats_sub(&t->used, oldest->bytes);
	stats_sub(&t->ready, 1);
	stats_add(&t->evictions, 1);
	return true;
}

static int reserve(struct hydrator *h, struct hydrate_file *f, uint64_t bytes)
{
	uint64_t limit = h->fs->cfg.hydrate_bytes;

	LOCK_GUARD(&h->lock);
	if (bytes > limit)
		return -EFBIG;
	while (stats_get(&table(h)->used) > limit - bytes)
		if (!evict_one(h))
			return -ENOSPC;
	f->bytes = bytes;
	stats_add(&table(h)->used, bytes);
	return 0;
}

/* -- decoding ------------------------------------------------------------------------------------ */

/* what the file's data takes, in whole pages */
static int measure(const struct read_file *file, uint64_t *ret)
{
	uint64_t sum = 0, last = 0;
	struct image_run run;

	for (uint64_t at = 0; at < file->size; at = run.off + run.len) {
		int err = read_map(file, at, &run);

		if (!err && run.len == 0)
			err = -EBADMSG;
		if (!err && run.kind == RUN_ABSENT)
			err = -ENODATA;
		if (err)
			return err;
		if (run.kind == RUN_HOLE)
			continue;
		last = max_u64(last, run.off & ~(uint64_t)4095);
		sum += align_up(run.off + run.len, 4096) - last;
		last = align_up(run.off + run.len, 4096);
	}
	*ret = sum;
	return 0;
}

static int decode(struct hydrator *h, const struct read_file *file, int fd)
{
	struct image_run run;
	int err = ftruncate(fd, (off_t)file->size) ? -errno : 0;

	for (uint64_t at = 0; !err && at < file->size; at = run.off + run.len) {
		struct cache_ref *ref;

		if (h->stop)
			return -ECANCELED;
		err = read_map(file, at, &run);
		if (err || run.kind == RUN_HOLE)
			continue;
		err = run.kind == RUN_DATA ? reader_chunk(h->reader, file, &run, CACHE_AHEAD, &ref) : -ENODATA;
		if (err)
			break;
		err = io_write_at(fd, (const char *)cache_data(ref) + run.chunk_off, run.len, run.off);
		cache_put(h->fs->cache, ref);
	}
	return err;
}

static int register_file(const struct hydrator *h, int fd, uint32_t *ret_id)
{
	struct backing_map map = { .fd = fd };
	int id = ioctl(fuse_session_fd(h->fs->se), BACKING_OPEN, &map);

	if (id <= 0)
		return id ? -errno : -EPROTO;
	*ret_id = (uint32_t)id;
	return 0;
}

static int fill(struct hydrator *h, struct hydrate_file *f, const struct read_file *file, int fd)
{
	uint64_t bytes;
	int err = measure(file, &bytes);

	if (!err)
		err = reserve(h, f, bytes);
	if (err)
		return err;
	err = decode(h, file, fd);
	if (err) {
		stats_sub(&table(h)->used, bytes);
		f->bytes = 0;
	}
	return err;
}

static int hydrate(struct hydrator *h, struct hydrate_file *f, const struct read_file *file)
{
	_cleanup_close_ int fd = open(h->fs->cfg.hydrate_dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	uint32_t id = 0;
	/* first, because the kernel may not permit it, as in a user namespace: then nothing needs decoding */
	int err = fd < 0 ? -errno : register_file(h, fd, &id);

	if (err == -EPERM) {
		table(h)->refused = 1;
		log_warn(
			"cannot hydrate files: the kernel does not permit passthrough here; they are served as without "
			"hydrate_dir");
		return -ECANCELED;
	}
	if (!err)
		err = fill(h, f, file, fd);
	if (err && id)
		drop_backing(h, id);
	if (err)
		return err;
	LOCK_GUARD(&h->lock);
	f->id = id;
	f->state = HYDRATE_READY;
	stats_add(&table(h)->ready, 1);
	return 0;
}

static void hydrate_node(struct hydrator *h, struct hydrate_file *f)
{
	struct slot *slot = NULL;
	struct read_file file;
	struct node node;
	int err = node_decode(f->node, &node);

	if (!err)
		err = slots_get(h->fs->slots, node.slot, &slot);
	if (!err)
		err = read_file_init(slot, &node, &file);
	if (!err)
		err = hydrate(h, f, &file);
	slot_put(slot);
	if (!err)
		return;
	LOCK_GUARD(&h->lock);
	/* no room is a matter of the moment: the next open tries again */
	f->state = err == -ENOSPC || err == -ECANCELED ? HYDRATE_NONE : HYDRATE_FAILED;
	if (err == -ECANCELED)
		return;
	stats_add(&table(h)->failed, 1);
	if (!atomic_exchange(&table(h)->last_error, -err))
		log_warn("cannot hydrate a file in '%s': %s; it is served as before", h->fs->cfg.hydrate_dir,
			 strerror(-err));
}

static void *work(void *arg)
{
	struct hydrator *h = arg;
	struct stats_hydrate *t = table(h);

	pthread_mutex_lock(&h->lock);
	while (!h->stop) {
		struct hydrate_file *f = NULL;

		for (uint32_t i = 0; i < t->n && !f; i++)
			if (t->files[i].state == HYDRATE_WANTED)
				f = &t->files[i];
		if (!f) {
			pthread_cond_wait(&h->wake, &h->lock);
			continue;
		}
		f->state = HYDRATE_RUNNING;
		pthread_mutex_unlock(&h->lock);
		hydrate_node(h, f);
		pthread_mutex_lock(&h->lock);
	}
	pthread_mutex_unlock(&h->lock);
	return NULL;
}

/* -- beginning and end --------------------------------------------------------------------------- */

/* what a killed worker was in the middle of begins anew; sums are made from what is true */
static void put_right(struct stats_hydrate *t)
{
	uint64_t used = 0, ready = 0;

	for (uint32_t i = 0; i < t->n; i++) {
		struct hydrate_file *f = &t->files[i];

		if (f->state == HYDRATE_RUNNING)
			f->state = HYDRATE_WANTED;
		if (f->state == HYDRATE_READY) {
			used += f->bytes;
			ready++;
		}
	}
	t->used = used;
	t->ready = ready;
}

int hydrate_new(struct fs *fs, struct hydrator **ret)
{
	struct hydrator *h = calloc(1, sizeof(*h));
	int err;

	if (!h)
		return -ENOMEM;
	h->fs = fs;
	pthread_mutex_init(&h->lock, NULL);
	pthread_cond_init(&h->wake, NULL);
	put_right(table(h));
	err = reader_new(fs, &h->reader);
	if (!err)
		err = -pthread_create(&h->thread, NULL, work, h);
	h->started = !err;
	if (err) {
		hydrate_free(h);
		return err;
	}
	*ret = h;
	return 0;
}

void hydrate_free(struct hydrator *h)
{
	if (!h)
		return;
	if (h->started) {
		{
			LOCK_GUARD(&h->lock);
			h->stop = true;
			pthread_cond_signal(&h->wake);
		}
		pthread_join(h->thread, NULL);
	}
	reader_free(h->reader);
	pthread_mutex_destroy(&h->lock);
	pthread_cond_destroy(&h->wake);
	free(h);
}
