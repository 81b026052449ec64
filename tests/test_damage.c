/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Damage of all kinds: the reader gives -EBADMSG or the right bytes, and the checker finds it; nothing crashes or
 * hangs.
 *
 *   test_damage                     truncation at every byte, every bit flipped, lies with right checksums
 *   test_damage --write DIR         only write the good image and those that lie into DIR, for test_hostile.sh
 */
#include <fcntl.h>
#include <signal.h>

#include "common/log.h"
#include "imgfmt/verify.h"
#include "tests/forge.h"
#include "tests/readall.h"

#define LIMIT_SECONDS 800

struct bench {
	uint8_t *good; /* a good image */
	size_t size;
	struct seen want[FORGE_INODES + 1][SEEN_KINDS]; /* what is in it */
	struct chunk_ctx *ctx;
	uint8_t *buf;
};

static const struct image_opts quiet = { .quiet = true };

static int open_bytes(const uint8_t *bytes, size_t size, struct image **ret)
{
	struct source *src;

	CHECK(source_open_memory(bytes, size, "memory", &src) == 0);
	return image_open_source(src, &quiet, ret);
}

static struct readall reader(struct bench *b, struct image *img)
{
	return (struct readall){ .img = img, .ctx = b->ctx, .buf = b->buf, .max_runs = 100000, .max_items = 1000 };
}

/* how many findings the checker has */
static uint64_t check(struct image *img, bool index_only)
{
	const struct verify_opts opts = { .threads = 1, .index_only = index_only };
	struct verify_result result;

	CHECK_EQ(image_check(img, &opts, &result), 0);
	return result.n_index_errors + result.n_damaged;
}

static void bench_init(struct bench *b, struct forge *f)
{
	struct image *img;
	struct readall ra;

	b->good = forge_build(f, &b->size);
	b->ctx = chunk_ctx_new();
	b->buf = malloc(THAW_CHUNK_MAX);
	CHECK(b->ctx && b->buf);
	CHECK_EQ(open_bytes(b->good, b->size, &img), 0);
	CHECK_EQ(check(img, false), 0);
	ra = reader(b, img);
	CHECK_EQ(readall_items(&ra), ARRAY_SIZE(b->want));
	readall(&ra, b->want);
	for (size_t i = 0; i < ARRAY_SIZE(b->want); i++)
		for (int k = 0; k < SEEN_KINDS; k++)
			CHECK_EQ(b->want[i][k].r, 0);
	image_close(img);
}

/* -- truncation, flipped bits ------------------------------------------------------------------ */

static void test_truncated(struct bench *b)
{
	struct image *img;

	for (size_t size = 0; size < b->size; size++) {
		/* at the end of a buffer, so that a sanitizer sees a read too far */
		uint8_t *copy = malloc(size ? size : 1);

		CHECK(copy);
		memcpy(copy, b->good, size);
		CHECK_EQ(open_bytes(copy, size, &img), -EBADMSG);
		free(copy);
	}
}

/* an error, or exactly what is in the good image */
static void compare(struct bench *b, struct image *img, size_t off)
{
	struct readall ra = reader(b, img);
	struct seen got[FORGE_INODES + 1][SEEN_KINDS];

	CHECK_EQ(readall_items(&ra), ARRAY_SIZE(got));
	readall(&ra, got);
	for (size_t i = 0; i < ARRAY_SIZE(got); i++) {
		for (int k = 0; k < SEEN_KINDS; k++) {
			const struct seen *g = &got[i][k], *w = &b->want[i][k];

			if (g->r == -EBADMSG || (g->r == 0 && g->hash == w->hash))
				continue;
			fprintf(stderr, "damage at %zu: item %zu, kind %d: result %d, %s\n", off, i, k, g->r,
				g->hash == w->hash ? "right" : "wrong");
			exit(1);
		}
	}
}

/* @read: also read everything; without it only that the checker sees the damage */
static void try_damaged(struct bench *b, const uint8_t *bytes, size_t off, bool index_only, bool read)
{
	struct image *img;
	int r = open_bytes(bytes, b->size, &img);

	if (r) {
		CHECK_EQ(r, -EBADMSG);
		return;
	}
	/* a few bits of compressed data mean nothing: without them, the same bytes come out */
	if (check(img, index_only) == 0 && index_only) {
		fprintf(stderr, "damage at %zu is not seen\n", off);
		exit(1);
	}
	image_close(img);
	if (!read)
		return;
	/* again, so that what the check has read is read again */
	CHECK_EQ(open_bytes(bytes, b->size, &img), 0);
	compare(b, img, off);
	image_close(img);
}

/* is something other than zero close by? */
static bool near_data(const struct bench *b, size_t off)
{
	for (size_t i = off < 16 ? 0 : off - 16; i < min_u64(off + 16, b->size); i++)
		if (b->good[i])
			return true;
	return false;
}

/*
 * Every bit outside the chunk data, one after the other. Zeros far from anything else are alike to reader and
 * checker: of those one bit in eight is enough for every day, and the reader need not be asked.
 */
static void test_index_bits(struct bench *b)
{
	size_t data_end = le64_get(((struct thaw_footer *)(void *)(b->good + b->size - THAW_PAGE))->data_end);
	uint8_t *copy = malloc(b->size);
	const char *long_tests = getenv("THAW_LONG");
	bool thorough = long_tests && !strcmp(long_tests, "1");

	CHECK(copy);
	memcpy(copy, b->good, b->size);
	for (size_t off = 0; off < b->size; off++) {
		bool all;

		if (off == THAW_PAGE)
			off = data_end;
		all = thorough || near_data(b, off);
		for (size_t bit = 0; bit < 8; bit++) {
			if (!all && bit != off % 8)
				continue;
			copy[off] ^= (uint8_t)(1u << bit);
			try_damaged(b, copy, off, true, all);
			copy[off] = b->good[off];
		}
	}
	free(copy);
}

