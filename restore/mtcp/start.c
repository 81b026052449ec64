/* SPDX-License-Identifier: Apache-2.0 */
/* Entry, arguments, messages, and the move into the restore buffer. */
#include <linux/mman.h>
#include <linux/time.h>

#include "restore/mtcp/mtcp.h"

extern const char __ehdr_start[], _end[];

/* clang-format off */
__asm__(".globl _start\n"
	"_start:\n"
	"	xor %ebp, %ebp\n"  "	mov %rsp, %rdi\n"  "	and $-16, %rsp\n"  "	call mtcp_start\n"
	".globl mtcp_clone\n"
	"mtcp_clone:\n"
	"	mov %rcx, %r10\n"  "	mov $56, %eax\n"   "	syscall\n"
	"	test %rax, %rax\n" "	jz 1f\n"           "	ret\n"
	"1:	xor %ebp, %ebp\n"  "	mov %r9, %rdi\n"   "	call *%r8\n"
	"	mov $60, %eax\n"   "	xor %edi, %edi\n"  "	syscall\n");
/* clang-format on */

void *memcpy(void *to, const void *from, size_t n)
{
	void *ret = to;

	__asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(n) : : "memory");
	return ret;
}

void *memset(void *to, int c, size_t n)
{
	void *ret = to;

	__asm__ volatile("rep stosb" : "+D"(to), "+c"(n) : "a"(c) : "memory");
	return ret;
}

int memcmp(const void *a, const void *b, size_t n)
{
	const uint8_t *x = a, *y = b;

	for (size_t i = 0; i < n; i++)
		if (x[i] != y[i])
			return x[i] < y[i] ? -1 : 1;
	return 0;
}

/* -- messages ---------------------------------------------------------------------------------- */

struct line {
	char text[512];
	size_t len;
};

static void add_text(struct line *l, const char *s)
{
	while (*s && l->len < sizeof(l->text) - 2) {
		/* names come from the image: they cannot drive the terminal */
		l->text[l->len++] = (unsigned char)*s < ' ' ? '?' : *s;
		s++;
	}
}

static void add_number(struct line *l, uint64_t v, unsigned base)
{
	char digits[24];
	size_t n = sizeof(digits);

	digits[--n] = '\0';
	do {
		unsigned d = (unsigned)(v % base);

		digits[--n] = (char)(d < 10 ? '0' + d : 'a' + d - 10);
		v /= base;
	} while (v);
	add_text(l, digits + n);
}

static void put_line(const struct restart *r, struct line *l)
{
	l->text[l->len++] = '\n';
	/* the descriptor that DMTCP gives may be closed */
	if (sys3(__NR_write, r->stderr_fd, l->text, l->len) < 0)
		sys3(__NR_write, 2, l->text, l->len);
}

/* %: the subject, #: the value in decimal, @: in hexadecimal */
static void add_format(struct line *l, const char *what, const char *subject, uint64_t value)
{
	for (char one[2] = ""; *what; what++) {
		one[0] = *what;
		if (*what == '%')
			add_text(l, subject ? subject : "");
		else if (*what == '#')
			add_number(l, value, 10);
		else if (*what == '@')
			add_number(l, value, 16);
		else
			add_text(l, one);
	}
}

void fail(const struct restart *r, int status, const char *what, const char *subject, uint64_t value)
{
	struct line l;

	l.len = 0;
	add_text(&l, "thawfs-mtcp-restart: ");
	add_format(&l, what, subject, value);
	put_line(r, &l);
	for (;;)
		sys3(__NR_exit_group, status, 0, 0);
}

static void add_value(struct line *l, const char *name, uint64_t value)
{
	add_text(l, name);
	add_number(l, value, 10);
}

void say_profile(const struct restart *r, uint64_t end_ns)
{
	struct line l;

	l.len = 0;
	add_text(&l, "thawfs-mtcp-restart: profile:");
	add_value(&l, " plan_us=", (r->planned_ns - r->start_ns) / 1000);
	add_value(&l, " map_us=", (r->mapped_ns - r->planned_ns) / 1000);
	add_value(&l, " fill_us=", (end_ns - r->mapped_ns) / 1000);
	add_value(&l, " areas=", r->n_areas);
	add_value(&l, " readers=", r->n_readers);
	add_value(&l, " read_bytes=", r->bytes_read);
	add_value(&l, " mapped_bytes=", r->bytes_mapped);
	add_value(&l, " hole_bytes=", r->bytes_skipped);
	if (r->mode == MODE_UFFD)
		add_value(&l, " served_bytes=", r->bytes_served);
	put_line(r, &l);
}

uint64_t now_ns(void)
{
	long ts[2] = { 0, 0 };

	sys3(__NR_clock_gettime, CLOCK_MONOTONIC, ts, 0);
	return (uint64_t)ts[0] * 1000000000u + (uint64_t)ts[1];
}

