/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Images made by hand: sections and chunk data are put together without the packer, then hashes, offsets and footer
 * are computed, so that a test can lie about anything and still have every checksum right.
 *
 *   forge_good()   a small valid image that uses every section but BASES, every codec and shuffle
 *   forge_build()  the bytes of the file; hashes, section table and footer are made here
 *   forge_rehash() after a change of header or footer in those bytes: their hashes, and the image id, again
 *
 * Memory is given back by forge_free(). For tests only: everything is asserted.
 */
#ifndef THAW_TESTS_FORGE_H
#define THAW_TESTS_FORGE_H

#include <lz4.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>
#include <zstd.h>

#include "imgfmt/footer.h"
#include "imgfmt/format.h"
#include "tests/test.h"

#define FORGE_CHUNK 65536u
/* what forge_good() numbers its inodes */
enum { FORGE_ROOT, FORGE_DIR, FORGE_BIG, FORGE_MIX, FORGE_LINK, FORGE_FIFO, FORGE_EMPTY, FORGE_INODES };

struct forge_section {
	uint8_t *data;
	size_t len;
};

struct forge {
	uint32_t chunk_size, incompat, compat;
	struct forge_section chunk_data; /* from offset 4096 of the file on */
	struct forge_section sections[THAW_MAX_SECTIONS];
};

static inline uint8_t *forge_add(struct forge_section *s, const void *data, size_t len)
{
	s->data = realloc(s->data, s->len + len + 1);
	CHECK(s->data);
	if (data)
		memcpy(s->data + s->len, data, len);
	else
		memset(s->data + s->len, 0, len);
	s->len += len;
	return s->data + s->len - len;
}

static inline void forge_free(struct forge *f)
{
	free(f->chunk_data.data);
	for (size_t i = 0; i < THAW_MAX_SECTIONS; i++)
		free(f->sections[i].data);
	*f = (struct forge){ 0 };
}

/* entry @i of a section, as its structure */
#define FORGE_ENTRY(f, type, structure, i) ((structure *)(void *)((f)->sections[type].data + (i) * sizeof(structure)))

/* put bytes into STRINGS; where they are */
static inline uint64_t forge_string(struct forge *f, const void *s, size_t len)
{
	uint64_t off = f->sections[THAW_STRINGS].len;

	forge_add(&f->sections[THAW_STRINGS], s, len);
	return off;
}

static inline uint32_t forge_n_chunks(const struct forge *f)
{
	return (uint32_t)(f->sections[THAW_CHUNKS].len / sizeof(struct thaw_chunk));
}

/* a chunk whose stored form is given; its hash is that of @logical, which may be NULL */
static inline uint32_t forge_stored_chunk(struct forge *f, uint8_t codec, uint8_t shuffle, const void *stored,
					  size_t stored_len, const void *logical, uint32_t logical_len)
{
	struct thaw_chunk c = { .codec = codec, .shuffle = shuffle };

	if (codec == THAW_RAW)
		forge_add(&f->chunk_data, NULL, align_up(f->chunk_data.len, THAW_PAGE) - f->chunk_data.len);
	c.stored_off = le64_make(THAW_PAGE + f->chunk_data.len);
	c.stored_len = le32_make((uint32_t)stored_len);
	c.logical_len = le32_make(logical_len);
	c.hash = le64_make(logical ? XXH3_64bits(logical, logical_len) : 0);
	forge_add(&f->chunk_data, stored, stored_len);
	forge_add(&f->sections[THAW_CHUNKS], &c, sizeof(c));
	f->incompat |=
		(codec == THAW_LZ4 ? (uint32_t)THAW_INCOMPAT_LZ4 : 0) | (shuffle ? (uint32_t)THAW_INCOMPAT_SHUFFLE : 0);
	return forge_n_chunks(f) - 1;
}

static inline uint32_t forge_chunk(struct forge *f, uint8_t codec, uint8_t shuffle, const uint8_t *logical,
				   uint32_t len)
{
	size_t room = ZSTD_compressBound(len) + (size_t)LZ4_compressBound((int)len), n = len;
	uint8_t *lanes = malloc(len + 1), *out = malloc(room);
	uint32_t m = shuffle ? len / shuffle : 0, chunk;

	CHECK(lanes && out);
	memcpy(lanes, logical, len);
	for (uint32_t k = 0; k < m; k++)
		for (uint32_t l = 0; l < shuffle; l++)
			lanes[l * m + k] = logical[k * shuffle + l];
	if (codec == THAW_ZSTD)
		n = ZSTD_compress(out, room, lanes, len, 1);
	else if (codec == THAW_LZ4)
		n = (size_t)LZ4_compress_default((const char *)lanes, (char *)out, (int)len, (int)room);
	else
		memcpy(out, lanes, len);
	CHECK(!ZSTD_isError(n) && n > 0);
	chunk = forge_stored_chunk(f, codec, shuffle, out, n, logical, len);
	free(lanes);
	free(out);
	return chunk;
}