/* bits in the chunk data; the padding before raw chunks is there too */
static void test_data_bits(struct bench *b)
{
	struct thaw_footer *footer = (struct thaw_footer *)(void *)(b->good + b->size - THAW_PAGE);
	size_t data_len = le64_get(footer->data_end) - THAW_PAGE;
	uint8_t *copy = malloc(b->size);
	uint64_t seed = 4711;

	CHECK(copy);
	memcpy(copy, b->good, b->size);
	for (int i = 0; i < 4000; i++) {
		size_t off = THAW_PAGE + test_random(&seed) % data_len;
		unsigned n = 1 + test_random(&seed) % 3;

		for (unsigned k = 0; k < n && off + k < THAW_PAGE + data_len; k++)
			copy[off + k] ^= (uint8_t)(1u << test_random(&seed) % 8);
		try_damaged(b, copy, off, false, true);
		memcpy(copy + off, b->good + off, min_u64(3, b->size - off));
	}
	free(copy);
}

/* -- lies -------------------------------------------------------------------------------------- */

enum outcome {
	AT_OPEN,  /* cannot be opened: -EBADMSG */
	TOO_NEW,  /* -EPROTONOSUPPORT */
	AT_CHECK, /* opens, but something in it is damaged */
	IS_GOOD,  /* nothing is wrong with it */
	NO_BASE,  /* opens, but a base is missing */
};

struct lie {
	const char *name;
	enum outcome outcome;
	void (*tell)(struct forge *f);             /* before hashes are made, or */
	void (*poke)(uint8_t *image, size_t size); /* in the bytes of header and footer */
};

#define CHUNK(i)   FORGE_ENTRY(f, THAW_CHUNKS, struct thaw_chunk, i)
#define INODE(i)   FORGE_ENTRY(f, THAW_INODES, struct thaw_inode, i)
#define NAME(i)    FORGE_ENTRY(f, THAW_NAMES, struct thaw_name, i)
#define EXTENT(i)  FORGE_ENTRY(f, THAW_EXTENTS, struct thaw_extent, i)
#define XATTR(i)   FORGE_ENTRY(f, THAW_XATTRS, struct thaw_xattr, i)
#define SPACE(i)   FORGE_ENTRY(f, THAW_SPACES, struct thaw_space, i)
#define REGION(i)  FORGE_ENTRY(f, THAW_REGIONS, struct thaw_region, i)
#define SEGMENT(i) FORGE_ENTRY(f, THAW_SEGMENTS, struct thaw_segment, i)
#define FOOTER     ((struct thaw_footer *)(void *)(image + size - THAW_PAGE))
#define HEADER     ((struct thaw_header *)(void *)image)

/* a lie of one assignment */
#define TELL(name, statement)             \
	static void name(struct forge *f) \
	{                                 \
		statement;                \
	}
#define POKE(name, statement)                         \
	static void name(uint8_t *image, size_t size) \
	{                                             \
		(void)size;                           \
		statement;                            \
	}

/* names */
static void rename_mix(struct forge *f, const char *name, size_t len)
{
	NAME(6)->name_off = le64_make(forge_string(f, name, len));
	NAME(6)->name_len = le32_make((uint32_t)len);
}
TELL(name_dotdot, rename_mix(f, "..", 2))
TELL(name_dot, rename_mix(f, ".", 1))
TELL(name_slash, rename_mix(f, "../../evil", 10))
TELL(name_absolute, rename_mix(f, "/evil", 5))
TELL(name_nul, rename_mix(f, "mi\0x", 4))
TELL(name_empty, NAME(6)->name_len = le32_make(0))
TELL(name_long, forge_string(f, NULL, 65536); rename_mix(f, "x", 1); NAME(6)->name_len = le32_make(65536);
     NAME(6)->name_off = le64_make(0))
TELL(name_256, forge_string(f, "x", 1); memset(forge_add(&f->sections[THAW_STRINGS], NULL, 256), 'x', 256);
     NAME(6)->name_len = le32_make(256); NAME(6)->name_off = le64_make(f->sections[THAW_STRINGS].len - 256))
TELL(name_twice, rename_mix(f, "big", 3))
TELL(name_unsorted, rename_mix(f, "a", 1))
TELL(name_outside, NAME(6)->name_off = le64_make(UINT64_MAX - 1))
TELL(name_past_end, NAME(6)->name_off = le64_make(f->sections[THAW_STRINGS].len - 1))
TELL(name_no_inode, NAME(6)->inode = le32_make(FORGE_INODES))
TELL(name_root, NAME(6)->inode = le32_make(FORGE_ROOT))
TELL(name_dir_in_itself, NAME(6)->inode = le32_make(FORGE_DIR))
TELL(name_other_parent, NAME(6)->parent = le32_make(FORGE_ROOT))
TELL(name_parent_no_dir, NAME(6)->parent = le32_make(FORGE_BIG))
TELL(name_reserved, NAME(6)->reserved[11] = 1)
TELL(dir_twice, NAME(0)->inode = le32_make(FORGE_DIR))
TELL(dirs_share_names, INODE(FORGE_DIR)->first = le64_make(0))
TELL(dir_too_many, INODE(FORGE_DIR)->count = le64_make(UINT64_MAX))
TELL(dir_range_wraps, INODE(FORGE_DIR)->first = le64_make(UINT64_MAX); INODE(FORGE_DIR)->count = le64_make(2))
TELL(dir_parent_self, INODE(FORGE_DIR)->parent = le32_make(FORGE_DIR))
TELL(dir_parent_later, INODE(FORGE_DIR)->parent = le32_make(FORGE_EMPTY))
TELL(dir_with_size, INODE(FORGE_DIR)->size = le64_make(1))

