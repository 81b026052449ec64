/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CRIU images directories. A process is pagemap-PID.img (which pages there are, and where), mm-PID.img (its memory
 * areas) and the file of pages that the pagemap names; a shared memory object is pagemap-shmem-ID.img. Pages may be
 * left to the directory that was dumped before (the `parent` link), to the file that is mapped, or to nobody: never
 * touched, zero.
 *
 * amdgpu's files and whatever else stands in the directory are members like any other, and are not looked at.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/bytes.h"
#include "common/cleanup.h"
#include "imgfmt/criu_image.h"
#include "imgfmt/parse.h"

#define MAGIC_COMMON    0x54564319u
#define MAGIC_INVENTORY 0x58313116u
#define VIEW_END        (1ull << 63)
#define NAME_ROOM       96
/* of areas of shared objects, in all processes: each shows its object's runs again, so the files do not bound them */
#define SHARED_PIECES   (8u << 20)

bool parse_criu_detect(const struct parse_dir *dir)
{
	struct parse_file file;
	uint8_t magic[8];

	if (dir->open(dir->ctx, "inventory.img", &file) || file.src->size < sizeof(magic) ||
	    source_read(file.src, magic, sizeof(magic), 0))
		return false;
	return load_le32(magic) == MAGIC_INVENTORY ||
	       (load_le32(magic) == MAGIC_COMMON && load_le32(magic + 4) == MAGIC_INVENTORY);
}

/* a pagemap with its file of pages, in one directory of the chain */
struct level {
	struct criu_pagemap map;
	struct parse_file pages;
	bool usable; /* false: the pages of this directory cannot be had */
};

/* the directory itself and its ancestors */
struct chain {
	struct level levels[THAW_MAX_DEPTH + 1];
	unsigned n;
	bool broken; /* the last level has a parent that is not to be had */
};

struct criu {
	struct layout *lay;
	const struct parse_dir *dir;
	parse_note_fn *note;
	void *note_ctx;
	struct criu_files files;
	struct chain own; /* of what is being parsed */
	/* the shared object that was looked up last: areas of one object often follow each other */
	struct chain shared;
	uint64_t shared_id;
	int shared_result; /* of the lookup; 1: there was none yet */
	size_t shared_pieces;
	char error[CRIU_ERROR];
};

static int bad(struct criu *c, const char *what, uint64_t addr)
{
	snprintf(c->error, sizeof(c->error), "%s at address 0x%" PRIx64, what, addr);
	return -EBADMSG;
}

/* -- the chain of pagemaps -------------------------------------------------------------------- */

static void release_chain(struct chain *chain)
{
	for (unsigned i = 0; i < chain->n; i++)
		criu_pagemap_release(&chain->levels[i].map);
	chain->n = 0;
	chain->broken = false;
}

/* the pagemap called @name in @dir, and its pages. Return: 0, -ENOENT (no such pagemap), -EBADMSG, -errno */
static int load_level(struct criu *c, const struct parse_dir *dir, const char *name, struct level *ret)
{
	struct level l = { 0 };
	char pages[NAME_ROOM];
	int r = criu_pagemap_read(dir, name, &l.map, c->error);

	if (r)
		return r;
	snprintf(pages, sizeof(pages), "pages-%" PRIu64 ".img", l.map.pages_id);
	r = l.map.file_bytes || l.map.compressed ? dir->open(dir->ctx, pages, &l.pages) : 0;
	if (r == -ENOENT)
		snprintf(c->error, sizeof(c->error), "%s: its '%s' is not there", name, pages), r = -EBADMSG;
	if (!r && l.map.compressed)
		snprintf(c->error, sizeof(c->error), "%s: compressed pages are kept as they are", name), r = -EBADMSG;
	if (!r && l.map.file_bytes && l.pages.src->size < l.map.file_bytes)
		snprintf(c->error, sizeof(c->error), "%s: '%s' ends at offset %" PRIu64 ", before its last page", name,
			 pages, l.pages.src->size),
			r = -EBADMSG;
	if (r) {
		criu_pagemap_release(&l.map);
		return r;
	}
	l.usable = true;
	*ret = l;
	return 0;
}

/* Return: 0, -ENOENT (the directory has no such pagemap), -EBADMSG, -errno */
static int load_chain(struct criu *c, const char *name, struct chain *chain)
{
	const struct parse_dir *dir = c->dir;
	int r = load_level(c, dir, name, &chain->levels[0]);

	if (r)
		return r;
	chain->n = 1;
	for (; dir->parent && chain->n <= THAW_MAX_DEPTH; chain->n++) {
		struct level *l = &chain->levels[chain->n];

		dir = dir->parent;
		*l = (struct level){ .usable = true };
		r = load_level(c, dir, name, l);
		/* an ancestor without the process has none of its pages, one that is damaged may have */
		if (r == -EBADMSG)
			*l = (struct level){ .usable = false };
		else if (r && r != -ENOENT)
			return r;
	}
	chain->broken = dir->parent_missing || dir->parent;
	*c->error = '\0';
	return 0;
}

