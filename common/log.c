/* SPDX-License-Identifier: Apache-2.0 */
#include "common/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define LINE_MAX_BYTES 4096

static atomic_int log_level = LOG_NOTE;
static void (*sink)(enum log_level level, const char *line, void *ctx);
static void *sink_ctx;

void log_set_level(enum log_level level)
{
	atomic_store(&log_level, (int)level);
}

void log_set_sink(void (*fn)(enum log_level level, const char *line, void *ctx), void *ctx)
{
	sink = fn;
	sink_ctx = ctx;
}

/* control characters become \xNN; bytes above 0x7f pass, they may be UTF-8 */
static size_t escape(char *out, size_t room, const char *text)
{
	static const char hex[] = "0123456789abcdef";
	size_t n = 0;

	for (; *text && n + 5 < room; text++) {
		unsigned char c = (unsigned char)*text;

		if (c >= 0x20 && c != 0x7f) {
			out[n++] = (char)c;
			continue;
		}
		out[n++] = '\\';
		out[n++] = 'x';
		out[n++] = hex[c >> 4];
		out[n++] = hex[c & 15];
	}
	out[n] = '\0';
	return n;
}

void log_msg(enum log_level level, const char *fmt, ...)
{
	char text[LINE_MAX_BYTES], line[LINE_MAX_BYTES + 16] = "thawfs: ";
	size_t prefix = strlen(line), n;
	va_list ap;

	if ((int)level > atomic_load(&log_level))
		return;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	n = prefix + escape(line + prefix, sizeof(line) - prefix - 1, text);
	if (sink) {
		sink(level, line + prefix, sink_ctx);
		return;
	}
	line[n++] = '\n';
	/* one write, so that lines of several threads and processes stay whole */
	if (write(STDERR_FILENO, line, n) < 0)
		return;
}
