/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which addresses of a process have the contents of which addresses of its image: ascending ranges, cut and moved
 * as the process unmaps, discards and moves memory. Pure data; the owner locks.
 */
#ifndef THAW_RESTORE_PAGETABLE_H
#define THAW_RESTORE_PAGETABLE_H

#include <stddef.h>
#include <stdint.h>

#include "restore/pageserver.h"

struct pagetable {
	struct pageserver_range *ranges; /* ascending, no overlap */
	size_t n, room;
};

/* ranges must be whole pages, ascending and apart. Return: 0, -EINVAL, -ENOMEM */
int pagetable_init(struct pagetable *t, const struct pageserver_range *ranges, size_t n);
void pagetable_release(struct pagetable *t);

/* the first range that ends after @addr; NULL if there is none */
const struct pageserver_range *pagetable_at(const struct pagetable *t, uint64_t addr);

/* forget [start, end). Return: 0, -ENOMEM (nothing changed) */
int pagetable_remove(struct pagetable *t, uint64_t start, uint64_t end);

/* what was at [from, from + len) is at @to. Return: 0, -ENOMEM (part of it may be forgotten) */
int pagetable_move(struct pagetable *t, uint64_t from, uint64_t to, uint64_t len);

#endif
