/* SPDX-License-Identifier: Apache-2.0 */
/* Inodes, names, xattrs, and the extents of files. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/cleanup.h"
#include "common/log.h"
#include "imgfmt/chunk.h"
#include "imgfmt/image_private.h"

/* -- inodes ----------------------------------------------------------------------------------- */

static const char *inode_error(const struct image *img, const struct image_inode *i)
{
	uint64_t n_strings = index_count(&img->index, THAW_STRINGS);

	if (i->size > THAW_MAX_FILE || i->mtime_nsec >= 1000000000 || i->hole_bytes > i->size)
		return "bad size or time";
	if (!range_inside(i->first_xattr, i->n_xattrs, index_count(&img->index, THAW_XATTRS)))
		return "bad xattr range";
	switch (i->mode & S_IFMT) {
	case S_IFREG:
		if (!range_inside(i->first, i->count, index_count(&img->index, THAW_EXTENTS)) ||
		    (i->size == 0) != (i->count == 0))
			return "bad extent range";
		return NULL;
	case S_IFDIR:
		if (!range_inside(i->first, i->count, index_count(&img->index, THAW_NAMES)))
			return "bad name range";
		return i->ino && i->parent >= i->ino ? "a directory before its parent" : NULL;
	case S_IFLNK:
		if (i->size == 0 || i->size > THAW_TARGET_MAX || !range_inside(i->first, i->size, n_strings))
			return "bad symlink";
		return NULL;
	case S_IFIFO:
	case S_IFSOCK:
	case S_IFCHR:
	case S_IFBLK:
		return i->size || i->count ? "a special file with data" : NULL;
	default:
		return "unknown file type";
	}
}

int image_inode(struct image *img, uint32_t ino, struct image_inode *ret)
{
	const struct thaw_inode *e;
	struct image_inode i;
	const char *what;
	int r;

	if (ino >= index_count(&img->index, THAW_INODES))
		return -ENOENT;
	r = index_entry(&img->index, THAW_INODES, ino, (const void **)&e);
	if (r)
		return r;
	i = (struct image_inode){
		.ino = ino,
		.mode = le32_get(e->mode),
		.nlink = le32_get(e->nlink),
		.uid = le32_get(e->uid),
		.gid = le32_get(e->gid),
		.size = le64_get(e->size),
		.mtime_sec = (int64_t)le64_get(e->mtime_sec),
		.mtime_nsec = le32_get(e->mtime_nsec),
		.rdev_major = le32_get(e->rdev_major),
		.rdev_minor = le32_get(e->rdev_minor),
		.parent = le32_get(e->parent),
		.format = le32_get(e->format),
		.n_xattrs = le32_get(e->n_xattrs),
		.first_xattr = le64_get(e->first_xattr),
		.first = le64_get(e->first),
		.count = le64_get(e->count),
		.hole_bytes = le64_get(e->hole_bytes),
	};
	what = inode_error(img, &i);
	if (!what && ino == IMAGE_ROOT && !S_ISDIR(i.mode))
		what = "the root is not a directory";
	if (what)
		return index_damaged(&img->index, THAW_INODES, ino, what);
	*ret = i;
	return 0;
}

/* -- names ------------------------------------------------------------------------------------ */

static bool valid_name(const char *name, uint32_t len)
{
	if (memchr(name, '/', len) || memchr(name, '\0', len))
		return false;
	return !(len == 1 && name[0] == '.') && !(len == 2 && name[0] == '.' && name[1] == '.');
}

