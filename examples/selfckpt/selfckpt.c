/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Thread model: the thread that saves signals all others; their handlers note where they are and wait on state.go
 * until the file is written. After a restart the saving thread comes back first (restarted() below), makes the others
 * anew on their old stacks, inside their handlers, and lets them go.
 *
 * What runs before the thread's TLS is back must not use libc, and this file is compiled without stack protector.
 */
#include "examples/selfckpt/selfckpt.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE        4096ul
#define BUFFER_LEN  (90ul << 20) /* DMTCP's; the restarter uses a third of it */
#define MAX_THREADS 256
#define STOP_SIGNAL (SIGRTMAX - 1)
#define GAP_PAGES   16u /* shorter runs of untouched pages are saved with their neighbours */
#define ARCH_SET_FS 0x1002
#define RSEQ_SIG    0x53053053u /* glibc's on x86 */
#define N_SIGNALS   64

/* what a call leaves for its caller; see the assembler below for the offsets */
struct context {
	uint64_t rbx, rbp, r12, r13, r14, r15, rsp, rip;
	uint32_t mxcsr;
	uint16_t x87_control;
};

struct thread {
	struct context context;
	void *fs; /* thread pointer */
	int *tid_address;
	void *robust_list;
	size_t robust_len;
	stack_t altstack;
};

struct kernel_sigaction {
	uint64_t handler, flags, restorer, mask;
};

static struct {
	char *buffer;
	uint64_t mask; /* signals that the saving thread had blocked */
	struct thread saver, threads[MAX_THREADS];
	struct kernel_sigaction actions[N_SIGNALS + 1];
	_Atomic int n_stopped;
	_Atomic int go; /* rises when the stopped threads may go on */
	_Atomic int n_gone;
} state;

/* -- registers and system calls ---------------------------------------------------------------- */

int selfckpt_context_save(struct context *ctx) __attribute__((returns_twice, visibility("hidden")));
void selfckpt_context_restore(const struct context *ctx) __attribute__((noreturn, visibility("hidden")));
long selfckpt_clone(unsigned long flags, void *stack, int *ptid, int *ctid, void *tls, const struct context *ctx)
	__attribute__((visibility("hidden")));

/* clang-format off */
__asm__(".text\n"
	".type selfckpt_context_save, @function\n"
	"selfckpt_context_save:\n"
	"	mov %rbx, 0(%rdi)\n"  "	mov %rbp, 8(%rdi)\n"  "	mov %r12, 16(%rdi)\n"
	"	mov %r13, 24(%rdi)\n" "	mov %r14, 32(%rdi)\n" "	mov %r15, 40(%rdi)\n"
	"	lea 8(%rsp), %rax\n"  "	mov %rax, 48(%rdi)\n"
	"	mov (%rsp), %rax\n"   "	mov %rax, 56(%rdi)\n"
	"	stmxcsr 64(%rdi)\n"   "	fnstcw 68(%rdi)\n"
	"	xor %eax, %eax\n"     "	ret\n"
	".type selfckpt_context_restore, @function\n"
	"selfckpt_context_restore:\n"
	"	mov 0(%rdi), %rbx\n"  "	mov 8(%rdi), %rbp\n"  "	mov 16(%rdi), %r12\n"
	"	mov 24(%rdi), %r13\n" "	mov 32(%rdi), %r14\n" "	mov 40(%rdi), %r15\n"
	"	mov 48(%rdi), %rsp\n" "	ldmxcsr 64(%rdi)\n"   "	fldcw 68(%rdi)\n"
	"	mov $1, %eax\n"       "	jmp *56(%rdi)\n"
	/* clone(2); the child goes on at the context, which it finds in %r9 as the parent left it */
	".type selfckpt_clone, @function\n"
	"selfckpt_clone:\n"
	"	mov %rcx, %r10\n"     "	mov $56, %eax\n"      "	syscall\n"
	"	test %rax, %rax\n"    "	jz 1f\n"              "	ret\n"
	"1:	mov %r9, %rdi\n"      "	jmp selfckpt_context_restore\n");
/* clang-format on */

