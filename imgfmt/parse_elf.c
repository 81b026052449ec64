/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ELF core files. Each PT_LOAD header is a region; the NT_FILE note tells which of them are mapped files. What the
 * kernel or gdb left out of the core (filesz below memsz), or what the file was cut short of, is absent: nothing says
 * that those bytes were zero.
 */
#include <elf.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/bytes.h"
#include "common/cleanup.h"
#include "imgfmt/parse.h"

#define NOTES_MAX       (64u << 20) /* NT_FILE of 65536 mappings with long names is 4 MiB */
#define HEADERS_AT_ONCE 512
#define HEADERS_MAX     (4u << 20) /* a process has 65530 mappings unless vm.max_map_count is raised */
#define PRPSINFO_PID64  24         /* in struct elf_prpsinfo, 64 bit */
#define PRPSINFO_PID386 12
#define VIEW_END        (1ull << 63)

/* one entry of NT_FILE: in file order, which is address order */
struct mapped_file {
	uint64_t start, end, pgoff;
	const char *name;
	size_t name_len;
};

struct elf {
	struct layout *lay;
	const struct parse_file *file;
	bool is64, is386;
	uint64_t phoff, phnum;
	uint32_t phentsize;
	uint8_t *notes; /* all PT_NOTE segments of bounded size, one after the other */
	size_t notes_len;
	struct mapped_file *files;
	size_t n_files;
	uint32_t pid;
	uint64_t cut_short; /* bytes that headers promise and the file does not have */
};

struct program_header {
	uint32_t type, flags;
	uint64_t offset, vaddr, filesz, memsz;
};

static int bad(struct elf *e, uint64_t off, const char *what)
{
	snprintf(e->lay->error, sizeof(e->lay->error), "ELF core, offset %" PRIu64 ": %s", off, what);
	return -EBADMSG;
}

static uint64_t word(const struct elf *e, const uint8_t *p)
{
	return e->is64 ? load_le64(p) : load_le32(p);
}

static int read_ehdr(struct elf *e)
{
	struct source *src = e->file->src;
	uint8_t raw[sizeof(Elf64_Ehdr)] = { 0 }, section[sizeof(Elf64_Shdr)];
	size_t min_entry, shdr_size;
	uint64_t shoff;
	int r = src->size < sizeof(Elf32_Ehdr) ? -EBADMSG : source_read(src, raw, min_u64(src->size, sizeof(raw)), 0);

	if (r)
		return r == -EBADMSG ? bad(e, 0, "shorter than a header") : r;
	e->is64 = raw[EI_CLASS] == ELFCLASS64;
	e->is386 = !e->is64 && raw[offsetof(Elf32_Ehdr, e_machine)] == EM_386;
	if (e->is64 && src->size < sizeof(Elf64_Ehdr))
		return bad(e, 0, "shorter than a header");
	e->phoff = word(e, raw + (e->is64 ? offsetof(Elf64_Ehdr, e_phoff) : offsetof(Elf32_Ehdr, e_phoff)));
	shoff = word(e, raw + (e->is64 ? offsetof(Elf64_Ehdr, e_shoff) : offsetof(Elf32_Ehdr, e_shoff)));
	const uint8_t *sizes = raw + (e->is64 ? offsetof(Elf64_Ehdr, e_phentsize) : offsetof(Elf32_Ehdr, e_phentsize));
	e->phentsize = sizes[0] | (uint32_t)sizes[1] << 8;
	e->phnum = sizes[2] | (uint32_t)sizes[3] << 8;
	min_entry = e->is64 ? sizeof(Elf64_Phdr) : sizeof(Elf32_Phdr);
	if (e->phentsize != min_entry)
		return bad(e, 0, "program headers of another size");
	if (e->phnum == PN_XNUM) {
		/* too many for 16 bits: the first section header has the number */
		shdr_size = e->is64 ? sizeof(Elf64_Shdr) : sizeof(Elf32_Shdr);
		if (!range_inside(shoff, shdr_size, src->size))
			return bad(e, shoff, "the section header with the number of program headers is not there");
		r = source_read(src, section, shdr_size, shoff);
		if (r)
			return r;
		e->phnum =
			load_le32(section + (e->is64 ? offsetof(Elf64_Shdr, sh_info) : offsetof(Elf32_Shdr, sh_info)));
	}
	if (e->phnum > HEADERS_MAX)
		return bad(e, shoff, "more than 4194304 program headers");
	if (!range_inside(e->phoff, e->phnum * e->phentsize, src->size))
		return bad(e, e->phoff, "program headers reach past the end of the file");
	return 0;
}

