/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An image made from memory instead of a tree: one directory of files whose names and sizes are known at the start and
 * whose bytes come in order, and one last file that may depend on them. Compressed by several threads and published as
 * pack() does. One thread calls these.
 */
#ifndef THAW_IMGFMT_COMPOSE_H
#define THAW_IMGFMT_COMPOSE_H

#include <stddef.h>
#include <stdint.h>

#include "imgfmt/pack.h"

struct compose;

struct compose_file {
	const char *name; /* 1 to 255 bytes, unique; borrowed until compose_close() */
	uint64_t size;
};

struct compose_opts {
	const char *out;       /* path of the image; "-": standard output */
	const char *source;    /* what the properties say it is made of */
	const char *directory; /* that holds the files */
	const struct compose_file *files;
	size_t n_files;
	const char *last_name; /* of the file that compose_finish() adds */
	enum pack_codec codec;
	int level;           /* 0: the default */
	unsigned threads;    /* 0: as many as processors */
	uint32_t chunk_size; /* 0: 256 KiB */
	bool verify;         /* read everything again before publishing */
	bool no_fsync;       /* for tests and benchmarks only */
	const volatile int *stop;
};

/* what @opts points to is borrowed until compose_close(). Return: 0, -EBUSY, -EINVAL, -errno; logged */
int compose_open(const struct compose_opts *opts, struct compose **ret);

/*
 * The next bytes of file @index of the list: files in the order of the list, each from its start to its end, without
 * gaps. compose_hole() says that they are zeros
 */
int compose_data(struct compose *c, size_t index, const void *bytes, size_t len);
int compose_hole(struct compose *c, size_t index, uint64_t len);

/* all bytes were given: add the last file and publish. @ret may be NULL */
int compose_finish(struct compose *c, const void *last, size_t last_len, struct pack_result *ret);

/* without compose_finish() nothing is left of it; NULL is fine */
void compose_close(struct compose *c);

#endif
