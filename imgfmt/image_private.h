/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the reader (image*.c, verify.c) share. Nobody else includes this. */
#ifndef THAW_IMGFMT_IMAGE_PRIVATE_H
#define THAW_IMGFMT_IMAGE_PRIVATE_H

#include <pthread.h>

#include "imgfmt/footer.h"
#include "imgfmt/image.h"
#include "imgfmt/index.h"

struct image {
	struct source *src;
	char *path;
	bool quiet;
	bool from_file; /* opened by path: bases are looked for beside it */
	char **base_path;
	struct footer_info footer;
	struct index index;
	struct image_info info;
	pthread_mutex_t bases_lock; /* guards bases, base_missing and base_tried */
	struct image *bases[THAW_MAX_BASES];
	bool base_missing[THAW_MAX_BASES];  /* said so already */
	int64_t base_tried[THAW_MAX_BASES]; /* when it was looked for last, in seconds */
};

/*
 * A string of the image; @off and @len are from an entry, checked here. Return: 0; -EBADMSG: a bad entry or damage;
 * else that it could not be read, which is not to be taken for damage
 */
int image_string(struct image *img, uint64_t off, uint64_t len, const char **ret);

#endif