static struct program_header decode_phdr(const struct elf *e, const uint8_t *p)
{
	struct program_header h = { .type = load_le32(p) };

	if (e->is64) {
		h.flags = load_le32(p + offsetof(Elf64_Phdr, p_flags));
		h.offset = load_le64(p + offsetof(Elf64_Phdr, p_offset));
		h.vaddr = load_le64(p + offsetof(Elf64_Phdr, p_vaddr));
		h.filesz = load_le64(p + offsetof(Elf64_Phdr, p_filesz));
		h.memsz = load_le64(p + offsetof(Elf64_Phdr, p_memsz));
	} else {
		h.flags = load_le32(p + offsetof(Elf32_Phdr, p_flags));
		h.offset = load_le32(p + offsetof(Elf32_Phdr, p_offset));
		h.vaddr = load_le32(p + offsetof(Elf32_Phdr, p_vaddr));
		h.filesz = load_le32(p + offsetof(Elf32_Phdr, p_filesz));
		h.memsz = load_le32(p + offsetof(Elf32_Phdr, p_memsz));
	}
	return h;
}

/* call @fn for each program header of @type, in file order */
static int each_header(struct elf *e, uint32_t type,
		       int (*fn)(struct elf *e, uint64_t at, const struct program_header *h))
{
	_cleanup_free_ uint8_t *raw = malloc((size_t)HEADERS_AT_ONCE * e->phentsize);

	if (!raw)
		return -ENOMEM;
	for (uint64_t i = 0; i < e->phnum;) {
		uint64_t n = min_u64(HEADERS_AT_ONCE, e->phnum - i);
		int r = source_read(e->file->src, raw, (size_t)n * e->phentsize, e->phoff + i * e->phentsize);

		for (uint64_t k = 0; k < n && !r; k++) {
			const struct program_header h = decode_phdr(e, raw + k * e->phentsize);

			if (h.type == type)
				r = fn(e, e->phoff + (i + k) * e->phentsize, &h);
		}
		if (r)
			return r;
		i += n;
	}
	return 0;
}

/* -- notes ------------------------------------------------------------------------------------ */

static int load_notes(struct elf *e, uint64_t at, const struct program_header *h)
{
	uint8_t *longer;
	int r;

	if (!range_inside(h->offset, h->filesz, e->file->src->size))
		return bad(e, at, "notes reach past the end of the file");
	if (h->filesz > NOTES_MAX - e->notes_len)
		return bad(e, at, "notes of more than 64 MiB");
	longer = realloc(e->notes, e->notes_len + h->filesz + 1);
	if (!longer)
		return -ENOMEM;
	e->notes = longer;
	r = source_read(e->file->src, e->notes + e->notes_len, h->filesz, h->offset);
	if (!r)
		e->notes_len += h->filesz;
	return r;
}

/* NT_FILE: count, page size, count times (start, end, offset in pages), then count names that end with NUL */
static int read_nt_file(struct elf *e, const uint8_t *p, size_t len)
{
	size_t w = e->is64 ? 8 : 4;
	uint64_t n, page;
	const char *name, *end = (const char *)p + len;

	if (len < 2 * w)
		return bad(e, 0, "the NT_FILE note is too short");
	n = word(e, p);
	page = word(e, p + w);
	if (n > (len - 2 * w) / (3 * w + 1))
		return bad(e, 0, "the NT_FILE note is too short for its entries");
	free(e->files);
	e->n_files = 0;
	e->files = calloc(n + 1, sizeof(*e->files));
	if (!e->files)
		return -ENOMEM;
	name = (const char *)p + 2 * w + n * 3 * w;
	for (uint64_t i = 0; i < n; i++) {
		const uint8_t *q = p + 2 * w + i * 3 * w;
		struct mapped_file f = { .start = word(e, q), .end = word(e, q + w), .name = name };

		f.name_len = strnlen(name, (size_t)(end - name));
		if (name + f.name_len == end || f.start >= f.end || (i && f.start < e->files[i - 1].end) ||
		    mul_overflows(word(e, q + 2 * w), page, &f.pgoff))
			return bad(e, 0, "the NT_FILE note contradicts itself");
		name += f.name_len + 1;
		if (f.name_len > THAW_REGION_NAME_MAX)
			f.name_len = THAW_REGION_NAME_MAX;
		e->files[e->n_files++] = f;
	}
	return 0;
}

static int read_note(struct elf *e, uint32_t type, const uint8_t *desc, size_t len)
{
	if (type == NT_FILE)
		return read_nt_file(e, desc, len);
	if (type == NT_PRPSINFO && e->is64 && len >= PRPSINFO_PID64 + 4)
		e->pid = load_le32(desc + PRPSINFO_PID64);
	else if (type == NT_PRPSINFO && e->is386 && len >= PRPSINFO_PID386 + 4)
		e->pid = load_le32(desc + PRPSINFO_PID386);
	return 0;
}

