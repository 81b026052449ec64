/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/slots.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/log.h"
#include "fs/inode.h"
#include "fs/retry.h"
#include "fs/view.h"
#include "imgfmt/source.h"

#define BUCKETS 1024

struct slot {
	struct slots *tbl;
	struct control_msg info;
	int fd;
	char *path;
	/* under tbl->lock */
	unsigned refs; /* the table's own counts as one */
	bool listed;
	struct slot *next_name, *next_id; /* in the hash chains, newest first */
	/* under lock: made on first use, then fixed */
	pthread_mutex_t lock;
	struct image *img;
	struct views *views;
};

struct slots {
	char *dir;  /* of the images, for bases */
	char *file; /* a single image's path, or NULL */
	pthread_mutex_t lock;
	struct slot **slots; /* by number, NULL where there is none */
	uint32_t n_slots;
	struct stats *stats; /* set before there are slots */
	struct slot *by_name[BUCKETS], *by_id[BUCKETS];
};

static unsigned hash_bytes(const void *data, size_t len)
{
	const unsigned char *p = data;
	uint64_t h = 0xcbf29ce484222325u;

	while (len--)
		h = (h ^ *p++) * 0x100000001b3u;
	return (unsigned)(h >> 32) % BUCKETS;
}

int slots_new(const char *src, bool store, struct slots **ret)
{
	struct slots *tbl = calloc(1, sizeof(*tbl));
	const char *slash = strrchr(src, '/');

	if (!tbl)
		return -ENOMEM;
	pthread_mutex_init(&tbl->lock, NULL);
	if (store) {
		tbl->dir = strdup(src);
	} else {
		tbl->file = strdup(src);
		tbl->dir = slash ? strndup(src, slash == src ? 1 : (size_t)(slash - src)) : strdup(".");
	}
	if (!tbl->dir || (!store && !tbl->file)) {
		slots_free(tbl);
		return -ENOMEM;
	}
	*ret = tbl;
	return 0;
}

void slots_count(struct slots *tbl, struct stats *stats)
{
	tbl->stats = stats;
}

static void slot_free(struct slot *slot)
{
	views_free(slot->views);
	image_close(slot->img);
	close(slot->fd);
	free(slot->path);
	pthread_mutex_destroy(&slot->lock);
	free(slot);
}

void slots_free(struct slots *tbl)
{
	if (!tbl)
		return;
	for (uint32_t i = 0; i < tbl->n_slots; i++)
		if (tbl->slots[i])
			slot_free(tbl->slots[i]);
	free(tbl->slots);
	free(tbl->dir);
	free(tbl->file);
	pthread_mutex_destroy(&tbl->lock);
	free(tbl);
}

static int grow(struct slots *tbl, uint32_t number)
{
	uint32_t n = tbl->n_slots ? tbl->n_slots : 64;
	struct slot **p;

	while (n <= number)
		n *= 2;
	p = realloc(tbl->slots, n * sizeof(struct slot *));
	if (!p)
		return -ENOMEM;
	memset(p + tbl->n_slots, 0, (n - tbl->n_slots) * sizeof(struct slot *));
	tbl->slots = p;
	tbl->n_slots = n;
	return 0;
}

static struct slot *slot_new(struct slots *tbl, const struct control_msg *msg, int fd)
{
	struct slot *slot = calloc(1, sizeof(*slot));
	int n;

	if (!slot)
		return NULL;
	if (tbl->file)
		n = asprintf(&slot->path, "%s", tbl->file);
	else
		n = asprintf(&slot->path, "%s/%s", tbl->dir, msg->file);
	if (n < 0) {
		free(slot);
		return NULL;
	}
	slot->tbl = tbl;
	slot->info = *msg;
	slot->fd = fd;
	slot->refs = 1;
	slot->listed = msg->listed;
	pthread_mutex_init(&slot->lock, NULL);
	return slot;
}

int slots_add(struct slots *tbl, const struct control_msg *msg, int fd)
{
	_cleanup_close_ int own = fd;
	struct slot *slot;
	int err = 0;

	if (msg->slot >= NODE_MAX_SLOTS || fd < 0)
		return -EINVAL;
	LOCK_GUARD(&tbl->lock);
	if (msg->slot >= tbl->n_slots)
		err = grow(tbl, msg->slot);
	if (err)
		return err;
	if (tbl->slots[msg->slot])
		return -EEXIST;
	slot = slot_new(tbl, msg, own);
	if (!slot)
		return -ENOMEM;
	(void)steal_fd(&own);
	struct slot **name = &tbl->by_name[hash_bytes(msg->name, strlen(msg->name))];
	struct slot **id = &tbl->by_id[hash_bytes(msg->id, sizeof(msg->id))];
	slot->next_name = *name;
	*name = slot;
	slot->next_id = *id;
	*id = slot;
	tbl->slots[msg->slot] = slot;
	return 0;
}

void slots_unlist(struct slots *tbl, uint32_t number)
{
	LOCK_GUARD(&tbl->lock);
	if (number < tbl->n_slots && tbl->slots[number])
		tbl->slots[number]->listed = false;
}

