/* SPDX-License-Identifier: Apache-2.0 */
/* Opening, bases, and the plain tables of an image; files are in image_file.c, address spaces in image_space.c. */
#include "imgfmt/image.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/cleanup.h"
#include "common/log.h"
#include "imgfmt/chunk.h"
#include "imgfmt/image_private.h"
#include "imgfmt/table.h"

/* -- opening ---------------------------------------------------------------------------------- */

static int fail(const struct image *img, int r, const char *what)
{
	if (!img->quiet)
		log_error("cannot read '%s': %s", img->path, what);
	return r;
}

static int read_ends(struct image *img)
{
	const char *name = img->quiet ? NULL : img->path;
	union {
		struct thaw_header header;
		struct thaw_footer footer;
	} raw;
	uint32_t chunk_size;
	int r;

	if (img->src->size < sizeof(raw.header))
		return fail(img, -EBADMSG, "not a thawfs image: shorter than a header");
	r = source_read(img->src, &raw, sizeof(raw.header), 0);
	if (!r)
		r = header_decode(&raw.header, name, &chunk_size);
	else
		fail(img, r, strerror(-r));
	if (r)
		return r;
	if (img->src->size < 2 * THAW_PAGE)
		return fail(img, -EBADMSG, "incomplete image: the writer was interrupted");
	r = source_read(img->src, &raw, sizeof(raw.footer), img->src->size - sizeof(raw.footer));
	if (r)
		return fail(img, r, strerror(-r));
	return footer_decode(&raw.footer, name, img->src->size, chunk_size, &img->footer);
}

static int fill_info(struct image *img)
{
	const struct footer_info *f = &img->footer;
	const struct thaw_summary *s;
	struct image_info *i = &img->info;
	int r = index_entry(&img->index, THAW_SUMMARY, 0, (const void **)&s);

	if (r)
		return r;
	*i = (struct image_info){
		.version = THAW_VERSION,
		.incompat = f->incompat,
		.compat = f->compat,
		.chunk_size = f->chunk_size,
		.file_size = f->file_size,
		.data_end = f->data_end,
		.n_chunks = index_count(&img->index, THAW_CHUNKS),
		.n_inodes = index_count(&img->index, THAW_INODES),
		.n_names = index_count(&img->index, THAW_NAMES),
		.n_extents = index_count(&img->index, THAW_EXTENTS),
		.n_spaces = index_count(&img->index, THAW_SPACES),
		.n_regions = index_count(&img->index, THAW_REGIONS),
		.n_segments = index_count(&img->index, THAW_SEGMENTS),
		.n_bases = index_count(&img->index, THAW_BASES),
		.index_bytes = f->file_size - THAW_PAGE - align_up(f->data_end, THAW_PAGE),
		.logical_bytes = le64_get(s->logical_bytes),
		.hole_bytes = le64_get(s->hole_bytes),
		.chunk_bytes = le64_get(s->chunk_bytes),
		.stored_bytes = le64_get(s->stored_bytes),
		.base_bytes = le64_get(s->base_bytes),
		.dup_bytes = le64_get(s->dup_bytes),
		.n_chunks_raw = le64_get(s->n_chunks_raw),
		.n_chunks_zstd = le64_get(s->n_chunks_zstd),
		.n_chunks_lz4 = le64_get(s->n_chunks_lz4),
		.n_chunks_shuffled = le64_get(s->n_chunks_shuffled),
		.n_chunks_base = le64_get(s->n_chunks_base),
		.n_files = le64_get(s->n_files),
		.n_dirs = le64_get(s->n_dirs),
	};
	memcpy(i->id, f->id, sizeof(i->id));
	return 0;
}

static int copy_base_path(struct image *img, const char *const *list)
{
	size_t n = 0;

	while (list && list[n])
		n++;
	img->base_path = calloc(n + 1, sizeof(char *));
	if (!img->base_path)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++) {
		img->base_path[i] = strdup(list[i]);
		if (!img->base_path[i])
			return -ENOMEM;
	}
	return 0;
}