_Static_assert(offsetof(struct context, rip) == 56 && offsetof(struct context, mxcsr) == 64 &&
		       offsetof(struct context, x87_control) == 68,
	       "offsets in the assembler");

/* a system call that does not know errno, which is in TLS */
static long raw_syscall(long nr, long a, long b, long c, long d)
{
	register long r10 __asm__("r10") = d;
	long ret;

	__asm__ volatile("syscall" : "=a"(ret) : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
	return ret;
}

static void block_signals(uint64_t *ret_old)
{
	uint64_t all = ~0ull;

	raw_syscall(SYS_rt_sigprocmask, SIG_SETMASK, (long)&all, (long)ret_old, sizeof(all));
}

static void futex_wait(_Atomic int *word, int value)
{
	raw_syscall(SYS_futex, (long)word, FUTEX_WAIT, value, 0);
}

static void futex_wake(_Atomic int *word)
{
	raw_syscall(SYS_futex, (long)word, FUTEX_WAKE, INT_MAX, 0);
}

/* -- threads ----------------------------------------------------------------------------------- */

static void note_thread(struct thread *t)
{
	t->fs = __builtin_thread_pointer();
	if (prctl(PR_GET_TID_ADDRESS, &t->tid_address) < 0)
		t->tid_address = NULL;
	if (syscall(SYS_get_robust_list, 0, &t->robust_list, &t->robust_len) < 0)
		t->robust_list = NULL;
	if (sigaltstack(NULL, &t->altstack) < 0)
		t->altstack.ss_flags = SS_DISABLE;
}

/* what the kernel knows of a thread and a new one does not have */
static void adopt_thread(const struct thread *t)
{
	extern const ptrdiff_t __rseq_offset __attribute__((weak));
	extern const unsigned int __rseq_size __attribute__((weak));
	stack_t alt = t->altstack;

	if (t->tid_address)
		*t->tid_address = (int)raw_syscall(SYS_set_tid_address, (long)t->tid_address, 0, 0, 0);
	if (t->robust_list)
		raw_syscall(SYS_set_robust_list, (long)t->robust_list, (long)t->robust_len, 0, 0);
	alt.ss_flags &= SS_DISABLE;
	raw_syscall(SYS_sigaltstack, (long)&alt, 0, 0, 0);
	if (&__rseq_offset && &__rseq_size && __rseq_size)
		raw_syscall(SYS_rseq, (long)((char *)t->fs + __rseq_offset), 32, 0, RSEQ_SIG);
}

/* handler of STOP_SIGNAL; all signals are blocked in it */
static void stop_here(int sig)
{
	int seen = state.go, saved = errno;
	int slot = atomic_fetch_add(&state.n_stopped, 1);
	struct thread *t = &state.threads[slot];

	(void)sig;
	note_thread(t);
	if (selfckpt_context_save(&t->context) != 0)
		adopt_thread(t);
	else
		futex_wake(&state.n_stopped);
	while (state.go == seen)
		futex_wait(&state.go, seen);
	atomic_fetch_add(&state.n_gone, 1);
	futex_wake(&state.n_gone);
	errno = saved;
}

static void wait_for(_Atomic int *count, int want)
{
	for (int now; (now = *count) < want;)
		futex_wait(count, now);
}

/*
 * A thread that is in the list and starts another one meanwhile would be missed, so it is listed until nothing is new.
 * n_stopped counts those whose handlers run, a little before they have noted everything: they are waited for twice.
 */
static int stop_others(int *ret_n)
{
	pid_t known[MAX_THREADS], self = (pid_t)syscall(SYS_gettid);
	int n = 0;

	for (bool again = true; again;) {
		DIR *dir = opendir("/proc/self/task");
		struct dirent *e;

		again = false;
		if (!dir)
			return -errno;
		while ((e = readdir(dir)) && n < MAX_THREADS) {
			pid_t tid = (pid_t)strtol(e->d_name, NULL, 10);
			int i = 0;

			while (i < n && known[i] != tid)
				i++;
			if (tid <= 0 || tid == self || i < n || syscall(SYS_tgkill, getpid(), tid, STOP_SIGNAL) < 0)
				continue;
			known[n++] = tid;
			again = true;
		}
		closedir(dir);
		wait_for(&state.n_stopped, n);
		if (n == MAX_THREADS)
			return -EAGAIN;
	}
	for (int i = 0; i < n; i++)
		while (!*(volatile uint64_t *)&state.threads[i].context.rip)
			sched_yield();
	*ret_n = n;
	return 0;
}

static void let_others_go(void)
{
	int n = state.n_stopped;

	atomic_fetch_add(&state.go, 1);
	futex_wake(&state.go);
	wait_for(&state.n_gone, n);
}

/* -- what there is to save --------------------------------------------------------------------- */

struct range {
	uint64_t start, end;
};

struct area {
	struct range at;
	uint64_t pgoff, inode, dev_major, dev_minor;
	int prot, flags;
	bool missing; /* a userfaultfd brings pages: what is not there is not zero */
	const char *name;
};

/* work memory of one save; it is in the reserved buffer, so not in the image */
#define TEXT_MAX    (24ul << 20)
#define PAGEMAP_MAX (64ul << 10)
struct work {
	int fd, pagemap, mem;
	uint64_t off;
	struct range vdso, vvar, vvar_vclock, stack;
	uint64_t pages[PAGEMAP_MAX / 8];
	uint8_t header[PAGE];
	uint8_t copy[1ul << 20];
	char text[TEXT_MAX];
};

static int read_text(const char *path, char *buf, size_t room)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	size_t len = 0;
	ssize_t n;

	if (fd < 0)
		return -errno;
	while (len + 1 < room && (n = read(fd, buf + len, room - 1 - len)) > 0)
		len += (size_t)n;
	close(fd);
	buf[len] = '\0';
	return len + 1 < room ? 0 : -EFBIG;
}

