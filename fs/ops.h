/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The libfuse operations: find the node, ask the folder's other files, reply once.
 *
 * They run in the threads of session.c, each of which calls ops_thread_begin() first, or in those of libfuse.
 */
#ifndef THAW_FS_OPS_H
#define THAW_FS_OPS_H

#define FUSE_USE_VERSION 312
#include <fuse_lowlevel.h>

#include "fs/fs.h"

extern const struct fuse_lowlevel_ops fs_ops;
/* the same for requests over io_uring, which come in threads of libfuse and are counted here */
extern const struct fuse_lowlevel_ops fs_ring_ops;

/* Return: 0, -ENOMEM */
int ops_thread_begin(struct fs *fs);
void ops_thread_end(void);

#endif
