/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process to take checkpoints of that changes its memory all the time: it moves a block, discards and unmaps parts of
 * another, and forks a child that reads everything, before it reads it itself.
 *
 *   tool_changing STATUS [MIB]
 *
 * STATUS is as tool_target's: a counter, and a hash that never changes unless something is wrong.
 */
#include <err.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#define MIB   ((size_t)1 << 20)
#define BLOCK (4 * MIB)
#define RW    (PROT_READ | PROT_WRITE)
#define ANON  (MAP_PRIVATE | MAP_ANONYMOUS)

static unsigned char *map(size_t len, int prot)
{
	void *p = mmap(NULL, len, prot, ANON | MAP_NORESERVE, -1, 0);

	if (p == MAP_FAILED)
		err(1, "cannot map %zu bytes", len);
	return p;
}

/* words that depend on where they are; every fourth MiB is left alone */
static void fill(unsigned char *mem, size_t len, uint64_t seed)
{
	for (size_t i = 0; i < len; i += 8) {
		uint64_t word = (i + 1) * (seed * 2 + 1) * 6364136223846793005u;

		if (i / MIB % 4 != 3)
			memcpy(mem + i, &word, 8);
	}
}

static void check(bool good, const char *what)
{
	if (!good)
		errx(1, "%s", what);
}

/* half of it is discarded, a quarter unmapped and mapped again */
static void change(unsigned char *scratch)
{
	static const unsigned char zeros[MIB];

	check(madvise(scratch, BLOCK / 2, MADV_DONTNEED) == 0, "madvise failed");
	check(munmap(scratch + BLOCK / 2, BLOCK / 4) == 0, "munmap failed");
	check(memcmp(scratch, zeros, MIB) == 0 && memcmp(scratch + MIB, zeros, MIB) == 0, "discarded bytes are back");
	check(mmap(scratch + BLOCK / 2, BLOCK / 4, RW, ANON | MAP_FIXED, -1, 0) == scratch + BLOCK / 2, "mmap failed");
	check(memcmp(scratch + BLOCK / 2, zeros, MIB) == 0, "unmapped bytes are back");
}

static uint64_t hash(const unsigned char *large, size_t len, const unsigned char *moved)
{
	return XXH3_64bits_withSeed(large, len, XXH3_64bits(moved, BLOCK));
}

/* the same by a child */
static void check_child(const unsigned char *large, size_t len, const unsigned char *moved, uint64_t good)
{
	pid_t pid = fork();
	int status;

	if (pid == 0)
		_exit(hash(large, len, moved) != good);
	check(pid > 0 && waitpid(pid, &status, 0) == pid, "fork failed");
	check(status == 0, "a child sees something else");
}

int main(int argc, char **argv)
{
	if (argc < 2 || argc > 3)
		errx(2, "usage: tool_changing STATUS [MIB]");
	size_t len = (argc > 2 ? strtoul(argv[2], NULL, 10) : 32) * MIB;
	unsigned char *large = map(len, RW), *scratch = map(BLOCK, RW), *moved = map(BLOCK, RW);
	unsigned char *places[2] = { moved, map(BLOCK, PROT_NONE) };
	int status = open(argv[1], O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	uint64_t good;

	if (status < 0)
		err(1, "cannot make '%s'", argv[1]);
	fill(large, len, 1);
	fill(moved, BLOCK, 2);
	good = hash(large, len, moved);
	for (uint64_t counter = 1;; counter++) {
		const struct timespec pause = { .tv_nsec = 100 * 1000 * 1000 };
		char line[64];
		int n;

		fill(scratch, BLOCK, counter);
		nanosleep(&pause, NULL); /* most likely the checkpoint is here */
		change(scratch);
		moved = mremap(moved, BLOCK, BLOCK, MREMAP_MAYMOVE | MREMAP_FIXED, places[counter % 2]);
		check(moved != MAP_FAILED, "mremap failed");
		check_child(large, len, moved, good);
		n = snprintf(line, sizeof(line), "%010" PRIu64 " %016" PRIx64 "\n", counter, hash(large, len, moved));
		if (pwrite(status, line, (size_t)n, 0) != n)
			err(1, "cannot write '%s'", argv[1]);
	}
}
