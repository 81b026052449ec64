/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An image in words: the texts that the command line prints and the mount shows in .thaw.
 *
 * Any thread may call these. @ret is allocated, the caller frees it; it ends with a newline and, after @ret_len
 * bytes, a NUL. Errors are those of image.h, -ENOMEM, and -EFBIG past DESCRIBE_MAX bytes.
 */
#ifndef THAW_IMGFMT_DESCRIBE_H
#define THAW_IMGFMT_DESCRIBE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "imgfmt/image.h"

#define DESCRIBE_MAX    ((size_t)256 << 20)
#define DESCRIBE_SPACES 10000u /* address spaces listed in the JSON; n_spaces counts all */

/* "dmtcp", "criu", …: a space's kind / a file's format; "unknown" for numbers without meaning */
const char *describe_space_kind(uint32_t kind);
const char *describe_file_format(uint32_t format);

/* what one region of an address space holds */
struct describe_region {
	uint64_t zero_bytes, absent_bytes, data_bytes;
	uint64_t stored_bytes; /* its share of its chunks' stored lengths, in proportion */
};
int describe_region(struct image *img, const struct image_space *space, const struct image_region *region,
		    struct describe_region *ret);

/* the whole image as one JSON object: thawfs info --json, .thaw/info.json */
int describe_info_json(struct image *img, char **ret, size_t *ret_len);

/*
 * The regions of an address space, a line each as in /proc/PID/maps, then a tab and what is stored:
 *   7f12a000-7f12c000 rw-p 00000000 00:00 0                  [heap]<TAB>stored=512 zero=4096 absent=0
 */
int describe_maps_text(struct image *img, uint32_t space, char **ret, size_t *ret_len);

/*
 * A name so that it is one line and can be told from any other: control characters, backslashes and what is not
 * UTF-8 as octal escapes (\012).
 */
void describe_put_name(FILE *f, const char *name, size_t len);

/* "rw-p", as there; returns @ret */
const char *describe_perms(const struct image_region *region, char ret[5]);

/* "start-end" in hexadecimal, as in /proc/PID/maps; an end at 2^64 has 17 digits */
const char *describe_range(const struct image_region *region, char ret[40]);

/* the part of such a line before the tab */
void describe_put_region(FILE *f, const struct image_region *region);

#endif
