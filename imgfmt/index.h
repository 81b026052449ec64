/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The index sections of an open image. A section is a reservation of address space as long as the section; its
 * blocks are read from the source, checked against their hash and then readable there for good, so that an entry
 * costs a look at one flag once its block has been used. Memory: the blocks that were touched.
 *
 * Threads may share an index. A section that the image does not have is one with n = 0.
 */
#ifndef THAW_IMGFMT_INDEX_H
#define THAW_IMGFMT_INDEX_H

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "imgfmt/footer.h"
#include "imgfmt/source.h"

struct index_section {
	uint64_t offset, length, n; /* in the file; entries */
	uint32_t entry_size;
	uint8_t *data;
	le64 *hashes;           /* one for each block */
	_Atomic uint8_t *ready; /* one for each block */
	pthread_mutex_t lock;   /* held while a block is read */
};

/* who wants to hear of damage instead of the log; @entry: of an entry's contents, not of a whole block */
struct index_listener {
	void (*damage)(struct index_listener *self, uint64_t off, int error, const char *what, bool entry);
};

struct index {
	struct source *src; /* not owned */
	const char *name;
	bool quiet;
	struct index_listener *listener; /* NULL: the log */
	struct index_section sections[THAW_SECTION_TYPES];
};

/* read and check the block hashes of all sections of @footer. Return: 0, -EBADMSG, -ENOMEM, an error of the source */
int index_open(struct index *index, struct source *src, const char *name, bool quiet, const struct footer_info *footer);
void index_release(struct index *index);

/*
 * index_bytes - make [off, off + len) of a section readable
 * Return: 0; -EBADMSG, also if the range is not inside the section; an error of the source
 */
int index_bytes(struct index *index, uint32_t type, uint64_t off, uint64_t len, const uint8_t **ret);

/* entry @i of a section. Return: 0, -EBADMSG (also if there is no such entry) */
static inline int index_entry(struct index *index, uint32_t type, uint64_t i, const void **ret)
{
	const struct index_section *s = &index->sections[type];
	const uint8_t *p;
	int r = i < s->n ? index_bytes(index, type, i * s->entry_size, s->entry_size, &p) : -EBADMSG;

	if (!r)
		*ret = p;
	return r;
}

static inline uint64_t index_count(const struct index *index, uint32_t type)
{
	return index->sections[type].n;
}

/* say that an entry is damaged, with where it is */
void index_report(const struct index *index, uint32_t type, uint64_t i, const char *what);

/* the same as a result; inline, so that an analyzer of the caller sees that it is never 0 */
static inline int index_damaged(const struct index *index, uint32_t type, uint64_t i, const char *what)
{
	index_report(index, type, i, what);
	return -EBADMSG;
}

#endif
