/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who uses how much of an image. A chunk that several files, or several places of one, refer to is divided
 * among them by the bytes each refers to, so that the shares of all files add up to what is stored.
 *
 * Sums are kept in 2^-32 bytes: a million small shares do not lose what rounding each would.
 */
#ifndef THAW_IMGFMT_USAGE_H
#define THAW_IMGFMT_USAGE_H

#include <stdint.h>

#include "imgfmt/image.h"

struct usage;

struct usage_sum {
	uint64_t logical, hole, absent; /* bytes; absent only in views */
	uint64_t shared;                /* bytes whose chunk has more users than bytes: stored once for all of them */
	uint64_t base;                  /* bytes that are stored in another image */
	unsigned __int128 stored_fixed; /* share of stored lengths, times 2^32 */
};

/* rounded to bytes */
uint64_t usage_stored(const struct usage_sum *sum);

/*
 * usage_new - count the users of every chunk: goes over all extents once
 * Memory: 8 bytes a chunk. Return: 0, -ENOMEM, errors of the image. @img must outlive it; threads may share it
 */
int usage_new(struct image *img, struct usage **ret);
void usage_free(struct usage *usage);

/* add what a file, or a range of addresses of a space, uses to @sum. What is not a file adds nothing */
int usage_add_file(const struct usage *usage, const struct image_inode *inode, struct usage_sum *sum);
int usage_add_view(const struct usage *usage, const struct image_space *space, uint64_t addr, uint64_t len,
		   struct usage_sum *sum);

#endif
