/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One pass with a stack of bits instead of recursion. Parsers that only want the content differ in what they let
 * pass (control characters, leading zeros, a NUL, half of a surrogate pair); two readers of an image must not.
 */
#include "imgfmt/properties.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "common/bytes.h"
#include "common/json.h"

#define DEPTH_MAX 64

/* what a value is, by its first character */
enum kind { STRING = '"', OBJECT = '{', ARRAY = '[', BOOLEAN = 't', NUMBER = '0', EMPTY = 'n' };

static const struct member {
	const char *name;
	enum kind kind;
	bool of_strings; /* what is in it */
} members[] = {
	{ "source", STRING, false },  { "single", BOOLEAN, false }, { "notes", ARRAY, true },
	{ "labels", OBJECT, true },   { "creator", STRING, false }, { "host", STRING, false },
	{ "created", STRING, false },
};

struct scan {
	const char *p, *end;
	unsigned depth;
	uint64_t objects;            /* bit i: level i + 1 is an object, not an array */
	const struct member *member; /* of the outermost object, that we are in; NULL: one that we do not know */
	unsigned seen;               /* bit i: members[i] was there */
};

static bool at_digit(const struct scan *s)
{
	return s->p < s->end && *s->p >= '0' && *s->p <= '9';
}

static void skip_space(struct scan *s)
{
	while (s->p < s->end && (*s->p == ' ' || *s->p == '\t' || *s->p == '\r' || *s->p == '\n'))
		s->p++;
}

static bool accept(struct scan *s, char c)
{
	if (s->p == s->end || *s->p != c)
		return false;
	s->p++;
	return true;
}

/* the four digits of \uXXXX. Return: the number, -1 */
static int hex4(const char *p, const char *end)
{
	int v = 0;

	if (end - p < 4)
		return -1;
	for (int i = 0; i < 4; i++) {
		const char *digits = "0123456789abcdefABCDEF", *d = p[i] ? strchr(digits, p[i]) : NULL;

		if (!d)
			return -1;
		v = v << 4 | (int)(d - digits < 16 ? d - digits : d - digits - 6);
	}
	return v;
}

/* after a backslash */
static const char *escape(struct scan *s)
{
	int c, low;

	if (s->p == s->end || !*s->p || !strchr("\"\\/bfnrtu", *s->p))
		return "an escape that there is not";
	if (*s->p++ != 'u')
		return NULL;
	c = hex4(s->p, s->end);
	if (c < 0)
		return "an escape that there is not";
	if (c == 0)
		return "a NUL in a string";
	s->p += 4;
	if (c < 0xd800 || c > 0xdfff)
		return NULL;
	low = c < 0xdc00 && s->end - s->p >= 6 && s->p[0] == '\\' && s->p[1] == 'u' ? hex4(s->p + 2, s->end) : -1;
	if (low < 0xdc00 || low > 0xdfff)
		return "half of a surrogate pair";
	s->p += 6;
	return NULL;
}

/* a string, from its quote on */
static const char *string(struct scan *s)
{
	if (!accept(s, '"'))
		return "not a string where one must be";
	while (s->p < s->end && *s->p != '"') {
		size_t n = utf8_sequence((const uint8_t *)s->p, (size_t)(s->end - s->p));
		const char *what;

		if (!n)
			return "not UTF-8";
		if ((unsigned char)*s->p < 0x20)
			return "a control character in a string";
		s->p += n;
		if (n == 1 && s->p[-1] == '\\' && (what = escape(s)))
			return what;
	}
	return accept(s, '"') ? NULL : "a string without end";
}

/* is a string, between its quotes and found good, this name? */
static bool is_name(const char *p, const char *end, const char *name)
{
	for (; *name; name++) {
		int c = p == end ? -1 : (unsigned char)*p++;

		/* no other escape stands for a letter */
		if (c == '\\' && p < end && *p++ == 'u') {
			c = hex4(p, end);
			p += 4;
		}
		if (c != *name)
			return false;
	}
	return p == end;
}

