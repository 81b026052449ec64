/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz the parser of CRIU directories.
 *
 * Input: records of a file's number (1 byte), a length (2 bytes, little-endian) and that many bytes. Numbers from 16 on
 * are the same files in the directory's parent, from 32 on in the parent's. Files of pages have the length that the
 * first four bytes give, up to 1 MiB.
 */
#include "tests/parse_check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const names[] = {
	"inventory.img", "pagemap-1.img",       "mm-1.img",      "pages-1.img",   "files.img",
	"pages-2.img",   "pagemap-shmem-2.img", "reg-files.img", "pagemap-3.img", "mm-3.img",
};
#define LEVELS    3
#define PAGES_MAX (1u << 20)

static uint64_t size_of(void *ctx, uint32_t ino, uint16_t base)
{
	const struct parse_check_dir *dirs = ctx, *d = &dirs[base ? LEVELS - 1 : ino / 100];
	uint32_t i = ino - d->first_ino;

	CHECK(d->base == base && i < d->n);
	return d->size[i];
}

static void add_file(struct parse_check_dir *d, uint8_t number, const uint8_t *data, size_t len)
{
	static const uint8_t pages[PAGES_MAX];
	const char *name = names[number];

	for (unsigned i = 0; i < d->n; i++)
		if (d->names[i] == name)
			return;
	if (!strncmp(name, "pages-", 6)) {
		len = len >= 4 ? load_le32(data) % (PAGES_MAX + 1) : 0;
		data = pages;
	}
	parse_check_dir_add(d, name, data, len);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct parse_check_dir dirs[LEVELS];
	struct layout lay;
	unsigned notes = 0;
	int r;

	for (unsigned i = 0; i < LEVELS; i++)
		parse_check_dir_init(&dirs[i], i ? "" : "dir", 100 * i, i == LEVELS - 1 ? 1 : 0);
	dirs[0].dir.parent = &dirs[1].dir;
	dirs[1].dir.parent = &dirs[2].dir;
	dirs[2].dir.parent_missing = size && data[size - 1] & 1;
	while (size >= 3) {
		size_t len = min_u64(data[1] | (size_t)data[2] << 8, size - 3);
		uint8_t level = data[0] / 16, number = data[0] % 16;

		if (level < LEVELS && number < sizeof(names) / sizeof(names[0]))
			add_file(&dirs[level], number, data + 3, len);
		data += 3 + len;
		size -= 3 + len;
	}
	layout_init(&lay);
	(void)parse_criu_detect(&dirs[0].dir);
	r = parse_criu(&lay, &dirs[0].dir, parse_check_note, &notes);
	CHECK_EQ(r, 0);
	parse_check_layout(&lay, size_of, dirs);
	layout_release(&lay);
	for (unsigned i = 0; i < LEVELS; i++)
		parse_check_dir_release(&dirs[i]);
	return 0;
}
