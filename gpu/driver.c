/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/driver.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/bytes.h"
#include "common/log.h"
#include "gpu/driver_private.h"

#define LIBRARY "libcuda.so.1"
/* 10.2 brought memory at addresses of our choice */
#define OLDEST  10020

/* cuGetProcAddress_v2, from 12.0 on; the one before it takes other parameters */
typedef cu_result (*get_proc_fn)(const char *name, void **ret, int version, uint64_t flags, int *status);

struct gpu {
	struct gpu_driver *drv;
	const struct gpu_info *info;
	cu_device device;
	cu_context context;
	uint64_t granularity;
	atomic_int lost; /* the first code after which nothing works, or 0 */
};

/* -- errors -------------------------------------------------------------------------------------- */

static __thread char last_error[320];

const char *gpu_error(void)
{
	return last_error[0] ? last_error : "unknown error";
}

void gpu_keep_error(const char *text)
{
	snprintf(last_error, sizeof(last_error), "%s", text);
}

static void keep_error(const char *fmt, va_list ap)
{
	vsnprintf(last_error, sizeof(last_error), fmt, ap);
	log_error("%s", last_error);
}

int gpu_fail(int r, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	keep_error(fmt, ap);
	va_end(ap);
	return r;
}

int cuda_errno(cu_result code)
{
	switch (code) {
	case CU_SUCCESS:
		return 0;
	case CU_INVALID_VALUE:
	case CU_INVALID_CONTEXT:
	case CU_INVALID_HANDLE:
		return -EINVAL;
	case CU_OUT_OF_MEMORY:
		return -ENOMEM;
	case CU_NOT_INITIALIZED:
	case CU_DEINITIALIZED:
	case CU_STUB_LIBRARY:
	case CU_NO_DEVICE:
	case CU_INVALID_DEVICE:
	case CU_SYSTEM_DRIVER_MISMATCH:
		return -ENODEV;
	case CU_NOT_FOUND:
		return -ENOENT;
	case CU_NOT_READY:
		return -EAGAIN;
	case CU_ILLEGAL_STATE:
		return -EBUSY;
	case CU_HOST_MEMORY_ALREADY_REGISTERED:
		return -EEXIST;
	case CU_NOT_PERMITTED:
		return -EPERM;
	case CU_NOT_SUPPORTED:
		return -EOPNOTSUPP;
	default:
		return -EIO;
	}
}

/* is the context gone for good? */
static bool is_sticky(cu_result code)
{
	return code == CU_ECC_UNCORRECTABLE || code == CU_NVLINK_UNCORRECTABLE || code == CU_ILLEGAL_ADDRESS ||
	       code == CU_LAUNCH_TIMEOUT || code == CU_ASSERT ||
	       (code >= CU_HARDWARE_STACK_ERROR && code <= CU_LAUNCH_FAILED) || code == CU_UNKNOWN;
}

static const char *code_text(const struct gpu_driver *drv, cu_result code)
{
	const char *text = NULL;

	if (drv->cu.GetErrorString(code, &text) || !text)
		return "an error that the driver has no words for";
	return text;
}

int cuda_fail(const struct gpu_driver *drv, cu_result code, const char *fmt, ...)
{
	char what[160];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(what, sizeof(what), fmt, ap);
	va_end(ap);
	return gpu_fail(cuda_errno(code), "%s: %s (CUDA %d)", what, code_text(drv, code), code);
}

/* what happened on a device; nothing if @code is success */
static int result(struct gpu *gpu, cu_result code, const char *what, uint64_t number)
{
	int none = 0;

	if (code == CU_SUCCESS)
		return 0;
	if (is_sticky(code) && !atomic_compare_exchange_strong(&gpu->lost, &none, code)) {
		/* said already, and all that follows would be many lines; whoever asks is told why all the same */
		if (!last_error[0]) {
			char text[sizeof(last_error)];

			snprintf(text, sizeof(text), "GPU %u is lost: %s (CUDA %d)", gpu->info->ordinal,
				 code_text(gpu->drv, (cu_result)none), none);
			gpu_keep_error(text);
		}
		return cuda_errno(code);
	}
	return cuda_fail(gpu->drv, code, "GPU %u: cannot %s (%llu)", gpu->info->ordinal, what,
			 (unsigned long long)number);
}