static int add_data(struct criu *c, const struct chain *chain, const struct level *l, uint64_t addr, uint64_t len,
		    uint64_t off)
{
	int r = layout_segment(c->lay, addr, len, THAW_SEG_DATA, l->pages.ino, l->pages.base, off);

	/* what lies in an ancestor is cut when that is parsed itself, and an object's pages when that is */
	if (!r && chain == &c->own && l == &chain->levels[0])
		r = layout_cut(c->lay, l->pages.ino, off, len, addr);
	return r;
}

static int add_absent(struct criu *c, uint64_t addr, uint64_t len)
{
	return layout_segment(c->lay, addr, len, THAW_SEG_ABSENT, 0, 0, 0);
}

/*
 * The piece of [addr, end) that all levels say the same about. *ret_len is how long it is.
 * Return: the level that has it, or NULL: nobody, then *ret_absent tells whether somebody might have had it.
 */
static const struct level *find_pages(const struct chain *chain, uint64_t addr, uint64_t end, uint64_t *ret_len,
				      uint64_t *ret_off, bool *ret_absent)
{
	uint64_t len = end - addr;

	*ret_absent = chain->broken;
	for (unsigned i = 0; i < chain->n; i++) {
		const struct level *l = &chain->levels[i];
		const struct criu_pages *run;
		size_t k;

		if (!l->usable) {
			*ret_absent = true;
			break;
		}
		k = criu_pagemap_at(&l->map, addr);
		run = k < l->map.n ? &l->map.runs[k] : NULL;
		if (!run || run->addr > addr) {
			if (run)
				len = min_u64(len, run->addr - addr);
			continue;
		}
		len = min_u64(len, run->addr + run->len - addr);
		if (run->flags & CRIU_PE_PRESENT) {
			*ret_len = len;
			*ret_off = run->off + (addr - run->addr);
			return l;
		}
		/* left out to be fetched later from the process itself */
		if (!(run->flags & CRIU_PE_PARENT)) {
			*ret_absent = true;
			break;
		}
	}
	*ret_len = len;
	return NULL;
}

/*
 * Pages [from, to) of a run of the chain's first pagemap, as memory at @addr. @zero: pages that no level has were never
 * written and are zero, as all that no segment covers; else they are absent.
 */
static int add_pages(struct criu *c, const struct chain *chain, uint64_t from, uint64_t to, uint64_t addr, bool zero)
{
	int r = 0;

	for (uint64_t len = 0, off = 0; from < to && !r; from += len, addr += len) {
		bool absent;
		const struct level *l = find_pages(chain, from, to, &len, &off, &absent);

		if (l)
			r = add_data(c, chain, l, addr, len, off);
		else if (absent || !zero)
			r = add_absent(c, addr, len);
	}
	return r;
}

/* -- processes -------------------------------------------------------------------------------- */

/* are bytes that no pagemap has zero? Those of files are in the files, those of vdso and the like are the kernel's. */
static bool zero_if_missing(const struct criu_vma *v)
{
	return v->status & (CRIU_VMA_ANON_PRIVATE | CRIU_VMA_ANON_SHARED);
}

static int load_shared(struct criu *c, uint64_t id)
{
	char name[NAME_ROOM];

	if (c->shared_result != 1 && c->shared_id == id)
		return c->shared_result;
	release_chain(&c->shared);
	c->shared_id = id;
	snprintf(name, sizeof(name), "pagemap-shmem-%" PRIu64 ".img", id);
	c->shared_result = load_chain(c, name, &c->shared);
	return c->shared_result;
}

/* the area shows [at, at + its length) of what @chain describes */
static int add_vma(struct criu *c, const struct criu_vma *v, const struct chain *chain, uint64_t at)
{
	const struct criu_pagemap *map = &chain->levels[0].map;
	const bool zero = zero_if_missing(v), shared = chain == &c->shared;
	uint64_t end = at + (v->end - v->start), delta = v->start - at;
	size_t before = c->lay->n_segments;
	int r = 0;

	for (size_t k = criu_pagemap_at(map, at); at < end && !r; k++) {
		const struct criu_pages *run = k < map->n ? &map->runs[k] : NULL;
		uint64_t from = run ? max_u64(at, min_u64(run->addr, end)) : end;
		uint64_t to = run ? min_u64(run->addr + run->len, end) : end;

		if (at < from && !zero)
			r = add_absent(c, at + delta, from - at);
		if (!r && from < to)
			r = add_pages(c, chain, from, to, from + delta, zero);
		if (!r && shared && c->shared_pieces + (c->lay->n_segments - before) > SHARED_PIECES)
			r = bad(c, "shared memory in too many pieces", v->start);
		at = max_u64(from, to);
	}
	if (shared)
		c->shared_pieces += c->lay->n_segments - before;
	return r;
}

