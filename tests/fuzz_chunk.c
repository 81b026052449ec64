/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz the decoding of one chunk, against a second decoder that is as plain as can be. Input: codec, shuffle width,
 * logical length (3 bytes, little-endian), then the stored bytes. If the second decoder gets something from them, that
 * is what the chunk's hash is made of: then the reader must give the same, and with another hash nothing.
 */
#include "imgfmt/chunk.h"
#include "tests/forge.h"

#include <errno.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Does @stored decode to exactly @len bytes, by any frame, window or dictionary? */
static bool decode_plainly(uint8_t codec, const uint8_t *stored, size_t stored_len, uint8_t *out, size_t len)
{
	if (codec == THAW_RAW) {
		if (stored_len != len)
			return false;
		memcpy(out, stored, len);
		return true;
	}
	if (codec == THAW_ZSTD)
		return ZSTD_decompress(out, len, stored, stored_len) == len;
	return codec == THAW_LZ4 &&
	       LZ4_decompress_safe((const char *)stored, (char *)out, (int)stored_len, (int)len) == (int)len;
}

static void unshuffle_plainly(const uint8_t *from, uint8_t *to, size_t len, uint8_t width)
{
	size_t m = width ? len / width : 0;

	memcpy(to, from, len);
	for (size_t k = 0; k < m; k++)
		for (size_t l = 0; l < width; l++)
			to[k * width + l] = from[l * m + k];
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct image_chunk c = { .stored_off = THAW_PAGE };
	struct chunk_ctx *ctx;
	uint8_t *lanes, *want, *got, *stored;
	bool plain;
	int r;

	if (size < 6)
		return 0;
	c.codec = data[0];
	c.shuffle = data[1];
	c.logical_len = data[2] | (uint32_t)data[3] << 8 | (uint32_t)data[4] << 16;
	c.stored_len = (uint32_t)(size - 5);
	if (chunk_entry_error(&c, FORGE_CHUNK, THAW_PAGE + (size - 5)))
		return 0;
	CHECK(c.logical_len > 0 && c.logical_len <= FORGE_CHUNK && c.stored_len <= 2 * FORGE_CHUNK);
	ctx = chunk_ctx_new();
	lanes = calloc(1, c.logical_len);
	want = calloc(1, c.logical_len);
	/* of exactly the lengths, so that a sanitizer sees a byte too far */
	got = malloc(c.logical_len);
	stored = malloc(c.stored_len);
	CHECK(ctx && lanes && want && got && stored);
	memcpy(stored, data + 5, c.stored_len);
	plain = decode_plainly(c.codec, stored, c.stored_len, lanes, c.logical_len);
	unshuffle_plainly(lanes, want, c.logical_len, c.shuffle);
	c.hash = XXH3_64bits(want, c.logical_len);
	r = chunk_decode(ctx, &c, FORGE_CHUNK, stored, got);
	CHECK(r == 0 || r == -EBADMSG);
	/* the reader may refuse what decodes, such as two frames or a large window, but not the other way round */
	CHECK(r || (plain && !memcmp(got, want, c.logical_len)));
	CHECK(r == 0 || !plain || c.codec == THAW_ZSTD);
	c.hash ^= 1;
	CHECK_EQ(chunk_decode(ctx, &c, FORGE_CHUNK, stored, got), -EBADMSG);
	free(stored);
	free(got);
	free(want);
	free(lanes);
	chunk_ctx_free(ctx);
	return 0;
}
