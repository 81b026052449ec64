/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes that look like the memory of real programs, for test inputs and benchmarks. A page's content depends
 * on its kind, a seed and its number alone, so any part of a file or address space can be made by itself,
 * and checked again later. Fast enough (over 1 GB/s for most kinds) not to be what is measured.
 */
#ifndef THAW_TESTS_GENDATA_H
#define THAW_TESTS_GENDATA_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define GEN_PAGE 4096u

enum gen_kind {
	GEN_PROCESS, /* the mix of a process: pointers, small numbers, text, floats, code, a little noise */
	GEN_HEAP,    /* objects of a dynamic language: reference count, type pointer, size, pointers to others */
	GEN_FLOATS,  /* 32-bit floats, normally distributed, like weights */
	GEN_BF16,    /* the same cut to their upper 16 bits */
	GEN_DOUBLES, /* a slowly changing signal in 64 bit */
	GEN_TEXT,
	GEN_RANDOM, /* does not compress */
	GEN_ZERO,
};

/* which addresses are zero, whatever the kind */
enum gen_zero {
	GEN_ZERO_NONE,
	GEN_ZERO_TAIL,    /* the last quarter */
	GEN_ZERO_STRIPES, /* every other 64 MiB */
	GEN_ZERO_MIB,     /* every n-th MiB */
};

struct gen {
	enum gen_kind kind;
	enum gen_zero zero;
	unsigned zero_every; /* for GEN_ZERO_MIB */
	uint64_t seed;
	uint64_t repeat; /* content repeats after this many bytes; 0: never */
};

static inline uint64_t gen_mix(uint64_t x)
{
	x ^= x >> 30;
	x *= 0xbf58476d1ce4e5b9ull;
	x ^= x >> 27;
	x *= 0x94d049bb133111ebull;
	return x ^ (x >> 31);
}

static inline uint64_t gen_next(uint64_t *state)
{
	uint64_t x = *state += 0x9e3779b97f4a7c15ull;

	x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93ull;
	return x ^ (x >> 32);
}

static inline void gen_put64(uint8_t *p, uint64_t v)
{
	memcpy(p, &v, 8);
}

static inline void gen_put32(uint8_t *p, uint32_t v)
{
	memcpy(p, &v, 4);
}

static inline void gen_random(uint8_t *p, uint64_t s)
{
	for (unsigned i = 0; i < GEN_PAGE; i += 8)
		gen_put64(p + i, gen_next(&s));
}

/* the sum of four uniform numbers is near enough to normal; 32 more bits fill the mantissa */
static inline float gen_normal(uint64_t *s)
{
	uint64_t r = gen_next(s);
	int64_t sum = (int64_t)((r & 0xffff) + ((r >> 16) & 0xffff) + ((r >> 32) & 0xffff) + (r >> 48)) - 131070;

	return (float)((double)(sum * 65536 + (int64_t)(gen_next(s) >> 48)) * (0.02 / (65536.0 * 37837.0)));
}

static inline void gen_floats(uint8_t *p, uint64_t s)
{
	for (unsigned i = 0; i < GEN_PAGE; i += 4) {
		float f = gen_normal(&s);

		memcpy(p + i, &f, 4);
	}
}

static inline void gen_bf16(uint8_t *p, uint64_t s)
{
	for (unsigned i = 0; i < GEN_PAGE; i += 2) {
		float f = gen_normal(&s);
		uint32_t bits;

		memcpy(&bits, &f, 4);
		p[i] = (uint8_t)(bits >> 16);
		p[i + 1] = (uint8_t)(bits >> 24);
	}
}

static inline void gen_doubles(uint8_t *p, uint64_t s)
{
	double level = (double)(gen_next(&s) >> 40), step = 1.0 / 1024;

	for (unsigned i = 0; i < GEN_PAGE; i += 8) {
		double d = level + step * (double)i + (double)(gen_next(&s) >> 52) / 65536.0;

		memcpy(p + i, &d, 8);
	}
}

/* word @w of the vocabulary, at most 12 letters, with a blank behind */
static inline unsigned gen_word(char word[16], unsigned w)
{
	static const char syllables[] = "retoansidelemiconurapestivgahoterfubclokybreshinmadopluxzewytrqujakispo";
	uint64_t s = gen_mix(w + 12345);
	unsigned n = 0, parts = 1 + (w > 15) + (w > 200 && (s & 1)) + ((s >> 1) % 3 == 0);

	for (unsigned i = 0; i < parts; i++) {
		unsigned at = (unsigned)(s >> (8 + 8 * i)) % 66;

		memcpy(word + n, syllables + at, 3);
		n += 2 + (unsigned)((s >> (40 + i)) & 1);
	}
	word[n++] = ' ';
	memset(word + n, ' ', 16 - n);
	return n;
}

static inline void gen_text(uint8_t *p, uint64_t s)
{
	static char words[1024][16];
	static uint8_t lens[1024];
	uint8_t room[GEN_PAGE + 16];
	unsigned n = 0;

	if (!lens[0])
		for (unsigned w = 0; w < 1024; w++)
			lens[w] = (uint8_t)gen_word(words[w], w);
	while (n < GEN_PAGE) {
		uint64_t r = gen_next(&s), last = r >> 60;

		/* frequent words are far more frequent: three uniform numbers multiplied */
		for (unsigned i = 0; i < 2 && n < GEN_PAGE; i++, r >>= 32) {
			uint64_t w = ((r & 0x3ff) * ((r >> 10) & 0x3ff) * ((r >> 20) & 0x3ff)) >> 20;

			memcpy(room + n, words[w], 16);
			n += lens[w];
		}
		if (!last && n > 2 && n < GEN_PAGE) {
			room[n - 1] = '.';
			room[n++] = '\n';
		}
	}
	memcpy(p, room, GEN_PAGE);
}

