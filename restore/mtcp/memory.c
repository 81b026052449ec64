/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replacing the process. Runs in the restore buffer; from unmap_all() on there is nothing else.
 *
 * Readers share the address space and fill equal shares of the payloads' bytes; nobody maps or unmaps meanwhile. The
 * first that cannot read ends the process.
 */
#include <asm/stat.h>
#include <linux/mman.h>
#include <linux/prctl.h>

#include "restore/mtcp/mtcp.h"

#define CLONE_READER 0x00350f00 /* VM FS FILES SIGHAND THREAD SYSVSEM PARENT_SETTID CHILD_CLEARTID */
#define SEEK_DATA_   3
#define SEEK_HOLE_   4
#define HUGE_MIN     (4 * MIB)
#define HUGE_PAGE    (2 * MIB)
#define FILL_ALONE   (4 * MIB) /* less than that is not worth a thread */
#define READ_MAX     (64 * MIB)

static void move_mapping(struct restart *r, struct span *at, uint64_t to)
{
	uint64_t len = at->end - at->start;

	if (!len || at->start == to)
		return;
	/* MREMAP_MAYMOVE | MREMAP_FIXED */
	if (sys6(__NR_mremap, (long)at->start, (long)len, (long)len, 3, (long)to, 0) != (long)to)
		fail(r, EXIT_FAILED, "cannot move the vdso to @", NULL, to);
	*at = (struct span){ to, to + len };
}

/* all but our own third; the kernel's vsyscall page cannot go and is not in the way */
static void unmap_all(struct restart *r)
{
	uint64_t from = 0;

	if (sys3(__NR_munmap, from, r->own.start - from, 0) < 0 ||
	    sys3(__NR_munmap, r->own.end, ADDRESS_END - r->own.end, 0) < 0)
		fail(r, EXIT_FAILED, "cannot unmap the restarter", NULL, 0);
}

static void reserve_rest(struct restart *r)
{
	uint64_t end = r->buffer + r->buffer_len;
	int flags = MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED;

	if ((r->own.start > r->buffer &&
	     sys_failed(sys_mmap(r->buffer, r->own.start - r->buffer, PROT_NONE, flags, -1, 0))) ||
	    (r->own.end < end && sys_failed(sys_mmap(r->own.end, end - r->own.end, PROT_NONE, flags, -1, 0))))
		fail(r, EXIT_FAILED, "cannot reserve the restore buffer", NULL, 0);
}

static void clear_addresses(struct restart *r)
{
	move_mapping(r, &r->vdso, r->parked_vdso);
	move_mapping(r, &r->vvar, r->parked_vvar);
	move_mapping(r, &r->vvar_vclock, r->parked_vclock);
	unmap_all(r);
	reserve_rest(r);
	if (r->head.vdso.start) {
		move_mapping(r, &r->vdso, r->head.vdso.start);
		move_mapping(r, &r->vvar, r->head.vvar.start);
		move_mapping(r, &r->vvar_vclock, r->head.vvar_vclock.start);
	}
}

/* -- areas ------------------------------------------------------------------------------------- */

static const char *area_name(const struct restart *r, const struct area *a)
{
	return a->name ? r->names + a->name : "";
}

/* the file that was mapped, if it is there and long enough. Return: descriptor or -1 */
static int open_mapped_file(const struct restart *r, const struct area *a)
{
	struct stat st = { 0 };
	long fd;

	if (area_name(r, a)[0] != '/' || a->flags & (MAP_SHARED | MAP_ANONYMOUS))
		return -1;
	fd = sys3(__NR_open, area_name(r, a), 02000000 /* O_RDONLY | O_CLOEXEC */, 0);
	if (fd < 0)
		return -1;
	if (sys3(__NR_fstat, fd, &st, 0) < 0 || (st.st_mode & 0170000) != 0100000 || a->pgoff % PAGE ||
	    (uint64_t)st.st_size < a->pgoff || (uint64_t)st.st_size - a->pgoff < a->payload_len) {
		sys3(__NR_close, fd, 0, 0);
		return -1;
	}
	return (int)fd;
}

