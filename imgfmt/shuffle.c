/* SPDX-License-Identifier: Apache-2.0 */
#include "imgfmt/shuffle.h"

#include <assert.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* elements [from, m), whatever the vector code left */
static void shuffle_tail(uint8_t *restrict out, const uint8_t *restrict in, size_t n, unsigned w, size_t from)
{
	size_t m = n / w;

	for (unsigned l = 0; l < w; l++)
		for (size_t k = from; k < m; k++)
			out[l * m + k] = in[k * w + l];
	memcpy(out + m * w, in + m * w, n - m * w);
}

static void unshuffle_tail(uint8_t *restrict out, const uint8_t *restrict in, size_t n, unsigned w, size_t from)
{
	size_t m = n / w;

	for (size_t k = from; k < m; k++)
		for (unsigned l = 0; l < w; l++)
			out[k * w + l] = in[l * m + k];
	memcpy(out + m * w, in + m * w, n - m * w);
}

#ifdef __SSE2__
static inline __m128i load(const uint8_t *p)
{
	return _mm_loadu_si128((const __m128i *)(const void *)p);
}

static inline void store(uint8_t *p, __m128i v)
{
	_mm_storeu_si128((__m128i *)(void *)p, v);
}

/*
 * Sixteen elements at a time are a matrix of w registers. Interleaving register i with register i + w/2, log2(w)
 * times, turns lanes into elements; interleaving bytes of the halves log2(16) times turns elements into lanes,
 * since the two are inverse rotations of the bits of a byte's index (log2(w) + 4 bits in all).
 */
static inline void interleave(__m128i *v, unsigned w)
{
	__m128i next[8];

	for (unsigned i = 0; i < w / 2; i++) {
		next[2 * i] = _mm_unpacklo_epi8(v[i], v[i + w / 2]);
		next[2 * i + 1] = _mm_unpackhi_epi8(v[i], v[i + w / 2]);
	}
	for (unsigned i = 0; i < w; i++)
		v[i] = next[i];
}

static inline __attribute__((always_inline)) size_t shuffle_blocks(uint8_t *restrict out, const uint8_t *restrict in,
								   size_t m, unsigned w)
{
	size_t k = 0;

	for (; k + 16 <= m; k += 16) {
		__m128i v[8];

		for (unsigned i = 0; i < w; i++)
			v[i] = load(in + k * w + (size_t)16 * i);
		for (unsigned round = 0; round < 4; round++)
			interleave(v, w);
		for (unsigned i = 0; i < w; i++)
			store(out + i * m + k, v[i]);
	}
	return k;
}

static inline __attribute__((always_inline)) size_t unshuffle_blocks(uint8_t *restrict out, const uint8_t *restrict in,
								     size_t m, unsigned w)
{
	size_t k = 0;

	for (; k + 16 <= m; k += 16) {
		__m128i v[8];

		for (unsigned i = 0; i < w; i++)
			v[i] = load(in + i * m + k);
		for (unsigned round = 1; round < w; round *= 2)
			interleave(v, w);
		for (unsigned i = 0; i < w; i++)
			store(out + k * w + (size_t)16 * i, v[i]);
	}
	return k;
}
#else
static inline size_t shuffle_blocks(uint8_t *out, const uint8_t *in, size_t m, unsigned w)
{
	(void)out, (void)in, (void)m, (void)w;
	return 0;
}

static inline size_t unshuffle_blocks(uint8_t *out, const uint8_t *in, size_t m, unsigned w)
{
	(void)out, (void)in, (void)m, (void)w;
	return 0;
}
#endif

void shuffle_bytes(uint8_t *restrict out, const uint8_t *restrict in, size_t n, unsigned width)
{
	size_t m = n / width, done;

	assert(width == 2 || width == 4 || width == 8);
	/* constants, so that the rounds are unrolled */
	done = width == 2   ? shuffle_blocks(out, in, m, 2)
	       : width == 4 ? shuffle_blocks(out, in, m, 4)
			    : shuffle_blocks(out, in, m, 8);
	shuffle_tail(out, in, n, width, done);
}

void unshuffle_bytes(uint8_t *restrict out, const uint8_t *restrict in, size_t n, unsigned width)
{
	size_t m = n / width, done;

	assert(width == 2 || width == 4 || width == 8);
	done = width == 2   ? unshuffle_blocks(out, in, m, 2)
	       : width == 4 ? unshuffle_blocks(out, in, m, 4)
			    : unshuffle_blocks(out, in, m, 8);
	unshuffle_tail(out, in, n, width, done);
}
