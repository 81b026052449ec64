/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the bytes of a file come from: an ops table with a positional read. The reader of images and the
 * parsers of foreign files see nothing else, so a local file, memory (tests, fuzzers) and later a URL
 * serve alike.
 *
 * A source is immutable while it is open, or else errors; its size is that at opening.
 */
#ifndef THAW_IMGFMT_SOURCE_H
#define THAW_IMGFMT_SOURCE_H

#include <stddef.h>
#include <stdint.h>

struct source;

struct source_ops {
	/*
	 * Fill @buf with the @len bytes at @off; [off, off + len) is inside the size.
	 * Return 0 or negative errno; never a part (a file that became shorter is -EIO).
	 */
	int (*pread)(struct source *src, void *buf, size_t len, uint64_t off);
	void (*close)(struct source *src);
};

struct source {
	const struct source_ops *ops;
	uint64_t size;
	const char *name; /* for messages; lives as long as the source */
};

/*
 * source_open_file - open a local regular file or block device
 * @ret:  the caller closes it with source_close()
 * Return: 0; -errno of open(2), -EISDIR, -EINVAL (neither file nor device). Nothing is logged.
 */
int source_open_file(const char *path, struct source **ret);

/* the same for a descriptor, which the source then owns (also on failure) */
int source_open_fd(int fd, const char *name, struct source **ret);

/* bytes in memory; the caller keeps them until source_close() */
int source_open_memory(const void *data, size_t size, const char *name, struct source **ret);

/* the descriptor behind a local file, for uses that need one (passthrough, O_DIRECT), or -1 */
int source_fd(const struct source *src);

/* NULL is fine */
void source_close(struct source *src);

/*
 * source_read - read exactly @len bytes at @off. Threads may share @src.
 * Return: 0; -ENODATA if the range is not inside the source; else what the source says
 */
int source_read(struct source *src, void *buf, size_t len, uint64_t off);

#endif
