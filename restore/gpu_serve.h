/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GPU helper: fills device memory of other processes from images while they go on with something else. Targets
 * connect (restore/gpu_client.h), hand over what they exported, and are told when it is filled or why it is not.
 */
#ifndef THAW_RESTORE_GPU_SERVE_H
#define THAW_RESTORE_GPU_SERVE_H

#include <stddef.h>
#include <sys/types.h>

#include "gpu/pipe.h"

struct gpu_serve_opts {
	const char *socket; /* path; made by this, for the own user alone unless others are allowed */
	const uid_t *allow; /* users besides the own and root */
	size_t n_allow;
	unsigned threads;          /* that decode, for all GPUs together; 0: as many as processors */
	unsigned timeout_ms;       /* for each command; 0: none but what the target says */
	struct gpu_pipe_opts pipe; /* one for each GPU, taken when it is first used */
	const volatile int *stop;  /* not 0: cancel what is under way, answer, and end */
	void (*ready)(void *ctx);  /* targets can connect; may be NULL */
	void *ctx;
};

/*
 * gpu_serve - until @stop, or until a GPU is lost, which another process can use again
 * Return: 0; -EIO a GPU is lost; -EADDRINUSE another helper has the socket; -errno. Logged
 */
int gpu_serve(struct gpu_driver *drv, const struct gpu_serve_opts *opts);

#endif
