/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Use every reading call of image.h on everything an image has, and keep a hash of what each thing looked like, or the
 * error. For tests of damaged images: nothing may crash or hang, and what is not an error must be right.
 */
#ifndef THAW_TESTS_READALL_H
#define THAW_TESTS_READALL_H

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "common/bytes.h"
#include "imgfmt/image.h"
#include "tests/test.h"

struct seen {
	int r;
	uint64_t hash;
};

/* what was seen of each inode and space: metadata, names or target, xattrs, content */
enum { SEEN_META, SEEN_NAMES, SEEN_XATTRS, SEEN_CONTENT, SEEN_KINDS };

struct readall {
	struct image *img;
	struct chunk_ctx *ctx;
	uint8_t *buf;
	uint64_t max_runs; /* of one file or view: an image may say that it has 2^60 bytes */
	uint32_t max_items;
	/* what STRINGS is in memory, if the test knows: all strings must lie in it (their page goes on behind it) */
	const char *strings;
	uint64_t strings_len;
};

static inline void seen_string(const struct readall *ra, const void *s, uint64_t len)
{
	const char *at = s;

	if (ra->strings && len)
		CHECK(at >= ra->strings && range_inside((uint64_t)(at - ra->strings), len, ra->strings_len));
}

static inline uint64_t seen_add(uint64_t hash, const void *data, size_t len)
{
	return XXH3_64bits_withSeed(data, len, hash);
}

/* a run of holes hashes alike however it is cut */
struct run_hash {
	uint64_t hash, hole;
	bool absent;
};

static inline void run_hash_end(struct run_hash *h)
{
	const uint64_t what[2] = { h->hole, h->absent };

	if (h->hole)
		h->hash = seen_add(h->hash, what, sizeof(what));
	h->hole = 0;
}

static inline int run_hash_add(struct readall *ra, struct run_hash *h, const struct image_run *run)
{
	uint32_t len;
	int r;

	if (run->kind != RUN_DATA) {
		if (h->absent != (run->kind == RUN_ABSENT))
			run_hash_end(h);
		h->absent = run->kind == RUN_ABSENT;
		h->hole += run->len;
		return 0;
	}
	run_hash_end(h);
	r = image_chunk_read(run->img, ra->ctx, run->chunk, ra->buf, &len);
	if (r)
		return r;
	CHECK(len <= image_info(run->img)->chunk_size);
	CHECK(range_inside(run->chunk_off, run->len, len));
	h->hash = seen_add(h->hash, ra->buf + run->chunk_off, run->len);
	return 0;
}

static inline struct seen seen_file(struct readall *ra, uint32_t ino, uint64_t size)
{
	struct run_hash h = { 0 };
	struct image_run run;
	uint64_t at = 0, next;
	int r = 0;

	for (uint64_t n = 0; at < size && n < ra->max_runs && !r; n++) {
		r = image_map(ra->img, ino, at, &run);
		if (r)
			break;
		CHECK(run.off == at && run.len > 0 && run.len <= size - at);
		r = run_hash_add(ra, &h, &run);
		at += run.len;
	}
	run_hash_end(&h);
	if (!r) {
		r = image_seek(ra->img, ino, 0, true, &next);
		CHECK(r || next <= size);
		r = r == -ENXIO && !size ? 0 : r;
	}
	if (!r && size) {
		size_t len = (size_t)min_u64(size, 5000);

		r = image_read(ra->img, ra->ctx, ino, size - len, ra->buf, len);
		h.hash = r ? 0 : seen_add(h.hash, ra->buf, len);
	}
	return (struct seen){ r, h.hash };
}

static inline struct seen seen_names(struct readall *ra, uint32_t ino, const struct image_inode *inode)
{
	struct seen s = { 0 };
	struct image_inode child;
	struct image_dirent d;
	const char *target;
	size_t len;
	uint32_t found;

	if (S_ISLNK(inode->mode)) {
		s.r = image_readlink(ra->img, ino, &target, &len);
		if (!s.r)
			seen_string(ra, target, len);
		s.hash = s.r ? 0 : seen_add(0, target, len);
	}
	if (!S_ISDIR(inode->mode))
		return s;
	for (uint64_t i = 0; i < min_u64(inode->count, ra->max_items) && !s.r; i++) {
		s.r = image_readdir(ra->img, ino, i, &d);
		if (s.r)
			break;
		CHECK(d.len > 0 && d.len <= 255 && !memchr(d.name, '/', d.len) && !memchr(d.name, 0, d.len));
		seen_string(ra, d.name, d.len);
		/* or a walk through the tree might not end */
		if (image_inode(ra->img, d.ino, &child) == 0 && S_ISDIR(child.mode))
			CHECK(d.ino > ino && child.parent == ino);
		s.hash = seen_add(seen_add(s.hash, &d.ino, 4), d.name, d.len);
		/* names out of order are damage that only image_check() sees, but they are found or not, no more */
		s.r = image_lookup(ra->img, ino, d.name, d.len, &found);
		if (s.r == -ENOENT)
			s.r = 0;
	}
	return s;
}

