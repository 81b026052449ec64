/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device buffers into an image, and back: the interface for programs that save and load their own GPU memory, under
 * `thawfs gpu save` and `load`. The image holds gpu/manifest.json and the buffers' bytes as files beside it
 * (docs/GPU.md); it can be inspected, verified, mounted and packed again like any other.
 *
 * Calls are synchronous, use threads of their own, and leave the calling thread's current context alone. Several may
 * run at once. Failures are logged; gpu_error() has the first. -EBADMSG: the image is damaged; else as driver.h says.
 */
#ifndef THAW_RESTORE_GPU_IMAGE_H
#define THAW_RESTORE_GPU_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu/manifest.h"
#include "gpu/pipe.h"
#include "imgfmt/pack.h"

/* a buffer of this process */
struct thaw_gpu_buffer {
	const char *id;   /* as gpu_id_good() wants it; unique */
	unsigned ordinal; /* of its GPU */
	uint64_t addr, size;
	uint64_t mapped_size; /* 0: not mapped by the program, the address was the driver's choice (cuMemAlloc) */
	uint64_t reserved_addr, reserved_size; /* the reservation it lies in; 0: itself */
	bool exportable;
	bool discardable; /* its content is not wanted back: saved as a hole, zeros when loaded */
};

struct thaw_gpu_save_opts {
	enum pack_codec codec;
	int level;        /* 0: the default */
	unsigned threads; /* that compress; 0: as many as processors */
	bool verify, no_fsync;
	const char *process;       /* whose they are, for the record; NULL: not said */
	struct gpu_pipe_opts pipe; /* zeros: the defaults */
	const volatile int *stop;
	struct gpu_profile *profile; /* added to; may be NULL */
};

/* save all, or nothing: the image appears complete. @ret may be NULL */
int thaw_gpu_save(struct gpu_driver *drv, const char *image, const struct thaw_gpu_buffer *buffers, size_t n_buffers,
		  const struct thaw_gpu_save_opts *opts, struct pack_result *ret);

/* a GPU of the image, and which to use instead */
struct thaw_gpu_map {
	uint8_t from[16], to[16];
};

struct thaw_gpu_load_opts {
	const struct thaw_gpu_map *map; /* if there are any, they name every GPU of the image */
	size_t n_map;
	const char *const *base_path; /* directories with bases of the image, NULL-terminated; or NULL */
	unsigned threads;           /* that decode, for all GPUs together; 0: processors, less two if there are many */
	bool anywhere;              /* do not insist on the addresses that buffers had */
	bool other_chip;            /* load on another kind of GPU */
	bool read_back;             /* read all back from the GPU and compare with the checksums */
	const char *helper;         /* socket of `thawfs gpu serve`, which copies instead of this process; or NULL */
	unsigned helper_timeout_ms; /* 0: none */
	bool exportable;            /* make all so that they can be handed to other processes */
	struct gpu_pipe_opts pipe;
	const volatile int *stop;
	struct gpu_profile *profile;      /* added to; may be NULL */
	struct gpu_profile *back_profile; /* the same for reading back */
};

struct thaw_gpu_loaded_buffer {
	const char *id;
	unsigned ordinal;
	uint64_t addr, size;
	uint64_t mapped_size; /* 0 for a buffer of no bytes */
	uint64_t handle;      /* the allocation; 0: plain memory */
};

struct thaw_gpu_loaded {
	struct gpu_driver *drv;
	const struct thaw_gpu_loaded_buffer *buffers; /* in the order of the manifest */
	size_t n_buffers;
};

/*
 * thaw_gpu_load - put all buffers of an image on GPUs of this process
 * @path:  an image, or a directory that holds gpu/ (of a mount, for instance)
 * Nothing is written unless all GPUs are there and of the same kind, have room, and all addresses could be reserved;
 * everything is released when a copy fails. Buffers at addresses of the program's choice come back there, others
 * anywhere.
 */
int thaw_gpu_load(struct gpu_driver *drv, const char *path, const struct thaw_gpu_load_opts *opts,
		  struct thaw_gpu_loaded **ret);

/* the same for plain files, as buffers of GPU @ordinal whose ids are the files' names */
int thaw_gpu_load_files(struct gpu_driver *drv, const char *const *paths, size_t n_paths, unsigned ordinal,
			enum gpu_kind kind, const struct thaw_gpu_load_opts *opts, struct thaw_gpu_loaded **ret);

/* release all that was loaded; NULL is fine. 0, or what the driver said while giving back */
int thaw_gpu_unload(struct thaw_gpu_loaded *loaded);

#endif
