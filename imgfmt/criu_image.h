/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CRIU's image files, decoded: messages of a file one by one, and the three kinds that say where memory is.
 *
 * Errors: -EBADMSG with a sentence in the error buffer that every call takes, -ENOENT (there is no such file, no
 * sentence), -ENOMEM, errors of the source. Everything is bounded by the size of the files.
 */
#ifndef THAW_IMGFMT_CRIU_IMAGE_H
#define THAW_IMGFMT_CRIU_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "imgfmt/parse.h"

#define CRIU_ERROR 200

enum criu_page_flags { CRIU_PE_PARENT = 1, CRIU_PE_LAZY = 2, CRIU_PE_PRESENT = 4 };

/* a run of pages; off: in the file of pages, where PRESENT */
struct criu_pages {
	uint64_t addr, len, off;
	uint32_t flags;
};

struct criu_pagemap {
	struct criu_pages *runs; /* ascending, no overlap */
	size_t n;
	uint64_t pages_id;
	uint64_t file_bytes; /* length that the file of pages must have */
	bool compressed;     /* of a kind that is not understood: offsets mean nothing */
};

int criu_pagemap_read(const struct parse_dir *dir, const char *name, struct criu_pagemap *ret, char error[CRIU_ERROR]);
void criu_pagemap_release(struct criu_pagemap *map);
/* the first run that ends after @addr; map->n if there is none */
size_t criu_pagemap_at(const struct criu_pagemap *map, uint64_t addr);

enum criu_vma_status {
	CRIU_VMA_VSYSCALL = 1 << 2,
	CRIU_VMA_FILE_PRIVATE = 1 << 6,
	CRIU_VMA_FILE_SHARED = 1 << 7,
	CRIU_VMA_ANON_SHARED = 1 << 8,
	CRIU_VMA_ANON_PRIVATE = 1 << 9,
};

struct criu_vma {
	uint64_t start, end, pgoff, shmid;
	uint32_t prot, flags, status;
};

struct criu_mm {
	struct criu_vma *vmas; /* as they stand in the file */
	size_t n;
};

int criu_mm_read(const struct parse_dir *dir, const char *name, struct criu_mm *ret, char error[CRIU_ERROR]);
void criu_mm_release(struct criu_mm *mm);

/* names of regular files by their id */
struct criu_file {
	uint64_t id;
	size_t name_off, name_len;
};
struct criu_files {
	struct criu_file *files; /* by id */
	size_t n;
	char *names;
	size_t names_len, names_cap;
};

int criu_files_read(const struct parse_dir *dir, struct criu_files *ret, char error[CRIU_ERROR]);
void criu_files_release(struct criu_files *files);
/* "" and length 0 if the id is not that of a regular file */
const char *criu_file_name(const struct criu_files *files, uint64_t id, size_t *ret_len);

#endif
