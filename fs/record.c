/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/record.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/cleanup.h"
#include "common/log.h"
#include "imgfmt/workset.h"

#define SAVE_EVERY_S 1

struct set {
	struct set *next;
	uint32_t slot;
	uint8_t id[16];
	char *path; /* of its file */
	uint8_t *seen;
	uint64_t n_chunks;
	uint32_t *list, n, room;
	uint32_t n_saved;
	bool failed; /* could not be saved: said once */
};

struct recorder {
	struct fs *fs;
	pthread_t thread;
	bool started;
	pthread_mutex_t lock;
	pthread_cond_t wake;
	/* under lock */
	bool stop;
	struct set *sets;
};

static void set_free(struct set *set)
{
	if (!set)
		return;
	free(set->path);
	free(set->seen);
	free(set->list);
	free(set);
}

static int set_add(struct set *set, uint32_t chunk)
{
	if (chunk >= set->n_chunks || set->seen[chunk / 8] & 1 << chunk % 8)
		return 0;
	if (set->n == set->room) {
		uint32_t room = set->room ? set->room * 2 : 256;
		uint32_t *p = realloc(set->list, room * sizeof(*p));

		if (!p)
			return -ENOMEM;
		set->list = p;
		set->room = room;
	}
	set->seen[chunk / 8] |= (uint8_t)(1 << chunk % 8);
	set->list[set->n++] = chunk;
	return 1;
}

/* what the predecessor saved */
static void take_over(struct set *set)
{
	_cleanup_free_ uint32_t *list = NULL;
	uint32_t n;

	if (workset_load(set->path, set->id, set->n_chunks, &list, &n))
		return;
	for (uint32_t i = 0; i < n; i++)
		if (set_add(set, list[i]) < 0)
			break;
	set->n_saved = set->n;
}

static struct set *set_new(const struct recorder *rec, struct slot *slot, struct image *img)
{
	struct set *set = calloc(1, sizeof(*set));

	if (!set)
		return NULL;
	set->slot = slot_number(slot);
	set->n_chunks = image_info(img)->n_chunks;
	memcpy(set->id, image_info(img)->id, sizeof(set->id));
	set->seen = calloc(1, set->n_chunks / 8 + 1);
	if (!set->seen || asprintf(&set->path, "%s" WORKSET_SUFFIX, slot_path(slot)) < 0) {
		set->path = NULL;
		set_free(set);
		return NULL;
	}
	if (stats_get(&rec->fs->stats->takeovers))
		take_over(set);
	return set;
}

void record_chunk(struct recorder *rec, struct slot *slot, struct image *img, uint32_t chunk)
{
	struct set *set;

	if (!rec)
		return;
	LOCK_GUARD(&rec->lock);
	for (set = rec->sets; set && set->slot != slot_number(slot);)
		set = set->next;
	if (!set) {
		set = set_new(rec, slot, img);
		if (!set)
			return;
		set->next = rec->sets;
		rec->sets = set;
	}
	if (set_add(set, chunk) > 0)
		stats_add(&rec->fs->stats->recorded, 1);
}

/* is the name still this image's? Its successor's working set is not ours to write */
static bool still_there(const struct fs *fs, uint32_t number)
{
	struct slot *slot;
	bool listed;

	if (slots_get(fs->slots, number, &slot))
		return false;
	listed = slot_listed(slot);
	slot_put(slot);
	return listed;
}

/* called with the lock held; lets it go while writing. Only the saving thread and record_free() call it */
static void save(struct recorder *rec, struct set *set)
{
	_cleanup_free_ uint32_t *copy = NULL;
	uint32_t n = set->n;
	int err;

	if (n == set->n_saved || set->failed || !still_there(rec->fs, set->slot))
		return;
	copy = malloc(n * sizeof(*copy));
	if (!copy)
		return;
	memcpy(copy, set->list, n * sizeof(*copy));
	pthread_mutex_unlock(&rec->lock);
	err = workset_save(set->path, set->id, copy, n);
	pthread_mutex_lock(&rec->lock);
	if (err) {
		log_warn("cannot save the working set '%s': %s", set->path, strerror(-err));
		set->failed = true;
	} else {
		set->n_saved = n;
	}
}

static void *save_now_and_then(void *arg)
{
	struct recorder *rec = arg;

	LOCK_GUARD(&rec->lock);
	while (!rec->stop) {
		struct timespec until;

		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_sec += SAVE_EVERY_S;
		pthread_cond_timedwait(&rec->wake, &rec->lock, &until);
		/* sets are only added, in front */
		for (struct set *set = rec->sets; set; set = set->next)
			save(rec, set);
	}
	return NULL;
}

int record_new(struct fs *fs, struct recorder **ret)
{
	struct recorder *rec = calloc(1, sizeof(*rec));
	int err;

	if (!rec)
		return -ENOMEM;
	rec->fs = fs;
	pthread_mutex_init(&rec->lock, NULL);
	pthread_cond_init(&rec->wake, NULL);
	err = pthread_create(&rec->thread, NULL, save_now_and_then, rec);
	if (err) {
		record_free(rec);
		return -err;
	}
	rec->started = true;
	*ret = rec;
	return 0;
}

void record_free(struct recorder *rec)
{
	struct set *set;

	if (!rec)
		return;
	if (rec->started) {
		{
			LOCK_GUARD(&rec->lock);
			rec->stop = true;
			pthread_cond_signal(&rec->wake);
		}
		pthread_join(rec->thread, NULL);
	}
	while ((set = rec->sets)) {
		rec->sets = set->next;
		set_free(set);
	}
	pthread_mutex_destroy(&rec->lock);
	pthread_cond_destroy(&rec->wake);
	free(rec);
}
