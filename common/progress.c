/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Thread model: the lock of a struct progress covers it and what is written about it; the log sink takes it
 * too, so a message and the bar never mix. progress_start() and progress_end() bracket the work's threads.
 */
#include "common/progress.h"
#include "common/clock.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/log.h"

#define BAR_DELAY_MS   1000
#define BAR_PERIOD_MS  100
#define LINE_DELAY_MS  5000
#define LINE_PERIOD_MS 5000

static struct progress *active; /* whose line messages must clear; changes only while no threads run */

const char *size_text(uint64_t bytes, char ret[SIZE_TEXT_MAX])
{
	static const char unit[] = "KMGTPE";
	double v = (double)bytes / 1024;
	int i = 0;

	if (bytes < 1024) {
		snprintf(ret, SIZE_TEXT_MAX, "%u B", (unsigned)bytes);
		return ret;
	}
	/* 1023.95 would print as 1024.0 */
	while (v >= 1023.95 && i < 5) {
		v /= 1024;
		i++;
	}
	snprintf(ret, SIZE_TEXT_MAX, "%.1f %ciB", v, unit[i]);
	return ret;
}

int progress_parse(const char *text, enum progress_mode *ret)
{
	if (!strcmp(text, "auto"))
		*ret = PROGRESS_AUTO;
	else if (!strcmp(text, "none"))
		*ret = PROGRESS_NONE;
	else if (!strcmp(text, "bar"))
		*ret = PROGRESS_BAR;
	else
		return -EINVAL;
	return 0;
}

static void put_stderr(const char *text, size_t len)
{
	/* progress that nobody can see is no reason to fail */
	if (write(STDERR_FILENO, text, len) < 0)
		return;
}

static unsigned terminal_width(void)
{
	struct winsize ws;

	if (ioctl(STDERR_FILENO, TIOCGWINSZ, &ws) == 0 && ws.ws_col >= 20)
		return ws.ws_col;
	return 80;
}

/* never less than was shown, 100 only for all of it */
static unsigned percent(struct progress *p)
{
	unsigned now = p->total ? (unsigned)((double)p->done * 100.0 / (double)p->total) : 0;

	if (now >= 100 && p->done < p->total)
		now = 99;
	if (p->finished)
		now = 100;
	if (now > p->percent)
		p->percent = now;
	return p->percent;
}

/* "packing  42 % [#####     ]  1.2 GiB of 3.0 GiB  412.0 MiB/s" */
static void draw_bar(struct progress *p, uint64_t now)
{
	char head[64], tail[96], bar[256], line[512], a[SIZE_TEXT_MAX], b[SIZE_TEXT_MAX], c[SIZE_TEXT_MAX];
	uint64_t ms = now - p->start_ms;
	unsigned width = terminal_width(), room, full;
	unsigned part = percent(p);
	int n;

	snprintf(head, sizeof(head), "%.40s %3u %%", p->label, part);
	snprintf(tail, sizeof(tail), "%s of %s  %s/s", size_text(p->done, a), size_text(p->total, b),
		 size_text(ms ? (uint64_t)((double)p->done * 1000.0 / (double)ms) : 0, c));
	room = (unsigned)(strlen(head) + strlen(tail)) + 7;
	room = width > room + 8 ? width - room : 8;
	if (room > sizeof(bar) - 1)
		room = sizeof(bar) - 1;
	full = room * part / 100;
	memset(bar, ' ', room);
	memset(bar, '#', full);
	bar[room] = '\0';
	n = snprintf(line, sizeof(line), "\r%s [%s]  %s\x1b[K", head, bar, tail);
	put_stderr(line, (size_t)n);
	p->shown = true;
}

static void draw_line(struct progress *p)
{
	char line[160], a[SIZE_TEXT_MAX], b[SIZE_TEXT_MAX];
	int n = snprintf(line, sizeof(line), "thawfs: %.40s: %u %%, %s of %s\n", p->label, percent(p),
			 size_text(p->done, a), size_text(p->total, b));

	put_stderr(line, (size_t)n);
	p->shown = true;
}

static void draw(struct progress *p, uint64_t now)
{
	if (p->bar)
		draw_bar(p, now);
	else
		draw_line(p);
	p->next_ms = now + (p->bar ? BAR_PERIOD_MS : LINE_PERIOD_MS);
}

/* messages while a bar is on: the bar's line goes, the message comes, the bar follows at its next update */
static void log_over_bar(enum log_level level, const char *text, void *ctx)
{
	struct progress *p = ctx;
	char line[8192];
	int n;

	(void)level;
	LOCK_GUARD(&p->lock);
	n = snprintf(line, sizeof(line), "%s%s\n", p->shown ? "\r\x1b[K" : "", text);
	put_stderr(line, (size_t)n < sizeof(line) ? (size_t)n : sizeof(line) - 1);
}

void progress_start(struct progress *p, enum progress_mode mode, const char *label)
{
	memset(p, 0, sizeof(*p));
	p->mode = mode;
	p->label = label;
	p->bar = mode == PROGRESS_BAR || (mode == PROGRESS_AUTO && isatty(STDERR_FILENO));
	p->start_ms = clock_ms();
	p->next_ms = p->start_ms;
	if (mode != PROGRESS_BAR)
		p->next_ms += p->bar ? BAR_DELAY_MS : LINE_DELAY_MS;
	pthread_mutex_init(&p->lock, NULL);
	if (p->bar && mode != PROGRESS_NONE && !active) {
		active = p;
		log_set_sink(log_over_bar, p);
	}
}

void progress_update(void *ctx, uint64_t done, uint64_t total)
{
	struct progress *p = ctx;
	uint64_t now;

	if (p->mode == PROGRESS_NONE)
		return;
	LOCK_GUARD(&p->lock);
	/* an estimate that turns out too small grows the total rather than show more than all of it */
	if (total > p->total)
		p->total = total;
	if (done > p->done)
		p->done = done < p->total ? done : p->total;
	now = clock_ms();
	if (now >= p->next_ms)
		draw(p, now);
}

void progress_end(struct progress *p, bool good)
{
	pthread_mutex_lock(&p->lock);
	if (p->mode != PROGRESS_NONE && (p->shown || p->mode == PROGRESS_BAR)) {
		if (good) {
			p->finished = true;
			p->done = p->total;
			draw(p, clock_ms());
		}
		if (p->bar && p->shown)
			put_stderr("\n", 1);
	}
	pthread_mutex_unlock(&p->lock);
	if (active == p) {
		active = NULL;
		log_set_sink(NULL, NULL);
	}
	pthread_mutex_destroy(&p->lock);
}
