/* SPDX-License-Identifier: Apache-2.0 */
/* Writing an image must not cost another one that it needs. One thread. */
#ifndef THAW_IMGFMT_OUTPUT_SPARE_H
#define THAW_IMGFMT_OUTPUT_SPARE_H

#include <stdbool.h>

#include "imgfmt/image.h"
#include "imgfmt/output.h"

/*
 * output_spare - refuse an output, before anything is written, that would take the place of an image or of one of its
 * bases, and theirs
 * @but_itself:  @img itself may be replaced (not written over)
 * Opens the bases that are there; one that is missing is no error. Return: 0; -EINVAL refused, logged; -EBADMSG
 */
int output_spare(struct output *out, struct image *img, bool but_itself);

#endif
