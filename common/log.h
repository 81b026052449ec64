/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one path on which messages leave: one line each on standard error, "thawfs: " first, never
 * interleaved with another thread's line. Control characters in arguments are shown escaped, so that
 * a file name from an image cannot forge a line or drive the terminal.
 *
 * Any thread may call these. log_set_sink() is for tests and for the daemon (syslog), before threads start.
 */
#ifndef THAW_COMMON_LOG_H
#define THAW_COMMON_LOG_H

enum log_level { LOG_ERROR, LOG_WARN, LOG_NOTE, LOG_DETAIL };

/* messages above this level are dropped; LOG_NOTE at the start */
void log_set_level(enum log_level level);

/* @fn gets each finished line without newline; NULL: standard error again */
void log_set_sink(void (*fn)(enum log_level level, const char *line, void *ctx), void *ctx);

void log_msg(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define log_error(...)  log_msg(LOG_ERROR, __VA_ARGS__)
#define log_warn(...)   log_msg(LOG_WARN, __VA_ARGS__)
#define log_note(...)   log_msg(LOG_NOTE, __VA_ARGS__)
#define log_detail(...) log_msg(LOG_DETAIL, __VA_ARGS__)

#endif
