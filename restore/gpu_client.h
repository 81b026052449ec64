/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The target's side of `thawfs gpu serve`: hand over exported device memory, let the helper fill it from an image, and
 * go on with other things until it says that this is done. The driver is not used here, so a target needs no more than
 * its descriptors. One thread at a time. All return 0 or -errno, logged; gpu_error() has the reason.
 */
#ifndef THAW_RESTORE_GPU_CLIENT_H
#define THAW_RESTORE_GPU_CLIENT_H

#include <stdbool.h>
#include <stdint.h>

struct gpu_client;

int gpu_client_open(const char *socket_path, struct gpu_client **ret);
/* a command under way is cancelled. NULL is fine */
void gpu_client_close(struct gpu_client *c);

/* @path: the image, or a directory that holds gpu/; opened here, with the rights of this process */
int gpu_client_begin(struct gpu_client *c, const char *path, bool other_chip);

/* fill this memory with the buffer @id of the image. @fd: exported with the driver; stays the caller's */
int gpu_client_buffer(struct gpu_client *c, const char *id, const uint8_t uuid[16], uint64_t size, uint64_t mapped_size,
		      int fd);
int gpu_client_go(struct gpu_client *c, unsigned timeout_ms);

struct gpu_client_result {
	uint64_t bytes, zero_bytes, wall_ns;
};

/*
 * gpu_client_wait - for the helper's answer
 * @stop:  not 0: cancel, and wait for the answer to that; may be NULL
 * Return: 0: all is filled; -ECANCELED, -ETIMEDOUT, -EPIPE the helper is gone, or why it failed
 */
int gpu_client_wait(struct gpu_client *c, const volatile int *stop, struct gpu_client_result *ret);

#endif
