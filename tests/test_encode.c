/* SPDX-License-Identifier: Apache-2.0 */
/* What the encoder chooses for a chunk, that it decodes again, and that it is as small as it should be. */
#include "tests/test.h"

#include <xxhash.h>

#include "imgfmt/chunk.h"
#include "imgfmt/encode.h"
#include "imgfmt/format.h"
#include "tests/gendata.h"

#define CHUNK THAW_CHUNK_DEFAULT

static void fill(enum gen_kind kind, uint8_t *buf, size_t len)
{
	const struct gen g = { .kind = kind, .seed = 5 };

	for (size_t i = 0; i < len / GEN_PAGE; i++)
		gen_page(&g, i, buf + i * GEN_PAGE);
}

/* encode @len bytes, decode them, compare; returns what they shrank to, in percent */
static unsigned round_trip(const struct encoder_opts *opts, const uint8_t *in, uint32_t len, struct encoded *ret)
{
	struct encoder *enc = encoder_new(opts);
	uint8_t *out = malloc(encoder_bound(opts->chunk_size)), *back = malloc(opts->chunk_size);
	struct chunk_ctx *ctx = chunk_ctx_new();

	CHECK(enc && out && back && ctx);
	CHECK_EQ(encode(enc, in, len, out, ret), 0);
	const struct image_chunk c = {
		.stored_off = THAW_PAGE,
		.hash = XXH3_64bits(in, len),
		.stored_len = ret->len,
		.logical_len = len,
		.codec = ret->codec,
		.shuffle = ret->shuffle,
	};
	CHECK(!chunk_entry_error(&c, opts->chunk_size, 1 << 30));
	CHECK_EQ(chunk_decode(ctx, &c, opts->chunk_size, ret->data, back), 0);
	CHECK(!memcmp(in, back, len));
	chunk_ctx_free(ctx);
	encoder_free(enc);
	free(out);
	free(back);
	return (unsigned)((uint64_t)ret->len * 100 / len);
}

static void by_kind(void)
{
	static const struct {
		enum gen_kind kind;
		uint8_t codec, shuffle;
		unsigned at_most; /* percent */
	} cases[] = {
		{ GEN_BF16, THAW_ZSTD, 2, 68 }, { GEN_FLOATS, THAW_ZSTD, 4, 84 },  { GEN_TEXT, THAW_ZSTD, 0, 40 },
		{ GEN_HEAP, THAW_ZSTD, 0, 30 }, { GEN_PROCESS, THAW_ZSTD, 0, 50 }, { GEN_RANDOM, THAW_RAW, 0, 100 },
	};
	struct encoder_opts opts = { .codec = THAW_ZSTD, .level = 1, .filter = true, .chunk_size = CHUNK };
	uint8_t *in = malloc(CHUNK);
	struct encoded e;

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		fill(cases[i].kind, in, CHUNK);
		CHECK(round_trip(&opts, in, CHUNK, &e) <= cases[i].at_most);
		CHECK_EQ(e.codec, cases[i].codec);
		if (cases[i].kind != GEN_PROCESS)
			CHECK_EQ(e.shuffle, cases[i].shuffle);
		opts.filter = false;
		round_trip(&opts, in, CHUNK, &e);
		CHECK_EQ(e.shuffle, 0);
		opts.filter = true;
	}
	free(in);
}

/* every level, codec and chunk size, and lengths that are no multiple of any lane */
static void by_option(void)
{
	static const int levels[] = { -7, -1, 1, 3, 9, 19 };
	static const uint32_t sizes[] = { THAW_CHUNK_MIN, CHUNK, THAW_CHUNK_MAX };
	uint8_t *in = malloc(THAW_CHUNK_MAX);
	struct encoded e;

	fill(GEN_BF16, in, THAW_CHUNK_MAX);
	for (size_t l = 0; l < ARRAY_SIZE(levels); l++)
		for (size_t s = 0; s < ARRAY_SIZE(sizes); s++)
			for (int codec = THAW_ZSTD; codec <= THAW_LZ4; codec++) {
				const struct encoder_opts opts = { (uint8_t)codec, levels[l], true, sizes[s] };

				if (levels[l] == 19 && sizes[s] == THAW_CHUNK_MAX)
					continue;
				round_trip(&opts, in, sizes[s], &e);
				CHECK_EQ(e.shuffle, codec == THAW_ZSTD ? 2 : e.shuffle);
				round_trip(&opts, in, sizes[s] - 3, &e);
				for (uint32_t len = 1; len < 40; len++)
					round_trip(&opts, in, len * len * 7 - 6, &e);
			}
	free(in);
}

int main(void)
{
	by_kind();
	by_option();
	return 0;
}