/* a shared anonymous area shows its object's pages */
static int add_shared_vma(struct criu *c, const struct criu_vma *v)
{
	uint64_t end;
	int r = load_shared(c, v->shmid);

	/*
	 * An object whose pages cannot be had: said when it is parsed itself, or there is none. CRIU writes a pagemap
	 * for objects that were never touched too.
	 */
	if (r == -EBADMSG || r == -ENOENT)
		return add_absent(c, v->start, v->end - v->start);
	if (r)
		return r;
	if (add_overflows(v->pgoff, v->end - v->start, &end))
		return bad(c, "a shared area with an impossible offset", v->start);
	return add_vma(c, v, &c->shared, v->pgoff);
}

static int add_bytes(struct criu *c, const struct criu_vma *v)
{
	/* what lies above (vsyscall) has no place in a view */
	if (v->start >= VIEW_END || v->end > VIEW_END)
		return 0;
	if (v->status & CRIU_VMA_ANON_SHARED && !(v->status & CRIU_VMA_ANON_PRIVATE))
		return add_shared_vma(c, v);
	return add_vma(c, v, &c->own, v->start);
}

static int add_region(struct criu *c, const struct criu_vma *v)
{
	bool is_file = v->status & (CRIU_VMA_FILE_PRIVATE | CRIU_VMA_FILE_SHARED);
	size_t len = 0;
	const char *name = is_file ? criu_file_name(&c->files, v->shmid, &len) : "";

	return layout_region(c->lay, v->start, v->end - v->start, v->pgoff, v->prot & 7, v->flags, name, len);
}

static int cmp_vma(const void *a, const void *b)
{
	const struct criu_vma *x = a, *y = b;

	return x->start < y->start ? -1 : x->start > y->start;
}

/* every page has to be in some area: a pagemap and an mm that do not belong together are not shown as one */
static int check_pages_inside(struct criu *c, const struct criu_mm *mm)
{
	const struct criu_pagemap *map = &c->own.levels[0].map;
	size_t k = 0;

	for (size_t i = 0; i < map->n; i++) {
		uint64_t addr = map->runs[i].addr, end = addr + map->runs[i].len;

		while (addr < end) {
			while (k < mm->n && mm->vmas[k].end <= addr)
				k++;
			if (k == mm->n || mm->vmas[k].start > addr)
				return bad(c, "pages outside all memory areas", addr);
			addr = min_u64(end, mm->vmas[k].end);
		}
	}
	return 0;
}

static int add_areas(struct criu *c, struct criu_mm *mm)
{
	int r;

	if (mm->n)
		qsort(mm->vmas, mm->n, sizeof(*mm->vmas), cmp_vma);
	for (size_t i = 1; i < mm->n; i++)
		if (mm->vmas[i].start < mm->vmas[i - 1].end)
			return bad(c, "overlapping memory areas", mm->vmas[i].start);
	r = check_pages_inside(c, mm);
	for (size_t i = 0; i < mm->n && !r; i++) {
		const struct criu_vma *v = &mm->vmas[i];

		r = add_region(c, v);
		if (!r)
			r = add_bytes(c, v);
	}
	return r;
}

/* without an mm the pages themselves say where memory is */
static int add_bare_pages(struct criu *c, uint32_t flags)
{
	const struct criu_pagemap *map = &c->own.levels[0].map;
	int r = 0;

	for (size_t i = 0; i < map->n && !r;) {
		uint64_t start = map->runs[i].addr, end = start;

		for (; i < map->n && map->runs[i].addr == end; i++)
			end += map->runs[i].len;
		if (end > VIEW_END)
			break;
		r = layout_region(c->lay, start, end - start, 0, PROT_READ | PROT_WRITE, flags, "", 0);
		if (!r)
			r = add_pages(c, &c->own, start, end, start, true);
	}
	return r;
}

static int add_process(struct criu *c, uint32_t pid)
{
	struct criu_mm mm;
	char name[NAME_ROOM];
	int r;

	snprintf(name, sizeof(name), "mm-%" PRIu32 ".img", pid);
	r = criu_mm_read(c->dir, name, &mm, c->error);
	if (r == -ENOENT)
		return add_bare_pages(c, MAP_PRIVATE | MAP_ANONYMOUS);
	if (!r) {
		r = add_areas(c, &mm);
		criu_mm_release(&mm);
	}
	return r;
}