/* entry @i of NAMES, which must be in directory @dir */
static int read_name(struct image *img, uint32_t dir, uint64_t i, struct image_dirent *ret)
{
	const struct thaw_name *e;
	struct image_dirent d;
	int r = index_entry(&img->index, THAW_NAMES, i, (const void **)&e);

	if (r)
		return r;
	d.ino = le32_get(e->inode);
	d.len = le32_get(e->name_len);
	if (le32_get(e->parent) != dir || d.ino == IMAGE_ROOT || d.ino >= index_count(&img->index, THAW_INODES))
		return index_damaged(&img->index, THAW_NAMES, i, "bad parent or inode");
	r = d.len && d.len <= THAW_NAME_MAX ? image_string(img, le64_get(e->name_off), d.len, &d.name) : -EBADMSG;
	if (r && r != -EBADMSG)
		return r;
	if (r || !valid_name(d.name, d.len))
		return index_damaged(&img->index, THAW_NAMES, i, "bad name");
	*ret = d;
	return 0;
}

/* A directory that has another parent, or a lower number, could lead round in circles. */
static int check_child(struct image *img, uint32_t dir, uint32_t child, uint64_t i)
{
	struct image_inode inode;
	int r = image_inode(img, child, &inode);

	if (!r && S_ISDIR(inode.mode) && (inode.parent != dir || child <= dir))
		r = index_damaged(&img->index, THAW_NAMES, i, "a directory with another parent");
	return r;
}

static int compare(const char *a, size_t a_len, const char *b, size_t b_len)
{
	int c = memcmp(a, b, a_len < b_len ? a_len : b_len);

	return c ? c : a_len < b_len ? -1 : a_len > b_len;
}

/* Names that are not in order may be there twice, which nobody who makes files from them expects. */
static int check_order(struct image *img, uint32_t dir, uint64_t i, const struct image_dirent *d)
{
	struct image_dirent before;
	int r = read_name(img, dir, i - 1, &before);

	if (!r && compare(before.name, before.len, d->name, d->len) >= 0)
		r = index_damaged(&img->index, THAW_NAMES, i, "names are not in order");
	return r;
}

static int open_dir(struct image *img, uint32_t dir, struct image_inode *ret)
{
	int r = image_inode(img, dir, ret);

	return r ? r : S_ISDIR(ret->mode) ? 0 : -ENOTDIR;
}

