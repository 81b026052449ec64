/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The next image of a series (series.h): packs a state directory under the series' lock, with the newest image as base
 * where that pays, and leads the links to it. Synchronous; threads are inside pack().
 */
#ifndef THAW_IMGFMT_SNAP_H
#define THAW_IMGFMT_SNAP_H

#include <stdint.h>

#include "imgfmt/pack.h"

struct snap_opts {
	const char *src;       /* a directory that nothing writes to meanwhile */
	const char *store;     /* a directory, not inside @src */
	const char *name;      /* of the series; NULL: what @src is called */
	const char *base;      /* an image; "none"; NULL or "auto": the newest one if it pays */
	unsigned keep;         /* prune to so many complete images afterwards; 0: leave them all */
	struct pack_opts pack; /* how to pack; src, out, bases are set here */
};

struct snap_result {
	struct pack_result pack;
	uint64_t sequence;
	char *path; /* of the image; the caller frees both */
	char *base; /* of its base, NULL if it has none */
	unsigned n_pruned;
	bool prune_failed; /* the image is there, but older ones could not be removed; logged */
};

/*
 * snap - see above. The series is locked from choosing the number until the links lead to the image.
 * Return: 0; what pack() returns; -EBUSY another snap, prune or clean of the series is running; -EINVAL. Logged.
 */
int snap(const struct snap_opts *opts, struct snap_result *ret);

/* what a series of @src is called if nothing else is said: the last part of its real path; the caller frees */
int snap_default_name(const char *src, char **ret);

#endif
