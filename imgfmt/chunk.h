/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decoding one chunk from its stored form, with every check of FORMAT.md section 4. The context (struct chunk_ctx,
 * image.h) belongs to one thread.
 */
#ifndef THAW_IMGFMT_CHUNK_H
#define THAW_IMGFMT_CHUNK_H

#include <stddef.h>
#include <stdint.h>

#include "imgfmt/image.h"

/* the context's buffer for stored bytes, at least @len large; NULL: out of memory */
void *chunk_ctx_room(struct chunk_ctx *ctx, size_t len);

/* describe an error in the context; returns @r */
int chunk_ctx_fail(struct chunk_ctx *ctx, int r, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* is an entry of a chunk stored in this image within the limits of the format? NULL, or what is wrong */
const char *chunk_entry_error(const struct image_chunk *c, uint32_t chunk_size, uint64_t data_end);

/*
 * chunk_decode - @c->stored_len bytes at @stored become @c->logical_len bytes in @buf, checked against the hash
 * @c was found good by chunk_entry_error(). Return: 0, -EBADMSG, -ENOMEM
 */
int chunk_decode(struct chunk_ctx *ctx, const struct image_chunk *c, uint32_t chunk_size, const void *stored,
		 void *buf);

#endif
