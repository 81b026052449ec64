/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz the parser of DMTCP images.
 *
 * Input: a byte that says which kind (0: the rest is the file; 1: v4.0; 2: v2.0), then 112 bytes for the head of each
 * area: what stands there is spread to the pages that the format wants, and payloads of up to 16 KiB follow, so that
 * areas can be chained in small inputs.
 */
#include "tests/parse_check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define PAGE    4096u
#define HEAD    112u
#define AREAS   64u
#define PAYLOAD 16384u

static const char v4[] = "DMTCP_CHECKPOINT_IMAGE_v4.0\n", v2[] = "DMTCP_CHECKPOINT_IMAGE_v2.0\n";
static const char mtcp[] = "MTCP_HEADER_v2.2\n";

static size_t put_heads(uint8_t *file, uint8_t kind)
{
	memcpy(file, kind == 1 ? v4 : v2, sizeof(v4));
	if (kind == 1)
		memcpy(file + PAGE, v4, sizeof(v4));
	else
		memcpy(file + PAGE, mtcp, sizeof(mtcp));
	return 2 * (size_t)PAGE;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t *file;
	size_t at;

	if (!size)
		return 0;
	if (data[0] % 3 == 0) {
		(void)parse_check_file(parse_dmtcp, data + 1, size - 1, NULL);
		return 0;
	}
	file = calloc(1, 3 * (size_t)PAGE + (size_t)AREAS * (PAGE + PAYLOAD));
	CHECK(file);
	at = put_heads(file, data[0] % 3);
	for (size_t i = 1, n = 0; i < size && n < AREAS; i += HEAD, n++) {
		uint64_t len;

		memcpy(file + at, data + i, min_u64(HEAD, size - i));
		/* a name without an end */
		if (i + HEAD <= size && data[i + HEAD - 1] == 0xff)
			memset(file + at + HEAD, 'n', PAGE - HEAD);
		len = load_le64(file + at + 16);
		at += PAGE + (len <= PAYLOAD ? len : 0);
	}
	(void)parse_check_file(parse_dmtcp, file, at, NULL);
	free(file);
	return 0;
}