int image_lookup(struct image *img, uint32_t dir, const char *name, size_t len, uint32_t *ret_ino)
{
	struct image_inode inode;
	uint64_t lo, hi;
	int r = open_dir(img, dir, &inode);

	if (r)
		return r;
	for (lo = inode.first, hi = inode.first + inode.count; lo < hi;) {
		uint64_t mid = lo + (hi - lo) / 2;
		struct image_dirent d;
		int c;

		r = read_name(img, dir, mid, &d);
		if (r)
			return r;
		c = compare(d.name, d.len, name, len);
		if (c == 0) {
			r = check_child(img, dir, d.ino, mid);
			if (!r)
				*ret_ino = d.ino;
			return r;
		}
		if (c < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	return -ENOENT;
}

int image_readdir(struct image *img, uint32_t dir, uint64_t index, struct image_dirent *ret)
{
	struct image_inode inode;
	struct image_dirent d;
	int r = open_dir(img, dir, &inode);

	if (r)
		return r;
	if (index >= inode.count)
		return -ENOENT;
	r = read_name(img, dir, inode.first + index, &d);
	if (!r)
		r = check_child(img, dir, d.ino, inode.first + index);
	if (!r && index)
		r = check_order(img, dir, inode.first + index, &d);
	if (!r)
		*ret = d;
	return r;
}

int image_walk(struct image *img, const char *path, uint32_t *ret_ino)
{
	uint32_t at = IMAGE_ROOT;

	while (*path) {
		size_t len = strcspn(path, "/");
		int r = len && !(len == 1 && *path == '.') ? image_lookup(img, at, path, len, &at) : 0;

		if (r)
			return r;
		path += len;
		path += *path == '/';
	}
	*ret_ino = at;
	return 0;
}

/* the first entry of NAMES that leads to @ino */
static int find_name(struct image *img, uint32_t ino, uint32_t dir, bool dir_known, struct image_dirent *ret_name,
		     uint32_t *ret_dir)
{
	uint64_t from = 0, to = index_count(&img->index, THAW_NAMES);

	if (dir_known) {
		struct image_inode inode;
		int r = open_dir(img, dir, &inode);

		if (r)
			return r == -ENOTDIR
				       ? index_damaged(&img->index, THAW_INODES, ino, "its parent is no directory")
				       : r;
		from = inode.first;
		to = inode.first + inode.count;
	}
	for (uint64_t i = from; i < to; i++) {
		const struct thaw_name *e;
		int r = index_entry(&img->index, THAW_NAMES, i, (const void **)&e);

		if (r)
			return r;
		if (le32_get(e->inode) == ino) {
			struct image_inode parent;

			*ret_dir = le32_get(e->parent);
			r = open_dir(img, *ret_dir, &parent);
			if (r == -ENOTDIR || r == -ENOENT)
				return index_damaged(&img->index, THAW_NAMES, i, "bad parent or inode");
			return r ? r : read_name(img, *ret_dir, i, ret_name);
		}
	}
	return index_damaged(&img->index, THAW_INODES, ino, "no name leads to it");
}

static int prepend(char **path, const struct image_dirent *d)
{
	size_t len = strlen(*path);
	char *longer = malloc(d->len + len + 2);

	if (!longer)
		return -ENOMEM;
	memcpy(longer, d->name, d->len);
	longer[d->len] = '/';
	memcpy(longer + d->len + (len != 0), *path, len + 1);
	free(*path);
	*path = longer;
	return 0;
}

int image_inode_path(struct image *img, uint32_t ino, char **ret)
{
	_cleanup_free_ char *path = strdup("");
	struct image_inode inode;
	int r = image_inode(img, ino, &inode);

	if (r || !path)
		return r ? r : -ENOMEM;
	/* parents have lower numbers, so this ends */
	while (ino != IMAGE_ROOT) {
		struct image_dirent d;
		uint32_t dir = IMAGE_ROOT;

		r = find_name(img, ino, inode.parent, S_ISDIR(inode.mode), &d, &dir);
		if (r || (S_ISDIR(inode.mode) && dir >= ino))
			return r ? r : -EBADMSG;
		r = prepend(&path, &d);
		if (r)
			return r;
		ino = dir;
		r = open_dir(img, ino, &inode);
		if (r)
			return r;
	}
	*ret = steal_ptr(&path);
	return 0;
}

int image_readlink(struct image *img, uint32_t ino, const char **ret_target, size_t *ret_len)
{
	struct image_inode inode;
	int r = image_inode(img, ino, &inode);

	if (r)
		return r;
	if (!S_ISLNK(inode.mode))
		return -EINVAL;
	r = image_string(img, inode.first, inode.size, ret_target);
	if (!r && memchr(*ret_target, '\0', inode.size))
		return index_damaged(&img->index, THAW_INODES, ino, "bad symlink");
	*ret_len = inode.size;
	return r;
}

int image_xattr(struct image *img, const struct image_inode *inode, uint32_t index, struct image_xattr *ret)
{
	const struct thaw_xattr *e;
	struct image_xattr x;
	uint64_t i = inode->first_xattr + index;
	int r;

	if (index >= inode->n_xattrs)
		return -ENOENT;
	r = index_entry(&img->index, THAW_XATTRS, i, (const void **)&e);
	if (r)
		return r;
	x.name_len = le32_get(e->name_len);
	x.value_len = le32_get(e->value_len);
	x.value = "";
	if (!x.name_len || x.name_len > THAW_NAME_MAX || x.value_len > THAW_XATTR_MAX)
		r = -EBADMSG;
	if (!r)
		r = image_string(img, le64_get(e->name_off), x.name_len, &x.name);
	if (!r && x.value_len)
		r = image_string(img, le64_get(e->value_off), x.value_len, (const char **)&x.value);
	if (r && r != -EBADMSG)
		return r;
	if (r || memchr(x.name, '\0', x.name_len))
		return index_damaged(&img->index, THAW_XATTRS, i, "bad name or value");
	*ret = x;
	return 0;
}

/* -- extents ---------------------------------------------------------------------------------- */

struct extent {
	uint64_t index, off, end;
	uint32_t chunk, chunk_off;
};

static int open_file(struct image *img, uint32_t ino, struct image_inode *ret)
{
	int r = image_inode(img, ino, ret);

	if (r)
		return r;
	return S_ISREG(ret->mode) ? 0 : S_ISDIR(ret->mode) ? -EISDIR : -EINVAL;
}

static int extent_off(struct image *img, uint64_t index, uint64_t *ret)
{
	const struct thaw_extent *e;
	int r = index_entry(&img->index, THAW_EXTENTS, index, (const void **)&e);

	if (!r)
		*ret = le64_get(e->off);
	return r;
}

/* the @i-th extent of a file, with where it ends */
static int read_extent(struct image *img, const struct image_inode *inode, uint64_t i, struct extent *ret)
{
	uint64_t index = inode->first + i, end = inode->size;
	const struct thaw_extent *e;
	struct extent x;
	int r = index_entry(&img->index, THAW_EXTENTS, index, (const void **)&e);

	if (!r && i + 1 < inode->count)
		r = extent_off(img, index + 1, &end);
	if (r)
		return r;
	x = (struct extent){
		.index = index,
		.off = le64_get(e->off),
		.end = end,
		.chunk = le32_get(e->chunk),
		.chunk_off = le32_get(e->chunk_off),
	};
	if (x.off >= x.end || x.end > inode->size || (i == 0 && x.off))
		return index_damaged(&img->index, THAW_EXTENTS, index, "out of order");
	if (x.chunk != THAW_HOLE && (x.chunk >= img->info.n_chunks || x.chunk_off >= img->info.chunk_size))
		return index_damaged(&img->index, THAW_EXTENTS, index, "bad chunk");
	*ret = x;
	return 0;
}

/* the extent that holds @off, by binary search for the last that begins at or before it */
static int find_extent(struct image *img, const struct image_inode *inode, uint64_t off, struct extent *ret,
		       uint64_t *ret_i)
{
	uint64_t lo = 0, hi = inode->count;
	int r;

	while (hi - lo > 1) {
		uint64_t mid = lo + (hi - lo) / 2, at;

		r = extent_off(img, inode->first + mid, &at);
		if (r)
			return r;
		if (at <= off)
			lo = mid;
		else
			hi = mid;
	}
	r = read_extent(img, inode, lo, ret);
	if (!r && (off < ret->off || off >= ret->end))
		r = index_damaged(&img->index, THAW_EXTENTS, ret->index, "out of order");
	*ret_i = lo;
	return r;
}

/* the piece of an extent's run that lies in one chunk */
static int run_in_chunk(struct image *img, const struct extent *x, uint64_t off, struct image_run *ret)
{
	uint64_t pos = x->chunk_off + (off - x->off), c = img->info.chunk_size, left = x->end - off;
	uint64_t number = x->chunk + pos / c;
	struct image_chunk chunk;
	int r;

	if (number >= img->info.n_chunks)
		return index_damaged(&img->index, THAW_EXTENTS, x->index, "reaches past the last chunk");
	r = image_chunk(img, (uint32_t)number, &chunk);
	if (r)
		return r;
	pos %= c;
	/* only the last chunk of a run may be short */
	if (pos >= chunk.logical_len || (left > chunk.logical_len - pos && chunk.logical_len != c))
		return index_damaged(&img->index, THAW_EXTENTS, x->index, "reaches past a chunk's end");
	*ret = (struct image_run){
		.off = off,
		.len = min_u64(left, chunk.logical_len - pos),
		.kind = RUN_DATA,
		.chunk = (uint32_t)number,
		.chunk_off = (uint32_t)pos,
		.img = img,
	};
	return 0;
}

int image_map(struct image *img, uint32_t ino, uint64_t off, struct image_run *ret)
{
	struct image_inode inode;
	struct extent x;
	uint64_t i;
	int r = open_file(img, ino, &inode);

	if (r)
		return r;
	if (off >= inode.size)
		return -ENXIO;
	r = find_extent(img, &inode, off, &x, &i);
	if (r)
		return r;
	if (x.chunk != THAW_HOLE)
		return run_in_chunk(img, &x, off, ret);
	*ret = (struct image_run){ .off = off, .len = x.end - off, .kind = RUN_HOLE, .img = img };
	return 0;
}

int image_seek(struct image *img, uint32_t ino, uint64_t off, bool hole, uint64_t *ret_off)
{
	struct image_inode inode;
	struct extent x;
	uint64_t i;
	int r = open_file(img, ino, &inode);

	if (r)
		return r;
	if (off >= inode.size)
		return -ENXIO;
	for (r = find_extent(img, &inode, off, &x, &i); !r; r = read_extent(img, &inode, i, &x)) {
		if ((x.chunk == THAW_HOLE) == hole) {
			*ret_off = max_u64(off, x.off);
			return 0;
		}
		if (++i == inode.count)
			break;
	}
	if (r)
		return r;
	/* a file ends in a hole, as lseek sees it */
	if (!hole)
		return -ENXIO;
	*ret_off = inode.size;
	return 0;
}

/* -- reading ---------------------------------------------------------------------------------- */

/* copy one run to @buf; whole chunks are decoded in place */
static int read_run(struct chunk_ctx *ctx, const struct image_run *run, uint8_t **scratch, uint8_t *buf, uint64_t len)
{
	uint32_t chunk_size = run->img->info.chunk_size, got;
	int r;

	if (run->kind == RUN_HOLE) {
		memset(buf, 0, len);
		return 0;
	}
	if (run->kind == RUN_ABSENT)
		return chunk_ctx_fail(ctx, -ENODATA, "the image does not have these bytes");
	if (run->chunk_off == 0 && len == chunk_size)
		return image_chunk_read(run->img, ctx, run->chunk, buf, NULL);
	if (!*scratch)
		*scratch = malloc(THAW_CHUNK_MAX);
	if (!*scratch)
		return chunk_ctx_fail(ctx, -ENOMEM, "out of memory");
	r = image_chunk_read(run->img, ctx, run->chunk, *scratch, &got);
	if (!r)
		memcpy(buf, *scratch + run->chunk_off, len);
	return r;
}

int image_read(struct image *img, struct chunk_ctx *ctx, uint32_t ino, uint64_t off, void *buf, size_t len)
{
	_cleanup_free_ uint8_t *scratch = NULL;
	uint8_t *p = buf;

	while (len) {
		struct image_run run;
		int r = image_map(img, ino, off, &run);
		uint64_t part;

		if (r)
			return r;
		part = min_u64(len, run.len);
		r = read_run(ctx, &run, &scratch, p, part);
		if (r)
			return r;
		off += part;
		p += part;
		len -= part;
	}
	return 0;
}

int image_read_view(struct image *img, struct chunk_ctx *ctx, uint32_t space, uint64_t addr, void *buf, size_t len)
{
	_cleanup_free_ uint8_t *scratch = NULL;
	struct image_space s;
	uint8_t *p = buf;
	int r = image_space(img, space, &s);

	while (!r && len) {
		struct image_run run;
		uint64_t part;

		r = image_map_view(img, &s, addr, &run);
		if (r)
			break;
		part = min_u64(len, run.len);
		r = read_run(ctx, &run, &scratch, p, part);
		addr += part;
		p += part;
		len -= part;
	}
	return r;
}
