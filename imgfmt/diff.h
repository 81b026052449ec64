/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What differs between two images: members, and regions of address spaces. Chunks are compared by length and
 * checksum, so nothing is read where the two were cut alike; only where the cuts differ, and the checksums of whole
 * chunks say nothing about the parts, are chunks decoded and their bytes compared.
 *
 * Members are matched by path, address spaces by name, regions by address. Memory: a few chunks, 4 bytes an inode.
 */
#ifndef THAW_IMGFMT_DIFF_H
#define THAW_IMGFMT_DIFF_H

#include <stdbool.h>
#include <stdint.h>

#include "imgfmt/image.h"

enum diff_flags {
	DIFF_ONLY_A = 1 << 0,
	DIFF_ONLY_B = 1 << 1,
	/* members */
	DIFF_TYPE = 1 << 2,
	DIFF_MODE = 1 << 3,
	DIFF_OWNER = 1 << 4,
	DIFF_TIME = 1 << 5, /* only if asked for */
	DIFF_LINKS = 1 << 6,
	DIFF_TARGET = 1 << 7,
	DIFF_DEVICE = 1 << 8,
	DIFF_XATTRS = 1 << 9,
	DIFF_SIZE = 1 << 10,
	/* regions */
	DIFF_PROT = 1 << 11,
	DIFF_MAP_FLAGS = 1 << 12,
	DIFF_PGOFF = 1 << 13,
	DIFF_NAME = 1 << 14,
	/* both */
	DIFF_DATA = 1 << 15,
	DIFF_UNKNOWN = 1 << 16, /* some bytes could not be read */
};

struct diff_member {
	const char *path;
	unsigned flags;                  /* enum diff_flags; 0 is not reported */
	const struct image_inode *a, *b; /* NULL: not there */
	/*
	 * bytes that differ, and bytes that could not be compared. A chunk known by its checksum only counts as a
	 * whole. Bytes past the end of the shorter file, and all of a file that only one image has, count
	 */
	uint64_t bytes, unknown_bytes;
};

/* a piece of an address space in which each image has the same region, or none, all over */
struct diff_region {
	const char *space; /* not terminated */
	uint32_t space_len;
	unsigned flags;
	uint64_t addr, len;               /* addr + len may be 2^64 */
	const struct image_region *a, *b; /* NULL: not mapped there */
	uint64_t bytes, unknown_bytes;    /* regions that only one image has count none */
};

struct diff_opts {
	bool times; /* compare mtimes too */
	bool pages; /* decode chunks that differ, to tell which 4096-byte pages do */
	/* each member or region that differs; a value other than 0 ends the comparison and is returned */
	int (*member)(void *ctx, const struct diff_member *member);
	int (*region)(void *ctx, const struct diff_region *region);
	/*
	 * ranges of bytes that differ, or (@unknown) cannot be compared, of the member or region that is reported after
	 * them; exactly one of the two is given, with its flags and sums not complete yet
	 */
	int (*range)(void *ctx, const struct diff_member *member, const struct diff_region *region, uint64_t off,
		     uint64_t len, bool unknown);
	void (*progress)(void *ctx, uint64_t done_bytes, uint64_t total_bytes);
	void *ctx;
};

struct diff_result {
	uint64_t n_members; /* that both have */
	uint64_t n_members_differ, n_only_a, n_only_b;
	uint64_t n_regions_differ, n_regions_only_a, n_regions_only_b;
	uint64_t member_bytes, region_bytes; /* that differ */
	uint64_t unknown_bytes;
	int unknown_error;      /* why: -EBADMSG if any chunk is damaged, else what came first */
	uint64_t decoded_bytes; /* that checksums were not enough for */
};

/*
 * image_diff - compare @a with @b
 * Damaged or missing chunks are logged once each, counted as unknown and do not end the comparison.
 * Return: 0 when it ran through (look at the result: they are the same if nothing differs and nothing is unknown);
 * -EBADMSG an index is damaged; -ENOENT a base that an address space needs is missing; -ENOMEM
 */
int image_diff(struct image *a, struct image *b, const struct diff_opts *opts, struct diff_result *ret);

/* whether a comparison that ran through found the images the same */
bool diff_same(const struct diff_result *res);

#endif
