/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_memcpy MIB THREADS: copy MIB from touched memory into slots of 8 MiB, as a source that costs nothing would fill
 * them; prints the seconds that took.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define SLOT        (8ul << 20)
#define N_SLOTS     32ul
#define MAX_THREADS 64

static char *from, *to;
static size_t n_pieces;
static _Atomic size_t next;

static void *copy(void *arg)
{
	(void)arg;
	for (;;) {
		size_t i = atomic_fetch_add(&next, 1);

		if (i >= n_pieces)
			return NULL;
		memcpy(to + i % N_SLOTS * SLOT, from + i * SLOT, SLOT);
	}
}

static char *touched(size_t len)
{
	char *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		exit(1);
	madvise(p, len, MADV_HUGEPAGE);
	memset(p, 1, len);
	return p;
}

int main(int argc, char **argv)
{
	size_t mib = argc == 3 ? strtoul(argv[1], NULL, 10) : 0;
	unsigned n = argc == 3 ? (unsigned)strtoul(argv[2], NULL, 10) : 0;
	pthread_t threads[MAX_THREADS];
	struct timespec a, b;

	if (mib < 8 || !n || n > MAX_THREADS) {
		fprintf(stderr, "usage: bench_memcpy MIB THREADS\n");
		return 2;
	}
	n_pieces = mib / 8;
	from = touched(n_pieces * SLOT);
	to = touched(N_SLOTS * SLOT);
	clock_gettime(CLOCK_MONOTONIC, &a);
	for (unsigned i = 0; i < n; i++) {
		if (pthread_create(&threads[i], NULL, copy, NULL))
			return 1;
	}
	for (unsigned i = 0; i < n; i++)
		pthread_join(threads[i], NULL);
	clock_gettime(CLOCK_MONOTONIC, &b);
	printf("%.6f\n", (double)(b.tv_sec - a.tv_sec) + (double)(b.tv_nsec - a.tv_nsec) / 1e9);
	return 0;
}