static inline void forge_inode(struct forge *f, uint32_t mode, uint32_t nlink, uint64_t size, uint64_t first,
			       uint64_t count, uint64_t holes, uint32_t parent)
{
	struct thaw_inode i = {
		.mode = le32_make(mode),
		.nlink = le32_make(nlink),
		.size = le64_make(size),
		.mtime_sec = le64_make(1700000000),
		.first = le64_make(first),
		.count = le64_make(count),
		.hole_bytes = le64_make(holes),
		.parent = le32_make(parent),
	};

	forge_add(&f->sections[THAW_INODES], &i, sizeof(i));
}

static inline void forge_name(struct forge *f, uint32_t parent, uint32_t ino, const char *name, size_t len)
{
	struct thaw_name n = {
		.parent = le32_make(parent),
		.inode = le32_make(ino),
		.name_off = le64_make(forge_string(f, name, len)),
		.name_len = le32_make((uint32_t)len),
	};

	forge_add(&f->sections[THAW_NAMES], &n, sizeof(n));
}

static inline void forge_extent(struct forge *f, uint64_t off, uint32_t chunk, uint32_t chunk_off)
{
	const struct thaw_extent e = { le64_make(off), le32_make(chunk), le32_make(chunk_off) };

	forge_add(&f->sections[THAW_EXTENTS], &e, sizeof(e));
}

static inline void forge_xattr(struct forge *f, const char *name, const char *value)
{
	struct thaw_xattr x = {
		.name_off = le64_make(forge_string(f, name, strlen(name))),
		.name_len = le32_make((uint32_t)strlen(name)),
		.value_len = le32_make((uint32_t)strlen(value)),
	};

	if (*value)
		x.value_off = le64_make(forge_string(f, value, strlen(value)));
	forge_add(&f->sections[THAW_XATTRS], &x, sizeof(x));
}

static inline void forge_space(struct forge *f, const char *name, uint32_t ino, uint64_t first_region,
			       uint32_t n_regions, uint64_t first_segment, uint32_t n_segments)
{
	struct thaw_space s = {
		.name_off = le64_make(forge_string(f, name, strlen(name))),
		.name_len = le32_make((uint32_t)strlen(name)),
		.kind = le32_make(THAW_SPACE_CORE),
		.inode = le32_make(ino),
		.pid = le32_make(77),
		.first_region = le64_make(first_region),
		.first_segment = le64_make(first_segment),
		.n_regions = le32_make(n_regions),
		.n_segments = le32_make(n_segments),
	};

	forge_add(&f->sections[THAW_SPACES], &s, sizeof(s));
}

static inline void forge_region(struct forge *f, uint64_t addr, uint64_t len, const char *name)
{
	struct thaw_region r = {
		.addr = le64_make(addr),
		.len = le64_make(len),
		.prot = le32_make(3),
		.flags = le32_make(2),
		.name_len = le32_make((uint32_t)strlen(name)),
	};

	if (*name)
		r.name_off = le64_make(forge_string(f, name, strlen(name)));
	forge_add(&f->sections[THAW_REGIONS], &r, sizeof(r));
}

static inline void forge_segment(struct forge *f, uint8_t kind, uint64_t addr, uint64_t len, uint64_t off, uint32_t ino)
{
	const struct thaw_segment s = {
		.addr = le64_make(addr),
		.len = le64_make(len),
		.off = le64_make(off),
		.inode = le32_make(ino),
		.kind = kind,
	};

	forge_add(&f->sections[THAW_SEGMENTS], &s, sizeof(s));
}

