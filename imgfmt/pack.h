/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packing: a file or directory tree becomes one image. One call, synchronous, many threads inside; the
 * process may run several at once. The image appears under its name complete or not at all.
 */
#ifndef THAW_IMGFMT_PACK_H
#define THAW_IMGFMT_PACK_H

#include <stdbool.h>
#include <stdint.h>

enum pack_codec { PACK_ZSTD, PACK_LZ4, PACK_RAW };

struct pack_opts {
	const char *src;          /* file or directory */
	const char *out;          /* path of the image; "-": standard output */
	enum pack_codec codec;    /* 0: zstd */
	int level;                /* -7 (fastest) to 19 for zstd, 1 (fast) to 12 for LZ4. 0: the default (1; LZ4: 3) */
	bool no_filter;           /* never shuffle bytes */
	unsigned threads;         /* 0: as many as processors */
	uint32_t chunk_size;      /* 0: 256 KiB */
	const char *const *bases; /* paths of base images, NULL-terminated; or NULL */
	const char *const *base_path;         /* directories where their own bases may be, NULL-terminated; or NULL */
	bool gunzip;                          /* store gzip DMTCP images uncompressed */
	bool verify;                          /* read everything again before publishing */
	bool no_fsync;                        /* for tests and benchmarks only */
	bool add_creator, add_host, add_time; /* put them into the properties */
	/*
	 * Go on with what an earlier run with @resume left of this image, and leave it again when stopped, or when
	 * source or output fail in a way that may pass. Chunks that are there already are used where the source still
	 * has the same bytes. Not for standard output.
	 */
	bool resume;
	uint64_t rate;    /* bytes a second that are written at most; 0: no limit */
	unsigned retries; /* of a write that fails in a way that may pass */
	/* called now and then with bytes of source done and in all; from the packing thread; may be NULL */
	void (*progress)(void *ctx, uint64_t done, uint64_t total);
	void *progress_ctx;
	/* set by a signal handler: give up cleanly with -EINTR at the next chunk; may be NULL */
	const volatile int *stop;
};

struct pack_result {
	uint8_t id[16];
	uint64_t logical_bytes, hole_bytes, dup_bytes, base_bytes, stored_bytes, image_bytes;
	uint64_t n_files, n_chunks;
	uint64_t resumed_bytes; /* logical bytes of chunks that an earlier run had stored */
};

/*
 * pack - see above. Messages are logged, also for what parsers did not understand (one line each).
 * Return: 0; -EBUSY another pack of this name runs; -EAGAIN the source changed while it was read; -EINTR;
 * -errno of source or output. On failure nothing stands under the name but what stood there before.
 */
int pack(const struct pack_opts *opts, struct pack_result *ret);

#endif
