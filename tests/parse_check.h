/* SPDX-License-Identifier: Apache-2.0 */
/* For tests and fuzz targets of parsers: files in memory, and what must be true of any layout that a parser made. */
#ifndef THAW_TESTS_PARSE_CHECK_H
#define THAW_TESTS_PARSE_CHECK_H

#include <errno.h>

#include "imgfmt/layout.h"
#include "imgfmt/parse.h"
#include "tests/test.h"

static inline void parse_check_note(void *ctx, const char *note)
{
	unsigned *n = ctx;

	CHECK(note && *note && strlen(note) < 1024);
	if (n)
		++*n;
}

/* regions in order, segments in order and inside of them, bytes inside their file */
static inline void parse_check_space(const struct layout *lay, const struct layout_space *s,
				     uint64_t (*file_size)(void *ctx, uint32_t ino, uint16_t base), void *ctx)
{
	const struct layout_region *r = s->n_regions ? lay->regions + s->first_region : NULL;
	uint32_t k = 0;

	CHECK(s->name_len && (uint64_t)s->name_off + s->name_len <= lay->strings_len);
	for (uint32_t i = 0; i < s->n_regions; i++) {
		CHECK(r[i].len && r[i].len - 1 <= UINT64_MAX - r[i].addr && r[i].prot <= 7);
		CHECK(!i || r[i].addr - r[i - 1].addr >= r[i - 1].len);
		CHECK((uint64_t)r[i].name_off + r[i].name_len <= lay->strings_len);
	}
	for (uint32_t i = 0; i < s->n_segments; i++) {
		const struct layout_segment *g = lay->segments + s->first_segment + i;

		CHECK(g->len && g->addr + g->len <= 1ull << 63 && g->addr + g->len > g->addr);
		while (k < s->n_regions && g->addr - r[k].addr >= r[k].len)
			k++;
		CHECK(k < s->n_regions && g->addr >= r[k].addr && g->len <= r[k].len - (g->addr - r[k].addr));
		CHECK(!i || g->addr >= g[-1].addr + g[-1].len);
		if (g->kind == THAW_SEG_DATA)
			CHECK(range_inside(g->off, g->len, file_size(ctx, g->ino, g->base)));
		else
			CHECK(!g->off && !g->ino && !g->base);
	}
}

static inline void parse_check_layout(struct layout *lay, uint64_t (*file_size)(void *ctx, uint32_t ino, uint16_t base),
				      void *ctx)
{
	CHECK_EQ(layout_finish(lay), 0);
	for (size_t i = 0; i < lay->n_spaces; i++)
		parse_check_space(lay, &lay->spaces[i], file_size, ctx);
	for (size_t i = 0; i < lay->n_cuts; i++) {
		const struct layout_cut *c = &lay->cuts[i];

		CHECK(c->len && range_inside(c->off, c->len, file_size(ctx, c->ino, 0)));
		CHECK(!i || c->ino > c[-1].ino || c->off >= c[-1].off + c[-1].len);
	}
}

/* -- one file --------------------------------------------------------------------------------- */

typedef int parse_file_fn(struct layout *lay, const struct parse_file *file, const char *name, parse_note_fn *note,
			  void *note_ctx);

static inline uint64_t parse_check_one_size(void *ctx, uint32_t ino, uint16_t base)
{
	CHECK_EQ(ino, 7);
	CHECK_EQ(base, 0);
	return *(uint64_t *)ctx;
}

/* run a parser over bytes; whatever they are it succeeds with a sound layout, or says what is wrong */
static inline int parse_check_file(parse_file_fn *fn, const uint8_t *data, size_t size, struct layout *ret_lay)
{
	struct parse_file file = { .ino = 7 };
	struct layout lay;
	uint64_t bytes = size;
	unsigned notes = 0;
	int r;

	CHECK_EQ(source_open_memory(data, size, "input", &file.src), 0);
	layout_init(&lay);
	r = fn(&lay, &file, "input", parse_check_note, &notes);
	CHECK(r == 0 || r == -EBADMSG);
	if (r)
		CHECK(*lay.error && memchr(lay.error, 0, sizeof(lay.error)));
	else
		parse_check_layout(&lay, parse_check_one_size, &bytes);
	source_close(file.src);
	if (ret_lay)
		*ret_lay = lay;
	else
		layout_release(&lay);
	return r;
}

/* -- a directory ------------------------------------------------------------------------------ */

#define PARSE_CHECK_FILES 16

struct parse_check_dir {
	struct parse_dir dir;
	const char *names[PARSE_CHECK_FILES];
	const uint8_t *data[PARSE_CHECK_FILES];
	size_t size[PARSE_CHECK_FILES];
	struct source *src[PARSE_CHECK_FILES];
	unsigned n;
	uint32_t first_ino;
	uint16_t base;
};

static inline const char *parse_check_name(void *ctx, size_t index)
{
	struct parse_check_dir *d = ctx;

	return index < d->n ? d->names[index] : NULL;
}

static inline int parse_check_open(void *ctx, const char *name, struct parse_file *ret)
{
	struct parse_check_dir *d = ctx;

	for (unsigned i = 0; i < d->n; i++) {
		if (strcmp(d->names[i], name) != 0)
			continue;
		if (!d->src[i])
			CHECK_EQ(source_open_memory(d->data[i], d->size[i], name, &d->src[i]), 0);
		*ret = (struct parse_file){ .src = d->src[i], .ino = d->first_ino + i, .base = d->base };
		return 0;
	}
	return -ENOENT;
}

static inline void parse_check_dir_init(struct parse_check_dir *d, const char *path, uint32_t first_ino, uint16_t base)
{
	*d = (struct parse_check_dir){ .first_ino = first_ino, .base = base };
	d->dir = (struct parse_dir){ .path = path, .ctx = d, .name = parse_check_name, .open = parse_check_open };
}

static inline void parse_check_dir_add(struct parse_check_dir *d, const char *name, const uint8_t *data, size_t size)
{
	CHECK(d->n < PARSE_CHECK_FILES);
	d->names[d->n] = name;
	d->data[d->n] = data;
	d->size[d->n++] = size;
}

static inline void parse_check_dir_release(struct parse_check_dir *d)
{
	for (unsigned i = 0; i < d->n; i++)
		source_close(d->src[i]);
}

#endif
