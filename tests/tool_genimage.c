/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Make checkpoint images and memory-like files for tests, the demo and the benchmarks. The same arguments give the
 * same bytes. 'tool_genimage' alone lists the subcommands and options.
 */
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "common/bytes.h"
#include "tests/gendata.h"

#define MIB     (1ull << 20)
#define OUT_BUF (1u << 20)

struct options {
	struct gen gen;
	uint64_t size, reserve, shift;
	uint64_t areas, tiny, parents, entry_pages, procs;
	uint32_t pid;
	int version; /* 40, 26, 30, 32 */
	bool misaligned, elide, gzip, sparse, old_fields, shmem, amdgpu, compressed, lazy, elf32, xnum, no_mm;
};

static void die(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));
static void die(const char *fmt, ...)
{
	va_list ap;

	fputs("tool_genimage: ", stderr);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputc('\n', stderr);
	exit(1);
}

/* -- output: buffered, by gzip on request; zeros may be left as holes ------------------------- */

struct out {
	const char *path;
	int fd;
	gzFile gz;
	bool sparse;
	uint64_t off; /* of the buffer's first byte */
	size_t fill;
	uint8_t *buf;
};

static void out_open(struct out *o, const char *path, const struct options *opts, bool gzip)
{
	*o = (struct out){ .path = path, .sparse = opts->sparse && !gzip, .buf = malloc(OUT_BUF) };
	o->fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (o->fd < 0 || !o->buf)
		die("cannot create '%s': %s", path, strerror(errno));
	if (gzip) {
		o->gz = gzdopen(o->fd, "wb1");
		if (!o->gz)
			die("cannot compress into '%s'", path);
	}
}

static void out_flush(struct out *o)
{
	for (size_t done = 0; done < o->fill;) {
		ssize_t n = o->gz ? (ssize_t)gzwrite(o->gz, o->buf + done, (unsigned)(o->fill - done))
				  : pwrite(o->fd, o->buf + done, o->fill - done, (off_t)(o->off + done));

		if (n <= 0)
			die("cannot write '%s': %s", o->path, strerror(errno));
		done += (size_t)n;
	}
	o->off += o->fill;
	o->fill = 0;
}

static uint64_t out_pos(const struct out *o)
{
	return o->off + o->fill;
}

static void out_bytes(struct out *o, const void *data, size_t len)
{
	const uint8_t *p = data;

	while (len) {
		size_t n = len < OUT_BUF - o->fill ? len : OUT_BUF - o->fill;

		memcpy(o->buf + o->fill, p, n);
		o->fill += n;
		p += n;
		len -= n;
		if (o->fill == OUT_BUF)
			out_flush(o);
	}
}

static void out_zeros(struct out *o, uint64_t len)
{
	if (o->sparse && len >= GEN_PAGE) {
		out_flush(o);
		o->off += len;
		return;
	}
	while (len) {
		size_t n = len < OUT_BUF - o->fill ? (size_t)len : OUT_BUF - o->fill;

		memset(o->buf + o->fill, 0, n);
		o->fill += n;
		len -= n;
		if (o->fill == OUT_BUF)
			out_flush(o);
	}
}

/* the content of [addr, addr + len); @origin and @total say where zero patterns count from */
static void out_content(struct out *o, const struct gen *g, uint64_t addr, uint64_t len, uint64_t origin,
			uint64_t total)
{
	uint8_t page[GEN_PAGE];

	while (len) {
		uint64_t n = min_u64(len, GEN_PAGE);

		if (g->kind == GEN_ZERO || gen_is_zero(g, addr - origin, total)) {
			out_zeros(o, n);
		} else if (n == GEN_PAGE && OUT_BUF - o->fill >= GEN_PAGE) {
			gen_page(g, addr / GEN_PAGE, o->buf + o->fill);
			o->fill += GEN_PAGE;
		} else {
			gen_page(g, addr / GEN_PAGE, page);
			out_bytes(o, page, (size_t)n);
		}
		if (o->fill == OUT_BUF)
			out_flush(o);
		addr += n;
		len -= n;
	}
}

static void out_close(struct out *o)
{
	out_flush(o);
	if (o->gz ? gzclose(o->gz) != Z_OK : (ftruncate(o->fd, (off_t)o->off) || close(o->fd)))
		die("cannot write '%s': %s", o->path, strerror(errno));
	free(o->buf);
}

/* -- mem: a plain file that looks like memory ------------------------------------------------- */

static void make_mem(const char *path, const struct options *opts)
{
	struct out o;

	out_open(&o, path, opts, opts->gzip);
	out_content(&o, &opts->gen, 0, opts->size, 0, opts->size);
	out_close(&o);
}

/* -- dmtcp ------------------------------------------------------------------------------------ */

#define DMTCP_ZERO       1u
#define DMTCP_PARENT     2u
#define DMTCP_CHILD      4u
#define DMTCP_STACK_END  0x7ffffffff000ull
#define DMTCP_BIG_BASE   0x7f0000003000ull /* not on a MiB */
#define DMTCP_TINY_BASE  0x600000000000ull
#define DMTCP_LIB_BASE   0x7f8000000000ull
#define DMTCP_RESERVE_AT 0x100000000000ull

struct area {
	uint64_t addr, size, off, file_size;
	uint32_t prot, flags;
	const char *name;
};

static void dmtcp_area_header(struct out *o, int version, const struct area *a, uint64_t end, uint64_t properties)
{
	uint8_t h[4096] = { 0 };
	unsigned at = 72;

	gen_put64(h, a->addr);
	gen_put64(h + 8, end);
	gen_put64(h + 16, a->size);
	gen_put64(h + 24, a->off);
	gen_put32(h + 32, a->prot);
	gen_put32(h + 40, a->flags);
	/* the upper halves of these two fields are whatever was on the writer's stack */
	gen_put32(h + 36, 0x5a5a5a5a);
	gen_put32(h + 44, 0xa5a5a5a5);
	if (*a->name == '/') {
		gen_put64(h + 48, 8);
		gen_put64(h + 56, 1);
		gen_put64(h + 64, gen_mix(strlen(a->name)) & 0xffffff);
	}
	if (version != 26) {
		gen_put64(h + at, a->file_size ? a->file_size : UINT64_MAX);
		at += 8;
	}
	gen_put64(h + at, properties);
	strncpy((char *)h + at + 8, a->name, 1023);
	out_bytes(o, h, sizeof(h));
}

