/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of unpack that moves bytes: the walk hands over files that are open, threads decode their chunks and
 * write them, and the last one to work on a file gives it its metadata and name, or removes it. Private to unpack.c.
 *
 * Thread model: one thread calls the pool_* functions, the pool's own threads do the rest. A file belongs to the
 * pool from pool_put() on. The number of files in flight is bounded, so that a low limit of descriptors is enough.
 */
#ifndef THAW_IMGFMT_UNPACK_POOL_H
#define THAW_IMGFMT_UNPACK_POOL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "imgfmt/unpack.h"
#include "imgfmt/unpack_out.h"

/* a directory that files in flight are in */
struct unpack_dir {
	int fd;
	atomic_uint users;
};
struct unpack_dir *unpack_dir_new(int fd); /* owns the descriptor, closed also on failure (NULL) */
struct unpack_dir *unpack_dir_hold(struct unpack_dir *dir);
void unpack_dir_put(struct unpack_dir *dir); /* NULL is fine */

struct unpack_file {
	struct image_inode inode;
	struct unpack_dir *dir; /* held */
	int fd;
	char *path;       /* in the image */
	const char *name; /* the last part of it, or what @dest says */
	char *own_name;   /* memory of name, if it is not part of path */
	char temp[OUT_TEMP_MAX];
	atomic_bool *lost; /* set if the file could not be made; may be NULL */
	atomic_uint parts; /* that threads still work on, one more while it is being cut up */
	atomic_int err;
};
void unpack_file_free(struct unpack_file *file);

#define UNPACK_BATCH 16 /* small files that are handed over together */

struct unpack_item {
	struct unpack_file *file[UNPACK_BATCH];
	unsigned n;
	uint64_t off, end; /* of the only file; several are done as a whole */
};

#define UNPACK_QUEUE 64

struct unpack_pool {
	struct image *img;
	const struct unpack_opts *opts;
	uint64_t total_bytes;
	struct out_notes notes;

	pthread_mutex_t lock; /* over the next fields */
	pthread_cond_t more, less;
	struct unpack_item queue[UNPACK_QUEUE];
	unsigned first, n_queued, n_in_flight, max_in_flight;
	bool closed;
	int err;       /* what ends everything: the destination's errors, -ENOMEM, -EINTR */
	int image_err; /* -EBADMSG, else the first other error that cost a file */
	uint64_t n_files, n_bytes, n_failed;

	atomic_bool stopping; /* err is set */
	atomic_ullong done_bytes;
	struct unpack_item batch; /* of the handing thread alone */
	uint64_t batch_bytes;
	pthread_t *threads;
	unsigned n_threads;
};

/* Return: 0, -ENOMEM, -EAGAIN no thread can be had */
int pool_start(struct unpack_pool *pool, struct image *img, const struct unpack_opts *opts);

/*
 * pool_wait - until another file may be opened; shows progress
 * @max: files that may still be in flight then; ~0u: as many as there is room for
 * Return: 0, or the error that ended everything
 */
int pool_wait(struct unpack_pool *pool, unsigned max);

/* hand over a file with its size set. Return: 0, or the error that ended everything */
int pool_put(struct unpack_pool *pool, struct unpack_file *file);

/* end everything with @err; the first one counts */
void pool_fail(struct unpack_pool *pool, int err);
/* a file that could not be made, for a reason in the image */
void pool_lost(struct unpack_pool *pool, int err);

/* wait for all files, end the threads. Return: the error that ended everything, or 0 */
int pool_finish(struct unpack_pool *pool);

#endif
