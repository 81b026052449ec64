/* SPDX-License-Identifier: Apache-2.0 */
#include "imgfmt/layout.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/bytes.h"
#include "common/log.h"

#define SEGMENT_END_MAX (1ull << 63) /* FORMAT.md section 6: a view is a file */

void layout_init(struct layout *lay)
{
	*lay = (struct layout){ 0 };
}

void layout_release(struct layout *lay)
{
	free(lay->spaces);
	free(lay->regions);
	free(lay->segments);
	free(lay->cuts);
	free(lay->strings);
	layout_init(lay);
}

struct layout_mark layout_mark(const struct layout *lay)
{
	return (struct layout_mark){ .n_spaces = lay->n_spaces,
				     .n_regions = lay->n_regions,
				     .n_segments = lay->n_segments,
				     .n_cuts = lay->n_cuts,
				     .strings_len = lay->strings_len };
}

void layout_rollback(struct layout *lay, struct layout_mark mark)
{
	lay->n_spaces = mark.n_spaces;
	lay->n_regions = mark.n_regions;
	lay->n_segments = mark.n_segments;
	lay->n_cuts = mark.n_cuts;
	lay->strings_len = mark.strings_len;
	lay->last_name_off = 0;
	lay->last_name_len = 0;
}

/* room for @more elements behind @n; grows by half, so that adding stays linear */
static int reserve(void **array, size_t n, size_t more, size_t *cap, size_t elem)
{
	uint64_t want, bytes;
	void *p;

	if (add_overflows(n, more, &want))
		return -ENOMEM;
	if (want <= *cap)
		return 0;
	want = max_u64(want, *cap + *cap / 2 + 16);
	if (mul_overflows(want, elem, &bytes) || bytes > SIZE_MAX)
		return -ENOMEM;
	p = realloc(*array, (size_t)bytes);
	if (!p)
		return -ENOMEM;
	*array = p;
	*cap = (size_t)want;
	return 0;
}

