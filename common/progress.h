/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How far a long piece of work has come, on standard error: a bar on a terminal once the work has taken a
 * second, a plain line every few seconds elsewhere, so that a log shows life without being flooded.
 *
 * What is shown never goes backwards, never passes 100 %, and ends at 100 % when the work succeeds.
 * While it is on, messages (log.h) clear the bar's line first. One at a time; progress_update() may be
 * called by any thread, the others by the one that owns the struct.
 */
#ifndef THAW_COMMON_PROGRESS_H
#define THAW_COMMON_PROGRESS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

enum progress_mode {
	PROGRESS_AUTO, /* a bar on a terminal, lines elsewhere */
	PROGRESS_NONE,
	PROGRESS_BAR, /* a bar wherever it goes, from the start */
};

struct progress {
	enum progress_mode mode;
	const char *label; /* "packing" */
	bool bar, shown, finished;
	unsigned percent; /* the most that was shown */
	uint64_t start_ms, next_ms;
	uint64_t done, total; /* as shown or to be shown; done ≤ total */
	pthread_mutex_t lock; /* over all that changes */
};

/* "auto", "none" or "bar". Return: 0 or -EINVAL */
int progress_parse(const char *text, enum progress_mode *ret);

void progress_start(struct progress *p, enum progress_mode mode, const char *label);

/* fits as callback of pack, unpack and verify; @ctx is the struct progress */
void progress_update(void *ctx, uint64_t done, uint64_t total);

/* @good: the work was done, show 100 %; else leave the line as it is */
void progress_end(struct progress *p, bool good);

/* "1.5 GiB" or, below 1024, "17 B". @ret has room for 16 bytes. */
#define SIZE_TEXT_MAX 16
const char *size_text(uint64_t bytes, char ret[SIZE_TEXT_MAX]);

#endif
