/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checking a whole image: every index entry against FORMAT.md, every padding byte, every chunk. Goes on after
 * damage and reports all of it.
 */
#ifndef THAW_IMGFMT_VERIFY_H
#define THAW_IMGFMT_VERIFY_H

#include <stdbool.h>
#include <stdint.h>

#include "imgfmt/image.h"

struct verify_damage {
	uint32_t chunk;      /* THAW_HOLE: not a chunk but the index or padding */
	uint64_t stored_off; /* where in the image file */
	int error;           /* -EBADMSG, -EIO, -ENOENT (a base is missing) */
	const char *what;
};

struct verify_opts {
	unsigned threads; /* 0: as many as processors */
	/* one call at a time, in no particular order */
	void (*damage)(void *ctx, const struct verify_damage *damage);
	void (*progress)(void *ctx, uint64_t done_bytes, uint64_t total_bytes);
	void *ctx;
	bool index_only;
};

struct verify_result {
	uint64_t n_chunks, n_damaged, n_index_errors;
	uint64_t good_bytes, damaged_bytes; /* logical bytes of chunks */
};

/*
 * image_check - look at everything
 * Nobody else may use @img meanwhile: what its index says goes to @damage instead of the log.
 * Memory: the whole index and 4 bytes an inode and a chunk; two chunks a thread.
 * Return: 0 when it ran through (look at the result), -ENOMEM
 */
int image_check(struct image *img, const struct verify_opts *opts, struct verify_result *ret);

#endif
