/* SPDX-License-Identifier: Apache-2.0 */
/*
 * System calls and the few string functions that the restarter needs: it has no libc, because it runs while the
 * memory of a process is replaced, and no data that needs relocation, because it moves itself. x86-64.
 * Results are those of the kernel: negative errno on failure.
 */
#ifndef THAW_RESTORE_MTCP_SYS_H
#define THAW_RESTORE_MTCP_SYS_H

#include <asm/unistd.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline long sys6(long nr, long a, long b, long c, long d, long e, long f)
{
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;
	long ret;

	__asm__ volatile("syscall"
			 : "=a"(ret)
			 : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return ret;
}
#define sys3(nr, a, b, c)    sys6(nr, (long)(a), (long)(b), (long)(c), 0, 0, 0)
#define sys4(nr, a, b, c, d) sys6(nr, (long)(a), (long)(b), (long)(c), (long)(d), 0, 0)

/* the compiler calls these by itself as well */
void *memcpy(void *to, const void *from, size_t n);
void *memset(void *to, int c, size_t n);
int memcmp(const void *a, const void *b, size_t n);

static inline bool sys_failed(long ret)
{
	return ret < 0 && ret > -4096;
}

static inline long sys_mmap(uint64_t addr, uint64_t len, int prot, int flags, int fd, uint64_t off)
{
	return sys6(__NR_mmap, (long)addr, (long)len, prot, flags, fd, (long)off);
}

static inline size_t text_len(const char *s)
{
	size_t n = 0;

	while (s[n])
		n++;
	return n;
}

static inline bool text_is(const char *a, const char *b)
{
	while (*a && *a == *b) {
		a++;
		b++;
	}
	return *a == *b;
}

/* the rest of @s behind @prefix, NULL if it does not begin so */
static inline const char *text_after(const char *s, const char *prefix)
{
	while (*prefix)
		if (*s++ != *prefix++)
			return NULL;
	return s;
}

/* a number in base 10, or 16 with 0x; @s moves behind it */
static inline uint64_t text_number(const char **s, unsigned base)
{
	uint64_t v = 0;

	if ((*s)[0] == '0' && (*s)[1] == 'x') {
		base = 16;
		*s += 2;
	}
	for (;; (*s)++) {
		unsigned c = (unsigned char)**s, digit;

		if (c >= '0' && c <= '9')
			digit = c - '0';
		else if (c >= 'a' && c <= 'f')
			digit = c - 'a' + 10;
		else
			return v;
		if (digit >= base)
			return v;
		v = v * base + digit;
	}
}

#endif
