/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The checkpoint of a job: one image of each of its N ranks, complete together or not at all. Each rank makes an image
 * of a series of its own, ID.r<rank>. What makes N of them a checkpoint is a manifest, ID-<sequence>.job, a JSON file
 * that appears at once, under a lock, when all N are there; ID-latest.job leads to the newest. An image that no
 * manifest names is nobody's checkpoint.
 *
 * Images must not be mixed that were made at different times. So either all N processes are alive when the manifest is
 * made: each waits, holding a lock on its .ID.job.r<rank>, until that is so or its time is up. Or the caller says with
 * a label which images belong together; then nobody waits, and the last one that comes makes the manifest.
 */
#ifndef THAW_IMGFMT_JOB_H
#define THAW_IMGFMT_JOB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define JOB_RANKS_MAX 65536u

struct job_opts {
	const char *id;       /* as a series is called */
	unsigned rank, ranks; /* rank < ranks ≤ JOB_RANKS_MAX */
	const char *step;     /* the label; NULL: wait for the others instead */
	unsigned wait_s;      /* how long; 0: five minutes */
};

/* the series of this rank; the caller frees; NULL: no memory */
char *job_series_name(const struct job_opts *opts);

struct job;

/*
 * job_join - be this rank of the job, until job_leave()
 * Return: 0; -EBUSY another process is; -errno. Logged.
 */
int job_join(const char *store, const struct job_opts *opts, const volatile int *stop, struct job **ret);

/*
 * job_commit - this rank's image is in the store: make it one of a manifest
 * @ret_sequence:  of the manifest; 0 if there is none yet because others are to come (only with a label)
 * Return: 0; -ETIME not all came in time; -EINTR; -errno. Logged. After an error the image is in no manifest, and none
 * will name it.
 */
int job_commit(struct job *job, const char *file, const uint8_t id[16], uint64_t *ret_sequence);

/* NULL is fine */
void job_leave(struct job *job);

/* -- what is there ---------------------------------------------------------------------------- */

struct job_image {
	char *file;
	uint8_t id[16];
	uint64_t token; /* of the process that made it */
};

struct job_manifest {
	char *file;      /* name in the store */
	char *id, *step; /* step: NULL if there was no label */
	uint64_t sequence;
	unsigned n_ranks;
	struct job_image *images; /* by rank */
};

struct job_list {
	struct job_manifest *manifests; /* by id, sequence */
	size_t n;
};

/*
 * job_scan - the manifests in a store, all or those of one job
 * Return: 0; -EBADMSG one is not what it should be; -errno. Logged. job_list_release() is to be called in any case.
 */
int job_scan(const char *store, const char *id, struct job_list *ret);
void job_list_release(struct job_list *list);

#endif
