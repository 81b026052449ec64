/* SPDX-License-Identifier: Apache-2.0 */
#include "imgfmt/section_write.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

int section_out_begin(struct section_out *s, struct output *out)
{
	int r = output_align(out, THAW_PAGE);

	s->out = out;
	s->start = out->pos;
	s->length = 0;
	s->fill = s->n_hashes = 0;
	return r;
}

static int end_block(struct section_out *s)
{
	int r;

	if (s->n_hashes == s->cap_hashes) {
		size_t cap = 2 * s->cap_hashes + 64;
		le64 *bigger = reallocarray(s->hashes, cap, sizeof(*bigger));

		if (!bigger)
			return -ENOMEM;
		s->hashes = bigger;
		s->cap_hashes = cap;
	}
	s->hashes[s->n_hashes++] = le64_make(XXH3_64bits(s->block, s->fill));
	s->length += s->fill;
	r = output_write(s->out, s->block, s->fill);
	s->fill = 0;
	return r;
}

int section_out_put(struct section_out *s, const void *data, size_t len)
{
	const uint8_t *p = data;

	while (len) {
		size_t part = (size_t)min_u64(len, sizeof(s->block) - s->fill);
		int r;

		memcpy(s->block + s->fill, p, part);
		s->fill += part;
		p += part;
		len -= part;
		if (s->fill == sizeof(s->block) && (r = end_block(s)))
			return r;
	}
	return 0;
}

int section_out_end(struct section_out *s, uint32_t type, uint32_t entry_size, struct footer_info *footer)
{
	struct footer_section *entry = &footer->sections[footer->n_sections];
	XXH128_canonical_t hash;
	int r = s->fill ? end_block(s) : 0;

	if (r || !s->length)
		return r;
	r = output_align(s->out, 8);
	if (!r)
		r = output_write(s->out, s->hashes, s->n_hashes * sizeof(*s->hashes));
	if (r)
		return r;
	XXH128_canonicalFromHash(&hash, XXH3_128bits(s->hashes, s->n_hashes * sizeof(*s->hashes)));
	*entry = (struct footer_section){
		.type = type,
		.entry_size = entry_size,
		.offset = s->start,
		.length = s->length,
	};
	memcpy(entry->hash, hash.digest, sizeof(entry->hash));
	footer->n_sections++;
	return 0;
}

void section_out_release(struct section_out *s)
{
	free(s->hashes);
	s->hashes = NULL;
	s->cap_hashes = 0;
}
