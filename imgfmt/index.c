/* SPDX-License-Identifier: Apache-2.0 */
#include "imgfmt/index.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <xxhash.h>

#include "common/cleanup.h"
#include "common/log.h"

static const char *section_name(uint32_t type)
{
	static const char *const names[THAW_SECTION_TYPES] = {
		[THAW_SUMMARY] = "summary", [THAW_CHUNKS] = "chunks",     [THAW_INODES] = "inodes",
		[THAW_NAMES] = "names",     [THAW_EXTENTS] = "extents",   [THAW_SPACES] = "spaces",
		[THAW_REGIONS] = "regions", [THAW_SEGMENTS] = "segments", [THAW_XATTRS] = "xattrs",
		[THAW_BASES] = "bases",     [THAW_STRINGS] = "strings",   [THAW_PROPERTIES] = "properties",
	};

	return type < THAW_SECTION_TYPES && names[type] ? names[type] : "section";
}

void index_report(const struct index *index, uint32_t type, uint64_t i, const char *what)
{
	const struct index_section *s = &index->sections[type];
	uint64_t off = s->offset + i * s->entry_size;
	char text[128];

	if (index->listener) {
		snprintf(text, sizeof(text), "%s entry %llu: %s", section_name(type), (unsigned long long)i, what);
		index->listener->damage(index->listener, off, -EBADMSG, text, true);
	} else if (!index->quiet) {
		log_error("cannot read '%s': %s entry %llu at offset %llu: %s", index->name, section_name(type),
			  (unsigned long long)i, (unsigned long long)off, what);
	}
}

static int fail(const struct index *index, uint64_t off, int r, const char *what)
{
	if (index->listener)
		index->listener->damage(index->listener, off, r, what, false);
	else if (!index->quiet)
		log_error("cannot read '%s': at offset %llu: %s", index->name, (unsigned long long)off, what);
	return r;
}

/* -- opening ---------------------------------------------------------------------------------- */

static int open_section(struct index *index, const struct footer_section *fs)
{
	struct index_section *s = &index->sections[fs->type];
	uint64_t n_blocks = section_n_blocks(fs), hashes = section_hashes(fs);
	XXH128_canonical_t c;
	int r;

	s->offset = fs->offset;
	s->entry_size = fs->entry_size;
	s->hashes = malloc(8 * n_blocks);
	s->ready = calloc(n_blocks, 1);
	s->data = mmap(NULL, fs->length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (s->data == MAP_FAILED)
		s->data = NULL;
	s->length = fs->length;
	if (!s->hashes || !s->ready || !s->data)
		return fail(index, fs->offset, -ENOMEM, "out of memory");
	r = source_read(index->src, s->hashes, 8 * n_blocks, hashes);
	if (r)
		return fail(index, hashes, r, strerror(-r));
	XXH128_canonicalFromHash(&c, XXH3_128bits(s->hashes, 8 * n_blocks));
	if (memcmp(c.digest, fs->hash, sizeof(fs->hash)) != 0)
		return fail(index, hashes, -EBADMSG, "section checksum mismatch");
	s->n = fs->length / fs->entry_size;
	return 0;
}

int index_open(struct index *index, struct source *src, const char *name, bool quiet, const struct footer_info *footer)
{
	int r = 0;

	*index = (struct index){ .src = src, .name = name, .quiet = quiet };
	for (uint32_t type = 0; type < THAW_SECTION_TYPES; type++)
		pthread_mutex_init(&index->sections[type].lock, NULL);
	for (uint32_t i = 0; i < footer->n_sections && !r; i++)
		if (section_entry_size(footer->sections[i].type))
			r = open_section(index, &footer->sections[i]);
	return r;
}

void index_release(struct index *index)
{
	for (uint32_t type = 0; type < THAW_SECTION_TYPES; type++) {
		struct index_section *s = &index->sections[type];

		if (s->data)
			munmap(s->data, s->length);
		free(s->hashes);
		free((void *)s->ready);
		pthread_mutex_destroy(&s->lock);
	}
}

/* -- blocks ----------------------------------------------------------------------------------- */

static int load_block(struct index *index, struct index_section *s, uint64_t block)
{
	LOCK_GUARD(&s->lock);
	uint64_t off = block * THAW_INDEX_BLOCK;
	size_t len = (size_t)min_u64(THAW_INDEX_BLOCK, s->length - off);
	int r;

	if (atomic_load_explicit(&s->ready[block], memory_order_relaxed))
		return 0;
	r = source_read(index->src, s->data + off, len, s->offset + off);
	if (r)
		return fail(index, s->offset + off, r, strerror(-r));
	if (XXH3_64bits(s->data + off, len) != le64_get(s->hashes[block]))
		return fail(index, s->offset + off, -EBADMSG, "index checksum mismatch");
	atomic_store_explicit(&s->ready[block], 1, memory_order_release);
	return 0;
}

int index_bytes(struct index *index, uint32_t type, uint64_t off, uint64_t len, const uint8_t **ret)
{
	struct index_section *s = &index->sections[type];

	if (!range_inside(off, len, s->length))
		return -EBADMSG;
	if (len) {
		uint64_t last = (off + len - 1) / THAW_INDEX_BLOCK;

		for (uint64_t block = off / THAW_INDEX_BLOCK; block <= last; block++) {
			int r = atomic_load_explicit(&s->ready[block], memory_order_acquire)
					? 0
					: load_block(index, s, block);

			if (r)
				return r;
		}
	}
	*ret = s->data + off;
	return 0;
}