/* the length of the run of zero or non-zero MiBs at @addr */
static uint64_t zero_run(const struct gen *g, uint64_t addr, uint64_t end, uint64_t origin, uint64_t total,
			 bool *ret_zero)
{
	uint64_t at = addr;
	bool zero = gen_is_zero(g, addr - origin, total);

	do
		at = min_u64(end, align_down(at, MIB) + MIB);
	while (at < end && gen_is_zero(g, at - origin, total) == zero);
	*ret_zero = zero;
	return at - addr;
}

/* an anonymous area; with --elide its zero MiBs become headers without payload */
static void dmtcp_anonymous(struct out *o, const struct options *opts, const struct area *whole, uint64_t origin,
			    uint64_t total)
{
	uint64_t end = whole->addr + whole->size;
	bool old = opts->version == 26;
	struct area a = *whole;

	if (!old)
		dmtcp_area_header(o, opts->version, whole, end, DMTCP_PARENT);
	while (a.addr < end) {
		bool zero = false;

		a.size = end - a.addr;
		if (opts->elide)
			a.size = zero_run(&opts->gen, a.addr, end, origin, total, &zero);
		dmtcp_area_header(o, opts->version, &a, old ? end : a.addr + a.size,
				  (zero ? DMTCP_ZERO : 0) | (old ? 0 : DMTCP_CHILD));
		if (!zero)
			out_content(o, &opts->gen, a.addr, a.size, origin, total);
		a.addr += a.size;
	}
}

static void dmtcp_file_backed(struct out *o, const struct options *opts, struct area a)
{
	struct gen g = opts->gen;

	g.zero = GEN_ZERO_NONE;
	if (opts->version == 26)
		a.file_size = 0;
	else if (!a.file_size)
		a.file_size = a.size;
	dmtcp_area_header(o, opts->version, &a, a.addr + a.size, 0);
	out_content(o, &g, a.addr, a.file_size ? a.file_size : a.size, a.addr, a.size);
}

/* reserved address space: a header for all of it, no payload */
static void dmtcp_reservation(struct out *o, const struct options *opts, struct area a)
{
	if (opts->version != 26)
		dmtcp_area_header(o, opts->version, &a, a.addr + a.size, DMTCP_PARENT);
	dmtcp_area_header(o, opts->version, &a, a.addr + a.size, DMTCP_ZERO | (opts->version == 26 ? 0 : DMTCP_CHILD));
}

static void dmtcp_header_v4(struct out *o, const struct options *opts)
{
	static const char signature[] = "DMTCP_CHECKPOINT_IMAGE_v4.0\n";
	uint8_t h[4096] = { 0 };

	memcpy(h, signature, sizeof(signature));
	for (unsigned at = 32; at <= 80; at += 24) {
		gen_put64(h + at, 0x1234abcd);
		gen_put64(h + at + 8, 0x66000000);
		gen_put32(h + at + 16, at == 56 ? 1 : opts->pid);
	}
	gen_put32(h + 104, opts->pid);
	gen_put32(h + 108, 1);
	gen_put32(h + 112, opts->pid);
	gen_put32(h + 116, opts->pid);
	gen_put32(h + 124, 1);
	gen_put32(h + 132, 1);
	gen_put64(h + 168, 0x7f9000000000ull);
	gen_put64(h + 176, 0x7f9000000000ull + 90 * MIB);
	gen_put64(h + 240, DMTCP_STACK_END);
	memcpy(h + 256, "prog", 5);
	memcpy(h + 1280, "/usr/bin/prog", 14);
	out_bytes(o, h, sizeof(h));
	out_bytes(o, h, sizeof(h));
}

static void dmtcp_header_v2(struct out *o, const struct options *opts)
{
	/* the process info is opaque to us: some bytes that reach into a second page, then padding */
	uint8_t info[8192] = "DMTCP_CHECKPOINT_IMAGE_v2.0\n", h[4096] = "MTCP_HEADER_v2.2\n";
	unsigned at = 32;

	for (unsigned i = 28; i < 5000; i++)
		info[i] = (uint8_t)(gen_mix(i) & 0x7f);
	out_bytes(o, info, sizeof(info));
	gen_put64(h + at, 0x555555800000ull); /* saved_brk */
	at += 8;
	if (opts->version != 26) {
		gen_put64(h + at, DMTCP_STACK_END);
		at += 8;
	}
	gen_put64(h + at, 0x7f9000000000ull); /* restore_addr, restore_size */
	gen_put64(h + at + 8, 10 * MIB);
	gen_put64(h + at + 16, 0x7ffff7fc0000ull); /* vdso, vvar */
	gen_put64(h + at + 24, 0x7ffff7fc2000ull);
	gen_put64(h + at + 32, 0x7ffff7fbc000ull);
	gen_put64(h + at + 40, 0x7ffff7fc0000ull);
	at += 48;
	if (opts->version == 26)
		gen_put64(h + at, DMTCP_STACK_END);
	if (opts->version == 32) {
		gen_put64(h + at, 0x7ffff7fba000ull);
		gen_put64(h + at + 8, 0x7ffff7fbc000ull);
		at += 16;
	}
	gen_put64(h + at + (opts->version == 26 ? 8 : 0), 0x7ffff7a01234ull); /* post_restart */
	out_bytes(o, h, sizeof(h));
}

