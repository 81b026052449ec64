/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compressing one chunk: codec, byte shuffle or neither. The choice depends on the chunk's bytes and the options
 * alone, so an image does not depend on the number of threads. An encoder serves one thread.
 */
#ifndef THAW_IMGFMT_ENCODE_H
#define THAW_IMGFMT_ENCODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct encoder;

struct encoder_opts {
	uint8_t codec; /* enum thaw_codec; THAW_RAW: never compress */
	int level;     /* zstd; LZ4: above 1 its slow, smaller kind */
	bool filter;   /* may shuffle */
	uint32_t chunk_size;
};

/* NULL: out of memory, or a level that zstd does not know */
struct encoder *encoder_new(const struct encoder_opts *opts);
void encoder_free(struct encoder *enc);

/* room that an output buffer needs */
size_t encoder_bound(uint32_t chunk_size);

struct encoded {
	const uint8_t *data; /* in @out, or the input itself when stored raw */
	uint32_t len;
	uint8_t codec, shuffle;
};

/* Return: 0, or -EIO if the codec failed (which it does not) */
int encode(struct encoder *enc, const uint8_t *in, uint32_t len, uint8_t *out, struct encoded *ret);

#endif
