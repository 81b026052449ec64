/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The places that unpack writes to: entries below a directory descriptor, made so that nothing that stands
 * there is followed or overwritten unasked, and their metadata. Private to unpack.c.
 */
#ifndef THAW_IMGFMT_UNPACK_OUT_H
#define THAW_IMGFMT_UNPACK_OUT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "imgfmt/image.h"

#define OUT_TEMP_MAX 32

/* what could not be restored and was said once; shared by all threads */
struct out_notes {
	atomic_bool owner, xattr, device, mode;
};

/*
 * out_create - a new regular file, mode 0600, open for writing
 * @ret_temp: "" if it has its name already; else what it is called until out_publish()
 * Return: the descriptor; -EEXIST without @force; -EISDIR a directory is in the way; -errno
 */
int out_create(int dir, const char *name, bool force, char ret_temp[OUT_TEMP_MAX]);
int out_publish(int dir, const char *temp, const char *name);

/* make a symlink, fifo, socket or device (with its metadata) or a hard link to @from in @from_dir; as above */
int out_special(struct image *img, const struct image_inode *inode, int dir, const char *name, bool force,
		const char *path, struct out_notes *notes);
int out_link(int from_dir, const char *from, int dir, const char *name, bool force);

/*
 * out_enter - make directory @name in @dir if it is not there, and open it
 * Return: the descriptor; -EEXIST something else is there and not @force; -errno
 */
int out_enter(int dir, const char *name, bool force);

/* owner, xattrs, mode, time of an open file or directory, in the order in which none undoes another */
int out_metadata(struct image *img, const struct image_inode *inode, int fd, const char *path, struct out_notes *notes);

/* may this be one part of a path? */
bool out_name_good(const char *name, size_t len);

#endif