static void dmtcp_tiny_areas(struct out *o, const struct options *opts)
{
	char name[64];

	for (uint64_t i = 0; i < opts->tiny; i++) {
		struct area a = {
			.addr = DMTCP_TINY_BASE + i * 8192, .size = 4096, .flags = MAP_PRIVATE, .name = name
		};

		if (i % 3 == 0) {
			*name = '\0';
			a.prot = PROT_READ | PROT_WRITE;
			a.flags |= MAP_ANONYMOUS;
			dmtcp_anonymous(o, opts, &a, a.addr, a.size);
			continue;
		}
		snprintf(name, sizeof(name), "/usr/lib/x/lib%" PRIu64 ".so", i / 3);
		a.prot = i % 3 == 1 ? PROT_READ : PROT_READ | PROT_EXEC;
		a.off = (i % 3 - 1) * 4096;
		dmtcp_file_backed(o, opts, a);
	}
}

static void dmtcp_big_areas(struct out *o, const struct options *opts)
{
	uint64_t n = opts->areas, each = n ? align_down(opts->size / n, GEN_PAGE) : 0, at = DMTCP_BIG_BASE;

	for (uint64_t i = 0; i < n; i++) {
		struct area a = { .addr = at,
				  .size = i == n - 1 ? align_down(opts->size - each * (n - 1), GEN_PAGE) : each,
				  .prot = PROT_READ | PROT_WRITE,
				  .flags = MAP_PRIVATE | MAP_ANONYMOUS,
				  .name = "" };

		if (!a.size)
			continue;
		dmtcp_anonymous(o, opts, &a, align_down(DMTCP_BIG_BASE, MIB), opts->size);
		at += a.size + 4 * GEN_PAGE;
	}
}

static void make_dmtcp(const char *path, const struct options *opts)
{
	const uint32_t anon = MAP_PRIVATE | MAP_ANONYMOUS, rw = PROT_READ | PROT_WRITE;
	struct area text = { .addr = 0x555555554000ull,
			     .size = 65536,
			     .prot = PROT_READ | PROT_EXEC,
			     .flags = MAP_PRIVATE,
			     .name = "/usr/bin/prog" };
	struct area heap = { .addr = 0x555555600000ull, .size = 2 * MIB, .prot = rw, .flags = anon, .name = "[heap]" };
	struct area locale = { .addr = DMTCP_LIB_BASE,
			       .size = 8192,
			       .file_size = opts->misaligned ? 4096 + 1811 : 0,
			       .prot = PROT_READ,
			       .flags = MAP_PRIVATE,
			       .name = "/usr/lib/locale/C.utf8/LC_CTYPE" };
	struct area stack = {
		.addr = DMTCP_STACK_END - 135168, .size = 135168, .prot = rw, .flags = anon, .name = "[stack]"
	};
	struct area reserve = {
		.addr = DMTCP_RESERVE_AT, .size = align_down(opts->reserve, GEN_PAGE), .flags = anon, .name = ""
	};
	struct area end = { .size = UINT64_MAX, .name = "[stack]" };
	struct out o;

	out_open(&o, path, opts, opts->gzip);
	if (opts->version == 40)
		dmtcp_header_v4(&o, opts);
	else
		dmtcp_header_v2(&o, opts);
	if (reserve.size)
		dmtcp_reservation(&o, opts, reserve);
	dmtcp_file_backed(&o, opts, text);
	dmtcp_anonymous(&o, opts, &heap, heap.addr, heap.size);
	if (opts->misaligned)
		dmtcp_file_backed(&o, opts, locale);
	dmtcp_tiny_areas(&o, opts);
	dmtcp_big_areas(&o, opts);
	dmtcp_anonymous(&o, opts, &stack, stack.addr, stack.size);
	dmtcp_area_header(&o, opts->version, &end, 0, 0);
	out_close(&o);
}

/* -- protobuf --------------------------------------------------------------------------------- */

struct message {
	size_t len;
	uint8_t data[512];
};

static void pb_varint(struct message *m, uint64_t v)
{
	do {
		m->data[m->len++] = (uint8_t)((v & 0x7f) | (v > 0x7f ? 0x80 : 0));
		v >>= 7;
	} while (v);
}

static void pb_number(struct message *m, unsigned field, uint64_t v)
{
	pb_varint(m, field << 3);
	pb_varint(m, v);
}

static void pb_bytes(struct message *m, unsigned field, const void *data, size_t len)
{
	if (m->len + len + 10 > sizeof(m->data))
		die("message too long");
	pb_varint(m, field << 3 | 2);
	pb_varint(m, len);
	memcpy(m->data + m->len, data, len);
	m->len += len;
}

/* -- criu ------------------------------------------------------------------------------------- */

#define CRIU_COMMON      0x54564319u
#define CRIU_INVENTORY   0x58313116u
#define CRIU_PAGEMAP     0x56084025u
#define CRIU_MM          0x57492820u
#define CRIU_FILES       0x56303138u
#define CRIU_PSTREE      0x50273030u

#define PE_PARENT        1u
#define PE_LAZY          2u
#define PE_PRESENT       4u

#define VMA_REGULAR      (1u << 0)
#define VMA_STACK        (1u << 1)
#define VMA_VSYSCALL     (1u << 2)
#define VMA_VDSO         (1u << 3)
#define VMA_HEAP         (1u << 5)
#define VMA_FILE_PRIVATE (1u << 6)
#define VMA_ANON_SHARED  (1u << 8)
#define VMA_ANON_PRIVATE (1u << 9)

#define CRIU_BIG_BASE    0x7f0000000000ull
#define CRIU_SHIFT_BASE  0x10000000ull
#define CRIU_SHMEM_BASE  0x7e0000000000ull
#define CRIU_SHMEM_SIZE  (8 * MIB)
#define CRIU_SHMEM_ID    77u
#define CRIU_EXE_FILE_ID 1u
#define CRIU_LIB_FILE_ID 2u

static void img_open(struct out *o, char path[4096], const char *dir, const struct options *opts, const char *fmt, ...)
	__attribute__((format(printf, 5, 6)));
