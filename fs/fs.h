/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of a worker share: made by worker.c before any thread runs, unchanged from then on.
 */
#ifndef THAW_FS_FS_H
#define THAW_FS_FS_H

#include <stdint.h>

#include "fs/cache.h"
#include "fs/config.h"
#include "fs/slots.h"
#include "fs/stats.h"

struct fuse_session;
struct recorder;
struct hydrator;
struct prefetcher;

struct fs {
	struct fs_config cfg;
	struct stats *stats;
	struct slots *slots;
	struct cache *cache;
	struct recorder *recorder;     /* NULL without -o record */
	struct hydrator *hydrator;     /* NULL where nothing is hydrated */
	struct prefetcher *prefetcher; /* NULL with -o prefetch=off */
	struct fuse_session *se;
};

#endif
