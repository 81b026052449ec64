/* SPDX-License-Identifier: Apache-2.0 */
/*
 * On-disk constants and structures of a thawfs image, in the order of docs/FORMAT.md, which is the
 * authority: what the fields mean and what a reader must check stands there.
 *
 * The structures are packed by construction (every field is naturally aligned) and little-endian; read
 * their fields with the le*_get helpers of common/bytes.h, never directly.
 */
#ifndef THAW_IMGFMT_FORMAT_H
#define THAW_IMGFMT_FORMAT_H

#include <stdint.h>

#include "common/bytes.h"

#define THAW_MAGIC           "\x89THAW\x0d\x0a\x1a"
#define THAW_FOOTER_MAGIC    "\x89THAWEND"
#define THAW_VERSION         1u

#define THAW_PAGE            4096u  /* header, footer, alignment of raw chunks and sections */
#define THAW_INDEX_BLOCK     16384u /* unit of hashing in index sections */
#define THAW_CHUNK_MIN       (64u << 10)
#define THAW_CHUNK_DEFAULT   (256u << 10)
#define THAW_CHUNK_MAX       (4u << 20)
#define THAW_MAX_SECTIONS    62u
#define THAW_MAX_BASES       64u
#define THAW_MAX_DEPTH       64u
#define THAW_MAX_ENTRIES     0xfffffffeull
#define THAW_MAX_SECTION     (1ull << 40)
#define THAW_MAX_FILE        0x7fffffffffffffffull
#define THAW_NAME_MAX        255u
#define THAW_XATTR_MAX       65536u
#define THAW_TARGET_MAX      4095u
#define THAW_SPACE_NAME_MAX  4095u
#define THAW_REGION_NAME_MAX 4096u

enum thaw_incompat {
	THAW_INCOMPAT_LZ4 = 1 << 0,
	THAW_INCOMPAT_SHUFFLE = 1 << 1,
	THAW_INCOMPAT_BASE = 1 << 2,
	THAW_INCOMPAT_KNOWN = 7,
};

enum thaw_section_type {
	THAW_SUMMARY = 1,
	THAW_CHUNKS = 2,
	THAW_INODES = 3,
	THAW_NAMES = 4,
	THAW_EXTENTS = 5,
	THAW_SPACES = 6,
	THAW_REGIONS = 7,
	THAW_SEGMENTS = 8,
	THAW_XATTRS = 9,
	THAW_BASES = 10,
	THAW_STRINGS = 12,
	THAW_PROPERTIES = 13,
	THAW_SECTION_TYPES = 14, /* one more than the largest known */
};

enum thaw_codec { THAW_RAW = 0, THAW_ZSTD = 1, THAW_LZ4 = 2 };

#define THAW_HOLE 0xffffffffu /* thaw_extent.chunk */

/* what a file was recognized as */
enum thaw_file_format {
	THAW_PLAIN = 0,
	THAW_DMTCP = 1,
	THAW_CRIU = 2,
	THAW_CORE = 3,
	THAW_DMTCP_GZ = 4,
};

enum thaw_space_kind {
	THAW_SPACE_DMTCP = 1,
	THAW_SPACE_CRIU = 2,
	THAW_SPACE_CRIU_SHMEM = 3,
	THAW_SPACE_CORE = 4,
};

enum thaw_segment_kind { THAW_SEG_DATA = 1, THAW_SEG_HOLE = 2, THAW_SEG_ABSENT = 3 };

struct thaw_header {
	uint8_t magic[8];
	le32 version;
	le32 chunk_size;
	uint8_t reserved[4072];
	le64 hash;
};

struct thaw_section {
	le32 type;
	le32 entry_size;
	le64 offset;
	le64 length;
	uint8_t hash[16];
	uint8_t reserved[24];
};

struct thaw_footer {
	uint8_t magic[8];
	le32 version;
	le32 chunk_size;
	le32 incompat;
	le32 compat;
	le64 file_size;
	le64 data_end;
	le32 n_sections;
	le32 reserved;
	uint8_t image_id[16];
	struct thaw_section sections[THAW_MAX_SECTIONS];
	uint8_t reserved2[56];
	le64 hash;
};

struct thaw_chunk {
	le64 stored_off;
	le64 hash;
	le32 stored_len;
	le32 logical_len;
	uint8_t codec;
	uint8_t shuffle;
	le16 base;
	le32 reserved;
};

struct thaw_inode {
	le32 mode;
	le32 nlink;
	le32 uid;
	le32 gid;
	le64 size;
	le64 mtime_sec;
	le32 mtime_nsec;
	le32 rdev_major;
	le32 rdev_minor;
	le32 n_xattrs;
	le64 first_xattr;
	le64 first;
	le64 count;
	le64 hole_bytes;
	le32 parent;
	le32 format;
	uint8_t reserved[40];
};

struct thaw_name {
	le32 parent;
	le32 inode;
	le64 name_off;
	le32 name_len;
	uint8_t reserved[12];
};

struct thaw_extent {
	le64 off;
	le32 chunk;
	le32 chunk_off;
};

struct thaw_xattr {
	le64 name_off;
	le64 value_off;
	le32 name_len;
	le32 value_len;
	uint8_t reserved[8];
};

struct thaw_space {
	le64 name_off;
	le32 name_len;
	le32 kind;
	le32 inode;
	le32 pid;
	le64 first_region;
	le64 first_segment;
	le32 n_regions;
	le32 n_segments;
	uint8_t reserved[16];
};

struct thaw_region {
	le64 addr;
	le64 len;
	le64 pgoff;
	le32 prot;
	le32 flags;
	le64 name_off;
	le32 name_len;
	uint8_t reserved[20];
};

struct thaw_segment {
	le64 addr;
	le64 len;
	le64 off;
	le32 inode;
	uint8_t kind;
	uint8_t reserved;
	le16 base;
};

struct thaw_base {
	uint8_t image_id[16];
	le64 name_off;
	le32 name_len;
	uint8_t reserved[36];
};

struct thaw_summary {
	le64 logical_bytes;
	le64 hole_bytes;
	le64 chunk_bytes;
	le64 stored_bytes;
	le64 base_bytes;
	le64 dup_bytes;
	le64 n_chunks_raw;
	le64 n_chunks_zstd;
	le64 n_chunks_lz4;
	le64 n_chunks_shuffled;
	le64 n_chunks_base;
	le64 n_files;
	le64 n_dirs;
	uint8_t reserved[24];
};

_Static_assert(sizeof(struct thaw_header) == THAW_PAGE, "header");
_Static_assert(sizeof(struct thaw_section) == 64, "section");
_Static_assert(sizeof(struct thaw_footer) == THAW_PAGE, "footer");
_Static_assert(sizeof(struct thaw_chunk) == 32, "chunk");
_Static_assert(sizeof(struct thaw_inode) == 128, "inode");
_Static_assert(sizeof(struct thaw_name) == 32, "name");
_Static_assert(sizeof(struct thaw_extent) == 16, "extent");
_Static_assert(sizeof(struct thaw_xattr) == 32, "xattr");
_Static_assert(sizeof(struct thaw_space) == 64, "space");
_Static_assert(sizeof(struct thaw_region) == 64, "region");
_Static_assert(sizeof(struct thaw_segment) == 32, "segment");
_Static_assert(sizeof(struct thaw_base) == 64, "base");
_Static_assert(sizeof(struct thaw_summary) == 128, "summary");

#endif