static void img_open(struct out *o, char path[4096], const char *dir, const struct options *opts, const char *fmt, ...)
{
	char name[128];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(name, sizeof(name), fmt, ap);
	va_end(ap);
	if (snprintf(path, 4096, "%s/%s", dir, name) >= 4096)
		die("path too long: '%s'", dir);
	out_open(o, path, opts, false);
}

static void img_magic(struct out *o, uint32_t first, uint32_t second)
{
	uint8_t magic[8];

	gen_put32(magic, first);
	gen_put32(magic + 4, second);
	out_bytes(o, magic, second ? 8 : 4);
}

static void img_message(struct out *o, const struct message *m)
{
	uint8_t len[4];

	gen_put32(len, (uint32_t)m->len);
	out_bytes(o, len, 4);
	out_bytes(o, m->data, m->len);
}

struct vma {
	uint64_t start, end, pgoff, shmid;
	uint32_t prot, flags, status;
};

/* one process of one dump: its two files, and which level of a chain of dumps it is */
struct dump {
	const struct options *opts;
	const char *dir;
	uint32_t pid, pages_id;
	unsigned level, top; /* of 0 … top */
	struct out pagemap, pages;
	char pagemap_path[4096], pages_path[4096];
};

/* which level of a chain wrote the page last; above the top: none did */
static unsigned page_level(const struct dump *d, uint64_t page)
{
	return (unsigned)(gen_mix((page >> 2) * 3 + 5) % (d->top + 2));
}

static void put_entry(struct dump *d, uint64_t addr, uint64_t n_pages, uint32_t flags)
{
	struct message m = { 0 };

	pb_number(&m, 1, addr);
	pb_number(&m, 2, d->opts->old_fields ? n_pages : 0);
	if (d->opts->old_fields) {
		if (flags & PE_PARENT)
			pb_number(&m, 3, 1);
	} else {
		pb_number(&m, 4, flags);
		pb_number(&m, 5, n_pages);
	}
	if (d->opts->compressed && (flags & PE_PRESENT))
		pb_number(&m, 7, n_pages * 1000);
	img_message(&d->pagemap, &m);
}

static void put_pages(struct dump *d, uint64_t addr, uint64_t n_pages, uint32_t flags, uint64_t origin, uint64_t total)
{
	uint64_t most = d->opts->entry_pages ? d->opts->entry_pages : 1u << 20;
	struct gen g = d->opts->gen;

	g.seed += d->level;
	while (n_pages) {
		uint64_t n = min_u64(n_pages, most);

		put_entry(d, addr, n, flags);
		if (flags & PE_PRESENT)
			out_content(&d->pages, &g, addr, n * GEN_PAGE, origin, total);
		addr += n * GEN_PAGE;
		n_pages -= n;
	}
}

/* a range all of whose pages are there; in a chain, spread over its levels */
static void put_range(struct dump *d, uint64_t start, uint64_t end, uint32_t extra, uint64_t origin, uint64_t total)
{
	uint64_t at = start, run;

	if (!d->top) {
		put_pages(d, start, (end - start) / GEN_PAGE, PE_PRESENT | extra, origin, total);
		return;
	}
	for (; at < end; at += run * GEN_PAGE) {
		unsigned level = page_level(d, at / GEN_PAGE);

		for (run = 1; at + run * GEN_PAGE < end && page_level(d, at / GEN_PAGE + run) == level;)
			run++;
		if (level == d->level)
			put_pages(d, at, run, PE_PRESENT | extra, origin, total);
		else if (d->level && (level < d->level || level > d->top))
			put_pages(d, at, run, PE_PARENT, origin, total);
	}
}

static void put_vma(struct message *mm, const struct vma *v)
{
	struct message m = { 0 };

	pb_number(&m, 1, v->start);
	pb_number(&m, 2, v->end);
	pb_number(&m, 3, v->pgoff);
	pb_number(&m, 4, v->shmid);
	pb_number(&m, 5, v->prot);
	pb_number(&m, 6, v->flags);
	pb_number(&m, 7, v->status);
	pb_number(&m, 8, 1); /* -1 in zigzag form */
	mm->len = 0;
	pb_bytes(mm, 14, m.data, m.len);
}

static void write_mm(const struct dump *d, const struct vma *vmas, size_t n)
{
	struct message head = { 0 }, part[32];
	uint8_t len[4];
	uint32_t total;
	char path[4096];
	struct out o;

	for (unsigned field = 1; field <= 11; field++)
		pb_number(&head, field, vmas[0].start + field);
	pb_number(&head, 12, CRIU_EXE_FILE_ID);
	total = (uint32_t)head.len;
	for (size_t i = 0; i < n; i++) {
		put_vma(&part[i], &vmas[i]);
		total += (uint32_t)part[i].len;
	}
	img_open(&o, path, d->dir, d->opts, "mm-%u.img", d->pid);
	img_magic(&o, CRIU_COMMON, CRIU_MM);
	gen_put32(len, total);
	out_bytes(&o, len, 4);
	out_bytes(&o, head.data, head.len);
	for (size_t i = 0; i < n; i++)
		out_bytes(&o, part[i].data, part[i].len);
	out_close(&o);
}

