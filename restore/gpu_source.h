/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the bytes of device buffers come from: the files beside gpu/manifest.json, in an image, from which chunks are
 * decoded and checked straight into the buffer they are wanted in; or in a directory, for instance of a mount, from
 * which they are read. Several threads may read, each with its own number.
 */
#ifndef THAW_RESTORE_GPU_SOURCE_H
#define THAW_RESTORE_GPU_SOURCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gpu_source;

/* @path: an image file, or a directory that holds gpu/. @threads: how many will read. Logged */
int gpu_source_open(const char *path, const char *const *base_path, unsigned threads, struct gpu_source **ret);
/* the same for files given by their paths instead of names beside a manifest: gpu_source_find() takes any path */
int gpu_source_open_files(unsigned threads, struct gpu_source **ret);
void gpu_source_close(struct gpu_source *s);
/* for messages, when it was opened by a path that says nothing. -ENOMEM */
int gpu_source_rename(struct gpu_source *s, const char *name);

/* allocated text of the manifest. -ENOENT: there are no device buffers; logged */
int gpu_source_manifest(struct gpu_source *s, char **ret, size_t *ret_len);

/* a number for the file, and its size. One thread. -ENOENT; logged */
int gpu_source_find(struct gpu_source *s, const char *file, uint32_t *ret_number, uint64_t *ret_size);

/*
 * gpu_source_run - how many bytes from @off on (at most @len) are of one kind: zeros that are not stored, or data
 * Return: 0, -ENODATA the source does not have them, -errno; logged. One call at a time
 */
int gpu_source_run(struct gpu_source *s, uint32_t number, uint64_t off, uint64_t len, uint64_t *ret_len,
		   bool *ret_zero);

/* the bytes, checked where the source can. @room ≥ len bytes may be written. Logged */
int gpu_source_read(struct gpu_source *s, unsigned thread, uint32_t number, uint64_t off, void *buf, size_t len,
		    size_t room);

#endif
