/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Saving: device → pinned slots → compressing threads of the composer. Thread model: one thread for the call, which
 * goes through the GPUs one after the other, with the pipe's one worker, and the threads that compress.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "common/bytes.h"
#include "common/cleanup.h"
#include "imgfmt/compose.h"
#include "restore/gpu_image.h"
#include "restore/gpu_private.h"

/* -- a thread for a call ---------------------------------------------------------------------------------- */

struct call {
	int (*fn)(void *arg);
	void *arg;
	int result;
	char error_text[320];
};

static void *make_call(void *p)
{
	struct call *call = p;

	call->result = call->fn(call->arg);
	if (call->result)
		strncpy(call->error_text, gpu_error(), sizeof(call->error_text) - 1);
	return NULL;
}

int gpu_in_thread(int (*fn)(void *arg), void *arg)
{
	struct call call = { .fn = fn, .arg = arg };
	pthread_t thread;
	int r = -pthread_create(&thread, NULL, make_call, &call);

	if (r)
		return gpu_fail(r, "cannot start a thread: %s", strerror(-r));
	pthread_join(thread, NULL);
	if (call.result)
		gpu_keep_error(call.error_text);
	return call.result;
}

/* -- saving ------------------------------------------------------------------------------------------------ */

struct save {
	struct gpu_driver *drv;
	const char *path;
	struct thaw_gpu_buffer *buffers; /* those of one GPU follow each other */
	size_t n;
	struct thaw_gpu_save_opts opts;
	struct pack_result *ret;
	struct gpu_manifest manifest;
	struct compose_file *files;
	struct compose *out;
	XXH3_state_t *hash;
	/* what is being copied: one GPU's buffers at a time */
	struct gpu *gpu;
	struct gpu_pipe *pipe;
	size_t at, end;
	size_t written; /* buffers whose turn in the image has come */
	uint64_t off;
};

static int describe(struct save *s, const struct thaw_gpu_buffer *in)
{
	struct gpu_buffer *b;
	int gpu;

	if (!gpu_id_good(in->id))
		return gpu_fail(-EINVAL, "cannot save '%s': an id is 1 to %u letters, digits, '.', '_' or '-'", in->id,
				GPU_ID_MAX);
	if (in->mapped_size && in->mapped_size < in->size)
		return gpu_fail(-EINVAL, "cannot save '%s': it is larger than what is mapped", in->id);
	gpu = gpu_manifest_add_gpu(&s->manifest, gpu_device(s->drv, in->ordinal));
	b = gpu < 0 ? NULL : gpu_manifest_add(&s->manifest);
	if (!b)
		return gpu_fail(-ENOMEM, "out of memory");
	b->id = strdup(in->id);
	b->file = strdup(in->id);
	b->process = s->opts.process ? strdup(s->opts.process) : NULL;
	if (!b->id || !b->file || (s->opts.process && !b->process))
		return gpu_fail(-ENOMEM, "out of memory");
	b->gpu = (uint32_t)gpu;
	b->kind = in->mapped_size ? GPU_VMM : GPU_PLAIN;
	b->va = in->addr;
	b->size = in->size;
	b->mapped_size = in->mapped_size;
	b->reserved_va = in->reserved_size ? in->reserved_addr : in->mapped_size ? in->addr : 0;
	b->reserved_size = in->reserved_size ? in->reserved_size : in->mapped_size;
	b->exportable = in->exportable;
	b->discardable = in->discardable;
	b->access = 1ull << gpu;
	return 0;
}

/* by GPU, else in the order given */
static void sort_by_gpu(struct thaw_gpu_buffer *sorted, const struct thaw_gpu_buffer *buffers, size_t n)
{
	size_t k = 0;

	for (unsigned ordinal = 0; ordinal < GPU_MAX; ordinal++) {
		for (size_t i = 0; i < n; i++) {
			if (buffers[i].ordinal == ordinal)
				sorted[k++] = buffers[i];
		}
	}
}

static int describe_all(struct save *s)
{
	int r = 0;

	s->files = calloc(s->n + 1, sizeof(*s->files));
	s->hash = XXH3_createState();
	if (!s->files || !s->hash)
		return gpu_fail(-ENOMEM, "out of memory");
	if (s->n > GPU_MANIFEST_MAX_BUFFERS)
		return gpu_fail(-E2BIG, "cannot save %zu buffers", s->n);
	for (size_t i = 0; i < s->n && !r; i++)
		r = describe(s, &s->buffers[i]);
	for (size_t i = 0; i < s->n && !r; i++)
		s->files[i] = (struct compose_file){ s->manifest.buffers[i].file, s->buffers[i].size };
	return r;
}

/* the image could not be written: its messages are in the log */
static int output_error(int r)
{
	if (r)
		gpu_keep_error("the image cannot be written");
	return r;
}

