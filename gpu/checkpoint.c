/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/checkpoint.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/driver_private.h"

_Static_assert((int)GPU_LOCKED == (int)CU_PROCESS_LOCKED && (int)GPU_PROCESS_FAILED == (int)CU_PROCESS_FAILED,
	       "states");

bool gpu_checkpoint_able(const struct gpu_driver *drv)
{
	return drv->cu.CheckpointProcessGetState && drv->cu.CheckpointProcessRestore && drv->cu.CheckpointProcessUnlock;
}

bool gpu_checkpoint_has_storage(const struct gpu_driver *drv)
{
	return gpu_checkpoint_able(drv) && drv->cu.CheckpointOperationComplete;
}

const char *gpu_process_state_text(enum gpu_process_state state)
{
	static const char *const texts[] = { "running", "locked", "checkpointed", "failed" };

	return texts[state];
}

static int check_able(const struct gpu_driver *drv)
{
	if (gpu_checkpoint_able(drv))
		return 0;
	return gpu_fail(-EOPNOTSUPP, "the driver (CUDA %d.%d) has no checkpoints, that takes 12.8", drv->version / 1000,
			drv->version % 1000 / 10);
}

int gpu_checkpoint_state(struct gpu_driver *drv, pid_t pid, enum gpu_process_state *ret)
{
	int state = -1, r = check_able(drv);
	cu_result code;

	if (r)
		return r;
	code = drv->cu.CheckpointProcessGetState(pid, &state);
	if (code)
		return cuda_fail(drv, code, "cannot ask for the state of process %d", (int)pid);
	if (state < CU_PROCESS_RUNNING || state > CU_PROCESS_FAILED)
		return gpu_fail(-EPROTO, "the driver says that process %d is in state %d", (int)pid, state);
	*ret = (enum gpu_process_state)state;
	return 0;
}

/* the driver's description is its own, and goes away: a copy with what can be checked checked */
static int take_storage(struct gpu_driver *drv, const struct cu_storage *from, struct gpu_storage *ret)
{
	struct gpu_storage s = { .handle = from->handle };

	if (!from->handle || from->n_devices > drv->n || (from->n_devices && !from->devices))
		return gpu_fail(-EPROTO, "the driver wants memory of %u devices filled, there are %u", from->n_devices,
				drv->n);
	s.parts = calloc(from->n_devices + 1, sizeof(*s.parts));
	if (!s.parts)
		return gpu_fail(-ENOMEM, "out of memory");
	for (unsigned i = 0; i < from->n_devices; i++) {
		/* one entry for each device, in their order; those without bytes have size 0 */
		s.parts[i].ordinal = i;
		s.parts[i].addr = from->devices[i].ptr;
		s.parts[i].size = from->devices[i].size;
	}
	s.n_parts = from->n_devices;
	*ret = s;
	return 0;
}

int gpu_checkpoint_restore(struct gpu_driver *drv, pid_t pid, const struct gpu_uuid_pair *pairs, size_t n_pairs,
			   struct gpu_storage *ret)
{
	struct cu_gpu_pair list[GPU_MAX];
	struct cu_storage *storage = NULL;
	struct cu_restore_args args = { 0 };
	cu_result code;
	int r = check_able(drv);

	if (r)
		return r;
	if (n_pairs > GPU_MAX)
		return gpu_fail(-E2BIG, "a map of %zu GPUs", n_pairs);
	for (size_t i = 0; i < n_pairs; i++) {
		memcpy(list[i].before.bytes, pairs[i].before, 16);
		memcpy(list[i].after.bytes, pairs[i].after, 16);
	}
	if (n_pairs) {
		args.pairs = list;
		args.n_pairs = (unsigned)n_pairs;
	}
	if (ret) {
		*ret = (struct gpu_storage){ 0 };
		if (!gpu_checkpoint_has_storage(drv))
			return gpu_fail(-EOPNOTSUPP,
					"the driver (CUDA %d.%d) does not leave storage to others, that takes 13.4",
					drv->version / 1000, drv->version % 1000 / 10);
		args.storage = &storage;
	}
	code = drv->cu.CheckpointProcessRestore(pid, &args);
	if (code)
		return cuda_fail(drv, code, "cannot restore process %d", (int)pid);
	return storage ? take_storage(drv, storage, ret) : 0;
}

int gpu_checkpoint_complete(struct gpu_driver *drv, struct gpu_storage *storage)
{
	cu_result code = storage->handle ? drv->cu.CheckpointOperationComplete(storage->handle) : CU_SUCCESS;

	free(storage->parts);
	*storage = (struct gpu_storage){ 0 };
	return code ? cuda_fail(drv, code, "cannot complete the restore") : 0;
}

int gpu_checkpoint_unlock(struct gpu_driver *drv, pid_t pid)
{
	struct cu_unlock_args args = { 0 };
	int r = check_able(drv);
	cu_result code;

	if (r)
		return r;
	code = drv->cu.CheckpointProcessUnlock(pid, &args);
	return code ? cuda_fail(drv, code, "cannot unlock process %d", (int)pid) : 0;
}