#define RESERVE(lay, what, more) \
	reserve((void **)&(lay)->what, (lay)->n_##what, more, &(lay)->cap_##what, sizeof(*(lay)->what))

/* Offsets of strings are 32 bits here; four GiB of names are more than any image has. */
static int add_string(struct layout *lay, const char *s, size_t len, uint32_t *ret_off)
{
	int r;

	if (lay->strings_len + len > UINT32_MAX)
		return -EOVERFLOW;
	r = reserve((void **)&lay->strings, lay->strings_len, len, &lay->cap_strings, 1);
	if (r)
		return r;
	memcpy(lay->strings + lay->strings_len, s, len);
	*ret_off = (uint32_t)lay->strings_len;
	lay->strings_len += len;
	return 0;
}

int layout_begin_space(struct layout *lay, const char *name, size_t name_len, uint32_t kind, uint32_t ino, uint32_t pid)
{
	struct layout_space space = { .name_len = (uint32_t)name_len,
				      .kind = kind,
				      .ino = ino,
				      .pid = pid,
				      .first_region = lay->n_regions,
				      .first_segment = lay->n_segments };
	int r;

	if (!name_len || name_len > THAW_SPACE_NAME_MAX || lay->n_spaces >= THAW_MAX_ENTRIES)
		return -EOVERFLOW;
	r = RESERVE(lay, spaces, 1);
	if (!r)
		r = add_string(lay, name, name_len, &space.name_off);
	if (r)
		return r;
	lay->spaces[lay->n_spaces++] = space;
	return 0;
}

static int region_name(struct layout *lay, struct layout_region *region, const char *name, size_t len)
{
	int r;

	if (!len)
		return 0;
	region->name_len = (uint32_t)len;
	region->name_off = lay->last_name_off;
	if (lay->last_name_len == len && !memcmp(lay->strings + lay->last_name_off, name, len))
		return 0;
	r = add_string(lay, name, len, &region->name_off);
	if (r)
		return r;
	lay->last_name_off = region->name_off;
	lay->last_name_len = region->name_len;
	return 0;
}

int layout_region(struct layout *lay, uint64_t addr, uint64_t len, uint64_t pgoff, uint32_t prot, uint32_t flags,
		  const char *name, size_t name_len)
{
	struct layout_region region = { .addr = addr, .len = len, .pgoff = pgoff, .prot = prot, .flags = flags };
	int r;

	if (name_len > THAW_REGION_NAME_MAX || lay->n_regions >= THAW_MAX_ENTRIES)
		return -EOVERFLOW;
	r = RESERVE(lay, regions, 1);
	if (!r)
		r = region_name(lay, &region, name, name_len);
	if (r)
		return r;
	lay->regions[lay->n_regions++] = region;
	return 0;
}

/* does @b begin where @a ends, in memory and in its file? Lengths may be anything here, hence no sums. */
static bool segment_continues(const struct layout_segment *a, const struct layout_segment *b)
{
	if (a->kind != b->kind || b->addr - a->addr != a->len || b->addr < a->addr || b->len > UINT64_MAX - a->len)
		return false;
	return a->kind != THAW_SEG_DATA || (a->ino == b->ino && a->base == b->base && b->off - a->off == a->len);
}

int layout_segment(struct layout *lay, uint64_t addr, uint64_t len, uint8_t kind, uint32_t ino, uint16_t base,
		   uint64_t off)
{
	struct layout_segment segment = { .addr = addr, .len = len, .kind = kind };
	int r;

	if (kind == THAW_SEG_DATA) {
		segment.ino = ino;
		segment.base = base;
		segment.off = off;
	}
	if (lay->n_spaces && lay->n_segments > lay->spaces[lay->n_spaces - 1].first_segment &&
	    segment_continues(&lay->segments[lay->n_segments - 1], &segment)) {
		lay->segments[lay->n_segments - 1].len += len;
		return 0;
	}
	if (lay->n_segments >= THAW_MAX_ENTRIES)
		return -EOVERFLOW;
	r = RESERVE(lay, segments, 1);
	if (r)
		return r;
	lay->segments[lay->n_segments++] = segment;
	return 0;
}

int layout_cut(struct layout *lay, uint32_t ino, uint64_t off, uint64_t len, uint64_t addr)
{
	int r;

	if (!len)
		return 0;
	if (off > THAW_MAX_FILE || len > THAW_MAX_FILE - off)
		return -EOVERFLOW;
	r = RESERVE(lay, cuts, 1);
	if (r)
		return r;
	lay->cuts[lay->n_cuts++] = (struct layout_cut){ .off = off, .len = len, .addr = addr, .ino = ino };
	return 0;
}

/* -- the end of a space ----------------------------------------------------------------------- */

static int cmp_u64(uint64_t a, uint64_t b)
{
	return a < b ? -1 : a > b;
}

static int cmp_region(const void *a, const void *b)
{
	return cmp_u64(((const struct layout_region *)a)->addr, ((const struct layout_region *)b)->addr);
}

static int cmp_segment(const void *a, const void *b)
{
	return cmp_u64(((const struct layout_segment *)a)->addr, ((const struct layout_segment *)b)->addr);
}

/* Parsers add nearly everything in order, so looking first is cheaper than sorting. */
static void sort_array(void *array, size_t n, size_t elem, int (*cmp)(const void *, const void *))
{
	const char *p = array;

	for (size_t i = 1; i < n; i++) {
		if (cmp(p + (i - 1) * elem, p + i * elem) > 0) {
			qsort(array, n, elem, cmp);
			return;
		}
	}
}

static int contradiction(struct layout *lay, const char *what, uint64_t addr, uint64_t len)
{
	snprintf(lay->error, sizeof(lay->error), "%s at address 0x%" PRIx64 " with length 0x%" PRIx64, what, addr, len);
	return -EBADMSG;
}

static int check_regions(struct layout *lay, const struct layout_region *regions, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		const struct layout_region *r = &regions[i];

		if (!r->len)
			return contradiction(lay, "empty region", r->addr, r->len);
		/* the very end of the address space may be the end of a region */
		if (r->len - 1 > UINT64_MAX - r->addr)
			return contradiction(lay, "region past the end of the address space", r->addr, r->len);
		if (i && regions[i - 1].len > r->addr - regions[i - 1].addr)
			return contradiction(lay, "overlapping region", r->addr, r->len);
	}
	return 0;
}

static int check_segments(struct layout *lay, const struct layout_segment *segments, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		const struct layout_segment *s = &segments[i];

		if (!s->len)
			return contradiction(lay, "empty segment", s->addr, s->len);
		if (s->addr > SEGMENT_END_MAX || s->len > SEGMENT_END_MAX - s->addr)
			return contradiction(lay, "segment past the end of a view", s->addr, s->len);
		if (s->kind == THAW_SEG_DATA && (s->off > THAW_MAX_FILE || s->len > THAW_MAX_FILE - s->off))
			return contradiction(lay, "segment past the end of any file", s->addr, s->len);
		if (i && segments[i - 1].len > s->addr - segments[i - 1].addr)
			return contradiction(lay, "overlapping segment", s->addr, s->len);
	}
	return 0;
}