static const char *key(struct scan *s)
{
	const char *first = s->p + 1, *what = string(s);

	if (what || s->depth > 1)
		return what;
	s->member = NULL;
	for (size_t i = 0; i < ARRAY_SIZE(members); i++) {
		if (!is_name(first, s->p - 1, members[i].name))
			continue;
		if (s->seen & 1u << i)
			return "a member that is there twice";
		s->seen |= 1u << i;
		s->member = &members[i];
	}
	return NULL;
}

static const char *number(struct scan *s)
{
	static const char bad[] = "not a number";

	(void)accept(s, '-');
	if (!at_digit(s))
		return bad;
	if (!accept(s, '0'))
		while (at_digit(s))
			s->p++;
	else if (at_digit(s))
		return bad;
	if (accept(s, '.')) {
		if (!at_digit(s))
			return bad;
		while (at_digit(s))
			s->p++;
	}
	if (accept(s, 'e') || accept(s, 'E')) {
		if (!accept(s, '+'))
			(void)accept(s, '-');
		if (!at_digit(s))
			return bad;
		while (at_digit(s))
			s->p++;
	}
	return NULL;
}

static const char *word(struct scan *s, const char *text)
{
	size_t n = strlen(text);

	if ((size_t)(s->end - s->p) < n || memcmp(s->p, text, n) != 0)
		return "not a value";
	s->p += n;
	return NULL;
}

static const char *check_type(const struct scan *s, enum kind kind)
{
	if (s->depth == 0)
		return kind == OBJECT ? NULL : "not an object";
	if (!s->member)
		return NULL;
	if (s->depth == 1 ? kind != s->member->kind : s->member->of_strings && kind != STRING)
		return "a member of the wrong type";
	return NULL;
}

static enum kind kind_at(const struct scan *s)
{
	char c = s->p < s->end ? *s->p : '\0';

	if (c == '-' || at_digit(s))
		return NUMBER;
	return c == 'f' ? BOOLEAN : (enum kind)c;
}

/* a value, or the beginning of one; @ret_opened: what is in it comes next */
static const char *value(struct scan *s, bool *ret_opened)
{
	enum kind kind = kind_at(s);
	const char *what = check_type(s, kind);

	*ret_opened = kind == OBJECT || kind == ARRAY;
	if (what)
		return what;
	switch (kind) {
	case STRING:
		return string(s);
	case NUMBER:
		return number(s);
	case BOOLEAN:
		return word(s, *s->p == 't' ? "true" : "false");
	case EMPTY:
		return word(s, "null");
	case OBJECT:
	case ARRAY:
		break;
	default:
		return "not a value";
	}
	if (s->depth == DEPTH_MAX)
		return "nested too deep";
	s->p++;
	s->objects &= ~(1ull << s->depth);
	s->objects |= (uint64_t)(kind == OBJECT) << s->depth;
	s->depth++;
	return NULL;
}

static bool in_object(const struct scan *s)
{
	return s->objects >> (s->depth - 1) & 1;
}

/* after a value: the ends of what it is in, and a comma if something follows */
static const char *after_value(struct scan *s)
{
	for (; s->depth; s->depth--) {
		skip_space(s);
		if (accept(s, ','))
			return NULL;
		if (!accept(s, in_object(s) ? '}' : ']'))
			return "no comma and no end where one must be";
	}
	return NULL;
}

static const char *scan(struct scan *s)
{
	bool opened;

	do {
		const char *what = NULL;

		skip_space(s);
		if (s->depth && in_object(s)) {
			what = key(s);
			skip_space(s);
			if (!what && !accept(s, ':'))
				what = "no colon after a name";
			skip_space(s);
		}
		if (!what)
			what = value(s, &opened);
		if (what)
			return what;
		skip_space(s);
		/* an empty one ends at once */
		if (opened && s->p < s->end && *s->p == (in_object(s) ? '}' : ']'))
			opened = false;
		if (!opened && (what = after_value(s)))
			return what;
	} while (s->depth);
	skip_space(s);
	return s->p == s->end ? NULL : "something follows the object";
}

const char *properties_check(const char *text, size_t len, size_t *ret_off)
{
	struct scan s = { .p = text, .end = text + len };
	const char *what = scan(&s);

	*ret_off = (size_t)(s.p - text);
	return what;
}
