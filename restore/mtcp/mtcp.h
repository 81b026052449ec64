/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The restarter's one struct and its parts. It lies at the start of a third of the image's restore buffer with
 * everything else that must survive: tables, a copy of the code, stacks, the parked vdso.
 *
 * serve.c is what MODE_UFFD needs: thawfs restart says which memory a page server has, in a file of pairs of addresses,
 * and that memory is neither in the image that it hands over nor read.
 *
 * Order of things: start.c reads arguments, image.c reads and checks the image as far as it can be seen in
 * advance (not in a pipe), then start.c moves over and memory.c replaces the process. Nothing returns after that but
 * to the restored program.
 */
#ifndef THAW_RESTORE_MTCP_MTCP_H
#define THAW_RESTORE_MTCP_MTCP_H

#include "restore/mtcp/sys.h"

#define PAGE         4096ull
#define MIB          (1ull << 20)
#define ADDRESS_END  0x7ffffffff000ull
#define MAX_AREAS    (1u << 17)
#define MAX_NAMES    (4u << 20)
#define MAX_TEXT     (4u << 20)
#define MAX_READERS  16
#define READER_STACK (64u << 10)
#define MAIN_STACK   (1u << 20)
#define LAZY_MIN     (64ull << 10) /* shorter payloads are read: a mapping costs more than copying them */
#define AREA_NAME    1024u
#define MAX_SPANS    (1u << 16)

enum { ZERO = 1, PARENT = 2, CHILD = 4 };
enum { EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_DAMAGED = 3 };
enum mode { MODE_EAGER, MODE_LAZY, MODE_UFFD };

struct span {
	uint64_t start, end;
};

struct area {
	uint64_t addr, size, pgoff;
	uint64_t payload_off, payload_len;
	uint32_t prot, flags;
	uint32_t name; /* in names; 0: none that matters */
	uint8_t properties;
	bool anonymous; /* as it was mapped: bytes that are zero need not be read */
	bool mapped;    /* the bytes come by a mapping of the image */
};

/* what the header says */
struct image_head {
	uint64_t vdso_offsets[4];
	struct span buffer, vdso, vvar, vvar_vclock;
	uint64_t brk, stack_end, post_restart;
};

struct restart {
	/* arguments */
	int fd, stderr_fd, view_fd;
	uint64_t pause;
	uint64_t buffer, buffer_len;
	unsigned n_readers;
	enum mode mode;
	bool profile, is_pipe;
	/* MODE_UFFD: to the page server; what it serves, and through what */
	int server_fd, spans_fd, uffd;
	/* the third that is ours */
	struct span own;
	uint64_t code; /* where the copy of the code is */
	struct image_head head;
	struct span vdso, vvar, vvar_vclock; /* of this process */
	uint64_t parked_vdso, parked_vvar, parked_vclock;
	uint64_t heap_start;
	/* the image's areas, in its order */
	uint32_t n_areas, names_len;
	uint64_t file_size, stream_off;
	uint64_t bytes_total, bytes_mapped;
	uint64_t start_ns, planned_ns, mapped_ns;
	/* set by readers, which share the address space */
	_Atomic uint64_t bytes_read, bytes_skipped, bytes_served;
	struct reader {
		struct restart *r;
		unsigned index;
		_Atomic int tid; /* 0 again when it has ended */
	} readers[MAX_READERS];
	uint8_t page[PAGE];
	char text[MAX_TEXT];
	char names[MAX_NAMES];
	uint32_t n_spans;
	struct span spans[MAX_SPANS]; /* ascending, apart, whole pages */
	struct area areas[MAX_AREAS];
	char stacks[MAX_READERS][READER_STACK] __attribute__((aligned(4096)));
	char stack[MAIN_STACK] __attribute__((aligned(4096)));
};

/*
 * fail - say what is wrong and end the process
 * @subject: a name, or NULL; @value: an address, offset or error number, shown where @what has a %
 */
_Noreturn void fail(const struct restart *r, int status, const char *what, const char *subject, uint64_t value);
void say_profile(const struct restart *r, uint64_t end_ns);
uint64_t now_ns(void);
/* /proc/self/maps into r->text */
void read_maps(struct restart *r);
/* the next mapping; @text moves on. @ret_name points into it and ends with the line */
bool next_mapping(const char **text, struct span *ret, const char **ret_name);

/* the header; then, unless it is a pipe, all areas. What is wrong ends the process */
void image_read_head(struct restart *r);
void image_read_areas(struct restart *r);
/* the next area of a pipe. false: that was the last */
bool image_next_area(struct restart *r, struct area *ret);
void image_read_stream(struct restart *r, void *buf, uint64_t len);
/* the memory view of the file that was given, if it is on a mount of thawfs: r->view_fd */
void image_find_view(struct restart *r);

/* MODE_UFFD: what is served is known and may be served, or the process ends; nothing is lost yet */
void serve_prepare(struct restart *r);
/* the first span that ends after @addr; NULL: none */
const struct span *serve_span(const struct restart *r, uint64_t addr);
/* all memory is mapped: have the spans served */
void serve_start(struct restart *r);

/* runs in the copy, on its stack */
_Noreturn void memory_restore(struct restart *r);
long mtcp_clone(unsigned long flags, void *stack, _Atomic int *ptid, _Atomic int *ctid, void (*fn)(void *), void *arg);

#endif
