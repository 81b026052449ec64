/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The next image of a series (series.h): packs a state directory under the series' lock, with the newest image as base
 * where that pays, and leads the links to it. Synchronous; threads are inside pack().
 */
#ifndef THAW_IMGFMT_SNAP_H
#define THAW_IMGFMT_SNAP_H

#include <stdint.h>

#include "imgfmt/job.h"
#include "imgfmt/pack.h"

struct snap_opts {
	const char *src;   /* a directory that nothing writes to meanwhile */
	const char *store; /* a directory, not inside @src */
	const char *name;  /* of the series; NULL: what @src is called */
	const char *base;  /* an image; "none"; NULL or "auto": the newest one if it pays */
	unsigned keep;     /* prune to so many complete images afterwards; 0: leave them all */
	/* with an id: the image is that of a rank of a job (job.h), of the series that the rank has; @name is not used
	 */
	struct job_opts job;
	struct pack_opts pack; /* how to pack; src, out, bases, resume, retries are set here */
};

struct snap_result {
	struct pack_result pack;
	uint64_t sequence;
	uint64_t job_sequence; /* of the manifest that names the image; 0: none (yet) */
	char *path;            /* of the image; the caller frees both */
	char *base;            /* of its base, NULL if it has none */
	unsigned n_pruned;
	bool prune_failed; /* the image is there, but older ones could not be removed; logged */
};

/*
 * snap - see above. The series is locked from choosing the number until the links lead to the image.
 * What was stored of an image that was not finished is used again (pack_opts.resume).
 * Return: 0; what pack() returns; what job_join() and job_commit() return: then the image is there, but the job's
 * checkpoint is not; -EBUSY another snap, prune or clean of the series is running; -EINVAL. Logged.
 */
int snap(const struct snap_opts *opts, struct snap_result *ret);

/* what a series of @src is called if nothing else is said: the last part of its real path; the caller frees */
int snap_default_name(const char *src, char **ret);

#endif
