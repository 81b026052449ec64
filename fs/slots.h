/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The images a worker serves, by slot number. The supervisor gives out slots and keeps their descriptors; a worker
 * only mirrors what it is told, and opens an image when it is first used.
 *
 * A slot that was handed out by a get or find stays valid until slot_put(). Any thread may call anything.
 */
#ifndef THAW_FS_SLOTS_H
#define THAW_FS_SLOTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fs/control.h"
#include "fs/stats.h"
#include "imgfmt/image.h"

struct slots;
struct slot;
struct views;

/* @src: the image, or the store's directory */
int slots_new(const char *src, bool store, struct slots **ret);
/* count what the images' sources do in @stats, which lives longer than @tbl: before the first slots_add() */
void slots_count(struct slots *tbl, struct stats *stats);
/* NULL is fine; no slot may be in use */
void slots_free(struct slots *tbl);

/* add what a CONTROL_IMAGE message says; takes @fd. Return: 0, -EEXIST, -EINVAL, -ENOMEM */
int slots_add(struct slots *tbl, const struct control_msg *msg, int fd);
void slots_unlist(struct slots *tbl, uint32_t number);
/* forget the slot once nobody has it */
void slots_retire(struct slots *tbl, uint32_t number);

/* Return: 0, -ESTALE if there is none */
int slots_get(struct slots *tbl, uint32_t number, struct slot **ret);
/* by the name the mount shows; only listed ones. Return: 0, -ENOENT */
int slots_find_name(struct slots *tbl, const char *name, struct slot **ret);
/* by image id, the lowest slot that has it, listed or not. Return: 0, -ENOENT */
int slots_find_id(struct slots *tbl, const uint8_t id[16], struct slot **ret);
/* the first slot from @number on that is listed, or (not @listed) is the one its id finds. Return: 0, -ENOENT */
int slots_next(struct slots *tbl, uint32_t number, bool listed, struct slot **ret);
/* NULL is fine */
void slot_put(struct slot *slot);

uint32_t slot_number(const struct slot *slot);
const struct control_msg *slot_info(const struct slot *slot);
bool slot_listed(const struct slot *slot);
int slot_fd(const struct slot *slot);
/* where the image file is, for messages and sidecar files */
const char *slot_path(const struct slot *slot);

/* the open image, opened on first use; a failure is logged and not remembered. Return: 0, -errno */
int slot_image(struct slot *slot, struct image **ret);
/* the tree of its memory views, made on first use */
int slot_views(struct slot *slot, struct views **ret);

#endif
