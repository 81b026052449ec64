/* SPDX-License-Identifier: Apache-2.0 */
#include "imgfmt/dedup.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static size_t start(const struct dedup *d, uint64_t hash)
{
	return (size_t)(hash * 0x9e3779b97f4a7c15u >> 20) & (d->cap - 1);
}

static void put(struct dedup *d, uint64_t hash, uint32_t number)
{
	size_t i = start(d, hash);

	while (d->slots[i] != DEDUP_NONE)
		i = (i + 1) & (d->cap - 1);
	d->slots[i] = number;
}

/* Equal hashes must keep their order; linear probing from one empty slot to the next visits them in it. */
static int grow(struct dedup *d)
{
	struct dedup bigger = *d;

	bigger.cap = d->cap ? 2 * d->cap : 1024;
	bigger.slots = malloc(bigger.cap * sizeof(*bigger.slots));
	if (!bigger.slots)
		return -ENOMEM;
	memset(bigger.slots, 0xff, bigger.cap * sizeof(*bigger.slots));
	/* a cluster that wraps around the end begins at its start, so go round once from an empty slot */
	if (d->cap) {
		size_t first = 0;

		while (d->slots[first] != DEDUP_NONE)
			first++;
		for (size_t k = 0; k < d->cap; k++) {
			uint32_t number = d->slots[(first + k) & (d->cap - 1)];

			if (number != DEDUP_NONE)
				put(&bigger, d->hash(d->ctx, number), number);
		}
	}
	free(d->slots);
	*d = bigger;
	return 0;
}

int dedup_add(struct dedup *d, uint64_t hash, uint32_t number)
{
	int r;

	if (4 * (d->n + 1) > 3 * d->cap && (r = grow(d)))
		return r;
	put(d, hash, number);
	d->n++;
	return 0;
}

uint32_t dedup_next(const struct dedup *d, uint64_t hash, size_t *cursor)
{
	if (!d->cap)
		return DEDUP_NONE;
	for (;; ++*cursor) {
		uint32_t number = d->slots[(start(d, hash) + *cursor) & (d->cap - 1)];

		if (number == DEDUP_NONE)
			return DEDUP_NONE;
		if (d->hash(d->ctx, number) == hash) {
			++*cursor;
			return number;
		}
	}
}

void dedup_release(struct dedup *d)
{
	free(d->slots);
	d->slots = NULL;
	d->cap = d->n = 0;
}