/* the sums of SUMMARY from the other tables */
static inline void forge_summary(struct forge *f)
{
	uint64_t sums[13] = { 0 };
	struct thaw_summary s = { .reserved = { 0 } };

	for (uint32_t i = 0; i < forge_n_chunks(f); i++) {
		const struct thaw_chunk *c = FORGE_ENTRY(f, THAW_CHUNKS, struct thaw_chunk, i);
		bool based = le16_get(c->base) != 0;

		sums[based ? 4 : 2] += le32_get(c->logical_len);
		sums[3] += le32_get(c->stored_len);
		if (!based && c->codec <= THAW_LZ4)
			sums[6 + c->codec]++;
		sums[9] += c->shuffle != 0;
		sums[10] += based;
	}
	for (size_t i = 0; i < f->sections[THAW_INODES].len / sizeof(struct thaw_inode); i++) {
		const struct thaw_inode *n = FORGE_ENTRY(f, THAW_INODES, struct thaw_inode, i);

		sums[11] += S_ISREG(le32_get(n->mode));
		sums[12] += S_ISDIR(le32_get(n->mode));
		sums[0] += S_ISREG(le32_get(n->mode)) ? le64_get(n->size) : 0;
		sums[1] += le64_get(n->hole_bytes);
	}
	if (sums[0] > sums[1] + sums[2] + sums[4])
		sums[5] = sums[0] - sums[1] - sums[2] - sums[4];
	for (size_t i = 0; i < 13; i++)
		((le64 *)&s)[i] = le64_make(sums[i]);
	f->sections[THAW_SUMMARY].len = 0;
	forge_add(&f->sections[THAW_SUMMARY], &s, sizeof(s));
}

/* bytes that compress, and are nowhere the same */
static inline void forge_fill(uint8_t *buf, size_t len, uint32_t seed)
{
	for (size_t i = 0; i < len; i++)
		buf[i] = (uint8_t)(i % 64 == 0 ? seed + i / 64 : i % 64 == 1 ? (seed + i / 64) >> 8 : i % 64);
}

static inline void forge_good_chunks(struct forge *f)
{
	uint8_t *buf = malloc(FORGE_CHUNK);
	uint64_t seed = 88172645463325252u;

	CHECK(buf);
	for (uint32_t i = 0; i < 3; i++) { /* 0 to 2: FORGE_BIG */
		forge_fill(buf, FORGE_CHUNK, i * 5000);
		forge_chunk(f, THAW_ZSTD, 0, buf, i < 2 ? FORGE_CHUNK : 18928);
	}
	for (size_t i = 0; i < 4096; i += 8) { /* 3: noise */
		uint64_t v = test_random(&seed);

		memcpy(buf + i, &v, 8);
	}
	forge_chunk(f, THAW_RAW, 0, buf, 4096);
	for (uint32_t i = 0; i < 8192; i++) /* 4: small numbers of 4 bytes, and three bytes more */
		((uint32_t *)(void *)buf)[i] = i * i;
	forge_chunk(f, THAW_ZSTD, 4, buf, 4 * 8191 + 3);
	forge_fill(buf, FORGE_CHUNK, 40000); /* 5 */
	forge_chunk(f, THAW_LZ4, 0, buf, 3000);
	forge_chunk(f, THAW_LZ4, 8, buf, 3001); /* 6 */
	free(buf);
}

static inline void forge_good(struct forge *f)
{
	*f = (struct forge){ .chunk_size = FORGE_CHUNK };
	forge_good_chunks(f);
	forge_extent(f, 0, 0, 0);  /* FORGE_BIG: a run through three chunks */
	forge_extent(f, 0, 3, 96); /* FORGE_MIX */
	forge_extent(f, 4000, THAW_HOLE, 0);
	forge_extent(f, 100000, 4, 1);
	forge_extent(f, 132766, 5, 0);
	forge_extent(f, 135766, 6, 0);
	forge_extent(f, 138767, 0, 65000); /* a run that begins late in a chunk that FORGE_BIG has too */
	forge_inode(f, S_IFDIR | 0755, 0, 0, 0, 5, 0, 0);
	forge_inode(f, S_IFDIR | 0700, 1, 0, 5, 2, 0, 0);
	forge_inode(f, S_IFREG | 0644, 2, 150000, 0, 1, 0, 0);
	forge_inode(f, S_IFREG | 0600, 1, 140000, 1, 6, 96000, 0);
	forge_inode(f, S_IFLNK | 0777, 1, 5, forge_string(f, "d/big", 5), 0, 0, 0);
	forge_inode(f, S_IFIFO | 0600, 1, 0, 0, 0, 0, 0);
	forge_inode(f, S_IFREG | 0640, 1, 0, 0, 0, 0, 0);
	forge_name(f, FORGE_ROOT, FORGE_BIG, "big", 3);
	forge_name(f, FORGE_ROOT, FORGE_DIR, "d", 1);
	forge_name(f, FORGE_ROOT, FORGE_EMPTY, "e", 1);
	forge_name(f, FORGE_ROOT, FORGE_LINK, "link", 4);
	forge_name(f, FORGE_ROOT, FORGE_FIFO, "p", 1);
	forge_name(f, FORGE_DIR, FORGE_BIG, "big", 3);
	forge_name(f, FORGE_DIR, FORGE_MIX, "mix", 3);
	forge_xattr(f, "user.a", "value");
	forge_xattr(f, "user.b", "");
	FORGE_ENTRY(f, THAW_INODES, struct thaw_inode, FORGE_BIG)->n_xattrs = le32_make(2);
	forge_region(f, 0x10000, 0x20000, "/bin/prog");
	forge_region(f, 0x400000, 0x3000, "");
	forge_region(f, 0xffffffffff600000, 0xa00000, "[vsyscall]"); /* to the end of the address space */
	forge_segment(f, THAW_SEG_DATA, 0x10000, 0x10000, 1000, FORGE_BIG);
	forge_segment(f, THAW_SEG_HOLE, 0x20000, 0x1000, 0, 0);
	forge_segment(f, THAW_SEG_DATA, 0x400000, 0x1000, 99000, FORGE_MIX);
	forge_segment(f, THAW_SEG_ABSENT, 0x401000, 0x1000, 0, 0);
	forge_space(f, "77", FORGE_MIX, 0, 3, 0, 4);
	forge_add(&f->sections[THAW_PROPERTIES], "{\"source\":\"core\"}", 17);
	forge_summary(f);
}

