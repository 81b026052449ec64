/* SPDX-License-Identifier: Apache-2.0 */
/* What a file is, by its first bytes. */
#include <string.h>
#include <zlib.h>

#include "common/bytes.h"
#include "imgfmt/format.h"
#include "imgfmt/parse.h"

#define DMTCP_SIGNATURE     "DMTCP_CHECKPOINT_IMAGE_v"
#define DMTCP_SIGNATURE_LEN (sizeof(DMTCP_SIGNATURE) - 1)

#define ELF_CLASS           4
#define ELF_DATA            5
#define ELF_TYPE            16
#define ELF_TYPE_CORE       4

static bool is_dmtcp(const uint8_t *head, size_t len)
{
	/* "4.0\n" or "2.0\n"; an unknown version is left to the parser, which says that it is unknown */
	return len >= DMTCP_SIGNATURE_LEN + 4 && !memcmp(head, DMTCP_SIGNATURE, DMTCP_SIGNATURE_LEN);
}

static bool is_gzip_dmtcp(const uint8_t *head, size_t len)
{
	uint8_t out[DMTCP_SIGNATURE_LEN + 4];
	z_stream z = { 0 };
	bool found;

	if (len < 2 || head[0] != 0x1f || head[1] != 0x8b)
		return false;
	if (inflateInit2(&z, 16 + MAX_WBITS) != Z_OK)
		return false;
	z.next_in = (Bytef *)(uintptr_t)head;
	z.avail_in = (uInt)min_u64(len, THAW_PAGE);
	z.next_out = out;
	z.avail_out = sizeof(out);
	/* the result does not matter: either the signature came out, or not */
	(void)inflate(&z, Z_SYNC_FLUSH);
	found = is_dmtcp(out, sizeof(out) - z.avail_out);
	inflateEnd(&z);
	return found;
}

static bool is_core(const uint8_t *head, size_t len)
{
	return len >= 52 &&
	       !memcmp(head,
		       "\x7f"
		       "ELF",
		       4) &&
	       (head[ELF_CLASS] == 1 || head[ELF_CLASS] == 2) && head[ELF_DATA] == 1 &&
	       head[ELF_TYPE] == ELF_TYPE_CORE && head[ELF_TYPE + 1] == 0;
}

int parse_detect(const uint8_t *head, size_t len)
{
	if (is_dmtcp(head, len))
		return THAW_DMTCP;
	if (is_gzip_dmtcp(head, len))
		return THAW_DMTCP_GZ;
	return is_core(head, len) ? THAW_CORE : THAW_PLAIN;
}