/* inodes */
TELL(inode_no_type, INODE(FORGE_EMPTY)->mode = le32_make(0644))
TELL(inode_high_mode, INODE(FORGE_EMPTY)->mode = le32_make(S_IFREG | 0644 | 0x10000))
TELL(inode_root_file, INODE(FORGE_ROOT)->mode = le32_make(S_IFREG | 0644))
TELL(inode_nlink, INODE(FORGE_BIG)->nlink = le32_make(3))
TELL(inode_nsec, INODE(FORGE_BIG)->mtime_nsec = le32_make(1000000000))
TELL(inode_size_huge, INODE(FORGE_BIG)->size = le64_make(UINT64_MAX))
TELL(inode_size_longer, INODE(FORGE_BIG)->size = le64_make(150001))
TELL(inode_size_enormous, INODE(FORGE_BIG)->size = le64_make(INT64_MAX))
TELL(inode_size_shorter, INODE(FORGE_MIX)->size = le64_make(138767))
TELL(inode_no_size, INODE(FORGE_BIG)->size = le64_make(0))
TELL(inode_holes, INODE(FORGE_MIX)->hole_bytes = le64_make(95999))
TELL(inode_all_holes, INODE(FORGE_MIX)->hole_bytes = le64_make(UINT64_MAX))
TELL(inode_reserved, INODE(FORGE_MIX)->reserved[39] = 1)
TELL(inode_format, INODE(FORGE_MIX)->format = le32_make(5))
TELL(inode_rdev, INODE(FORGE_MIX)->rdev_minor = le32_make(5))
TELL(inode_fifo_size, INODE(FORGE_FIFO)->size = le64_make(5))
TELL(inode_fifo_first, INODE(FORGE_FIFO)->first = le64_make(5))
TELL(inode_file_parent, INODE(FORGE_BIG)->parent = le32_make(1))
TELL(link_empty, INODE(FORGE_LINK)->size = le64_make(0))
TELL(link_long, forge_string(f, NULL, 8192); INODE(FORGE_LINK)->size = le64_make(4096);
     INODE(FORGE_LINK)->first = le64_make(0))
TELL(link_outside, INODE(FORGE_LINK)->first = le64_make(UINT64_MAX - 2))
TELL(link_nul, INODE(FORGE_LINK)->first = le64_make(forge_string(f, "a\0b/c", 5)))
TELL(link_count, INODE(FORGE_LINK)->count = le64_make(1))

/* extents */
TELL(extent_first_not_0, EXTENT(0)->off = le64_make(1))
TELL(extent_overlap, EXTENT(3)->off = le64_make(3999))
TELL(extent_same_off, EXTENT(3)->off = le64_make(4000))
TELL(extent_cycle, EXTENT(5)->off = le64_make(0))
TELL(extent_past_size, EXTENT(6)->off = le64_make(140000))
TELL(extent_no_chunk, EXTENT(1)->chunk = le32_make(7))
TELL(extent_chunk_max, EXTENT(1)->chunk = le32_make(0xfffffffe))
TELL(extent_off_in_chunk, EXTENT(1)->chunk_off = le32_make(4096))
TELL(extent_chunk_off_max, EXTENT(1)->chunk_off = le32_make(UINT32_MAX))
TELL(extent_too_long, EXTENT(1)->chunk_off = le32_make(97))
TELL(extent_short_inside, EXTENT(0)->chunk = le32_make(2))
TELL(extent_hole_with_off, EXTENT(2)->chunk_off = le32_make(1))
TELL(extent_past_last, EXTENT(6)->chunk = le32_make(6); EXTENT(6)->chunk_off = le32_make(2000))
TELL(extents_shared, INODE(FORGE_MIX)->first = le64_make(0); INODE(FORGE_MIX)->count = le64_make(1);
     INODE(FORGE_MIX)->size = le64_make(150000); INODE(FORGE_MIX)->hole_bytes = le64_make(0))
TELL(extents_too_many, INODE(FORGE_BIG)->count = le64_make(UINT64_MAX))
TELL(extents_none, INODE(FORGE_BIG)->count = le64_make(0))

/* chunks */
TELL(chunk_at_header, CHUNK(0)->stored_off = le64_make(0))
TELL(chunk_past_data, CHUNK(6)->stored_off = le64_make(THAW_PAGE + f->chunk_data.len))
TELL(chunk_off_max, CHUNK(6)->stored_off = le64_make(UINT64_MAX - 10))
TELL(chunk_overlap, CHUNK(1)->stored_off = CHUNK(0)->stored_off; CHUNK(1)->stored_len = CHUNK(0)->stored_len)
TELL(chunk_stored_0, CHUNK(1)->stored_len = le32_make(0))
TELL(chunk_stored_long, CHUNK(0)->stored_len = le32_make(2 * FORGE_CHUNK + 1))
TELL(chunk_stored_max, CHUNK(0)->stored_len = le32_make(UINT32_MAX))
TELL(chunk_logical_0, CHUNK(5)->logical_len = le32_make(0))
TELL(chunk_logical_long, CHUNK(0)->logical_len = le32_make(FORGE_CHUNK + 1))
TELL(chunk_logical_max, CHUNK(0)->logical_len = le32_make(UINT32_MAX))
TELL(chunk_logical_less, CHUNK(2)->logical_len = le32_make(18927))
TELL(chunk_lz4_less, CHUNK(5)->logical_len = le32_make(2999))
TELL(chunk_lz4_more, CHUNK(5)->logical_len = le32_make(3001))
TELL(chunk_hash, CHUNK(4)->hash = le64_make(le64_get(CHUNK(4)->hash) + 1))
TELL(chunk_codec, CHUNK(4)->codec = 3)
TELL(chunk_codec_other, CHUNK(5)->codec = THAW_ZSTD)
TELL(chunk_shuffle_3, CHUNK(4)->shuffle = 3)
TELL(chunk_shuffle_other, CHUNK(4)->shuffle = 8)
TELL(chunk_shuffle_255, CHUNK(4)->shuffle = 255)
TELL(chunk_raw_shuffle, CHUNK(3)->shuffle = 4)
TELL(chunk_raw_unaligned, CHUNK(3)->stored_off = le64_make(le64_get(CHUNK(3)->stored_off) - 1))
TELL(chunk_raw_lengths, CHUNK(3)->logical_len = le32_make(4095))
TELL(chunk_unknown_base, CHUNK(3)->base = le16_make(1))
TELL(chunk_base_max, CHUNK(3)->base = le16_make(UINT16_MAX); CHUNK(3)->stored_len = le32_make(0))
TELL(chunk_reserved, CHUNK(3)->reserved = le32_make(1))
TELL(chunk_padding, f->chunk_data.data[le64_get(CHUNK(3)->stored_off) - THAW_PAGE - 1] = 1)
TELL(chunk_behind, forge_add(&f->chunk_data, "behind the last", 15))
TELL(flag_missing, f->incompat &= ~(uint32_t)THAW_INCOMPAT_LZ4)
TELL(flag_shuffle_missing, f->incompat &= ~(uint32_t)THAW_INCOMPAT_SHUFFLE)

