/* SPDX-License-Identifier: Apache-2.0 */
/* The small parts of the writer: zero test, table, dedup map, encoder. */
#include "tests/test.h"

#include <xxhash.h>
#include <zstd.h>

#include "imgfmt/dedup.h"
#include "imgfmt/encode.h"
#include "imgfmt/format.h"
#include "imgfmt/shuffle.h"
#include "imgfmt/table.h"
#include "imgfmt/zero.h"

static void test_zero(void)
{
	/* every length around the block sizes, the odd byte at every place */
	for (size_t len = 0; len < 1100; len += len < 600 ? 1 : 37) {
		uint8_t *buf = guarded_buffer(len ? len : 1);

		memset(buf, 0, len);
		CHECK(is_zero(buf, len));
		for (size_t i = 0; i < len; i++) {
			buf[i] = 0x80;
			CHECK(!is_zero(buf, len));
			buf[i] = 0;
		}
	}
}

static void test_table(void)
{
	struct table t;
	uint64_t *first;

	table_init(&t, sizeof(uint64_t));
	first = table_push(&t);
	*first = 0;
	for (uint64_t i = 1; i < 20000; i++)
		*(uint64_t *)table_push(&t) = i;
	CHECK(first == table_at(&t, 0));
	for (uint64_t i = 0; i < t.n; i++)
		CHECK_EQ(*(uint64_t *)table_at(&t, i), i);
	table_release(&t);
}

static uint64_t weak_hash(const void *ctx, uint32_t number)
{
	(void)ctx;
	return number % 7 ? number * 0x9e3779b97f4a7c15u : 42;
}

static void test_dedup(void)
{
	struct dedup d = { .hash = weak_hash };
	size_t cursor = 0;
	uint32_t want = 0;

	CHECK_EQ(dedup_next(&d, 42, &cursor), DEDUP_NONE);
	for (uint32_t i = 0; i < 5000; i++)
		CHECK_EQ(dedup_add(&d, weak_hash(NULL, i), i), 0);
	/* equal hashes come in the order they were added */
	cursor = 0;
	for (uint32_t n; (n = dedup_next(&d, 42, &cursor)) != DEDUP_NONE; want += 7)
		CHECK_EQ(n, want);
	CHECK_EQ(want, 5005);
	for (uint32_t i = 1; i < 5000; i += 7) {
		cursor = 0;
		CHECK_EQ(dedup_next(&d, weak_hash(NULL, i), &cursor), i);
		CHECK_EQ(dedup_next(&d, weak_hash(NULL, i), &cursor), DEDUP_NONE);
	}
	dedup_release(&d);
}

#define C (256u << 10)

static struct encoded encode_once(uint8_t codec, const uint8_t *in, uint8_t *out)
{
	const struct encoder_opts opts = { .codec = codec, .level = 1, .filter = true, .chunk_size = C };
	struct encoder *enc = encoder_new(&opts);
	struct encoded e;

	CHECK(enc);
	CHECK_EQ(encode(enc, in, C, out, &e), 0);
	encoder_free(enc);
	return e;
}

static void test_encode(void)
{
	static uint8_t in[C], back[C], plain[C];
	uint8_t *out = malloc(encoder_bound(C));
	uint64_t seed = 7;
	struct encoded e;

	/* random: stored as it is, not copied */
	for (size_t i = 0; i < C; i += 8) {
		uint64_t v = test_random(&seed);

		memcpy(in + i, &v, 8);
	}
	e = encode_once(THAW_ZSTD, in, out);
	CHECK_EQ(e.codec, THAW_RAW);
	CHECK(e.data == in);
	CHECK_EQ(e.len, C);

	/* floats of one magnitude: lanes of four pay */
	for (size_t i = 0; i < C; i += 4) {
		float f = (float)(test_random(&seed) >> 40) / (1 << 24) + 1.0f;

		memcpy(in + i, &f, 4);
	}
	e = encode_once(THAW_ZSTD, in, out);
	CHECK_EQ(e.codec, THAW_ZSTD);
	CHECK_EQ(e.shuffle, 4);
	CHECK_EQ(ZSTD_decompress(back, C, e.data, e.len), C);
	unshuffle_bytes(plain, back, C, 4);
	CHECK(!memcmp(plain, in, C));
	CHECK(e.len < C / 10 * 9);

	/* text-like: no shuffle, content size in the frame */
	for (size_t i = 0; i < C; i++)
		in[i] = (uint8_t)("the quick brown fox jumps over "[i % 31] ^ (i % 257 == 0));
	e = encode_once(THAW_ZSTD, in, out);
	CHECK_EQ(e.codec, THAW_ZSTD);
	CHECK_EQ(e.shuffle, 0);
	CHECK_EQ(ZSTD_getFrameContentSize(e.data, e.len), C);
	e = encode_once(THAW_LZ4, in, out);
	CHECK_EQ(e.codec, THAW_LZ4);
	e = encode_once(THAW_RAW, in, out);
	CHECK_EQ(e.codec, THAW_RAW);
	free(out);
}

int main(void)
{
	test_zero();
	test_table();
	test_dedup();
	test_encode();
	return 0;
}
