/* SPDX-License-Identifier: Apache-2.0 */
/* What the parser of CRIU directories makes of small ones: every region and segment, and what it says of bad ones. */
#include <sys/mman.h>

#include "tests/parse_check.h"

#define COMMON       0x54564319u
#define INVENTORY    0x58313116u
#define PAGEMAP      0x56084025u
#define MM           0x57492820u
#define FILES        0x56303138u
#define PAGE         4096u

#define PE_PARENT    1u
#define PE_LAZY      2u
#define PE_PRESENT   4u

#define FILE_PRIVATE (1u << 6)
#define ANON_SHARED  (1u << 8)
#define ANON_PRIVATE (1u << 9)

#define RW           (PROT_READ | PROT_WRITE)

/* -- building files --------------------------------------------------------------------------- */

struct bytes {
	size_t len, room;
	uint8_t *p;
};

static void put(struct bytes *b, const void *data, size_t len)
{
	while (b->len + len > b->room) {
		b->room = b->room * 2 + 256;
		b->p = realloc(b->p, b->room);
		CHECK(b->p);
	}
	if (len)
		memcpy(b->p + b->len, data, len);
	b->len += len;
}

static void put_u32(struct bytes *b, uint32_t v)
{
	put(b, (uint8_t[]){ (uint8_t)v, (uint8_t)(v >> 8), (uint8_t)(v >> 16), (uint8_t)(v >> 24) }, 4);
}

static void put_varint(struct bytes *b, uint64_t v)
{
	for (; v > 0x7f; v >>= 7)
		put(b, (uint8_t[]){ (uint8_t)(v | 0x80) }, 1);
	put(b, (uint8_t[]){ (uint8_t)v }, 1);
}

static void put_number(struct bytes *b, unsigned field, uint64_t v)
{
	put_varint(b, field << 3);
	put_varint(b, v);
}

static void put_part(struct bytes *b, unsigned field, struct bytes part)
{
	put_varint(b, field << 3 | 2);
	put_varint(b, part.len);
	put(b, part.p, part.len);
	free(part.p);
}

static void put_message(struct bytes *b, struct bytes message)
{
	put_u32(b, (uint32_t)message.len);
	put(b, message.p, message.len);
	free(message.p);
}

static struct bytes image(uint32_t magic)
{
	struct bytes b = { 0 };

	put_u32(&b, COMMON);
	put_u32(&b, magic);
	return b;
}

static struct bytes pagemap(uint64_t pages_id)
{
	struct bytes b = image(PAGEMAP), head = { 0 };

	put_number(&head, 1, pages_id);
	put_message(&b, head);
	return b;
}

static void put_run(struct bytes *b, uint64_t addr, uint64_t n_pages, uint32_t flags)
{
	struct bytes entry = { 0 };

	put_number(&entry, 1, addr);
	put_number(&entry, 2, 0);
	put_number(&entry, 4, flags);
	put_number(&entry, 5, n_pages);
	put_message(b, entry);
}

/* the parts of an mm are collected in @mm, which mm_image() makes a file of */
static void put_vma(struct bytes *mm, uint64_t start, uint64_t end, uint64_t pgoff, uint64_t shmid, uint32_t status)
{
	struct bytes vma = { 0 };

	put_number(&vma, 1, start);
	put_number(&vma, 2, end);
	put_number(&vma, 3, pgoff);
	put_number(&vma, 4, shmid);
	put_number(&vma, 5, RW);
	put_number(&vma, 6, status & ANON_SHARED ? MAP_SHARED | MAP_ANONYMOUS : MAP_PRIVATE);
	put_number(&vma, 7, status);
	put_part(mm, 14, vma);
}

static struct bytes mm_image(struct bytes mm)
{
	struct bytes b = image(MM);

	put_message(&b, mm);
	return b;
}