/* an object's size stands nowhere; it reaches to its last page at least, and what lies between pages is zero */
static int add_shmem(struct criu *c)
{
	const struct criu_pagemap *map = &c->own.levels[0].map;
	uint64_t end = map->n ? map->runs[map->n - 1].addr + map->runs[map->n - 1].len : 0;
	int r = 0;

	if (!end)
		return 0;
	if (end > VIEW_END)
		return bad(c, "a page of a shared object that is no offset", end);
	r = layout_region(c->lay, 0, end, 0, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, "", 0);
	for (size_t i = 0; i < map->n && !r; i++)
		r = add_pages(c, &c->own, map->runs[i].addr, map->runs[i].addr + map->runs[i].len, map->runs[i].addr,
			      true);
	return r;
}

/* -- the directory ---------------------------------------------------------------------------- */

/* "pagemap-<digits>.img": *ret_id; or "pagemap-shmem-<digits>.img": *ret_shmem as well */
static bool is_pagemap(const char *name, uint64_t *ret_id, bool *ret_shmem)
{
	char *end;

	if (strncmp(name, "pagemap-", 8) != 0)
		return false;
	name += 8;
	*ret_shmem = strncmp(name, "shmem-", 6) == 0;
	if (*ret_shmem)
		name += 6;
	if (*name < '0' || *name > '9')
		return false;
	errno = 0;
	*ret_id = strtoull(name, &end, 10);
	return !errno && !strcmp(end, ".img");
}

static int parse_pagemap(struct criu *c, const char *file_name, uint64_t id, bool shmem)
{
	char space[THAW_SPACE_NAME_MAX + 1];
	struct parse_file file;
	int n, r = load_chain(c, file_name, &c->own);

	if (r)
		return r == -ENOENT ? bad(c, "the pagemap went away", 0) : r;
	n = snprintf(space, sizeof(space), "%s%s%s%" PRIu64, c->dir->path, *c->dir->path ? "/" : "",
		     shmem ? "shmem-" : "", id);
	if (n >= (int)sizeof(space))
		return bad(c, "a name that is too long", 0);
	r = c->dir->open(c->dir->ctx, file_name, &file);
	if (!r)
		r = layout_begin_space(c->lay, space, (size_t)n, shmem ? THAW_SPACE_CRIU_SHMEM : THAW_SPACE_CRIU,
				       file.ino, shmem ? 0 : (uint32_t)id);
	if (!r)
		r = shmem ? add_shmem(c) : add_process(c, (uint32_t)id);
	if (!r) {
		r = layout_end_space(c->lay);
		if (r == -EBADMSG)
			snprintf(c->error, sizeof(c->error), "%.*s", (int)sizeof(c->error) - 1, c->lay->error);
	}
	return r;
}

static void say(struct criu *c, const char *name, const char *what)
{
	char text[CRIU_ERROR + NAME_ROOM + 64];

	snprintf(text, sizeof(text), "%.64s: no memory view: %s", name, what);
	c->note(c->note_ctx, text);
}

/* one process or object; what is not understood is said, and left out */
static int parse_one(struct criu *c, const char *file_name, uint64_t id, bool shmem)
{
	struct layout_mark mark = layout_mark(c->lay);
	size_t pieces = c->shared_pieces;
	int r;

	*c->error = '\0';
	if (!shmem && id > UINT32_MAX)
		return 0;
	r = parse_pagemap(c, file_name, id, shmem);
	release_chain(&c->own);
	if (r == -EOVERFLOW)
		snprintf(c->error, sizeof(c->error), "more than an image can describe");
	if (r != -EBADMSG && r != -EOVERFLOW)
		return r;
	layout_rollback(c->lay, mark);
	c->shared_pieces = pieces;
	say(c, file_name, c->error);
	return 0;
}

int parse_criu(struct layout *lay, const struct parse_dir *dir, parse_note_fn *note, void *note_ctx)
{
	struct criu *c = calloc(1, sizeof(*c));
	const char *name;
	int r;

	if (!c)
		return -ENOMEM;
	*c = (struct criu){ .lay = lay, .dir = dir, .note = note, .note_ctx = note_ctx, .shared_result = 1 };
	r = criu_files_read(dir, &c->files, c->error);
	if (r == -EBADMSG) {
		snprintf(lay->error, sizeof(lay->error), "regions have no names: %s", c->error);
		note(note_ctx, lay->error);
	}
	if (r == -EBADMSG || r == -ENOENT)
		r = 0;
	for (size_t i = 0; !r && (name = dir->name(dir->ctx, i)); i++) {
		char copy[NAME_ROOM];
		uint64_t id;
		bool shmem;

		if (!is_pagemap(name, &id, &shmem) || strlen(name) >= sizeof(copy))
			continue;
		/* the lender's string goes with the next call */
		memcpy(copy, name, strlen(name) + 1);
		r = parse_one(c, copy, id, shmem);
	}
	release_chain(&c->shared);
	criu_files_release(&c->files);
	free(c);
	return r;
}
