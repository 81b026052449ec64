/* SPDX-License-Identifier: Apache-2.0 */
#include "imgfmt/footer.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <xxhash.h>

#include "common/log.h"
#include "imgfmt/zero.h"

static int bad(const char *name, uint64_t off, const char *what)
{
	if (name)
		log_error("cannot read '%s': at offset %llu: %s", name, (unsigned long long)off, what);
	return -EBADMSG;
}

static int too_new(const char *name, const char *what, uint32_t value)
{
	if (name)
		log_error("cannot read '%s': made by a newer thawfs (%s %u)", name, what, value);
	return -EPROTONOSUPPORT;
}

static bool valid_chunk_size(uint32_t size)
{
	return size >= THAW_CHUNK_MIN && size <= THAW_CHUNK_MAX && (size & (size - 1)) == 0;
}

int header_decode(const struct thaw_header *raw, const char *name, uint32_t *ret_chunk_size)
{
	if (memcmp(raw->magic, THAW_MAGIC, sizeof(raw->magic)) != 0)
		return bad(name, 0, "not a thawfs image");
	if (le64_get(raw->hash) != XXH3_64bits(raw, offsetof(struct thaw_header, hash)))
		return bad(name, 0, "header checksum mismatch");
	if (le32_get(raw->version) > THAW_VERSION)
		return too_new(name, "version", le32_get(raw->version));
	if (le32_get(raw->version) == 0)
		return bad(name, 8, "version 0");
	if (!valid_chunk_size(le32_get(raw->chunk_size)))
		return bad(name, 12, "bad chunk size");
	if (!is_zero(raw->reserved, sizeof(raw->reserved)))
		return bad(name, 16, "reserved bytes are not zero");
	*ret_chunk_size = le32_get(raw->chunk_size);
	return 0;
}

uint32_t section_entry_size(uint32_t type)
{
	static const uint32_t sizes[THAW_SECTION_TYPES] = {
		[THAW_SUMMARY] = sizeof(struct thaw_summary),
		[THAW_CHUNKS] = sizeof(struct thaw_chunk),
		[THAW_INODES] = sizeof(struct thaw_inode),
		[THAW_NAMES] = sizeof(struct thaw_name),
		[THAW_EXTENTS] = sizeof(struct thaw_extent),
		[THAW_SPACES] = sizeof(struct thaw_space),
		[THAW_REGIONS] = sizeof(struct thaw_region),
		[THAW_SEGMENTS] = sizeof(struct thaw_segment),
		[THAW_XATTRS] = sizeof(struct thaw_xattr),
		[THAW_BASES] = sizeof(struct thaw_base),
		[THAW_STRINGS] = 1,
		[THAW_PROPERTIES] = 1,
	};

	return type < THAW_SECTION_TYPES ? sizes[type] : 0;
}

/* one entry of the section table; @end is where what came before it ends */
static const char *check_section(const struct thaw_section *raw, const struct footer_section *s, uint64_t end,
				 uint64_t footer_off)
{
	uint32_t entry_size = section_entry_size(s->type);

	if (!s->length || s->length > THAW_MAX_SECTION)
		return "bad section length";
	if (entry_size && s->entry_size != entry_size)
		return "bad section entry size";
	if (!s->entry_size || s->length % s->entry_size)
		return "section is not a whole number of entries";
	if (entry_size > 1 && s->length / entry_size > THAW_MAX_ENTRIES)
		return "too many entries in a section";
	if (s->type == THAW_SUMMARY && s->length != entry_size)
		return "not exactly one summary";
	if (s->type == THAW_BASES && s->length / s->entry_size > THAW_MAX_BASES)
		return "too many bases";
	if (s->offset != align_up(end, THAW_PAGE))
		return "section is not where the one before it ends";
	if (s->offset > footer_off || section_end(s) > footer_off)
		return "section reaches past the end of the image";
	if (!is_zero(raw->reserved, sizeof(raw->reserved)))
		return "reserved bytes are not zero";
	return NULL;
}

static int check_sections(const struct thaw_footer *raw, const char *name, uint64_t footer_off, struct footer_info *f)
{
	uint64_t end = f->data_end;
	uint32_t last = 0, seen = 0;

	for (uint32_t i = 0; i < f->n_sections; i++) {
		const struct thaw_section *rs = &raw->sections[i];
		struct footer_section *s = &f->sections[i];
		uint64_t at = footer_off + offsetof(struct thaw_footer, sections) + i * sizeof(*rs);
		const char *what;

		*s = (struct footer_section){
			.type = le32_get(rs->type),
			.entry_size = le32_get(rs->entry_size),
			.offset = le64_get(rs->offset),
			.length = le64_get(rs->length),
		};
		memcpy(s->hash, rs->hash, sizeof(s->hash));
		if (s->type <= last)
			return bad(name, at, "sections are not in ascending order");
		what = check_section(rs, s, end, footer_off);
		if (what)
			return bad(name, at, what);
		last = s->type;
		end = section_end(s);
		seen |= s->type < THAW_SECTION_TYPES ? 1u << s->type : 0;
	}
	if (!(seen & 1u << THAW_SUMMARY) || !(seen & 1u << THAW_INODES))
		return bad(name, footer_off, "summary or inodes are missing");
	if (!(seen & 1u << THAW_BASES) != !(f->incompat & THAW_INCOMPAT_BASE))
		return bad(name, footer_off, "the BASE flag and the bases disagree");
	if (align_up(end, THAW_PAGE) != footer_off)
		return bad(name, footer_off, "footer is not where the sections end");
	return 0;
}

