/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hydration (-o hydrate_dir=): a member or memory view that was opened is decoded once into a sparse file without a
 * name, and from then on the kernel serves its opens from there (FUSE passthrough), without asking us.
 *
 * The kernel keeps such a file open under a number of the connection, and the table of numbers and of open handles is
 * in the shared stats: both outlive a worker. An inode cannot be open by way of the page cache and passed through at
 * once, so every open of a member is counted, before it is answered, and a close after: killed in between, a file
 * counts as open for ever, which only means that it does not switch, or is not evicted.
 */
#ifndef THAW_FS_HYDRATE_H
#define THAW_FS_HYDRATE_H

#include <stdbool.h>
#include <stdint.h>

#include "fs/fs.h"
#include "fs/inode.h"

struct hydrator;

/* for an active worker whose connection passes through */
int hydrate_new(struct fs *fs, struct hydrator **ret);
/* NULL is fine; before the slots go */
void hydrate_free(struct hydrator *h);

/*
 * hydrate_opened - count an open of @node that is about to be answered, and have it hydrated if there is room
 * Return: the backing number to answer with, 0 for an ordinary open. NULL @h: 0
 */
uint32_t hydrate_opened(struct hydrator *h, const struct node *node);
/* is it hydrated, or about to be? */
bool hydrate_has(struct hydrator *h, const struct node *node);
/* @id: what hydrate_opened() said */
void hydrate_closed(struct hydrator *h, const struct node *node, uint32_t id);

#endif
