/* SPDX-License-Identifier: Apache-2.0 */
#include "imgfmt/criu_image.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"
#include "imgfmt/protobuf.h"

#define MAGIC_COMMON  0x54564319u
#define MAGIC_PAGEMAP 0x56084025u
#define MAGIC_MM      0x57492820u
#define MAGIC_FILES   0x56303138u
#define MAGIC_REG     0x50363636u

#define MESSAGE_MAX   (64u << 20) /* an mm of 65536 areas is 4 MiB */
#define FILE_MAX      (1u << 30)  /* 40 million runs of pages are less */
#define WINDOW        (64u << 10)
#define PAGE          4096u

/* -- messages of a file ----------------------------------------------------------------------- */

struct stream {
	const char *name;
	struct source *src;
	uint64_t off; /* of the next message */
	uint8_t *buf;
	size_t room, have; /* bytes [buf_off, buf_off + have) of the file are in buf */
	uint64_t buf_off;
	char *error;
};

static int bad(struct stream *s, const char *what)
{
	snprintf(s->error, CRIU_ERROR, "%s, offset %" PRIu64 ": %s", s->name, s->off, what);
	return -EBADMSG;
}

/* make [off, off + len) readable at *ret; the range lies inside the file */
static int peek(struct stream *s, uint64_t off, size_t len, const uint8_t **ret)
{
	if (off < s->buf_off || off + len > s->buf_off + s->have) {
		size_t want = (size_t)min_u64(max_u64(len, WINDOW), s->src->size - off);
		int r;

		if (want > s->room) {
			uint8_t *more = realloc(s->buf, want);

			if (!more)
				return -ENOMEM;
			s->buf = more;
			s->room = want;
		}
		s->have = 0;
		r = source_read(s->src, s->buf, want, off);
		if (r)
			return r;
		s->buf_off = off;
		s->have = want;
	}
	*ret = s->buf + (off - s->buf_off);
	return 0;
}

static int stream_open(const struct parse_dir *dir, const char *name, uint32_t magic, char *error, struct stream *ret)
{
	struct stream s = { .name = name, .error = error };
	struct parse_file file;
	const uint8_t *p;
	int r = dir->open(dir->ctx, name, &file);

	if (r)
		return r;
	s.src = file.src;
	if (s.src->size < 8)
		return bad(&s, "shorter than its magic");
	if (s.src->size > FILE_MAX)
		return bad(&s, "larger than 1 GiB");
	r = peek(&s, 0, 8, &p);
	if (!r && (load_le32(p) != MAGIC_COMMON || load_le32(p + 4) != magic))
		r = bad(&s, "has another magic");
	if (r) {
		free(s.buf);
		return r;
	}
	s.off = 8;
	*ret = s;
	return 0;
}

/* Return: 1 and the next message, valid until the next call; 0 at the end; -errno */
static int stream_next(struct stream *s, struct pb *ret)
{
	const uint8_t *p;
	uint32_t len;
	int r;

	if (s->off == s->src->size)
		return 0;
	if (!range_inside(s->off, 4, s->src->size))
		return bad(s, "cut short inside a length");
	r = peek(s, s->off, 4, &p);
	if (r)
		return r;
	len = load_le32(p);
	/* a hole full of them would take very long, and all kinds have fields that must be there */
	if (!len)
		return bad(s, "an empty message");
	if (len > MESSAGE_MAX || !range_inside(s->off + 4, len, s->src->size))
		return bad(s, "a message that reaches past the end of the file");
	r = peek(s, s->off + 4, len, &p);
	if (r)
		return r;
	*ret = (struct pb){ .p = p, .end = p + len };
	s->off += 4 + (uint64_t)len;
	return 1;
}

/* room for one more element behind @n */
static int grow(void **array, size_t n, size_t *cap, size_t elem)
{
	size_t want = n + n / 2 + 64;
	void *p;

	if (n < *cap)
		return 0;
	p = realloc(*array, want * elem);
	if (!p)
		return -ENOMEM;
	*array = p;
	*cap = want;
	return 0;
}

/* -- pagemaps --------------------------------------------------------------------------------- */

struct entry {
	uint64_t addr, old_pages, pages, in_parent, flags;
	bool has_flags, unknown;
};

static int read_entry(struct stream *s, struct pb *pb, struct entry *ret)
{
	struct entry e = { 0 };
	struct pb_field f;
	int r;

	while ((r = pb_next(pb, &f)) > 0) {
		if (f.number == 1)
			e.addr = f.value;
		else if (f.number == 2)
			e.old_pages = f.value;
		else if (f.number == 3)
			e.in_parent = f.value;
		else if (f.number == 4)
			e.flags = f.value, e.has_flags = true;
		else if (f.number == 5)
			e.pages = f.value;
		else
			e.unknown = true;
	}
	if (r)
		return bad(s, "not a pagemap entry");
	*ret = e;
	return 0;
}