static void dump_process(struct dump *d)
{
	const uint32_t anon = MAP_PRIVATE | MAP_ANONYMOUS, rw = PROT_READ | PROT_WRITE;
	const uint64_t size = align_down(d->opts->size, GEN_PAGE), shift = align_down(d->opts->shift, GEN_PAGE);
	const uint64_t base = CRIU_BIG_BASE;
	struct vma vmas[16] = {
		{ 0x400000, 0x410000, 0, CRIU_EXE_FILE_ID, PROT_READ | PROT_EXEC, MAP_PRIVATE,
		  VMA_REGULAR | VMA_FILE_PRIVATE },
		{ 0x610000, 0x612000, 0x10000, CRIU_EXE_FILE_ID, rw, MAP_PRIVATE, VMA_REGULAR | VMA_FILE_PRIVATE },
		{ 0x800000, 0x840000, 0, 0, rw, anon, VMA_REGULAR | VMA_HEAP | VMA_ANON_PRIVATE },
	};
	size_t n = 3;

	img_open(&d->pagemap, d->pagemap_path, d->dir, d->opts, "pagemap-%u.img", d->pid);
	img_open(&d->pages, d->pages_path, d->dir, d->opts, "pages-%u.img", d->pages_id);
	img_magic(&d->pagemap, CRIU_COMMON, CRIU_PAGEMAP);
	{
		struct message head = { 0 };

		pb_number(&head, 1, d->pages_id);
		img_message(&d->pagemap, &head);
	}
	if (shift) {
		vmas[n++] = (struct vma){
			CRIU_SHIFT_BASE, CRIU_SHIFT_BASE + shift, 0, 0, rw, anon, VMA_REGULAR | VMA_ANON_PRIVATE
		};
		put_range(d, CRIU_SHIFT_BASE, CRIU_SHIFT_BASE + shift, 0, CRIU_SHIFT_BASE, UINT64_MAX);
	}
	if (d->opts->shmem)
		vmas[n++] = (struct vma){ CRIU_SHMEM_BASE,
					  CRIU_SHMEM_BASE + CRIU_SHMEM_SIZE - MIB,
					  MIB,
					  CRIU_SHMEM_ID,
					  rw,
					  MAP_SHARED | MAP_ANONYMOUS,
					  VMA_REGULAR | VMA_ANON_SHARED };
	if (size) {
		/* the last MiB is mapped but was never touched */
		vmas[n++] = (struct vma){ base, base + size + MIB, 0, 0, rw, anon, VMA_REGULAR | VMA_ANON_PRIVATE };
		put_range(d, base, base + size, d->opts->lazy ? PE_LAZY : 0, base, size);
	}
	vmas[n++] = (struct vma){ 0x7ff000000000ull,
				  0x7ff000004000ull,
				  0x1000,
				  CRIU_LIB_FILE_ID,
				  PROT_READ,
				  MAP_PRIVATE,
				  VMA_REGULAR | VMA_FILE_PRIVATE };
	vmas[n++] = (struct vma){ 0x7ffffffde000ull,
				  0x7ffffffff000ull,
				  0,
				  0,
				  rw,
				  anon | MAP_GROWSDOWN,
				  VMA_REGULAR | VMA_STACK | VMA_ANON_PRIVATE };
	put_range(d, 0x7fffffff0000ull, 0x7ffffffff000ull, 0, 0, UINT64_MAX);
	vmas[n++] = (struct vma){ 0xffffffffff600000ull, 0xffffffffff601000ull, 0, 0, PROT_READ | PROT_EXEC, anon,
				  VMA_VSYSCALL };
	out_close(&d->pagemap);
	out_close(&d->pages);
	if (!d->opts->no_mm)
		write_mm(d, vmas, n);
}

static void write_shmem(const char *dir, const struct options *opts, uint32_t pages_id)
{
	struct dump d = { .opts = opts, .dir = dir, .pages_id = pages_id };
	struct message head = { 0 };

	img_open(&d.pagemap, d.pagemap_path, dir, opts, "pagemap-shmem-%u.img", CRIU_SHMEM_ID);
	img_open(&d.pages, d.pages_path, dir, opts, "pages-%u.img", pages_id);
	img_magic(&d.pagemap, CRIU_COMMON, CRIU_PAGEMAP);
	pb_number(&head, 1, pages_id);
	img_message(&d.pagemap, &head);
	/* 2 MiB, a gap of 1 MiB, the rest */
	put_pages(&d, 0, 2 * MIB / GEN_PAGE, PE_PRESENT, 0, CRIU_SHMEM_SIZE);
	put_pages(&d, 3 * MIB, (CRIU_SHMEM_SIZE - 3 * MIB) / GEN_PAGE, PE_PRESENT, 0, CRIU_SHMEM_SIZE);
	out_close(&d.pagemap);
	out_close(&d.pages);
}

static void write_files(const char *dir, const struct options *opts)
{
	static const struct {
		uint32_t id;
		const char *name;
	} files[] = { { CRIU_EXE_FILE_ID, "/usr/bin/prog" }, { CRIU_LIB_FILE_ID, "/usr/lib/libc.so.6" } };
	char path[4096];
	struct out o;

	img_open(&o, path, dir, opts, "files.img");
	img_magic(&o, CRIU_COMMON, CRIU_FILES);
	for (unsigned i = 0; i < ARRAY_SIZE(files); i++) {
		struct message reg = { 0 }, entry = { 0 };

		pb_number(&reg, 1, files[i].id);
		pb_number(&reg, 2, 0);
		pb_number(&reg, 3, 0);
		pb_bytes(&reg, 5, "", 0);
		pb_bytes(&reg, 6, files[i].name, strlen(files[i].name));
		pb_number(&entry, 1, 1);
		pb_number(&entry, 2, files[i].id);
		pb_bytes(&entry, 3, reg.data, reg.len);
		img_message(&o, &entry);
	}
	out_close(&o);
}

static void write_small_image(const char *dir, const struct options *opts, const char *name, uint32_t first,
			      uint32_t second, uint64_t field1)
{
	struct message m = { 0 };
	char path[4096];
	struct out o;

	img_open(&o, path, dir, opts, "%s", name);
	img_magic(&o, first, second);
	pb_number(&m, 1, field1);
	img_message(&o, &m);
	out_close(&o);
}