static int read_notes(struct elf *e)
{
	size_t at = 0;

	while (e->notes_len - at >= sizeof(Elf64_Nhdr)) {
		uint32_t name_len = load_le32(e->notes + at), desc_len = load_le32(e->notes + at + 4);
		uint32_t type = load_le32(e->notes + at + 8);
		uint64_t desc = at + sizeof(Elf64_Nhdr) + align_up(name_len, 4);
		int r = 0;

		if (!range_inside(desc, desc_len, e->notes_len))
			return bad(e, at, "a note reaches past the end of the notes");
		if (name_len == 5 && !memcmp(e->notes + at + sizeof(Elf64_Nhdr), "CORE", 5))
			r = read_note(e, type, e->notes + desc, desc_len);
		if (r)
			return r;
		at = (size_t)min_u64(desc + align_up(desc_len, 4), e->notes_len);
	}
	return 0;
}

/* -- memory ----------------------------------------------------------------------------------- */

static const struct mapped_file *find_file(const struct elf *e, uint64_t addr)
{
	size_t lo = 0, hi = e->n_files;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (e->files[mid].end <= addr)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo < e->n_files && e->files[lo].start <= addr ? &e->files[lo] : NULL;
}

static int add_region(struct elf *e, const struct program_header *h)
{
	const struct mapped_file *f = find_file(e, h->vaddr);
	uint32_t prot = (h->flags & PF_R ? PROT_READ : 0) | (h->flags & PF_W ? PROT_WRITE : 0) |
			(h->flags & PF_X ? PROT_EXEC : 0);
	uint64_t pgoff = 0;

	if (!f)
		return layout_region(e->lay, h->vaddr, h->memsz, 0, prot, MAP_PRIVATE | MAP_ANONYMOUS, "", 0);
	if (add_overflows(f->pgoff, h->vaddr - f->start, &pgoff))
		pgoff = 0;
	return layout_region(e->lay, h->vaddr, h->memsz, pgoff, prot, MAP_PRIVATE, f->name, f->name_len);
}

static int add_load(struct elf *e, uint64_t at, const struct program_header *h)
{
	uint64_t stored = min_u64(h->filesz, h->memsz), size = e->file->src->size, there;
	int r;

	if (!h->memsz)
		return h->filesz ? bad(e, at, "a segment with bytes and without addresses") : 0;
	if (h->filesz > h->memsz)
		return bad(e, at, "a segment with more bytes than addresses");
	there = h->offset >= size ? 0 : min_u64(stored, size - h->offset);
	e->cut_short += stored - there;
	r = add_region(e, h);
	/* what lies above (vsyscall) has no place in a view */
	if (r || h->vaddr >= VIEW_END || h->memsz > VIEW_END - h->vaddr)
		return r;
	if (there) {
		r = layout_segment(e->lay, h->vaddr, there, THAW_SEG_DATA, e->file->ino, e->file->base, h->offset);
		if (!r)
			r = layout_cut(e->lay, e->file->ino, h->offset, there, h->vaddr);
	}
	if (!r && there < h->memsz)
		r = layout_segment(e->lay, h->vaddr + there, h->memsz - there, THAW_SEG_ABSENT, 0, 0, 0);
	return r;
}

static int parse(struct elf *e, const char *space_name, parse_note_fn *note, void *note_ctx)
{
	char text[128];
	int r = read_ehdr(e);

	if (!r)
		r = each_header(e, PT_NOTE, load_notes);
	if (!r)
		r = read_notes(e);
	if (!r)
		r = layout_begin_space(e->lay, space_name, strlen(space_name), THAW_SPACE_CORE, e->file->ino, e->pid);
	if (!r)
		r = each_header(e, PT_LOAD, add_load);
	if (!r)
		r = layout_end_space(e->lay);
	if (!r && e->cut_short) {
		snprintf(text, sizeof(text), "the core was cut short: %" PRIu64 " bytes of memory are missing",
			 e->cut_short);
		note(note_ctx, text);
	}
	return r;
}

int parse_elf(struct layout *lay, const struct parse_file *file, const char *space_name, parse_note_fn *note,
	      void *note_ctx)
{
	struct elf e = { .lay = lay, .file = file };
	int r = parse(&e, space_name, note, note_ctx);

	free(e.notes);
	free(e.files);
	if (r == -EOVERFLOW) {
		snprintf(lay->error, sizeof(lay->error), "ELF core: more than an image can describe");
		return -EBADMSG;
	}
	return r;
}
