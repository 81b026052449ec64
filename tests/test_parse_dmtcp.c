/* SPDX-License-Identifier: Apache-2.0 */
/* What the parser of DMTCP images makes of small ones: every region and segment, and the exact error of bad ones. */
#include <sys/mman.h>

#include "tests/parse_check.h"

#define PAGE  4096u
#define ROOM  (32 * PAGE)
#define AREAS (2 * PAGE) /* offset of the first area in all images here */
#define ANON  (MAP_PRIVATE | MAP_ANONYMOUS)
#define RW    (PROT_READ | PROT_WRITE)

enum { ZERO = 1, PARENT = 2, CHILD = 4 };

struct image {
	uint8_t bytes[ROOM];
	size_t len;
	bool old; /* 2.6: fields where that has them */
};

static void put64(uint8_t *p, uint64_t v)
{
	for (unsigned i = 0; i < 8; i++)
		p[i] = (uint8_t)(v >> 8 * i);
}

static void start(struct image *img, const char *version)
{
	*img = (struct image){ .len = AREAS, .old = !strcmp(version, "2.6") };
	snprintf((char *)img->bytes, 64, "DMTCP_CHECKPOINT_IMAGE_v%s\n", *version == '4' ? "4.0" : "2.0");
	if (*version == '4') {
		put64(img->bytes + 104, 77);
		memcpy(img->bytes + PAGE, img->bytes, PAGE);
	} else {
		memcpy(img->bytes + PAGE, "MTCP_HEADER_v2.2\n", 17);
	}
}

/* @file_size: UINT64_MAX for memory; @payload: bytes that follow */
static void area(struct image *img, uint64_t addr, uint64_t size, uint64_t file_size, uint64_t properties,
		 const char *name, size_t payload)
{
	uint8_t *p = img->bytes + img->len;

	CHECK(img->len + PAGE + payload <= ROOM);
	put64(p, addr);
	put64(p + 8, addr + size);
	put64(p + 16, size);
	put64(p + 24, 0x3000);
	put64(p + 32, 0x5a5a5a5a00000000 | RW); /* the upper halves are not written by anybody */
	put64(p + 40, 0xa5a5a5a500000000 | (*name == '/' ? MAP_PRIVATE : ANON));
	if (!img->old)
		put64(p + 72, file_size);
	put64(p + (img->old ? 72 : 80), properties);
	snprintf((char *)p + (img->old ? 80 : 88), 1024, "%s", name);
	img->len += PAGE + payload;
}

static void end(struct image *img)
{
	put64(img->bytes + img->len + 16, UINT64_MAX);
	img->len += PAGE;
}

/* the image ends at a page that cannot be touched */
static int parse(const struct image *img, struct layout *ret)
{
	uint8_t *copy = guarded_buffer(img->len);

	memcpy(copy, img->bytes, img->len);
	return parse_check_file(parse_dmtcp, copy, img->len, ret);
}

static void check_region(const struct layout *lay, size_t k, uint64_t addr, uint64_t len, const char *name)
{
	const struct layout_region *r = &lay->regions[k];

	CHECK(k < lay->n_regions);
	CHECK_EQ(r->addr, addr);
	CHECK_EQ(r->len, len);
	CHECK_EQ(r->pgoff, 0x3000);
	CHECK_EQ(r->prot, RW);
	CHECK_EQ(r->flags, *name == '/' ? MAP_PRIVATE : ANON);
	CHECK(r->name_len == strlen(name) && !memcmp(lay->strings + r->name_off, name, r->name_len));
}

static void check_segment(const struct layout *lay, size_t k, uint64_t addr, uint64_t len, unsigned kind, uint64_t off)
{
	const struct layout_segment *s = &lay->segments[k];

	CHECK(k < lay->n_segments);
	CHECK_EQ(s->addr, addr);
	CHECK_EQ(s->len, len);
	CHECK_EQ(s->kind, kind);
	CHECK_EQ(s->off, off);
	CHECK_EQ(s->ino, kind == THAW_SEG_DATA ? 7 : 0);
}