/* frames: a chunk 7 at the end that nothing uses, with a frame that is not what the document wants */
static void odd_frame(struct forge *f, const void *frame, size_t len, uint32_t logical_len)
{
	static uint8_t zeros[FORGE_CHUNK];

	forge_stored_chunk(f, THAW_ZSTD, 0, frame, len, zeros, logical_len);
	forge_summary(f);
}
/* 65536 zeros in a frame: magic, descriptor, size or window …, one RLE block */
TELL(frame_rle, odd_frame(f, "\x28\xb5\x2f\xfd\x60\x00\xff\x03\x00\x08\x00", 11, 65536))
TELL(frame_bomb, odd_frame(f, "\x28\xb5\x2f\xfd\xa0\x00\x00\x00\x40\x03\x00\x08\x00", 13, 65536))
TELL(frame_lies_short, odd_frame(f, "\x28\xb5\x2f\xfd\x60\x00\x00\x03\x00\x08\x00", 11, 256))
TELL(frame_no_size, odd_frame(f, "\x28\xb5\x2f\xfd\x00\x30\x03\x00\x08\x00", 10, 65536))
TELL(frame_window, odd_frame(f, "\x28\xb5\x2f\xfd\x40\x88\x00\xff\x03\x00\x08\x00", 12, 65536))
TELL(frame_window_max, odd_frame(f, "\x28\xb5\x2f\xfd\x40\xff\x00\xff\x03\x00\x08\x00", 12, 65536))
TELL(frame_dictionary, odd_frame(f, "\x28\xb5\x2f\xfd\x61\x07\x00\xff\x03\x00\x08\x00", 12, 65536))
TELL(frame_skippable, odd_frame(f, "\x50\x2a\x4d\x18\x03\x00\x00\x00zip", 11, 65536))
TELL(frame_and_more, odd_frame(f, "\x28\xb5\x2f\xfd\x60\x00\xff\x03\x00\x08\x00!", 12, 65536))
TELL(frame_twice,
     odd_frame(f, "\x28\xb5\x2f\xfd\x60\x00\xff\x03\x00\x08\x00\x28\xb5\x2f\xfd\x20\x00\x01\x00\x00", 20, 65536))
TELL(frame_cut, odd_frame(f, "\x28\xb5\x2f\xfd\x60\x00\xff\x03\x00\x08", 10, 65536))
TELL(frame_tiny, odd_frame(f, "\x28", 1, 65536))

/* xattrs */
TELL(xattr_no_name, XATTR(0)->name_len = le32_make(0))
TELL(xattr_name_256, forge_string(f, NULL, 300); XATTR(0)->name_off = le64_make(0); XATTR(0)->name_len = le32_make(256))
TELL(xattr_name_nul, XATTR(0)->name_off = le64_make(forge_string(f, "user.\0", 6)))
TELL(xattr_name_outside, XATTR(0)->name_off = le64_make(INT64_MAX))
TELL(xattr_value_long, forge_string(f, NULL, 65537); XATTR(0)->value_off = le64_make(0);
     XATTR(0)->value_len = le32_make(65537))
TELL(xattr_value_max, XATTR(0)->value_len = le32_make(UINT32_MAX))
TELL(xattr_value_outside, XATTR(0)->value_off = le64_make(f->sections[THAW_STRINGS].len))
TELL(xattr_unsorted, XATTR(1)->name_off = XATTR(0)->name_off)
TELL(xattr_too_many, INODE(FORGE_BIG)->n_xattrs = le32_make(UINT32_MAX))
TELL(xattr_nobodys, INODE(FORGE_BIG)->n_xattrs = le32_make(1))
TELL(xattr_twice, INODE(FORGE_MIX)->n_xattrs = le32_make(2))
TELL(xattr_reserved, XATTR(1)->reserved[0] = 1)

/* address spaces */
static void rename_space(struct forge *f, const char *name, size_t len)
{
	SPACE(0)->name_off = le64_make(forge_string(f, name, len));
	SPACE(0)->name_len = le32_make((uint32_t)len);
}
TELL(space_dotdot, rename_space(f, "../77", 5))
TELL(space_absolute, rename_space(f, "/77", 3))
TELL(space_empty_part, rename_space(f, "a//b", 4))
TELL(space_slash_end, rename_space(f, "a/", 2))
TELL(space_dot, rename_space(f, "a/./b", 5))
TELL(space_nul, rename_space(f, "a\0b", 3))
TELL(space_no_name, SPACE(0)->name_len = le32_make(0))
TELL(space_name_long, forge_string(f, NULL, 4096); SPACE(0)->name_off = le64_make(0);
     SPACE(0)->name_len = le32_make(4096))
TELL(space_kind, SPACE(0)->kind = le32_make(5))
TELL(space_no_inode, SPACE(0)->inode = le32_make(FORGE_INODES))
TELL(space_of_dir, SPACE(0)->inode = le32_make(FORGE_DIR))
TELL(space_regions, SPACE(0)->n_regions = le32_make(UINT32_MAX))
TELL(space_segments, SPACE(0)->n_segments = le32_make(5))
TELL(space_first, SPACE(0)->first_segment = le64_make(UINT64_MAX - 1))
TELL(space_reserved, SPACE(0)->reserved[3] = 1)
TELL(space_shares, forge_space(f, "78", FORGE_MIX, 0, 3, 0, 4))
TELL(space_twice, forge_space(f, "77", FORGE_MIX, 0, 0, 0, 0))
TELL(region_empty, REGION(1)->len = le64_make(0))
TELL(region_wraps, REGION(2)->len = le64_make(0xa00001))
TELL(region_overlap, REGION(1)->addr = le64_make(0x2ffff))
TELL(region_unsorted, REGION(0)->addr = le64_make(0x500000))
TELL(region_prot, REGION(1)->prot = le32_make(8))
TELL(region_name_long, forge_string(f, NULL, 5000); REGION(1)->name_off = le64_make(0);
     REGION(1)->name_len = le32_make(4097))
