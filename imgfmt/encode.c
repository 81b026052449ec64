/* SPDX-License-Identifier: Apache-2.0 */
#include "imgfmt/encode.h"

#include <errno.h>
#include <lz4.h>
#include <lz4hc.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
/* ZSTD_getCParams, to change one parameter of a level */
#define ZSTD_STATIC_LINKING_ONLY
#include <zstd.h>

#include "common/cleanup.h"
#include "imgfmt/format.h"
#include "imgfmt/shuffle.h"

/* Less than this share saved is not worth a decode: raw chunks are read at memory speed. */
#define RAW_UNLESS_SAVED    32 /* 1/32 */
/*
 * Shuffling has to save this much more than plain compression. (It costs no time later: literals that cannot shrink are
 * stored, so shuffled floats decode three times as fast as plain ones.)
 */
#define SHUFFLE_GAIN(plain) ((plain) - (plain) / 20)
/* What shrinks to less than this share is not shuffled: structure that LZ finds would be lost. */
#define SHUFFLE_ABOVE(len)  ((len) / 5 * 2)
#define SHUFFLE_MIN         4096 /* bytes */
#define SAMPLE_PIECES       8
#define SAMPLE_PIECE        1024
#define SAMPLE_MAX          (SAMPLE_PIECES * SAMPLE_PIECE)
/* Where so many words of the sample occur in it again (pointers, zeros), LZ does better; weights hardly repeat. */
#define REPEATS_SHARE       8
#define SEEN_BITS           10
#define SEEN_WORDS          (1u << SEEN_BITS)
#define TRIAL_PIECES        4
#define TRIAL_PIECE         4096
#define TRIAL               (TRIAL_PIECES * TRIAL_PIECE)
/* In lanes of numbers, short matches are chance; looking for them less often is faster and leaves better literals. */
#define LANES_TARGET_LENGTH 64

struct encoder {
	struct encoder_opts opts;
	ZSTD_CCtx *zstd;  /* for chunks as they are */
	ZSTD_CCtx *lanes; /* for shuffled ones */
	void *lz4hc;      /* NULL unless it is wanted */
	uint8_t *shuffled;
	uint8_t *trial; /* what trials are compressed to */
	uint8_t sample[TRIAL];
	size_t bound;
	float n_log_n[SAMPLE_MAX + 1]; /* n * log2(n) */
};

size_t encoder_bound(uint32_t chunk_size)
{
	size_t zstd = ZSTD_compressBound(chunk_size), lz4 = (size_t)LZ4_compressBound((int)chunk_size);

	return zstd > lz4 ? zstd : lz4;
}

/*
 * The fast levels have hash tables for small inputs that are smaller than they need be: with them twice as large,
 * chunks of process memory shrink by 0.2 to 1 % more at the same speed, which pays for their entries in the index many
 * times.
 */
