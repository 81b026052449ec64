/* SPDX-License-Identifier: Apache-2.0 */
#include "imgfmt/diff_data.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "common/bytes.h"
#include "common/log.h"
#include "imgfmt/zero.h"

#define SLOTS 8u /* decoded chunks that are kept: small files share chunks, and areas of memory come between */
#define PAGE  4096u

struct slot {
	struct image *img; /* NULL: free */
	uint32_t chunk, len;
	int error; /* it could not be read */
	uint64_t used;
	uint8_t *buf;
	size_t room;
};

struct data_diff {
	bool pages;
	struct chunk_ctx *ctx;
	struct slot slots[SLOTS];
	uint64_t clock; /* counts uses of slots */
	uint64_t decoded;
	int error;
	uint32_t zero_len; /* of which zero_hash is the checksum */
	uint64_t zero_hash;
	uint8_t *zeros;
};

int data_diff_new(bool pages, struct data_diff **ret)
{
	struct data_diff *d = calloc(1, sizeof(*d));

	if (!d)
		return -ENOMEM;
	d->pages = pages;
	d->ctx = chunk_ctx_new();
	d->zeros = calloc(1, THAW_CHUNK_MAX);
	if (!d->ctx || !d->zeros) {
		data_diff_free(d);
		return -ENOMEM;
	}
	*ret = d;
	return 0;
}

void data_diff_free(struct data_diff *d)
{
	if (!d)
		return;
	for (unsigned i = 0; i < SLOTS; i++)
		free(d->slots[i].buf);
	chunk_ctx_free(d->ctx);
	free(d->zeros);
	free(d);
}

uint64_t data_diff_decoded(const struct data_diff *d)
{
	return d->decoded;
}

int data_diff_error(const struct data_diff *d)
{
	return d->error;
}

/* -- decoded chunks --------------------------------------------------------------------------- */

static struct slot *find_slot(struct data_diff *d, const struct image_run *run)
{
	for (unsigned i = 0; i < SLOTS; i++) {
		struct slot *s = &d->slots[i];

		if (s->img == run->img && s->chunk == run->chunk)
			return s;
	}
	return NULL;
}

/* the one that was not used for longest: not the other one of the two that are being compared */
static struct slot *oldest_slot(struct data_diff *d)
{
	struct slot *s = &d->slots[0];

	for (unsigned i = 1; i < SLOTS; i++) {
		if (d->slots[i].used < s->used)
			s = &d->slots[i];
	}
	return s;
}

static int fill_slot(struct data_diff *d, const struct image_run *run, struct slot **ret)
{
	struct slot *s = oldest_slot(d);
	uint32_t chunk_size = image_info(run->img)->chunk_size;

	s->img = NULL;
	if (s->room < chunk_size) {
		free(s->buf);
		s->buf = malloc(chunk_size);
		s->room = s->buf ? chunk_size : 0;
		if (!s->buf)
			return -ENOMEM;
	}
	s->len = 0;
	s->error = image_chunk_read(run->img, d->ctx, run->chunk, s->buf, &s->len);
	if (s->error == -ENOMEM)
		return s->error;
	/* that a base is missing was said, once */
	if (s->error && s->error != -ENOENT)
		log_error("cannot read '%s': chunk %u %s", image_path(run->img), run->chunk, chunk_ctx_error(d->ctx));
	if (!d->error || s->error == -EBADMSG)
		d->error = s->error;
	s->img = run->img;
	s->chunk = run->chunk;
	d->decoded += s->len;
	*ret = s;
	return 0;
}

/* the bytes of a run. *ret: NULL if they cannot be read */
static int run_bytes(struct data_diff *d, const struct image_run *run, uint64_t len, const uint8_t **ret)
{
	struct slot *s = NULL;
	int err = 0;

	if (run->kind == RUN_HOLE) { /* no longer than the other one's chunk */
		*ret = d->zeros;
		return 0;
	}
	s = find_slot(d, run);
	if (!s)
		err = fill_slot(d, run, &s);
	if (err)
		return err;
	s->used = ++d->clock;
	*ret = s->error || !range_inside(run->chunk_off, len, s->len) ? NULL : s->buf + run->chunk_off;
	return 0;
}

