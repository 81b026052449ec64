/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store directory as the worker that serves sees it: reads it through once, then follows it by inotify, and
 * tells the supervisor which images it found and which names vanished. The supervisor answers with slots. A worker that
 * takes over reads through again and reports only what differs from the slots it was given.
 *
 * Images are the regular files NAME.thaw that do not begin with a dot; the mount shows them as NAME. One thread;
 * reading the directory and the images' footers may wait for storage, and nothing else waits for it.
 */
#ifndef THAW_FS_STORE_H
#define THAW_FS_STORE_H

#include "fs/fs.h"

struct store;

/* @control: socket to the supervisor, borrowed */
int store_new(struct fs *fs, int control, struct store **ret);
/* start the thread; it sends CONTROL_SCANNED after the first time through */
int store_watch(struct store *store);
/* NULL is fine; joins the thread */
void store_free(struct store *store);

/*
 * store_identify - open an image file and fill in what CONTROL_FOUND says of it (not the names)
 * Return: 0 with an open descriptor; -EBADMSG and others as image_open(), logged
 */
int store_identify(const char *path, const struct image_opts *opts, struct control_msg *ret, int *ret_fd);

#endif
