/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rules of the tables. What one entry can break by itself is checked by the reader's own functions, whose
 * findings come here through the index listener; what is checked below is what they do not look at: reserved bytes,
 * order, ranges that follow each other, counts and sums.
 *
 * A damaged entry is reported and the check goes on with the next, so one cause may be seen more than once.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/cleanup.h"
#include "imgfmt/properties.h"
#include "imgfmt/verify_private.h"
#include "imgfmt/zero.h"

/* what is found on the way, to compare the summary with */
struct totals {
	uint64_t logical, hole, chunk, stored, base;
	uint64_t raw, zstd, lz4, shuffled, in_base, files, dirs;
};

static void entry_damage(struct check *c, uint32_t type, uint64_t i, const char *what)
{
	index_damaged(&c->img->index, type, i, what);
}

/* an entry as it is stored, or NULL when its block is damaged, which was reported */
static const void *raw_entry(struct check *c, uint32_t type, uint64_t i)
{
	const void *e;

	return index_entry(&c->img->index, type, i, &e) ? NULL : e;
}

static int compare(const char *a, size_t a_len, const char *b, size_t b_len)
{
	int r = memcmp(a, b, min_u64(a_len, b_len));

	return r ? r : a_len < b_len ? -1 : a_len > b_len;
}

/*
 * a range of another table: ranges follow each other, and an empty one begins at 0
 * Return: whether it is to be looked at; ranges that overlap could make the check walk one table once for each entry
 * of another.
 */
static bool check_range(struct check *c, uint32_t type, uint64_t i, uint64_t first, uint64_t n, uint64_t *next)
{
	bool good = first == (n ? *next : 0), anew = first >= *next;

	if (!good)
		entry_damage(c, type, i, "its range does not follow the one before");
	if (n && anew)
		*next = first + n;
	return good || anew;
}

static void check_covered(struct check *c, uint32_t type, uint64_t next)
{
	if (next != index_count(&c->img->index, type))
		entry_damage(c, type, min_u64(next, index_count(&c->img->index, type)), "belongs to nothing");
}

/* -- chunks ----------------------------------------------------------------------------------- */

static void check_gap_before(struct check *c, uint64_t from, uint64_t to)
{
	uint8_t buf[THAW_PAGE];
	int r = to > from && to - from < sizeof(buf) ? source_read(c->img->src, buf, (size_t)(to - from), from) : 0;

	if (r)
		check_damage(c, from, r, strerror(-r));
	else if (to > from && !is_zero(buf, (size_t)(to - from)))
		check_damage(c, from, -EBADMSG, "padding is not zero");
}

static void use_base(struct check *c, uint32_t base)
{
	if (base && base <= THAW_MAX_BASES)
		c->used_bases |= 1ull << (base - 1);
}

static void count_chunk(const struct image_chunk *k, struct totals *t)
{
	t->shuffled += k->shuffle != 0;
	if (k->base) {
		t->in_base++;
		t->base += k->logical_len;
		return;
	}
	t->chunk += k->logical_len;
	t->stored += k->stored_len;
	t->raw += k->codec == THAW_RAW;
	t->zstd += k->codec == THAW_ZSTD;
	t->lz4 += k->codec == THAW_LZ4;
}

/* chunks lie one after the other; @unsure: an entry could not be read, so where the next begins is not known */
static void check_chunk_table(struct check *c, struct totals *t)
{
	uint64_t end = THAW_PAGE;
	bool unsure = false;

	for (uint64_t i = 0; i < c->img->info.n_chunks; i++) {
		const struct thaw_chunk *e = raw_entry(c, THAW_CHUNKS, i);
		struct image_chunk k;
		uint64_t want;

		if (!e || image_chunk(c->img, (uint32_t)i, &k)) {
			unsure = true;
			continue;
		}
		if (le32_get(e->reserved))
			entry_damage(c, THAW_CHUNKS, i, "reserved bytes are not zero");
		count_chunk(&k, t);
		use_base(c, k.base);
		if (k.base)
			continue;
		want = k.codec == THAW_RAW ? align_up(end, THAW_PAGE) : end;
		if (unsure ? k.stored_off < want : k.stored_off != want)
			entry_damage(c, THAW_CHUNKS, i, "is not where the chunk before it ends");
		else if (!unsure)
			check_gap_before(c, end, k.stored_off);
		unsure = false;
		end = k.stored_off + k.stored_len;
	}
	if (!unsure && end != c->img->footer.data_end)
		check_damage(c, end, -EBADMSG, "the chunk data does not end where the footer says");
}