static ZSTD_CCtx *new_ctx(const struct encoder_opts *opts, bool lanes)
{
	ZSTD_compressionParameters p = ZSTD_getCParams(opts->level, opts->chunk_size, 0);
	bool fast = p.strategy == ZSTD_fast;
	ZSTD_CCtx *ctx = ZSTD_createCCtx();
	size_t r;

	if (!ctx)
		return NULL;
	r = ZSTD_CCtx_setParameter(ctx, ZSTD_c_compressionLevel, opts->level);
	if (!ZSTD_isError(r))
		r = ZSTD_CCtx_setParameter(ctx, ZSTD_c_checksumFlag, 0);
	if (!ZSTD_isError(r))
		r = ZSTD_CCtx_setParameter(ctx, ZSTD_c_contentSizeFlag, 1);
	if (!ZSTD_isError(r) && fast)
		r = ZSTD_CCtx_setParameter(ctx, ZSTD_c_hashLog, (int)p.hashLog + 1);
	if (!ZSTD_isError(r) && fast && lanes)
		r = ZSTD_CCtx_setParameter(ctx, ZSTD_c_targetLength, LANES_TARGET_LENGTH);
	/* else a target length would turn it off */
	if (!ZSTD_isError(r) && fast && lanes)
		r = ZSTD_CCtx_setParameter(ctx, ZSTD_c_literalCompressionMode, ZSTD_ps_enable);
	if (!ZSTD_isError(r))
		return ctx;
	ZSTD_freeCCtx(ctx);
	return NULL;
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
	if (opts->codec == THAW_LZ4 && opts->level > 1) {
		enc->lz4hc = malloc((size_t)LZ4_sizeofStateHC());
		if (!enc->lz4hc) {
			encoder_free(enc);
			return NULL;
		}
	}
	enc->zstd = new_ctx(opts, false);
	enc->lanes = new_ctx(opts, true);
	if (!enc->shuffled || !enc->trial || !enc->zstd || !enc->lanes) {
		encoder_free(enc);
		return NULL;
	}
	for (int n = 1; n <= SAMPLE_MAX; n++)
		enc->n_log_n[n] = (float)n * log2f((float)n);
	return enc;
}

void encoder_free(struct encoder *enc)
{
	if (!enc)
		return;
	ZSTD_freeCCtx(enc->zstd);
	ZSTD_freeCCtx(enc->lanes);
	free(enc->lz4hc);
	free(enc->shuffled);
	free(enc->trial);
	free(enc);
}

/* compress with the codec that was asked for; 0 is an error */
static size_t squeeze(struct encoder *enc, const uint8_t *in, size_t len, uint8_t *out)
{
	size_t n;

	if (enc->opts.codec == THAW_LZ4 && enc->opts.level > 1)
		return (size_t)LZ4_compress_HC_extStateHC(enc->lz4hc, (const char *)in, (char *)out, (int)len,
							  (int)enc->bound, enc->opts.level);
	if (enc->opts.codec == THAW_LZ4)
		return (size_t)LZ4_compress_default((const char *)in, (char *)out, (int)len, (int)enc->bound);
	n = ZSTD_compress2(enc->zstd, out, enc->bound, in, len);
	return ZSTD_isError(n) ? 0 : n;
}

/*
 * The same for @len shuffled bytes. zstd codes literals by one Huffman table for each of its blocks, so each lane gets
 * blocks of its own; else the lanes of a chunk that is one block would be mixed again.
 */
static size_t squeeze_lanes(struct encoder *enc, const uint8_t *in, size_t len, unsigned width, uint8_t *out)
{
	ZSTD_outBuffer to = { .dst = out, .size = enc->bound };
	size_t lane = len / width, left = 0;

	if (enc->opts.codec == THAW_LZ4)
		return squeeze(enc, in, len, out);
	ZSTD_CCtx_reset(enc->lanes, ZSTD_reset_session_only);
	if (ZSTD_isError(ZSTD_CCtx_setPledgedSrcSize(enc->lanes, len)))
		return 0;
	for (unsigned l = 0; l < width && !left; l++) {
		bool last = l + 1 == width;
		ZSTD_inBuffer from = { .src = in, .size = last ? len : (l + 1) * lane, .pos = l * lane };

		/* there is room for all, so one call takes all of a lane; anything left, or an error, is not 0 */
		left = ZSTD_compressStream2(enc->lanes, &to, &from, last ? ZSTD_e_end : ZSTD_e_flush);
	}
	return left ? 0 : to.pos;
}

/* bits that an order-0 coder needs for the bytes counted in @h */
static float cost(const struct encoder *enc, const uint32_t *h)
{
	float bits = 0;
	uint32_t total = 0;

	for (int i = 0; i < 256; i++) {
		bits -= enc->n_log_n[h[i]];
		total += h[i];
	}
	return bits + enc->n_log_n[total];
}

static void fold(uint32_t (*h)[256], int from, int to)
{
	for (int l = 0; l < to; l++)
		for (int i = 0; i < 256; i++)
			for (int k = l + to; k < from; k += to)
				h[l][i] += h[k][i];
}

