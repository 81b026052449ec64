/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A recorded working set: which chunks of an image were asked for, in the order of their first use, kept in a file
 * beside the image (WORKSET_SUFFIX after its name) and bound to it by the image id. Advice, not data: whoever cannot
 * use it does without.
 *
 * The file: magic (8 bytes), version (u32), number of chunks (u32), image id (16), the chunk numbers (u32 each, each
 * once), Hash64 of all bytes before it; little-endian.
 */
#ifndef THAW_IMGFMT_WORKSET_H
#define THAW_IMGFMT_WORKSET_H

#include <stdint.h>

#define WORKSET_SUFFIX ".ws"

/*
 * workset_load - read the file of an image
 * @n_chunks:  of the image; numbers beyond it are damage
 * @ret_list:  allocated, the caller frees
 * Return: 0; -ENOENT there is none; -ESTALE it belongs to another image; -EBADMSG; -errno. Nothing is logged
 */
int workset_load(const char *path, const uint8_t id[16], uint64_t n_chunks, uint32_t **ret_list, uint32_t *ret_n);

/* replace the file, with mode 0600: the old one or the new one is there, never half of one. Return: 0, -errno */
int workset_save(const char *path, const uint8_t id[16], const uint32_t *list, uint32_t n);

#endif
