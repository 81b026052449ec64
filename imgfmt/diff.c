/* SPDX-License-Identifier: Apache-2.0 */
#include "imgfmt/diff.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/bytes.h"
#include "imgfmt/diff_data.h"
#include "imgfmt/walk.h"

#define MAP_ANONYMOUS_FLAG 0x20u        /* as the format has it */
#define VIEW_END           (1ull << 63) /* a view has no bytes at or above */

struct diff {
	struct image *a, *b;
	const struct diff_opts *opts;
	struct diff_result *res;
	struct data_diff *data;
	uint32_t *partner; /* for each inode of a with several names: 1 + the inode of b it was compared with */
	uint64_t done, total;

	/* what is being compared: one of the two */
	struct diff_member *member;
	struct diff_region *region;
	/* a range that the next piece may make longer */
	uint64_t range_off, range_len;
	bool range_unknown;
};

static void advance(struct diff *d, uint64_t bytes)
{
	d->done += bytes;
	if (d->opts->progress)
		d->opts->progress(d->opts->ctx, min_u64(d->done, d->total), d->total);
}

/* -- ranges ----------------------------------------------------------------------------------- */

static int flush_range(struct diff *d)
{
	uint64_t len = d->range_len;

	d->range_len = 0;
	if (!len)
		return 0;
	if (d->member)
		*(d->range_unknown ? &d->member->unknown_bytes : &d->member->bytes) += len;
	else
		*(d->range_unknown ? &d->region->unknown_bytes : &d->region->bytes) += len;
	if (!d->opts->range)
		return 0;
	return d->opts->range(d->opts->ctx, d->member, d->region, d->range_off, len, d->range_unknown);
}

static int on_range(void *ctx, uint64_t off, uint64_t len, bool unknown)
{
	struct diff *d = ctx;
	int err = 0;

	if (d->range_len && unknown == d->range_unknown && d->range_off + d->range_len == off) {
		d->range_len += len;
		return 0;
	}
	err = flush_range(d);
	d->range_off = off;
	d->range_len = len;
	d->range_unknown = unknown;
	return err;
}

static unsigned data_flags(uint64_t bytes, uint64_t unknown)
{
	return (bytes ? DIFF_DATA : 0) | (unknown ? DIFF_UNKNOWN : 0);
}

/* -- members ---------------------------------------------------------------------------------- */

static int compare_data(struct diff *d, const struct image_inode *a, const struct image_inode *b)
{
	uint64_t end = min_u64(a->size, b->size), longer = max_u64(a->size, b->size), len;
	int err = 0;

	for (uint64_t off = 0; !err && off < end; off += len) {
		struct image_run ra, rb;

		err = image_map(d->a, a->ino, off, &ra);
		if (!err)
			err = image_map(d->b, b->ino, off, &rb);
		if (err)
			return err == -ENXIO ? -EBADMSG : err;
		len = min_u64(min_u64(ra.len, rb.len), end - off);
		err = data_diff_runs(d->data, &ra, &rb, len, on_range, d);
		advance(d, len);
	}
	if (!err && longer > end)
		err = on_range(d, end, longer - end, false);
	return err ? err : flush_range(d);
}

static int compare_targets(struct diff *d, const struct image_inode *a, const struct image_inode *b, unsigned *flags)
{
	const char *ta, *tb;
	size_t la, lb;
	int err = image_readlink(d->a, a->ino, &ta, &la);

	if (!err)
		err = image_readlink(d->b, b->ino, &tb, &lb);
	if (!err && (la != lb || memcmp(ta, tb, la) != 0))
		*flags |= DIFF_TARGET;
	return err;
}

/* xattrs are sorted by name, so the same sets have the same order */
static int compare_xattrs(struct diff *d, const struct image_inode *a, const struct image_inode *b, unsigned *flags)
{
	if (a->n_xattrs != b->n_xattrs)
		*flags |= DIFF_XATTRS;
	for (uint32_t i = 0; i < a->n_xattrs && !(*flags & DIFF_XATTRS); i++) {
		struct image_xattr xa, xb;
		int err = image_xattr(d->a, a, i, &xa);

		if (!err)
			err = image_xattr(d->b, b, i, &xb);
		if (err)
			return err;
		if (xa.name_len != xb.name_len || xa.value_len != xb.value_len ||
		    memcmp(xa.name, xb.name, xa.name_len) != 0 || memcmp(xa.value, xb.value, xa.value_len) != 0)
			*flags |= DIFF_XATTRS;
	}
	return 0;
}

