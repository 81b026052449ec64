/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prefetch (-o prefetch=): files that are open are made resident in the page cache by threads that serve nothing else:
 * first the chunks of the image's recorded working set, in its order, then (all) the rest, from beginning to end.
 *
 * Readers come first: a chunk is prefetched only while fewer threads decode for readers than there are processors. It
 * stops when nobody has the file open and goes on there with the next open. Which files are open, and how far each is,
 * is in the shared stats: both outlive a worker. Opens are counted before they are answered and closes after, so a
 * worker killed in between makes a file count as open for ever: then it is prefetched to its end.
 *
 * Any thread may call anything here; NULL is fine for the prefetcher.
 */
#ifndef THAW_FS_PREFETCH_H
#define THAW_FS_PREFETCH_H

#include <stdbool.h>
#include <stdint.h>

#include "fs/fs.h"
#include "fs/inode.h"

struct prefetcher;

/* for an active worker, before it serves. Return: 0, -ENOMEM */
int prefetch_new(struct fs *fs, struct prefetcher **ret);
/* once it serves: files that were under way in the worker before go on. Return: 0, -ENOMEM, -EAGAIN */
int prefetch_start(struct prefetcher *p);
/* end its threads: while requests are still served, or it may wait for ever. What is opened after that is only counted
 */
void prefetch_stop(struct prefetcher *p);
/* once nothing is served any more; before the slots go */
void prefetch_free(struct prefetcher *p);

/*
 * prefetch_opened - a member or view is about to be opened by way of the page cache
 * Return: a number for the other calls, 0 if the file is not prefetched. Understood by later workers as well
 */
uint32_t prefetch_opened(struct prefetcher *p, const struct node *node);
void prefetch_closed(struct prefetcher *p, const struct node *node, uint32_t handle);

/*
 * prefetch_push - have the decoded chunk at @off of a file pushed into the page cache, by a thread of ours
 * Dropped, and counted, when too many wait; and when the chunk is no longer decoded by then.
 */
void prefetch_push(struct prefetcher *p, const struct node *node, uint64_t off);

/* a request to read begins and ends. @had_data: it was for more than holes */
void prefetch_read_begins(struct prefetcher *p);
void prefetch_read_ends(struct prefetcher *p, const struct node *node, uint32_t handle, bool had_data);

#endif