static void put_file(struct bytes *b, uint64_t id, const char *name)
{
	struct bytes reg = { 0 }, entry = { 0 }, text = { 0 };

	put(&text, name, strlen(name));
	put_number(&reg, 1, id);
	put_part(&reg, 6, text);
	put_number(&entry, 1, 1);
	put_number(&entry, 2, id);
	put_part(&entry, 3, reg);
	put_message(b, entry);
}

/* -- directories ------------------------------------------------------------------------------ */

#define LEVELS 3

/* a dump and those before it: dirs[0] is parsed, dirs[i + 1] is the parent of dirs[i] */
struct dumps {
	struct parse_check_dir dirs[LEVELS];
	struct layout lay;
	unsigned n_notes;
	char note[1024];
};

static void add(struct dumps *d, unsigned level, const char *name, struct bytes b)
{
	parse_check_dir_add(&d->dirs[level], name, b.p, b.len);
}

static void add_pages(struct dumps *d, unsigned level, const char *name, size_t n_pages)
{
	struct bytes b = { .len = n_pages * PAGE, .p = calloc(n_pages + 1, PAGE) };

	CHECK(b.p);
	add(d, level, name, b);
}

static void dumps_init(struct dumps *d, unsigned levels, const char *path)
{
	struct bytes inventory = image(INVENTORY);

	*d = (struct dumps){ 0 };
	for (unsigned i = 0; i < LEVELS; i++)
		parse_check_dir_init(&d->dirs[i], i ? "" : path, 100 * i, 0);
	for (unsigned i = 0; i + 1 < levels; i++)
		d->dirs[i].dir.parent = &d->dirs[i + 1].dir;
	add(d, 0, "inventory.img", inventory);
	layout_init(&d->lay);
}

static void remember_note(void *ctx, const char *note)
{
	struct dumps *d = ctx;

	d->n_notes++;
	snprintf(d->note, sizeof(d->note), "%s", note);
}

static uint64_t size_of(void *ctx, uint32_t ino, uint16_t base)
{
	const struct dumps *d = ctx;

	CHECK_EQ(base, 0);
	CHECK(ino / 100 < LEVELS && ino % 100 < d->dirs[ino / 100].n);
	return d->dirs[ino / 100].size[ino % 100];
}

static void parse(struct dumps *d)
{
	CHECK(parse_criu_detect(&d->dirs[0].dir));
	CHECK_EQ(parse_criu(&d->lay, &d->dirs[0].dir, remember_note, d), 0);
	parse_check_layout(&d->lay, size_of, d);
}

static void release(struct dumps *d)
{
	for (unsigned i = 0; i < LEVELS; i++) {
		parse_check_dir_release(&d->dirs[i]);
		for (unsigned k = 0; k < d->dirs[i].n; k++)
			free((void *)d->dirs[i].data[k]);
	}
	layout_release(&d->lay);
}

static uint32_t ino_of(const struct dumps *d, unsigned level, const char *name)
{
	for (unsigned i = 0; i < d->dirs[level].n; i++)
		if (!strcmp(d->dirs[level].names[i], name))
			return d->dirs[level].first_ino + i;
	CHECK(!"such a file");
	return 0;
}

/* the @k-th space has this name, and these are its segments, to the last one */
static void check_space(const struct dumps *d, size_t k, const char *name, const struct layout_segment *want, size_t n)
{
	const struct layout_space *s = &d->lay.spaces[k];
	char got[64];

	CHECK(k < d->lay.n_spaces);
	snprintf(got, sizeof(got), "%.*s", (int)s->name_len, d->lay.strings + s->name_off);
	CHECK_STR(got, name);
	CHECK_EQ(s->n_segments, n);
	for (size_t i = 0; i < n; i++) {
		const struct layout_segment *g = &d->lay.segments[s->first_segment + i];

		CHECK_EQ(g->addr, want[i].addr);
		CHECK_EQ(g->len, want[i].len);
		CHECK_EQ(g->kind, want[i].kind);
		CHECK_EQ(g->ino, want[i].ino);
		CHECK_EQ(g->off, want[i].off);
	}
}

