/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For C tests: CHECK* end the process with a message at the first thing that is wrong. A test is a main()
 * that calls its cases and returns 0 (or 77 after printing why it cannot run).
 */
#ifndef THAW_TESTS_TEST_H
#define THAW_TESTS_TEST_H

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define CHECK(cond)                                                                                        \
	do {                                                                                               \
		if (!(cond)) {                                                                             \
			fprintf(stderr, "%s:%d: %s: not true: %s\n", __FILE__, __LINE__, __func__, #cond); \
			exit(1);                                                                           \
		}                                                                                          \
	} while (0)

/* integers of any type, shown on a mismatch */
#define CHECK_EQ(got, want)                                                                                          \
	do {                                                                                                         \
		intmax_t got_ = (intmax_t)(got), want_ = (intmax_t)(want);                                           \
		if (got_ != want_) {                                                                                 \
			fprintf(stderr, "%s:%d: %s: %s is %jd, not %jd\n", __FILE__, __LINE__, __func__, #got, got_, \
				want_);                                                                              \
			exit(1);                                                                                     \
		}                                                                                                    \
	} while (0)

#define CHECK_STR(got, want)                                                                                         \
	do {                                                                                                         \
		const char *got_ = (got), *want_ = (want);                                                           \
		if (strcmp(got_, want_) != 0) {                                                                      \
			fprintf(stderr, "%s:%d: %s: %s is \"%s\", not \"%s\"\n", __FILE__, __LINE__, __func__, #got, \
				got_, want_);                                                                        \
			exit(1);                                                                                     \
		}                                                                                                    \
	} while (0)

/* a buffer whose byte after the last is in a page that cannot be touched; never freed */
static inline void *guarded_buffer(size_t len)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), room = (len + page - 1) / page * page;
	char *p = mmap(NULL, room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(p != MAP_FAILED);
	CHECK(mprotect(p + room, page, PROT_NONE) == 0);
	return p + room - len;
}

/* small repeatable random numbers (xorshift) */
static inline uint64_t test_random(uint64_t *state)
{
	uint64_t x = *state;

	x ^= x << 13;
	x ^= x >> 7;
	x ^= x << 17;
	return *state = x;
}

#endif