static unsigned compare_plain(const struct diff *d, const struct image_inode *a, const struct image_inode *b)
{
	unsigned flags = 0;

	if ((a->mode ^ b->mode) & 07777)
		flags |= DIFF_MODE;
	if (a->uid != b->uid || a->gid != b->gid)
		flags |= DIFF_OWNER;
	if (d->opts->times && (a->mtime_sec != b->mtime_sec || a->mtime_nsec != b->mtime_nsec))
		flags |= DIFF_TIME;
	if (a->nlink != b->nlink)
		flags |= DIFF_LINKS;
	if (a->rdev_major != b->rdev_major || a->rdev_minor != b->rdev_minor)
		flags |= DIFF_DEVICE;
	if (S_ISREG(a->mode) && a->size != b->size)
		flags |= DIFF_SIZE;
	return flags;
}

/* a file with several names is compared under its first; Return: whether this is another */
static bool compared_before(struct diff *d, const struct image_inode *a, const struct image_inode *b, unsigned *flags)
{
	uint32_t *partner = &d->partner[a->ino];

	if (a->nlink < 2 || *partner == b->ino + 1)
		return a->nlink >= 2;
	/* names of one file in a are names of two files in b */
	if (*partner)
		*flags |= DIFF_LINKS;
	*partner = b->ino + 1;
	return false;
}

static int compare_inodes(struct diff *d, const struct image_inode *a, const struct image_inode *b)
{
	struct diff_member *m = d->member;
	int err;

	if ((a->mode ^ b->mode) & S_IFMT) {
		m->flags |= DIFF_TYPE;
		return 0;
	}
	if (!S_ISDIR(a->mode) && compared_before(d, a, b, &m->flags))
		return 0;
	m->flags |= compare_plain(d, a, b);
	err = compare_xattrs(d, a, b, &m->flags);
	if (!err && S_ISLNK(a->mode))
		err = compare_targets(d, a, b, &m->flags);
	if (!err && S_ISREG(a->mode))
		err = compare_data(d, a, b);
	m->flags |= data_flags(m->bytes, m->unknown_bytes);
	return err;
}

/* @a, @b: the entries at hand, one of them may be NULL */
static int compare_entries(struct diff *d, const struct walk *a, const struct walk *b)
{
	struct diff_member m = {
		.path = a ? a->path : b->path,
		.a = a ? &a->inode : NULL,
		.b = b ? &b->inode : NULL,
	};
	const struct image_inode *one = m.a ? m.a : m.b;
	int err = 0;

	d->member = &m;
	if (m.a && m.b) {
		d->res->n_members++;
		err = compare_inodes(d, m.a, m.b);
		d->res->n_members_differ += m.flags != 0;
	} else {
		m.flags = m.a ? DIFF_ONLY_A : DIFF_ONLY_B;
		m.bytes = S_ISREG(one->mode) ? one->size : 0;
		d->res->n_only_a += m.a != NULL;
		d->res->n_only_b += m.b != NULL;
		if (m.a)
			advance(d, m.bytes);
	}
	d->member = NULL;
	d->res->member_bytes += m.bytes;
	d->res->unknown_bytes += m.unknown_bytes;
	if (!err && m.flags && d->opts->member)
		err = d->opts->member(d->opts->ctx, &m);
	return err;
}

/* walks go by names, one part of the path after the other: '/' comes before all that names have */
static int compare_paths(const char *a, const char *b)
{
	while (*a && *a == *b)
		a++, b++;
	if (!*a || !*b)
		return *a ? 1 : *b ? -1 : 0;
	if (*a == '/' || *b == '/')
		return *a == '/' ? -1 : 1;
	return (unsigned char)*a < (unsigned char)*b ? -1 : 1;
}

static int compare_trees(struct diff *d, struct walk *a, struct walk *b)
{
	int more_a = walk_next(a), more_b = walk_next(b), err = 0;

	while (!err && (more_a == 1 || more_b == 1)) {
		int order;

		if (more_a < 0 || more_b < 0)
			return more_a < 0 ? more_a : more_b;
		order = !more_a ? 1 : !more_b ? -1 : compare_paths(a->path, b->path);
		err = compare_entries(d, order <= 0 ? a : NULL, order >= 0 ? b : NULL);
		if (!err && order <= 0)
			more_a = walk_next(a);
		if (!err && order >= 0)
			more_b = walk_next(b);
	}
	return err ? err : more_a < 0 ? more_a : more_b;
}

