/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the mount shows of an image besides its members: the tree of its memory views (.thaw/mem) with the maps
 * texts beside it (.thaw/maps, the same tree), and info.json.
 *
 * The views are numbered by walking the address spaces in the image's order, so the numbers depend on nothing but the
 * image. Sizes, block counts and texts are made when first asked for. Any thread may call anything; nothing
 * changes once made.
 */
#ifndef THAW_FS_VIEW_H
#define THAW_FS_VIEW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "imgfmt/image.h"

struct views;

#define VIEW_ROOT 0u /* number of the directory itself */

/* an image with too many spaces or too deep names gets no views (logged). Return: 0, -EBADMSG, -ENOMEM */
int views_new(struct image *img, struct views **ret);
void views_free(struct views *views);

struct view_node {
	const char *name; /* of this entry, not terminated; borrowed */
	uint32_t name_len;
	uint32_t parent;
	bool is_dir;
	uint32_t space; /* not is_dir */
};
/* Return: 0, -ESTALE if there is no such number */
int views_node(const struct views *views, uint32_t number, struct view_node *ret);
/* Return: 0, -ENOENT */
int views_lookup(const struct views *views, uint32_t dir, const char *name, size_t len, uint32_t *ret_number);
/* the @index-th entry of a directory. Return: 0, -ENOENT past the end */
int views_child(const struct views *views, uint32_t dir, uint64_t index, uint32_t *ret_number);

struct view_size {
	uint64_t size;       /* of the memory view as a file */
	uint64_t data_bytes; /* what of it is not a hole */
};
int views_size(struct views *views, uint32_t number, struct view_size *ret);

/* a text that several readers share; released with text_put() */
struct text {
	_Atomic unsigned refs;
	size_t len;
	char *data;
};
void text_put(struct text *text);

/* maps text of a view / info.json of the image. Return: 0, -EFBIG (logged), -EBADMSG, -ENOMEM */
int views_maps(struct views *views, uint32_t number, struct text **ret);
int views_info(struct views *views, struct text **ret);

#endif