static inline struct seen seen_xattrs(struct readall *ra, const struct image_inode *inode)
{
	struct seen s = { 0 };
	struct image_xattr x;

	for (uint32_t i = 0; i < min_u64(inode->n_xattrs, ra->max_items) && !s.r; i++) {
		s.r = image_xattr(ra->img, inode, i, &x);
		if (s.r)
			break;
		seen_string(ra, x.name, x.name_len);
		seen_string(ra, x.value, x.value_len);
		s.hash = seen_add(seen_add(s.hash, x.name, x.name_len), x.value, x.value_len);
	}
	return s;
}

static inline void seen_inode(struct readall *ra, uint32_t ino, struct seen seen[SEEN_KINDS])
{
	struct image_inode inode;
	char *path = NULL;
	int r;

	memset(&inode, 0, sizeof(inode)); /* padding is hashed too */
	r = image_inode(ra->img, ino, &inode);
	for (int k = 0; k < SEEN_KINDS; k++)
		seen[k] = (struct seen){ .r = r };
	if (r)
		return;
	seen[SEEN_META].hash = seen_add(0, &inode.mode, 4);
	const uint64_t fields[] = { inode.nlink,      inode.uid, inode.gid, (uint64_t)inode.mtime_sec,
				    inode.mtime_nsec, inode.size };
	seen[SEEN_META].hash = seen_add(seen[SEEN_META].hash, fields, sizeof(fields));
	seen[SEEN_NAMES] = seen_names(ra, ino, &inode);
	seen[SEEN_XATTRS] = seen_xattrs(ra, &inode);
	seen[SEEN_CONTENT] = S_ISREG(inode.mode) ? seen_file(ra, ino, inode.size) : (struct seen){ 0 };
	r = image_inode_path(ra->img, ino, &path);
	if (r)
		seen[SEEN_META] = (struct seen){ .r = r };
	free(path);
}

static inline struct seen seen_view(struct readall *ra, const struct image_space *space)
{
	struct run_hash h = { 0 };
	struct image_run run;
	uint64_t at = 0, size;
	int r = image_view_size(ra->img, space, &size);

	for (uint64_t n = 0; !r && at < size && n < ra->max_runs; n++) {
		r = image_map_view(ra->img, space, at, &run);
		if (r)
			break;
		CHECK(run.off == at && run.len > 0);
		r = run_hash_add(ra, &h, &run);
		at += run.len;
	}
	run_hash_end(&h);
	return (struct seen){ r, r ? 0 : seen_add(h.hash, &size, 8) };
}

static inline void seen_space(struct readall *ra, uint32_t i, struct seen seen[SEEN_KINDS])
{
	struct image_space s;
	struct seen regions = { 0 }, segments = { 0 };
	int r = image_space(ra->img, i, &s);

	for (int k = 0; k < SEEN_KINDS; k++)
		seen[k] = (struct seen){ .r = r };
	if (r)
		return;
	seen_string(ra, s.name, s.name_len);
	seen[SEEN_META].hash = seen_add(s.pid + s.kind, s.name, s.name_len);
	for (uint32_t k = 0; k < min_u64(s.n_regions, ra->max_items) && !regions.r; k++) {
		struct image_region g;

		regions.r = image_region(ra->img, &s, k, &g);
		if (regions.r)
			break;
		seen_string(ra, g.name, g.name_len);
		regions.hash = seen_add(regions.hash, g.name, g.name_len);
		regions.hash = seen_add(regions.hash, (uint64_t[]){ g.addr, g.len, g.pgoff, g.prot, g.flags }, 40);
	}
	for (uint32_t k = 0; k < min_u64(s.n_segments, ra->max_items) && !segments.r; k++) {
		struct image_segment g;

		segments.r = image_segment(ra->img, &s, k, &g);
		if (!segments.r)
			segments.hash = seen_add(segments.hash,
						 (uint64_t[]){ g.addr, g.len, g.off, g.ino, g.kind, g.base }, 48);
	}
	seen[SEEN_NAMES] = regions;
	seen[SEEN_XATTRS] = segments;
	seen[SEEN_CONTENT] = seen_view(ra, &s);
}

/* how many struct seen[SEEN_KINDS] readall() fills */
static inline size_t readall_items(struct readall *ra)
{
	const struct image_info *info = image_info(ra->img);

	return (size_t)(min_u64(info->n_inodes, ra->max_items) + min_u64(info->n_spaces, ra->max_items));
}

/* @ret: room for readall_items() */
static inline void readall(struct readall *ra, struct seen (*ret)[SEEN_KINDS])
{
	const struct image_info *info = image_info(ra->img);
	size_t n = 0;

	for (uint32_t i = 0; i < min_u64(info->n_inodes, ra->max_items); i++)
		seen_inode(ra, i, ret[n++]);
	for (uint32_t i = 0; i < min_u64(info->n_spaces, ra->max_items); i++)
		seen_space(ra, i, ret[n++]);
}

#endif