/* objects of 32 to 96 bytes; those of one page mostly point near each other */
static inline void gen_heap(uint8_t *p, uint64_t s, uint64_t page)
{
	static const uint8_t sizes[8] = { 32, 32, 48, 48, 64, 64, 80, 96 };
	uint64_t heap = 0x7f3a40000000ull, types = 0x55d0c8a41000ull, near = heap + (page & 0xffff) * GEN_PAGE;
	unsigned n = 0;

	while (n < GEN_PAGE) {
		uint64_t r = gen_next(&s);
		unsigned size = sizes[r & 7], type = (unsigned)((r >> 3) & (r >> 8) & 31);
		uint8_t object[96] = { 0 };

		gen_put64(object, 1 + ((r >> 16) & (r >> 20) & 7));
		gen_put64(object + 8, types + type * 408ull);
		gen_put64(object + 16, (r >> 24) & (r >> 28) & 15);
		if ((r >> 33) & 1)
			gen_put64(object + 24, near + ((r >> 34) & 0xff) * 16);
		for (unsigned i = 32; i + 8 <= size; i += 8) {
			uint64_t q = gen_next(&s);

			if (q & 1)
				gen_put64(object + i,
					  q & 6 ? near + ((q >> 3) & 0xff) * 16 : heap + ((q >> 3) & 0xffffff) * 16);
			else if (q & 2)
				gen_put64(object + i, (q >> 8) & 0xff);
		}
		memcpy(p + n, object, size < GEN_PAGE - n ? size : GEN_PAGE - n);
		n += size;
	}
}

static inline void gen_pointers(uint8_t *p, uint64_t s, uint64_t page)
{
	uint64_t base = 0x7f0000000000ull | (gen_mix(page >> 6) & 0xffff000000ull);

	for (unsigned i = 0; i < GEN_PAGE; i += 8) {
		uint64_t r = gen_next(&s);

		gen_put64(p + i, (r & 7) ? base + ((r >> 8) & 0xfffff) * 8 : 0);
	}
}

static inline void gen_small_numbers(uint8_t *p, uint64_t s)
{
	for (unsigned i = 0; i < GEN_PAGE; i += 8) {
		uint64_t r = gen_next(&s);

		gen_put32(p + i, (uint32_t)(r & (r >> 9) & 0xff));
		gen_put32(p + i + 4, (uint32_t)((r >> 32) & (r >> 41) & 0xfff));
	}
}

/* machine code: a few hundred frequent sequences with differing operands */
static inline void gen_code(uint8_t *p, uint64_t s)
{
	uint8_t room[GEN_PAGE + 16];
	unsigned n = 0;

	while (n < GEN_PAGE) {
		uint64_t r = gen_next(&s), op = gen_mix((r & (r >> 8) & 0xff) + 77);

		gen_put64(room + n, op);
		n += 3 + (unsigned)(op >> 62);
		if (r & 0x30000) {
			gen_put32(room + n, (uint32_t)(r >> 40) & 0xfff);
			n += r & 0x10000 ? 4 : 1;
		}
	}
	memcpy(p, room, GEN_PAGE);
}

/* neighbours are of one kind: memory is not shuffled page by page */
static inline void gen_process(uint8_t *p, uint64_t s, uint64_t page, uint64_t seed)
{
	unsigned pick = (unsigned)(gen_mix((page >> 3) ^ seed * 31) % 100);

	if (pick < 40)
		gen_heap(p, s, page);
	else if (pick < 50)
		gen_pointers(p, s, page);
	else if (pick < 64)
		gen_small_numbers(p, s);
	else if (pick < 82)
		gen_text(p, s);
	else if (pick < 86)
		gen_code(p, s);
	else if (pick < 88)
		gen_floats(p, s);
	else if (pick < 98)
		memset(p, 0, GEN_PAGE);
	else
		gen_random(p, s);
}

/* is the MiB at @off of @size bytes in all zero by pattern? */
static inline int gen_is_zero(const struct gen *g, uint64_t off, uint64_t size)
{
	switch (g->zero) {
	case GEN_ZERO_TAIL:
		return off >= size - size / 4;
	case GEN_ZERO_STRIPES:
		return (off >> 26) & 1;
	case GEN_ZERO_MIB:
		return g->zero_every && (off >> 20) % g->zero_every == g->zero_every - 1;
	default:
		return 0;
	}
}

/* page number @page, without regard to the zero pattern */
static inline void gen_page(const struct gen *g, uint64_t page, uint8_t *p)
{
	uint64_t s;

	if (g->repeat)
		page %= g->repeat / GEN_PAGE ? g->repeat / GEN_PAGE : 1;
	s = gen_mix(page * 0x9e3779b97f4a7c15ull + g->seed);
	switch (g->kind) {
	case GEN_PROCESS:
		gen_process(p, s, page, g->seed);
		break;
	case GEN_HEAP:
		gen_heap(p, s, page);
		break;
	case GEN_FLOATS:
		gen_floats(p, s);
		break;
	case GEN_BF16:
		gen_bf16(p, s);
		break;
	case GEN_DOUBLES:
		gen_doubles(p, s);
		break;
	case GEN_TEXT:
		gen_text(p, s);
		break;
	case GEN_RANDOM:
		gen_random(p, s);
		break;
	case GEN_ZERO:
		memset(p, 0, GEN_PAGE);
		break;
	}
}

#endif