/* -- comparing -------------------------------------------------------------------------------- */

static int compare_bytes(const uint8_t *a, const uint8_t *b, uint64_t off, uint64_t len, data_diff_fn *fn, void *ctx)
{
	uint64_t done = 0;
	int err = 0;

	while (!err && done < len) {
		/* pages of the file or of memory, not of the chunk */
		uint64_t part = min_u64(len - done, PAGE - (off + done) % PAGE);

		if (memcmp(a + done, b + done, part) != 0)
			err = fn(ctx, off + done, part, false);
		done += part;
	}
	return err;
}

static int decode_and_compare(struct data_diff *d, const struct image_run *a, const struct image_run *b, uint64_t len,
			      data_diff_fn *fn, void *ctx)
{
	const uint8_t *a_bytes, *b_bytes;
	int err = run_bytes(d, a, len, &a_bytes);

	if (!err)
		err = run_bytes(d, b, len, &b_bytes);
	if (err)
		return err;
	if (!a_bytes || !b_bytes)
		return fn(ctx, a->off, len, true);
	return compare_bytes(a_bytes, b_bytes, a->off, len, fn, ctx);
}

static uint64_t hash_of_zeros(struct data_diff *d, uint32_t len)
{
	if (d->zero_len != len) {
		d->zero_len = len;
		d->zero_hash = XXH3_64bits(d->zeros, len);
	}
	return d->zero_hash;
}

/* what checksums say about a piece */
enum verdict { SAME, DIFFERENT, CANNOT_TELL };

static enum verdict judge_chunks(const struct image_run *a, const struct image_chunk *ca, const struct image_run *b,
				 const struct image_chunk *cb, uint64_t len)
{
	bool alike = ca->hash == cb->hash && ca->logical_len == cb->logical_len;
	bool whole = a->chunk_off == 0 && b->chunk_off == 0 && len == ca->logical_len && len == cb->logical_len;

	if (a->chunk_off == b->chunk_off && alike)
		return SAME;
	return whole && !alike ? DIFFERENT : CANNOT_TELL;
}

static enum verdict judge_with_hole(struct data_diff *d, const struct image_run *run, const struct image_chunk *chunk,
				    uint64_t len)
{
	if (run->chunk_off || len != chunk->logical_len)
		return CANNOT_TELL;
	/* a writer that stores zeros is odd, but not wrong */
	return chunk->hash == hash_of_zeros(d, chunk->logical_len) ? SAME : DIFFERENT;
}

static int judge(struct data_diff *d, const struct image_run *a, const struct image_run *b, uint64_t len,
		 enum verdict *ret)
{
	struct image_chunk ca = { 0 }, cb = { 0 };
	int err = a->kind == RUN_DATA ? image_chunk(a->img, a->chunk, &ca) : 0;

	if (!err && b->kind == RUN_DATA)
		err = image_chunk(b->img, b->chunk, &cb);
	if (err)
		return err;
	if (a->kind == RUN_DATA && b->kind == RUN_DATA)
		*ret = judge_chunks(a, &ca, b, &cb, len);
	else if (a->kind == RUN_DATA)
		*ret = judge_with_hole(d, a, &ca, len);
	else
		*ret = judge_with_hole(d, b, &cb, len);
	return 0;
}

int data_diff_runs(struct data_diff *d, const struct image_run *a, const struct image_run *b, uint64_t len,
		   data_diff_fn *fn, void *ctx)
{
	enum verdict verdict = SAME;
	int err;

	if (a->kind == b->kind && a->kind != RUN_DATA)
		return 0;
	if (a->kind == RUN_ABSENT || b->kind == RUN_ABSENT)
		return fn(ctx, a->off, len, false);
	err = judge(d, a, b, len, &verdict);
	if (err || verdict == SAME)
		return err;
	if (verdict == DIFFERENT && !d->pages)
		return fn(ctx, a->off, len, false);
	return decode_and_compare(d, a, b, len, fn, ctx);
}