/* parents, and areas without one: a mapping of their own; the children lie inside of it */
static void map_area(struct restart *r, struct area *a)
{
	int flags = MAP_PRIVATE | MAP_FIXED_NOREPLACE, fd = open_mapped_file(r, a);
	long at;

	a->anonymous = fd < 0;
	if (fd < 0) {
		flags |= MAP_ANONYMOUS | MAP_NORESERVE;
		if (a->addr + a->size == r->head.stack_end || text_is(area_name(r, a), "[stack]"))
			flags |= MAP_GROWSDOWN;
	}
	at = sys_mmap(a->addr, a->size, (int)(a->prot | PROT_WRITE), flags, fd, fd < 0 ? 0 : a->pgoff);
	if (fd >= 0)
		sys3(__NR_close, fd, 0, 0);
	if (at != (long)a->addr)
		fail(r, sys_failed(at) && at != -17 ? EXIT_FAILED : EXIT_DAMAGED,
		     at == -17 ? "cannot map the area at @: two areas overlap" : "cannot map the area at @", NULL,
		     a->addr);
}

static void ask_for_huge_pages(const struct area *a)
{
	uint64_t start = (a->addr + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1),
		 end = (a->addr + a->payload_len) & ~(HUGE_PAGE - 1);

	if (a->anonymous && !a->mapped && a->payload_len >= HUGE_MIN && start < end)
		sys3(__NR_madvise, start, end - start, 14 /* MADV_HUGEPAGE */);
}

/*
 * Map the bytes of an area from the view (offset = address), its holes left anonymous, or from the image where
 * they lie at whole pages. What cannot be mapped is read.
 */
static void map_lazily(struct restart *r, struct area *a)
{
	int fd = r->view_fd >= 0 ? r->view_fd : r->fd;
	uint64_t shift = r->view_fd >= 0 ? 0 : a->payload_off - a->addr, at = a->addr, end = a->addr + a->payload_len;

	if (!a->anonymous || a->payload_len < LAZY_MIN || a->payload_len % PAGE || shift % PAGE)
		return;
	while (at < end) {
		long data = sys3(__NR_lseek, fd, at + shift, SEEK_DATA_);
		long hole = data < 0 ? -1 : sys3(__NR_lseek, fd, data, SEEK_HOLE_);
		uint64_t start, stop;

		if (data == -6 || (data >= 0 && (uint64_t)data - shift >= end)) { /* ENXIO: holes to the end */
			r->bytes_skipped += end - at;
			break;
		}
		start = data < 0 ? at : ((uint64_t)data - shift) & ~(PAGE - 1);
		stop = hole < 0 ? end : ((uint64_t)hole - shift + PAGE - 1) & ~(PAGE - 1);
		if (stop > end)
			stop = end;
		if (sys_mmap(start, stop - start, (int)(a->prot | PROT_WRITE), MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE,
			     fd, start + shift) != (long)start) {
			/* too many mappings, or the file system cannot: all of the area is read over it */
			return;
		}
		r->bytes_skipped += start - at;
		r->bytes_mapped += stop - start;
		at = stop;
	}
	a->mapped = true;
}

static void map_areas(struct restart *r)
{
	bool anonymous = true;

	for (uint32_t i = 0; i < r->n_areas; i++) {
		struct area *a = &r->areas[i];

		if (a->properties & CHILD)
			a->anonymous = anonymous;
		else
			map_area(r, a);
		anonymous = a->anonymous;
	}
	/* when all addresses are taken: what is mapped in their place can hit nothing else */
	for (uint32_t i = 0; i < r->n_areas; i++) {
		if (r->mode == MODE_LAZY)
			map_lazily(r, &r->areas[i]);
		ask_for_huge_pages(&r->areas[i]);
	}
}

static void protect(struct restart *r, const struct area *a)
{
	if (!(a->properties & CHILD) && !(a->prot & PROT_WRITE) && sys3(__NR_mprotect, a->addr, a->size, a->prot) < 0)
		fail(r, EXIT_FAILED, "cannot protect the area at @", NULL, a->addr);
}

