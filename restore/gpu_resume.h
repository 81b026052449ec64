/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of a restore of a process that the driver checkpointed (cuda-checkpoint): its device memory lies in its host
 * memory, which may be not there yet but come lazily. That is brought in first, by many threads, so that the driver
 * does not wait for one page after the other; then the driver copies it back and lets the process go.
 */
#ifndef THAW_RESTORE_GPU_RESUME_H
#define THAW_RESTORE_GPU_RESUME_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "gpu/checkpoint.h"
#include "gpu/pipe.h"

struct gpu_resume_opts {
	const struct gpu_uuid_pair *pairs; /* if there are any, they name every GPU */
	size_t n_pairs;
	unsigned threads; /* that touch pages, or decode; 0: as many as processors */
	const char
		*storage; /* image with the bytes that the driver left to its caller; NULL: they are in the process */
	const char *tool; /* where the driver has no checkpoints; NULL: cuda-checkpoint in PATH */
	struct gpu_pipe_opts pipe;
	const volatile int *stop;
};

struct gpu_resume_result {
	uint64_t resident_bytes, resident_ns; /* looked through, and how long that took */
	uint64_t restore_ns;
	uint64_t storage_bytes;
};

/*
 * gpu_resume - checkpointed → locked → running
 * A process whose storage could not be filled is killed: it would go on with rubbish.
 * Return: 0; -EBUSY it is in another state; -ESRCH; -EOPNOTSUPP; -errno. Logged
 */
int gpu_resume(struct gpu_driver *drv, pid_t pid, const struct gpu_resume_opts *opts, struct gpu_resume_result *ret);

/* the first part alone: bring in all private memory of a process. Return: bytes looked through, or -errno */
int64_t gpu_resume_populate(pid_t pid, unsigned threads, const volatile int *stop);

#endif
