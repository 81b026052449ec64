/* SPDX-License-Identifier: Apache-2.0 */
#include "imgfmt/zero.h"

#include <stdint.h>
#include <string.h>

/* A block this large is OR-ed together without a branch, which compilers turn into vector code. */
#define BLOCK 256

static inline uint64_t load(const uint8_t *p)
{
	uint64_t v;

	memcpy(&v, p, sizeof(v));
	return v;
}

static inline uint64_t or_block(const uint8_t *p)
{
	uint64_t acc[4] = { 0 };

	for (size_t i = 0; i < BLOCK; i += 32) {
		acc[0] |= load(p + i);
		acc[1] |= load(p + i + 8);
		acc[2] |= load(p + i + 16);
		acc[3] |= load(p + i + 24);
	}
	return (acc[0] | acc[1]) | (acc[2] | acc[3]);
}

bool is_zero(const void *buf, size_t len)
{
	const uint8_t *p = buf;

	/* ordinary data ends here */
	if (len >= 8 && load(p))
		return false;
	for (; len >= BLOCK; p += BLOCK, len -= BLOCK)
		if (or_block(p))
			return false;
	for (; len >= 8; p += 8, len -= 8)
		if (load(p))
			return false;
	for (; len; p++, len--)
		if (*p)
			return false;
	return true;
}
