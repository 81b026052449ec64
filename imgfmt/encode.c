/* SPDX-License-Identifier: Apache-2.0 */
#include "imgfmt/encode.h"

#include <errno.h>
#include <lz4.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "common/cleanup.h"
#include "imgfmt/format.h"
#include "imgfmt/shuffle.h"

/* Less than this share saved is not worth a decode: raw chunks are read at memory speed. */
#define RAW_UNLESS_SAVED       32 /* 1/32 */
/* Shuffling must save this much more, since undoing it costs time on every read. */
#define SHUFFLE_GAIN(plain)    ((plain) - (plain) / 10)
/* A chunk that shrinks to less than this share is not tried with shuffling: structure that LZ finds would be lost. */
#define TRY_SHUFFLE_ABOVE(len) ((len) / 5 * 2)
#define TRY_SHUFFLE_MIN        4096 /* bytes */
#define SAMPLE_PIECES          8
#define SAMPLE_PIECE           1024
#define TRIAL                  32768

struct encoder {
	struct encoder_opts opts;
	ZSTD_CCtx *zstd;
	uint8_t *shuffled;
	uint8_t *trial; /* compressed trial, or the second candidate */
	size_t bound;
};

size_t encoder_bound(uint32_t chunk_size)
{
	size_t zstd = ZSTD_compressBound(chunk_size), lz4 = (size_t)LZ4_compressBound((int)chunk_size);

	return zstd > lz4 ? zstd : lz4;
}

static int set_up_zstd(struct encoder *enc)
{
	enc->zstd = ZSTD_createCCtx();
	if (!enc->zstd)
		return -ENOMEM;
	if (ZSTD_isError(ZSTD_CCtx_setParameter(enc->zstd, ZSTD_c_compressionLevel, enc->opts.level)) ||
	    ZSTD_isError(ZSTD_CCtx_setParameter(enc->zstd, ZSTD_c_checksumFlag, 0)) ||
	    ZSTD_isError(ZSTD_CCtx_setParameter(enc->zstd, ZSTD_c_contentSizeFlag, 1)))
		return -EINVAL;
	return 0;
}

struct encoder *encoder_new(const struct encoder_opts *opts)
{
	struct encoder *enc = calloc(1, sizeof(*enc));

	if (!enc)
		return NULL;
	enc->opts = *opts;
	enc->bound = encoder_bound(opts->chunk_size);
	enc->shuffled = malloc(opts->chunk_size);
	enc->trial = malloc(enc->bound);
	if (!enc->shuffled || !enc->trial || set_up_zstd(enc)) {
		encoder_free(enc);
		return NULL;
	}
	return enc;
}

void encoder_free(struct encoder *enc)
{
	if (!enc)
		return;
	ZSTD_freeCCtx(enc->zstd);
	free(enc->shuffled);
	free(enc->trial);
	free(enc);
}

/* compress with the codec that was asked for; 0 is an error */
static size_t squeeze(struct encoder *enc, const uint8_t *in, size_t len, uint8_t *out)
{
	size_t n;

	if (enc->opts.codec == THAW_LZ4)
		return (size_t)LZ4_compress_default((const char *)in, (char *)out, (int)len, (int)enc->bound);
	n = ZSTD_compress2(enc->zstd, out, enc->bound, in, len);
	return ZSTD_isError(n) ? 0 : n;
}

/* bits that an order-0 coder needs for the bytes counted in @h */
static double cost(const uint32_t *h)
{
	double bits = 0;
	uint32_t total = 0;

	for (int i = 0; i < 256; i++) {
		if (h[i])
			bits -= h[i] * log2f((float)h[i]);
		total += h[i];
	}
	return total ? bits + total * log2f((float)total) : 0;
}

static void fold(uint32_t (*h)[256], int from, int to)
{
	for (int l = 0; l < to; l++)
		for (int i = 0; i < 256; i++)
			for (int k = l + to; k < from; k += to)
				h[l][i] += h[k][i];
}

/* the lane width whose lanes, coded each by itself, would be smallest on a sample; 0 if none promises 10 % */
static unsigned guess_width(const uint8_t *in, size_t len)
{
	uint32_t h[8][256] = { 0 };
	double best = 0, lanes[9] = { 0 };
	unsigned width = 0;

	for (size_t piece = 0; piece < SAMPLE_PIECES; piece++) {
		size_t at = align_down(piece * (len / SAMPLE_PIECES), 8);

		for (size_t i = 0; i < SAMPLE_PIECE && at + i + 8 <= len; i += 8)
			for (int l = 0; l < 8; l++)
				h[l][in[at + i + (size_t)l]]++;
	}
	for (unsigned w = 8; w >= 1; w /= 2) {
		if (w < 8)
			fold(h, (int)w * 2, (int)w);
		for (unsigned l = 0; l < w; l++)
			lanes[w] += cost(h[l]);
	}
	best = lanes[1] * 0.9;
	for (unsigned w = 2; w <= 8; w *= 2) {
		/* a wider lane must be better by more than noise */
		if (lanes[w] < best) {
			best = lanes[w] * 0.98;
			width = w;
		}
	}
	return width;
}

/* does shuffling win on a part of the chunk? */
static bool trial_wins(struct encoder *enc, const uint8_t *in, size_t len, unsigned width)
{
	size_t n = len < TRIAL ? len : TRIAL, at = align_down((len - n) / 2, 8);
	size_t plain = squeeze(enc, in + at, n, enc->trial), shuffled;

	shuffle_bytes(enc->shuffled, in + at, n, width);
	shuffled = squeeze(enc, enc->shuffled, n, enc->trial);
	return plain && shuffled && shuffled < SHUFFLE_GAIN(plain);
}

/* replace what is in @out by the shuffled form if that is enough smaller */
static void try_shuffle(struct encoder *enc, const uint8_t *in, uint32_t len, uint8_t *out, struct encoded *ret)
{
	unsigned width = guess_width(in, len);
	size_t n;

	if (!width || !trial_wins(enc, in, len, width))
		return;
	shuffle_bytes(enc->shuffled, in, len, width);
	n = squeeze(enc, enc->shuffled, len, enc->trial);
	if (!n || n >= SHUFFLE_GAIN(ret->len))
		return;
	memcpy(out, enc->trial, n);
	ret->len = (uint32_t)n;
	ret->shuffle = (uint8_t)width;
}

int encode(struct encoder *enc, const uint8_t *in, uint32_t len, uint8_t *out, struct encoded *ret)
{
	const struct encoded raw = { .data = in, .len = len, .codec = THAW_RAW };
	struct encoded e = { .data = out, .codec = enc->opts.codec };

	if (enc->opts.codec == THAW_RAW) {
		*ret = raw;
		return 0;
	}
	e.len = (uint32_t)squeeze(enc, in, len, out);
	if (!e.len)
		return -EIO;
	if (enc->opts.filter && len >= TRY_SHUFFLE_MIN && e.len > TRY_SHUFFLE_ABOVE(len))
		try_shuffle(enc, in, len, out, &e);
	*ret = e.len >= len - len / RAW_UNLESS_SAVED ? raw : e;
	return 0;
}