static int compare_members(struct diff *d)
{
	struct walk a, b;
	int err = walk_start(&a, d->a, IMAGE_ROOT, "");

	if (err)
		return err;
	err = walk_start(&b, d->b, IMAGE_ROOT, "");
	if (!err) {
		err = compare_trees(d, &a, &b);
		walk_release(&b);
	}
	walk_release(&a);
	return err;
}

/* -- address spaces --------------------------------------------------------------------------- */

/* the regions of one image's space; a space that is not there has none */
struct side {
	struct image *img;
	struct image_space space;
	bool there;
	uint32_t next;
	struct image_region region; /* at hand; len 0: no more */
};

static int next_region(struct side *s)
{
	s->region.len = 0;
	if (!s->there || s->next >= s->space.n_regions)
		return 0;
	return image_region(s->img, &s->space, s->next++, &s->region);
}

/* last address, which unlike the end does not overflow */
static uint64_t last_of(const struct image_region *g)
{
	return g->addr + (g->len - 1);
}

static int compare_view(struct diff *d, const struct side *a, const struct side *b, uint64_t addr, uint64_t last)
{
	uint64_t len;
	int err = 0;

	if (addr >= VIEW_END)
		return 0;
	for (uint64_t end = min_u64(last, VIEW_END - 1) + 1; !err && addr < end; addr += len) {
		struct image_run ra, rb;

		err = image_map_view(a->img, &a->space, addr, &ra);
		if (!err)
			err = image_map_view(b->img, &b->space, addr, &rb);
		if (err)
			return err;
		len = min_u64(min_u64(ra.len, rb.len), end - addr);
		err = data_diff_runs(d->data, &ra, &rb, len, on_range, d);
		if (ra.kind == RUN_DATA)
			advance(d, len);
	}
	return err ? err : flush_range(d);
}

static unsigned compare_attributes(const struct image_region *a, const struct image_region *b)
{
	unsigned flags = 0;

	if (a->prot != b->prot)
		flags |= DIFF_PROT;
	if (a->flags != b->flags)
		flags |= DIFF_MAP_FLAGS;
	/* both reckoned from the same address, they wrap alike; what is no file has no offset in one */
	if (!(a->flags & b->flags & MAP_ANONYMOUS_FLAG) && a->pgoff - a->addr != b->pgoff - b->addr)
		flags |= DIFF_PGOFF;
	if (a->name_len != b->name_len || memcmp(a->name, b->name, a->name_len) != 0)
		flags |= DIFF_NAME;
	return flags;
}

static void count_region(struct diff_result *res, const struct diff_region *g)
{
	res->n_regions_only_a += !g->b;
	res->n_regions_only_b += !g->a;
	res->n_regions_differ += g->a && g->b && g->flags;
	res->region_bytes += g->bytes;
	res->unknown_bytes += g->unknown_bytes;
}

/* [addr, last], in which each side has its region at hand all over, or (NULL) none */
static int compare_piece(struct diff *d, const struct side *a, const struct side *b, bool in_a, bool in_b,
			 uint64_t addr, uint64_t last)
{
	const struct side *named = a->there ? a : b;
	struct diff_region g = {
		.space = named->space.name,
		.space_len = named->space.name_len,
		.addr = addr,
		.len = last - addr + 1,
		.a = in_a ? &a->region : NULL,
		.b = in_b ? &b->region : NULL,
	};
	int err = 0;

	d->region = &g;
	if (in_a && in_b) {
		g.flags = compare_attributes(g.a, g.b);
		err = compare_view(d, a, b, addr, last);
		g.flags |= data_flags(g.bytes, g.unknown_bytes);
	} else {
		g.flags = in_a ? DIFF_ONLY_A : DIFF_ONLY_B;
	}
	d->region = NULL;
	count_region(d->res, &g);
	if (!err && g.flags && d->opts->region)
		err = d->opts->region(d->opts->ctx, &g);
	return err;
}

/* the last address before a region, or of all if there is none */
static uint64_t before(const struct image_region *g)
{
	return g ? g->addr - 1 : UINT64_MAX;
}

/*
 * Both lists of regions at once, from border to border. @at is where it has come to; a damaged table whose regions
 * overlap or go back is noticed by that.
 */
