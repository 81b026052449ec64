/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/gpu_fill.h"
#include "common/stop.h"

#include <errno.h>

#include "common/bytes.h"
#include "common/cleanup.h"

static int next(void *ctx, struct gpu_piece *ret)
{
	struct gpu_fill *f = ctx;
	uint64_t left, len, off, slot = gpu_pipe_slot_bytes(f->pipe);
	const struct gpu_fill_item *it;
	bool zero = true;
	int r = 0;

	if (stop_asked(f->stop_too)) {
		gpu_keep_error("given up");
		return -ECANCELED;
	}
	while (f->at < f->n_items && f->done == f->items[f->at].size) {
		f->at++;
		f->done = 0;
	}
	if (f->at == f->n_items)
		return 0;
	it = &f->items[f->at];
	left = len = it->size - f->done;
	off = it->off + f->done;
	if (!it->zero) {
		LOCK_GUARD(f->source_lock);

		/* pieces end at multiples of a slot, so that chunks go to their places whole; zeros are sought far
		 * ahead */
		r = gpu_source_run(f->source, it->file, off, min_u64(left, slot - f->done % slot), &len, &zero);
		if (!r && zero)
			r = gpu_source_run(f->source, it->file, off, left, &len, &zero);
	}
	if (r)
		return r;
	*ret = (struct gpu_piece){
		.addr = it->addr + f->done,
		.len = len,
		.off = off,
		.item = (uint32_t)f->at,
		.zero = zero,
	};
	f->done += len;
	return 1;
}

static int fill_slot(void *ctx, unsigned worker, const struct gpu_piece *piece, void *buf)
{
	struct gpu_fill *f = ctx;

	return gpu_source_read(f->source, f->first_thread + worker, f->items[piece->item].file, piece->off, buf,
			       piece->len, gpu_pipe_slot_bytes(f->pipe));
}

int gpu_fill_run(struct gpu_fill *fill, struct gpu_pipe *pipe, struct gpu_profile *profile)
{
	const struct gpu_feed feed = {
		.next = next,
		.fill = fill_slot,
		.ctx = fill,
		.threads = fill->n_threads,
		.stop = fill->stop,
	};

	fill->pipe = pipe;
	return gpu_pipe_run(pipe, GPU_IN, &feed, profile);
}