static void check_flags(struct check *c, const struct totals *t)
{
	uint32_t flags = c->img->footer.incompat;

	if (!(flags & THAW_INCOMPAT_LZ4) != !t->lz4 || !(flags & THAW_INCOMPAT_SHUFFLE) != !t->shuffled)
		check_damage(c, c->img->footer.file_size - THAW_PAGE + 16, -EBADMSG,
			     "the feature flags are not those of the chunks");
}

/* -- files ------------------------------------------------------------------------------------ */

/*
 * short_chunks - for each chunk the first at or after it that is shorter than C (or the number of chunks)
 * With it a run is checked in one step: an image may name the same chunks in a million runs.
 * Return: an array to free; NULL: out of memory
 */
static uint32_t *short_chunks(struct check *c)
{
	uint64_t n = c->img->info.n_chunks;
	uint32_t *next = malloc((n + 1) * sizeof(*next));

	if (!next)
		return NULL;
	next[n] = (uint32_t)n;
	for (uint64_t i = n; i-- > 0;) {
		const struct thaw_chunk *e = raw_entry(c, THAW_CHUNKS, i);

		next[i] = e && le32_get(e->logical_len) == c->img->info.chunk_size ? next[i + 1] : (uint32_t)i;
	}
	return next;
}

/* Does the run of extent @i, @len bytes from @chunk_off of @chunk on, fit its chunks? */
static void check_run(struct check *c, uint64_t i, uint32_t chunk, uint32_t chunk_off, uint64_t len,
		      const uint32_t *short_chunk)
{
	const uint32_t size = c->img->info.chunk_size;
	const struct thaw_chunk *e;
	uint64_t last;

	if (chunk >= c->img->info.n_chunks || (chunk_off + len - 1) / size >= c->img->info.n_chunks - chunk) {
		entry_damage(c, THAW_EXTENTS, i, "reaches past the last chunk");
		return;
	}
	last = chunk + (chunk_off + len - 1) / size;
	e = raw_entry(c, THAW_CHUNKS, last);
	if (chunk_off >= size || short_chunk[chunk] < last ||
	    (e && (chunk_off + len - 1) % size >= le32_get(e->logical_len)))
		entry_damage(c, THAW_EXTENTS, i, "reaches past a chunk's end");
}

static void check_extents(struct check *c, const struct image_inode *inode, const uint32_t *short_chunk)
{
	uint64_t holes = 0;
	bool complete = true;

	for (uint64_t i = inode->first; i < inode->first + inode->count; i++) {
		const struct thaw_extent *e = raw_entry(c, THAW_EXTENTS, i), *next = NULL;
		bool last = i + 1 == inode->first + inode->count;
		uint64_t off, end;

		if (!last)
			next = raw_entry(c, THAW_EXTENTS, i + 1);
		if (!e || (!last && !next)) {
			complete = false;
			continue;
		}
		off = le64_get(e->off);
		end = last ? inode->size : le64_get(next->off);
		if (off >= end || end > inode->size || (i == inode->first && off)) {
			entry_damage(c, THAW_EXTENTS, i, "out of order");
			complete = false;
			continue;
		}
		if (le32_get(e->chunk) != THAW_HOLE) {
			check_run(c, i, le32_get(e->chunk), le32_get(e->chunk_off), end - off, short_chunk);
			continue;
		}
		holes += end - off;
		if (le32_get(e->chunk_off))
			entry_damage(c, THAW_EXTENTS, i, "a hole with an offset");
	}
	if (complete && holes != inode->hole_bytes)
		entry_damage(c, THAW_INODES, inode->ino, "hole_bytes is not the sum of its holes");
}