static int compare_regions(struct diff *d, struct side *a, struct side *b)
{
	uint64_t at = 0;
	int err = next_region(a);

	if (!err)
		err = next_region(b);
	while (!err && (a->region.len || b->region.len)) {
		const struct image_region *ga = a->region.len ? &a->region : NULL;
		const struct image_region *gb = b->region.len ? &b->region : NULL;
		uint64_t last, from_a, from_b;
		bool in_a, in_b;

		if ((ga && last_of(ga) < at) || (gb && last_of(gb) < at))
			return -EBADMSG;
		from_a = ga ? max_u64(ga->addr, at) : UINT64_MAX;
		from_b = gb ? max_u64(gb->addr, at) : UINT64_MAX;
		at = min_u64(from_a, from_b);
		in_a = ga && from_a == at;
		in_b = gb && from_b == at;
		last = min_u64(in_a ? last_of(ga) : before(ga), in_b ? last_of(gb) : before(gb));
		err = compare_piece(d, a, b, in_a, in_b, at, last);
		if (!err && in_a && last == last_of(ga))
			err = next_region(a);
		if (!err && in_b && last == last_of(gb))
			err = next_region(b);
		at = last + 1;
		if (!at) /* nothing is past the last address */
			return err;
	}
	return err;
}

static int compare_names(const struct image_space *a, const struct image_space *b)
{
	int order = memcmp(a->name, b->name, min_u64(a->name_len, b->name_len));

	return order ? order : a->name_len < b->name_len ? -1 : a->name_len > b->name_len;
}

/* spaces are sorted by name, so the two tables are merged */
static int compare_spaces(struct diff *d)
{
	uint64_t n_a = image_info(d->a)->n_spaces, n_b = image_info(d->b)->n_spaces, i = 0, k = 0;

	while (i < n_a || k < n_b) {
		struct side a = { .img = d->a, .there = i < n_a }, b = { .img = d->b, .there = k < n_b };
		int err = a.there ? image_space(d->a, (uint32_t)i, &a.space) : 0, order;

		if (!err && b.there)
			err = image_space(d->b, (uint32_t)k, &b.space);
		if (err)
			return err;
		order = !a.there ? 1 : !b.there ? -1 : compare_names(&a.space, &b.space);
		a.there = order <= 0;
		b.there = order >= 0;
		err = compare_regions(d, &a, &b);
		if (err)
			return err;
		i += a.there;
		k += b.there;
	}
	return 0;
}

/* -- all -------------------------------------------------------------------------------------- */

/* bytes to look at: files, then what segments refer to */
static uint64_t total_bytes(struct image *img)
{
	uint64_t sum = image_info(img)->logical_bytes;

	for (uint64_t i = 0; i < image_info(img)->n_spaces; i++) {
		struct image_space space;
		struct image_segment seg;

		if (image_space(img, (uint32_t)i, &space))
			break;
		for (uint32_t k = 0; k < space.n_segments && !image_segment(img, &space, k, &seg); k++)
			sum += seg.kind == THAW_SEG_DATA ? seg.len : 0;
	}
	return sum;
}

int image_diff(struct image *a, struct image *b, const struct diff_opts *opts, struct diff_result *ret)
{
	struct diff_result res = { 0 };
	struct diff d = { .a = a, .b = b, .opts = opts, .res = &res };
	int err;

	/* the id covers the whole index, and with it the checksums of all chunks */
	if (!memcmp(image_info(a)->id, image_info(b)->id, 16)) {
		res.n_members = image_info(a)->n_names + 1;
		*ret = res;
		return 0;
	}
	d.total = total_bytes(a);
	d.partner = calloc(image_info(a)->n_inodes + 1, sizeof(*d.partner));
	err = d.partner ? data_diff_new(opts->pages, &d.data) : -ENOMEM;
	if (!err)
		err = compare_members(&d);
	if (!err)
		err = compare_spaces(&d);
	if (d.data) {
		res.decoded_bytes = data_diff_decoded(d.data);
		res.unknown_error = data_diff_error(d.data);
	}
	data_diff_free(d.data);
	free(d.partner);
	*ret = res;
	return err;
}

bool diff_same(const struct diff_result *res)
{
	return !res->n_members_differ && !res->n_only_a && !res->n_only_b && !res->n_regions_differ &&
	       !res->n_regions_only_a && !res->n_regions_only_b && !res->unknown_bytes;
}
