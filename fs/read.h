/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The read path: from a range of a member or memory view to the bytes, by way of the chunk cache.
 *
 * A reader belongs to one thread. What it gathers points into pinned chunks, a page of zeros or its own buffer,
 * all of it resident memory: a reply is written to the kernel from there without another copy.
 */
#ifndef THAW_FS_READ_H
#define THAW_FS_READ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "fs/fs.h"
#include "fs/inode.h"
#include "imgfmt/image.h"

/* a file whose bytes are in chunks: a member or a view */
struct read_file {
	struct slot *slot; /* the caller keeps it */
	struct image *img;
	uint64_t node; /* its id, for the kernel */
	bool is_view;
	uint32_t number;          /* inode number, or that of the view */
	struct image_space space; /* views */
	uint64_t size;
};

/*
 * read_file_init - from a node of kind NODE_MEMBER or NODE_MEM
 * Return: 0, -EISDIR, -EINVAL (not a regular file), -ESTALE, and the errors of image.h
 */
int read_file_init(struct slot *slot, const struct node *node, struct read_file *ret);

/* the run at @off < size; a base that is missing makes an absent run */
int read_map(const struct read_file *file, uint64_t off, struct image_run *ret);

/* lseek(2) with SEEK_DATA or SEEK_HOLE. Return: 0, -ENXIO, -errno */
int read_seek(const struct read_file *file, uint64_t off, bool hole, uint64_t *ret_off);

#define READ_MAX_IOV 64

struct reader;
int reader_new(struct fs *fs, struct reader **ret);
void reader_free(struct reader *reader);

/*
 * reader_gather - the bytes [off, off + len) of a file, which lie inside its size
 * @ret_iov:  READ_MAX_IOV of them; what they point at stays until reader_release()
 * Return: their number; -EIO after logging one line and counting why; -ENOMEM
 */
int reader_gather(struct reader *reader, const struct read_file *file, uint64_t off, size_t len, struct iovec *ret_iov);
void reader_release(struct reader *reader);
/* is it worth while to push what is beside the bytes gathered last into the page cache? Their offset, or READ_NO_PUSH
 */
uint64_t reader_push_at(const struct reader *reader);
#define READ_NO_PUSH UINT64_MAX
/* was there data in what was gathered last, or only holes? */
bool reader_had_data(const struct reader *reader);

/*
 * reader_chunk - pin the chunk of a data run, decoded
 * @flags:  enum cache_flags
 * Return: 0; -EAGAIN (CACHE_NOWAIT); -EIO, logged as above, but counted only without CACHE_AHEAD: no request failed
 */
int reader_chunk(struct reader *reader, const struct read_file *file, const struct image_run *run, unsigned flags,
		 struct cache_ref **ret);

#endif