/* Do words come back in the sample? What was met lately is kept by hash; zero counts as met. */
static bool words_repeat(const uint8_t *in, size_t len)
{
	uint64_t seen[SEEN_WORDS] = { 0 };
	unsigned repeats = 0, words = 0;

	for (size_t piece = 0; piece < SAMPLE_PIECES; piece++) {
		size_t at = align_down(piece * (len / SAMPLE_PIECES), 8);

		for (size_t i = 0; i < SAMPLE_PIECE && at + i + 8 <= len; i += 8) {
			uint64_t word = load_le64(in + at + i), *slot;

			slot = &seen[word * 0x9e3779b97f4a7c15u >> (64 - SEEN_BITS)];
			repeats += *slot == word;
			words++;
			*slot = word;
		}
	}
	return repeats > words / REPEATS_SHARE;
}

/* the lane width whose lanes, coded each by itself, would be smallest on a sample; 0 if none promises the gain */
static unsigned guess_width(const struct encoder *enc, const uint8_t *in, size_t len)
{
	uint32_t h[8][256] = { 0 };
	float best, lanes[9] = { 0 };
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
			lanes[w] += cost(enc, h[l]);
	}
	best = SHUFFLE_GAIN(lanes[1]);
	for (unsigned w = 2; w <= 8; w *= 2) {
		/* a wider lane must be better by more than noise */
		if (lanes[w] < best) {
			best = lanes[w] * 0.98f;
			width = w;
		}
	}
	return width;
}

/*
 * The lane width that a chunk is to be shuffled with, 0: none. Found out on a small part, because compressing the whole
 * twice would cost more than anything else in packing; what it depends on is in the chunk alone.
 */
static unsigned choose_width(struct encoder *enc, const uint8_t *in, size_t len)
{
	const uint8_t *sample = in;
	size_t n = len, plain, shuffled;
	unsigned width = words_repeat(in, len) ? 0 : guess_width(enc, in, len);

	if (!width)
		return 0;
	if (len > TRIAL) {
		sample = enc->sample;
		n = TRIAL;
		for (size_t i = 0; i < TRIAL_PIECES; i++)
			memcpy(enc->sample + i * TRIAL_PIECE, in + align_down(i * (len / TRIAL_PIECES), 8),
			       TRIAL_PIECE);
	}
	plain = squeeze(enc, sample, n, enc->trial);
	if (plain <= SHUFFLE_ABOVE(n))
		return 0;
	shuffle_bytes(enc->shuffled, sample, n, width);
	shuffled = squeeze_lanes(enc, enc->shuffled, n, width, enc->trial);
	/* where LZ finds something, it finds more in a whole chunk than in a sample */
	if (plain < n / 4 * 3)
		plain -= plain / 20;
	return shuffled && shuffled < SHUFFLE_GAIN(plain) ? width : 0;
}

int encode(struct encoder *enc, const uint8_t *in, uint32_t len, uint8_t *out, struct encoded *ret)
{
	const struct encoded raw = { .data = in, .len = len, .codec = THAW_RAW };
	struct encoded e = { .data = out, .codec = enc->opts.codec };

	if (enc->opts.codec == THAW_RAW) {
		*ret = raw;
		return 0;
	}
	if (enc->opts.filter && len >= SHUFFLE_MIN)
		e.shuffle = (uint8_t)choose_width(enc, in, len);
	if (e.shuffle)
		shuffle_bytes(enc->shuffled, in, len, e.shuffle);
	e.len = (uint32_t)(e.shuffle ? squeeze_lanes(enc, enc->shuffled, len, e.shuffle, out)
				     : squeeze(enc, in, len, out));
	if (!e.len)
		return -EIO;
	*ret = e.len >= len - len / RAW_UNLESS_SAVED ? raw : e;
	return 0;
}
