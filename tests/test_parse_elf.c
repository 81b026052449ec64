/* SPDX-License-Identifier: Apache-2.0 */
/* What the parser of ELF cores makes of small ones: every region and segment, and the exact error of bad ones. */
#include <elf.h>
#include <sys/mman.h>

#include "tests/parse_check.h"

#define PAGE     4096u
#define ROOM     (16 * PAGE)
#define NOTES_AT 0x400u
#define HEADERS  8u

/* a core of either class, written through the structures of <elf.h> on a little-endian machine */
struct core {
	uint8_t bytes[ROOM];
	size_t len, notes;
	unsigned n;
	bool is64;
};

static void start(struct core *c, bool is64)
{
	Elf64_Ehdr *h64 = (Elf64_Ehdr *)c->bytes;
	Elf32_Ehdr *h32 = (Elf32_Ehdr *)c->bytes;

	*c = (struct core){ .is64 = is64, .len = PAGE };
	memcpy(c->bytes, ELFMAG, SELFMAG);
	c->bytes[EI_CLASS] = is64 ? ELFCLASS64 : ELFCLASS32;
	c->bytes[EI_DATA] = ELFDATA2LSB;
	if (is64) {
		h64->e_type = ET_CORE;
		h64->e_machine = EM_X86_64;
		h64->e_phoff = sizeof(*h64);
		h64->e_phentsize = sizeof(Elf64_Phdr);
	} else {
		h32->e_type = ET_CORE;
		h32->e_machine = EM_386;
		h32->e_phoff = sizeof(*h32);
		h32->e_phentsize = sizeof(Elf32_Phdr);
	}
}

static void segment(struct core *c, uint32_t type, uint32_t flags, uint64_t off, uint64_t addr, uint64_t filesz,
		    uint64_t memsz)
{
	CHECK(c->n < HEADERS);
	if (c->is64) {
		((Elf64_Phdr *)(c->bytes + sizeof(Elf64_Ehdr)))[c->n++] = (Elf64_Phdr){ .p_type = type,
											.p_flags = flags,
											.p_offset = off,
											.p_vaddr = addr,
											.p_filesz = filesz,
											.p_memsz = memsz };
		((Elf64_Ehdr *)c->bytes)->e_phnum = (uint16_t)c->n;
	} else {
		((Elf32_Phdr *)(c->bytes + sizeof(Elf32_Ehdr)))[c->n++] = (Elf32_Phdr){ .p_type = type,
											.p_flags = flags,
											.p_offset = (uint32_t)off,
											.p_vaddr = (uint32_t)addr,
											.p_filesz = (uint32_t)filesz,
											.p_memsz = (uint32_t)memsz };
		((Elf32_Ehdr *)c->bytes)->e_phnum = (uint16_t)c->n;
	}
}

static void note(struct core *c, uint32_t type, const void *desc, size_t len)
{
	Elf64_Nhdr h = { .n_namesz = 5, .n_descsz = (uint32_t)len, .n_type = type };
	uint8_t *p = c->bytes + NOTES_AT + c->notes;

	memcpy(p, &h, sizeof(h));
	memcpy(p + sizeof(h), "CORE", 5);
	memcpy(p + sizeof(h) + 8, desc, len);
	c->notes += sizeof(h) + 8 + align_up(len, 4);
	CHECK(NOTES_AT + c->notes <= PAGE);
}

/* NT_FILE with one mapping; @n: how many it says it has */
static void file_note(struct core *c, uint64_t n, uint64_t first, uint64_t last, uint64_t page, const char *name)
{
	uint64_t words[] = { n, PAGE, first, last, page };
	uint8_t desc[256];
	size_t w = c->is64 ? 8 : 4, len = 0;

	for (unsigned i = 0; i < ARRAY_SIZE(words); i++, len += w)
		memcpy(desc + len, &words[i], w);
	memcpy(desc + len, name, strlen(name) + 1);
	note(c, NT_FILE, desc, len + strlen(name) + 1);
}

