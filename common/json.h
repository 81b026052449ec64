/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing JSON, piece by piece, to a stream: memory stays the same for a million entries, and 64-bit numbers
 * stay exact. (Reading JSON is cJSON's.) Write errors stay in the stream: look at ferror() at the end.
 *
 * Strings are bytes, mostly file names: what is valid UTF-8 is written as it is, each other byte XX (always 0x80
 * or more) as the lone surrogate \udcXX. That is Python's "surrogateescape": os.fsencode() gives the bytes back.
 *
 *     json_begin(&js, out);
 *     json_object(&js, NULL);
 *     json_u64(&js, "size", 17);
 *     json_array(&js, "names"); json_string(&js, NULL, "a"); json_close(&js);
 *     json_close(&js);
 *     json_end(&js);
 *
 * A key of NULL is for the top and for what stands in arrays. Not thread-safe.
 */
#ifndef THAW_COMMON_JSON_H
#define THAW_COMMON_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define JSON_DEPTH_MAX 16

struct json {
	FILE *out;
	unsigned depth;
	struct {
		char closer;  /* ']' or '}' */
		bool started; /* has an entry */
		bool compact; /* it and all in it on one line */
	} level[JSON_DEPTH_MAX];
};

void json_begin(struct json *js, FILE *out);
/* ends the line; everything must be closed */
void json_end(struct json *js);

void json_object(struct json *js, const char *key);
void json_array(struct json *js, const char *key);
/* the same on one line, for entries of long lists */
void json_object_line(struct json *js, const char *key);
void json_array_line(struct json *js, const char *key);
void json_close(struct json *js);

void json_u64(struct json *js, const char *key, uint64_t value);
void json_i64(struct json *js, const char *key, int64_t value);
void json_bool(struct json *js, const char *key, bool value);
void json_null(struct json *js, const char *key);
/* @decimals digits after the point; not a finite number: null */
void json_double(struct json *js, const char *key, double value, int decimals);
void json_string(struct json *js, const char *key, const char *value);
void json_bytes(struct json *js, const char *key, const void *value, size_t len);
/* text that is JSON already, on one line; bytes that are not UTF-8 become U+FFFD */
void json_raw(struct json *js, const char *key, const char *json);
/* printf into a string, for octal modes and hexadecimal addresses */
void json_format(struct json *js, const char *key, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* length of the valid UTF-8 sequence at @s (of @len bytes), 0 if there is none */
size_t utf8_sequence(const uint8_t *s, size_t len);

#endif
