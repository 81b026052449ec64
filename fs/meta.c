/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/meta.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/bytes.h"
#include "common/cleanup.h"
#include "common/version.h"
#include "imgfmt/format.h"

#define KEPT 64 /* texts of open files; an older one is made anew when it is read again */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
	uint64_t fh;
	struct text *text;
} kept[KEPT];
static uint64_t last_number;

static int make_text(struct fs *fs, const struct node *node, struct text **ret)
{
	struct text *text = calloc(1, sizeof(*text));
	int err = 0;

	if (!text)
		return -ENOMEM;
	text->refs = 1;
	if (node->number == META_STATUS) {
		err = stats_json(fs->stats, &fs->cfg, &text->data, &text->len);
	} else if (node->number == META_METRICS) {
		err = stats_metrics(fs->stats, &fs->cfg, &text->data, &text->len);
	} else {
		int n = asprintf(&text->data, "thawfs %s (image format %u)\n", THAWFS_VERSION, THAW_VERSION);

		err = n < 0 ? -ENOMEM : 0;
		text->len = err ? 0 : (size_t)n;
	}
	if (err) {
		free(text);
		return err;
	}
	*ret = text;
	return 0;
}

int meta_open(struct fs *fs, const struct node *node, uint64_t *ret_fh)
{
	struct text *text, *old;
	int err = make_text(fs, node, &text);

	if (err)
		return err;
	LOCK_GUARD(&lock);
	/* the pid, so that a handle of a former worker means nothing to its successor */
	*ret_fh = (uint64_t)getpid() << 32 | (uint32_t)++last_number;
	old = kept[last_number % KEPT].text;
	kept[last_number % KEPT].text = text;
	kept[last_number % KEPT].fh = *ret_fh;
	text_put(old);
	return 0;
}

int meta_text(struct fs *fs, const struct node *node, uint64_t fh, struct text **ret)
{
	{
		LOCK_GUARD(&lock);
		if (kept[(uint32_t)fh % KEPT].text && kept[(uint32_t)fh % KEPT].fh == fh) {
			*ret = kept[(uint32_t)fh % KEPT].text;
			(*ret)->refs++;
			return 0;
		}
	}
	return make_text(fs, node, ret);
}

void meta_close(uint64_t fh)
{
	LOCK_GUARD(&lock);
	if (kept[(uint32_t)fh % KEPT].text && kept[(uint32_t)fh % KEPT].fh == fh) {
		text_put(kept[(uint32_t)fh % KEPT].text);
		kept[(uint32_t)fh % KEPT].text = NULL;
	}
}

void meta_opened(struct fs *fs, const struct node *node, int change)
{
	/* adding 2^64 - 1 is taking one away */
	stats_add(&fs->stats->open_files, (uint64_t)(int64_t)change);
	if (node->kind != NODE_META && node->slot < STATS_SLOTS)
		atomic_fetch_add(&fs->stats->opens[node->slot], (uint32_t)change);
}