/* the header line of an area in /proc/self/smaps; false for the other lines. Cuts the name off at the line's end */
static bool parse_line(char *line, struct area *ret)
{
	unsigned major, minor;
	char perms[5] = "";
	int at = 0;

	*ret = (struct area){ 0 };
	if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s %" SCNx64 " %x:%x %" SCNu64 " %n", &ret->at.start, &ret->at.end,
		   perms, &ret->pgoff, &major, &minor, &ret->inode, &at) < 7 ||
	    !at)
		return false;
	ret->prot = (perms[0] == 'r' ? PROT_READ : 0) | (perms[1] == 'w' ? PROT_WRITE : 0) |
		    (perms[2] == 'x' ? PROT_EXEC : 0);
	ret->flags = perms[3] == 's' ? MAP_SHARED : MAP_PRIVATE;
	ret->dev_major = major;
	ret->dev_minor = minor;
	ret->name = line + at;
	if (ret->name[0] != '/')
		ret->flags |= MAP_ANONYMOUS;
	return true;
}

static char *cut_line(char **text)
{
	char *line = *text, *end = strchr(line, '\n');

	if (!*line)
		return NULL;
	if (end)
		*end++ = '\0';
	else
		end = line + strlen(line);
	*text = end;
	return line;
}

/* the next area; @text moves on */
static bool next_area(char **text, struct area *ret)
{
	char *line;

	do {
		line = cut_line(text);
	} while (line && !parse_line(line, ret));
	while (line && (line = cut_line(text)))
		if (!strncmp(line, "VmFlags:", 8)) {
			ret->missing = strstr(line, " um") != NULL;
			return true;
		}
	return false;
}

static bool is_named(const struct area *a, const char *name)
{
	return strcmp(a->name, name) == 0;
}

/* what the restarter makes itself; noted, not saved */
static bool is_kernels(struct work *w, const struct area *a)
{
	if (is_named(a, "[vdso]"))
		w->vdso = a->at;
	else if (is_named(a, "[vvar]"))
		w->vvar = a->at;
	else if (is_named(a, "[vvar_vclock]"))
		w->vvar_vclock = a->at;
	else
		return is_named(a, "[vsyscall]") ||
		       (a->at.start >= (uint64_t)state.buffer && a->at.end <= (uint64_t)state.buffer + BUFFER_LEN);
	return true;
}

