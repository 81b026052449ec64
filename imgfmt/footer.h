/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Header and footer: one function each to decode and check, one each to encode (FORMAT.md sections 2 and 3). Pure
 * but for the messages.
 */
#ifndef THAW_IMGFMT_FOOTER_H
#define THAW_IMGFMT_FOOTER_H

#include <stdbool.h>
#include <stdint.h>

#include "imgfmt/format.h"

struct footer_section {
	uint32_t type, entry_size;
	uint64_t offset, length;
	uint8_t hash[16];
};

struct footer_info {
	uint32_t chunk_size, incompat, compat, n_sections;
	uint64_t file_size, data_end;
	uint8_t id[16];
	struct footer_section sections[THAW_MAX_SECTIONS];
};

/*
 * header_decode - check a header
 * @name:  for messages; NULL: say nothing
 * Return: 0, -EBADMSG, -EPROTONOSUPPORT
 */
int header_decode(const struct thaw_header *raw, const char *name, uint32_t *ret_chunk_size);

/*
 * footer_decode - check a footer, the last bytes of a file of @file_size bytes whose header said @chunk_size
 * Every rule of FORMAT.md section 3 that the footer alone can break is checked, so that sections lie in order inside
 * the file and their tables have a bounded number of whole entries.
 */
int footer_decode(const struct thaw_footer *raw, const char *name, uint64_t file_size, uint32_t chunk_size,
		  struct footer_info *ret);

void header_encode(uint32_t chunk_size, struct thaw_header *ret);

/* id is computed, not taken from @f */
void footer_encode(const struct footer_info *f, struct thaw_footer *ret);

/* entry size of a section type, 0 if the type is not known */
uint32_t section_entry_size(uint32_t type);

/* where a section's block hashes are, how many, and where they end */
static inline uint64_t section_n_blocks(const struct footer_section *s)
{
	return (s->length + THAW_INDEX_BLOCK - 1) / THAW_INDEX_BLOCK;
}
static inline uint64_t section_hashes(const struct footer_section *s)
{
	return align_up(s->offset + s->length, 8);
}
static inline uint64_t section_end(const struct footer_section *s)
{
	return section_hashes(s) + 8 * section_n_blocks(s);
}

#endif