TELL(region_name_max, REGION(0)->name_len = le32_make(UINT32_MAX))
TELL(region_reserved, REGION(0)->reserved[0] = 1)
TELL(segment_empty, SEGMENT(1)->len = le64_make(0))
TELL(segment_high, SEGMENT(3)->addr = le64_make(INT64_MAX))
TELL(segment_wraps, SEGMENT(3)->len = le64_make(UINT64_MAX))
TELL(segment_overlap, SEGMENT(1)->addr = le64_make(0x1ffff))
TELL(segment_no_region, SEGMENT(3)->addr = le64_make(0x402001))
TELL(segment_kind, SEGMENT(1)->kind = 4)
TELL(segment_kind_0, SEGMENT(1)->kind = 0)
TELL(segment_base, SEGMENT(0)->base = le16_make(1))
TELL(segment_hole_inode, SEGMENT(1)->inode = le32_make(1))
TELL(segment_no_inode, SEGMENT(0)->inode = le32_make(UINT32_MAX))
TELL(segment_of_dir, SEGMENT(0)->inode = le32_make(FORGE_DIR))
TELL(segment_past_file, SEGMENT(0)->off = le64_make(84465))
TELL(segment_off_max, SEGMENT(0)->off = le64_make(UINT64_MAX - 5))
TELL(segment_reserved, SEGMENT(0)->reserved = 1)

/* bases */
static void add_base(struct forge *f, const char *name, size_t len)
{
	struct thaw_base b = { .name_off = le64_make(forge_string(f, name, len)),
			       .name_len = le32_make((uint32_t)len) };

	memset(b.image_id, 0xab, sizeof(b.image_id));
	forge_add(&f->sections[THAW_BASES], &b, sizeof(b));
	f->incompat |= THAW_INCOMPAT_BASE;
}
static void base_missing(struct forge *f)
{
	const struct thaw_chunk c = { .logical_len = le32_make(100), .base = le16_make(1) };

	add_base(f, "gone.thaw", 9);
	forge_add(&f->sections[THAW_CHUNKS], &c, sizeof(c));
	forge_summary(f);
}
static void base_twice(struct forge *f)
{
	const struct thaw_chunk a = { .logical_len = le32_make(100), .base = le16_make(1) };
	const struct thaw_chunk b = { .logical_len = le32_make(100), .base = le16_make(2) };

	add_base(f, "gone.thaw", 9);
	add_base(f, "again.thaw", 10);
	forge_add(&f->sections[THAW_CHUNKS], &a, sizeof(a));
	forge_add(&f->sections[THAW_CHUNKS], &b, sizeof(b));
	forge_summary(f);
}
TELL(base_unused, add_base(f, "gone.thaw", 9))
TELL(base_path, add_base(f, "../../etc/passwd", 16))
TELL(base_nul, add_base(f, "a\0b", 3))
TELL(base_no_name, add_base(f, "", 0))
TELL(base_long_name, add_base(f, "x", 1); FORGE_ENTRY(f, THAW_BASES, struct thaw_base, 0)->name_len = le32_make(256))
TELL(base_reserved, add_base(f, "x", 1); FORGE_ENTRY(f, THAW_BASES, struct thaw_base, 0)->reserved[0] = 1)
TELL(base_no_flag, add_base(f, "x", 1); f->incompat &= ~(uint32_t)THAW_INCOMPAT_BASE)
TELL(base_only_flag, f->incompat |= THAW_INCOMPAT_BASE)
static void base_65(struct forge *f)
{
	for (int i = 0; i < 65; i++)
		add_base(f, "x", 1);
}

/* the rest of the index */
TELL(summary_wrong, FORGE_ENTRY(f, THAW_SUMMARY, struct thaw_summary, 0)->n_files = le64_make(1))
TELL(summary_reserved, FORGE_ENTRY(f, THAW_SUMMARY, struct thaw_summary, 0)->reserved[0] = 1)
TELL(summary_twice, forge_add(&f->sections[THAW_SUMMARY], NULL, sizeof(struct thaw_summary)))
TELL(summary_none, f->sections[THAW_SUMMARY].len = 0)
TELL(inodes_none, f->sections[THAW_INODES].len = 0)
TELL(strings_none, f->sections[THAW_STRINGS].len = 0)
TELL(chunks_none, f->sections[THAW_CHUNKS].len = 0)
TELL(chunks_fewer, f->sections[THAW_CHUNKS].len -= sizeof(struct thaw_chunk))
TELL(extents_none_at_all, f->sections[THAW_EXTENTS].len = 0)
TELL(part_of_an_entry, forge_add(&f->sections[THAW_NAMES], NULL, 5))
TELL(extent_nobodys, forge_extent(f, 0, 0, 0))
/* the last directory loses its last name to a parent that is none */
static void name_under_link(struct forge *f)
{
	forge_name(f, FORGE_LINK, FORGE_EMPTY, "zzz", 3);
	FORGE_ENTRY(f, THAW_INODES, struct thaw_inode, FORGE_EMPTY)->nlink = le32_make(2);
}
TELL(name_nobodys, forge_name(f, FORGE_DIR, FORGE_EMPTY, "zzz", 3))
TELL(inode_nobodys, forge_inode(f, S_IFREG | 0600, 1, 0, 0, 0, 0, 0); forge_summary(f))
TELL(json_broken, forge_add(&f->sections[THAW_PROPERTIES], "{", 1))
TELL(json_array, f->sections[THAW_PROPERTIES].len = 0; forge_add(&f->sections[THAW_PROPERTIES], "[1]", 3))
static void put_json(struct forge *f, const char *text)
{
	f->sections[THAW_PROPERTIES].len = 0;
	forge_add(&f->sections[THAW_PROPERTIES], text, strlen(text));
}
TELL(json_labels_array, put_json(f, "{\"labels\":[1]}"))
TELL(json_label_number, put_json(f, "{\"labels\":{\"a\":1}}"))
TELL(json_source_number, put_json(f, "{\"source\":5}"))
TELL(json_single_number, put_json(f, "{\"single\":1}"))
TELL(json_notes_object, put_json(f, "{\"notes\":{\"a\":\"b\"}}"))
TELL(json_host_twice, put_json(f, "{\"host\":\"a\",\"x\":{\"host\":1},\"host\":\"b\"}"))
TELL(json_control, put_json(f, "{\"a\":\"\n\"}"))
TELL(json_nul, put_json(f, "{\"a\":\"\\u0000\"}"))
TELL(json_half_pair, put_json(f, "{\"a\":\"\\ud83d\"}"))
TELL(json_bom, put_json(f, "\xef\xbb\xbf{}"))
TELL(json_octal, put_json(f, "{\"a\":0123}"))
TELL(json_not_utf8, put_json(f, "{\"a\":\"\xff\"}"))
TELL(json_65_deep, put_json(f, "{\"a\":"); memset(forge_add(&f->sections[THAW_PROPERTIES], NULL, 64), '[', 64);
     memset(forge_add(&f->sections[THAW_PROPERTIES], NULL, 64), ']', 64);
     forge_add(&f->sections[THAW_PROPERTIES], "}", 1))