static int add_entry(struct stream *s, const struct entry *e, struct criu_pagemap *map, size_t *cap)
{
	struct criu_pages run = { .addr = e->addr, .flags = (uint32_t)e->flags };
	const struct criu_pages *last = map->n ? &map->runs[map->n - 1] : NULL;
	uint64_t pages = e->pages ? e->pages : e->old_pages;
	int r;

	/* images from before the flags say only that the pages are in the parent, or else here */
	if (!e->has_flags)
		run.flags = e->in_parent ? CRIU_PE_PARENT : CRIU_PE_PRESENT;
	map->compressed |= e->unknown;
	if (!pages || mul_overflows(pages, PAGE, &run.len) || run.addr % PAGE || run.len > UINT64_MAX - run.addr)
		return bad(s, "an entry with an impossible range");
	if (last && run.addr < last->addr + last->len)
		return bad(s, "entries are not in the order of their addresses");
	if (run.flags & CRIU_PE_PRESENT) {
		run.off = map->file_bytes;
		if (add_overflows(map->file_bytes, run.len, &map->file_bytes) || map->file_bytes > THAW_MAX_FILE)
			return bad(s, "more pages than a file can have");
	}
	r = grow((void **)&map->runs, map->n, cap, sizeof(*map->runs));
	if (!r)
		map->runs[map->n++] = run;
	return r;
}

static int read_head(struct stream *s, struct criu_pagemap *map)
{
	struct pb_field f;
	struct pb pb = { 0 };
	bool found = false;
	int r = stream_next(s, &pb);

	if (r == 0)
		return bad(s, "there is no head");
	if (r < 0)
		return r;
	while ((r = pb_next(&pb, &f)) > 0) {
		if (f.number == 1) {
			map->pages_id = f.value;
			found = true;
		}
	}
	return r || !found ? bad(s, "not a pagemap head") : 0;
}

int criu_pagemap_read(const struct parse_dir *dir, const char *name, struct criu_pagemap *ret, char error[CRIU_ERROR])
{
	struct criu_pagemap map = { 0 };
	struct stream s;
	size_t cap = 0;
	struct pb pb;
	int r = stream_open(dir, name, MAGIC_PAGEMAP, error, &s);

	if (r)
		return r;
	r = read_head(&s, &map);
	while (!r && (r = stream_next(&s, &pb)) > 0) {
		struct entry e;

		r = read_entry(&s, &pb, &e);
		if (!r)
			r = add_entry(&s, &e, &map, &cap);
	}
	free(s.buf);
	if (r) {
		criu_pagemap_release(&map);
		return r;
	}
	*ret = map;
	return 0;
}

void criu_pagemap_release(struct criu_pagemap *map)
{
	free(map->runs);
	*map = (struct criu_pagemap){ 0 };
}

