/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A CRIU images directory as it is, not packed: the address spaces of its processes, read from its files. It has no
 * checksums, so nothing here knows whether a byte is right; a read that fails is an error.
 *
 * Opened by one thread; then threads may share it, and processes that share its descriptors.
 */
#ifndef THAW_RESTORE_PLAIN_H
#define THAW_RESTORE_PLAIN_H

#include "imgfmt/image.h"
#include "restore/pageserver.h"

struct plain;

/* what is not understood is said, and left out. Return: 0, -EINVAL (not CRIU's), -errno; logged */
int plain_open(const char *path, struct plain **ret);
/* NULL is fine */
void plain_close(struct plain *plain);

const char *plain_path(const struct plain *plain);

/* the space of process @name. Return: 0, -ENOENT */
int plain_find(const struct plain *plain, const char *name, uint32_t *ret_space);
/* as pageserver_ranges(). @ret: the caller frees */
int plain_ranges(const struct plain *plain, uint32_t space, struct pageserver_range **ret, size_t *ret_n);

struct plain_run {
	uint64_t len; /* at least a page; what no file has is RUN_HOLE */
	enum run_kind kind;
	uint32_t file;
	uint64_t off;
};
/* the run at @addr. Whole pages are in one run */
void plain_map(const struct plain *plain, uint32_t space, uint64_t addr, struct plain_run *ret);
/* the first @len bytes of a run with RUN_DATA. Return: 0, -errno */
int plain_read(const struct plain *plain, const struct plain_run *run, void *buf, size_t len);

#endif