/* @links: how many names lead to each inode; image_readdir() looks at their order */
static void check_names(struct check *c, const struct image_inode *inode, uint32_t *links)
{
	for (uint64_t i = 0; i < inode->count; i++) {
		const struct thaw_name *e = raw_entry(c, THAW_NAMES, inode->first + i);
		struct image_dirent d;

		if (!e || image_readdir(c->img, inode->ino, i, &d))
			continue;
		if (!is_zero(e->reserved, sizeof(e->reserved)))
			entry_damage(c, THAW_NAMES, inode->first + i, "reserved bytes are not zero");
		links[d.ino]++;
	}
}

static void check_xattrs(struct check *c, const struct image_inode *inode)
{
	struct image_xattr before = { 0 };

	for (uint32_t i = 0; i < inode->n_xattrs; i++) {
		const struct thaw_xattr *e = raw_entry(c, THAW_XATTRS, inode->first_xattr + i);
		struct image_xattr x;

		if (!e || image_xattr(c->img, inode, i, &x))
			continue;
		if (!is_zero(e->reserved, sizeof(e->reserved)) || (!x.value_len && le64_get(e->value_off)))
			entry_damage(c, THAW_XATTRS, inode->first_xattr + i, "reserved bytes are not zero");
		if (before.name && compare(before.name, before.name_len, x.name, x.name_len) >= 0)
			entry_damage(c, THAW_XATTRS, inode->first_xattr + i, "names are not in order");
		before = x;
	}
}

/* fields that have no meaning for an inode's type */
static const char *unused_fields(const struct image_inode *i)
{
	mode_t type = i->mode & S_IFMT;
	bool device = type == S_IFCHR || type == S_IFBLK;

	if (i->mode & ~(uint32_t)(S_IFMT | 07777))
		return "bad mode";
	if (!device && (i->rdev_major || i->rdev_minor))
		return "a device number that is not a device's";
	if (type != S_IFDIR && i->parent)
		return "a parent that is not a directory's";
	if (type != S_IFREG && (i->format || i->hole_bytes))
		return "fields of a file that is none";
	if (type == S_IFREG && i->format > THAW_DMTCP_GZ)
		return "unknown file format";
	if (type == S_IFDIR && i->size)
		return "a directory with a size";
	if (type == S_IFLNK && i->count)
		return "a symlink with a count";
	if (type != S_IFREG && type != S_IFDIR && type != S_IFLNK && i->first)
		return "a special file with data";
	return NULL;
}

struct ranges {
	uint64_t extents, names, xattrs;
	const uint32_t *short_chunk;
};

static void check_inode(struct check *c, const struct image_inode *i, struct ranges *next, uint32_t *links,
			struct totals *t)
{
	const struct thaw_inode *e = raw_entry(c, THAW_INODES, i->ino);
	const char *what = unused_fields(i), *target;
	size_t len;

	if (what)
		entry_damage(c, THAW_INODES, i->ino, what);
	if (e && !is_zero(e->reserved, sizeof(e->reserved)))
		entry_damage(c, THAW_INODES, i->ino, "reserved bytes are not zero");
	if (check_range(c, THAW_INODES, i->ino, i->first_xattr, i->n_xattrs, &next->xattrs))
		check_xattrs(c, i);
	if (S_ISREG(i->mode)) {
		if (check_range(c, THAW_INODES, i->ino, i->first, i->count, &next->extents))
			check_extents(c, i, next->short_chunk);
		t->logical += i->size;
		t->hole += i->hole_bytes;
		t->files++;
	} else if (S_ISDIR(i->mode)) {
		if (check_range(c, THAW_INODES, i->ino, i->first, i->count, &next->names))
			check_names(c, i, links);
		t->dirs++;
	} else if (S_ISLNK(i->mode)) {
		(void)image_readlink(c->img, i->ino, &target, &len);
	}
}

