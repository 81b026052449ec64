/* SPDX-License-Identifier: Apache-2.0 */
/* Comparing the bytes behind two runs, by checksums where these can tell. For one thread. */
#ifndef THAW_IMGFMT_DIFF_DATA_H
#define THAW_IMGFMT_DIFF_DATA_H

#include <stdbool.h>
#include <stdint.h>

#include "imgfmt/image.h"

struct data_diff;

/* @pages: look inside chunks whose checksums differ */
int data_diff_new(bool pages, struct data_diff **ret);
void data_diff_free(struct data_diff *d);

/* a part of the runs: @off counts as image_run.off of the first run does */
typedef int data_diff_fn(void *ctx, uint64_t off, uint64_t len, bool unknown);

/*
 * data_diff_runs - call @fn for what differs in the first @len bytes of two runs
 * Ranges come in order; what had to be decoded is told by pages of 4096, else the whole is one range. What cannot be
 * read is logged once and unknown.
 * Return: 0, -ENOMEM, -EBADMSG (the index is damaged), or what @fn returns
 */
int data_diff_runs(struct data_diff *d, const struct image_run *a, const struct image_run *b, uint64_t len,
		   data_diff_fn *fn, void *ctx);

/* for the whole life of @d: bytes decoded, and why some could not be (0; -EBADMSG before all others) */
uint64_t data_diff_decoded(const struct data_diff *d);
int data_diff_error(const struct data_diff *d);

#endif
