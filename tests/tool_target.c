/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process to take checkpoints of: memory of many kinds, a counter that goes on, and a hash over all of it.
 *
 *   tool_target STATUS [MIB]
 *
 * STATUS is a file of one line of fixed length, rewritten in place ten times a second: the counter, then the hash of
 * everything filled below (the counter is not part of it, so the hash never changes: what a restored process reports
 * must equal what it reported before). MIB: size of the main area, by default 64.
 */
#include <err.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#define MIB        ((size_t)1 << 20)
#define PAGE       4096u
#define SMALL_AREA (4 * MIB)

struct area {
	unsigned char *mem;
	size_t len;
};

static struct area map_area(size_t len, int prot, int flags, int fd)
{
	struct area area = { mmap(NULL, len, prot, flags, fd, 0), len };

	if (area.mem == MAP_FAILED)
		err(1, "cannot map %zu bytes", len);
	return area;
}

/* by MiB of address: zeros that were written (so the pages exist), random bytes, text, small integers */
static void fill(struct area area)
{
	uint64_t seed = area.len | 1;

	for (size_t i = 0; i + 8 <= area.len; i += 8) {
		uint64_t word = 0;

		seed = seed * 6364136223846793005u + 1442695040888963407u;
		switch (((uintptr_t)area.mem + i) / MIB % 4) {
		case 1:
			word = seed ^ seed >> 29;
			break;
		case 2:
			memcpy(&word, &"the same words over and over and "[seed >> 59 & 15], 8);
			break;
		case 3:
			word = seed >> 52;
			break;
		default:
			break;
		}
		memcpy(area.mem + i, &word, 8);
	}
}

static uint64_t hash_areas(const struct area *areas, size_t n_areas)
{
	uint64_t hash = 0;

	for (size_t i = 0; i < n_areas; i++)
		hash = XXH3_64bits_withSeed(areas[i].mem, areas[i].len, hash);
	return hash;
}

int main(int argc, char **argv)
{
	const int rw = PROT_READ | PROT_WRITE, anon = MAP_PRIVATE | MAP_ANONYMOUS;
	struct area areas[4];
	int status, memfd;

	if (argc < 2 || argc > 3)
		errx(2, "usage: tool_target STATUS [MIB]");
	size_t len = (argc > 2 ? strtoul(argv[2], NULL, 10) : 64) * MIB;

	status = open(argv[1], O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	memfd = memfd_create("target", MFD_CLOEXEC);
	if (status < 0 || memfd < 0 || ftruncate(memfd, (off_t)SMALL_AREA) != 0)
		err(1, "cannot make '%s' or a memfd", argv[1]);

	/* three pages first, so that the big area's bytes do not begin on a MiB in any image file */
	areas[0] = map_area((size_t)3 * PAGE, rw, anon, -1);
	areas[1] = map_area(len + PAGE, rw, anon, -1);
	areas[2] = map_area(SMALL_AREA, rw, MAP_SHARED | MAP_ANONYMOUS, -1);
	areas[3] = map_area(SMALL_AREA, rw, MAP_SHARED, memfd);
	for (size_t i = 0; i < 4; i++)
		fill(areas[i]);
	map_area((size_t)1 << 30, PROT_NONE, anon | MAP_NORESERVE, -1); /* a reservation, as runtimes make */
	if (mprotect(areas[1].mem + len / 2, 16 * (size_t)PAGE, PROT_READ) != 0)
		err(1, "cannot protect pages");

	for (uint64_t counter = 1;; counter++) {
		const struct timespec pause = { .tv_nsec = 100 * 1000 * 1000 };
		char line[64];
		int n = snprintf(line, sizeof(line), "%010" PRIu64 " %016" PRIx64 "\n", counter,
				 hash_areas(areas, sizeof(areas) / sizeof(*areas)));

		if (pwrite(status, line, (size_t)n, 0) != n)
			err(1, "cannot write '%s'", argv[1]);
		nanosleep(&pause, NULL);
	}
}