static void write_amdgpu(const char *dir, const struct options *opts)
{
	char path[4096];
	struct gen g = opts->gen;
	uint8_t size[8];
	struct out o;

	/* one buffer object, 8 bytes off page alignment */
	img_open(&o, path, dir, opts, "amdgpu-pages-%u-0000.img", opts->pid);
	gen_put64(size, 4 * MIB);
	out_bytes(&o, size, 8);
	g.kind = GEN_FLOATS;
	out_content(&o, &g, 0, 4 * MIB, 0, 4 * MIB);
	out_close(&o);
	img_open(&o, path, dir, opts, "amdgpu-kfd-%u.img", opts->pid);
	out_bytes(&o, "\x08\x01\x10\x02", 4);
	out_close(&o);
}

static void make_dir(const char *path)
{
	if (mkdir(path, 0700) && errno != EEXIST)
		die("cannot make directory '%s': %s", path, strerror(errno));
}

static void make_criu_level(const char *dir, const struct options *opts, unsigned level)
{
	make_dir(dir);
	write_small_image(dir, opts, "inventory.img", CRIU_INVENTORY, 0, 2);
	write_small_image(dir, opts, "pstree.img", CRIU_COMMON, CRIU_PSTREE, opts->pid);
	write_files(dir, opts);
	for (uint32_t i = 0; i < opts->procs; i++) {
		struct dump d = { .opts = opts,
				  .dir = dir,
				  .pid = opts->pid + i,
				  .pages_id = i + 1,
				  .level = level,
				  .top = (unsigned)opts->parents };

		dump_process(&d);
	}
	if (opts->shmem)
		write_shmem(dir, opts, (uint32_t)opts->procs + 1);
	if (opts->amdgpu)
		write_amdgpu(dir, opts);
}

/* without parents DIR is the images directory; with them DIR/0 … DIR/N are, the last one being the newest */
static void make_criu(const char *dir, const struct options *opts)
{
	char path[4096], link[4200], target[32];

	if (!opts->parents) {
		make_criu_level(dir, opts, 0);
		return;
	}
	make_dir(dir);
	for (unsigned level = 0; level <= opts->parents; level++) {
		if (snprintf(path, sizeof(path), "%s/%u", dir, level) >= (int)sizeof(path))
			die("path too long: '%s'", dir);
		make_criu_level(path, opts, level);
		if (!level)
			continue;
		snprintf(link, sizeof(link), "%s/parent", path);
		snprintf(target, sizeof(target), "../%u", level - 1);
		if ((unlink(link) && errno != ENOENT) || symlink(target, link))
			die("cannot make link '%s': %s", link, strerror(errno));
	}
}

/* -- core ------------------------------------------------------------------------------------- */

struct core_area {
	uint64_t addr, memsz, filesz, pgoff;
	uint32_t flags;
	const char *name;
};

#define CORE_TINY_BASE 0x10000000ull

/* area @i of the core; false past the end */
static bool core_area(const struct options *opts, uint64_t i, struct core_area *ret)
{
	uint64_t n_tiny = opts->xnum ? 66000 : opts->tiny, big = align_down(opts->size, GEN_PAGE);

	if (i == 0)
		*ret = (struct core_area){ 0x400000, 0x10000, 0x1000, 0, PF_R | PF_X, "/usr/bin/prog" };
	else if (i == 1)
		*ret = (struct core_area){ 0x610000, 0x2000, 0x2000, 0x10000, PF_R | PF_W, "/usr/bin/prog" };
	else if (i - 2 < n_tiny)
		*ret = (struct core_area){ CORE_TINY_BASE + (i - 2) * 8192, 4096, 4096, 0, PF_R | PF_W, NULL };
	else if (i - 2 == n_tiny)
		*ret = (struct core_area){
			opts->elf32 ? 0x40003000ull : 0x7f0000003000ull, big, big, 0, PF_R | PF_W, NULL
		};
	else if (i - 3 == n_tiny)
		*ret = (struct core_area){
			opts->elf32 ? 0xf0000000ull : 0x7ff000000000ull, 0x4000, 0, 0x1000, PF_R, "/usr/lib/libc.so.6"
		};
	else if (i - 4 == n_tiny)
		*ret = (struct core_area){
			opts->elf32 ? 0xfffdd000ull : 0x7ffffffde000ull, 0x21000, 0x21000, 0, PF_R | PF_W, NULL
		};
	else
		return false;
	return true;
}

static size_t add_note(uint8_t *p, uint32_t type, const void *desc, size_t len)
{
	gen_put32(p, 5);
	gen_put32(p + 4, (uint32_t)len);
	gen_put32(p + 8, type);
	memcpy(p + 12, "CORE\0\0\0", 8);
	memcpy(p + 20, desc, len);
	return 20 + (len + 3) / 4 * 4;
}

static void put_word(uint8_t *p, bool elf32, uint64_t v)
{
	if (elf32)
		gen_put32(p, (uint32_t)v);
	else
		gen_put64(p, v);
}

static size_t core_notes(const struct options *opts, uint8_t *p)
{
	uint8_t status[336] = { 0 }, info[136] = { 0 }, files[512] = { 0 };
	size_t word = opts->elf32 ? 4 : 8, n = 0, at, len = 0;
	struct core_area a;

	gen_put32(status + (opts->elf32 ? 24 : 32), opts->pid);
	len += add_note(p + len, NT_PRSTATUS, status, opts->elf32 ? 144 : 336);
	gen_put32(info + (opts->elf32 ? 12 : 24), opts->pid);
	memcpy(info + (opts->elf32 ? 28 : 40), "prog", 5);
	len += add_note(p + len, NT_PRPSINFO, info, opts->elf32 ? 124 : 136);
	at = 2 * word;
	for (uint64_t i = 0; core_area(opts, i, &a); i++) {
		if (!a.name)
			continue;
		put_word(files + at, opts->elf32, a.addr);
		put_word(files + at + word, opts->elf32, a.addr + a.memsz);
		put_word(files + at + 2 * word, opts->elf32, a.pgoff / GEN_PAGE);
		at += 3 * word;
		n++;
	}
	put_word(files, opts->elf32, n);
	put_word(files + word, opts->elf32, GEN_PAGE);
	for (uint64_t i = 0; core_area(opts, i, &a); i++) {
		if (!a.name)
			continue;
		memcpy(files + at, a.name, strlen(a.name) + 1);
		at += strlen(a.name) + 1;
	}
	return len + add_note(p + len, NT_FILE, files, at);
}