static bool reserved_is_zero(const struct thaw_footer *raw, uint32_t n_sections)
{
	return le32_get(raw->reserved) == 0 && is_zero(raw->reserved2, sizeof(raw->reserved2)) &&
	       is_zero(raw->sections + n_sections, (THAW_MAX_SECTIONS - n_sections) * sizeof(struct thaw_section));
}

static void id_of(const struct thaw_section *sections, uint32_t n, uint8_t ret_id[16])
{
	XXH128_canonical_t c;

	XXH128_canonicalFromHash(&c, XXH3_128bits(sections, n * sizeof(*sections)));
	memcpy(ret_id, c.digest, 16);
}

/* what must hold before the section table is looked at */
static int check_fields(const struct thaw_footer *raw, const char *name, uint64_t footer_off, uint64_t file_size,
			uint32_t chunk_size)
{
	if (memcmp(raw->magic, THAW_FOOTER_MAGIC, sizeof(raw->magic)) != 0)
		return bad(name, footer_off, "incomplete image: the writer was interrupted");
	if (le64_get(raw->hash) != XXH3_64bits(raw, offsetof(struct thaw_footer, hash)))
		return bad(name, footer_off, "footer checksum mismatch");
	if (le32_get(raw->version) > THAW_VERSION)
		return too_new(name, "version", le32_get(raw->version));
	if (le32_get(raw->version) != THAW_VERSION || le32_get(raw->chunk_size) != chunk_size)
		return bad(name, footer_off + 8, "header and footer disagree");
	if (le32_get(raw->incompat) & ~(uint32_t)THAW_INCOMPAT_KNOWN)
		return too_new(name, "feature flags", le32_get(raw->incompat));
	if (le64_get(raw->file_size) != file_size)
		return bad(name, footer_off + 24, "the file has not the length that its footer says");
	if (le64_get(raw->data_end) < THAW_PAGE || le64_get(raw->data_end) > footer_off)
		return bad(name, footer_off + 32, "bad end of chunk data");
	if (le32_get(raw->n_sections) > THAW_MAX_SECTIONS)
		return bad(name, footer_off + 40, "too many sections");
	if (!reserved_is_zero(raw, le32_get(raw->n_sections)))
		return bad(name, footer_off, "reserved bytes are not zero");
	return 0;
}

int footer_decode(const struct thaw_footer *raw, const char *name, uint64_t file_size, uint32_t chunk_size,
		  struct footer_info *ret)
{
	uint64_t footer_off = file_size - sizeof(*raw);
	int r = check_fields(raw, name, footer_off, file_size, chunk_size);

	if (r)
		return r;
	*ret = (struct footer_info){
		.chunk_size = chunk_size,
		.incompat = le32_get(raw->incompat),
		.compat = le32_get(raw->compat),
		.n_sections = le32_get(raw->n_sections),
		.file_size = file_size,
		.data_end = le64_get(raw->data_end),
	};
	id_of(raw->sections, ret->n_sections, ret->id);
	if (memcmp(ret->id, raw->image_id, sizeof(ret->id)) != 0)
		return bad(name, footer_off + offsetof(struct thaw_footer, image_id), "image id mismatch");
	return check_sections(raw, name, footer_off, ret);
}

void header_encode(uint32_t chunk_size, struct thaw_header *ret)
{
	*ret = (struct thaw_header){ .version = le32_make(THAW_VERSION), .chunk_size = le32_make(chunk_size) };
	memcpy(ret->magic, THAW_MAGIC, sizeof(ret->magic));
	ret->hash = le64_make(XXH3_64bits(ret, offsetof(struct thaw_header, hash)));
}

void footer_encode(const struct footer_info *f, struct thaw_footer *ret)
{
	*ret = (struct thaw_footer){
		.version = le32_make(THAW_VERSION),
		.chunk_size = le32_make(f->chunk_size),
		.incompat = le32_make(f->incompat),
		.compat = le32_make(f->compat),
		.file_size = le64_make(f->file_size),
		.data_end = le64_make(f->data_end),
		.n_sections = le32_make(f->n_sections),
	};
	memcpy(ret->magic, THAW_FOOTER_MAGIC, sizeof(ret->magic));
	for (uint32_t i = 0; i < f->n_sections; i++) {
		const struct footer_section *s = &f->sections[i];

		ret->sections[i] = (struct thaw_section){
			.type = le32_make(s->type),
			.entry_size = le32_make(s->entry_size),
			.offset = le64_make(s->offset),
			.length = le64_make(s->length),
		};
		memcpy(ret->sections[i].hash, s->hash, sizeof(s->hash));
	}
	id_of(ret->sections, f->n_sections, ret->image_id);
	ret->hash = le64_make(XXH3_64bits(ret, offsetof(struct thaw_footer, hash)));
}