TELL(json_deep, f->sections[THAW_PROPERTIES].len = 0;
     memset(forge_add(&f->sections[THAW_PROPERTIES], NULL, 300000), '[', 300000))
TELL(unknown_section, forge_add(&f->sections[40], "a later version's", 17))
TELL(unknown_compat, f->compat = 0x80000001)

/* header and footer */
POKE(header_version, HEADER->version = le32_make(2))
POKE(header_version_0, HEADER->version = le32_make(0))
POKE(header_chunk_size, HEADER->chunk_size = le32_make(65537))
POKE(header_chunk_0, HEADER->chunk_size = le32_make(0))
POKE(header_chunk_huge, HEADER->chunk_size = le32_make(0x80000000))
POKE(header_chunk_other, HEADER->chunk_size = le32_make(131072))
POKE(header_reserved, HEADER->reserved[4071] = 1)
POKE(footer_version, FOOTER->version = le32_make(2))
POKE(footer_chunk_size, FOOTER->chunk_size = le32_make(131072))
POKE(footer_incompat, FOOTER->incompat = le32_make(0x80000000))
POKE(footer_size, FOOTER->file_size = le64_make(size + 1))
POKE(footer_data_end, FOOTER->data_end = le64_make(le64_get(FOOTER->data_end) - 1))
POKE(footer_data_end_0, FOOTER->data_end = le64_make(0))
POKE(footer_data_end_max, FOOTER->data_end = le64_make(UINT64_MAX))
POKE(footer_63_sections, FOOTER->n_sections = le32_make(63))
POKE(footer_sections_max, FOOTER->n_sections = le32_make(UINT32_MAX))
POKE(footer_no_sections, FOOTER->n_sections = le32_make(0))
POKE(footer_fewer, FOOTER->n_sections = le32_make(le32_get(FOOTER->n_sections) - 1))
POKE(footer_reserved, FOOTER->reserved = le32_make(1))
POKE(footer_reserved2, FOOTER->reserved2[55] = 1)
POKE(footer_table_rest, FOOTER->sections[61].reserved[0] = 1)
POKE(section_type_twice, FOOTER->sections[1].type = FOOTER->sections[0].type)
POKE(section_type_0, FOOTER->sections[0].type = le32_make(0))
POKE(section_order, struct thaw_section s = FOOTER->sections[2]; FOOTER->sections[2] = FOOTER->sections[3];
     FOOTER->sections[3] = s)
POKE(section_entry_wrong, FOOTER->sections[2].entry_size = le32_make(64))
POKE(section_entry_0, FOOTER->sections[2].entry_size = le32_make(0))
POKE(section_off, FOOTER->sections[2].offset = le64_make(le64_get(FOOTER->sections[2].offset) + THAW_PAGE))
POKE(section_off_odd, FOOTER->sections[2].offset = le64_make(le64_get(FOOTER->sections[2].offset) + 8))
POKE(section_off_max, FOOTER->sections[2].offset = le64_make(UINT64_MAX - 4095))
POKE(section_overlap, FOOTER->sections[2].offset = FOOTER->sections[1].offset)
POKE(section_len_0, FOOTER->sections[2].length = le64_make(0))
POKE(section_len_max, FOOTER->sections[2].length = le64_make(UINT64_MAX - 127))
POKE(section_len_40, FOOTER->sections[2].length = le64_make(1ull << 40))
POKE(section_len_more, FOOTER->sections[2].length = le64_make(le64_get(FOOTER->sections[2].length) + 128))
POKE(section_hash, FOOTER->sections[2].hash[0] ^= 1)
POKE(section_reserved, FOOTER->sections[2].reserved[0] = 1)

#define T(name, outcome)                   \
	{                                  \
#name, outcome, name, NULL \
	}
#define P(name, outcome)                   \
	{                                  \
#name, outcome, NULL, name \
	}
