/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the stages of pack() share: scan the tree, parse what is recognized, read and compress, write the index.
 * Private to imgfmt/pack*.c; one thread.
 */
#ifndef THAW_IMGFMT_PACKER_H
#define THAW_IMGFMT_PACKER_H

#include "imgfmt/image.h"
#include "imgfmt/journal.h"
#include "imgfmt/layout.h"
#include "imgfmt/output.h"
#include "imgfmt/pack.h"
#include "imgfmt/tree.h"
#include "imgfmt/writer.h"

#define PACKER_MAX_NOTES 64

struct packer {
	const struct pack_opts *opts;
	uint32_t chunk_size;
	unsigned threads;
	struct output out;
	struct tree tree;
	struct layout layout;
	struct writer *writer;
	struct image **bases; /* --base, opened */
	unsigned n_bases;
	struct image **parents; /* images that CRIU `parent` links lead to; layout_segment.base counts these */
	unsigned n_parents;
	char *notes[PACKER_MAX_NOTES];
	unsigned n_notes;
	bool has_criu, has_dmtcp, has_core;
	uint64_t done_bytes;
	struct journal journal; /* with opts->resume */
	struct table held;      /* what an earlier run has stored */
	bool resumed;           /* the output has a header and these */
};

/* one line to the user, kept for the properties */
void packer_note(struct packer *p, const char *path, const char *note);

/* recognize and parse; Return: 0, or an error that ends the pack (not: content that is not understood) */
int packer_parse(struct packer *p);

/* is the open file not what it was when the tree was scanned? */
bool packer_changed(const struct tree_node *node, int fd);

/* all the data of all files into the writer, drained */
int packer_read(struct packer *p);

/* callbacks of the writer */
int packer_input_done(void *ctx, struct writer_input *input);
int packer_reopen(void *ctx, uint32_t ino);

#endif