static struct layout_segment data(uint64_t addr, uint64_t pages, uint32_t ino, uint64_t page)
{
	return (struct layout_segment){
		.addr = addr, .len = pages * PAGE, .kind = THAW_SEG_DATA, .ino = ino, .off = page * PAGE
	};
}

static struct layout_segment absent(uint64_t addr, uint64_t pages)
{
	return (struct layout_segment){ .addr = addr, .len = pages * PAGE, .kind = THAW_SEG_ABSENT };
}

/* -- one dump --------------------------------------------------------------------------------- */

/* pages here, pages of nobody (zero), pages left to their file and to the process itself (absent) */
static void test_process(void)
{
	struct bytes map = pagemap(1), mm = { 0 }, files = image(FILES);
	struct dumps d;

	dumps_init(&d, 1, "dir");
	put_vma(&mm, 0x400000, 0x404000, 0x2000, 9, FILE_PRIVATE);
	put_vma(&mm, 0x800000, 0x808000, 0, 0, ANON_PRIVATE);
	put_run(&map, 0x401000, 1, PE_PRESENT);
	put_run(&map, 0x801000, 2, PE_PRESENT | PE_LAZY);
	put_run(&map, 0x804000, 1, PE_LAZY);
	put_run(&map, 0x805000, 1, PE_PRESENT);
	put_file(&files, 9, "/usr/bin/prog");
	add(&d, 0, "pagemap-12.img", map);
	add(&d, 0, "mm-12.img", mm_image(mm));
	add(&d, 0, "files.img", files);
	add_pages(&d, 0, "pages-1.img", 4);
	parse(&d);
	CHECK_EQ(d.n_notes, 0);
	CHECK_EQ(d.lay.n_spaces, 1);
	uint32_t pages = ino_of(&d, 0, "pages-1.img");
	const struct layout_segment want[] = {
		absent(0x400000, 1),         data(0x401000, 1, pages, 0), absent(0x402000, 2),
		data(0x801000, 2, pages, 1), absent(0x804000, 1),         data(0x805000, 1, pages, 3),
	};
	check_space(&d, 0, "dir/12", want, ARRAY_SIZE(want));
	CHECK_EQ(d.lay.spaces[0].kind, THAW_SPACE_CRIU);
	CHECK_EQ(d.lay.spaces[0].pid, 12);
	CHECK_EQ(d.lay.spaces[0].ino, ino_of(&d, 0, "pagemap-12.img"));
	const struct layout_region *r = d.lay.regions;
	CHECK_EQ(d.lay.n_regions, 2);
	CHECK_EQ(r[0].addr, 0x400000);
	CHECK_EQ(r[0].len, 0x4000);
	CHECK_EQ(r[0].pgoff, 0x2000);
	CHECK_EQ(r[0].prot, RW);
	CHECK_EQ(r[0].flags, MAP_PRIVATE);
	CHECK(r[0].name_len == 13 && !memcmp(d.lay.strings + r[0].name_off, "/usr/bin/prog", 13));
	CHECK_EQ(r[1].len, 0x8000);
	CHECK_EQ(r[1].name_len, 0);
	/* each run of the file is cut where it is memory */
	CHECK_EQ(d.lay.n_cuts, 3);
	CHECK_EQ(d.lay.cuts[1].off, PAGE);
	CHECK_EQ(d.lay.cuts[1].addr, 0x801000);
	release(&d);
}

