/* SPDX-License-Identifier: Apache-2.0 */
/* Address spaces: regions, segments, and views through them. */
#include <errno.h>
#include <string.h>

#include "imgfmt/image_private.h"

#define VIEW_END 0x8000000000000000u /* 2^63: no segment reaches further */

/* a relative path: no empty part, no "." and "..", no NUL */
static bool valid_space_name(const char *name, uint32_t len)
{
	const char *end = name + len;

	if (memchr(name, '\0', len))
		return false;
	for (const char *p = name; p <= end;) {
		const char *slash = p < end ? memchr(p, '/', (size_t)(end - p)) : NULL;
		size_t n = (size_t)((slash ? slash : end) - p);

		if (n == 0 || n > THAW_NAME_MAX || (n == 1 && p[0] == '.') || (n == 2 && p[0] == '.' && p[1] == '.'))
			return false;
		p += n + 1;
	}
	return true;
}

int image_space(struct image *img, uint32_t space, struct image_space *ret)
{
	const struct thaw_space *e;
	struct image_space s;
	int r;

	if (space >= index_count(&img->index, THAW_SPACES))
		return -ENOENT;
	r = index_entry(&img->index, THAW_SPACES, space, (const void **)&e);
	if (r)
		return r;
	s = (struct image_space){
		.name_len = le32_get(e->name_len),
		.kind = le32_get(e->kind),
		.ino = le32_get(e->inode),
		.pid = le32_get(e->pid),
		.n_regions = le32_get(e->n_regions),
		.n_segments = le32_get(e->n_segments),
		.first_region = le64_get(e->first_region),
		.first_segment = le64_get(e->first_segment),
	};
	r = s.name_len && s.name_len <= THAW_SPACE_NAME_MAX
		    ? image_string(img, le64_get(e->name_off), s.name_len, &s.name)
		    : -EBADMSG;
	if (r && r != -EBADMSG)
		return r;
	if (r || !valid_space_name(s.name, s.name_len))
		return index_damaged(&img->index, THAW_SPACES, space, "bad name");
	if (s.kind < THAW_SPACE_DMTCP || s.kind > THAW_SPACE_CORE || s.ino >= index_count(&img->index, THAW_INODES) ||
	    !range_inside(s.first_region, s.n_regions, index_count(&img->index, THAW_REGIONS)) ||
	    !range_inside(s.first_segment, s.n_segments, index_count(&img->index, THAW_SEGMENTS)))
		return index_damaged(&img->index, THAW_SPACES, space, "bad kind, inode or range");
	*ret = s;
	return 0;
}

