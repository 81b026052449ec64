/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From chunks back to what uses them: files, and regions of address spaces. Nothing on disk says that, so it
 * takes a pass over all extents; for the rare moments when chunks turned out to be damaged.
 */
#ifndef THAW_IMGFMT_LOCATE_H
#define THAW_IMGFMT_LOCATE_H

#include <stddef.h>
#include <stdint.h>

#include "imgfmt/image.h"

/* one piece of a file, or of a region, that is in a chunk of the set */
struct locate_hit {
	uint32_t chunk;
	uint64_t off, len; /* in the file, or the address */
	uint32_t ino;
	const char *path; /* of the file; valid during the call. A file with several names: the first */
	/* for pieces of address spaces, else NULL */
	const struct image_space *space;
	const struct image_region *region; /* NULL: outside all regions */
};

/*
 * locate_chunks - call @fn for every place that uses one of @chunks
 * @chunks:  ascending, each once
 * Files come first, in the order of a walk, then address spaces; pieces of one that follow each other in the same
 * chunk are one. Places that a damaged index hides are left out.
 * @fn: returns 0, or what locate_chunks() is to return. Return: 0, -ENOMEM, -EBADMSG (part of the index is damaged)
 */
int locate_chunks(struct image *img, const uint32_t *chunks, size_t n_chunks,
		  int (*fn)(void *ctx, const struct locate_hit *hit), void *ctx);

#endif