/* a parent with a zero and a full child, a file that ends inside its mapping, and what that shifts */
static void test_v4(void)
{
	struct image img;
	struct layout lay;

	start(&img, "4.0");
	area(&img, 0x10000, 3 * PAGE, UINT64_MAX, PARENT, "", 0);
	area(&img, 0x10000, PAGE, UINT64_MAX, CHILD | ZERO, "", 0);
	area(&img, 0x11000, 2 * PAGE, UINT64_MAX, CHILD, "", 2 * PAGE);
	area(&img, 0x20000, 3 * PAGE, PAGE + 100, 0, "/lib/x", PAGE + 100);
	area(&img, 0x30000, PAGE, UINT64_MAX, 0, "[stack]", PAGE);
	end(&img);
	CHECK_EQ(parse(&img, &lay), 0);
	CHECK_EQ(lay.n_spaces, 1);
	CHECK_EQ(lay.spaces[0].kind, THAW_SPACE_DMTCP);
	CHECK_EQ(lay.spaces[0].pid, 77);
	CHECK_EQ(lay.n_regions, 3);
	check_region(&lay, 0, 0x10000, 3 * PAGE, "");
	check_region(&lay, 1, 0x20000, 3 * PAGE, "/lib/x");
	check_region(&lay, 2, 0x30000, PAGE, "[stack]");
	CHECK_EQ(lay.n_segments, 6);
	check_segment(&lay, 0, 0x10000, PAGE, THAW_SEG_HOLE, 0);
	check_segment(&lay, 1, 0x11000, 2 * PAGE, THAW_SEG_DATA, 5 * PAGE);
	check_segment(&lay, 2, 0x20000, PAGE + 100, THAW_SEG_DATA, 8 * PAGE);
	check_segment(&lay, 3, 0x21064, PAGE - 100, THAW_SEG_HOLE, 0);
	check_segment(&lay, 4, 0x22000, PAGE, THAW_SEG_ABSENT, 0);
	check_segment(&lay, 5, 0x30000, PAGE, THAW_SEG_DATA, 10 * PAGE + 100);
	CHECK_EQ(lay.n_cuts, 3);
	CHECK_EQ(lay.cuts[2].off, 10 * PAGE + 100);
	CHECK_EQ(lay.cuts[2].addr, 0x30000);
	layout_release(&lay);
}

/* 2.6 and 3.x have one signature; fields of 2.6 stand elsewhere, and its parts end where the whole mapping ends */
static void test_v2(void)
{
	static const char *const versions[] = { "3.0", "2.6" };
	struct image img;
	struct layout lay;

	for (unsigned i = 0; i < ARRAY_SIZE(versions); i++) {
		start(&img, versions[i]);
		area(&img, 0x10000, PAGE, UINT64_MAX, 0, "", PAGE);
		area(&img, 0x11000, PAGE, UINT64_MAX, ZERO, "", 0);
		if (img.old)
			put64(img.bytes + AREAS + 8, 0x12000);
		area(&img, 0x20000, PAGE, UINT64_MAX, 0, "/bin/y", PAGE);
		end(&img);
		CHECK_EQ(parse(&img, &lay), 0);
		CHECK_EQ(lay.n_regions, 3);
		check_region(&lay, 2, 0x20000, PAGE, "/bin/y");
		CHECK_EQ(lay.n_segments, 3);
		check_segment(&lay, 0, 0x10000, PAGE, THAW_SEG_DATA, 3 * PAGE);
		check_segment(&lay, 1, 0x11000, PAGE, THAW_SEG_HOLE, 0);
		check_segment(&lay, 2, 0x20000, PAGE, THAW_SEG_DATA, 6 * PAGE);
		layout_release(&lay);
	}
}

/* reserved address space takes no payload, whatever its size; what lies above 2^63 is a region without bytes */
static void test_extremes(void)
{
	struct image img;
	struct layout lay;

	start(&img, "4.0");
	area(&img, 0x100000000000, 2ull << 40, UINT64_MAX, PARENT, "", 0);
	area(&img, 0x100000000000, 2ull << 40, UINT64_MAX, CHILD | ZERO, "", 0);
	area(&img, 0xffffffffff600000, PAGE, UINT64_MAX, 0, "[vsyscall]", PAGE);
	end(&img);
	CHECK_EQ(parse(&img, &lay), 0);
	CHECK_EQ(lay.n_regions, 2);
	CHECK_EQ(lay.n_segments, 1);
	check_segment(&lay, 0, 0x100000000000, 2ull << 40, THAW_SEG_HOLE, 0);
	check_region(&lay, 1, 0xffffffffff600000, PAGE, "[vsyscall]");
	layout_release(&lay);
}

