/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An open image: the reader that fs, restore, gpu and the command line share.
 *
 * Opening reads and checks header, footer and the hashes of the index blocks; index blocks themselves are
 * read and checked on first use and then stay. Entries are checked when they are used, so whatever an image
 * contains no call here reads outside its bounds, loops for ever or takes memory beyond the index it
 * touches; image_check() (verify.h) looks at everything.
 *
 * Errors are negative errno: -EBADMSG the image is damaged, -EPROTONOSUPPORT too new, -EIO and others from the
 * source, -ENOMEM, -ENOENT where stated. Damage in header, footer and index is logged once, by the function that
 * meets it, naming image and offset; damage in chunk data is not logged but described in the reader context
 * (struct chunk_ctx), because only the caller knows which member it was reading.
 *
 * Every function may be called by several threads on one image at the same time, except image_close().
 * Pointers to names and strings in results live as long as the image; they are not terminated by NUL.
 */
#ifndef THAW_IMGFMT_IMAGE_H
#define THAW_IMGFMT_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "imgfmt/format.h"
#include "imgfmt/source.h"

struct image;

struct image_opts {
	/* directories to look for bases in, after the image's own; NULL-terminated or NULL */
	const char *const *base_path;
	bool quiet; /* log nothing; for probing */
};

/*
 * image_open - open an image file
 * @opts:  may be NULL
 * Return: 0, -EBADMSG, -EPROTONOSUPPORT, -errno of the source
 */
int image_open(const char *path, const struct image_opts *opts, struct image **ret);

/* the same from a source, which the image then owns (closed also on failure); bases only from base_path */
int image_open_source(struct source *src, const struct image_opts *opts, struct image **ret);

/* NULL is fine; closes the bases too. No call may be under way. */
void image_close(struct image *img);

/* plain numbers of an open image, in host order */
struct image_info {
	uint8_t id[16];
	uint32_t version, incompat, compat;
	uint32_t chunk_size;
	uint64_t file_size, data_end;
	uint64_t n_chunks, n_inodes, n_names, n_extents, n_spaces, n_regions, n_segments, n_bases;
	uint64_t index_bytes; /* all sections */
	uint64_t logical_bytes, hole_bytes, chunk_bytes, stored_bytes, base_bytes, dup_bytes;
	uint64_t n_chunks_raw, n_chunks_zstd, n_chunks_lz4, n_chunks_shuffled, n_chunks_base;
	uint64_t n_files, n_dirs;
};
const struct image_info *image_info(const struct image *img);
const char *image_path(const struct image *img); /* as given to image_open, or the source's name */
struct source *image_source(struct image *img);

/* 32 hexadecimal digits and NUL */
void image_id_text(const uint8_t id[16], char ret_text[33]);

/* the PROPERTIES bytes (length 0 if there are none) */
int image_properties(struct image *img, const char **ret_json, size_t *ret_len);

/* -- files ------------------------------------------------------------------------------------ */

struct image_inode {
	uint32_t ino, mode, nlink, uid, gid, mtime_nsec, rdev_major, rdev_minor, parent, format, n_xattrs;
	int64_t mtime_sec;
	uint64_t size, hole_bytes, first_xattr, first, count;
};
#define IMAGE_ROOT 0u

/* Return: 0, -ENOENT if there is no such inode, -EBADMSG */
int image_inode(struct image *img, uint32_t ino, struct image_inode *ret);

struct image_dirent {
	uint32_t ino;
	const char *name;
	uint32_t len;
};

/* find a name in a directory. Return: 0, -ENOENT, -ENOTDIR, -EBADMSG */
int image_lookup(struct image *img, uint32_t dir, const char *name, size_t len, uint32_t *ret_ino);

/* the @index-th name of a directory (0 ≤ index < its count). Return: 0, -ENOENT past the end, -ENOTDIR */
int image_readdir(struct image *img, uint32_t dir, uint64_t index, struct image_dirent *ret);

/* resolve "a/b/c" from the root, not following symlinks; "" and "/" are the root */
int image_walk(struct image *img, const char *path, uint32_t *ret_ino);

/*
 * image_inode_path - a path from the root by which @ino is reachable (the first name for hard links)
 * @ret:  allocated, the caller frees. Costs O(names) for anything but directories: for messages
 */
int image_inode_path(struct image *img, uint32_t ino, char **ret);

int image_readlink(struct image *img, uint32_t ino, const char **ret_target, size_t *ret_len);

struct image_xattr {
	const char *name;
	const void *value;
	uint32_t name_len, value_len;
};
int image_xattr(struct image *img, const struct image_inode *inode, uint32_t index, struct image_xattr *ret);

/* -- where bytes are -------------------------------------------------------------------------- */

enum run_kind { RUN_DATA, RUN_HOLE, RUN_ABSENT };

/*
 * A run of a file or view: [off, off + len) is one piece of one chunk, or a hole, or absent. Holes and absent
 * runs are as long as the index shows in one step; neighbours may be of the same kind.
 */
struct image_run {
	uint64_t off, len;
	enum run_kind kind;
	uint32_t chunk, chunk_off; /* RUN_DATA: in @img */
	struct image *img;         /* whose chunk: the image itself, or one of its bases */
};