static int open_source(struct source *src, const char *path, bool from_file, const struct image_opts *opts,
		       struct image **ret)
{
	struct image *img = calloc(1, sizeof(*img));
	int r;

	if (!img) {
		source_close(src);
		return -ENOMEM;
	}
	img->src = src;
	img->quiet = opts && opts->quiet;
	img->from_file = from_file;
	pthread_mutex_init(&img->bases_lock, NULL);
	img->path = strdup(path);
	r = img->path ? copy_base_path(img, opts ? opts->base_path : NULL) : -ENOMEM;
	if (!r)
		r = read_ends(img);
	if (!r)
		r = index_open(&img->index, src, img->path, img->quiet, &img->footer);
	if (!r)
		r = fill_info(img);
	if (r) {
		image_close(img);
		return r;
	}
	*ret = img;
	return 0;
}

int image_open_source(struct source *src, const struct image_opts *opts, struct image **ret)
{
	return open_source(src, src->name, false, opts, ret);
}

int image_open(const char *path, const struct image_opts *opts, struct image **ret)
{
	struct source *src;
	int r = source_open_file(path, &src);

	if (!r)
		return open_source(src, path, true, opts, ret);
	if (!opts || !opts->quiet)
		log_error("cannot open '%s': %s", path, r == -EINVAL ? "not a regular file" : strerror(-r));
	return r;
}

void image_close(struct image *img)
{
	if (!img)
		return;
	for (size_t i = 0; i < THAW_MAX_BASES; i++)
		image_close(img->bases[i]);
	index_release(&img->index);
	source_close(img->src);
	for (char **p = img->base_path; p && *p; p++)
		free(*p);
	free(img->base_path);
	free(img->path);
	pthread_mutex_destroy(&img->bases_lock);
	free(img);
}

const struct image_info *image_info(const struct image *img)
{
	return &img->info;
}

const char *image_path(const struct image *img)
{
	return img->path;
}

struct source *image_source(struct image *img)
{
	return img->src;
}

void image_id_text(const uint8_t id[16], char ret_text[33])
{
	for (int i = 0; i < 16; i++)
		snprintf(ret_text + (size_t)2 * i, 3, "%02x", id[i]);
}

int image_string(struct image *img, uint64_t off, uint64_t len, const char **ret)
{
	return index_bytes(&img->index, THAW_STRINGS, off, len, (const uint8_t **)ret);
}

int image_properties(struct image *img, const char **ret_json, size_t *ret_len)
{
	uint64_t len = index_count(&img->index, THAW_PROPERTIES);
	int r = 0;

	*ret_json = "";
	if (len)
		r = index_bytes(&img->index, THAW_PROPERTIES, 0, len, (const uint8_t **)ret_json);
	*ret_len = len;
	return r;
}

/* -- bases ------------------------------------------------------------------------------------ */

int image_base(struct image *img, uint32_t index, struct image_base *ret)
{
	const struct thaw_base *e;
	struct image_base b;
	int r;

	if (index >= index_count(&img->index, THAW_BASES))
		return -ENOENT;
	r = index_entry(&img->index, THAW_BASES, index, (const void **)&e);
	if (r)
		return r;
	memcpy(b.id, e->image_id, sizeof(b.id));
	b.name_len = le32_get(e->name_len);
	r = b.name_len && b.name_len <= THAW_NAME_MAX ? image_string(img, le64_get(e->name_off), b.name_len, &b.name)
						      : -EBADMSG;
	if (r && r != -EBADMSG)
		return r;
	if (r || memchr(b.name, '/', b.name_len) || memchr(b.name, '\0', b.name_len))
		return index_damaged(&img->index, THAW_BASES, index, "bad name");
	*ret = b;
	return 0;
}

/* open @dir/@name if it is the image with that id */
static struct image *try_base(const struct image *img, const char *dir, const char *name, const uint8_t id[16])
{
	const struct image_opts opts = { .base_path = (const char *const *)img->base_path, .quiet = true };
	_cleanup_free_ char *path = NULL;
	struct image *base;