/* the part of @s from @addr on, @len bytes of it, appended or joined to the last of @out in the same region */
static size_t put_piece(struct layout_segment *out, size_t n, bool same_region, const struct layout_segment *s,
			uint64_t addr, uint64_t len)
{
	struct layout_segment piece = *s;

	piece.addr = addr;
	piece.len = len;
	if (s->kind == THAW_SEG_DATA)
		piece.off += addr - s->addr;
	if (same_region && segment_continues(&out[n - 1], &piece)) {
		out[n - 1].len += len;
		return n;
	}
	out[n] = piece;
	return n + 1;
}

/*
 * Split the sorted @in at region borders into @out, which has room for n + n_regions pieces (each border
 * inside a segment makes one more).
 */
static int split_segments(struct layout *lay, const struct layout_region *regions, size_t n_regions,
			  const struct layout_segment *in, size_t n, struct layout_segment *out, size_t *ret_n)
{
	size_t region = 0, last_region = SIZE_MAX, n_out = 0;

	for (size_t i = 0; i < n; i++) {
		uint64_t addr = in[i].addr, left = in[i].len;

		while (left) {
			uint64_t inside, len;

			while (region < n_regions && regions[region].addr <= addr &&
			       regions[region].len <= addr - regions[region].addr)
				region++;
			if (region == n_regions || regions[region].addr > addr)
				return contradiction(lay, "segment outside all regions", addr, left);
			inside = addr - regions[region].addr;
			len = min_u64(left, regions[region].len - inside);
			n_out = put_piece(out, n_out, last_region == region, &in[i], addr, len);
			last_region = region;
			addr += len;
			left -= len;
		}
	}
	*ret_n = n_out;
	return 0;
}

/* most spaces need no splitting: do without the second array then */
static bool all_inside(const struct layout_region *regions, size_t n_regions, const struct layout_segment *segments,
		       size_t n)
{
	size_t region = 0;

	for (size_t i = 0; i < n; i++) {
		const struct layout_segment *s = &segments[i];

		while (region < n_regions && regions[region].addr <= s->addr &&
		       regions[region].len <= s->addr - regions[region].addr)
			region++;
		if (region == n_regions || regions[region].addr > s->addr ||
		    s->len > regions[region].len - (s->addr - regions[region].addr))
			return false;
		if (i && segment_continues(&segments[i - 1], s) && regions[region].addr < s->addr)
			return false; /* could be joined */
	}
	return true;
}

static int replace_segments(struct layout *lay, struct layout_space *space, const struct layout_segment *with, size_t n)
{
	int r;

	if (n > THAW_MAX_ENTRIES - space->first_segment)
		return -EOVERFLOW;
	lay->n_segments = space->first_segment;
	r = RESERVE(lay, segments, n);
	if (r)
		return r;
	memcpy(lay->segments + space->first_segment, with, n * sizeof(*with));
	lay->n_segments += n;
	space->n_segments = (uint32_t)n;
	return 0;
}

static int fit_segments(struct layout *lay, struct layout_space *space, const struct layout_region *regions)
{
	struct layout_segment *segments = lay->segments + space->first_segment, *out;
	size_t n = lay->n_segments - space->first_segment, n_out = 0;
	int r;

	if (all_inside(regions, space->n_regions, segments, n)) {
		space->n_segments = (uint32_t)n;
		return 0;
	}
	out = calloc(n + space->n_regions, sizeof(*out));
	if (!out)
		return -ENOMEM;
	r = split_segments(lay, regions, space->n_regions, segments, n, out, &n_out);
	if (!r)
		r = replace_segments(lay, space, out, n_out);
	free(out);
	return r;
}

int layout_end_space(struct layout *lay)
{
	struct layout_space *space = &lay->spaces[lay->n_spaces - 1];
	size_t n_regions = lay->n_regions - space->first_region, n_segments = lay->n_segments - space->first_segment;
	int r;

	/* without any there may be no arrays either */
	if (!n_regions && !n_segments)
		return 0;
	if (!n_regions)
		return contradiction(lay, "segment outside all regions", lay->segments[space->first_segment].addr,
				     lay->segments[space->first_segment].len);
	sort_array(lay->regions + space->first_region, n_regions, sizeof(*lay->regions), cmp_region);
	r = check_regions(lay, lay->regions + space->first_region, n_regions);
	if (r)
		return r;
	space->n_regions = (uint32_t)n_regions;
	if (!n_segments)
		return 0;
	sort_array(lay->segments + space->first_segment, n_segments, sizeof(*lay->segments), cmp_segment);
	r = check_segments(lay, lay->segments + space->first_segment, n_segments);
	return r ? r : fit_segments(lay, space, lay->regions + space->first_region);
}

/* -- the end of everything -------------------------------------------------------------------- */