/* two areas of one object, at other offsets of it */
static void shared_dump(struct dumps *d, unsigned levels, uint32_t flags, size_t n_pages)
{
	struct bytes map = pagemap(1), object = pagemap(2), mm = { 0 };

	dumps_init(d, levels, "");
	put_vma(&mm, 0x100000, 0x104000, 0, 77, ANON_SHARED);
	put_vma(&mm, 0x200000, 0x202000, 0x2000, 77, ANON_SHARED);
	put_run(&object, 0, 1, PE_PRESENT);
	put_run(&object, 0x2000, 1, flags);
	add(d, 0, "pagemap-5.img", map);
	add(d, 0, "mm-5.img", mm_image(mm));
	add(d, 0, "pagemap-shmem-77.img", object);
	add_pages(d, 0, "pages-2.img", n_pages);
}

static void test_shared(void)
{
	struct dumps d;

	shared_dump(&d, 1, PE_PRESENT, 2);
	parse(&d);
	CHECK_EQ(d.n_notes, 0);
	uint32_t pages = ino_of(&d, 0, "pages-2.img");
	const struct layout_segment process[] = { data(0x100000, 1, pages, 0), data(0x102000, 1, pages, 1),
						  data(0x200000, 1, pages, 1) };
	const struct layout_segment object[] = { data(0, 1, pages, 0), data(0x2000, 1, pages, 1) };
	CHECK_EQ(d.lay.n_spaces, 2);
	check_space(&d, 0, "5", process, ARRAY_SIZE(process));
	check_space(&d, 1, "shmem-77", object, ARRAY_SIZE(object));
	CHECK_EQ(d.lay.spaces[1].kind, THAW_SPACE_CRIU_SHMEM);
	release(&d);
}

/* criu writes a pagemap for every object, so one without has lost its bytes: they were not zero */
static void test_shared_missing(void)
{
	struct bytes mm = { 0 };
	struct dumps d;

	dumps_init(&d, 1, "");
	put_vma(&mm, 0x100000, 0x104000, 0, 77, ANON_SHARED);
	add(&d, 0, "pagemap-5.img", pagemap(1));
	add(&d, 0, "mm-5.img", mm_image(mm));
	parse(&d);
	const struct layout_segment want[] = { absent(0x100000, 4) };
	check_space(&d, 0, "5", want, 1);
	release(&d);
}

/* -- chains ----------------------------------------------------------------------------------- */

/* what a dump leaves to those before it is looked for in all of them; of an area of a file nobody's pages are absent */
static void test_parents(void)
{
	struct bytes map = pagemap(1), middle = pagemap(1), last = pagemap(4), mm = { 0 };
	struct dumps d;

	dumps_init(&d, 3, "");
	put_vma(&mm, 0x10000, 0x14000, 0, 0, ANON_PRIVATE);
	put_vma(&mm, 0x20000, 0x21000, 0, 9, FILE_PRIVATE);
	put_run(&map, 0x10000, 4, PE_PARENT);
	put_run(&map, 0x20000, 1, PE_PARENT);
	put_run(&middle, 0x10000, 1, PE_PRESENT);
	put_run(&middle, 0x11000, 1, PE_PARENT);
	put_run(&last, 0x11000, 2, PE_PRESENT);
	add(&d, 0, "pagemap-5.img", map);
	add(&d, 0, "mm-5.img", mm_image(mm));
	add(&d, 1, "pagemap-5.img", middle);
	add_pages(&d, 1, "pages-1.img", 1);
	add(&d, 2, "pagemap-5.img", last);
	add_pages(&d, 2, "pages-4.img", 2);
	parse(&d);
	CHECK_EQ(d.n_notes, 0);
	const struct layout_segment want[] = {
		data(0x10000, 1, ino_of(&d, 1, "pages-1.img"), 0),
		data(0x11000, 2, ino_of(&d, 2, "pages-4.img"), 0),
		absent(0x20000, 1),
	};
	check_space(&d, 0, "5", want, ARRAY_SIZE(want));
	/* pages of other directories are cut when those are parsed */
	CHECK_EQ(d.lay.n_cuts, 0);
	release(&d);
}