static int next_out(void *ctx, struct gpu_piece *ret)
{
	struct save *s = ctx;

	while (s->at < s->end && (s->buffers[s->at].discardable || s->off == s->buffers[s->at].size)) {
		s->at++;
		s->off = 0;
	}
	if (s->at == s->end)
		return 0;
	*ret = (struct gpu_piece){
		.addr = s->buffers[s->at].addr + s->off,
		.len = min_u64(gpu_pipe_slot_bytes(s->pipe), s->buffers[s->at].size - s->off),
		.off = s->off,
		.item = (uint32_t)s->at,
	};
	s->off += ret->len;
	return 1;
}

static void end_checksum(struct save *s, size_t i)
{
	struct gpu_buffer *b = &s->manifest.buffers[i];
	XXH128_canonical_t sum;

	XXH128_canonicalFromHash(&sum, XXH3_128bits_digest(s->hash));
	memcpy(b->checksum, sum.digest, sizeof(b->checksum));
	b->has_checksum = true;
}

/* what has no bytes to copy and comes before buffer @end: a discarded buffer is a hole, an empty one nothing */
static int write_holes(struct save *s, size_t end)
{
	int r = 0;

	for (; s->written < end && !r; s->written++) {
		if (s->buffers[s->written].discardable)
			r = output_error(compose_hole(s->out, s->written, s->buffers[s->written].size));
	}
	return r;
}

static int write_piece(void *ctx, const struct gpu_piece *piece, const void *buf)
{
	struct save *s = ctx;
	int r = write_holes(s, piece->item);

	if (r)
		return r;
	s->written = piece->item + 1;
	if (!piece->off)
		XXH3_128bits_reset(s->hash);
	XXH3_128bits_update(s->hash, buf, piece->len);
	if (piece->off + piece->len == s->buffers[piece->item].size)
		end_checksum(s, piece->item);
	return output_error(compose_data(s->out, piece->item, buf, piece->len));
}

/* buffers [at, end) are of one GPU */
static int save_group(struct save *s)
{
	const struct gpu_feed feed = { .next = next_out, .done = write_piece, .ctx = s, .stop = s->opts.stop };
	int r = gpu_open(s->drv, s->buffers[s->at].ordinal, &s->gpu);

	for (size_t i = s->at; i < s->end && !r; i++)
		s->manifest.buffers[i].granularity = gpu_granularity(s->gpu);
	if (!r)
		r = gpu_pipe_new(s->gpu, &s->opts.pipe, &s->pipe);
	if (!r)
		r = gpu_pipe_run(s->pipe, GPU_OUT, &feed, s->opts.profile);
	gpu_pipe_free(s->pipe);
	gpu_close(s->gpu);
	s->pipe = NULL;
	s->gpu = NULL;
	s->at = s->end;
	s->off = 0;
	return r;
}

static int save_buffers(struct save *s)
{
	int r = 0;

	while (s->at < s->n && !r) {
		for (s->end = s->at; s->end < s->n && s->buffers[s->end].ordinal == s->buffers[s->at].ordinal;)
			s->end++;
		r = save_group(s);
	}
	return r ? r : write_holes(s, s->n);
}

static int finish(struct save *s)
{
	_cleanup_free_ char *text = NULL;
	size_t len = 0;
	FILE *f = open_memstream(&text, &len);

	if (!f)
		return gpu_fail(-ENOMEM, "out of memory");
	gpu_manifest_write(&s->manifest, f);
	if (fclose(f))
		return gpu_fail(-ENOMEM, "out of memory");
	return output_error(compose_finish(s->out, text, len, s->ret));
}

static int save(void *arg)
{
	struct save *s = arg;
	int r = describe_all(s);
	const struct compose_opts opts = {
		.out = s->path,
		.source = "gpu",
		.directory = GPU_MANIFEST_DIR,
		.files = s->files,
		.n_files = s->n,
		.last_name = GPU_MANIFEST_NAME,
		.codec = s->opts.codec,
		.level = s->opts.level,
		.threads = s->opts.threads,
		.verify = s->opts.verify,
		.no_fsync = s->opts.no_fsync,
		.stop = s->opts.stop,
	};

	if (!r)
		r = output_error(compose_open(&opts, &s->out));
	if (!r)
		r = save_buffers(s);
	if (!r)
		r = finish(s);
	compose_close(s->out);
	gpu_manifest_release(&s->manifest);
	XXH3_freeState(s->hash);
	free(s->files);
	return r;
}

int thaw_gpu_save(struct gpu_driver *drv, const char *image, const struct thaw_gpu_buffer *buffers, size_t n_buffers,
		  const struct thaw_gpu_save_opts *opts, struct pack_result *ret)
{
	struct save s = { .drv = drv, .path = image, .n = n_buffers, .ret = ret };
	int r;

	for (size_t i = 0; i < n_buffers; i++) {
		if (buffers[i].ordinal >= gpu_count(drv))
			return gpu_fail(-EINVAL, "cannot save '%s': there is no GPU %u", buffers[i].id,
					buffers[i].ordinal);
	}
	s.buffers = calloc(n_buffers + 1, sizeof(*s.buffers));
	if (!s.buffers)
		return gpu_fail(-ENOMEM, "out of memory");
	sort_by_gpu(s.buffers, buffers, n_buffers);
	if (opts)
		s.opts = *opts;
	r = gpu_in_thread(save, &s);
	free(s.buffers);
	return r;
}
