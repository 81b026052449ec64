/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What there is to know about device buffers so that they can be put back: the GPUs they were on and a record for each.
 * It stands in an image as the file gpu/manifest.json beside the files with the bytes (docs/GPU.md). Not thread-safe.
 */
#ifndef THAW_GPU_MANIFEST_H
#define THAW_GPU_MANIFEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "gpu/driver.h"

#define GPU_MANIFEST_DIR         "gpu"
#define GPU_MANIFEST_NAME        "manifest.json"
#define GPU_MANIFEST_MAX         (64u << 20) /* bytes of it */
#define GPU_MANIFEST_MAX_BUFFERS 65536u
#define GPU_ID_MAX               200u

enum gpu_kind {
	GPU_PLAIN, /* its address was the driver's choice */
	GPU_VMM,   /* memory mapped at an address of the program's choice */
};

struct gpu_buffer {
	char *id;      /* gpu_id_good(), unique */
	char *process; /* whose it was, or NULL */
	uint32_t gpu;  /* index in the manifest's GPUs */
	enum gpu_kind kind;
	uint64_t va;                         /* device address */
	uint64_t size;                       /* as the program asked for it; may be 0 */
	uint64_t mapped_size;                /* 0 or at least size */
	uint64_t reserved_va, reserved_size; /* the range it lay in; 0: as mapped */
	uint64_t granularity;
	bool exportable;
	bool discardable;  /* its content need not come back: it is stored as a hole */
	uint64_t access;   /* bit i: GPU i may use it */
	char *shared_with; /* id of a buffer that is the same memory, or NULL */
	char *file;        /* name beside the manifest */
	uint64_t offset;   /* in that file */
	bool has_checksum;
	uint8_t checksum[16]; /* XXH3-128 of the size bytes, in canonical order */
};

struct gpu_manifest {
	struct gpu_info *gpus;
	size_t n_gpus;
	struct gpu_buffer *buffers;
	size_t n_buffers;
};

/* 1 to GPU_ID_MAX of letters, digits, '.', '_', '-', not a dot first, and not the manifest's own name */
bool gpu_id_good(const char *id);

/*
 * gpu_manifest_parse - read and check all of it
 * @name:  for messages
 * @ret:   given to gpu_manifest_release() by the caller
 * Return: 0; -EBADMSG it is not as it should be, logged; -EPROTONOSUPPORT a later version; -ENOMEM
 */
int gpu_manifest_parse(const char *name, const char *json, size_t len, struct gpu_manifest *ret);
void gpu_manifest_write(const struct gpu_manifest *m, FILE *out);
void gpu_manifest_release(struct gpu_manifest *m);

/* a new record at the end, zeroed; NULL: out of memory */
struct gpu_buffer *gpu_manifest_add(struct gpu_manifest *m);
/* the index of a GPU, added if it is not there yet; -ENOMEM, -E2BIG */
int gpu_manifest_add_gpu(struct gpu_manifest *m, const struct gpu_info *info);

#endif