static const struct lie lies[] = {
	T(name_dotdot, AT_CHECK),
	T(name_dot, AT_CHECK),
	T(name_slash, AT_CHECK),
	T(name_absolute, AT_CHECK),
	T(name_nul, AT_CHECK),
	T(name_empty, AT_CHECK),
	T(name_long, AT_CHECK),
	T(name_256, AT_CHECK),
	T(name_twice, AT_CHECK),
	T(name_unsorted, AT_CHECK),
	T(name_outside, AT_CHECK),
	T(name_past_end, AT_CHECK),
	T(name_no_inode, AT_CHECK),
	T(name_root, AT_CHECK),
	T(name_dir_in_itself, AT_CHECK),
	T(name_other_parent, AT_CHECK),
	T(name_parent_no_dir, AT_CHECK),
	T(name_reserved, AT_CHECK),
	T(dir_twice, AT_CHECK),
	T(dirs_share_names, AT_CHECK),
	T(dir_too_many, AT_CHECK),
	T(dir_range_wraps, AT_CHECK),
	T(dir_parent_self, AT_CHECK),
	T(dir_parent_later, AT_CHECK),
	T(dir_with_size, AT_CHECK),

	T(inode_no_type, AT_CHECK),
	T(inode_high_mode, AT_CHECK),
	T(inode_root_file, AT_CHECK),
	T(inode_nlink, AT_CHECK),
	T(inode_nsec, AT_CHECK),
	T(inode_size_huge, AT_CHECK),
	T(inode_size_longer, AT_CHECK),
	T(inode_size_enormous, AT_CHECK),
	T(inode_size_shorter, AT_CHECK),
	T(inode_no_size, AT_CHECK),
	T(inode_holes, AT_CHECK),
	T(inode_all_holes, AT_CHECK),
	T(inode_reserved, AT_CHECK),
	T(inode_format, AT_CHECK),
	T(inode_rdev, AT_CHECK),
	T(inode_fifo_size, AT_CHECK),
	T(inode_fifo_first, AT_CHECK),
	T(inode_file_parent, AT_CHECK),
	T(link_empty, AT_CHECK),
	T(link_long, AT_CHECK),
	T(link_outside, AT_CHECK),
	T(link_nul, AT_CHECK),
	T(link_count, AT_CHECK),

	T(extent_first_not_0, AT_CHECK),
	T(extent_overlap, AT_CHECK),
	T(extent_same_off, AT_CHECK),
	T(extent_cycle, AT_CHECK),
	T(extent_past_size, AT_CHECK),
	T(extent_no_chunk, AT_CHECK),
	T(extent_chunk_max, AT_CHECK),
	T(extent_off_in_chunk, AT_CHECK),
	T(extent_chunk_off_max, AT_CHECK),
	T(extent_too_long, AT_CHECK),
	T(extent_short_inside, AT_CHECK),
	T(extent_hole_with_off, AT_CHECK),
	T(extent_past_last, AT_CHECK),
	T(extents_shared, AT_CHECK),
	T(extents_too_many, AT_CHECK),
	T(extents_none, AT_CHECK),

	T(chunk_at_header, AT_CHECK),
	T(chunk_past_data, AT_CHECK),
	T(chunk_off_max, AT_CHECK),
	T(chunk_overlap, AT_CHECK),
	T(chunk_stored_0, AT_CHECK),
	T(chunk_stored_long, AT_CHECK),
	T(chunk_stored_max, AT_CHECK),
	T(chunk_logical_0, AT_CHECK),
	T(chunk_logical_long, AT_CHECK),
	T(chunk_logical_max, AT_CHECK),
	T(chunk_logical_less, AT_CHECK),
	T(chunk_lz4_less, AT_CHECK),
	T(chunk_lz4_more, AT_CHECK),
	T(chunk_hash, AT_CHECK),
	T(chunk_codec, AT_CHECK),
	T(chunk_codec_other, AT_CHECK),
	T(chunk_shuffle_3, AT_CHECK),
	T(chunk_shuffle_other, AT_CHECK),
	T(chunk_shuffle_255, AT_CHECK),
	T(chunk_raw_shuffle, AT_CHECK),
	T(chunk_raw_unaligned, AT_CHECK),
	T(chunk_raw_lengths, AT_CHECK),
	T(chunk_unknown_base, AT_CHECK),
	T(chunk_base_max, AT_CHECK),
	T(chunk_reserved, AT_CHECK),
	T(chunk_padding, AT_CHECK),
	T(chunk_behind, AT_CHECK),
	T(flag_missing, AT_CHECK),
	T(flag_shuffle_missing, AT_CHECK),

	T(frame_rle, IS_GOOD),
	T(frame_bomb, AT_CHECK),
	T(frame_lies_short, AT_CHECK),
	T(frame_no_size, AT_CHECK),
	T(frame_window, AT_CHECK),
	T(frame_window_max, AT_CHECK),
	T(frame_dictionary, AT_CHECK),
	T(frame_skippable, AT_CHECK),
	T(frame_and_more, AT_CHECK),
	T(frame_twice, AT_CHECK),
	T(frame_cut, AT_CHECK),
	T(frame_tiny, AT_CHECK),

	T(xattr_no_name, AT_CHECK),
	T(xattr_name_256, AT_CHECK),
	T(xattr_name_nul, AT_CHECK),
	T(xattr_name_outside, AT_CHECK),
	T(xattr_value_long, AT_CHECK),
	T(xattr_value_max, AT_CHECK),
	T(xattr_value_outside, AT_CHECK),
	T(xattr_unsorted, AT_CHECK),
	T(xattr_too_many, AT_CHECK),
	T(xattr_nobodys, AT_CHECK),
	T(xattr_twice, AT_CHECK),
	T(xattr_reserved, AT_CHECK),

	T(space_dotdot, AT_CHECK),
	T(space_absolute, AT_CHECK),
	T(space_empty_part, AT_CHECK),
	T(space_slash_end, AT_CHECK),
	T(space_dot, AT_CHECK),
	T(space_nul, AT_CHECK),
	T(space_no_name, AT_CHECK),
	T(space_name_long, AT_CHECK),
	T(space_kind, AT_CHECK),
	T(space_no_inode, AT_CHECK),
	T(space_of_dir, AT_CHECK),
	T(space_regions, AT_CHECK),
	T(space_segments, AT_CHECK),
	T(space_first, AT_CHECK),
	T(space_reserved, AT_CHECK),
	T(space_shares, AT_CHECK),
	T(space_twice, AT_CHECK),
	T(region_empty, AT_CHECK),
	T(region_wraps, AT_CHECK),
	T(region_overlap, AT_CHECK),
	T(region_unsorted, AT_CHECK),
	T(region_prot, AT_CHECK),
	T(region_name_long, AT_CHECK),
	T(region_name_max, AT_CHECK),
	T(region_reserved, AT_CHECK),
	T(segment_empty, AT_CHECK),
	T(segment_high, AT_CHECK),
	T(segment_wraps, AT_CHECK),
	T(segment_overlap, AT_CHECK),
	T(segment_no_region, AT_CHECK),
	T(segment_kind, AT_CHECK),
	T(segment_kind_0, AT_CHECK),
	T(segment_base, AT_CHECK),
	T(segment_hole_inode, AT_CHECK),
	T(segment_no_inode, AT_CHECK),
	T(segment_of_dir, AT_CHECK),
	T(segment_past_file, AT_CHECK),
	T(segment_off_max, AT_CHECK),
	T(segment_reserved, AT_CHECK),

	T(base_missing, NO_BASE),
	T(base_twice, AT_CHECK),
	T(base_unused, AT_CHECK),
	T(base_path, AT_CHECK),
	T(base_nul, AT_CHECK),
	T(base_no_name, AT_CHECK),
	T(base_long_name, AT_CHECK),
	T(base_reserved, AT_CHECK),
	T(base_no_flag, AT_OPEN),
	T(base_only_flag, AT_OPEN),
	T(base_65, AT_OPEN),

	T(summary_wrong, AT_CHECK),
	T(summary_reserved, AT_CHECK),
	T(summary_twice, AT_OPEN),
	T(summary_none, AT_OPEN),
	T(inodes_none, AT_OPEN),
	T(strings_none, AT_CHECK),
	T(chunks_none, AT_CHECK),
	T(chunks_fewer, AT_CHECK),
	T(extents_none_at_all, AT_CHECK),
	T(part_of_an_entry, AT_OPEN),
	T(extent_nobodys, AT_CHECK),
	T(name_nobodys, AT_CHECK),
	T(name_under_link, AT_CHECK),
	T(inode_nobodys, AT_CHECK),
	T(json_broken, AT_CHECK),
	T(json_array, AT_CHECK),
	T(json_deep, AT_CHECK),
	T(json_labels_array, AT_CHECK),
	T(json_label_number, AT_CHECK),
	T(json_source_number, AT_CHECK),
	T(json_single_number, AT_CHECK),
	T(json_notes_object, AT_CHECK),
	T(json_host_twice, AT_CHECK),
	T(json_control, AT_CHECK),
	T(json_nul, AT_CHECK),
	T(json_half_pair, AT_CHECK),
	T(json_bom, AT_CHECK),
	T(json_octal, AT_CHECK),
	T(json_not_utf8, AT_CHECK),
	T(json_65_deep, AT_CHECK),
	T(unknown_section, IS_GOOD),
	T(unknown_compat, IS_GOOD),

	P(header_version, TOO_NEW),
	P(header_version_0, AT_OPEN),
	P(header_chunk_size, AT_OPEN),
	P(header_chunk_0, AT_OPEN),
	P(header_chunk_huge, AT_OPEN),
	P(header_chunk_other, AT_OPEN),
	P(header_reserved, AT_OPEN),
	P(footer_version, TOO_NEW),
	P(footer_chunk_size, AT_OPEN),
	P(footer_incompat, TOO_NEW),
	P(footer_size, AT_OPEN),
	P(footer_data_end, AT_CHECK),
	P(footer_data_end_0, AT_OPEN),
	P(footer_data_end_max, AT_OPEN),
	P(footer_63_sections, AT_OPEN),
	P(footer_sections_max, AT_OPEN),
	P(footer_no_sections, AT_OPEN),
	P(footer_fewer, AT_OPEN),
	P(footer_reserved, AT_OPEN),
	P(footer_reserved2, AT_OPEN),
	P(footer_table_rest, AT_OPEN),
	P(section_type_twice, AT_OPEN),
	P(section_type_0, AT_OPEN),
	P(section_order, AT_OPEN),
	P(section_entry_wrong, AT_OPEN),
	P(section_entry_0, AT_OPEN),
	P(section_off, AT_OPEN),
	P(section_off_odd, AT_OPEN),
	P(section_off_max, AT_OPEN),
	P(section_overlap, AT_OPEN),
	P(section_len_0, AT_OPEN),
	P(section_len_max, AT_OPEN),
	P(section_len_40, AT_OPEN),
	P(section_len_more, AT_OPEN),
	P(section_hash, AT_OPEN),
	P(section_reserved, AT_OPEN),
};