static inline void forge_put_section(uint8_t *image, const struct forge_section *s, struct footer_section *fs)
{
	XXH128_canonical_t c;
	uint64_t hashes = section_hashes(fs), n = section_n_blocks(fs);

	memcpy(image + fs->offset, s->data, s->len);
	for (uint64_t i = 0; i < n; i++) {
		uint64_t off = i * THAW_INDEX_BLOCK;
		le64 h = le64_make(XXH3_64bits(s->data + off, min_u64(THAW_INDEX_BLOCK, s->len - off)));

		memcpy(image + hashes + 8 * i, &h, 8);
	}
	XXH128_canonicalFromHash(&c, XXH3_128bits(image + hashes, 8 * n));
	memcpy(fs->hash, c.digest, sizeof(fs->hash));
}

static inline void forge_rehash(uint8_t *image, size_t size)
{
	struct thaw_header *header = (struct thaw_header *)(void *)image;
	struct thaw_footer *footer = (struct thaw_footer *)(void *)(image + size - THAW_PAGE);
	uint32_t n = le32_get(footer->n_sections);
	XXH128_canonical_t c;

	header->hash = le64_make(XXH3_64bits(header, THAW_PAGE - 8));
	XXH128_canonicalFromHash(
		&c, XXH3_128bits(footer->sections, 64 * (size_t)(n <= THAW_MAX_SECTIONS ? n : THAW_MAX_SECTIONS)));
	memcpy(footer->image_id, c.digest, 16);
	footer->hash = le64_make(XXH3_64bits(footer, THAW_PAGE - 8));
}

/* all of the image; the caller frees it */
static inline uint8_t *forge_build(const struct forge *f, size_t *ret_size)
{
	struct footer_info info = {
		.chunk_size = f->chunk_size,
		.incompat = f->incompat,
		.compat = f->compat,
		.data_end = THAW_PAGE + f->chunk_data.len,
	};
	uint64_t end = info.data_end;
	uint8_t *image;

	for (uint32_t type = 1; type < THAW_MAX_SECTIONS; type++) {
		const struct forge_section *s = &f->sections[type];
		struct footer_section *fs = &info.sections[info.n_sections];

		if (!s->len)
			continue;
		*fs = (struct footer_section){
			.type = type,
			.entry_size = section_entry_size(type) ? section_entry_size(type) : 1,
			.offset = align_up(end, THAW_PAGE),
			.length = s->len,
		};
		end = section_end(fs);
		info.n_sections++;
	}
	info.file_size = align_up(end, THAW_PAGE) + THAW_PAGE;
	image = calloc(1, info.file_size);
	CHECK(image);
	header_encode(f->chunk_size, (struct thaw_header *)(void *)image);
	if (f->chunk_data.len)
		memcpy(image + THAW_PAGE, f->chunk_data.data, f->chunk_data.len);
	for (uint32_t i = 0; i < info.n_sections; i++)
		forge_put_section(image, &f->sections[info.sections[i].type], &info.sections[i]);
	footer_encode(&info, (struct thaw_footer *)(void *)(image + info.file_size - THAW_PAGE));
	*ret_size = info.file_size;
	return image;
}

#endif