/* -- writing ----------------------------------------------------------------------------------- */

static int put(struct work *w, const void *data, uint64_t len)
{
	const char *p = data;

	while (len) {
		ssize_t n = write(w->fd, p, len < (1ul << 30) ? len : 1ul << 30);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -EIO;
		p += n;
		len -= (uint64_t)n;
		w->off += (uint64_t)n;
	}
	return 0;
}

/* memory that may not be readable in the ordinary way */
static int put_memory(struct work *w, const struct area *a, uint64_t addr, uint64_t len)
{
	if (a->prot & PROT_READ)
		return put(w, (const void *)addr, len);
	while (len) {
		size_t piece = len < sizeof(w->copy) ? len : sizeof(w->copy);
		ssize_t n = pread(w->mem, w->copy, piece, (off_t)addr);
		int r = n > 0 ? put(w, w->copy, (uint64_t)n) : n < 0 ? -errno : -EIO;

		if (r)
			return r;
		addr += (uint64_t)n;
		len -= (uint64_t)n;
	}
	return 0;
}

static void set64(uint8_t *p, size_t off, uint64_t value)
{
	memcpy(p + off, &value, sizeof(value));
}

static void set32(uint8_t *p, size_t off, uint32_t value)
{
	memcpy(p + off, &value, sizeof(value));
}

enum { ZERO = 1, PARENT = 2, CHILD = 4 };

static int put_area_header(struct work *w, const struct area *a, uint64_t start, uint64_t end, uint64_t file_size,
			   uint64_t properties)
{
	uint8_t *h = w->header;

	memset(h, 0, PAGE);
	set64(h, 0, start);
	set64(h, 8, end);
	set64(h, 16, end - start);
	set64(h, 24, a->pgoff + (a->name[0] == '/' ? start - a->at.start : 0));
	set32(h, 32, (uint32_t)a->prot);
	set32(h, 40, (uint32_t)a->flags);
	set64(h, 48, a->dev_major);
	set64(h, 56, a->dev_minor);
	set64(h, 64, a->inode);
	set64(h, 72, file_size);
	set64(h, 80, properties);
	strncpy((char *)h + 88, a->name, 1023);
	return put(w, h, PAGE);
}

static bool is_zero_page(const char *page)
{
	static const char zero[PAGE];

	return memcmp(page, zero, PAGE) == 0;
}

/* is the page at @addr to be saved? Refills the window of /proc/self/pagemap as needed */
static int page_is_there(struct work *w, const struct area *a, uint64_t addr, struct range *window, bool *ret)
{
	if (a->missing) {
		/* waits for the page if need be */
		*ret = !(a->prot & PROT_READ) || !is_zero_page((const char *)addr);
		return 0;
	}
	if (addr < window->start || addr >= window->end) {
		ssize_t n = pread(w->pagemap, w->pages, sizeof(w->pages), (off_t)(addr / PAGE * 8));

		if (n < 8)
			return n < 0 ? -errno : -EIO;
		*window = (struct range){ addr, addr + (uint64_t)n / 8 * PAGE };
	}
	*ret = w->pages[(addr - window->start) / PAGE] >> 62 != 0;
	return 0;
}

/* from @start, the end of the run of pages that are there or not there */
static int run_end(struct work *w, const struct area *a, uint64_t start, bool *ret_there, uint64_t *ret_end)
{
	struct range window = { 0, 0 };
	uint64_t gap = 0;
	int r = page_is_there(w, a, start, &window, ret_there);

	*ret_end = start + PAGE;
	for (uint64_t at = start + PAGE; !r && at < a->at.end; at += PAGE) {
		bool there = false;

		r = page_is_there(w, a, at, &window, &there);
		if (there == *ret_there) {
			*ret_end = at + PAGE;
			gap = 0;
		} else if (!*ret_there || ++gap >= GAP_PAGES) {
			break;
		}
	}
	return r;
}

