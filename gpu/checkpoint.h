/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver's own checkpoints of other processes (CUDA 12.8 and later): a process whose device memory was put into its
 * host memory gets it back. With a driver from 13.4 on the bytes may be left to the caller instead: it hands out device
 * memory to fill. All return 0 or -errno, logged: -EOPNOTSUPP the driver cannot do it, -EBUSY the process is in
 * another state.
 */
#ifndef THAW_GPU_CHECKPOINT_H
#define THAW_GPU_CHECKPOINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "gpu/driver.h"

enum gpu_process_state { GPU_RUNNING, GPU_LOCKED, GPU_CHECKPOINTED, GPU_PROCESS_FAILED };

/* does the driver have this at all, and does it leave storage to its caller? */
bool gpu_checkpoint_able(const struct gpu_driver *drv);
bool gpu_checkpoint_has_storage(const struct gpu_driver *drv);

int gpu_checkpoint_state(struct gpu_driver *drv, pid_t pid, enum gpu_process_state *ret);
const char *gpu_process_state_text(enum gpu_process_state state);

struct gpu_uuid_pair {
	uint8_t before[16], after[16];
};

/* device memory to fill before the process can go on */
struct gpu_storage_part {
	unsigned ordinal;
	uint64_t addr, size;
};
struct gpu_storage {
	void *handle;
	struct gpu_storage_part *parts;
	size_t n_parts;
};

/*
 * gpu_checkpoint_restore - CHECKPOINTED to LOCKED
 * @pairs:    if there are any, they name every GPU
 * @ret:      NULL: the driver brings all bytes back. Else they are left to the caller if the driver wants that:
 *            fill the parts, then gpu_checkpoint_complete(), which also frees them; no handle: there is nothing to do
 */
int gpu_checkpoint_restore(struct gpu_driver *drv, pid_t pid, const struct gpu_uuid_pair *pairs, size_t n_pairs,
			   struct gpu_storage *ret);
int gpu_checkpoint_complete(struct gpu_driver *drv, struct gpu_storage *storage);
/* LOCKED to RUNNING */
int gpu_checkpoint_unlock(struct gpu_driver *drv, pid_t pid);

#endif
