/* SPDX-License-Identifier: Apache-2.0 */
/* What the properties of an image may be: RFC 8259 to the letter, and the types that FORMAT.md names. */
#include <string.h>

#include "imgfmt/properties.h"
#include "tests/test.h"

static const char *const good[] = {
	"{}",
	" {\t}\r\n",
	"{\"source\":\"files\",\"single\":true,\"notes\":[],\"labels\":{}}",
	"{\"single\":false,\"notes\":[\"a\",\"\"],\"labels\":{\"a\":\"b\",\"c\":\"\"}}",
	"{\"creator\":\"x\",\"host\":\"y\",\"created\":\"z\"}",
	"{\"other\":[1,-0,0.5,-12.25e+3,1E-9,true,false,null,\"\",[],{},[{\"a\":[[]]}]]}",
	"{\"a\":\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\\ud83d\\ude00 \xc3\xa9 \x7f\"}",
	"{\"sourc\":5,\"sources\":5,\"\":5,\"Source\":5,\"x\":{\"source\":5,\"notes\":5},\"y\":[5]}",
	"{\"x\":1,\"x\":2}",
};

static const char *const bad[] = {
	"",
	" ",
	"[]",
	"\"a\"",
	"1",
	"null",
	"{",
	"}",
	"{]",
	"{\"a\"",
	"{\"a\":",
	"{\"a\":}",
	"{\"a\":1",
	"{\"a\":1,",
	"{\"a\":1,}",
	"{,}",
	"{\"a\" 1}",
	"{\"a\":1 2}",
	"{\"a\":1}}",
	"{\"a\":1}{}",
	"{\"a\":[1,]}",
	"{\"a\":[,1]}",
	"{\"a\":[1}}",
	"{\"a\":{1}}",
	"{a:1}",
	"{'a':1}",
	"{1:1}",
	"{\"a\":01}",
	"{\"a\":0123}",
	"{\"a\":-}",
	"{\"a\":+1}",
	"{\"a\":.5}",
	"{\"a\":1.}",
	"{\"a\":1e}",
	"{\"a\":1e+}",
	"{\"a\":NaN}",
	"{\"a\":Infinity}",
	"{\"a\":tru}",
	"{\"a\":True}",
	"{\"a\":nul}",
	"{\"a\":\"",
	"{\"a\":\"\\\"}",
	"{\"a\":\"\\x\"}",
	"{\"a\":\"\\u12\"}",
	"{\"a\":\"\\u12g4\"}",
	"{\"a\":\"\\u0000\"}",
	"{\"a\\u0000\":1}",
	"{\"a\":\"\\ud83d\"}",
	"{\"a\":\"\\ud83dx\"}",
	"{\"a\":\"\\ud83d\\u0041\"}",
	"{\"a\":\"\\ude00\"}",
	"{\"a\":\"\n\"}",
	"{\"a\":\"\x01\"}",
	"{\"a\":\"\xff\"}",
	"{\"a\":\"\xed\xa0\x80\"}",
	"{\"\xc3\":1}",
	"\xef\xbb\xbf{}",
	"{}\v",
	"{}\xc2\xa0",
	"{/**/}",
	"{\"source\":5}",
	"{\"sourc\\u0065\":5}",
	"{\"source\":null}",
	"{\"source\":[\"files\"]}",
	"{\"single\":1}",
	"{\"single\":\"true\"}",
	"{\"notes\":{}}",
	"{\"notes\":\"a\"}",
	"{\"notes\":[1]}",
	"{\"notes\":[\"a\",[\"b\"]]}",
	"{\"labels\":[1]}",
	"{\"labels\":[]}",
	"{\"labels\":{\"a\":1}}",
	"{\"labels\":{\"a\":{\"b\":\"c\"}}}",
	"{\"host\":1}",
	"{\"creator\":{}}",
	"{\"created\":1700000000}",
	"{\"source\":\"a\",\"x\":1,\"source\":\"b\"}",
};

/* what is looked at ends where nothing may be read */
static const char *check(const char *text, size_t len)
{
	char *copy = malloc(len + 1);
	const char *what;
	size_t off = SIZE_MAX;

	CHECK(copy);
	memcpy(copy, text, len);
	what = properties_check(copy, len, &off);
	CHECK(off <= len);
	CHECK(what || off == len);
	free(copy);
	return what;
}

static void check_depth(void)
{
	char text[200];

	for (size_t depth = 1; depth < 90; depth++) {
		/* the object, and arrays in it */
		size_t n = (size_t)sprintf(text, "{\"a\":");

		memset(text + n, '[', depth - 1);
		n += depth - 1;
		n += (size_t)sprintf(text + n, "%s", depth == 1 ? "1" : "");
		memset(text + n, ']', depth - 1);
		n += depth - 1;
		text[n++] = '}';
		CHECK_EQ(!check(text, n), depth <= 64);
	}
}

int main(void)
{
	for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++) {
		const char *what = check(good[i], strlen(good[i]));

		if (what)
			fprintf(stderr, "%s: %s\n", good[i], what);
		CHECK(!what);
		/* and no beginning of it is good, but for space at its end */
		for (size_t n = strlen(good[i]); n-- > 0;)
			CHECK(check(good[i], n) || strspn(good[i] + n, " \r\n\t") == strlen(good[i]) - n);
	}
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		if (!check(bad[i], strlen(bad[i])))
			fprintf(stderr, "let pass: %s\n", bad[i]);
		CHECK(check(bad[i], strlen(bad[i])));
	}
	CHECK(check("{\"a\":\"b\0c\"}", 11));
	CHECK(check("{}\0", 3));
	check_depth();
	return 0;
}
