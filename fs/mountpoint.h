/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attaching to and detaching from the directory tree: by mount(2) as root, by fusermount3 otherwise. Nothing here
 * touches what is mounted, so nothing here waits for a daemon.
 */
#ifndef THAW_FS_MOUNTPOINT_H
#define THAW_FS_MOUNTPOINT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "fs/config.h"

/* may cfg->mnt be mounted on? Return: 0; -ENOTDIR, -ENOTEMPTY, -errno; logged */
int mountpoint_check(const struct fs_config *cfg);

/* Return: 0 with the open /dev/fuse; -errno, logged */
int mountpoint_mount(const struct fs_config *cfg, int *ret_fd);

/* one line of /proc/self/mountinfo */
struct mountpoint {
	unsigned id, major, minor;
	bool is_thawfs;
	char source[PATH_MAX];
};
/* what is mounted on a path, the topmost. Return: 0, -ENOENT, -errno */
int mountpoint_find(const char *path, struct mountpoint *ret);

/* Return: 0, -EBUSY, -EPERM, -errno; only odd failures are logged */
int mountpoint_unmount(const char *path, bool lazy);

/* set the kernel's read-ahead for the mount. Return: 0 with what it is now, -errno */
int mountpoint_set_readahead(const char *path, uint32_t kb, uint32_t *ret_kb);

/* write who holds a mount, a line each, at most @max. Return: the number of processes found */
unsigned mountpoint_holders(const char *path, unsigned max, FILE *out);

#endif
