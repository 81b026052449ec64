/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The byte-shuffle filter of FORMAT.md section 4: bytes of equal significance of 2-, 4- or 8-byte numbers are brought
 * together, which lets a codec see them. Pure; the buffers must not overlap.
 */
#ifndef THAW_IMGFMT_SHUFFLE_H
#define THAW_IMGFMT_SHUFFLE_H

#include <stddef.h>
#include <stdint.h>

/* @width: 2, 4 or 8 */
void shuffle_bytes(uint8_t *restrict out, const uint8_t *restrict in, size_t n, unsigned width);
void unshuffle_bytes(uint8_t *restrict out, const uint8_t *restrict in, size_t n, unsigned width);

#endif
