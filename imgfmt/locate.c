/* SPDX-License-Identifier: Apache-2.0 */
#include "imgfmt/locate.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "common/bytes.h"
#include "imgfmt/walk.h"

#define VIEW_END (1ull << 63)

struct locate {
	struct image *img;
	const uint32_t *chunks;
	size_t n_chunks;
	int (*fn)(void *ctx, const struct locate_hit *hit);
	void *ctx;
};

static bool wanted(const struct locate *lo, uint32_t chunk)
{
	size_t low = 0, high = lo->n_chunks;

	while (low < high) {
		size_t mid = low + (high - low) / 2;

		if (lo->chunks[mid] == chunk)
			return true;
		if (lo->chunks[mid] < chunk)
			low = mid + 1;
		else
			high = mid;
	}
	return false;
}

static int locate_file(const struct locate *lo, const struct walk *w)
{
	struct image_run run;
	int err = 0;

	for (uint64_t off = 0; !err && off < w->inode.size; off += run.len) {
		struct locate_hit hit = { .ino = w->inode.ino, .path = w->path };

		err = image_map(lo->img, w->inode.ino, off, &run);
		if (err || run.kind != RUN_DATA || run.img != lo->img || !wanted(lo, run.chunk))
			continue;
		hit.chunk = run.chunk;
		hit.off = run.off;
		hit.len = run.len;
		err = lo->fn(lo->ctx, &hit);
	}
	return err == -ENXIO ? -EBADMSG : err;
}

static int locate_files(const struct locate *lo)
{
	uint8_t *seen = calloc(1, walk_seen_bytes(lo->img));
	struct walk w;
	int err, damage = 0;

	if (!seen)
		return -ENOMEM;
	err = walk_start(&w, lo->img, IMAGE_ROOT, "");
	while (!err && (err = walk_next(&w)) == 1) {
		err = 0;
		if (S_ISREG(w.inode.mode) && walk_first_name(&w, seen))
			err = locate_file(lo, &w);
		if (err == -EBADMSG) { /* the other files are still to be found */
			damage = err;
			err = 0;
		}
	}
	walk_release(&w);
	free(seen);
	return err ? err : damage;
}

/* the region that holds @addr, and how far it goes; else where the next one begins */
static int region_of(const struct locate *lo, const struct image_space *space, uint64_t addr,
		     struct image_region *region, bool *ret_inside, uint64_t *ret_end)
{
	uint32_t index;
	int err = image_region_at(lo->img, space, addr, &index);

	*ret_inside = false;
	*ret_end = VIEW_END;
	if (err || index >= space->n_regions)
		return err;
	err = image_region(lo->img, space, index, region);
	if (err)
		return err;
	*ret_inside = region->addr <= addr;
	*ret_end = *ret_inside ? region->addr + region->len : region->addr;
	if (*ret_end <= addr) /* the sum may be 2^64 */
		*ret_end = VIEW_END;
	return 0;
}

/* a piece of a view, cut at the borders of regions */
static int locate_piece(const struct locate *lo, const struct image_space *space, const struct image_run *run)
{
	uint64_t at = run->off, end = run->off + run->len;
	int err = 0;

	while (!err && at < end) {
		struct locate_hit hit = { .chunk = run->chunk, .off = at, .ino = space->ino, .space = space };
		struct image_region region;
		uint64_t region_end;
		bool inside;

		err = region_of(lo, space, at, &region, &inside, &region_end);
		if (err)
			return err;
		hit.len = min_u64(end, region_end) - at;
		hit.region = inside ? &region : NULL;
		hit.path = "";
		err = lo->fn(lo->ctx, &hit);
		at += hit.len;
	}
	return err;
}

static int locate_space(const struct locate *lo, uint32_t index)
{
	struct image_space space;
	int err = image_space(lo->img, index, &space);

	for (uint32_t i = 0; !err && i < space.n_segments; i++) {
		struct image_segment seg;
		struct image_run run;
		uint64_t at;

		err = image_segment(lo->img, &space, i, &seg);
		if (err || seg.kind != THAW_SEG_DATA || seg.base)
			continue;
		for (at = seg.addr; !err && at < seg.addr + seg.len; at += run.len) {
			err = image_map_view(lo->img, &space, at, &run);
			if (err)
				break;
			run.len = min_u64(run.len, seg.addr + seg.len - at);
			if (run.kind == RUN_DATA && run.img == lo->img && wanted(lo, run.chunk))
				err = locate_piece(lo, &space, &run);
		}
	}
	return err;
}

int locate_chunks(struct image *img, const uint32_t *chunks, size_t n_chunks,
		  int (*fn)(void *ctx, const struct locate_hit *hit), void *ctx)
{
	struct locate lo = { .img = img, .chunks = chunks, .n_chunks = n_chunks, .fn = fn, .ctx = ctx };
	int err, damage = 0;

	err = locate_files(&lo);
	if (err == -EBADMSG) {
		damage = err;
		err = 0;
	}
	for (uint64_t i = 0; !err && i < image_info(img)->n_spaces; i++) {
		err = locate_space(&lo, (uint32_t)i);
		if (err == -EBADMSG) {
			damage = err;
			err = 0;
		}
	}
	return err ? err : damage;
}
