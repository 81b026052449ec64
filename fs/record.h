/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recording (-o record): which chunks of each image were asked for, in order of first use, kept beside the image as its
 * working set (imgfmt/workset.h). A mount begins with an empty set; a worker that takes over goes on with what its
 * predecessor saved, which is at most a second old.
 *
 * Thread model: any thread may call record_chunk(); one thread of its own saves.
 */
#ifndef THAW_FS_RECORD_H
#define THAW_FS_RECORD_H

#include <stdint.h>

#include "fs/fs.h"

struct recorder;

/* Return: 0, -errno */
int record_new(struct fs *fs, struct recorder **ret);
/* saves; NULL is fine */
void record_free(struct recorder *rec);

/* a reader asked for a chunk of the slot's image. @rec may be NULL */
void record_chunk(struct recorder *rec, struct slot *slot, struct image *img, uint32_t chunk);

#endif
