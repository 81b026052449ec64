/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of the CUDA driver's binary interface that thawfs uses, in our own words: no CUDA header is needed to build,
 * and cuda_check.c compares these with cuda.h where there is one. Only driver.c, checkpoint.c and the double of the
 * driver (tests/double) include this; everything else speaks driver.h.
 */
#ifndef THAW_GPU_CUDA_TYPES_H
#define THAW_GPU_CUDA_TYPES_H

#include <stddef.h>
#include <stdint.h>

typedef int cu_result;
typedef int cu_device;
typedef unsigned long long cu_ptr; /* an address on the device */
typedef unsigned long long cu_handle;
typedef struct cu_context_data *cu_context;
typedef struct cu_stream_data *cu_stream;
typedef struct cu_event_data *cu_event;

enum cu_code {
	CU_SUCCESS = 0,
	CU_INVALID_VALUE = 1,
	CU_OUT_OF_MEMORY = 2,
	CU_NOT_INITIALIZED = 3,
	CU_DEINITIALIZED = 4,
	CU_STUB_LIBRARY = 34,
	CU_NO_DEVICE = 100,
	CU_INVALID_DEVICE = 101,
	CU_INVALID_CONTEXT = 201,
	CU_ECC_UNCORRECTABLE = 214,
	CU_NVLINK_UNCORRECTABLE = 220,
	CU_INVALID_HANDLE = 400,
	CU_ILLEGAL_STATE = 401,
	CU_NOT_FOUND = 500,
	CU_NOT_READY = 600,
	CU_ILLEGAL_ADDRESS = 700,
	CU_LAUNCH_TIMEOUT = 702,
	CU_ASSERT = 710,
	CU_HOST_MEMORY_ALREADY_REGISTERED = 712,
	CU_HARDWARE_STACK_ERROR = 714,
	CU_INVALID_PC = 718,
	CU_LAUNCH_FAILED = 719,
	CU_NOT_PERMITTED = 800,
	CU_NOT_SUPPORTED = 801,
	CU_SYSTEM_DRIVER_MISMATCH = 803,
	CU_UNKNOWN = 999,
};

enum {
	CU_ATTR_CC_MAJOR = 75, /* compute capability */
	CU_ATTR_CC_MINOR = 76,
	CU_ATTR_VMM = 102, /* virtual memory management is supported */
	CU_FLAG_NON_BLOCKING = 1,
	CU_FLAG_BLOCKING_SYNC = 1,
	CU_FLAG_DISABLE_TIMING = 2,
	CU_FLAG_PORTABLE = 1,
	CU_ALLOCATION_PINNED = 1,
	CU_LOCATION_DEVICE = 1,
	CU_HANDLE_POSIX_FD = 1,
	CU_GRANULARITY_MINIMUM = 0,
	CU_ACCESS_READ_WRITE = 3,
};

struct cu_uuid {
	char bytes[16];
};

struct cu_location {
	int type, id;
};

struct cu_prop {
	int type;
	int handle_types; /* that it can be exported as */
	struct cu_location location;
	void *win32;
	struct {
		unsigned char compression, rdma;
		unsigned short usage;
		unsigned char reserved[4];
	} flags;
};

struct cu_access {
	struct cu_location location;
	int flags;
};

/* -- checkpoints (from 12.8 on) ------------------------------------------------------------------ */

enum cu_process_state {
	CU_PROCESS_RUNNING = 0,
	CU_PROCESS_LOCKED = 1,
	CU_PROCESS_CHECKPOINTED = 2,
	CU_PROCESS_FAILED = 3,
};

struct cu_lock_args {
	unsigned timeout_ms, reserved0;
	uint64_t reserved1[7];
};

/* one entry of a map of all GPUs from what they were to what they are */
struct cu_gpu_pair {
	struct cu_uuid before, after;
};

/* storage that the driver leaves to its caller (13.4 on): memory to fill on one device */
struct cu_storage_device {
	cu_ptr ptr;
	size_t size;
	cu_stream stream;
};

struct cu_storage {
	void *handle; /* for cuCheckpointOperationComplete */
	struct cu_storage_device *devices;
	unsigned n_devices;
};

/* 64 bytes; older drivers want zeros after n_pairs */
struct cu_restore_args {
	struct cu_gpu_pair *pairs;
	unsigned n_pairs, reserved0;
	struct cu_storage **storage; /* where to put the address of the storage; NULL: the driver restores by itself */
	uint64_t reserved1[5];
};

struct cu_checkpoint_args {
	uint64_t reserved[8];
};

struct cu_unlock_args {
	uint64_t reserved[8];
};

_Static_assert(sizeof(struct cu_prop) == 32, "allocation properties");
_Static_assert(sizeof(struct cu_access) == 12, "access");
_Static_assert(sizeof(struct cu_lock_args) == 64, "lock");
_Static_assert(sizeof(struct cu_restore_args) == 64, "restore");
_Static_assert(offsetof(struct cu_restore_args, storage) == 16, "restore");
_Static_assert(sizeof(struct cu_checkpoint_args) == 64, "checkpoint");
_Static_assert(sizeof(struct cu_unlock_args) == 64, "unlock");

#endif
