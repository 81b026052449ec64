/* SPDX-License-Identifier: Apache-2.0 */
#include "common/json.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>

size_t utf8_sequence(const uint8_t *s, size_t len)
{
	uint32_t c = s[0];
	size_t n;

	if (c < 0x80)
		return 1;
	if (c >= 0xc2 && c <= 0xdf)
		n = 2;
	else if (c >= 0xe0 && c <= 0xef)
		n = 3;
	else if (c >= 0xf0 && c <= 0xf4)
		n = 4;
	else
		return 0;
	if (n > len)
		return 0;
	for (size_t i = 1; i < n; i++) {
		if ((s[i] & 0xc0) != 0x80)
			return 0;
	}
	/* too long for what they say, surrogates, past U+10FFFF */
	if ((c == 0xe0 && s[1] < 0xa0) || (c == 0xed && s[1] > 0x9f) || (c == 0xf0 && s[1] < 0x90) ||
	    (c == 0xf4 && s[1] > 0x8f))
		return 0;
	return n;
}

static void put_quoted(FILE *out, const uint8_t *s, size_t len)
{
	putc('"', out);
	for (size_t i = 0; i < len;) {
		size_t n = utf8_sequence(s + i, len - i);

		if (n == 0)
			fprintf(out, "\\udc%02x", s[i]);
		else if (n > 1)
			fwrite(s + i, 1, n, out);
		else if (s[i] == '"' || s[i] == '\\')
			fprintf(out, "\\%c", s[i]);
		else if (s[i] < 0x20 || s[i] == 0x7f)
			fprintf(out, "\\u%04x", s[i]);
		else
			putc(s[i], out);
		i += n ? n : 1;
	}
	putc('"', out);
}

void json_begin(struct json *js, FILE *out)
{
	memset(js, 0, sizeof(*js));
	js->out = out;
}

void json_end(struct json *js)
{
	assert(js->depth == 0);
	putc('\n', js->out);
}

static void put_indent(struct json *js)
{
	putc('\n', js->out);
	for (unsigned i = 0; i < js->depth; i++)
		fputs("  ", js->out);
}

/* what stands between two entries, and the key */
static void start_value(struct json *js, const char *key)
{
	if (js->depth) {
		bool compact = js->level[js->depth - 1].compact;

		if (js->level[js->depth - 1].started)
			fputs(compact ? ", " : ",", js->out);
		if (!compact)
			put_indent(js);
		js->level[js->depth - 1].started = true;
	}
	if (key) {
		put_quoted(js->out, (const uint8_t *)key, strlen(key));
		fputs(": ", js->out);
	}
}

static void open_level(struct json *js, const char *key, char opener, char closer, bool compact)
{
	assert(js->depth < JSON_DEPTH_MAX);
	start_value(js, key);
	putc(opener, js->out);
	js->level[js->depth].closer = closer;
	js->level[js->depth].started = false;
	js->level[js->depth].compact = compact || (js->depth && js->level[js->depth - 1].compact);
	js->depth++;
}

void json_object(struct json *js, const char *key)
{
	open_level(js, key, '{', '}', false);
}

void json_array(struct json *js, const char *key)
{
	open_level(js, key, '[', ']', false);
}

void json_object_line(struct json *js, const char *key)
{
	open_level(js, key, '{', '}', true);
}

void json_array_line(struct json *js, const char *key)
{
	open_level(js, key, '[', ']', true);
}

void json_close(struct json *js)
{
	assert(js->depth > 0);
	js->depth--;
	if (js->level[js->depth].started && !js->level[js->depth].compact)
		put_indent(js);
	putc(js->level[js->depth].closer, js->out);
}

void json_u64(struct json *js, const char *key, uint64_t value)
{
	start_value(js, key);
	fprintf(js->out, "%" PRIu64, value);
}

void json_i64(struct json *js, const char *key, int64_t value)
{
	start_value(js, key);
	fprintf(js->out, "%" PRId64, value);
}

void json_bool(struct json *js, const char *key, bool value)
{
	start_value(js, key);
	fputs(value ? "true" : "false", js->out);
}

void json_null(struct json *js, const char *key)
{
	start_value(js, key);
	fputs("null", js->out);
}

void json_double(struct json *js, const char *key, double value, int decimals)
{
	if (!isfinite(value)) {
		json_null(js, key);
		return;
	}
	start_value(js, key);
	fprintf(js->out, "%.*f", decimals, value);
}

void json_string(struct json *js, const char *key, const char *value)
{
	json_bytes(js, key, value, strlen(value));
}

void json_bytes(struct json *js, const char *key, const void *value, size_t len)
{
	start_value(js, key);
	put_quoted(js->out, value, len);
}

void json_raw(struct json *js, const char *key, const char *json)
{
	const uint8_t *p = (const uint8_t *)json;
	size_t len = strlen(json);

	start_value(js, key);
	for (size_t i = 0, n; i < len; i += n ? n : 1) {
		n = utf8_sequence(p + i, len - i);
		if (n)
			fwrite(p + i, 1, n, js->out);
		else
			fputs("\xef\xbf\xbd", js->out);
	}
}

void json_format(struct json *js, const char *key, const char *fmt, ...)
{
	char text[256];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	json_string(js, key, text);
}
