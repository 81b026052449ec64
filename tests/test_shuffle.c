/* SPDX-License-Identifier: Apache-2.0 */
/* The shuffle filter against its definition, for every length around the vector sizes. */
#include "tests/test.h"

#include "imgfmt/shuffle.h"

static void naive(uint8_t *out, const uint8_t *in, size_t n, unsigned w)
{
	size_t m = n / w;

	for (size_t i = 0; i < n; i++)
		out[i] = in[i];
	for (unsigned l = 0; l < w; l++)
		for (size_t k = 0; k < m; k++)
			out[l * m + k] = in[k * w + l];
}

int main(void)
{
	uint64_t seed = 3;

	for (unsigned w = 2; w <= 8; w *= 2)
		for (size_t n = 0; n < 600; n++) {
			uint8_t *in = guarded_buffer(n ? n : 1), *out = guarded_buffer(n ? n : 1);
			uint8_t want[600], back[600];

			for (size_t i = 0; i < n; i++)
				in[i] = (uint8_t)test_random(&seed);
			naive(want, in, n, w);
			shuffle_bytes(out, in, n, w);
			CHECK(!memcmp(out, want, n));
			unshuffle_bytes(back, out, n, w);
			CHECK(!memcmp(back, in, n));
		}
	return 0;
}
