/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Node ids: what the kernel calls an inode, computed from what it names and back, so that nothing is
 * remembered per lookup, a forget is nothing, and a worker that takes over understands every id its predecessor
 * gave out.
 *
 *   63          36   35    34   32  31               0
 *  +--------------+-------+-------+------------------+
 *  | slot         | by-id | kind  | number           |
 *  +--------------+-------+-------+------------------+
 *
 * slot    which image; given out once and never reused while the mount lives, so an image that was
 *         replaced or removed keeps its ids
 * by-id   the directory as reached through .thawfs/by-id: the kernel wants one place for a directory, so the two
 *         trees of an image have ids of their own for directories. Files are the same in both (and
 *         share their page cache): they never have the bit
 * kind    what number counts, below
 *
 * Kind META with slot 0 and number 1 is the root of the mount (FUSE_ROOT_ID). Where a single image is mounted, that
 * root is the image's root directory; ops.c translates.
 */
#ifndef THAW_FS_INODE_H
#define THAW_FS_INODE_H

#include <stdbool.h>
#include <stdint.h>

enum node_kind {
	NODE_META = 0,   /* enum meta_number; slot 0 */
	NODE_MEMBER = 1, /* inode number of the image */
	NODE_THAW = 2,   /* enum thaw_number */
	NODE_MEM = 3,    /* .thaw/mem and below: number in the view tree (view.h), 0 is the directory itself */
	NODE_MAPS = 4,   /* .thaw/maps and below: the same numbers */
	NODE_LINK = 5,   /* enum link_number: a symlink in the store's root to the image of the slot */
	NODE_KINDS = 6,
};

enum meta_number {
	META_ROOT = 1,
	META_HIDDEN = 2, /* .thawfs */
	META_BY_ID = 3,
	META_VERSION = 4,
	META_STATUS = 5,
	META_METRICS = 6,
	META_NUMBERS = 7,
};

enum thaw_number {
	THAW_DIR = 0, /* .thaw */
	THAW_INFO = 1,
	THAW_NUMBERS = 2,
};

enum link_number {
	LINK_SERIES = 0, /* NAME-latest */
	LINK_STORE = 1,  /* latest */
	LINK_NUMBERS = 2,
};

#define NODE_MAX_SLOTS (1u << 28)

struct node {
	uint32_t slot;
	enum node_kind kind;
	bool by_id;
	uint32_t number;
};

uint64_t node_encode(const struct node *node);

/* Return: 0, or -ESTALE for an id that node_encode() does not make */
int node_decode(uint64_t id, struct node *ret);

#endif
