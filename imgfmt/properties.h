/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of the PROPERTIES section (FORMAT.md, section 9). What is in it is read with cJSON, by whoever needs it. */
#ifndef THAW_IMGFMT_PROPERTIES_H
#define THAW_IMGFMT_PROPERTIES_H

#include <stddef.h>

/*
 * properties_check - is this JSON by RFC 8259, an object, and are the members that the format names of their types?
 * @ret_off:  where in @text it stopped to be so
 * Takes no memory, and time in proportion to @len. Return: NULL, or what is wrong in words that need not be freed
 */
const char *properties_check(const char *text, size_t len, size_t *ret_off);

#endif