int image_space_find(struct image *img, const char *name, size_t len, uint32_t *ret_space)
{
	uint32_t lo = 0, hi = (uint32_t)index_count(&img->index, THAW_SPACES);

	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;
		struct image_space s;
		int r = image_space(img, mid, &s), c;

		if (r)
			return r;
		c = memcmp(s.name, name, s.name_len < len ? s.name_len : len);
		if (c == 0)
			c = s.name_len < len ? -1 : s.name_len > len;
		if (c == 0) {
			*ret_space = mid;
			return 0;
		}
		if (c < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	return -ENOENT;
}

int image_region(struct image *img, const struct image_space *space, uint32_t index, struct image_region *ret)
{
	uint64_t i = space->first_region + index;
	const struct thaw_region *e;
	struct image_region g;
	int r;

	if (index >= space->n_regions)
		return -ENOENT;
	r = index_entry(&img->index, THAW_REGIONS, i, (const void **)&e);
	if (r)
		return r;
	g = (struct image_region){
		.addr = le64_get(e->addr),
		.len = le64_get(e->len),
		.pgoff = le64_get(e->pgoff),
		.prot = le32_get(e->prot),
		.flags = le32_get(e->flags),
		.name_len = le32_get(e->name_len),
		.name = "",
	};
	if (!g.len || g.addr + (g.len - 1) < g.addr)
		return index_damaged(&img->index, THAW_REGIONS, i, "bad address or length");
	if (g.name_len > THAW_REGION_NAME_MAX)
		r = -EBADMSG;
	else if (g.name_len)
		r = image_string(img, le64_get(e->name_off), g.name_len, &g.name);
	if (r && r != -EBADMSG)
		return r;
	if (r)
		return index_damaged(&img->index, THAW_REGIONS, i, "bad name");
	*ret = g;
	return 0;
}

int image_segment(struct image *img, const struct image_space *space, uint32_t index, struct image_segment *ret)
{
	uint64_t i = space->first_segment + index;
	const struct thaw_segment *e;
	struct image_segment g;
	int r;

	if (index >= space->n_segments)
		return -ENOENT;
	r = index_entry(&img->index, THAW_SEGMENTS, i, (const void **)&e);
	if (r)
		return r;
	g = (struct image_segment){
		.addr = le64_get(e->addr),
		.len = le64_get(e->len),
		.off = le64_get(e->off),
		.ino = le32_get(e->inode),
		.kind = e->kind,
		.base = le16_get(e->base),
	};
	if (!g.len || !range_inside(g.addr, g.len, VIEW_END))
		return index_damaged(&img->index, THAW_SEGMENTS, i, "bad address or length");
	if (g.kind < THAW_SEG_DATA || g.kind > THAW_SEG_ABSENT || g.base > img->info.n_bases)
		return index_damaged(&img->index, THAW_SEGMENTS, i, "bad kind or base");
	*ret = g;
	return 0;
}

/* the last address of the @index-th region or segment */
typedef int last_addr_fn(struct image *img, const struct image_space *space, uint32_t index, uint64_t *ret);

static int region_last(struct image *img, const struct image_space *space, uint32_t index, uint64_t *ret)
{
	struct image_region g;
	int r = image_region(img, space, index, &g);

	if (!r)
		*ret = g.addr + (g.len - 1);
	return r;
}

static int segment_last(struct image *img, const struct image_space *space, uint32_t index, uint64_t *ret)
{
	struct image_segment g;
	int r = image_segment(img, space, index, &g);

	if (!r)
		*ret = g.addr + (g.len - 1);
	return r;
}

/*
 * Binary search in a sorted table by the ends of its entries. A table that is not sorted, which only image_check()
 * would notice, leads to some entry or none, never outside.
 */
static int find_addr(struct image *img, const struct image_space *space, last_addr_fn *last, uint32_t n, uint64_t addr,
		     uint32_t *ret_index)
{
	uint32_t lo = 0;

	while (lo < n) {
		uint32_t mid = lo + (n - lo) / 2;
		uint64_t end;
		int r = last(img, space, mid, &end);

		if (r)
			return r;
		if (end < addr)
			lo = mid + 1;
		else
			n = mid;
	}
	*ret_index = lo;
	return 0;
}

int image_region_at(struct image *img, const struct image_space *space, uint64_t addr, uint32_t *ret_index)
{
	return find_addr(img, space, region_last, space->n_regions, addr, ret_index);
}

int image_segment_at(struct image *img, const struct image_space *space, uint64_t addr, uint32_t *ret_index)
{
	return find_addr(img, space, segment_last, space->n_segments, addr, ret_index);
}

/* the run of a data segment that begins @skip bytes into it, by the file it leads to */
static int map_data(struct image *img, const struct image_segment *g, uint64_t skip, struct image_run *ret)
{
	struct image *from = img;
	uint64_t off;
	int r = g->base ? image_base_open(img, g->base - 1u, &from) : 0;

	if (r)
		return r;
	if (add_overflows(g->off, skip, &off))
		return -EBADMSG;
	r = image_map(from, g->ino, off, ret);
	/* a segment that passes its file's end, or leads to no file, is damage and not an end of file */
	return r == -ENXIO || r == -EISDIR || r == -EINVAL || r == -ENOENT ? -EBADMSG : r;
}

int image_map_view(struct image *img, const struct image_space *space, uint64_t addr, struct image_run *ret)
{
	struct image_segment g = { .addr = VIEW_END };
	struct image_run run;
	uint32_t i;
	int r;

	if (addr >= VIEW_END)
		return -ENXIO;
	r = image_segment_at(img, space, addr, &i);
	if (!r && i < space->n_segments)
		r = image_segment(img, space, i, &g);
	if (r)
		return r;
	if (addr < g.addr) {
		*ret = (struct image_run){ .off = addr, .len = g.addr - addr, .kind = RUN_HOLE, .img = img };
		return 0;
	}
	run = (struct image_run){ .off = addr, .len = g.addr + g.len - addr, .img = img };
	run.kind = g.kind == THAW_SEG_HOLE ? RUN_HOLE : RUN_ABSENT;
	if (g.kind == THAW_SEG_DATA) {
		uint64_t left = run.len;

		r = map_data(img, &g, addr - g.addr, &run);
		if (r == -EBADMSG)
			return index_damaged(&img->index, THAW_SEGMENTS, space->first_segment + i,
					     "leads outside its file");
		if (r)
			return r;
		run.off = addr;
		run.len = min_u64(run.len, left);
	}
	*ret = run;
	return 0;
}

int image_view_size(struct image *img, const struct image_space *space, uint64_t *ret_size)
{
	uint64_t size = 0;

	/* regions above 2^63 (vsyscall) have no segments and no place in a file */
	for (uint32_t i = space->n_regions; i-- > 0;) {
		struct image_region g;
		int r = image_region(img, space, i, &g);

		if (r)
			return r;
		if (range_inside(g.addr, g.len, VIEW_END)) {
			size = g.addr + g.len;
			break;
		}
	}
	*ret_size = min_u64(size, THAW_MAX_FILE);
	return 0;
}
