/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Just enough of protobuf's wire format to look into messages of one's own choosing: fields one after the other,
 * bounded by the message, without memory. Sub-messages are bytes that are looked into by the same means.
 */
#ifndef THAW_IMGFMT_PROTOBUF_H
#define THAW_IMGFMT_PROTOBUF_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>

#include "common/bytes.h"

struct pb {
	const uint8_t *p, *end;
};

enum pb_type { PB_VARINT = 0, PB_FIXED64 = 1, PB_BYTES = 2, PB_FIXED32 = 5 };

struct pb_field {
	uint64_t number, value; /* value: of numbers, in two's complement */
	enum pb_type type;
	const uint8_t *data; /* of bytes */
	size_t len;
};

static inline int pb_varint(struct pb *pb, uint64_t *ret)
{
	uint64_t v = 0;

	for (unsigned shift = 0; shift < 70 && pb->p < pb->end; shift += 7) {
		uint8_t b = *pb->p++;

		if (shift == 63 && b > 1)
			return -EBADMSG;
		v |= (uint64_t)(b & 0x7f) << shift;
		if (!(b & 0x80)) {
			*ret = v;
			return 0;
		}
	}
	return -EBADMSG;
}

/* the next field. Return: 1; 0 at the end of the message; -EBADMSG */
static inline int pb_next(struct pb *pb, struct pb_field *ret)
{
	struct pb_field f = { 0 };
	uint64_t key;

	if (pb->p == pb->end)
		return 0;
	if (pb_varint(pb, &key))
		return -EBADMSG;
	f.number = key >> 3;
	f.type = key & 7;
	if (!f.number)
		return -EBADMSG;
	switch (f.type) {
	case PB_VARINT:
		if (pb_varint(pb, &f.value))
			return -EBADMSG;
		break;
	case PB_BYTES:
		if (pb_varint(pb, &f.value) || f.value > (size_t)(pb->end - pb->p))
			return -EBADMSG;
		f.data = pb->p;
		f.len = (size_t)f.value;
		pb->p += f.len;
		break;
	case PB_FIXED64:
	case PB_FIXED32:
		f.len = f.type == PB_FIXED64 ? 8 : 4;
		if (f.len > (size_t)(pb->end - pb->p))
			return -EBADMSG;
		f.value = f.len == 8 ? load_le64(pb->p) : load_le32(pb->p);
		pb->p += f.len;
		f.len = 0;
		break;
	default:
		return -EBADMSG;
	}
	*ret = f;
	return 1;
}

#endif
