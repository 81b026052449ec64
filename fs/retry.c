/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/retry.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

/* 5 and 20 ms: readers of chunks try again by themselves, and wait longer */
#define TRIES    3
#define PAUSE_NS 5000000

struct retry {
	struct source base;
	struct source *inner;
	struct stats *stats;
};

static int retry_pread(struct source *src, void *buf, size_t len, uint64_t off)
{
	struct retry *retry = (struct retry *)src;
	struct timespec pause = { .tv_nsec = PAUSE_NS };
	int err;

	for (int i = 1;; i++) {
		err = source_read(retry->inner, buf, len, off);
		if (!err || err == -ENODATA || i == TRIES)
			return err;
		if (retry->stats)
			stats_add(&retry->stats->source_retries, 1);
		nanosleep(&pause, NULL);
		pause.tv_nsec *= 4;
	}
}

static void retry_close(struct source *src)
{
	source_close(((struct retry *)src)->inner);
	free(src);
}

static const struct source_ops retry_ops = { .pread = retry_pread, .close = retry_close };

int retry_source(struct source *inner, struct stats *stats, struct source **ret)
{
	struct retry *retry = calloc(1, sizeof(*retry));

	if (!retry) {
		source_close(inner);
		return -ENOMEM;
	}
	retry->base = (struct source){ .ops = &retry_ops, .size = inner->size, .name = inner->name };
	retry->inner = inner;
	retry->stats = stats;
	*ret = &retry->base;
	return 0;
}