static void check_error(const struct image *img, const char *error)
{
	struct layout lay;

	CHECK_EQ(parse(img, &lay), -EBADMSG);
	CHECK_STR(lay.error, error);
	layout_release(&lay);
}

/* one area with a page of payload that @field of has another value */
static void check_field(unsigned field, uint64_t value, const char *error)
{
	struct image img;

	start(&img, "4.0");
	area(&img, 0x10000, PAGE, UINT64_MAX, 0, "/x", PAGE);
	end(&img);
	put64(img.bytes + AREAS + field, value);
	check_error(&img, error);
}

static void test_bad(void)
{
	struct image img;

	check_field(16, 0, "DMTCP image, offset 8192: an area whose addresses contradict its size");
	check_field(16, UINT64_MAX, "DMTCP image, offset 8192: an area whose addresses contradict its size");
	check_field(8, 0x12000, "DMTCP image, offset 8192: an area whose end contradicts its size");
	check_field(72, PAGE + 1, "DMTCP image, offset 8192: an area with more bytes than addresses");
	check_field(80, 8, "DMTCP image, offset 8192: an area with unknown properties");
	check_field(80, PARENT | ZERO, "DMTCP image, offset 8192: an area with unknown properties");
	check_field(80, CHILD, "DMTCP image, offset 8192: a part of an area that is not inside of it");

	start(&img, "4.0");
	area(&img, 0x10000, PAGE, UINT64_MAX, PARENT, "", 0);
	area(&img, 0x11000, PAGE, UINT64_MAX, CHILD, "", PAGE);
	end(&img);
	check_error(&img, "DMTCP image, offset 12288: a part of an area that is not inside of it");

	start(&img, "4.0");
	area(&img, 0x10000, 2 * PAGE, UINT64_MAX, 0, "", 2 * PAGE);
	area(&img, 0x11000, PAGE, UINT64_MAX, 0, "", PAGE);
	end(&img);
	check_error(&img, "overlapping region at address 0x11000 with length 0x1000");

	img.bytes[105] ^= 1;
	check_error(&img, "DMTCP image, offset 4096: the two copies of the header differ");
	img.len = PAGE + 100;
	check_error(&img, "DMTCP image, offset 4096: the image is cut short inside its header");
	img.len = 20;
	check_error(&img, "DMTCP image, offset 0: shorter than a signature");

	start(&img, "3.0");
	img.bytes[PAGE] = 'm';
	check_error(&img, "DMTCP image, offset 8192: there is no MTCP header");
	start(&img, "4.0");
	img.bytes[24] = '5';
	check_error(&img, "DMTCP image, offset 0: a version of the format that is not known");
}

/* a file that ends anywhere but at its end is never taken for a whole one */
static void test_cut(void)
{
	struct image img;
	size_t whole;

	start(&img, "4.0");
	area(&img, 0x10000, PAGE, UINT64_MAX, PARENT, "", 0);
	area(&img, 0x10000, PAGE, UINT64_MAX, CHILD, "", PAGE);
	end(&img);
	whole = img.len;
	CHECK_EQ(parse(&img, NULL), 0);
	for (img.len = 1; img.len < whole; img.len += img.len % PAGE < 200 ? 1 : 97)
		CHECK_EQ(parse(&img, NULL), -EBADMSG);
	img.len = whole - PAGE - 1;
	check_error(&img, "DMTCP image, offset 12288: the image is cut short inside an area");
	img.len = whole - 1;
	check_error(&img, "DMTCP image, offset 20480: the image is cut short: there is no end mark");
}

int main(void)
{
	test_v4();
	test_v2();
	test_extremes();
	test_bad();
	test_cut();
	return 0;
}
