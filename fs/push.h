/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pushing: pages of a file placed in the kernel's page cache before anybody asks for them (FUSE's notify_store).
 *
 * Only for threads that serve no requests: a push waits for a page that a read has locked, and that read waits for a
 * thread that serves. Only whole pages with data are pushed: holes would fill the page cache with zeros, and absent
 * bytes and damaged chunks are left to whoever asks for them, who gets the error.
 */
#ifndef THAW_FS_PUSH_H
#define THAW_FS_PUSH_H

#include <stdbool.h>
#include <stdint.h>

#include "fs/read.h"

struct pusher; /* belongs to one thread */

int pusher_new(struct fs *fs, struct pusher **ret);
void pusher_free(struct pusher *pusher);

/* what a run of data is to the caller */
enum push_class {
	PUSH_WANTED, /* to be pushed */
	PUSH_DONE,   /* has been, or is left out; may be read for a page that it shares with wanted data */
	PUSH_NEVER,  /* not to be read; a page that has some of it is left out */
};

struct push_job {
	const struct read_file *file;
	void *ctx;
	/* NULL: all is wanted */
	enum push_class (*class)(void *ctx, const struct image_run *run);
	/* before @len bytes are decoded and pushed: may wait. Return: false to stop */
	bool (*go_on)(void *ctx, uint64_t len);
	/* @len bytes are in the page cache */
	void (*pushed)(void *ctx, uint64_t len);
	/* a chunk could not be had, which is logged. Return: false to stop */
	bool (*failed)(void *ctx);
};

/*
 * push_range - push the wanted pages of [from, to)
 * @from, @to:  multiples of 4096, or the end of the file
 * Return: 0; -ECANCELED after go_on() or failed() said so; -ENOENT if the kernel does not have the file in use;
 * other errors of the kernel and of read_map()
 */
int push_range(struct pusher *pusher, const struct push_job *job, uint64_t from, uint64_t to);

#endif
