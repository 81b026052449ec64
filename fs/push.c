/* SPDX-License-Identifier: Apache-2.0 */
/*
 * At most one chunk is pinned at a time, so that a push that waits keeps one buffer from those who serve. Pages that
 * several runs share (members of formats that are not aligned) are put together in a page of our own.
 */
#include "fs/push.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/bytes.h"
#include "fs/ops.h"

#define PAGE ((uint64_t)4096)

struct pusher {
	struct fs *fs;
	struct reader *reader;
	char page[PAGE];
};

int pusher_new(struct fs *fs, struct pusher **ret)
{
	struct pusher *pusher = calloc(1, sizeof(*pusher));
	int err;

	if (!pusher)
		return -ENOMEM;
	pusher->fs = fs;
	err = reader_new(fs, &pusher->reader);
	if (err) {
		free(pusher);
		return err;
	}
	*ret = pusher;
	return 0;
}

void pusher_free(struct pusher *pusher)
{
	if (!pusher)
		return;
	reader_free(pusher->reader);
	free(pusher);
}

static enum push_class class_of(const struct push_job *job, const struct image_run *run)
{
	return job->class ? job->class(job->ctx, run) : PUSH_WANTED;
}

static int map(const struct read_file *file, uint64_t at, uint64_t end, struct image_run *ret)
{
	int err = read_map(file, at, ret);

	if (!err && ret->len == 0)
		err = -EBADMSG;
	if (!err)
		ret->len = min_u64(ret->len, end - at);
	return err;
}

static int store(struct pusher *pusher, const struct push_job *job, uint64_t off, const void *data, uint64_t len)
{
	struct fuse_bufvec vec = FUSE_BUFVEC_INIT(len);
	int err;

	vec.buf[0].mem = (void *)(uintptr_t)data;
	err = fuse_lowlevel_notify_store(pusher->fs->se, job->file->node, (off_t)off, &vec, 0);
	if (!err && job->pushed)
		job->pushed(job->ctx, len);
	return err;
}

/* Return: 0 and the chunk; 1 if it cannot be had; -ECANCELED */
static int get_chunk(struct pusher *pusher, const struct push_job *job, const struct image_run *run,
		     struct cache_ref **ret)
{
	if (job->go_on && !job->go_on(job->ctx, run->len))
		return -ECANCELED;
	if (!reader_chunk(pusher->reader, job->file, run, CACHE_AHEAD | CACHE_COLD, ret))
		return 0;
	return job->failed && !job->failed(job->ctx) ? -ECANCELED : 1;
}

static int push_run(struct pusher *pusher, const struct push_job *job, const struct image_run *run)
{
	struct cache_ref *ref;
	int err = get_chunk(pusher, job, run, &ref);

	if (err)
		return err < 0 ? err : 0;
	err = store(pusher, job, run->off, (const char *)cache_data(ref) + run->chunk_off, run->len);
	cache_put(pusher->fs->cache, ref);
	return err;
}

/* is any of a page's data wanted, and all of it to be had? Return: 1, 0, -errno */
static int page_wanted(const struct push_job *job, uint64_t off, uint64_t end)
{
	bool wanted = false;
	struct image_run run;

	for (uint64_t at = off; at < end; at += run.len) {
		enum push_class class;
		int err = map(job->file, at, end, &run);

		if (err)
			return err;
		if (run.kind == RUN_ABSENT)
			return 0;
		if (run.kind == RUN_HOLE)
			continue;
		class = class_of(job, &run);
		if (class == PUSH_NEVER)
			return 0;
		wanted |= class == PUSH_WANTED;
	}
	return wanted;
}

/* a page of more than one run */
static int push_page(struct pusher *pusher, const struct push_job *job, uint64_t off, uint64_t end)
{
	struct image_run run;
	int err = page_wanted(job, off, end);

	if (err <= 0)
		return err;
	for (uint64_t at = off; at < end; at += run.len) {
		struct cache_ref *ref;

		err = map(job->file, at, end, &run);
		if (err)
			return err;
		if (run.kind != RUN_DATA) {
			memset(pusher->page + (at - off), 0, run.len);
			continue;
		}
		err = get_chunk(pusher, job, &run, &ref);
		if (err)
			return err < 0 ? err : 0;
		memcpy(pusher->page + (at - off), (const char *)cache_data(ref) + run.chunk_off, run.len);
		cache_put(pusher->fs->cache, ref);
	}
	return store(pusher, job, off, pusher->page, end - off);
}

int push_range(struct pusher *pusher, const struct push_job *job, uint64_t from, uint64_t to)
{
	uint64_t size = job->file->size;
	int err = 0;

	/* @from is the beginning of a page all the time */
	while (!err && from < to) {
		uint64_t page_end = min_u64(from + PAGE, size);
		struct image_run run;

		err = map(job->file, from, to, &run);
		if (err)
			break;
		if (run.off + run.len < page_end) {
			err = push_page(pusher, job, from, page_end);
			from = page_end;
			continue;
		}
		if (run.off + run.len < size)
			run.len &= ~(PAGE - 1);
		if (run.kind == RUN_DATA && class_of(job, &run) == PUSH_WANTED)
			err = push_run(pusher, job, &run);
		from += run.len;
	}
	return err;
}