	if (asprintf(&path, "%s/%s", dir, name) < 0) {
		path = NULL;
		return NULL;
	}
	if (image_open(path, &opts, &base))
		return NULL;
	/* later messages about it are wanted, those about its being something else were not */
	base->quiet = base->index.quiet = img->quiet;
	if (!memcmp(image_info(base)->id, id, 16))
		return base;
	image_close(base);
	return NULL;
}

static struct image *scan_for_base(const struct image *img, const char *dir, const uint8_t id[16])
{
	_cleanup_closedir_ DIR *d = opendir(dir);
	struct image *base = NULL;
	struct dirent *e;

	while (d && !base && (e = readdir(d))) {
		size_t len = strlen(e->d_name);

		if (len > 5 && !strcmp(e->d_name + len - 5, ".thaw") && e->d_name[0] != '.')
			base = try_base(img, dir, e->d_name, id);
	}
	return base;
}

/* first by the name that it had, which costs one open, then by looking into every image of a directory */
static struct image *find_base(const struct image *img, const struct image_base *b)
{
	const char *slash = strrchr(img->path, '/');
	_cleanup_free_ char *name = strndup(b->name, b->name_len);
	_cleanup_free_ char *own =
		slash ? strndup(img->path, (size_t)(slash - img->path) + (slash == img->path)) : strdup(".");
	struct image *base = NULL;

	if (!name || !own)
		return NULL;
	if (img->from_file)
		base = try_base(img, own, name, b->id);
	for (char **dir = img->base_path; *dir && !base; dir++)
		base = try_base(img, *dir, name, b->id);
	if (img->from_file && !base)
		base = scan_for_base(img, own, b->id);
	for (char **dir = img->base_path; *dir && !base; dir++)
		base = scan_for_base(img, *dir, b->id);
	return base;
}

static int64_t now_seconds(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec;
}

static int open_base(struct image *img, uint32_t index, bool quiet, struct image **ret)
{
	struct image_base b;
	char id[33];
	int r = image_base(img, index, &b);

	if (r)
		return r;
	if (!memcmp(b.id, img->info.id, sizeof(b.id)))
		return index_damaged(&img->index, THAW_BASES, index, "the image names itself as its base");
	LOCK_GUARD(&img->bases_lock);
	/* not for each of a million chunks */
	if (!img->bases[index] && (!img->base_missing[index] || now_seconds() != img->base_tried[index])) {
		img->bases[index] = find_base(img, &b);
		img->base_tried[index] = now_seconds();
	}
	*ret = img->bases[index];
	if (*ret)
		return 0;
	if (quiet)
		return -ENOENT;
	if (!img->base_missing[index] && !img->quiet) {
		image_id_text(b.id, id);
		log_error("cannot read '%s': its base %s ('%.*s') is not there; name its directory with --base-path",
			  img->path, id, (int)b.name_len, b.name);
	}
	img->base_missing[index] = true;
	return -ENOENT;
}

int image_base_open(struct image *img, uint32_t index, struct image **ret)
{
	return open_base(img, index, false, ret);
}

/* the bases of @img that are not in the list yet; by id, for they may be the same as another's */
static int add_bases(struct image *img, struct table *list)
{
	int r = 0;

	for (uint32_t i = 0; i < img->info.n_bases && !r; i++) {
		struct image_base b;
		struct image *base, **slot;
		bool known = false;

		r = image_base(img, i, &b);
		for (size_t k = 0; k < list->n && !r && !known; k++)
			known = !memcmp((*(struct image **)table_at(list, k))->info.id, b.id, sizeof(b.id));
		if (r || known)
			continue;
		r = open_base(img, i, true, &base);
		if (r == -ENOENT) {
			r = 0;
			continue;
		}
		if (r)
			return r;
		slot = table_push(list);
		if (!slot)
			return -ENOMEM;
		*slot = base;
	}
	return r;
}

