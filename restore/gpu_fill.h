/* SPDX-License-Identifier: Apache-2.0 */
/* Putting bytes of a source into device memory: the feed of a pipe that gpu_load and gpu_serve share. */
#ifndef THAW_RESTORE_GPU_FILL_H
#define THAW_RESTORE_GPU_FILL_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu/pipe.h"
#include "restore/gpu_source.h"

struct gpu_fill_item {
	uint64_t addr, size; /* on the device */
	uint64_t off;        /* in the file */
	uint32_t file;       /* of the source */
	bool zero;           /* clear it, whatever the file has */
};

/* the caller fills in what stands before the private part, and zeroes that */
struct gpu_fill {
	struct gpu_source *source;
	pthread_mutex_t *source_lock; /* all that share the source have the same */
	const struct gpu_fill_item *items;
	size_t n_items;
	unsigned first_thread, n_threads;    /* numbers [first, first + n) of the source's threads are this one's */
	const volatile int *stop, *stop_too; /* give up with -ECANCELED; each may be NULL */
	/* private */
	struct gpu_pipe *pipe;
	size_t at;
	uint64_t done;
};

/* Return: 0 or the first error, gpu_error() has it in words */
int gpu_fill_run(struct gpu_fill *fill, struct gpu_pipe *pipe, struct gpu_profile *profile);

#endif
