/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a mount was asked to do: filled by the command line, handed as bytes from the supervisor to its workers
 * (which are the same program).
 */
#ifndef THAW_FS_CONFIG_H
#define THAW_FS_CONFIG_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#define FS_CONFIG_VERSION 1u

enum fs_prefetch { FS_PREFETCH_OFF, FS_PREFETCH_WS, FS_PREFETCH_ALL };

struct fs_config {
	uint32_t version, size; /* FS_CONFIG_VERSION and sizeof(struct fs_config) */
	bool store;             /* src is a directory of images, not one image */
	bool foreground;
	bool syslog; /* workers: log there instead of standard error */
	bool allow_other;
	bool nonempty;
	bool record;
	bool io_uring;
	bool has_uid, has_gid, has_prefetch;
	enum fs_prefetch prefetch;
	uint32_t uid, gid;
	uint32_t threads;           /* that serve requests */
	uint32_t timeout_s;         /* the kernel may keep names and attributes of an image for so long */
	uint32_t readahead_kb;      /* the kernel's read-ahead, where it may be set */
	int32_t notify_fd;          /* written to when the mount answers; -1: none */
	uint64_t cache_bytes;       /* bound of decoded chunks */
	uint64_t prefetch_rate;     /* bytes a second; 0: no bound */
	uint64_t hydrate_bytes;     /* bound of hydrate_dir */
	char hydrate_dir[PATH_MAX]; /* absolute; "" for none */
	char src[PATH_MAX];         /* absolute */
	char mnt[PATH_MAX];         /* absolute */
};

#endif