static void core_header(struct out *o, const struct options *opts, uint64_t n, uint64_t shoff)
{
	Elf64_Ehdr h64 = { .e_type = ET_CORE,
			   .e_machine = EM_X86_64,
			   .e_version = EV_CURRENT,
			   .e_phoff = sizeof(h64),
			   .e_shoff = shoff,
			   .e_ehsize = sizeof(h64),
			   .e_phentsize = sizeof(Elf64_Phdr),
			   .e_phnum = n >= PN_XNUM ? PN_XNUM : (uint16_t)n,
			   .e_shentsize = shoff ? sizeof(Elf64_Shdr) : 0,
			   .e_shnum = shoff ? 1 : 0 };
	Elf32_Ehdr h32 = { .e_type = ET_CORE,
			   .e_machine = EM_386,
			   .e_version = EV_CURRENT,
			   .e_phoff = sizeof(h32),
			   .e_shoff = (uint32_t)shoff,
			   .e_ehsize = sizeof(h32),
			   .e_phentsize = sizeof(Elf32_Phdr),
			   .e_phnum = n >= PN_XNUM ? PN_XNUM : (uint16_t)n,
			   .e_shentsize = shoff ? sizeof(Elf32_Shdr) : 0,
			   .e_shnum = shoff ? 1 : 0 };
	const unsigned char ident[EI_NIDENT] = {
		ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, opts->elf32 ? ELFCLASS32 : ELFCLASS64, ELFDATA2LSB, EV_CURRENT
	};

	memcpy(h64.e_ident, ident, sizeof(ident));
	memcpy(h32.e_ident, ident, sizeof(ident));
	if (opts->elf32)
		out_bytes(o, &h32, sizeof(h32));
	else
		out_bytes(o, &h64, sizeof(h64));
}

static void core_phdr(struct out *o, bool elf32, uint32_t type, const struct core_area *a, uint64_t off)
{
	Elf64_Phdr p64 = { .p_type = type,
			   .p_flags = a->flags,
			   .p_offset = off,
			   .p_vaddr = a->addr,
			   .p_filesz = a->filesz,
			   .p_memsz = a->memsz,
			   .p_align = 1 };
	Elf32_Phdr p32 = { .p_type = type,
			   .p_flags = a->flags,
			   .p_offset = (uint32_t)off,
			   .p_vaddr = (uint32_t)a->addr,
			   .p_filesz = (uint32_t)a->filesz,
			   .p_memsz = (uint32_t)a->memsz,
			   .p_align = 1 };

	if (elf32)
		out_bytes(o, &p32, sizeof(p32));
	else
		out_bytes(o, &p64, sizeof(p64));
}

static void core_xnum_section(struct out *o, bool elf32, uint64_t n)
{
	Elf64_Shdr s64 = { .sh_size = 1, .sh_info = (uint32_t)n };
	Elf32_Shdr s32 = { .sh_size = 1, .sh_info = (uint32_t)n };

	if (elf32)
		out_bytes(o, &s32, sizeof(s32));
	else
		out_bytes(o, &s64, sizeof(s64));
}

static void make_core(const char *path, const struct options *opts)
{
	size_t ehdr = opts->elf32 ? sizeof(Elf32_Ehdr) : sizeof(Elf64_Ehdr);
	size_t phdr = opts->elf32 ? sizeof(Elf32_Phdr) : sizeof(Elf64_Phdr), notes_len;
	uint8_t notes[2048] = { 0 };
	struct core_area a;
	uint64_t n = 1, data, off;
	struct out o;

	while (core_area(opts, n - 1, &a))
		n++;
	notes_len = core_notes(opts, notes);
	data = ehdr + n * phdr + notes_len;
	if (!opts->misaligned)
		data = align_up(data, GEN_PAGE);
	off = data;
	for (uint64_t i = 0; core_area(opts, i, &a); i++)
		off += a.filesz;
	out_open(&o, path, opts, opts->gzip);
	core_header(&o, opts, n, n >= PN_XNUM ? off : 0);
	core_phdr(&o, opts->elf32, PT_NOTE, &(struct core_area){ .filesz = notes_len }, ehdr + n * phdr);
	off = data;
	for (uint64_t i = 0; core_area(opts, i, &a); i++) {
		core_phdr(&o, opts->elf32, PT_LOAD, &a, off);
		off += a.filesz;
	}
	out_bytes(&o, notes, notes_len);
	out_zeros(&o, data - out_pos(&o));
	for (uint64_t i = 0; core_area(opts, i, &a); i++)
		out_content(&o, &opts->gen, a.addr, a.filesz, align_down(a.addr, MIB), a.memsz);
	if (n >= PN_XNUM)
		core_xnum_section(&o, opts->elf32, n);
	out_close(&o);
}

/* -- options ---------------------------------------------------------------------------------- */

static const char usage[] =
	"usage: tool_genimage mem OUT | dmtcp OUT | criu DIR | core OUT  [options]\n"
	"  --size=BYTES       K, M, G, T may follow (default 64M): bytes of big memory\n"
	"  --kind=process|stripes|heap|floats|bf16|doubles|text|random|zero   default process;\n"
	"                     with mem, process has a zero tail and stripes is process with zero stripes\n"
	"  --zero=none|tail|stripes|mib   tail: last quarter; stripes: every other 64 MiB; mib: every 4th MiB\n"
	"  --zero-every=N     every N-th MiB is zero\n"
	"  --seed=N  --repeat=BYTES (content repeats)  --sparse (zeros are holes)  --gzip  --pid=N\n"
	"dmtcp: --version=4.0|2.6|3.0|3.2  --areas=N  --tiny=N (areas of a page)  --misaligned  --reserve=BYTES\n"
	"       --elide (zero MiBs as headers without payload)\n"
	"criu:  --shift=BYTES (default 12288)  --parents=N (DIR/0 to DIR/N)  --old-fields  --shmem  --entry-pages=N\n"
	"       --procs=N  --lazy  --no-mm  --amdgpu  --compressed (as newer CRIU marks it)\n"
	"core:  --elf32  --xnum (over 65535 segments)  --tiny=N  --misaligned\n";