static int parse(const struct core *c, struct layout *ret)
{
	uint8_t *copy = guarded_buffer(c->len);

	memcpy(copy, c->bytes, c->len);
	return parse_check_file(parse_elf, copy, c->len, ret);
}

static void check_segment(const struct layout *lay, size_t k, uint64_t addr, uint64_t len, unsigned kind, uint64_t off)
{
	const struct layout_segment *s = &lay->segments[k];

	CHECK(k < lay->n_segments);
	CHECK_EQ(s->addr, addr);
	CHECK_EQ(s->len, len);
	CHECK_EQ(s->kind, kind);
	CHECK_EQ(s->off, off);
}

/* a file's mapping of which the first page is there, anonymous memory, and memory that was left out altogether */
static void whole(struct core *c, bool is64)
{
	uint32_t psinfo[8] = { 0 };

	start(c, is64);
	psinfo[is64 ? 6 : 3] = 4711;
	note(c, NT_PRPSINFO, psinfo, sizeof(psinfo));
	file_note(c, 1, 0x10000, 0x14000, 5, "/bin/z");
	segment(c, PT_NOTE, 0, NOTES_AT, 0, c->notes, 0);
	segment(c, PT_LOAD, PF_R | PF_X, PAGE, 0x10000, PAGE, 2 * PAGE);
	segment(c, PT_LOAD, PF_R, 2 * PAGE, 0x13000, 0, PAGE);
	segment(c, PT_LOAD, PF_R | PF_W, 2 * PAGE, 0x20000, 2 * PAGE, 2 * PAGE);
	segment(c, PT_LOAD, 0, 4 * PAGE, 0x30000, 0, PAGE);
	c->len = 4 * PAGE;
}

static void test_good(bool is64)
{
	struct core c;
	struct layout lay;

	whole(&c, is64);
	CHECK_EQ(parse(&c, &lay), 0);
	CHECK_EQ(lay.n_spaces, 1);
	CHECK_EQ(lay.spaces[0].kind, THAW_SPACE_CORE);
	CHECK_EQ(lay.spaces[0].pid, 4711);
	CHECK_EQ(lay.n_regions, 4);
	const struct layout_region *r = lay.regions;
	CHECK_EQ(r[0].len, 2 * PAGE);
	CHECK_EQ(r[0].prot, PROT_READ | PROT_EXEC);
	CHECK_EQ(r[0].flags, MAP_PRIVATE);
	CHECK_EQ(r[0].pgoff, 5 * PAGE);
	CHECK(r[0].name_len == 6 && !memcmp(lay.strings + r[0].name_off, "/bin/z", 6));
	CHECK_EQ(r[1].pgoff, 8 * PAGE); /* inside of the same mapping */
	CHECK_EQ(r[1].name_len, 6);
	CHECK_EQ(r[2].prot, PROT_READ | PROT_WRITE);
	CHECK_EQ(r[2].flags, MAP_PRIVATE | MAP_ANONYMOUS);
	CHECK_EQ(r[2].name_len, 0);
	CHECK_EQ(r[3].prot, PROT_NONE);
	CHECK_EQ(lay.n_segments, 5);
	check_segment(&lay, 0, 0x10000, PAGE, THAW_SEG_DATA, PAGE);
	check_segment(&lay, 1, 0x11000, PAGE, THAW_SEG_ABSENT, 0);
	check_segment(&lay, 2, 0x13000, PAGE, THAW_SEG_ABSENT, 0);
	check_segment(&lay, 3, 0x20000, 2 * PAGE, THAW_SEG_DATA, 2 * PAGE);
	check_segment(&lay, 4, 0x30000, PAGE, THAW_SEG_ABSENT, 0);
	CHECK_EQ(lay.n_cuts, 2);
	CHECK_EQ(lay.cuts[1].addr, 0x20000);
	layout_release(&lay);
}

