/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Little-endian fields, checked arithmetic and alignment. Everything here is inline and pure.
 *
 * The le16/le32/le64 types hold a value in file byte order; they are structs so that using one as a
 * number by mistake does not compile.
 */
#ifndef THAW_COMMON_BYTES_H
#define THAW_COMMON_BYTES_H

#include <endian.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct {
	uint16_t raw;
} le16;
typedef struct {
	uint32_t raw;
} le32;
typedef struct {
	uint64_t raw;
} le64;

static inline uint16_t le16_get(le16 v)
{
	return le16toh(v.raw);
}
static inline uint32_t le32_get(le32 v)
{
	return le32toh(v.raw);
}
static inline uint64_t le64_get(le64 v)
{
	return le64toh(v.raw);
}
static inline le16 le16_make(uint16_t v)
{
	return (le16){ htole16(v) };
}
static inline le32 le32_make(uint32_t v)
{
	return (le32){ htole32(v) };
}
static inline le64 le64_make(uint64_t v)
{
	return (le64){ htole64(v) };
}

/* the same from bytes at any alignment */
static inline uint32_t load_le32(const void *p)
{
	uint32_t v;

	memcpy(&v, p, sizeof(v));
	return le32toh(v);
}
static inline uint64_t load_le64(const void *p)
{
	uint64_t v;

	memcpy(&v, p, sizeof(v));
	return le64toh(v);
}

/* true if a + b or a * b does not fit; *ret is written only on success */
static inline bool add_overflows(uint64_t a, uint64_t b, uint64_t *ret)
{
	uint64_t sum;

	if (__builtin_add_overflow(a, b, &sum))
		return true;
	*ret = sum;
	return false;
}
static inline bool mul_overflows(uint64_t a, uint64_t b, uint64_t *ret)
{
	uint64_t product;

	if (__builtin_mul_overflow(a, b, &product))
		return true;
	*ret = product;
	return false;
}

/* [off, off + len) lies inside [0, size), without overflow */
static inline bool range_inside(uint64_t off, uint64_t len, uint64_t size)
{
	return off <= size && len <= size - off;
}

/* n is a power of two; align_up wraps near 2^64, callers bound v first */
static inline uint64_t align_down(uint64_t v, uint64_t n)
{
	return v & ~(n - 1);
}
static inline uint64_t align_up(uint64_t v, uint64_t n)
{
	return align_down(v + n - 1, n);
}

static inline uint64_t min_u64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}
static inline uint64_t max_u64(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

#endif
