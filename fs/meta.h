/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The files of .thawfs whose text changes: version, status.json and metrics. Each open gets the text of that
 * moment. A handle that a former worker gave out finds a text made anew, of the same padded length as a rule.
 * Any thread may call anything.
 */
#ifndef THAW_FS_META_H
#define THAW_FS_META_H

#include <stdint.h>

#include "fs/fs.h"
#include "fs/inode.h"
#include "fs/view.h"

/* @ret_fh: handle for meta_text() and meta_close() */
int meta_open(struct fs *fs, const struct node *node, uint64_t *ret_fh);
int meta_text(struct fs *fs, const struct node *node, uint64_t fh, struct text **ret);
void meta_close(uint64_t fh);

/* a file or directory was opened (+1) or released (-1): counts for open_files and, by slot, for retiring */
void meta_opened(struct fs *fs, const struct node *node, int change);

#endif
