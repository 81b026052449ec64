/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The index half of building an image: sections and footer, written behind the chunk data from what the tree, the
 * layout and the drained writer know.
 */
#ifndef THAW_IMGFMT_INDEX_WRITE_H
#define THAW_IMGFMT_INDEX_WRITE_H

#include <stddef.h>
#include <stdint.h>

#include "imgfmt/layout.h"
#include "imgfmt/output.h"
#include "imgfmt/tree.h"
#include "imgfmt/writer.h"

struct index_input {
	struct output *out;
	struct writer *writer;
	const struct tree *tree;
	const struct layout *layout;  /* finished */
	struct image *const *parents; /* layout_segment.base k is parents[k - 1] */
	const char *properties;       /* JSON, or NULL */
	uint32_t chunk_size;
};

struct index_totals {
	uint64_t logical_bytes, hole_bytes, dup_bytes, n_files, n_dirs;
};

/* Return: 0 or -errno, logged */
int index_write(const struct index_input *in, uint8_t ret_id[16], struct index_totals *ret_totals);

#endif
