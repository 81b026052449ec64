/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Taking an image apart again: sparse files, in parallel, with modes, owners (as root), times, links and xattrs.
 * Never writes outside the destination: every path is made with *at() calls on descriptors below it, opened
 * O_NOFOLLOW. A file whose chunk is damaged is not left behind half-written: it is removed and reported.
 */
#ifndef THAW_IMGFMT_UNPACK_H
#define THAW_IMGFMT_UNPACK_H

#include <stdbool.h>
#include <stdint.h>

#include "imgfmt/image.h"

struct unpack_opts {
	unsigned threads;   /* 0: as many as processors */
	const char *member; /* only this path of the image (a directory: with all below), or NULL */
	bool force;         /* overwrite what is there; without it an existing file is -EEXIST */
	bool no_fsync;
	void (*progress)(void *ctx, uint64_t done_bytes, uint64_t total_bytes);
	void *ctx;
	const volatile int *stop; /* as in pack_opts */
};

struct unpack_result {
	uint64_t n_files, n_bytes, n_failed;
};

/*
 * image_unpack - @dest becomes the root (made if missing); with @member, @dest is where that member goes (into it
 * if @dest is a directory)
 * Return: 0; -EBADMSG some chunk is damaged (the other files are there); -EEXIST; -errno
 */
int image_unpack(struct image *img, const char *dest, const struct unpack_opts *opts, struct unpack_result *ret);

#endif
