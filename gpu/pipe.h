/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moving much memory to a device or from it: a ring of pinned slots, filled by several threads, copied by the device on
 * several streams, given back in order. What to move comes piece by piece from a feed, so nothing here knows where
 * bytes come from or go to. Pinned memory is taken once, by gpu_pipe_new(), and is all that a transfer needs.
 *
 * Thread model of gpu_pipe_run(): workers take the next piece and its slot (in order, under the lock), fill the slot
 * and put the copy into a stream. The caller's thread waits for the copies in order, calls done() and frees the slots.
 * After the first error no piece is begun, and nothing is in flight when the call returns.
 */
#ifndef THAW_GPU_PIPE_H
#define THAW_GPU_PIPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu/driver.h"

struct gpu_pipe;

struct gpu_pipe_opts {
	size_t slot_bytes;  /* 0: 8 MiB; a multiple of 4 KiB */
	unsigned n_slots;   /* 0: 32 */
	unsigned n_streams; /* 0: 2 */
};

/* @opts may be NULL. The device stays open until gpu_pipe_free() */
int gpu_pipe_new(struct gpu *gpu, const struct gpu_pipe_opts *opts, struct gpu_pipe **ret);
void gpu_pipe_free(struct gpu_pipe *pipe);
size_t gpu_pipe_slot_bytes(const struct gpu_pipe *pipe);
struct gpu *gpu_pipe_gpu(const struct gpu_pipe *pipe);

struct gpu_piece {
	uint64_t addr; /* on the device */
	uint64_t len;  /* not 0; at most a slot, unless @zero */
	uint64_t off;  /* this and the next are the feed's own */
	uint32_t item;
	bool zero; /* to the device only: clear, without moving bytes */
};

enum gpu_direction { GPU_IN, GPU_OUT };

struct gpu_feed {
	/* the next piece: 1, 0 when there is none any more, or -errno. One call at a time */
	int (*next)(void *ctx, struct gpu_piece *ret);
	/* GPU_IN: put the piece's bytes into @buf, which has room for a slot; @worker < threads. Many at once */
	int (*fill)(void *ctx, unsigned worker, const struct gpu_piece *piece, void *buf);
	/*
	 * the piece is on the device, or (GPU_OUT) in @buf until this returns. In order, from the thread that called
	 * gpu_pipe_run(). May be NULL for GPU_IN
	 */
	int (*done)(void *ctx, const struct gpu_piece *piece, const void *buf);
	void *ctx;
	unsigned threads;         /* that fill; 0: one. GPU_OUT needs no more */
	const volatile int *stop; /* not 0: give up with -ECANCELED; may be NULL */
};

/* added up over runs; the caller zeroes it at first */
struct gpu_profile {
	uint64_t bytes, zero_bytes, pieces;
	uint64_t wall_ns;
	uint64_t fill_ns; /* filling slots, all workers together */
	uint64_t slot_ns; /* workers waiting for a free slot: the device is the slower side */
	uint64_t copy_ns; /* the caller waiting for copies */
	uint64_t done_ns; /* in done() */
};

void gpu_profile_add(struct gpu_profile *to, const struct gpu_profile *from);

/*
 * gpu_pipe_run - move all pieces of @feed; one run at a time
 * @profile:  may be NULL
 * Return: 0, or the first error of the device or of the feed; gpu_error() says what it was if it was the device's
 */
int gpu_pipe_run(struct gpu_pipe *pipe, enum gpu_direction direction, const struct gpu_feed *feed,
		 struct gpu_profile *profile);

#endif