size_t criu_pagemap_at(const struct criu_pagemap *map, uint64_t addr)
{
	size_t lo = 0, hi = map->n;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (map->runs[mid].addr + map->runs[mid].len <= addr)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

/* -- mm --------------------------------------------------------------------------------------- */

static int read_vma(struct stream *s, struct pb pb, struct criu_vma *ret)
{
	struct criu_vma v = { 0 };
	struct pb_field f;
	int r;

	while ((r = pb_next(&pb, &f)) > 0) {
		if (f.number == 1)
			v.start = f.value;
		else if (f.number == 2)
			v.end = f.value;
		else if (f.number == 3)
			v.pgoff = f.value;
		else if (f.number == 4)
			v.shmid = f.value;
		else if (f.number == 5)
			v.prot = (uint32_t)f.value;
		else if (f.number == 6)
			v.flags = (uint32_t)f.value;
		else if (f.number == 7)
			v.status = (uint32_t)f.value;
	}
	if (r || v.start >= v.end)
		return bad(s, "not a memory area");
	*ret = v;
	return 0;
}

int criu_mm_read(const struct parse_dir *dir, const char *name, struct criu_mm *ret, char error[CRIU_ERROR])
{
	struct criu_mm mm = { 0 };
	struct pb_field f;
	struct stream s;
	size_t cap = 0;
	struct pb pb = { 0 };
	int r = stream_open(dir, name, MAGIC_MM, error, &s);

	if (r)
		return r;
	r = stream_next(&s, &pb);
	if (r == 0)
		r = bad(&s, "there is no message");
	while (r > 0 && (r = pb_next(&pb, &f)) > 0) {
		struct criu_vma v;

		if (f.number != 14 || f.type != PB_BYTES)
			continue;
		r = read_vma(&s, (struct pb){ f.data, f.data + f.len }, &v);
		if (!r)
			r = grow((void **)&mm.vmas, mm.n, &cap, sizeof(*mm.vmas));
		if (r)
			break;
		mm.vmas[mm.n++] = v;
		r = 1;
	}
	if (r == -EBADMSG && !*error)
		bad(&s, "not a message");
	free(s.buf);
	if (r) {
		criu_mm_release(&mm);
		return r;
	}
	*ret = mm;
	return 0;
}

void criu_mm_release(struct criu_mm *mm)
{
	free(mm->vmas);
	*mm = (struct criu_mm){ 0 };
}

/* -- files ------------------------------------------------------------------------------------ */

static int add_name(struct criu_files *files, size_t *cap, uint64_t id, const uint8_t *name, size_t len)
{
	int r = grow((void **)&files->files, files->n, cap, sizeof(*files->files));

	if (r)
		return r;
	if (files->names_len + len > files->names_cap) {
		size_t want = (files->names_len + len) * 2;
		char *more = realloc(files->names, want);

		if (!more)
			return -ENOMEM;
		files->names = more;
		files->names_cap = want;
	}
	if (len)
		memcpy(files->names + files->names_len, name, len);
	files->files[files->n++] = (struct criu_file){ .id = id, .name_off = files->names_len, .name_len = len };
	files->names_len += len;
	return 0;
}

/* a reg_file_entry: 1 is the id, 6 the name */
static int read_regular(struct stream *s, struct pb pb, struct criu_files *files, size_t *cap)
{
	const uint8_t *name = NULL;
	struct pb_field f;
	size_t len = 0;
	uint64_t id = 0;
	int r;

	while ((r = pb_next(&pb, &f)) > 0) {
		if (f.number == 1) {
			id = f.value;
		} else if (f.number == 6 && f.type == PB_BYTES) {
			name = f.data;
			len = f.len;
		}
	}
	if (r)
		return bad(s, "not an entry of a regular file");
	if (len > THAW_REGION_NAME_MAX)
		len = THAW_REGION_NAME_MAX;
	return name ? add_name(files, cap, id, name, len) : 0;
}

static int cmp_file(const void *a, const void *b)
{
	const struct criu_file *x = a, *y = b;

	return x->id < y->id ? -1 : x->id > y->id;
}

static int read_files(const struct parse_dir *dir, const char *name, uint32_t magic, struct criu_files *files,
		      char *error)
{
	struct stream s;
	size_t cap = 0;
	struct pb pb = { 0 };
	int r = stream_open(dir, name, magic, error, &s);

	if (r)
		return r;
	while (!r && (r = stream_next(&s, &pb)) > 0) {
		struct pb_field f;

		if (magic == MAGIC_REG) {
			r = read_regular(&s, pb, files, &cap);
			continue;
		}
		/* a file_entry has the entry of its kind inside; 3 is that of regular files */
		while ((r = pb_next(&pb, &f)) > 0) {
			if (f.number == 3 && f.type == PB_BYTES) {
				r = read_regular(&s, (struct pb){ f.data, f.data + f.len }, files, &cap);
				if (r)
					break;
			}
		}
		if (r == -EBADMSG && !*error)
			bad(&s, "not an entry of a file");
	}
	free(s.buf);
	return r;
}

int criu_files_read(const struct parse_dir *dir, struct criu_files *ret, char error[CRIU_ERROR])
{
	struct criu_files files = { 0 };
	int r = read_files(dir, "files.img", MAGIC_FILES, &files, error);

	/* CRIU before 3.3 had a file for each kind */
	if (r == -ENOENT)
		r = read_files(dir, "reg-files.img", MAGIC_REG, &files, error);
	if (r) {
		criu_files_release(&files);
		return r;
	}
	if (files.n)
		qsort(files.files, files.n, sizeof(*files.files), cmp_file);
	*ret = files;
	return 0;
}

void criu_files_release(struct criu_files *files)
{
	free(files->files);
	free(files->names);
	*files = (struct criu_files){ 0 };
}

const char *criu_file_name(const struct criu_files *files, uint64_t id, size_t *ret_len)
{
	const struct criu_file key = { .id = id };
	const struct criu_file *f = files->n ? bsearch(&key, files->files, files->n, sizeof(key), cmp_file) : NULL;

	*ret_len = f ? f->name_len : 0;
	return f ? files->names + f->name_off : "";
}