static int check_files(struct check *c, struct totals *t)
{
	uint64_t n = c->img->info.n_inodes;
	_cleanup_free_ uint32_t *links = calloc(n, sizeof(*links)), *short_chunk = short_chunks(c);
	struct ranges next = { .short_chunk = short_chunk };
	struct image_inode i;
	bool complete = true;

	if (!links || !short_chunk)
		return -ENOMEM;
	for (uint32_t ino = 0; ino < n; ino++) {
		if (image_inode(c->img, ino, &i)) {
			complete = false;
			continue;
		}
		check_inode(c, &i, &next, links, t);
	}
	if (!complete)
		return 0;
	check_covered(c, THAW_EXTENTS, next.extents);
	check_covered(c, THAW_NAMES, next.names);
	check_covered(c, THAW_XATTRS, next.xattrs);
	for (uint32_t ino = 0; ino < n; ino++) {
		if (image_inode(c->img, ino, &i))
			continue;
		if (i.nlink != links[ino])
			entry_damage(c, THAW_INODES, ino, "its number of names is another");
		else if (ino != IMAGE_ROOT && (!i.nlink || (S_ISDIR(i.mode) && i.nlink != 1)))
			entry_damage(c, THAW_INODES, ino, "no name, or a directory with several");
	}
	return 0;
}

/* -- address spaces --------------------------------------------------------------------------- */

static void check_regions(struct check *c, const struct image_space *s)
{
	uint64_t end = 0;
	bool past_end = false; /* a region ended at 2^64 */

	for (uint32_t i = 0; i < s->n_regions; i++) {
		const struct thaw_region *e = raw_entry(c, THAW_REGIONS, s->first_region + i);
		struct image_region g;

		if (!e || image_region(c->img, s, i, &g))
			continue;
		if (!is_zero(e->reserved, sizeof(e->reserved)) || g.prot & ~7u ||
		    (!g.name_len && le64_get(e->name_off)))
			entry_damage(c, THAW_REGIONS, s->first_region + i, "reserved bits are not zero");
		if (past_end || g.addr < end)
			entry_damage(c, THAW_REGIONS, s->first_region + i, "overlaps the one before");
		end = g.addr + g.len;
		past_end = end == 0;
	}
}

static bool inside_region(struct check *c, const struct image_space *s, const struct image_segment *g)
{
	struct image_region region;
	uint32_t k;

	if (image_region_at(c->img, s, g->addr, &k) || k == s->n_regions || image_region(c->img, s, k, &region))
		return false;
	return g->addr >= region.addr && g->addr - region.addr <= region.len - g->len && g->len <= region.len;
}

/* the file that a data segment leads to */
static const char *segment_file_error(struct check *c, const struct image_segment *g)
{
	struct image *from = c->img;
	struct image_inode inode;

	if (g->base && image_base_open(c->img, g->base - 1u, &from))
		return NULL; /* that the base is missing is reported with the bases */
	if (image_inode(from, g->ino, &inode) || !S_ISREG(inode.mode))
		return "does not lead to a file";
	return range_inside(g->off, g->len, inode.size) ? NULL : "leads outside its file";
}

static void check_segments(struct check *c, const struct image_space *s)
{
	uint64_t end = 0;

	for (uint32_t i = 0; i < s->n_segments; i++) {
		const struct thaw_segment *e = raw_entry(c, THAW_SEGMENTS, s->first_segment + i);
		const char *what = NULL;
		struct image_segment g;

		if (!e || image_segment(c->img, s, i, &g))
			continue;
		use_base(c, g.base);
		if (e->reserved || (g.kind != THAW_SEG_DATA && (g.off || g.ino || g.base)))
			what = "reserved bytes are not zero";
		else if (g.addr < end)
			what = "overlaps the one before";
		else if (!inside_region(c, s, &g))
			what = "is not inside a region";
		else if (g.kind == THAW_SEG_DATA)
			what = segment_file_error(c, &g);
		if (what)
			entry_damage(c, THAW_SEGMENTS, s->first_segment + i, what);
		end = g.addr + g.len;
	}
}

