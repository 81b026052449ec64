/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the check (verify.c: bytes and chunks; verify_index.c: rules of the tables) share. */
#ifndef THAW_IMGFMT_VERIFY_PRIVATE_H
#define THAW_IMGFMT_VERIFY_PRIVATE_H

#include <pthread.h>

#include "imgfmt/image_private.h"
#include "imgfmt/verify.h"

struct check {
	struct index_listener listener; /* first: the listener is the check */
	struct image *img;
	const struct verify_opts *opts;
	struct verify_result *result;
	pthread_mutex_t lock; /* guards result and the callbacks of opts */
	uint64_t used_bases;  /* bit i: some chunk or segment needs BASES entry i */
	uint64_t n_missing;   /* bases that are not there: counted as damage, but no entry is wrong */
	bool mute_blocks;     /* damaged blocks were reported already */
	bool mute_entries;    /* and so were entries */
};

/* report damage that is not in a chunk's data */
void check_damage(struct check *c, uint64_t off, int error, const char *what);

/* every rule of FORMAT.md that entries can break, one table after the other. Return: 0, -ENOMEM */
int check_tables(struct check *c);

#endif