static uint64_t number(const char *name, const char *text)
{
	static const char units[] = "KMGT";
	char *end;
	uint64_t v;
	const char *u;

	errno = 0;
	v = strtoull(text, &end, 0);
	if (errno || end == text)
		die("%s: not a number: '%s'", name, text);
	u = *end ? strchr(units, *end) : NULL;
	if (*end && (!u || end[1]))
		die("%s: not a number: '%s'", name, text);
	if (u)
		v <<= 10 * (u - units + 1);
	return v;
}

static int choice(const char *name, const char *text, const char *const *names)
{
	for (int i = 0; names[i]; i++)
		if (!strcmp(text, names[i]))
			return i;
	die("%s: unknown: '%s'", name, text);
}

static bool number_option(struct options *opts, const char *name, const char *value)
{
	const struct {
		const char *name;
		uint64_t *at;
	} table[] = { { "--size", &opts->size },     { "--reserve", &opts->reserve },
		      { "--shift", &opts->shift },   { "--areas", &opts->areas },
		      { "--tiny", &opts->tiny },     { "--parents", &opts->parents },
		      { "--procs", &opts->procs },   { "--entry-pages", &opts->entry_pages },
		      { "--seed", &opts->gen.seed }, { "--repeat", &opts->gen.repeat } };

	for (unsigned i = 0; i < ARRAY_SIZE(table); i++) {
		if (!strcmp(name, table[i].name)) {
			*table[i].at = number(name, value);
			return true;
		}
	}
	return false;
}

static bool flag_option(struct options *opts, const char *name)
{
	const struct {
		const char *name;
		bool *at;
	} table[] = { { "--misaligned", &opts->misaligned },
		      { "--elide", &opts->elide },
		      { "--gzip", &opts->gzip },
		      { "--sparse", &opts->sparse },
		      { "--old-fields", &opts->old_fields },
		      { "--shmem", &opts->shmem },
		      { "--amdgpu", &opts->amdgpu },
		      { "--compressed", &opts->compressed },
		      { "--lazy", &opts->lazy },
		      { "--elf32", &opts->elf32 },
		      { "--xnum", &opts->xnum },
		      { "--no-mm", &opts->no_mm } };

	for (unsigned i = 0; i < ARRAY_SIZE(table); i++) {
		if (!strcmp(name, table[i].name)) {
			*table[i].at = true;
			return true;
		}
	}
	return false;
}

static void kind_option(struct options *opts, const char *value, bool mem, bool *zero_given)
{
	static const char *const kinds[] = { "process", "heap",   "floats", "bf16", "doubles",
					     "text",    "random", "zero",   NULL };

	if (!strcmp(value, "stripes")) {
		opts->gen.zero = GEN_ZERO_STRIPES;
		*zero_given = true;
		return;
	}
	opts->gen.kind = (enum gen_kind)choice("--kind", value, kinds);
	if (mem && opts->gen.kind != GEN_PROCESS && !*zero_given)
		opts->gen.zero = GEN_ZERO_NONE;
}

static void parse_option(struct options *opts, const char *arg, bool mem, bool *zero_given)
{
	static const char *const zeros[] = { "none", "tail", "stripes", "mib", NULL };
	static const char *const versions[] = { "4.0", "2.6", "3.0", "3.2", NULL };
	static const int version_numbers[] = { 40, 26, 30, 32 };
	const char *value = strchr(arg, '=');
	char name[32];

	if (!value) {
		if (!flag_option(opts, arg))
			die("unknown option '%s'", arg);
		return;
	}
	snprintf(name, sizeof(name), "%.*s", (int)(value - arg), arg);
	value++;
	if (!strcmp(name, "--kind")) {
		kind_option(opts, value, mem, zero_given);
	} else if (!strcmp(name, "--zero")) {
		opts->gen.zero = (enum gen_zero)choice(name, value, zeros);
		*zero_given = true;
	} else if (!strcmp(name, "--zero-every")) {
		opts->gen.zero = GEN_ZERO_MIB;
		opts->gen.zero_every = (unsigned)number(name, value);
		*zero_given = true;
	} else if (!strcmp(name, "--version")) {
		opts->version = version_numbers[choice(name, value, versions)];
	} else if (!strcmp(name, "--pid")) {
		opts->pid = (uint32_t)number(name, value);
	} else if (!number_option(opts, name, value)) {
		die("unknown option '%s'", name);
	}
}

int main(int argc, char **argv)
{
	static const char *const what[] = { "mem", "dmtcp", "criu", "core", NULL };
	struct options opts = { .gen = { .zero_every = 4, .seed = 1 },
				.size = 64 * MIB,
				.shift = 12288,
				.areas = 4,
				.procs = 1,
				.pid = 1234,
				.version = 40 };
	bool zero_given = false;
	int w;

	if (argc < 3) {
		fputs(usage, stderr);
		return 2;
	}
	w = choice("tool_genimage", argv[1], what);
	if (w == 0)
		opts.gen.zero = GEN_ZERO_TAIL;
	for (int i = 3; i < argc; i++)
		parse_option(&opts, argv[i], w == 0, &zero_given);
	switch (w) {
	case 0:
		make_mem(argv[2], &opts);
		break;
	case 1:
		make_dmtcp(argv[2], &opts);
		break;
	case 2:
		make_criu(argv[2], &opts);
		break;
	default:
		make_core(argv[2], &opts);
		break;
	}
	return 0;
}
