/* SPDX-License-Identifier: Apache-2.0 */
/* Reading an image back while it still has its temporary name, so that only what can be read is published. */
#ifndef THAW_IMGFMT_VERIFY_OUTPUT_H
#define THAW_IMGFMT_VERIFY_OUTPUT_H

#include "imgfmt/output.h"

/*
 * verify_output - check every byte of a complete image that was not published yet
 * @base_path:  directories of its bases, NULL-terminated; or NULL
 * Return: 0; -EIO something is damaged, all of it logged; -errno
 */
int verify_output(const struct output *out, const char *const *base_path, unsigned threads);

#endif