int image_each_needed(struct image *img, int (*fn)(void *ctx, struct image *img), void *ctx)
{
	struct table list; /* is the queue */
	struct image **first;
	int r;

	table_init(&list, sizeof(struct image *));
	first = table_push(&list);
	r = first ? 0 : -ENOMEM;
	if (first)
		*first = img;
	for (size_t i = 0; i < list.n && !r; i++) {
		struct image *at = *(struct image **)table_at(&list, i);

		r = fn(ctx, at);
		if (!r)
			r = add_bases(at, &list);
	}
	table_release(&list);
	return r;
}

/* -- chunks ----------------------------------------------------------------------------------- */

int image_chunk(struct image *img, uint32_t chunk, struct image_chunk *ret)
{
	const struct thaw_chunk *e;
	const char *what;
	struct image_chunk c;
	int r;

	if (chunk >= index_count(&img->index, THAW_CHUNKS))
		return -EBADMSG;
	r = index_entry(&img->index, THAW_CHUNKS, chunk, (const void **)&e);
	if (r)
		return r;
	c = (struct image_chunk){
		.stored_off = le64_get(e->stored_off),
		.hash = le64_get(e->hash),
		.stored_len = le32_get(e->stored_len),
		.logical_len = le32_get(e->logical_len),
		.codec = e->codec,
		.shuffle = e->shuffle,
		.base = le16_get(e->base),
	};
	what = chunk_entry_error(&c, img->info.chunk_size, img->info.data_end);
	if (!what && c.base > img->info.n_bases)
		what = "unknown base";
	if (what)
		return index_damaged(&img->index, THAW_CHUNKS, chunk, what);
	*ret = c;
	return 0;
}

/* the base's entry that @c refers to */
static int base_chunk(struct image *img, uint32_t chunk, const struct image_chunk *c, struct image **ret_base,
		      struct image_chunk *ret)
{
	struct image *base;
	int r = image_base_open(img, c->base - 1u, &base);

	if (r)
		return r;
	if (c->stored_off >= image_info(base)->n_chunks)
		return index_damaged(&img->index, THAW_CHUNKS, chunk, "no such chunk in the base");
	r = image_chunk(base, (uint32_t)c->stored_off, ret);
	if (r)
		return r;
	if (ret->base || ret->logical_len != c->logical_len || ret->hash != c->hash)
		return index_damaged(&img->index, THAW_CHUNKS, chunk, "does not fit its base");
	*ret_base = base;
	return 0;
}

int image_chunk_resolve(struct image *img, uint32_t chunk, struct image **ret_img, uint32_t *ret_chunk)
{
	struct image_chunk c, in_base;
	int r = image_chunk(img, chunk, &c);

	if (r)
		return r;
	if (!c.base) {
		*ret_img = img;
		*ret_chunk = chunk;
		return 0;
	}
	r = base_chunk(img, chunk, &c, ret_img, &in_base);
	if (!r)
		*ret_chunk = (uint32_t)c.stored_off;
	return r;
}

int image_chunk_read(struct image *img, struct chunk_ctx *ctx, uint32_t chunk, void *buf, uint32_t *ret_len)
{
	struct image *from = img;
	struct image_chunk c;
	bool raw;
	void *stored;
	int r = image_chunk(img, chunk, &c);

	if (!r && c.base) {
		const struct image_chunk ref = c;

		r = base_chunk(img, chunk, &ref, &from, &c);
	}
	if (r)
		return chunk_ctx_fail(ctx, r, r == -ENOENT ? "a base is missing" : "its index entry is damaged");
	/* raw bytes need no second buffer */
	raw = c.codec == THAW_RAW;
	stored = raw ? buf : chunk_ctx_room(ctx, c.stored_len);
	if (!stored)
		return chunk_ctx_fail(ctx, -ENOMEM, "out of memory");
	r = source_read(from->src, stored, c.stored_len, c.stored_off);
	if (r)
		return chunk_ctx_fail(ctx, r, "at offset %llu: %s", (unsigned long long)c.stored_off, strerror(-r));
	r = chunk_decode(ctx, &c, from->info.chunk_size, stored, buf);
	if (!r && ret_len)
		*ret_len = c.logical_len;
	return r;
}