static void check_spaces(struct check *c)
{
	uint64_t next_region = 0, next_segment = 0;
	struct image_space s, before = { 0 };
	struct image_inode inode;
	bool complete = true;

	for (uint32_t i = 0; i < c->img->info.n_spaces; i++) {
		const struct thaw_space *e = raw_entry(c, THAW_SPACES, i);
		bool regions, segments;

		if (!e || image_space(c->img, i, &s)) {
			complete = false;
			continue;
		}
		if (!is_zero(e->reserved, sizeof(e->reserved)))
			entry_damage(c, THAW_SPACES, i, "reserved bytes are not zero");
		if (before.name && compare(before.name, before.name_len, s.name, s.name_len) >= 0)
			entry_damage(c, THAW_SPACES, i, "names are not in order");
		if (!image_inode(c->img, s.ino, &inode) && !S_ISREG(inode.mode))
			entry_damage(c, THAW_SPACES, i, "its member is not a file");
		regions = check_range(c, THAW_SPACES, i, s.first_region, s.n_regions, &next_region);
		segments = check_range(c, THAW_SPACES, i, s.first_segment, s.n_segments, &next_segment);
		if (regions)
			check_regions(c, &s);
		if (segments)
			check_segments(c, &s);
		before = s;
	}
	if (complete) {
		check_covered(c, THAW_REGIONS, next_region);
		check_covered(c, THAW_SEGMENTS, next_segment);
	}
}

/* -- the rest --------------------------------------------------------------------------------- */

/* is entry @i, whose id is @id, there before? */
static bool base_twice(struct check *c, uint32_t i, const uint8_t id[16])
{
	struct image_base b;

	for (uint32_t k = 0; k < i; k++)
		if (!image_base(c->img, k, &b) && !memcmp(b.id, id, 16))
			return true;
	return false;
}

static void check_bases(struct check *c)
{
	for (uint32_t i = 0; i < c->img->info.n_bases; i++) {
		const struct thaw_base *e = raw_entry(c, THAW_BASES, i);
		struct image_base b;
		struct image *base;

		if (!e || image_base(c->img, i, &b))
			continue;
		if (!is_zero(e->reserved, sizeof(e->reserved)))
			entry_damage(c, THAW_BASES, i, "reserved bytes are not zero");
		if (base_twice(c, i, b.id))
			entry_damage(c, THAW_BASES, i, "is listed twice");
		if (image_base_open(c->img, i, &base) != -ENOENT)
			continue;
		c->n_missing++;
		check_damage(c, c->img->index.sections[THAW_BASES].offset + i * sizeof(*e), -ENOENT,
			     "a base is missing");
	}
}

static void check_properties(struct check *c)
{
	const char *text, *what;
	size_t len, off;

	if (image_properties(c->img, &text, &len) || !len)
		return;
	what = properties_check(text, len, &off);
	if (what)
		entry_damage(c, THAW_PROPERTIES, off, what);
}

static void check_bases_used(struct check *c)
{
	for (uint32_t i = 0; i < c->img->info.n_bases; i++)
		if (!(c->used_bases >> i & 1))
			entry_damage(c, THAW_BASES, i, "nothing needs it");
}

static void check_summary(struct check *c, const struct totals *t)
{
	const struct thaw_summary *e = raw_entry(c, THAW_SUMMARY, 0);
	const struct image_info *i = &c->img->info;
	uint64_t needed = t->hole + t->chunk + t->base;
	uint64_t dup = t->logical > needed ? t->logical - needed : 0;

	if (!e)
		return;
	if (!is_zero(e->reserved, sizeof(e->reserved)))
		entry_damage(c, THAW_SUMMARY, 0, "reserved bytes are not zero");
	if (i->logical_bytes != t->logical || i->hole_bytes != t->hole || i->chunk_bytes != t->chunk ||
	    i->stored_bytes != t->stored || i->base_bytes != t->base || i->dup_bytes != dup ||
	    i->n_chunks_raw != t->raw || i->n_chunks_zstd != t->zstd || i->n_chunks_lz4 != t->lz4 ||
	    i->n_chunks_shuffled != t->shuffled || i->n_chunks_base != t->in_base || i->n_files != t->files ||
	    i->n_dirs != t->dirs)
		entry_damage(c, THAW_SUMMARY, 0, "its sums are not those of the tables");
}

int check_tables(struct check *c)
{
	struct totals t = { 0 };
	int r;

	check_bases(c);
	check_chunk_table(c, &t);
	r = check_files(c, &t);
	check_spaces(c);
	check_properties(c);
	/* with damaged entries, sums say nothing */
	if (!r && c->result->n_index_errors == c->n_missing) {
		check_bases_used(c);
		check_flags(c, &t);
		check_summary(c, &t);
	}
	return r;
}