void slots_retire(struct slots *tbl, uint32_t number)
{
	struct slot *slot = NULL, **p;

	{
		LOCK_GUARD(&tbl->lock);
		if (number < tbl->n_slots)
			slot = tbl->slots[number];
		if (!slot)
			return;
		tbl->slots[number] = NULL;
		for (p = &tbl->by_name[hash_bytes(slot->info.name, strlen(slot->info.name))]; *p != slot;)
			p = &(*p)->next_name;
		*p = slot->next_name;
		for (p = &tbl->by_id[hash_bytes(slot->info.id, sizeof(slot->info.id))]; *p != slot;)
			p = &(*p)->next_id;
		*p = slot->next_id;
	}
	slot_put(slot);
}

int slots_get(struct slots *tbl, uint32_t number, struct slot **ret)
{
	LOCK_GUARD(&tbl->lock);
	if (number >= tbl->n_slots || !tbl->slots[number])
		return -ESTALE;
	tbl->slots[number]->refs++;
	*ret = tbl->slots[number];
	return 0;
}

int slots_find_name(struct slots *tbl, const char *name, struct slot **ret)
{
	LOCK_GUARD(&tbl->lock);
	for (struct slot *s = tbl->by_name[hash_bytes(name, strlen(name))]; s; s = s->next_name)
		if (s->listed && !strcmp(s->info.name, name)) {
			s->refs++;
			*ret = s;
			return 0;
		}
	return -ENOENT;
}

/* chains have the newest first, so the last that fits has the lowest number */
static struct slot *find_id(const struct slots *tbl, const uint8_t id[16])
{
	struct slot *found = NULL;

	for (struct slot *s = tbl->by_id[hash_bytes(id, 16)]; s; s = s->next_id)
		if (!memcmp(s->info.id, id, 16))
			found = s;
	return found;
}

int slots_find_id(struct slots *tbl, const uint8_t id[16], struct slot **ret)
{
	struct slot *s;

	LOCK_GUARD(&tbl->lock);
	s = find_id(tbl, id);
	if (!s)
		return -ENOENT;
	s->refs++;
	*ret = s;
	return 0;
}

int slots_next(struct slots *tbl, uint32_t number, bool listed, struct slot **ret)
{
	LOCK_GUARD(&tbl->lock);
	for (; number < tbl->n_slots; number++) {
		struct slot *s = tbl->slots[number];

		if (!s || !(listed ? s->listed : find_id(tbl, s->info.id) == s))
			continue;
		s->refs++;
		*ret = s;
		return 0;
	}
	return -ENOENT;
}

void slot_put(struct slot *slot)
{
	bool last;

	if (!slot)
		return;
	{
		LOCK_GUARD(&slot->tbl->lock);
		last = --slot->refs == 0;
	}
	if (last)
		slot_free(slot);
}

uint32_t slot_number(const struct slot *slot)
{
	return slot->info.slot;
}

const struct control_msg *slot_info(const struct slot *slot)
{
	return &slot->info;
}

bool slot_listed(const struct slot *slot)
{
	LOCK_GUARD(&slot->tbl->lock);
	return slot->listed;
}

int slot_fd(const struct slot *slot)
{
	return slot->fd;
}

const char *slot_path(const struct slot *slot)
{
	return slot->path;
}

static int open_image(const struct slot *slot, struct image **ret)
{
	const char *const base_path[] = { slot->tbl->dir, NULL };
	struct image_opts opts = { .base_path = base_path };
	struct source *src;
	struct image *img;
	int fd = fcntl(slot->fd, F_DUPFD_CLOEXEC, 3), err;

	if (fd < 0) {
		err = -errno;
		log_error("cannot open '%s': %s", slot->path, strerror(-err));
		return err;
	}
	err = source_open_fd(fd, slot->path, &src);
	if (!err)
		err = retry_source(src, slot->tbl->stats, &src);
	if (err) {
		log_error("cannot open '%s': %s", slot->path, strerror(-err));
		return err;
	}
	err = image_open_source(src, &opts, &img);
	if (err)
		return err;
	if (memcmp(image_info(img)->id, slot->info.id, 16) != 0) {
		log_error("cannot use '%s': it was written over in place", slot->path);
		image_close(img);
		return -EBADMSG;
	}
	*ret = img;
	return 0;
}

int slot_image(struct slot *slot, struct image **ret)
{
	int err = 0;

	LOCK_GUARD(&slot->lock);
	if (!slot->img)
		err = open_image(slot, &slot->img);
	if (err)
		return err;
	*ret = slot->img;
	return 0;
}

int slot_views(struct slot *slot, struct views **ret)
{
	int err = 0;

	LOCK_GUARD(&slot->lock);
	if (!slot->img)
		err = open_image(slot, &slot->img);
	if (!err && !slot->views)
		err = views_new(slot->img, &slot->views);
	if (err)
		return err;
	*ret = slot->views;
	return 0;
}
