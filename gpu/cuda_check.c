/* SPDX-License-Identifier: Apache-2.0 */
/* Where NVIDIA's cuda.h is installed, our declarations are compared with it; there is no code in here. */
#include "gpu/cuda_types.h"

#ifdef __has_include
#if __has_include(<cuda.h>)
#include <cuda.h>

#define SAME(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #theirs)
#define SIZE(ours, theirs) _Static_assert(sizeof(ours) == sizeof(theirs), #theirs)
#define PLACE(type, field, their_type, their_field) \
	_Static_assert(offsetof(type, field) == offsetof(their_type, their_field), #their_field)

SIZE(cu_result, CUresult);
SIZE(cu_device, CUdevice);
SIZE(cu_ptr, CUdeviceptr);
SIZE(cu_context, CUcontext);
SIZE(cu_stream, CUstream);
SIZE(cu_event, CUevent);
SIZE(struct cu_uuid, CUuuid);
SAME(CU_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE);
SAME(CU_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY);
SAME(CU_NOT_INITIALIZED, CUDA_ERROR_NOT_INITIALIZED);
SAME(CU_DEINITIALIZED, CUDA_ERROR_DEINITIALIZED);
SAME(CU_NO_DEVICE, CUDA_ERROR_NO_DEVICE);
SAME(CU_INVALID_DEVICE, CUDA_ERROR_INVALID_DEVICE);
SAME(CU_INVALID_CONTEXT, CUDA_ERROR_INVALID_CONTEXT);
SAME(CU_ECC_UNCORRECTABLE, CUDA_ERROR_ECC_UNCORRECTABLE);
SAME(CU_INVALID_HANDLE, CUDA_ERROR_INVALID_HANDLE);
SAME(CU_NOT_FOUND, CUDA_ERROR_NOT_FOUND);
SAME(CU_NOT_READY, CUDA_ERROR_NOT_READY);
SAME(CU_LAUNCH_FAILED, CUDA_ERROR_LAUNCH_FAILED);
SAME(CU_NOT_SUPPORTED, CUDA_ERROR_NOT_SUPPORTED);
SAME(CU_UNKNOWN, CUDA_ERROR_UNKNOWN);
SAME(CU_FLAG_NON_BLOCKING, CU_STREAM_NON_BLOCKING);
SAME(CU_FLAG_BLOCKING_SYNC, CU_EVENT_BLOCKING_SYNC);
SAME(CU_FLAG_DISABLE_TIMING, CU_EVENT_DISABLE_TIMING);
SAME(CU_FLAG_PORTABLE, CU_MEMHOSTALLOC_PORTABLE);
SAME(CU_ILLEGAL_ADDRESS, CUDA_ERROR_ILLEGAL_ADDRESS);
SAME(CU_ATTR_CC_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME(CU_ATTR_CC_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
#if CUDA_VERSION >= 10020
SIZE(cu_handle, CUmemGenericAllocationHandle);
SIZE(struct cu_prop, CUmemAllocationProp);
PLACE(struct cu_prop, handle_types, CUmemAllocationProp, requestedHandleTypes);
PLACE(struct cu_prop, location, CUmemAllocationProp, location);
PLACE(struct cu_prop, flags, CUmemAllocationProp, allocFlags);
SIZE(struct cu_access, CUmemAccessDesc);
PLACE(struct cu_access, flags, CUmemAccessDesc, flags);
SAME(CU_ALLOCATION_PINNED, CU_MEM_ALLOCATION_TYPE_PINNED);
SAME(CU_LOCATION_DEVICE, CU_MEM_LOCATION_TYPE_DEVICE);
SAME(CU_HANDLE_POSIX_FD, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
SAME(CU_GRANULARITY_MINIMUM, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
SAME(CU_ACCESS_READ_WRITE, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
#endif
#if CUDA_VERSION >= 11030
SAME(CU_ATTR_VMM, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
#endif
#if CUDA_VERSION >= 12080
SIZE(struct cu_lock_args, CUcheckpointLockArgs);
SIZE(struct cu_checkpoint_args, CUcheckpointCheckpointArgs);
SIZE(struct cu_restore_args, CUcheckpointRestoreArgs);
SIZE(struct cu_unlock_args, CUcheckpointUnlockArgs);
SAME(CU_PROCESS_LOCKED, CU_PROCESS_STATE_LOCKED);
SAME(CU_PROCESS_CHECKPOINTED, CU_PROCESS_STATE_CHECKPOINTED);
SAME(CU_PROCESS_FAILED, CU_PROCESS_STATE_FAILED);
#endif
#endif
#endif
