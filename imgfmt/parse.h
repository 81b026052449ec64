/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parsers of foreign checkpoint images. Each adds one or more address spaces and cuts to a layout, or
 * fails with a sentence in lay->error and leaves the rollback to the caller. They read through sources
 * only, trust nothing they read, and never modify or reinterpret bytes: the member stays byte-exact.
 *
 * Return values: 0; -EBADMSG not understood or contradictory (lay->error says what and at which offset);
 * -ENOMEM; an error of the source. "notes" are things worth one line to the user that are not errors.
 */
#ifndef THAW_IMGFMT_PARSE_H
#define THAW_IMGFMT_PARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "imgfmt/layout.h"
#include "imgfmt/source.h"

/* @head: the first @len bytes (4096 are enough) of a file. Return: enum thaw_file_format (never THAW_CRIU) */
int parse_detect(const uint8_t *head, size_t len);

/* a file that a parser may read */
struct parse_file {
	struct source *src; /* the lender keeps it open while the parser runs */
	uint32_t ino;
	uint16_t base; /* 0: of the tree being packed; k: of the k-th image handed in as parent */
};

typedef void parse_note_fn(void *ctx, const char *note);

/*
 * parse_dmtcp - DMTCP v4.0, and v2.0 of 2.6, 3.0, 3.1, 3.2
 * @space_name:  the member's path
 */
int parse_dmtcp(struct layout *lay, const struct parse_file *file, const char *space_name, parse_note_fn *note,
		void *note_ctx);

/* parse_elf - an ELF core, 32 or 64 bit, little-endian */
int parse_elf(struct layout *lay, const struct parse_file *file, const char *space_name, parse_note_fn *note,
	      void *note_ctx);

/* a CRIU images directory as the parser sees it */
struct parse_dir {
	const char *path; /* relative path in the tree, "" for the root; for names and messages */
	void *ctx;
	/* @index-th file name, or NULL past the end */
	const char *(*name)(void *ctx, size_t index);
	/* open by name: 0, -ENOENT. Stays open until the parser returns (the lender may cache and close later) */
	int (*open)(void *ctx, const char *name, struct parse_file *ret);
	/* where its `parent` link leads; NULL with parent_missing false: it has none */
	const struct parse_dir *parent;
	bool parent_missing; /* it has one, but that directory is not to be had */
};

/* does a directory look like a CRIU images directory? (inventory.img with its magic) */
bool parse_criu_detect(const struct parse_dir *dir);

/*
 * parse_criu - all processes and shared memory objects of an images directory
 * Spaces are named by the pid ("1234"), shared memory "shmem-<id>"; below the root with "path/" before.
 * A process that is not understood is noted and left out; the others stay.
 */
int parse_criu(struct layout *lay, const struct parse_dir *dir, parse_note_fn *note, void *note_ctx);

#endif
