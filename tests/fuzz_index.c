/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz everything that reads an index: the input says what is in the sections, this makes an image with right checksums
 * from it, opens, reads all and checks it.
 *
 * Input: records of a type (1 byte), a length (2 bytes, little-endian) and that many bytes. Types 1 to 13 are what the
 * section of that type holds instead of the good image's; 0: the chunk data; 252: flags, two bytes for incompat and
 * compat; 253: the chunk size; 254: bytes written over the footer at the offset that their first two give, 255: over
 * the header, checksums made right again.
 */
#include "imgfmt/image_private.h"
#include "imgfmt/verify.h"
#include "tests/forge.h"
#include "tests/readall.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { REC_DATA = 0, REC_FLAGS = 252, REC_CHUNK_SIZE, REC_FOOTER, REC_HEADER };

static void replace(struct forge_section *s, const uint8_t *bytes, size_t len)
{
	s->len = 0;
	forge_add(s, bytes, len);
}

/* a record that changes what the image is made from */
static void tell(struct forge *f, uint8_t type, const uint8_t *bytes, size_t len)
{
	uint32_t entry = type < THAW_MAX_SECTIONS ? section_entry_size(type) : 0;

	if (type == REC_DATA) {
		replace(&f->chunk_data, bytes, len);
	} else if (type == REC_FLAGS && len >= 2) {
		f->incompat = bytes[0] & THAW_INCOMPAT_KNOWN;
		f->compat = bytes[1];
	} else if (type == REC_CHUNK_SIZE && len >= 1) {
		f->chunk_size = THAW_CHUNK_MIN << bytes[0] % 7;
	} else if (type < THAW_MAX_SECTIONS && type) {
		/* whole entries, or the footer alone is looked at */
		replace(&f->sections[type], bytes, entry ? len - len % entry : len);
	}
}

static void poke(uint8_t *image, size_t image_size, uint8_t type, const uint8_t *bytes, size_t len)
{
	uint8_t *page = type == REC_HEADER ? image : image + image_size - THAW_PAGE;
	size_t off;

	if (len < 3 || (type != REC_FOOTER && type != REC_HEADER))
		return;
	off = (bytes[0] | (size_t)bytes[1] << 8) % (THAW_PAGE - 8);
	memcpy(page + off, bytes + 2, min_u64(len - 2, THAW_PAGE - 8 - off));
	forge_rehash(image, image_size);
}

/* the good image's parts are made once: compressing takes longer than all the rest */
static void copy_good(struct forge *f)
{
	static struct forge good;

	if (!good.chunk_size)
		forge_good(&good);
	*f = (struct forge){ .chunk_size = good.chunk_size, .incompat = good.incompat };
	replace(&f->chunk_data, good.chunk_data.data, good.chunk_data.len);
	for (size_t i = 0; i < THAW_MAX_SECTIONS; i++)
		if (good.sections[i].len)
			replace(&f->sections[i], good.sections[i].data, good.sections[i].len);
}

struct record {
	uint8_t type;
	const uint8_t *bytes;
	size_t len;
};

/* the next record of the input; false at its end */
static bool next_record(const uint8_t **data, size_t *size, struct record *ret)
{
	size_t len;

	if (*size < 3)
		return false;
	len = min_u64((*data)[1] | (size_t)(*data)[2] << 8, *size - 3);
	*ret = (struct record){ .type = (*data)[0], .bytes = *data + 3, .len = len };
	*data += 3 + len;
	*size -= 3 + len;
	return true;
}

static void use(struct image *img)
{
	const struct verify_opts opts = { .threads = 1, .index_only = true };
	struct verify_result result;
	struct readall ra = { .img = img, .max_runs = 64, .max_items = 64 };
	struct seen(*seen)[SEEN_KINDS];

	ra.strings = (const char *)img->index.sections[THAW_STRINGS].data;
	ra.strings_len = img->index.sections[THAW_STRINGS].length;
	ra.ctx = chunk_ctx_new();
	ra.buf = malloc(image_info(img)->chunk_size);
	seen = malloc((readall_items(&ra) + 1) * sizeof(*seen));
	CHECK(ra.ctx && ra.buf && seen);
	readall(&ra, seen);
	CHECK_EQ(image_check(img, &opts, &result), 0);
	free(seen);
	free(ra.buf);
	chunk_ctx_free(ra.ctx);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const struct image_opts quiet = { .quiet = true };
	const uint8_t *from = data;
	size_t left = size, image_size;
	struct record rec;
	struct forge f;
	struct source *src;
	struct image *img;
	uint8_t *image;
	int r;

	copy_good(&f);
	while (next_record(&from, &left, &rec))
		tell(&f, rec.type, rec.bytes, rec.len);
	image = forge_build(&f, &image_size);
	for (from = data, left = size; next_record(&from, &left, &rec);)
		poke(image, image_size, rec.type, rec.bytes, rec.len);
	CHECK(source_open_memory(image, image_size, "fuzz", &src) == 0);
	r = image_open_source(src, &quiet, &img);
	CHECK(r == 0 || r == -EBADMSG || r == -EPROTONOSUPPORT);
	if (!r) {
		use(img);
		image_close(img);
	}
	free(image);
	forge_free(&f);
	return 0;
}