/* cut behind its headers by a limit: still a core, what is missing is absent */
static void test_cut_memory(void)
{
	struct core c;
	struct layout lay;

	whole(&c, true);
	c.len = 2 * PAGE + 10;
	CHECK_EQ(parse(&c, &lay), 0);
	CHECK_EQ(lay.n_segments, 6);
	check_segment(&lay, 3, 0x20000, 10, THAW_SEG_DATA, 2 * PAGE);
	check_segment(&lay, 4, 0x2000a, 2 * PAGE - 10, THAW_SEG_ABSENT, 0);
	layout_release(&lay);
}

static void check_error(const struct core *c, const char *error)
{
	struct layout lay;

	CHECK_EQ(parse(c, &lay), -EBADMSG);
	CHECK_STR(lay.error, error);
	layout_release(&lay);
}

/* the good core with one program header more, the sixth at offset 344 */
static void check_load(uint64_t off, uint64_t addr, uint64_t filesz, uint64_t memsz, const char *error)
{
	struct core c;

	whole(&c, true);
	segment(&c, PT_LOAD, PF_R, off, addr, filesz, memsz);
	check_error(&c, error);
}

static void check_file_note(uint64_t n, uint64_t first, uint64_t last, uint64_t page, const char *error)
{
	struct core c;

	start(&c, true);
	file_note(&c, n, first, last, page, "/x");
	segment(&c, PT_NOTE, 0, NOTES_AT, 0, c.notes, 0);
	check_error(&c, error);
}

static void test_bad(void)
{
	struct core c;

	check_load(PAGE, 0x40000, 2 * PAGE, PAGE, "ELF core, offset 344: a segment with more bytes than addresses");
	check_load(PAGE, 0x40000, PAGE, 0, "ELF core, offset 344: a segment with bytes and without addresses");
	check_load(PAGE, 0x21000, 0, PAGE, "overlapping region at address 0x21000 with length 0x1000");
	check_load(PAGE, UINT64_MAX, 0, PAGE,
		   "region past the end of the address space at address 0xffffffffffffffff with length 0x1000");

	check_file_note(9, 0x1000, 0x2000, 0, "ELF core, offset 0: the NT_FILE note is too short for its entries");
	check_file_note(UINT64_MAX, 0x1000, 0x2000, 0,
			"ELF core, offset 0: the NT_FILE note is too short for its entries");
	check_file_note(1, 0x2000, 0x2000, 0, "ELF core, offset 0: the NT_FILE note contradicts itself");
	check_file_note(1, 0x1000, 0x2000, UINT64_MAX, "ELF core, offset 0: the NT_FILE note contradicts itself");

	whole(&c, true);
	((Elf64_Ehdr *)c.bytes)->e_phentsize = 55;
	check_error(&c, "ELF core, offset 0: program headers of another size");
	whole(&c, true);
	((Elf64_Ehdr *)c.bytes)->e_phoff = UINT64_MAX;
	check_error(&c, "ELF core, offset 18446744073709551615: program headers reach past the end of the file");
	whole(&c, true);
	((Elf64_Ehdr *)c.bytes)->e_phnum = PN_XNUM;
	((Elf64_Ehdr *)c.bytes)->e_shoff = c.len - 1;
	check_error(&c, "ELF core, offset 16383: the section header with the number of program headers is not there");
	whole(&c, true);
	((Elf64_Phdr *)(c.bytes + sizeof(Elf64_Ehdr)))->p_filesz = c.len;
	check_error(&c, "ELF core, offset 64: notes reach past the end of the file");
	whole(&c, true);
	c.bytes[NOTES_AT + 7] = 0xff;
	check_error(&c, "ELF core, offset 0: a note reaches past the end of the notes");
	c.len = 63;
	check_error(&c, "ELF core, offset 0: shorter than a header");
	c.len = 40;
	check_error(&c, "ELF core, offset 0: shorter than a header");
}

int main(void)
{
	test_good(true);
	test_good(false);
	test_cut_memory();
	test_bad();
	return 0;
}
