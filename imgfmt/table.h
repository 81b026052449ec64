/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An array that grows by appending: fixed-size entries in segments that never move, so growing copies nothing,
 * entries keep their address, and memory is what the entries need. Not thread-safe, except that reading an
 * entry is safe while others are appended if the caller orders the two.
 */
#ifndef THAW_IMGFMT_TABLE_H
#define THAW_IMGFMT_TABLE_H

#include <stddef.h>
#include <stdint.h>

struct table {
	size_t entry_size;
	size_t n;
	uint8_t **segments;
	size_t n_segments, cap_segments;
};

void table_init(struct table *t, size_t entry_size);
void table_release(struct table *t);

/* a new entry, zeroed, at the end; NULL: out of memory */
void *table_push(struct table *t);

/* i < t->n */
void *table_at(const struct table *t, size_t i);

#endif
