/* SPDX-License-Identifier: Apache-2.0 */
/* Is a buffer all zero? Runs at memory speed and stops soon after the first byte that is not. Pure. */
#ifndef THAW_IMGFMT_ZERO_H
#define THAW_IMGFMT_ZERO_H

#include <stdbool.h>
#include <stddef.h>

bool is_zero(const void *buf, size_t len);

#endif
