/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making an image stand alone: a copy that has the chunks which the original leaves to its bases. Chunks are copied
 * as they are stored, after a look whether they decode to what their checksum says; nothing is compressed anew. The
 * index, which must be good by every rule, stays as it is but for where chunks are; what is packed with and without
 * --base becomes the same image.
 *
 * Address spaces that lead into files of another image (the parents of a CRIU image) cannot be flattened: the
 * copy would have to hold files that the original does not show.
 */
#ifndef THAW_IMGFMT_FLATTEN_H
#define THAW_IMGFMT_FLATTEN_H

#include <stdbool.h>

#include "imgfmt/image.h"
#include "imgfmt/pack.h"

struct flatten_opts {
	const char *out;  /* path of the new image, which may be that of the original; "-": standard output */
	unsigned threads; /* that verify; 0: as many as processors */
	bool verify;      /* read the copy again before publishing */
	bool no_fsync;    /* for tests and benchmarks only */
	void (*progress)(void *ctx, uint64_t done_bytes, uint64_t total_bytes);
	void *progress_ctx;
	const volatile int *stop; /* as in pack_opts */
};

/*
 * image_flatten - see above. Logged
 * Return: 0; -EBADMSG a chunk or the index is damaged; -ENOENT a base is missing; -EINVAL an address space leads into
 * a base; -EINTR; -errno of the output. On failure nothing stands under the name but what stood there before.
 */
int image_flatten(struct image *img, const struct flatten_opts *opts, struct pack_result *ret);

#endif
