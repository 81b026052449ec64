/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All names of an image, or of a part of it, in the order of a depth-first walk: a directory before what is in
 * it, names in byte order. Not recursive, so a deep tree costs memory only: the path, a few bytes a level, a bit an
 * inode.
 *
 *     walk_start(&w, img, ino, "path");
 *     while ((err = walk_next(&w)) == 1)
 *             … w.path, w.inode
 *     walk_release(&w);
 *
 * One thread for each struct walk.
 */
#ifndef THAW_IMGFMT_WALK_H
#define THAW_IMGFMT_WALK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "imgfmt/image.h"

struct walk_level {
	uint32_t dir;
	uint64_t next;   /* name to read next */
	size_t path_len; /* of the directory */
};

struct walk {
	struct image *img;
	/* the entry at hand: its path from where the walk began (the start itself: as given to walk_start()) */
	char *path;
	size_t path_len, name_off; /* the last part begins at path + name_off */
	struct image_inode inode;
	size_t depth; /* 0: the start */

	bool started, skip;
	bool partial; /* not all of the image is wanted */
	uint64_t n_names, n_inodes;
	size_t path_cap, levels_cap, n_levels;
	struct walk_level *levels;
	uint8_t *met; /* bitmap of inodes met: a directory with two names would make the walk exponential */
};

/* @path: what the start is called, "" for the root */
int walk_start(struct walk *w, struct image *img, uint32_t ino, const char *path);

/*
 * walk_next - go on
 * A walk through all of an image that did not come by every name and inode of the index ends with an error, which
 * is logged: a damaged index hides them.
 * Return: 1 and the next entry; 0 after the last; -EBADMSG and other errors of the image; -ENOMEM
 */
int walk_next(struct walk *w);

/* do not go into the directory at hand */
void walk_skip(struct walk *w);

void walk_release(struct walk *w);

/*
 * walk_first_name - whether the entry at hand is the first of its file that a walk from the root meets
 * For counting a file with several hard links once. @seen: a bitmap of walk_seen_bytes(), zeroed by the caller
 */
bool walk_first_name(const struct walk *w, uint8_t *seen);
size_t walk_seen_bytes(const struct image *img);

#endif