static int cmp_cut(const void *a, const void *b)
{
	const struct layout_cut *x = a, *y = b;

	if (x->ino != y->ino)
		return x->ino < y->ino ? -1 : 1;
	if (x->off != y->off)
		return cmp_u64(x->off, y->off);
	/* the longer one first, so that it is the one kept; the address only to be the same every time */
	return x->len != y->len ? cmp_u64(y->len, x->len) : cmp_u64(x->addr, y->addr);
}

static void finish_cuts(struct layout *lay)
{
	struct layout_cut *cuts = lay->cuts;
	size_t n = 0;

	if (lay->n_cuts)
		sort_array(cuts, lay->n_cuts, sizeof(*cuts), cmp_cut);
	for (size_t i = 0; i < lay->n_cuts; i++) {
		struct layout_cut cut = cuts[i], *last = n && cuts[n - 1].ino == cut.ino ? &cuts[n - 1] : NULL;
		uint64_t covered = last && last->off + last->len > cut.off ? last->off + last->len - cut.off : 0;

		if (covered >= cut.len)
			continue;
		cut.off += covered;
		cut.addr += covered;
		cut.len -= covered;
		if (last && last->off + last->len == cut.off && last->addr + last->len == cut.addr)
			last->len += cut.len;
		else
			cuts[n++] = cut;
	}
	lay->n_cuts = n;
}

static int cmp_name(const void *a, const void *b, void *strings)
{
	const struct layout_space *x = a, *y = b;
	const char *names = strings;
	size_t len = (size_t)min_u64(x->name_len, y->name_len);
	int c = memcmp(names + x->name_off, names + y->name_off, len);

	if (!c)
		c = x->name_len < y->name_len ? -1 : x->name_len > y->name_len;
	/* spaces of one name: in the order they came */
	return c ? c : cmp_u64(x->first_region + x->first_segment, y->first_region + y->first_segment);
}

static bool same_name(const struct layout *lay, const struct layout_space *a, const struct layout_space *b)
{
	return a->name_len == b->name_len &&
	       !memcmp(lay->strings + a->name_off, lay->strings + b->name_off, a->name_len);
}

static void drop_duplicate_spaces(struct layout *lay)
{
	size_t n = 0;

	for (size_t i = 0; i < lay->n_spaces; i++) {
		const struct layout_space *space = &lay->spaces[i];

		if (n && same_name(lay, &lay->spaces[n - 1], space)) {
			log_warn("two address spaces are called '%.*s': the second has no view", (int)space->name_len,
				 lay->strings + space->name_off);
			continue;
		}
		lay->spaces[n++] = *space;
	}
	lay->n_spaces = n;
}

/* put regions and segments into the order of the spaces, without those of dropped ones */
static int reorder(struct layout *lay)
{
	struct layout_region *regions = malloc((lay->n_regions ? lay->n_regions : 1) * sizeof(*regions));
	struct layout_segment *segments = malloc((lay->n_segments ? lay->n_segments : 1) * sizeof(*segments));
	size_t n_regions = 0, n_segments = 0;

	if (!regions || !segments) {
		free(regions);
		free(segments);
		return -ENOMEM;
	}
	for (size_t i = 0; i < lay->n_spaces; i++) {
		struct layout_space *s = &lay->spaces[i];

		if (s->n_regions)
			memcpy(regions + n_regions, lay->regions + s->first_region, s->n_regions * sizeof(*regions));
		if (s->n_segments)
			memcpy(segments + n_segments, lay->segments + s->first_segment,
			       s->n_segments * sizeof(*segments));
		s->first_region = n_regions;
		s->first_segment = n_segments;
		n_regions += s->n_regions;
		n_segments += s->n_segments;
	}
	free(lay->regions);
	free(lay->segments);
	lay->cap_regions = lay->n_regions ? lay->n_regions : 1;
	lay->cap_segments = lay->n_segments ? lay->n_segments : 1;
	lay->regions = regions;
	lay->segments = segments;
	lay->n_regions = n_regions;
	lay->n_segments = n_segments;
	return 0;
}

static bool in_order(const struct layout *lay)
{
	for (size_t i = 1; i < lay->n_spaces; i++)
		if (cmp_name(&lay->spaces[i - 1], &lay->spaces[i], lay->strings) > 0 ||
		    same_name(lay, &lay->spaces[i - 1], &lay->spaces[i]))
			return false;
	return true;
}

int layout_finish(struct layout *lay)
{
	finish_cuts(lay);
	if (in_order(lay))
		return 0;
	qsort_r(lay->spaces, lay->n_spaces, sizeof(*lay->spaces), cmp_name, lay->strings);
	drop_duplicate_spaces(lay);
	return reorder(lay);
}