/* -- what is mapped here ----------------------------------------------------------------------- */

void read_maps(struct restart *r)
{
	long fd = sys3(__NR_open, "/proc/self/maps", 0, 0), n = 1;
	size_t len = 0;

	if (fd < 0)
		fail(r, EXIT_FAILED, "cannot open '/proc/self/maps': error #", NULL, (uint64_t)-fd);
	while (n > 0 && len < sizeof(r->text) - 1) {
		n = sys3(__NR_read, fd, r->text + len, sizeof(r->text) - 1 - len);
		if (n > 0)
			len += (size_t)n;
	}
	sys3(__NR_close, fd, 0, 0);
	if (n != 0)
		fail(r, EXIT_FAILED, "cannot read '/proc/self/maps'", NULL, 0);
	r->text[len] = '\0';
}

bool next_mapping(const char **text, struct span *ret, const char **ret_name)
{
	const char *s = *text;

	if (!*s)
		return false;
	ret->start = text_number(&s, 16);
	if (*s == '-')
		s++;
	ret->end = text_number(&s, 16);
	*ret_name = "";
	for (; *s && *s != '\n'; s++)
		if ((*s == '[' || *s == '/') && s[-1] == ' ' && !**ret_name)
			*ret_name = s;
	*text = *s ? s + 1 : s;
	return true;
}

static void find_vdso(struct restart *r)
{
	const char *text = r->text, *name;
	struct span at;

	read_maps(r);
	while (next_mapping(&text, &at, &name))
		if (text_after(name, "[vdso]"))
			r->vdso = at;
		else if (text_after(name, "[vvar]"))
			r->vvar = at;
		else if (text_after(name, "[vvar_vclock]"))
			r->vvar_vclock = at;
}

static uint64_t span_len(struct span s)
{
	return s.end - s.start;
}

/* programs call the vdso by addresses that they looked up in the old process: it must be the same one */
static void check_vdso(struct restart *r)
{
	const struct image_head *h = &r->head;

	find_vdso(r);
	if (!span_len(h->vdso))
		return;
	if (span_len(h->vdso) != span_len(r->vdso) || span_len(h->vvar) != span_len(r->vvar) ||
	    span_len(h->vvar_vclock) != span_len(r->vvar_vclock))
		fail(r, EXIT_FAILED, "cannot restart here: the image is of another kernel, its vdso has another size",
		     NULL, 0);
	if (span_len(r->vvar) && h->vdso.start - h->vvar.start != r->vdso.start - r->vvar.start)
		fail(r, EXIT_FAILED, "cannot restart here: the image is of another kernel, its vvar is elsewhere", NULL,
		     0);
}

/* -- arguments --------------------------------------------------------------------------------- */

static uint64_t number_argument(struct restart *r, const char *option, const char *value)
{
	const char *end = value;
	uint64_t v;

	if (!value || !*value)
		fail(r, EXIT_USAGE, "option '%' needs a number", option, 0);
	v = text_number(&end, 10);
	if (*end)
		fail(r, EXIT_USAGE, "option '%': not a number", option, 0);
	return v;
}

static void parse_arguments(struct restart *r, char **argv)
{
	for (argv++; *argv; argv += 2) {
		const char *o = argv[0];
		uint64_t v = number_argument(r, o, argv[1]);

		if (text_is(o, "--stderr-fd"))
			r->stderr_fd = (int)v;
		else if (text_is(o, "--restore-buffer-addr"))
			r->buffer = v;
		else if (text_is(o, "--restore-buffer-len"))
			r->buffer_len = v;
		else if (text_is(o, "--mtcp-restart-pause"))
			r->pause = v;
		else if (text_is(o, "--fd"))
			r->fd = (int)v;
		else
			fail(r, EXIT_USAGE, "unknown option '%'", o, 0);
	}
	if (r->fd < 0 || !r->buffer || r->buffer_len < 3 * PAGE || r->buffer % PAGE || r->buffer_len % PAGE ||
	    r->buffer > ADDRESS_END || r->buffer_len > ADDRESS_END - r->buffer)
		fail(r, EXIT_USAGE, "--fd, --restore-buffer-addr and --restore-buffer-len are needed, in whole pages",
		     NULL, 0);
}

static unsigned count_processors(void)
{
	unsigned long mask[16] = { 0 };
	unsigned n = 0;

	sys3(__NR_sched_getaffinity, 0, sizeof(mask), mask);
	for (size_t i = 0; i < 16; i++)
		for (unsigned long m = mask[i]; m; m &= m - 1)
			n++;
	return n ? n : 1;
}

