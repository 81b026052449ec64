/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a restart does with an address space: an ordered list of what is read, mapped, served and left alone. It says
 * what thawfs-mtcp-restart does with a file of a mount (restore/mtcp/memory.c has the same rules), and tells it what is
 * served, from the image's index alone: nothing is decoded and nothing is changed. Not thread-safe.
 */
#ifndef THAW_RESTORE_PLAN_H
#define THAW_RESTORE_PLAN_H

#include <stddef.h>
#include <stdint.h>

#include "imgfmt/image.h"

enum plan_mode { PLAN_EAGER, PLAN_LAZY, PLAN_UFFD };

enum plan_action {
	PLAN_ANONYMOUS, /* zeros: nothing until it is touched */
	PLAN_READ,      /* before the process starts */
	PLAN_MAP,       /* from the memory view, read when touched */
	PLAN_SERVE,     /* by a page server, from the image; short holes in between too. Whole pages, not a stack */
	PLAN_N_ACTIONS
};

struct plan_item {
	uint64_t addr, len;
	enum plan_action action;
	uint32_t region; /* index in the space */
	uint64_t off;    /* PLAN_SERVE: where its bytes are in the member that the segment leads to */
};

struct plan {
	struct plan_item *items; /* by address; neighbours of one region differ in action */
	size_t n_items;
	uint64_t bytes[PLAN_N_ACTIONS];
	size_t room;
};

/*
 * plan_make - the plan for a space
 * @ret:  the caller gives it to plan_release()
 * Return: 0, -EBADMSG, -ENOMEM
 */
int plan_make(struct image *img, const struct image_space *space, enum plan_mode mode, struct plan *ret);
void plan_release(struct plan *plan);

/* "anonymous", "read", "map", "serve" */
const char *plan_action_name(enum plan_action action);

#endif