/* -- filling ----------------------------------------------------------------------------------- */

/* how much of [@off, @off + @len) of the image is a hole at its start */
static uint64_t hole_len(const struct restart *r, uint64_t off, uint64_t len)
{
	long data = sys3(__NR_lseek, r->fd, off, SEEK_DATA_);

	if (data == -6)
		return len;
	if (data < 0 || (uint64_t)data <= off)
		return 0;
	return (uint64_t)data - off < len ? (uint64_t)data - off : len;
}

static uint64_t data_len(const struct restart *r, uint64_t off, uint64_t len)
{
	long hole = sys3(__NR_lseek, r->fd, off, SEEK_HOLE_);

	if (hole <= 0 || (uint64_t)hole <= off)
		return len;
	return (uint64_t)hole - off < len ? (uint64_t)hole - off : len;
}

static void read_bytes(struct restart *r, uint64_t addr, uint64_t off, uint64_t len)
{
	while (len) {
		long n = sys4(__NR_pread64, r->fd, addr, len < READ_MAX ? len : READ_MAX, off);

		if (n == -4)
			continue;
		if (n == 0)
			fail(r, EXIT_DAMAGED, "the image became shorter while it was read: it ends at offset #", NULL,
			     off);
		if (n == -5)
			fail(r, EXIT_DAMAGED,
			     "cannot read the image: the bytes of address @ are damaged or not to be had", NULL, addr);
		if (n < 0)
			fail(r, EXIT_FAILED, "cannot read the image: the bytes of address @", NULL, addr);
		addr += (uint64_t)n;
		off += (uint64_t)n;
		len -= (uint64_t)n;
		r->bytes_read += (uint64_t)n;
	}
}

/* how much of [@addr, @addr + @len) a page server has, *@ret_until: how much it does not have before that */
static uint64_t served_len(const struct restart *r, uint64_t addr, uint64_t len, uint64_t *ret_until)
{
	const struct span *s = serve_span(r, addr);

	*ret_until = len;
	if (!s || s->start >= addr + len)
		return 0;
	if (s->start <= addr)
		return s->end - addr < len ? s->end - addr : len;
	*ret_until = s->start - addr;
	return 0;
}

/* memory that is zero already needs no zeros */
static void fill_part(struct restart *r, const struct area *a, uint64_t first, uint64_t len)
{
	uint64_t addr = a->addr + first, off = a->payload_off + first;

	while (len) {
		uint64_t until, served = served_len(r, addr, len, &until);
		uint64_t n = served ? served : a->anonymous ? hole_len(r, off, until) : 0;

		if (served) {
			if (!a->anonymous)
				fail(r, EXIT_FAILED, "cannot have the memory at @ served: it maps a file", NULL, addr);
		} else if (n) {
			r->bytes_skipped += n;
		} else {
			n = a->anonymous ? data_len(r, off, until) : until;
			read_bytes(r, addr, off, n);
		}
		addr += n;
		off += n;
		len -= n;
	}
}

static uint64_t bytes_to_read(const struct area *a)
{
	return a->mapped ? 0 : a->payload_len;
}

/* bytes [@from, @to) of all payloads that are to be read, one behind the other */
static void fill_share(struct restart *r, uint64_t from, uint64_t to)
{
	uint64_t at = 0;

	for (uint32_t i = 0; i < r->n_areas && at < to; i++) {
		const struct area *a = &r->areas[i];
		uint64_t len = bytes_to_read(a), start = from > at ? from - at : 0, end = to - at < len ? to - at : len;

		if (start < end)
			fill_part(r, a, start, end - start);
		at += len;
	}
}

static void run_reader(void *arg)
{
	struct reader *me = arg;
	struct restart *r = me->r;

	fill_share(r, r->bytes_total / r->n_readers * me->index,
		   me->index + 1 == r->n_readers ? r->bytes_total : r->bytes_total / r->n_readers * (me->index + 1));
}

