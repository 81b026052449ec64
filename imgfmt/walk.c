/* SPDX-License-Identifier: Apache-2.0 */
#include "imgfmt/walk.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/log.h"
#include "imgfmt/image_private.h"

/* a bitmap's bit was clear, and is now set */
static bool first_time(uint8_t *bits, uint32_t ino)
{
	bool first = !(bits[ino / 8] & (1u << (ino % 8)));

	bits[ino / 8] |= (uint8_t)(1u << (ino % 8));
	return first;
}

int walk_start(struct walk *w, struct image *img, uint32_t ino, const char *path)
{
	int err;

	memset(w, 0, sizeof(*w));
	w->img = img;
	err = image_inode(img, ino, &w->inode);
	if (err)
		return err;
	w->path_len = strlen(path);
	w->path_cap = w->path_len + 256;
	w->path = malloc(w->path_cap);
	w->met = calloc(1, walk_seen_bytes(img));
	if (!w->path || !w->met) {
		walk_release(w);
		return -ENOMEM;
	}
	memcpy(w->path, path, w->path_len + 1);
	w->partial = ino != IMAGE_ROOT;
	w->n_inodes = first_time(w->met, ino);
	return 0;
}

void walk_release(struct walk *w)
{
	free(w->path);
	free(w->levels);
	free(w->met);
	memset(w, 0, sizeof(*w));
}

static int enter(struct walk *w)
{
	if (w->n_levels == w->levels_cap) {
		size_t cap = w->levels_cap ? w->levels_cap * 2 : 16;
		struct walk_level *p = reallocarray(w->levels, cap, sizeof(*p));

		if (!p)
			return -ENOMEM;
		w->levels = p;
		w->levels_cap = cap;
	}
	w->levels[w->n_levels++] = (struct walk_level){ .dir = w->inode.ino, .path_len = w->path_len };
	return 0;
}

static int set_path(struct walk *w, size_t dir_len, const struct image_dirent *de)
{
	size_t need = dir_len + 1 + de->len + 1, slash = dir_len && w->path[dir_len - 1] != '/';

	if (need > w->path_cap) {
		char *p = realloc(w->path, need * 2);

		if (!p)
			return -ENOMEM;
		w->path = p;
		w->path_cap = need * 2;
	}
	if (slash)
		w->path[dir_len] = '/';
	w->name_off = dir_len + slash;
	memcpy(w->path + w->name_off, de->name, de->len);
	w->path_len = w->name_off + de->len;
	w->path[w->path_len] = '\0';
	return 0;
}

/* what ends every walk, whatever the image says: a directory is met once, and below its parent */
static int check_entry(struct walk *w, uint32_t parent)
{
	bool first = first_time(w->met, w->inode.ino);

	w->n_names++;
	w->n_inodes += first;
	if (!S_ISDIR(w->inode.mode) || (first && w->inode.ino > parent && w->inode.parent == parent))
		return 0;
	log_error("cannot read '%s': directory inode %u is named twice or above itself", image_path(w->img),
		  w->inode.ino);
	return -EBADMSG;
}

/* the next name of the directories on the stack. Return: 1, 0 past the last, -errno */
static int next_name(struct walk *w, struct image_dirent *ret)
{
	while (w->n_levels) {
		struct walk_level *level = &w->levels[w->n_levels - 1];
		int err = image_readdir(w->img, level->dir, level->next, ret);

		if (!err) {
			level->next++;
			return 1;
		}
		if (err != -ENOENT)
			return err;
		w->n_levels--;
	}
	return 0;
}

/* what no directory leads to is hidden, which is not the same as not there */
static int check_all_met(const struct walk *w)
{
	const struct image_info *info = image_info(w->img);
	uint32_t ino = 0;

	if (w->partial || (w->n_names == info->n_names && w->n_inodes == info->n_inodes))
		return 0;
	while (ino < info->n_inodes && w->met[ino / 8] & (1u << (ino % 8)))
		ino++;
	if (ino < info->n_inodes)
		log_error("cannot read all of '%s': no name leads to inode %u", image_path(w->img), ino);
	else
		log_error("cannot read all of '%s': names at offset %llu: %llu of %llu belong to no directory",
			  image_path(w->img), (unsigned long long)w->img->index.sections[THAW_NAMES].offset,
			  (unsigned long long)(info->n_names - w->n_names), (unsigned long long)info->n_names);
	return -EBADMSG;
}

int walk_next(struct walk *w)
{
	struct image_dirent de;
	uint32_t parent;
	int err;

	if (!w->started) {
		w->started = true;
		return 1;
	}
	if (S_ISDIR(w->inode.mode) && !w->skip) {
		err = enter(w);
		if (err)
			return err;
	}
	w->skip = true; /* so that another call after the end ends too */
	err = next_name(w, &de);
	if (err != 1)
		return err ? err : check_all_met(w);
	w->skip = false;
	w->depth = w->n_levels;
	parent = w->levels[w->n_levels - 1].dir;
	err = set_path(w, w->levels[w->n_levels - 1].path_len, &de);
	if (!err)
		err = image_inode(w->img, de.ino, &w->inode);
	if (!err)
		err = check_entry(w, parent);
	if (err)
		return err == -ENOENT ? -EBADMSG : err;
	return 1;
}

void walk_skip(struct walk *w)
{
	w->skip = true;
	w->partial |= S_ISDIR(w->inode.mode);
}

size_t walk_seen_bytes(const struct image *img)
{
	return (size_t)(image_info(img)->n_inodes / 8 + 1);
}

bool walk_first_name(const struct walk *w, uint8_t *seen)
{
	uint32_t ino = w->inode.ino;

	if (w->inode.nlink <= 1)
		return true;
	return first_time(seen, ino);
}
