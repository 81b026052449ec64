/* SPDX-License-Identifier: Apache-2.0 */
/* Members of images as memory files, for programs that need a descriptor and where no mount is to be had. */
#ifndef THAW_RESTORE_MEMBER_H
#define THAW_RESTORE_MEMBER_H

#include <stddef.h>
#include <stdint.h>

#include "imgfmt/image.h"

/* bytes [off, off + len) of a file */
struct member_range {
	uint64_t off, len;
};

/*
 * member_to_memory - decode and check all of a file of @img into a memfd, whose holes are the file's
 * @threads:  0: as many as processors
 * @leave:    these are left out, as if they were holes; ascending, apart. NULL: nothing is
 * @ret_fd:   the caller closes it; close-on-exec
 * Damage is logged with its offset. Return: 0, -EBADMSG, -EISDIR/-EINVAL (not a file), -errno
 */
int member_to_memory(struct image *img, uint32_t ino, unsigned threads, const struct member_range *leave,
		     size_t n_leave, int *ret_fd);

#endif
