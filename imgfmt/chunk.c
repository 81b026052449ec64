/* SPDX-License-Identifier: Apache-2.0 */
#include "imgfmt/chunk.h"

#include <errno.h>
#include <lz4.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
/* ZSTD_getFrameHeader, to see a frame's window before decoding it */
#define ZSTD_STATIC_LINKING_ONLY
#include <zstd.h>

#include "imgfmt/shuffle.h"

struct chunk_ctx {
	ZSTD_DCtx *zstd;
	uint8_t *stored, *shuffled;
	size_t stored_room, shuffled_room;
	char error[200];
};

struct chunk_ctx *chunk_ctx_new(void)
{
	struct chunk_ctx *ctx = calloc(1, sizeof(*ctx));

	if (!ctx)
		return NULL;
	ctx->zstd = ZSTD_createDCtx();
	if (!ctx->zstd) {
		free(ctx);
		return NULL;
	}
	return ctx;
}

void chunk_ctx_free(struct chunk_ctx *ctx)
{
	if (!ctx)
		return;
	ZSTD_freeDCtx(ctx->zstd);
	free(ctx->stored);
	free(ctx->shuffled);
	free(ctx);
}

const char *chunk_ctx_error(const struct chunk_ctx *ctx)
{
	return ctx->error;
}

int chunk_ctx_fail(struct chunk_ctx *ctx, int r, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(ctx->error, sizeof(ctx->error), fmt, ap);
	va_end(ap);
	return r;
}

/* grow a buffer whose old contents do not matter */
static uint8_t *room(uint8_t **buf, size_t *have, size_t len)
{
	if (len > *have) {
		free(*buf);
		*buf = malloc(len);
		*have = *buf ? len : 0;
	}
	return *buf;
}

void *chunk_ctx_room(struct chunk_ctx *ctx, size_t len)
{
	return room(&ctx->stored, &ctx->stored_room, len);
}

const char *chunk_entry_error(const struct image_chunk *c, uint32_t chunk_size, uint64_t data_end)
{
	if (c->logical_len == 0 || c->logical_len > chunk_size)
		return "bad logical length";
	if (c->base)
		return c->stored_len || c->codec || c->shuffle ? "bad reference to a base" : NULL;
	if (c->stored_len == 0 || c->stored_len > 2 * chunk_size)
		return "bad stored length";
	if (c->stored_off < THAW_PAGE || !range_inside(c->stored_off, c->stored_len, data_end))
		return "outside the chunk data";
	if (c->codec > THAW_LZ4)
		return "unknown codec";
	if (c->shuffle && c->shuffle != 2 && c->shuffle != 4 && c->shuffle != 8)
		return "bad shuffle width";
	if (c->codec == THAW_RAW && (c->shuffle || c->stored_len != c->logical_len || c->stored_off % THAW_PAGE))
		return "bad raw chunk";
	return NULL;
}

static const char *decode_zstd(struct chunk_ctx *ctx, const struct image_chunk *c, uint32_t chunk_size,
			       const void *stored, void *buf)
{
	ZSTD_frameHeader h;

	if (ZSTD_getFrameHeader(&h, stored, c->stored_len) != 0 || h.frameType != ZSTD_frame)
		return "not a zstd frame";
	if (h.frameContentSize != c->logical_len)
		return "the zstd frame has another length";
	if (h.windowSize > (chunk_size > 1024 ? chunk_size : 1024) || h.dictID)
		return "the zstd frame's window is too large or it wants a dictionary";
	if (ZSTD_findFrameCompressedSize(stored, c->stored_len) != c->stored_len)
		return "not exactly one zstd frame";
	if (ZSTD_decompressDCtx(ctx->zstd, buf, c->logical_len, stored, c->stored_len) != c->logical_len)
		return "zstd data is damaged";
	return NULL;
}

int chunk_decode(struct chunk_ctx *ctx, const struct image_chunk *c, uint32_t chunk_size, const void *stored, void *buf)
{
	void *to = c->shuffle ? room(&ctx->shuffled, &ctx->shuffled_room, chunk_size) : buf;
	const char *what = NULL;

	if (!to)
		return chunk_ctx_fail(ctx, -ENOMEM, "out of memory");
	if (c->codec == THAW_RAW) {
		if (stored != to)
			memcpy(to, stored, c->logical_len);
	} else if (c->codec == THAW_ZSTD) {
		what = decode_zstd(ctx, c, chunk_size, stored, to);
	} else if (LZ4_decompress_safe(stored, to, (int)c->stored_len, (int)c->logical_len) != (int)c->logical_len) {
		what = "LZ4 data is damaged";
	}
	if (!what && c->shuffle)
		unshuffle_bytes(buf, to, c->logical_len, c->shuffle);
	if (!what && XXH3_64bits(buf, c->logical_len) != c->hash)
		what = "checksum mismatch";
	if (what)
		return chunk_ctx_fail(ctx, -EBADMSG, "at offset %llu: %s", (unsigned long long)c->stored_off, what);
	return 0;
}