/* -- loading ------------------------------------------------------------------------------------- */

static void *look_up(struct gpu_driver *drv, get_proc_fn get_proc, const char *base, const char *symbol, int version)
{
	void *fn = NULL;
	int status = 0;

	/* success with a NULL pointer is possible: too old, or not found */
	if (get_proc && get_proc(base, &fn, version, 0, &status) == CU_SUCCESS && fn)
		return fn;
	return dlsym(drv->lib, symbol);
}

enum need { OPTIONAL, REQUIRED };

static int load_table(struct gpu_driver *drv)
{
	get_proc_fn get_proc = NULL;

	if (drv->version >= 12000)
		*(void **)&get_proc = dlsym(drv->lib, "cuGetProcAddress_v2");
#define F(name, suffix, since, need, parameters)                                                         \
	/* what is newer than the driver says it is may be there and not work */                         \
	if (since <= drv->version)                                                                       \
		*(void **)&drv->cu.name = look_up(drv, get_proc, "cu" #name, "cu" #name #suffix, since); \
	if (!drv->cu.name && need == REQUIRED)                                                           \
		return gpu_fail(-ENODEV, "no usable GPU: the driver has no %s", "cu" #name #suffix);
	CUDA_FUNCTIONS(F)
#undef F
	return 0;
}

static int open_library(struct gpu_driver *drv)
{
	const char *name = getenv("THAWFS_LIBCUDA");
	const char *why;

	if (!name || !*name)
		name = LIBRARY;
	drv->lib = dlopen(name, RTLD_NOW | RTLD_LOCAL);
	if (drv->lib)
		return 0;
	why = dlerror();
	if (!why || strstr(why, "No such file"))
		return gpu_fail(-ENODEV, "no usable GPU: %s not found", name);
	return gpu_fail(-ENODEV, "no usable GPU: cannot load %s: %s", name, why);
}

static int check_version(struct gpu_driver *drv)
{
	cu_result (*get_version)(int *version);
	cu_result code;

	*(void **)&get_version = dlsym(drv->lib, "cuDriverGetVersion");
	if (!get_version)
		return gpu_fail(-ENODEV, "no usable GPU: the library is not a CUDA driver");
	code = get_version(&drv->version);
	if (code == CU_STUB_LIBRARY)
		return gpu_fail(-ENODEV, "no usable GPU: the library is the toolkit's stub, not the driver");
	if (code)
		return gpu_fail(-ENODEV, "no usable GPU: the driver does not tell its version (CUDA %d)", code);
	if (drv->version < OLDEST)
		return gpu_fail(-ENODEV, "no usable GPU: the driver is too old: CUDA %d.%d, at least %d.%d is needed",
				drv->version / 1000, drv->version % 1000 / 10, OLDEST / 1000, OLDEST % 1000 / 10);
	return 0;
}

static int start(struct gpu_driver *drv)
{
	cu_result code = drv->cu.Init(0);

	if (code == CU_STUB_LIBRARY)
		return gpu_fail(-ENODEV, "no usable GPU: the library is the toolkit's stub, not the driver");
	if (code)
		return gpu_fail(-ENODEV, "no usable GPU: %s (CUDA %d)", code_text(drv, code), code);
	return 0;
}

/* -- devices ------------------------------------------------------------------------------------- */

/* before 11.4 a device has no UUID that one can ask for: what is stable is where it is plugged in */
static int read_uuid(struct gpu_driver *drv, cu_device device, struct gpu_info *info)
{
	struct cu_uuid uuid;
	cu_result code;

	if (!drv->cu.DeviceGetUuid) {
		memset(info->uuid, 0, sizeof(info->uuid));
		memcpy(info->uuid, info->pci, strnlen(info->pci, sizeof(info->uuid)));
		return 0;
	}
	code = drv->cu.DeviceGetUuid(&uuid, device);
	memcpy(info->uuid, uuid.bytes, sizeof(info->uuid));
	return code;
}

static int read_device(struct gpu_driver *drv, unsigned ordinal)
{
	struct gpu_info *info = &drv->info[ordinal];
	size_t total = 0;
	int major = 0, minor = 0;
	cu_device device = 0;
	cu_result code = drv->cu.DeviceGet(&device, (int)ordinal);

	info->ordinal = ordinal;
	if (!code)
		code = drv->cu.DeviceGetName(info->name, sizeof(info->name), device);
	if (!code)
		code = drv->cu.DeviceGetPCIBusId(info->pci, sizeof(info->pci), device);
	if (!code)
		code = read_uuid(drv, device, info);
	if (!code)
		code = drv->cu.DeviceTotalMem(&total, device);
	if (!code)
		code = drv->cu.DeviceGetAttribute(&major, CU_ATTR_CC_MAJOR, device);
	if (!code)
		code = drv->cu.DeviceGetAttribute(&minor, CU_ATTR_CC_MINOR, device);
	if (code)
		return cuda_fail(drv, code, "cannot ask GPU %u what it is", ordinal);
	info->name[sizeof(info->name) - 1] = info->pci[sizeof(info->pci) - 1] = '\0';
	/* it goes into JSON and messages */
	for (char *p = info->name; *p; p++) {
		if (*p < ' ' || *p > '~')
			*p = '?';
	}
	info->total_bytes = total;
	info->major = (unsigned)major;
	info->minor = (unsigned)minor;
	return 0;
}

static int read_devices(struct gpu_driver *drv)
{
	int count = 0;
	cu_result code = drv->cu.DeviceGetCount(&count);

	if (code)
		return cuda_fail(drv, code, "no usable GPU: cannot count devices");
	if (count <= 0)
		return gpu_fail(-ENODEV, "no usable GPU: the driver has no devices");
	if (count > GPU_MAX) {
		log_warn("only the first %d of %d GPUs are used", GPU_MAX, count);
		count = GPU_MAX;
	}
	for (unsigned i = 0; i < (unsigned)count; i++) {
		int r = read_device(drv, i);

		if (r)
			return r;
	}
	drv->n = (unsigned)count;
	return 0;
}

int gpu_driver_open(struct gpu_driver **ret)
{
	struct gpu_driver *drv = calloc(1, sizeof(*drv));
	int r;

	if (!drv)
		return gpu_fail(-ENOMEM, "out of memory");
	r = open_library(drv);
	if (!r)
		r = check_version(drv);
	if (!r)
		r = load_table(drv);
	if (!r)
		r = start(drv);
	if (!r)
		r = read_devices(drv);
	if (r) {
		gpu_driver_close(drv);
		return r;
	}
	*ret = drv;
	return 0;
}

void gpu_driver_close(struct gpu_driver *drv)
{
	free(drv);
}

int gpu_driver_version(const struct gpu_driver *drv)
{
	return drv->version;
}

unsigned gpu_count(const struct gpu_driver *drv)
{
	return drv->n;
}

const struct gpu_info *gpu_device(const struct gpu_driver *drv, unsigned ordinal)
{
	return &drv->info[ordinal];
}

int gpu_find(const struct gpu_driver *drv, const uint8_t uuid[16])
{
	for (unsigned i = 0; i < drv->n; i++) {
		if (!memcmp(drv->info[i].uuid, uuid, sizeof(drv->info[i].uuid)))
			return (int)i;
	}
	return -ENODEV;
}

const char *gpu_uuid_text(const uint8_t uuid[16], char ret[GPU_UUID_TEXT])
{
	char *p = ret + sprintf(ret, "GPU-");

	for (unsigned i = 0; i < 16; i++)
		p += sprintf(p, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
	return ret;
}

int gpu_uuid_parse(const char *text, uint8_t ret[16])
{
	char canonical[GPU_UUID_TEXT];
	uint8_t uuid[16];
	const char *p = text;

	if (strlen(text) != GPU_UUID_TEXT - 1 || strncmp(text, "GPU-", 4) != 0)
		return -EINVAL;
	p += 4;
	for (unsigned i = 0; i < 16; i++) {
		if (*p == '-')
			p++;
		if (sscanf(p, "%2hhx", &uuid[i]) != 1)
			return -EINVAL;
		p += 2;
	}
	if (strcasecmp(gpu_uuid_text(uuid, canonical), text) != 0)
		return -EINVAL;
	memcpy(ret, uuid, sizeof(uuid));
	return 0;
}

/* -- an open device -------------------------------------------------------------------------------- */

static struct cu_prop allocation(const struct gpu *gpu, bool export)
{
	return (struct cu_prop){
		.type = CU_ALLOCATION_PINNED,
		.handle_types = export ? CU_HANDLE_POSIX_FD : 0,
		.location = { .type = CU_LOCATION_DEVICE, .id = gpu->device },
	};
}

/* in every call: another part of the process may have made another device current in this thread */
static cu_result enter(struct gpu *gpu)
{
	return gpu->drv->cu.CtxSetCurrent(gpu->context);
}

/*
 * Evaluate a call on a device with its context current. A lost device is still asked: the codes it answers with are the
 * truth, and what can be given back is given back.
 */
#define CALL(gpu, call, what, number)                         \
	({                                                    \
		cu_result code_ = enter(gpu);                 \
		if (!code_)                                   \
			code_ = (gpu)->drv->cu.call;          \
		result(gpu, code_, what, (uint64_t)(number)); \
	})
/* the same for what gives something back, which has to be called in any case: an error of before is told only once */
#define GIVE_BACK(gpu, call, what, number)                                      \
	({                                                                      \
		cu_result code_ = enter(gpu), code2_;                           \
		if (code_)                                                      \
			enter(gpu);                                             \
		code2_ = (gpu)->drv->cu.call;                                   \
		result(gpu, code2_ ? code2_ : code_, what, (uint64_t)(number)); \
	})

static int check_device(struct gpu *gpu)
{
	struct cu_prop prop = allocation(gpu, false);
	size_t granularity = 0;
	int vmm = 0, r;

	r = CALL(gpu, DeviceGetAttribute(&vmm, CU_ATTR_VMM, gpu->device), "ask what the device can do", CU_ATTR_VMM);
	if (r)
		return r;
	if (!vmm)
		return gpu_fail(-EOPNOTSUPP, "GPU %u: cannot place memory at given addresses", gpu->info->ordinal);
	r = CALL(gpu, MemGetAllocationGranularity(&granularity, &prop, CU_GRANULARITY_MINIMUM),
		 "ask for the granularity", 0);
	if (r)
		return r;
	if (!granularity || (granularity & (granularity - 1)) || granularity > 1u << 30)
		return gpu_fail(-EIO, "GPU %u: a granularity of %zu is not possible", gpu->info->ordinal, granularity);
	gpu->granularity = granularity;
	return 0;
}

int gpu_open(struct gpu_driver *drv, unsigned ordinal, struct gpu **ret)
{
	struct gpu *gpu = calloc(1, sizeof(*gpu));
	cu_result code;
	int r;

	if (!gpu)
		return gpu_fail(-ENOMEM, "out of memory");
	gpu->drv = drv;
	gpu->info = &drv->info[ordinal];
	code = drv->cu.DeviceGet(&gpu->device, (int)ordinal);
	if (!code)
		code = drv->cu.DevicePrimaryCtxRetain(&gpu->context, gpu->device);
	if (code) {
		free(gpu);
		return cuda_fail(drv, code, "cannot use GPU %u", ordinal);
	}
	r = check_device(gpu);
	if (r) {
		gpu_close(gpu);
		return r;
	}
	*ret = gpu;
	return 0;
}

void gpu_close(struct gpu *gpu)
{
	if (!gpu)
		return;
	result(gpu, gpu->drv->cu.DevicePrimaryCtxRelease(gpu->device), "release the device", 0);
	free(gpu);
}

const struct gpu_info *gpu_info(const struct gpu *gpu)
{
	return gpu->info;
}

bool gpu_lost(const struct gpu *gpu)
{
	return atomic_load(&gpu->lost) != 0;
}

int gpu_free_bytes(struct gpu *gpu, uint64_t *ret_free, uint64_t *ret_total)
{
	size_t free_bytes = 0, total = 0;
	int r = CALL(gpu, MemGetInfo(&free_bytes, &total), "ask for free memory", 0);

	if (r)
		return r;
	*ret_free = free_bytes;
	*ret_total = total;
	return 0;
}

/* -- memory ---------------------------------------------------------------------------------------- */

uint64_t gpu_granularity(const struct gpu *gpu)
{
	return gpu->granularity;
}

int gpu_reserve(struct gpu *gpu, uint64_t addr, uint64_t size, uint64_t *ret_addr)
{
	cu_ptr got = 0;
	int r = CALL(gpu, MemAddressReserve(&got, size, 0, addr, 0), "reserve addresses for bytes", size);

	if (r)
		return r;
	if (addr && got != addr) {
		gpu_unreserve(gpu, got, size);
		return gpu_fail(-EADDRINUSE, "GPU %u: address 0x%llx (%llu bytes) is taken", gpu->info->ordinal,
				(unsigned long long)addr, (unsigned long long)size);
	}
	*ret_addr = got;
	return 0;
}

int gpu_unreserve(struct gpu *gpu, uint64_t addr, uint64_t size)
{
	return GIVE_BACK(gpu, MemAddressFree(addr, size), "give back addresses", addr);
}

int gpu_create(struct gpu *gpu, uint64_t size, bool export, uint64_t *ret_handle)
{
	struct cu_prop prop = allocation(gpu, export);
	cu_handle handle = 0;
	int r = CALL(gpu, MemCreate(&handle, size, &prop, 0), "allocate bytes", size);

	if (!r)
		*ret_handle = handle;
	return r;
}

int gpu_release(struct gpu *gpu, uint64_t handle)
{
	return GIVE_BACK(gpu, MemRelease(handle), "release memory", handle);
}

int gpu_map(struct gpu *gpu, uint64_t addr, uint64_t size, uint64_t handle)
{
	const struct cu_access access = {
		.location = { .type = CU_LOCATION_DEVICE, .id = gpu->device },
		.flags = CU_ACCESS_READ_WRITE,
	};
	int r = CALL(gpu, MemMap(addr, size, 0, handle, 0), "map memory at", addr);

	if (r)
		return r;
	r = CALL(gpu, MemSetAccess(addr, size, &access, 1), "give access to memory at", addr);
	if (r)
		gpu_unmap(gpu, addr, size);
	return r;
}

int gpu_unmap(struct gpu *gpu, uint64_t addr, uint64_t size)
{
	return GIVE_BACK(gpu, MemUnmap(addr, size), "unmap memory at", addr);
}

int gpu_export(struct gpu *gpu, uint64_t handle, int *ret_fd)
{
	int fd = -1;
	int r = CALL(gpu, MemExportToShareableHandle(&fd, handle, CU_HANDLE_POSIX_FD, 0), "export memory", handle);

	if (!r)
		*ret_fd = fd;
	return r;
}

int gpu_import(struct gpu *gpu, int fd, uint64_t *ret_handle)
{
	cu_handle handle = 0;
	int r = CALL(gpu, MemImportFromShareableHandle(&handle, (void *)(uintptr_t)fd, CU_HANDLE_POSIX_FD),
		     "import memory from descriptor", fd);

	if (!r)
		*ret_handle = handle;
	return r;
}

int gpu_alloc(struct gpu *gpu, uint64_t size, uint64_t *ret_addr)
{
	cu_ptr ptr = 0;
	int r = CALL(gpu, MemAlloc(&ptr, size), "allocate bytes", size);

	if (!r)
		*ret_addr = ptr;
	return r;
}

int gpu_free(struct gpu *gpu, uint64_t addr)
{
	return GIVE_BACK(gpu, MemFree(addr), "free memory at", addr);
}

/* -- pinned host memory ---------------------------------------------------------------------------- */

int gpu_host_alloc(struct gpu *gpu, size_t size, void **ret)
{
	void *ptr = NULL;
	int r = CALL(gpu, MemHostAlloc(&ptr, size, CU_FLAG_PORTABLE), "pin bytes", size);

	if (!r)
		*ret = ptr;
	return r;
}

int gpu_host_free(struct gpu *gpu, void *ptr)
{
	return GIVE_BACK(gpu, MemFreeHost(ptr), "free pinned memory at", (uintptr_t)ptr);
}

int gpu_host_register(struct gpu *gpu, void *ptr, size_t size)
{
	return CALL(gpu, MemHostRegister(ptr, size, CU_FLAG_PORTABLE), "pin bytes that are there", size);
}

int gpu_host_unregister(struct gpu *gpu, void *ptr)
{
	return GIVE_BACK(gpu, MemHostUnregister(ptr), "unpin memory at", (uintptr_t)ptr);
}

/* -- streams --------------------------------------------------------------------------------------- */

int gpu_stream_new(struct gpu *gpu, struct gpu_stream **ret)
{
	cu_stream stream = NULL;
	int r = CALL(gpu, StreamCreate(&stream, CU_FLAG_NON_BLOCKING), "make a stream", 0);

	if (!r)
		*ret = (struct gpu_stream *)stream;
	return r;
}

int gpu_stream_free(struct gpu *gpu, struct gpu_stream *stream)
{
	return GIVE_BACK(gpu, StreamDestroy((cu_stream)stream), "end a stream", 0);
}

int gpu_stream_wait(struct gpu *gpu, struct gpu_stream *stream)
{
	return CALL(gpu, StreamSynchronize((cu_stream)stream), "finish the copies", 0);
}

int gpu_copy_in(struct gpu *gpu, uint64_t to, const void *from, size_t len, struct gpu_stream *stream)
{
	return CALL(gpu, MemcpyHtoDAsync(to, from, len, (cu_stream)stream), "copy to the device at", to);
}

int gpu_copy_out(struct gpu *gpu, void *to, uint64_t from, size_t len, struct gpu_stream *stream)
{
	return CALL(gpu, MemcpyDtoHAsync(to, from, len, (cu_stream)stream), "copy from the device at", from);
}

int gpu_zero(struct gpu *gpu, uint64_t addr, uint64_t len, struct gpu_stream *stream)
{
	return CALL(gpu, MemsetD8Async(addr, 0, len, (cu_stream)stream), "clear memory at", addr);
}

int gpu_event_new(struct gpu *gpu, struct gpu_event **ret)
{
	cu_event event = NULL;
	int r = CALL(gpu, EventCreate(&event, CU_FLAG_BLOCKING_SYNC | CU_FLAG_DISABLE_TIMING), "make an event", 0);

	if (!r)
		*ret = (struct gpu_event *)event;
	return r;
}

int gpu_event_free(struct gpu *gpu, struct gpu_event *event)
{
	return GIVE_BACK(gpu, EventDestroy((cu_event)event), "end an event", 0);
}

int gpu_event_put(struct gpu *gpu, struct gpu_event *event, struct gpu_stream *stream)
{
	return CALL(gpu, EventRecord((cu_event)event, (cu_stream)stream), "follow the copies", 0);
}

int gpu_event_wait(struct gpu *gpu, struct gpu_event *event)
{
	return CALL(gpu, EventSynchronize((cu_event)event), "finish the copies", 0);
}
