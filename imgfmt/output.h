/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file an image is written to: a temporary name beside the final one, locked against a second writer, and
 * published by fsync, rename and fsync of the directory; or standard output. Not thread-safe, except
 * output_read_back() beside output_write().
 */
#ifndef THAW_IMGFMT_OUTPUT_H
#define THAW_IMGFMT_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

struct output {
	int fd;
	bool seekable; /* a file of ours: can be read back */
	uint64_t pos;
	uint64_t flushed; /* write-out was started up to here */
	const char *name; /* for messages: what the user said */
	char *path, *tmp; /* final and temporary name; NULL for standard output */
	char *dir;
	/* set by the caller after opening, if at all */
	uint64_t rate;                /* bytes a second that are written at most; 0: as many as go */
	unsigned retries;             /* how often a write that failed for a reason that may pass is tried again */
	const volatile int *stop;     /* ends waiting */
	bool keep;                    /* do not remove the temporary file */
	bool suspect;                 /* the disk may not have what was written: keeping it is no use */
	uint64_t start_ns, start_pos; /* for @rate */
	dev_t dir_dev;                /* of the directory, so that a pack of it leaves both names out */
	ino_t dir_ino;
	bool keep_tmp; /* what stands under the temporary name is somebody's input: leave it */
};

/*
 * output_open - lock the temporary name ".NAME.partial" beside @path ("-": standard output); what a pack that was
 * killed left there goes away with the first write, unless output_continue_at() comes before
 * Return: 0; -EBUSY another writer has it; -errno. Logged. output_close() is to be called in any case.
 */
int output_open(struct output *out, const char *path);

/* cut off what stands behind @pos, and append there. Return: 0 or -errno, logged */
int output_continue_at(struct output *out, uint64_t pos);

/* the last parts of both names; only when seekable */
const char *output_base_name(const struct output *out);
const char *output_temporary_name(const struct output *out);

enum output_place { OUTPUT_ELSEWHERE, OUTPUT_FINAL, OUTPUT_TEMPORARY };

/*
 * output_place - would the file @path, which is @st, be lost by publishing or writing?
 * Another name of the same file, a hard link, is not lost. A file in the temporary place is left there from now on,
 * as long as nothing is written.
 */
enum output_place output_place(struct output *out, const char *path, const struct stat *st);

/* append; waits as @rate and @retries have it. Return: 0; -EINTR @stop came while it waited; -errno, logged */
int output_write(struct output *out, const void *buf, size_t len);

/* append zeros up to the next multiple of @align */
int output_align(struct output *out, uint64_t align);

/* bytes written earlier; only when seekable. Return: 0 or -errno, not logged */
int output_read_back(const struct output *out, void *buf, size_t len, uint64_t off);

/* make what was written stand under its name; @fsync false: without waiting for the disk */
int output_publish(struct output *out, bool fsync);

/* remove the temporary file if it was not published, unless it is to be kept and is worth it */
void output_close(struct output *out);

#endif