static void test_parent_missing(void)
{
	struct bytes map = pagemap(1), mm = { 0 };
	struct dumps d;

	dumps_init(&d, 1, "");
	d.dirs[0].dir.parent_missing = true;
	put_vma(&mm, 0x10000, 0x14000, 0, 0, ANON_PRIVATE);
	put_run(&map, 0x10000, 1, PE_PRESENT);
	put_run(&map, 0x11000, 2, PE_PARENT);
	add(&d, 0, "pagemap-5.img", map);
	add(&d, 0, "mm-5.img", mm_image(mm));
	add_pages(&d, 0, "pages-1.img", 1);
	parse(&d);
	/* the last page is in no entry: never touched, whatever the parent was */
	const struct layout_segment want[] = { data(0x10000, 1, ino_of(&d, 0, "pages-1.img"), 0), absent(0x11000, 2) };
	check_space(&d, 0, "5", want, ARRAY_SIZE(want));
	release(&d);
}

/* an object's pages may be in a parent too: the process shows what the object's own view shows */
static void test_shared_parent(void)
{
	struct bytes object = pagemap(8);
	struct dumps d;

	shared_dump(&d, 2, PE_PARENT, 1);
	put_run(&object, 0x2000, 1, PE_PRESENT);
	add(&d, 1, "pagemap-shmem-77.img", object);
	add_pages(&d, 1, "pages-8.img", 1);
	parse(&d);
	CHECK_EQ(d.n_notes, 0);
	uint32_t here = ino_of(&d, 0, "pages-2.img"), before = ino_of(&d, 1, "pages-8.img");
	const struct layout_segment process[] = { data(0x100000, 1, here, 0), data(0x102000, 1, before, 0),
						  data(0x200000, 1, before, 0) };
	const struct layout_segment view[] = { data(0, 1, here, 0), data(0x2000, 1, before, 0) };
	check_space(&d, 0, "5", process, ARRAY_SIZE(process));
	check_space(&d, 1, "shmem-77", view, ARRAY_SIZE(view));
	release(&d);
}

/* -- bad ones --------------------------------------------------------------------------------- */

/*
 * Areas times runs: two files of some 100 KiB that describe 10^8 pieces. Without a limit that is gigabytes of memory
 * for the first process already.
 */
static void test_shared_blowup(void)
{
	const unsigned n = 10000;
	struct bytes object = pagemap(2), mm = { 0 };
	struct dumps d;

	dumps_init(&d, 1, "");
	for (uint64_t i = 0; i < n; i++) {
		put_vma(&mm, (1 + i) << 28, ((1 + i) << 28) + (uint64_t)n * 2 * PAGE, 0, 77, ANON_SHARED);
		put_run(&object, i * 2 * PAGE, 1, PE_LAZY);
	}
	add(&d, 0, "pagemap-5.img", pagemap(1));
	add(&d, 0, "mm-5.img", mm_image(mm));
	add(&d, 0, "pagemap-shmem-77.img", object);
	parse(&d);
	CHECK_EQ(d.n_notes, 1);
	CHECK_STR(d.note, "pagemap-5.img: no memory view: shared memory in too many pieces at address 0x3470000000");
	CHECK_EQ(d.lay.n_spaces, 1);
	CHECK(d.lay.cap_segments < 1u << 24);
	release(&d);
}

/* a process that is not understood is said, with the reason, and the object beside it stays */
static void check_refused(struct bytes map, struct bytes mm, size_t n_pages, const char *note)
{
	struct bytes object = pagemap(2);
	struct dumps d;

	dumps_init(&d, 1, "");
	put_run(&object, 0, 1, PE_PRESENT);
	add(&d, 0, "pagemap-5.img", map);
	add(&d, 0, "mm-5.img", mm);
	add_pages(&d, 0, "pages-1.img", n_pages);
	add(&d, 0, "pagemap-shmem-7.img", object);
	add_pages(&d, 0, "pages-2.img", 1);
	parse(&d);
	CHECK_EQ(d.n_notes, 1);
	CHECK_STR(d.note, note);
	CHECK_EQ(d.lay.n_spaces, 1);
	CHECK_EQ(d.lay.spaces[0].kind, THAW_SPACE_CRIU_SHMEM);
	release(&d);
}

