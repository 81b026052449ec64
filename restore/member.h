/* SPDX-License-Identifier: Apache-2.0 */
/* Members of images as memory files, for programs that need a descriptor and where no mount is to be had. */
#ifndef THAW_RESTORE_MEMBER_H
#define THAW_RESTORE_MEMBER_H

#include <stdint.h>

#include "imgfmt/image.h"

/*
 * member_to_memory - decode and check all of a file of @img into a memfd, whose holes are the file's
 * @threads:  0: as many as processors
 * @ret_fd:   the caller closes it; close-on-exec
 * Damage is logged with its offset. Return: 0, -EBADMSG, -EISDIR/-EINVAL (not a file), -errno
 */
int member_to_memory(struct image *img, uint32_t ino, unsigned threads, int *ret_fd);

#endif
