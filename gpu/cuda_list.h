/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every function of the CUDA driver that thawfs calls, once. driver.c declares and loads its table from this list, the
 * double of the driver declares and finds its functions by it.
 *
 *     F(name, suffix, version, need, parameters)
 *
 * The symbol is cu<name><suffix>, where an un-suffixed one may be another, older interface. @version is what
 * cuGetProcAddress is asked for: that of the interface typed here, whatever the driver's. @need: REQUIRED, or OPTIONAL.
 */
#ifndef THAW_GPU_CUDA_LIST_H
#define THAW_GPU_CUDA_LIST_H

#include "gpu/cuda_types.h"

#define CUDA_FUNCTIONS(F)                                                                                        \
	F(Init, , 2000, REQUIRED, (unsigned flags))                                                              \
	F(DriverGetVersion, , 2020, REQUIRED, (int *version))                                                    \
	F(GetErrorName, , 6000, REQUIRED, (cu_result code, const char **text))                                   \
	F(GetErrorString, , 6000, REQUIRED, (cu_result code, const char **text))                                 \
	F(DeviceGetCount, , 2000, REQUIRED, (int *count))                                                        \
	F(DeviceGet, , 2000, REQUIRED, (cu_device * device, int ordinal))                                        \
	F(DeviceGetUuid, _v2, 11040, OPTIONAL, (struct cu_uuid * uuid, cu_device device))                        \
	F(DeviceGetName, , 2000, REQUIRED, (char *name, int len, cu_device device))                              \
	F(DeviceGetPCIBusId, , 4010, REQUIRED, (char *text, int len, cu_device device))                          \
	F(DeviceTotalMem, _v2, 3020, REQUIRED, (size_t * bytes, cu_device device))                               \
	F(DeviceGetAttribute, , 2000, REQUIRED, (int *value, int attribute, cu_device device))                   \
	F(DevicePrimaryCtxRetain, , 7000, REQUIRED, (cu_context * context, cu_device device))                    \
	F(DevicePrimaryCtxRelease, _v2, 11000, REQUIRED, (cu_device device))                                     \
	F(CtxSetCurrent, , 4000, REQUIRED, (cu_context context))                                                 \
	F(MemGetInfo, _v2, 3020, REQUIRED, (size_t * free, size_t * total))                                      \
	F(MemAlloc, _v2, 3020, REQUIRED, (cu_ptr * ptr, size_t size))                                            \
	F(MemFree, _v2, 3020, REQUIRED, (cu_ptr ptr))                                                            \
	F(MemGetAllocationGranularity, , 10020, REQUIRED, (size_t * bytes, const struct cu_prop *prop, int opt)) \
	F(MemAddressReserve, , 10020, REQUIRED,                                                                  \
	  (cu_ptr * ptr, size_t size, size_t align, cu_ptr addr, unsigned long long flags))                      \
	F(MemAddressFree, , 10020, REQUIRED, (cu_ptr ptr, size_t size))                                          \
	F(MemCreate, , 10020, REQUIRED,                                                                          \
	  (cu_handle * handle, size_t size, const struct cu_prop *prop, unsigned long long flags))               \
	F(MemRelease, , 10020, REQUIRED, (cu_handle handle))                                                     \
	F(MemMap, , 10020, REQUIRED,                                                                             \
	  (cu_ptr ptr, size_t size, size_t off, cu_handle handle, unsigned long long flags))                     \
	F(MemUnmap, , 10020, REQUIRED, (cu_ptr ptr, size_t size))                                                \
	F(MemSetAccess, , 10020, REQUIRED, (cu_ptr ptr, size_t size, const struct cu_access *access, size_t n))  \
	F(MemExportToShareableHandle, , 10020, REQUIRED,                                                         \
	  (void *shareable, cu_handle handle, int type, unsigned long long flags))                               \
	F(MemImportFromShareableHandle, , 10020, REQUIRED, (cu_handle * handle, void *shareable, int type))      \
	F(MemHostAlloc, , 2020, REQUIRED, (void **ptr, size_t size, unsigned flags))                             \
	F(MemFreeHost, , 2000, REQUIRED, (void *ptr))                                                            \
	F(MemHostRegister, _v2, 6050, REQUIRED, (void *ptr, size_t size, unsigned flags))                        \
	F(MemHostUnregister, , 4000, REQUIRED, (void *ptr))                                                      \
	F(MemcpyHtoDAsync, _v2, 3020, REQUIRED, (cu_ptr to, const void *from, size_t len, cu_stream stream))     \
	F(MemcpyDtoHAsync, _v2, 3020, REQUIRED, (void *to, cu_ptr from, size_t len, cu_stream stream))           \
	F(MemsetD8Async, , 3020, REQUIRED, (cu_ptr to, unsigned char value, size_t len, cu_stream stream))       \
	F(StreamCreate, , 2000, REQUIRED, (cu_stream * stream, unsigned flags))                                  \
	F(StreamDestroy, _v2, 4000, REQUIRED, (cu_stream stream))                                                \
	F(StreamSynchronize, , 2000, REQUIRED, (cu_stream stream))                                               \
	F(EventCreate, , 2000, REQUIRED, (cu_event * event, unsigned flags))                                     \
	F(EventDestroy, _v2, 4000, REQUIRED, (cu_event event))                                                   \
	F(EventRecord, , 2000, REQUIRED, (cu_event event, cu_stream stream))                                     \
	F(EventSynchronize, , 2000, REQUIRED, (cu_event event))                                                  \
	F(CheckpointProcessGetState, , 12080, OPTIONAL, (int pid, int *state))                                   \
	F(CheckpointProcessLock, , 12080, OPTIONAL, (int pid, struct cu_lock_args *args))                        \
	F(CheckpointProcessCheckpoint, , 12080, OPTIONAL, (int pid, struct cu_checkpoint_args *args))            \
	F(CheckpointProcessRestore, , 12080, OPTIONAL, (int pid, struct cu_restore_args *args))                  \
	F(CheckpointProcessUnlock, , 12080, OPTIONAL, (int pid, struct cu_unlock_args *args))                    \
	F(CheckpointOperationComplete, , 13040, OPTIONAL, (void *handle))

#endif