static void fill_all(struct restart *r)
{
	r->bytes_total = 0;
	for (uint32_t i = 0; i < r->n_areas; i++)
		r->bytes_total += bytes_to_read(&r->areas[i]);
	if (r->bytes_total < FILL_ALONE)
		r->n_readers = 1;
	for (unsigned i = 0; i < r->n_readers; i++) {
		r->readers[i].r = r;
		r->readers[i].index = i;
		/* where there can be no thread, its share is read here */
		if (i > 0 && mtcp_clone(CLONE_READER, r->stacks[i] + READER_STACK, &r->readers[i].tid,
					&r->readers[i].tid, run_reader, &r->readers[i]) < 0)
			run_reader(&r->readers[i]);
	}
	run_reader(&r->readers[0]);
	for (unsigned i = 1; i < r->n_readers; i++)
		for (int tid; (tid = r->readers[i].tid) != 0;)
			sys4(__NR_futex, &r->readers[i].tid, 0 /* FUTEX_WAIT */, tid, 0);
}

static void restore_from_file(struct restart *r)
{
	map_areas(r);
	r->mapped_ns = now_ns();
	fill_all(r);
	for (uint32_t i = 0; i < r->n_areas; i++)
		protect(r, &r->areas[i]);
	if (r->mode == MODE_UFFD)
		serve_start(r);
}

/* one after the other, as they come; a parent keeps its write permission until its children are there */
static void restore_from_pipe(struct restart *r)
{
	struct area a, open = { 0 };
	bool entered = false;

	r->mapped_ns = now_ns();
	while (image_next_area(r, &a)) {
		if (!(a.properties & CHILD)) {
			if (open.size)
				protect(r, &open);
			map_area(r, &a);
			open = a;
		}
		if (a.addr <= r->head.post_restart && r->head.post_restart - a.addr < a.size)
			entered = true;
		image_read_stream(r, (void *)a.addr, a.payload_len);
		r->bytes_read += a.payload_len;
	}
	if (open.size)
		protect(r, &open);
	r->n_readers = 1;
	if (!entered)
		fail(r, EXIT_DAMAGED, "the image has no memory at @, where it is to go on", NULL, r->head.post_restart);
}

/* -- the end ----------------------------------------------------------------------------------- */

/*
 * The program's heap goes on where it ended. brk(2) alone cannot move the heap's start, so the kernel is told all its
 * addresses; where it does not let us, brk() may still do, and else malloc() takes other memory.
 */
static void restore_brk(struct restart *r)
{
	struct prctl_mm_map map = {
		.start_code = r->code,
		.end_code = r->code + PAGE,
		.start_data = r->code,
		.end_data = r->code + PAGE,
		.start_brk = r->heap_start && r->heap_start <= r->head.brk ? r->heap_start : r->head.brk,
		.brk = r->head.brk,
		.start_stack = r->head.stack_end > PAGE ? r->head.stack_end - 16 : r->own.start,
		.arg_start = r->own.start,
		.arg_end = r->own.start,
		.env_start = r->own.start,
		.env_end = r->own.start,
		.exe_fd = (uint32_t)-1,
	};

	if (r->head.brk && sys6(__NR_prctl, PR_SET_MM, PR_SET_MM_MAP, (long)&map, sizeof(map), 0, 0) < 0)
		sys3(__NR_brk, r->head.brk, 0, 0);
}

void memory_restore(struct restart *r)
{
	void (*post_restart)(uint64_t) = (void (*)(uint64_t))r->head.post_restart;

	clear_addresses(r);
	if (r->is_pipe)
		restore_from_pipe(r);
	else
		restore_from_file(r);
	restore_brk(r);
	sys3(__NR_close, r->fd, 0, 0);
	if (r->view_fd >= 0)
		sys3(__NR_close, r->view_fd, 0, 0);
	if (r->profile)
		say_profile(r, now_ns());
	post_restart(r->pause);
	fail(r, EXIT_FAILED, "the restored program came back", NULL, 0);
}
