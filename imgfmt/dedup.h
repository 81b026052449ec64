/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A map from a chunk's hash to the numbers of chunks that have it, in the order they were added. Numbers only: the
 * hashes stay with the caller, so a chunk costs four bytes here. Not thread-safe.
 */
#ifndef THAW_IMGFMT_DEDUP_H
#define THAW_IMGFMT_DEDUP_H

#include <stddef.h>
#include <stdint.h>

#define DEDUP_NONE 0xffffffffu

struct dedup {
	uint32_t *slots;
	size_t cap, n;
	uint64_t (*hash)(const void *ctx, uint32_t number); /* of a number that was added */
	const void *ctx;
};

/* Return: 0 or -ENOMEM */
int dedup_add(struct dedup *d, uint64_t hash, uint32_t number);

/* walk the numbers with that hash: *cursor is 0 at first; DEDUP_NONE ends */
uint32_t dedup_next(const struct dedup *d, uint64_t hash, size_t *cursor);

void dedup_release(struct dedup *d);

#endif
