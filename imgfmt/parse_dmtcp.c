/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DMTCP images: v4.0 (DMTCP 4 and later) and v2.0 (2.6 to 3.2). Both are a head and then areas, each a page with what
 * /proc/PID/maps said and the bytes behind it; they differ in the head, and 2.6 in where an area's fields are.
 *
 * Anonymous memory with zeros is a parent area, which is the region, and children inside of it, with bytes or
 * zero. Other areas are a region and its bytes.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/bytes.h"
#include "common/cleanup.h"
#include "imgfmt/parse.h"

#define SIGNATURE      "DMTCP_CHECKPOINT_IMAGE_v"
#define SIGNATURE_LEN  (sizeof(SIGNATURE) - 1)
#define MTCP_SIGNATURE "MTCP_HEADER_v2.2\n"
#define MTCP_SEARCH    (64u << 20) /* what a v2.0 image says about its process is a few KiB */
#define AREA_BYTES     4096u
#define AREA_NAME      1024u
#define AREA_HEAD      (88u + AREA_NAME) /* the bytes of an area header that mean something */
#define V4_PID         104u
#define V4_AREAS       8192u
#define VIEW_END       (1ull << 63)
#define PROT_BITS      7u

enum area_properties { ZERO = 1, PARENT = 2, CHILD = 4 };

/* where the fields are that moved; the others are the same in all versions */
struct area_format {
	const char *release;
	uint32_t file_size; /* 0: there is none */
	uint32_t properties, name;
};
static const struct area_format format_3 = { "3.0 or later", 72, 80, 88 };
static const struct area_format format_26 = { "2.6", 0, 72, 80 };

struct area {
	uint64_t addr, end, size, pgoff, file_size, properties;
	uint32_t prot, flags;
	const char *name;
	size_t name_len;
};

struct dmtcp {
	struct layout *lay;
	const struct parse_file *file;
	const struct area_format *format;
	uint64_t off;                 /* of the area header at hand */
	uint64_t parent, parent_size; /* the parent area that children belong to; size 0: none */
	uint8_t raw[AREA_HEAD];
};

static int bad(struct dmtcp *d, const char *what)
{
	snprintf(d->lay->error, sizeof(d->lay->error), "DMTCP image, offset %" PRIu64 ": %s", d->off, what);
	return -EBADMSG;
}

static struct area decode_area(const struct dmtcp *d)
{
	const uint8_t *p = d->raw;
	struct area a = {
		.addr = load_le64(p),
		.end = load_le64(p + 8),
		.size = load_le64(p + 16),
		.pgoff = load_le64(p + 24),
		.prot = load_le32(p + 32) & PROT_BITS,
		.flags = load_le32(p + 40),
		.file_size = d->format->file_size ? load_le64(p + d->format->file_size) : 0,
		.properties = load_le64(p + d->format->properties),
		.name = (const char *)p + d->format->name,
	};

	a.name_len = strnlen(a.name, AREA_NAME);
	return a;
}

static const char *area_error(const struct dmtcp *d, const struct area *a)
{
	if (a->properties > 7 || (a->properties & PARENT && a->properties != PARENT))
		return "an area with unknown properties";
	if (!a->size || a->size > UINT64_MAX - a->addr || a->addr + a->size > a->end)
		return "an area whose addresses contradict its size";
	/* 2.6 leaves the end of the whole mapping in the parts that it writes of it */
	if (a->end != a->addr + a->size && d->format != &format_26)
		return "an area whose end contradicts its size";
	if (a->properties & CHILD &&
	    (!d->parent_size || a->addr < d->parent || !range_inside(a->addr - d->parent, a->size, d->parent_size)))
		return "a part of an area that is not inside of it";
	return NULL;
}

/* how many bytes follow the area's header */
static uint64_t payload(const struct area *a)
{
	if (a->properties & (ZERO | PARENT))
		return 0;
	if (a->name_len && a->name[0] == '/' && a->file_size && a->file_size <= VIEW_END)
		return a->file_size;
	return a->size;
}

/*
 * The bytes of an area. Where a mapped file ends inside of it, the rest of that page is zero, and what lies behind was
 * not memory that could be read.
 */
static int add_bytes(struct dmtcp *d, const struct area *a, uint64_t len)
{
	uint64_t page_end = min_u64(align_up(len, THAW_PAGE), a->size);
	int r = 0;

	if (a->properties & ZERO)
		return layout_segment(d->lay, a->addr, a->size, THAW_SEG_HOLE, 0, 0, 0);
	if (len) {
		r = layout_segment(d->lay, a->addr, len, THAW_SEG_DATA, d->file->ino, d->file->base,
				   d->off + AREA_BYTES);
		if (!r)
			r = layout_cut(d->lay, d->file->ino, d->off + AREA_BYTES, len, a->addr);
	}
	if (!r && len < page_end)
		r = layout_segment(d->lay, a->addr + len, page_end - len, THAW_SEG_HOLE, 0, 0, 0);
	if (!r && page_end < a->size)
		r = layout_segment(d->lay, a->addr + page_end, a->size - page_end, THAW_SEG_ABSENT, 0, 0, 0);
	return r;
}