static struct bytes one_vma(uint64_t start, uint64_t end)
{
	struct bytes mm = { 0 };

	put_vma(&mm, start, end, 0, 0, ANON_PRIVATE);
	return mm_image(mm);
}

static struct bytes runs(uint64_t a, uint64_t n_a, uint64_t b, uint64_t n_b)
{
	struct bytes map = pagemap(1);

	put_run(&map, a, n_a, PE_PRESENT);
	if (n_b)
		put_run(&map, b, n_b, PE_PRESENT);
	return map;
}

static void test_refused(void)
{
	struct bytes mm = { 0 }, cut = runs(0x1000, 1, 0, 0), other = image(MM), entry = { 0 }, packed = pagemap(1);

	check_refused(runs(0x1000, 2, 0, 0), one_vma(0x1000, 0x3000), 1,
		      "pagemap-5.img: no memory view: pagemap-5.img: 'pages-1.img' ends at offset 4096, before its "
		      "last page");
	check_refused(runs(0x1000, 1, 0x9000, 1), one_vma(0x1000, 0x3000), 2,
		      "pagemap-5.img: no memory view: pages outside all memory areas at address 0x9000");
	check_refused(runs(0x2000, 1, 0x1000, 1), one_vma(0x1000, 0x3000), 2,
		      "pagemap-5.img: no memory view: pagemap-5.img, offset 40: entries are not in the order of their "
		      "addresses");
	check_refused(runs(0x1000, UINT64_MAX, 0, 0), one_vma(0x1000, 0x3000), 1,
		      "pagemap-5.img: no memory view: pagemap-5.img, offset 36: an entry with an impossible range");
	put_vma(&mm, 0x1000, 0x3000, 0, 0, ANON_PRIVATE);
	put_vma(&mm, 0x2000, 0x4000, 0, 0, ANON_PRIVATE);
	check_refused(runs(0x1000, 1, 0, 0), mm_image(mm), 1,
		      "pagemap-5.img: no memory view: overlapping memory areas at address 0x2000");
	check_refused(runs(0x1000, 1, 0, 0), other, 1,
		      "pagemap-5.img: no memory view: mm-5.img, offset 8: there is no message");
	cut.len--;
	check_refused(cut, one_vma(0x1000, 0x3000), 1,
		      "pagemap-5.img: no memory view: pagemap-5.img, offset 14: a message that reaches past the end of "
		      "the file");
	put_number(&entry, 1, 0x1000);
	put_number(&entry, 4, PE_PRESENT);
	put_number(&entry, 5, 1);
	put_number(&entry, 6, 100);
	put_message(&packed, entry);
	check_refused(packed, one_vma(0x1000, 0x3000), 1,
		      "pagemap-5.img: no memory view: pagemap-5.img: compressed pages are kept as they are");
}

static const struct {
	const char *name;
	void (*run)(void);
} tests[] = {
	{ "process", test_process },
	{ "shared", test_shared },
	{ "shared-missing", test_shared_missing },
	{ "parents", test_parents },
	{ "parent-missing", test_parent_missing },
	{ "shared-parent", test_shared_parent },
	{ "shared-blowup", test_shared_blowup },
	{ "refused", test_refused },
};

/* all of them, or those named */
int main(int argc, char **argv)
{
	for (size_t i = 0; i < ARRAY_SIZE(tests); i++) {
		bool wanted = argc < 2;

		for (int k = 1; k < argc; k++)
			wanted |= !strcmp(argv[k], tests[i].name);
		if (wanted)
			tests[i].run();
	}
	return 0;
}