/*
 * image_map - the run of file @ino that holds @off; starts at @off
 * Return: 0, -ENXIO if off is at or past the end, -EISDIR/-EINVAL (not a file), -EBADMSG
 */
int image_map(struct image *img, uint32_t ino, uint64_t off, struct image_run *ret);

/* lseek(2): next data or hole at or after @off. -ENXIO as lseek has it */
int image_seek(struct image *img, uint32_t ino, uint64_t off, bool hole, uint64_t *ret_off);

/* -- chunks ----------------------------------------------------------------------------------- */

struct image_chunk {
	uint64_t stored_off, hash;
	uint32_t stored_len, logical_len;
	uint8_t codec, shuffle;
	uint16_t base; /* k > 0: stored_off is the index in the k-th base */
};
int image_chunk(struct image *img, uint32_t chunk, struct image_chunk *ret);

/*
 * What one thread needs to decode chunks of any image. chunk_ctx_new(): NULL means -ENOMEM. After an error @error
 * says what was wrong, with the offset in the image file, without the image's name.
 */
struct chunk_ctx;
struct chunk_ctx *chunk_ctx_new(void);
void chunk_ctx_free(struct chunk_ctx *ctx);
const char *chunk_ctx_error(const struct chunk_ctx *ctx);

/*
 * image_chunk_read - read, decode and check one chunk
 * @buf:      room for image_info()->chunk_size bytes of the image
 * @ret_len:  its logical length; may be NULL
 * Return: 0; -EBADMSG damaged; -ENOENT a base is missing; -EIO and others from the source; -ENOMEM.
 * @buf holds rubbish after an error.
 */
int image_chunk_read(struct image *img, struct chunk_ctx *ctx, uint32_t chunk, void *buf, uint32_t *ret_len);

/*
 * image_chunk_resolve - where a chunk is really stored (in the image or a base): the key for a cache that several
 * images share. Opens the base if need be.
 */
int image_chunk_resolve(struct image *img, uint32_t chunk, struct image **ret_img, uint32_t *ret_chunk);

/*
 * image_read - bytes of a file or (space ≥ 0) of a view, decoding as needed; for small uses and tests
 * Return: 0; -ENODATA if an absent byte is in the range; -ENXIO if the range passes the end of the file
 */
int image_read(struct image *img, struct chunk_ctx *ctx, uint32_t ino, uint64_t off, void *buf, size_t len);
int image_read_view(struct image *img, struct chunk_ctx *ctx, uint32_t space, uint64_t addr, void *buf, size_t len);

/* -- address spaces --------------------------------------------------------------------------- */

struct image_space {
	const char *name;
	uint32_t name_len, kind, ino, pid, n_regions, n_segments;
	uint64_t first_region, first_segment;
};
int image_space(struct image *img, uint32_t space, struct image_space *ret);
/* Return: 0 or -ENOENT */
int image_space_find(struct image *img, const char *name, size_t len, uint32_t *ret_space);

struct image_region {
	uint64_t addr, len, pgoff; /* addr + len may be 2^64, that is wrap to 0 */
	uint32_t prot, flags, name_len;
	const char *name;
};
/* the @index-th region of a space */
int image_region(struct image *img, const struct image_space *space, uint32_t index, struct image_region *ret);

struct image_segment {
	uint64_t addr, len, off;
	uint32_t ino;
	uint8_t kind; /* enum thaw_segment_kind */
	uint16_t base;
};
int image_segment(struct image *img, const struct image_space *space, uint32_t index, struct image_segment *ret);

/* index of the first region / segment that ends after @addr; n_regions / n_segments if none */
int image_region_at(struct image *img, const struct image_space *space, uint64_t addr, uint32_t *ret_index);
int image_segment_at(struct image *img, const struct image_space *space, uint64_t addr, uint32_t *ret_index);

/*
 * image_map_view - the run of an address space that holds @addr; starts at @addr
 * Addresses that no segment covers are RUN_HOLE up to the next segment or 2^63.
 * A base that is missing: -ENOENT.
 */
int image_map_view(struct image *img, const struct image_space *space, uint64_t addr, struct image_run *ret);

/* one past the last byte of the last segment or region below 2^63: the size of the view as a file */
int image_view_size(struct image *img, const struct image_space *space, uint64_t *ret_size);

/* -- bases ------------------------------------------------------------------------------------ */

struct image_base {
	uint8_t id[16];
	const char *name;
	uint32_t name_len;
};
/* @index from 0; segment.base and chunk.base are one more */
int image_base(struct image *img, uint32_t index, struct image_base *ret);
/* open (once, shared) the base; -ENOENT if it is nowhere, logged once with its id and name */
int image_base_open(struct image *img, uint32_t index, struct image **ret);

/*
 * image_each_needed - call @fn for @img, its bases, theirs and so on, each once; those that are not there are left out
 * without a word
 * @fn: returns 0, or what image_each_needed() is to return. Return: 0, -ENOMEM, -EBADMSG
 */
int image_each_needed(struct image *img, int (*fn)(void *ctx, struct image *img), void *ctx);

#endif