static void parse_environment(struct restart *r, char **envp)
{
	r->n_readers = count_processors();
	if (r->n_readers > 8)
		r->n_readers = 8;
	for (; *envp; envp++) {
		const char *v;

		if ((v = text_after(*envp, "DMTCP_RESTART_READERS=")))
			r->n_readers = (unsigned)text_number(&v, 10);
		else if ((v = text_after(*envp, "DMTCP_RESTART_PROFILE=")))
			r->profile = text_is(v, "1");
		else if ((v = text_after(*envp, "THAWFS_RESTART_SERVER=")))
			r->server_fd = (int)text_number(&v, 10);
		else if ((v = text_after(*envp, "THAWFS_RESTART_SPANS=")))
			r->spans_fd = (int)text_number(&v, 10);
		else if ((v = text_after(*envp, "THAWFS_RESTART_MODE=")) && *v) {
			if (text_is(v, "lazy"))
				r->mode = MODE_LAZY;
			else if (text_is(v, "uffd"))
				r->mode = MODE_UFFD;
			else if (!text_is(v, "eager"))
				fail(r, EXIT_USAGE, "THAWFS_RESTART_MODE: '%' is not a mode", v, 0);
		}
	}
	if (r->n_readers < 1)
		r->n_readers = 1;
	if (r->n_readers > MAX_READERS)
		r->n_readers = MAX_READERS;
}

/* -- moving ------------------------------------------------------------------------------------ */

/* a third of the buffer in which nothing of ours lies */
static struct restart *reserve_third(struct restart *early)
{
	uint64_t third = early->buffer_len / 3 & ~(PAGE - 1);

	if (third < sizeof(struct restart) + 4 * MIB)
		fail(early, EXIT_FAILED, "the restore buffer is too small: # bytes", NULL, early->buffer_len);
	for (unsigned i = 0; i < 3; i++) {
		uint64_t at = early->buffer + i * third;

		if (sys_mmap(at, third, PROT_READ | PROT_WRITE,
			     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0) == (long)at) {
			struct restart *r = (struct restart *)at;

			r->own = (struct span){ at, at + third };
			return r;
		}
	}
	fail(early, EXIT_FAILED, "cannot use the restore buffer at @: something is mapped there", NULL, early->buffer);
}

/* the copy of the code, and room for the vdso, behind the struct */
static void copy_code(struct restart *r)
{
	uint64_t len = ((uint64_t)(_end - __ehdr_start) + PAGE - 1) & ~(PAGE - 1);

	r->code = ((uint64_t)(r + 1) + PAGE - 1) & ~(PAGE - 1);
	memcpy((void *)r->code, __ehdr_start, (size_t)(_end - __ehdr_start));
	if (sys3(__NR_mprotect, r->code, len, PROT_READ | PROT_EXEC) < 0)
		fail(r, EXIT_FAILED, "cannot make a copy of the restarter executable", NULL, 0);
	r->parked_vdso = r->code + len + PAGE;
	r->parked_vvar = r->parked_vdso + MIB;
	r->parked_vclock = r->parked_vvar + MIB;
}

/* as long as the place is not known: the struct's beginning */
#define EARLY_BYTES offsetof(struct restart, page)
static struct restart *early_room(void)
{
	long at = sys_mmap(0, EARLY_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (sys_failed(at))
		sys3(__NR_exit_group, EXIT_FAILED, 0, 0);
	return (struct restart *)at;
}

_Noreturn void mtcp_start(long *stack);
_Noreturn void mtcp_start(long *stack)
{
	char **argv = (char **)(stack + 1), **envp = argv + stack[0] + 1;
	struct restart *r;
	struct restart *early = early_room();

	early->start_ns = now_ns();
	early->stderr_fd = 2;
	early->fd = early->view_fd = early->server_fd = early->spans_fd = -1;
	parse_arguments(early, argv);
	parse_environment(early, envp);
	r = reserve_third(early);
	early->own = r->own;
	memcpy(r, early, EARLY_BYTES);
	image_read_head(r);
	check_vdso(r);
	if (!r->is_pipe)
		image_read_areas(r);
	if (r->mode == MODE_LAZY && !r->is_pipe)
		image_find_view(r);
	if (r->mode == MODE_UFFD && r->is_pipe)
		fail(r, EXIT_USAGE, "THAWFS_RESTART_MODE=uffd is for thawfs restart alone", NULL, 0);
	if (r->mode == MODE_UFFD)
		serve_prepare(r);
	copy_code(r);
	r->planned_ns = now_ns();
	__asm__ volatile("mov %0, %%rsp\n\txor %%ebp, %%ebp\n\tcall *%2\n\thlt"
			 :
			 : "r"((uint64_t)(r->stack + sizeof(r->stack))), "D"(r),
			   "r"((uint64_t)memory_restore - (uint64_t)__ehdr_start + r->code)
			 : "memory");
	__builtin_unreachable();
}
