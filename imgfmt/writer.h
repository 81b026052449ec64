/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The data half of building an image: pieces of files go in, in file order; out come chunks in the output and the
 * extents of every file.
 *
 * Thread model: one thread calls the functions below. Full-size pieces become jobs in a ring; worker threads read,
 * test for zeros, hash, look for a known chunk and compress. The calling thread commits jobs in the order they
 * were made, so the output does not depend on timing. Small pieces are copied by the calling thread into a pool
 * chunk, which becomes a job when it is full.
 */
#ifndef THAW_IMGFMT_WRITER_H
#define THAW_IMGFMT_WRITER_H

#include <stdbool.h>
#include <stdint.h>

#include "imgfmt/encode.h"
#include "imgfmt/image.h"
#include "imgfmt/output.h"
#include "imgfmt/table.h"

struct writer;

/* an open source file, shared by the jobs that read it; opts.input_done() gets it back after the last of them */
struct writer_input {
	int fd;
	uint32_t ino;
	uint64_t size;
	const char *name; /* owned by whoever made it */
	unsigned refs;    /* the writer's own count */
};

struct writer_opts {
	struct output *out;
	struct encoder_opts encoder;
	unsigned threads;
	uint32_t n_inodes;
	struct image **bases; /* chunks found in these are referenced; the writer only borrows them */
	unsigned n_bases;
	/* the last reference is gone: check that the file has not changed, close and free it */
	int (*input_done)(void *ctx, struct writer_input *input);
	/* open file @ino again, to compare a chunk where the output cannot be read; descriptor or -errno */
	int (*reopen)(void *ctx, uint32_t ino);
	/* a chunk was written, of which @data are the bytes as stored; may be NULL. An error ends the pack */
	int (*stored)(void *ctx, const struct thaw_chunk *c, const void *data);
	/* struct thaw_chunk of what the output holds already, in file order; may be NULL. Used where the source has the
	 * same */
	const struct table *held;
	void *ctx;
	const volatile int *stop;
};

/* per file, after writer_drain() */
struct writer_file {
	uint64_t first, count, hole_bytes;
};

struct writer_counts {
	uint64_t chunk_bytes, stored_bytes, base_bytes;
	uint64_t held_bytes; /* of chunk_bytes, those of opts.held */
	uint64_t n_raw, n_zstd, n_lz4, n_shuffled, n_base;
};

int writer_new(const struct writer_opts *opts, struct writer **ret);
void writer_free(struct writer *w);

/*
 * Add the piece [off, off + len) of a file; pieces of a file come in order without gaps, files by ascending number.
 * All return 0 or the first error that any piece met (logged).
 */
int writer_hole(struct writer *w, uint32_t ino, uint64_t off, uint64_t len);
/* a piece of at most the chunk size, read by a worker */
int writer_chunk(struct writer *w, struct writer_input *input, uint64_t off, uint32_t len);
/* the same with bytes that are there already; they are copied */
int writer_bytes(struct writer *w, uint32_t ino, uint64_t off, const void *bytes, uint32_t len);
/* a small piece; the bytes are copied */
int writer_small(struct writer *w, uint32_t ino, uint64_t off, const void *bytes, uint32_t len);

/*
 * An input is handed to the writer before its first piece and ended after its last; from then on it may be gone. At
 * most a few dozen are open at a time: beginning one waits for others.
 */
int writer_input_begin(struct writer *w, struct writer_input *input);
int writer_input_end(struct writer *w, struct writer_input *input);

/* commit everything; then the results below are complete */
int writer_drain(struct writer *w);
const struct table *writer_chunks(const struct writer *w); /* struct thaw_chunk */
uint64_t writer_n_extents(const struct writer *w);
struct thaw_extent writer_extent(const struct writer *w, uint64_t index);
struct writer_file writer_file(const struct writer *w, uint32_t ino);
const struct writer_counts *writer_counts(const struct writer *w);
/* the bases that chunks refer to, in the order of chunk.base - 1; writer_use_base() adds one (1-based, or -errno) */
unsigned writer_n_used_bases(const struct writer *w);
struct image *writer_used_base(const struct writer *w, unsigned index);
int writer_use_base(struct writer *w, struct image *base);

#endif