static uint8_t *told(const struct lie *lie, size_t *ret_size)
{
	struct forge f;
	uint8_t *bytes;

	forge_good(&f);
	if (lie->tell)
		lie->tell(&f);
	bytes = forge_build(&f, ret_size);
	if (lie->poke) {
		lie->poke(bytes, *ret_size);
		forge_rehash(bytes, *ret_size);
	}
	forge_free(&f);
	return bytes;
}

static void read_lie(struct bench *b, struct image *img, const struct lie *lie)
{
	struct readall ra = reader(b, img);
	size_t n = readall_items(&ra);
	struct seen(*got)[SEEN_KINDS] = malloc((n + 1) * sizeof(*got));

	CHECK(got);
	readall(&ra, got);
	/* no error but that of damage; reading need not see every lie, as some change nothing that is read */
	for (size_t i = 0; i < n; i++)
		for (int k = 0; k < SEEN_KINDS; k++) {
			int r = got[i][k].r;

			if (r == 0 || (r == -EBADMSG && lie->outcome != IS_GOOD))
				continue;
			fprintf(stderr, "%s: item %zu, kind %d: result %d\n", lie->name, i, k, r);
			exit(1);
		}
	free(got);
}

static void test_lies(struct bench *b)
{
	for (size_t i = 0; i < ARRAY_SIZE(lies); i++) {
		const struct lie *lie = &lies[i];
		struct image *img;
		size_t size;
		uint8_t *bytes = told(lie, &size);
		int r = open_bytes(bytes, size, &img);
		int want = lie->outcome == AT_OPEN ? -EBADMSG : lie->outcome == TOO_NEW ? -EPROTONOSUPPORT : 0;
		uint64_t found;

		if (r != want)
			fprintf(stderr, "%s: ", lie->name);
		CHECK_EQ(r, want);
		if (!r) {
			read_lie(b, img, lie);
			found = check(img, false);
			if ((found > 0) != (lie->outcome != IS_GOOD))
				fprintf(stderr, "%s: ", lie->name);
			CHECK_EQ(found > 0, lie->outcome != IS_GOOD);
			image_close(img);
		}
		free(bytes);
	}
}

/* -- for the shell test ------------------------------------------------------------------------ */

static void write_file(const char *dir, const char *kind, const char *name, const uint8_t *bytes, size_t size)
{
	char path[4096];
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s-%s.thaw", dir, kind, name);
	file = fopen(path, "wb");
	CHECK(file && fwrite(bytes, 1, size, file) == size && fclose(file) == 0);
}

static int write_all(const char *dir, struct bench *b)
{
	static const char *const kinds[] = { "damaged", "new", "damaged", "good", "base" };

	write_file(dir, "good", "plain", b->good, b->size);
	for (size_t i = 0; i < ARRAY_SIZE(lies); i++) {
		size_t size;
		uint8_t *bytes = told(&lies[i], &size);

		write_file(dir, kinds[lies[i].outcome], lies[i].name, bytes, size);
		free(bytes);
	}
	return 0;
}

int main(int argc, char **argv)
{
	static struct bench b;
	struct forge f;
	int result = 0;

	/* a hang is a failure */
	alarm(LIMIT_SECONDS * (getenv("THAW_LONG") ? 20 : 1));
	forge_good(&f);
	bench_init(&b, &f);
	if (argc == 3 && !strcmp(argv[1], "--write")) {
		result = write_all(argv[2], &b);
	} else {
		test_lies(&b);
		test_truncated(&b);
		test_data_bits(&b);
		test_index_bits(&b);
	}
	forge_free(&f);
	free(b.good);
	free(b.buf);
	chunk_ctx_free(b.ctx);
	return result;
}