/* one area with its bytes; d->off goes on to the next */
static int add_area(struct dmtcp *d, const struct area *a)
{
	const char *what = area_error(d, a);
	uint64_t len = payload(a);
	int r = 0;

	if (what)
		return bad(d, what);
	if (len > a->size)
		return bad(d, "an area with more bytes than addresses");
	if (!range_inside(d->off + AREA_BYTES, len, d->file->src->size))
		return bad(d, "the image is cut short inside an area");
	if (!(a->properties & CHILD)) {
		r = layout_region(d->lay, a->addr, a->size, a->pgoff, a->prot, a->flags, a->name, a->name_len);
		d->parent = a->addr;
		d->parent_size = a->properties & PARENT ? a->size : 0;
	}
	/* what lies above 2^63 has no place in a view */
	if (!r && !(a->properties & PARENT) && range_inside(a->addr, a->size, VIEW_END))
		r = add_bytes(d, a, len);
	d->off += AREA_BYTES + len;
	return r;
}

/* all areas from d->off to the end mark */
static int add_areas(struct dmtcp *d)
{
	for (;;) {
		struct area a;
		int r;

		if (!range_inside(d->off, AREA_BYTES, d->file->src->size))
			return bad(d, "the image is cut short: there is no end mark");
		r = source_read(d->file->src, d->raw, sizeof(d->raw), d->off);
		if (r)
			return r;
		a = decode_area(d);
		if (a.addr == 0 && a.size == UINT64_MAX)
			break;
		r = add_area(d, &a);
		if (r)
			return r;
	}
	d->off += AREA_BYTES;
	return layout_end_space(d->lay);
}

static int parse_areas(struct dmtcp *d, const struct area_format *format, uint64_t off, const char *space_name,
		       uint32_t pid)
{
	int r = layout_begin_space(d->lay, space_name, strlen(space_name), THAW_SPACE_DMTCP, d->file->ino, pid);

	d->format = format;
	d->off = off;
	d->parent_size = 0;
	return r ? r : add_areas(d);
}

static int parse_v4(struct dmtcp *d, const char *space_name)
{
	uint8_t head[2][V4_PID + 4];
	int r = 0;

	for (unsigned i = 0; i < 2 && !r; i++) {
		d->off = (uint64_t)i * AREA_BYTES;
		if (!range_inside(d->off, sizeof(head[i]), d->file->src->size))
			return bad(d, "the image is cut short inside its header");
		r = source_read(d->file->src, head[i], sizeof(head[i]), d->off);
	}
	if (r)
		return r;
	if (memcmp(head[0], head[1], sizeof(head[0])) != 0)
		return bad(d, "the two copies of the header differ");
	return parse_areas(d, &format_3, V4_AREAS, space_name, load_le32(head[0] + V4_PID));
}

/* the page that begins with the MTCP header; what is before it has no fixed length */
static int find_mtcp_header(struct dmtcp *d)
{
	char text[sizeof(MTCP_SIGNATURE) - 1];

	for (d->off = AREA_BYTES; d->off < MTCP_SEARCH; d->off += AREA_BYTES) {
		int r;

		if (!range_inside(d->off, AREA_BYTES, d->file->src->size))
			break;
		r = source_read(d->file->src, text, sizeof(text), d->off);
		if (r)
			return r;
		if (!memcmp(text, MTCP_SIGNATURE, sizeof(text)))
			return 0;
	}
	return bad(d, "there is no MTCP header");
}

/*
 * 2.6 and 3.x have the same head. Of a wrong reading something is soon contradictory, except where both say the same,
 * so both are tried.
 */
static int parse_v2(struct dmtcp *d, const char *space_name)
{
	struct layout_mark mark = layout_mark(d->lay);
	int r = find_mtcp_header(d);
	uint64_t areas = d->off + AREA_BYTES, got;
	char error[sizeof(d->lay->error)];

	if (r)
		return r;
	r = parse_areas(d, &format_3, areas, space_name, 0);
	if (r != -EBADMSG)
		return r;
	got = d->off;
	memcpy(error, d->lay->error, sizeof(error));
	layout_rollback(d->lay, mark);
	r = parse_areas(d, &format_26, areas, space_name, 0);
	/* the reading that came further is the one whose error means something */
	if (r == -EBADMSG && d->off <= got)
		memcpy(d->lay->error, error, sizeof(error));
	return r;
}

static int parse(struct dmtcp *d, const char *space_name, parse_note_fn *note, void *note_ctx)
{
	char version[4], text[160];
	int r;

	if (d->file->src->size < SIGNATURE_LEN + sizeof(version))
		return bad(d, "shorter than a signature");
	r = source_read(d->file->src, version, sizeof(version), SIGNATURE_LEN);
	if (r)
		return r;
	if (!memcmp(version, "4.0\n", 4))
		r = parse_v4(d, space_name);
	else if (!memcmp(version, "2.0\n", 4))
		r = parse_v2(d, space_name);
	else
		return bad(d, "a version of the format that is not known");
	if (!r && d->off < d->file->src->size) {
		snprintf(text, sizeof(text), "%" PRIu64 " bytes behind the end of the DMTCP image",
			 d->file->src->size - d->off);
		note(note_ctx, text);
	}
	return r;
}

int parse_dmtcp(struct layout *lay, const struct parse_file *file, const char *space_name, parse_note_fn *note,
		void *note_ctx)
{
	struct dmtcp d = { .lay = lay, .file = file };
	int r = parse(&d, space_name, note, note_ctx);

	if (r == -EOVERFLOW)
		return bad(&d, "more than an image can describe");
	return r;
}
