/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory to benchmark with: the same bytes for the same arguments, on any machine.
 *
 *   bench_input KIND MIB FILE
 *
 * heap       what a Python process has: objects of a few size classes, pointers near each other, words, counts
 * floats     weights: 32-bit, 16-bit (bfloat) and 64-bit numbers of a normal distribution, 64 MiB of each in turn
 * text       log lines
 * tail       heap, the last quarter zeros
 * alternate  heap, zeros in every other 64 MiB
 * dups       heap, the last half a copy of the first (as after fork)
 * sparse     MIB MiB long, eight bytes in each MiB, the rest holes
 *
 * Zeros are written, except by sparse: the sources that matter have them so.
 */
#include <err.h>
#include <fcntl.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB    ((size_t)1 << 20)
#define PERIOD 64u /* MiB */
#define POOL   4096u

static uint64_t state;

static uint64_t rnd(void)
{
	uint64_t x = state += 0x9e3779b97f4a7c15u;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

/* small values often, large ones seldom */
static uint64_t rnd_skewed(unsigned max_bits)
{
	uint64_t x = rnd();

	return x >> 32 & ((1ull << x % max_bits) - 1);
}

static const char *const words[] = {
	"self",      "value",   "__init__",   "index",  "return",    "config",    "request", "name",
	"model",     "layer",   "weight",     "data",   "__dict__",  "tensor",    "error",   "append",
	"items",     "kwargs",  "response",   "token",  "cache",     "shape",     "dtype",   "batch",
	"attention", "utf-8",   "path",       "module", "importlib", "length",    "hidden",  "__name__",
	"session",   "timeout", "connection", "state",  "device",    "optimizer", "buffer",  "event",
};
#define N_WORDS (sizeof(words) / sizeof(*words))

static void put64(unsigned char *p, uint64_t v)
{
	memcpy(p, &v, sizeof(v));
}

/* one object: count, type, and what its kind holds */
static void put_object(unsigned char *p, size_t size, uint64_t arena)
{
	unsigned type = (unsigned)rnd_skewed(6);

	put64(p, 1 + rnd_skewed(5));
	put64(p + 8, 0x55d0c3a41000u + (uint64_t)type * 0x1a0);
	if (type % 4 == 1 && size >= 48) { /* a string: length, hash, flags, characters */
		size_t at = 40;

		put64(p + 24, rnd());
		put64(p + 32, 0xe4);
		while (at < size - 12) {
			const char *w = words[rnd() % N_WORDS];

			if (at + strlen(w) + 2 > size)
				break;
			at = (size_t)(stpcpy((char *)p + at, w) - (char *)p);
			p[at++] = '_';
		}
		put64(p + 16, at - 40);
	} else if (type % 4 == 2) { /* a number */
		put64(p + 16, 1);
		if (size >= 32)
			put64(p + 24, rnd_skewed(30));
	} else { /* references */
		for (size_t at = 16; at + 8 <= size; at += 8)
			put64(p + at, rnd() % 8 ? arena + (rnd() % (rnd() % 2 ? 4096 : 1048576)) * 16 : 0);
	}
}

/* arenas of pools of 4 KiB, each of one size class; some pools were freed, some objects are gone */
static void fill_heap(unsigned char *buf, uint64_t index)
{
	uint64_t arena = 0x7f3a00000000u + index * MIB;

	memset(buf, 0, MIB);
	for (size_t pool = 0; pool < MIB; pool += POOL) {
		size_t size = 32 + 16 * rnd_skewed(5);

		if (rnd() % 16 == 0)
			continue;
		for (size_t at = 48; at + size <= POOL; at += size) {
			if (rnd() % 8)
				put_object(buf + pool + at, size, arena);
		}
	}
}

static double rnd_normal(void)
{
	double u = ((double)(rnd() >> 11) + 1) * 0x1p-53, v = (double)(rnd() >> 11) * 0x1p-53;

	return sqrt(-2 * log(u)) * cos(2 * M_PI * v);
}

static void fill_floats(unsigned char *buf, uint64_t index)
{
	static const size_t widths[] = { 4, 2, 8 };
	size_t width = widths[index / PERIOD % 3];

	for (size_t at = 0; at < MIB; at += width) {
		double d = rnd_normal() * 0.02;
		float f = (float)d;
		uint32_t bits;

		memcpy(&bits, &f, sizeof(bits));
		bits >>= 16;
		memcpy(buf + at, width == 8 ? (void *)&d : width == 4 ? (void *)&f : (void *)&bits, width);
	}
}

static void fill_text(unsigned char *buf, uint64_t index)
{
	static const char *const levels[] = { "INFO", "INFO", "INFO", "DEBUG", "WARNING", "ERROR" };
	uint64_t time_ms = index * 1000000;
	size_t at = 0;
	char line[512];

	while (at < MIB) {
		int n = snprintf(line, sizeof(line), "2026-03-%02u %02u:%02u:%02u,%03u %s [worker-%u] %s.%s: ",
				 (unsigned)(time_ms / 86400000 % 28 + 1), (unsigned)(time_ms / 3600000 % 24),
				 (unsigned)(time_ms / 60000 % 60), (unsigned)(time_ms / 1000 % 60),
				 (unsigned)(time_ms % 1000), levels[rnd() % 6], (unsigned)(rnd() % 12),
				 words[rnd() % N_WORDS], words[rnd() % N_WORDS]);

		for (uint64_t left = 3 + rnd() % 8; left && n < 400; left--)
			n += snprintf(line + n, sizeof(line) - (size_t)n, "%s=%u ", words[rnd() % N_WORDS],
				      (unsigned)rnd_skewed(20));
		line[n - 1] = '\n';
		time_ms += rnd_skewed(10);
		size_t len = (size_t)n < MIB - at ? (size_t)n : MIB - at;
		memcpy(buf + at, line, len);
		at += len;
	}
}

static void write_all(int fd, const void *buf, size_t len, uint64_t off, const char *path)
{
	for (size_t done = 0; done < len;) {
		ssize_t n = pwrite(fd, (const char *)buf + done, len - done, (off_t)(off + done));

		if (n <= 0)
			err(1, "cannot write '%s'", path);
		done += (size_t)n;
	}
}

static void write_sparse(int fd, uint64_t n_mib, const char *path)
{
	for (uint64_t i = 0; i < n_mib; i++) {
		uint64_t value = i + 1;

		write_all(fd, &value, sizeof(value), i * MIB, path);
	}
	if (ftruncate(fd, (off_t)(n_mib * MIB)) != 0)
		err(1, "cannot write '%s'", path);
}

/* which MiB of the pattern is the @index-th of the file; false: it is zero */
static bool content(const char *kind, uint64_t index, uint64_t n_mib, uint64_t *ret_index)
{
	*ret_index = index;
	if (!strcmp(kind, "tail"))
		return index < n_mib - n_mib / 4;
	if (!strcmp(kind, "alternate"))
		return index / PERIOD % 2 == 0;
	if (!strcmp(kind, "dups"))
		*ret_index = index % ((n_mib + 1) / 2);
	return true;
}

static void write_memory(int fd, const char *kind, uint64_t n_mib, const char *path)
{
	void (*fill)(unsigned char *, uint64_t) = !strcmp(kind, "floats") ? fill_floats
						  : !strcmp(kind, "text") ? fill_text
									  : fill_heap;
	unsigned char *buf = malloc(MIB);

	if (!buf)
		err(1, "no memory");
	for (uint64_t i = 0; i < n_mib; i++) {
		uint64_t index;

		if (content(kind, i, n_mib, &index)) {
			state = index * 0xd1342543de82ef95u;
			fill(buf, index);
		} else {
			memset(buf, 0, MIB);
		}
		write_all(fd, buf, MIB, i * MIB, path);
	}
	free(buf);
}

int main(int argc, char **argv)
{
	static const char *const kinds[] = { "heap", "floats", "text", "tail", "alternate", "dups", "sparse" };
	bool known = false;

	for (size_t i = 0; argc == 4 && i < sizeof(kinds) / sizeof(*kinds); i++)
		known = known || !strcmp(argv[1], kinds[i]);
	if (!known)
		errx(2, "usage: bench_input heap|floats|text|tail|alternate|dups|sparse MIB FILE");
	uint64_t n_mib = strtoull(argv[2], NULL, 10);
	int fd = open(argv[3], O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	if (fd < 0)
		err(1, "cannot make '%s'", argv[3]);
	if (!strcmp(argv[1], "sparse"))
		write_sparse(fd, n_mib, argv[3]);
	else
		write_memory(fd, argv[1], n_mib, argv[3]);
	if (fsync(fd) != 0 || close(fd) != 0)
		err(1, "cannot write '%s'", argv[3]);
	return 0;
}
