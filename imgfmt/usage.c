/* SPDX-License-Identifier: Apache-2.0 */
#include "imgfmt/usage.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "common/bytes.h"

#define VIEW_END (1ull << 63)

struct usage {
	struct image *img;
	uint64_t *users; /* for each chunk the bytes that files refer to, saturating */
};

uint64_t usage_stored(const struct usage_sum *sum)
{
	return (uint64_t)((sum->stored_fixed + (1ull << 31)) >> 32);
}

static int count_file(struct usage *u, const struct image_inode *inode)
{
	uint64_t n_chunks = image_info(u->img)->n_chunks;
	struct image_run run;

	for (uint64_t off = 0; off < inode->size; off += run.len) {
		int err = image_map(u->img, inode->ino, off, &run);

		if (err)
			return err == -ENXIO ? -EBADMSG : err;
		if (run.kind != RUN_DATA)
			continue;
		if (run.chunk >= n_chunks)
			return -EBADMSG;
		if (add_overflows(u->users[run.chunk], run.len, &u->users[run.chunk]))
			u->users[run.chunk] = UINT64_MAX;
	}
	return 0;
}

int usage_new(struct image *img, struct usage **ret)
{
	struct usage *u = calloc(1, sizeof(*u));
	const struct image_info *info = image_info(img);
	int err = 0;

	if (!u)
		return -ENOMEM;
	u->img = img;
	u->users = calloc(info->n_chunks + 1, sizeof(*u->users));
	if (!u->users) {
		usage_free(u);
		return -ENOMEM;
	}
	for (uint64_t i = 0; !err && i < info->n_inodes; i++) {
		struct image_inode inode;

		err = image_inode(img, (uint32_t)i, &inode);
		if (!err && S_ISREG(inode.mode))
			err = count_file(u, &inode);
	}
	if (err) {
		usage_free(u);
		return err;
	}
	*ret = u;
	return 0;
}

void usage_free(struct usage *usage)
{
	if (!usage)
		return;
	free(usage->users);
	free(usage);
}

static int add_data(const struct usage *u, const struct image_run *run, struct usage_sum *sum)
{
	struct image_chunk chunk;
	uint64_t users;
	int err;

	if (run->img != u->img) {
		sum->base += run->len;
		return 0;
	}
	err = image_chunk(u->img, run->chunk, &chunk);
	if (err)
		return err;
	users = u->users[run->chunk];
	if (users > chunk.logical_len)
		sum->shared += run->len;
	if (chunk.base)
		sum->base += run->len;
	else
		sum->stored_fixed +=
			(((unsigned __int128)chunk.stored_len << 32) * run->len) / max_u64(users, run->len);
	return 0;
}

static int add_run(const struct usage *u, const struct image_run *run, struct usage_sum *sum)
{
	sum->logical += run->len;
	if (run->kind == RUN_HOLE)
		sum->hole += run->len;
	else if (run->kind == RUN_ABSENT)
		sum->absent += run->len;
	else
		return add_data(u, run, sum);
	return 0;
}

int usage_add_file(const struct usage *usage, const struct image_inode *inode, struct usage_sum *sum)
{
	struct image_run run;
	int err = 0;

	if (!S_ISREG(inode->mode))
		return 0;
	for (uint64_t off = 0; !err && off < inode->size; off += run.len) {
		err = image_map(usage->img, inode->ino, off, &run);
		if (!err)
			err = add_run(usage, &run, sum);
	}
	return err == -ENXIO ? -EBADMSG : err;
}

int usage_add_view(const struct usage *usage, const struct image_space *space, uint64_t addr, uint64_t len,
		   struct usage_sum *sum)
{
	uint64_t end = addr + len;
	struct image_run run;
	int err = 0;

	/* no segment lies there: zeros, and image_map_view() knows no such addresses */
	if (addr >= VIEW_END) {
		sum->logical += len;
		sum->hole += len;
		return 0;
	}
	if (end < addr || end > VIEW_END) {
		sum->logical += end - VIEW_END;
		sum->hole += end - VIEW_END;
		end = VIEW_END;
	}
	while (!err && addr < end) {
		err = image_map_view(usage->img, space, addr, &run);
		if (err)
			break;
		run.len = min_u64(run.len, end - addr);
		err = add_run(usage, &run, sum);
		addr += run.len;
	}
	return err;
}