/* anonymous: the whole first, then its parts with pages and without */
static int put_anonymous(struct work *w, const struct area *a)
{
	int r = put_area_header(w, a, a->at.start, a->at.end, UINT64_MAX, PARENT);

	for (uint64_t at = a->at.start, end; !r && at < a->at.end; at = end) {
		bool there = false;

		r = run_end(w, a, at, &there, &end);
		if (!r)
			r = put_area_header(w, a, at, end, UINT64_MAX, there ? CHILD : CHILD | ZERO);
		if (!r && there)
			r = put_memory(w, a, at, end - at);
	}
	return r;
}

/* a file: all of it, or what of it there is when the file ends inside the mapping */
static int put_file(struct work *w, const struct area *a)
{
	uint64_t len = a->at.end - a->at.start, file_size = UINT64_MAX;
	struct stat st;
	int r;

	if (!(a->prot & PROT_WRITE) && stat(a->name, &st) == 0 && (uint64_t)st.st_size > a->pgoff &&
	    (uint64_t)st.st_size - a->pgoff < len)
		len = file_size = (uint64_t)st.st_size - a->pgoff;
	r = put_area_header(w, a, a->at.start, a->at.end, file_size, 0);
	return r ? r : put_memory(w, a, a->at.start, len);
}

static int put_area(struct work *w, struct area *a)
{
	if (a->name[0] != '/')
		return put_anonymous(w, a);
	if (a->prot & PROT_READ)
		return put_file(w, a);
	/* nobody reads it: keep the addresses and what was written there */
	a->flags |= MAP_ANONYMOUS;
	return put_anonymous(w, a);
}

static uint64_t vdso_offset(void *handle, const struct work *w, const char *name)
{
	void *p = handle ? dlsym(handle, name) : NULL;

	return p ? (uint64_t)p - w->vdso.start : UINT64_MAX;
}

static void selfckpt_restarted(int pause);

static int put_header(struct work *w)
{
	void *vdso = dlopen("linux-vdso.so.1", RTLD_LAZY | RTLD_NOLOAD);
	uint8_t *h = w->header;
	int r;

	memset(h, 0, PAGE);
	memcpy(h, "DMTCP_CHECKPOINT_IMAGE_v4.0\n", 28);
	set32(h, 48, (uint32_t)getpid());
	set32(h, 104, (uint32_t)getpid());
	set32(h, 108, (uint32_t)getppid());
	set32(h, 112, (uint32_t)getsid(0));
	set32(h, 116, (uint32_t)getpgrp());
	set32(h, 124, 1);
	set32(h, 128, 1);
	set32(h, 132, 1);
	set64(h, 136, vdso_offset(vdso, w, "__vdso_clock_gettime"));
	set64(h, 144, vdso_offset(vdso, w, "__vdso_getcpu"));
	set64(h, 152, vdso_offset(vdso, w, "__vdso_gettimeofday"));
	set64(h, 160, vdso_offset(vdso, w, "__vdso_time"));
	set64(h, 168, (uint64_t)state.buffer);
	set64(h, 176, (uint64_t)state.buffer + BUFFER_LEN);
	memcpy(h + 184, &w->vdso, 16);
	memcpy(h + 200, &w->vvar, 16);
	memcpy(h + 216, &w->vvar_vclock, 16);
	set64(h, 232, (uint64_t)syscall(SYS_brk, 0));
	set64(h, 240, w->stack.end);
	set64(h, 248, (uint64_t)selfckpt_restarted);
	/* thawfs restart knows by it that no coordinator is needed */
	memcpy(h + 2304, "selfckpt", 8);
	if (readlink("/proc/self/exe", (char *)h + 1280, 1023) < 0)
		h[1280] = '\0';
	strncpy((char *)h + 256, program_invocation_short_name, 1023);
	r = put(w, h, PAGE);
	return r ? r : put(w, h, PAGE);
}

/* /proc/self/smaps is walked twice: the header needs what is among the areas */
static int put_image(struct work *w)
{
	struct area a;
	char *text = w->text;
	int r = read_text("/proc/self/smaps", w->text, TEXT_MAX);

	if (r)
		return r;
	while (next_area(&text, &a))
		if (!is_kernels(w, &a) && is_named(&a, "[stack]"))
			w->stack = a.at;
	r = put_header(w);
	if (!r)
		r = read_text("/proc/self/smaps", w->text, TEXT_MAX);
	text = w->text;
	while (!r && next_area(&text, &a))
		if (!is_kernels(w, &a))
			r = put_area(w, &a);
	if (r)
		return r;
	memset(w->header, 0, PAGE);
	set64(w->header, 16, UINT64_MAX);
	return put(w, w->header, PAGE);
}

