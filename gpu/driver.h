/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GPU driver, loaded at run time, in words that do not depend on its maker: devices, their memory, pinned host
 * memory, and copies that go on by themselves. Only driver.c and checkpoint.c know that it is CUDA; another driver
 * would be a second table behind these functions. The library is libcuda.so.1, or what THAWFS_LIBCUDA names.
 *
 * Results are 0 or negative errno: -ENODEV no usable GPU or too old a driver, -ENOMEM the device's memory is used up,
 * -EADDRINUSE an address cannot be had, -EIO the device failed. Each failure is logged here once with what was being
 * done and the driver's own words; gpu_error() gives that text again, to pass it on to another process.
 *
 * Some errors (memory errors, a kernel's wild access) are the end of a device for this process: everything on it fails
 * from then on, gpu_lost() says so, and the process should give back what it holds and end.
 *
 * Any thread may call anything, but a thing is released by one thread while no other uses it. A call makes the device
 * current in the calling thread. A process that forks after gpu_driver_open() must not use the driver in the child.
 */
#ifndef THAW_GPU_DRIVER_H
#define THAW_GPU_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gpu_driver;

/* -ENODEV: there is none, logged as "no usable GPU: why" */
int gpu_driver_open(struct gpu_driver **ret);
/* all devices are closed before; NULL is fine. The library stays loaded: a driver does not survive being unloaded */
void gpu_driver_close(struct gpu_driver *drv);

/* 1000 × major + 10 × minor of the interface it offers */
int gpu_driver_version(const struct gpu_driver *drv);

/* what the last call of this thread that failed said; never NULL */
const char *gpu_error(void);
/* the same text in another thread; nothing is logged */
void gpu_keep_error(const char *text);
/* log @fmt as an error, and keep it for gpu_error(); returns @r */
int gpu_fail(int r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* -- devices ------------------------------------------------------------------------------------- */

#define GPU_UUID_TEXT 41
#define GPU_MAX       64

struct gpu_info {
	uint8_t uuid[16];
	char name[96];
	char pci[24];
	uint64_t total_bytes;
	unsigned ordinal, major, minor; /* compute capability */
};

unsigned gpu_count(const struct gpu_driver *drv);
/* 0 ≤ ordinal < gpu_count() */
const struct gpu_info *gpu_device(const struct gpu_driver *drv, unsigned ordinal);
/* its ordinal, or -ENODEV (not logged) */
int gpu_find(const struct gpu_driver *drv, const uint8_t uuid[16]);

/* "GPU-01234567-89ab-…" and back. Return: 0 or -EINVAL */
const char *gpu_uuid_text(const uint8_t uuid[16], char ret[GPU_UUID_TEXT]);
int gpu_uuid_parse(const char *text, uint8_t ret[16]);

/* an open device: holds its primary context, which it shares with everything else in the process */
struct gpu;
int gpu_open(struct gpu_driver *drv, unsigned ordinal, struct gpu **ret);
void gpu_close(struct gpu *gpu);
const struct gpu_info *gpu_info(const struct gpu *gpu);
bool gpu_lost(const struct gpu *gpu);
int gpu_free_bytes(struct gpu *gpu, uint64_t *ret_free, uint64_t *ret_total);

/* -- memory: an allocation is made, an address range reserved, one mapped into the other ------------ */

/* sizes and addresses below are multiples of this */
uint64_t gpu_granularity(const struct gpu *gpu);

/*
 * gpu_reserve - an address range without memory
 * @addr:  0, or where it has to be: the driver takes it as a hint, anything else than that address is -EADDRINUSE
 */
int gpu_reserve(struct gpu *gpu, uint64_t addr, uint64_t size, uint64_t *ret_addr);
int gpu_unreserve(struct gpu *gpu, uint64_t addr, uint64_t size);
/* memory; its content is not defined. @export: can be handed to other processes */
int gpu_create(struct gpu *gpu, uint64_t size, bool export, uint64_t *ret_handle);
int gpu_release(struct gpu *gpu, uint64_t handle);
/* the whole allocation at @addr, for this device to read and write; stays when the handle is released */
int gpu_map(struct gpu *gpu, uint64_t addr, uint64_t size, uint64_t handle);
int gpu_unmap(struct gpu *gpu, uint64_t addr, uint64_t size);
/* a descriptor (close-on-exec, the caller closes it), and an allocation from one */
int gpu_export(struct gpu *gpu, uint64_t handle, int *ret_fd);
int gpu_import(struct gpu *gpu, int fd, uint64_t *ret_handle);

/* memory whose address the driver chooses */
int gpu_alloc(struct gpu *gpu, uint64_t size, uint64_t *ret_addr);
int gpu_free(struct gpu *gpu, uint64_t addr);

/* -- pinned host memory ---------------------------------------------------------------------------- */

int gpu_host_alloc(struct gpu *gpu, size_t size, void **ret);
int gpu_host_free(struct gpu *gpu, void *ptr);
/* pin memory that exists. Pages of files are refused: -EINVAL */
int gpu_host_register(struct gpu *gpu, void *ptr, size_t size);
int gpu_host_unregister(struct gpu *gpu, void *ptr);

/* -- streams: what is put into one is done in order, later -------------------------------------------- */

struct gpu_stream;
struct gpu_event;
int gpu_stream_new(struct gpu *gpu, struct gpu_stream **ret);
int gpu_stream_free(struct gpu *gpu, struct gpu_stream *stream);
int gpu_stream_wait(struct gpu *gpu, struct gpu_stream *stream);
/* host memory must be pinned and left alone until an event behind the copy is reached */
int gpu_copy_in(struct gpu *gpu, uint64_t to, const void *from, size_t len, struct gpu_stream *stream);
int gpu_copy_out(struct gpu *gpu, void *to, uint64_t from, size_t len, struct gpu_stream *stream);
int gpu_zero(struct gpu *gpu, uint64_t addr, uint64_t len, struct gpu_stream *stream);

int gpu_event_new(struct gpu *gpu, struct gpu_event **ret);
int gpu_event_free(struct gpu *gpu, struct gpu_event *event);
int gpu_event_put(struct gpu *gpu, struct gpu_event *event, struct gpu_stream *stream);
/* sleeps until the stream has come to where the event was put; the error of anything before it */
int gpu_event_wait(struct gpu *gpu, struct gpu_event *event);

#endif