static int write_file(struct work *w, const char *path)
{
	char temp[PATH_MAX];
	int r;

	if ((size_t)snprintf(temp, sizeof(temp), "%s.temp", path) >= sizeof(temp))
		return -ENAMETOOLONG;
	w->fd = open(temp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (w->fd < 0)
		return -errno;
	w->pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	w->mem = open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
	r = w->pagemap < 0 || w->mem < 0 ? -EACCES : put_image(w);
	close(w->pagemap);
	close(w->mem);
	if (close(w->fd) < 0 && !r)
		r = -errno;
	if (!r && rename(temp, path) < 0)
		r = -errno;
	if (r)
		unlink(temp);
	return r;
}

static int write_image(const char *path)
{
	/* behind a page that stays: else it becomes one area with what is mapped before the buffer */
	struct work *w = mmap(state.buffer + PAGE, sizeof(*w), PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	int r;

	if (w == MAP_FAILED)
		return -errno;
	r = write_file(w, path);
	if (mmap(state.buffer, BUFFER_LEN, PROT_NONE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED &&
	    !r)
		r = -errno;
	return r;
}

/* -- save and restart -------------------------------------------------------------------------- */

/* the restarter calls this, on a stack in the reserved buffer, in a process without TLS */
static void selfckpt_restarted(int pause)
{
	(void)pause;
	raw_syscall(SYS_arch_prctl, ARCH_SET_FS, (long)state.saver.fs, 0, 0);
	selfckpt_context_restore(&state.saver.context);
}

/* make the other threads anew; without one of them the process would be another: give up then */
static void recreate_threads(void)
{
	unsigned long flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM |
			      CLONE_SETTLS | CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID;

	for (int i = 0; i < state.n_stopped; i++) {
		struct thread *t = &state.threads[i];
		/* below what the thread's frames hold, and the red zone */
		void *stack = (void *)(t->context.rsp - 256);

		if (selfckpt_clone(flags, stack, t->tid_address, t->tid_address, t->fs, &t->context) < 0)
			abort();
	}
}

static void finish_restart(void)
{
	uint64_t ignored;

	block_signals(&ignored);
	adopt_thread(&state.saver);
	for (int sig = 1; sig <= N_SIGNALS; sig++)
		raw_syscall(SYS_rt_sigaction, sig, (long)&state.actions[sig], 0, 8);
	if (mmap(state.buffer, BUFFER_LEN, PROT_NONE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
		abort();
	recreate_threads();
}

int selfckpt_init(void)
{
	struct sigaction sa = { .sa_handler = stop_here, .sa_flags = SA_RESTART };
	void *p = mmap(NULL, BUFFER_LEN, PROT_NONE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		return -errno;
	state.buffer = p;
	sigfillset(&sa.sa_mask);
	return sigaction(STOP_SIGNAL, &sa, NULL) < 0 ? -errno : 0;
}

int selfckpt_save(const char *path)
{
	int n = 0, r;

	if (!state.buffer)
		return -EINVAL;
	block_signals(&state.mask);
	state.n_stopped = state.n_gone = 0;
	memset(state.threads, 0, sizeof(state.threads));
	for (int sig = 1; sig <= N_SIGNALS; sig++)
		raw_syscall(SYS_rt_sigaction, sig, 0, (long)&state.actions[sig], 8);
	note_thread(&state.saver);
	r = stop_others(&n);
	if (!r) {
		if (selfckpt_context_save(&state.saver.context) == 0) {
			r = write_image(path);
		} else {
			finish_restart();
			r = 1;
		}
	}
	let_others_go();
	raw_syscall(SYS_rt_sigprocmask, SIG_SETMASK, (long)&state.mask, 0, sizeof(state.mask));
	return r;
}
