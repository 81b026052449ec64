/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a program that restores does with a file, timed from inside, so that starting it does not count.
 *
 *   bench_probe evict FILE...                 drop the page cache of files that nobody uses
 *   bench_probe read FILE [READERS [data]]    to memory, in READERS threads of equal shares; data: without the holes
 *   bench_probe touch FILE                    a byte of each page of a private mapping, in order
 *   bench_probe faults FILE N REFERENCE [random] [again]
 *                                             one page in each of N MiBs, in no order, from those that are data in
 *                                             REFERENCE; random: after MADV_RANDOM; again: all a second time, and
 *                                             only that counts
 *   bench_probe scatter FILE PERCENT BYTES    after MADV_RANDOM, so many of the pages with data of each BYTES of the
 *                                             file, in no order
 *   bench_probe crowd N together|apart FILE...  N processes, each reads one of the files to the end
 *
 * Prints seconds; for faults microseconds, the median and the 99th percentile.
 */
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/bytes.h"

#define PIECE (1u << 20)

struct share {
	pthread_t thread;
	const char *path;
	uint64_t off, end;
	bool data_only;
};

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int open_file(const char *path, uint64_t *ret_size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct stat st;

	if (fd < 0 || fstat(fd, &st))
		err(1, "cannot read '%s'", path);
	*ret_size = (uint64_t)st.st_size;
	return fd;
}

static void evict(const char *path)
{
	uint64_t size;
	int fd = open_file(path, &size), rc;

	if (fsync(fd))
		err(1, "cannot sync '%s'", path);
	rc = posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	if (rc)
		errx(1, "cannot evict '%s': %s", path, strerror(rc));
	close(fd);
}

/* the next data at or after @off, its end in @ret_end; without data_only all is data */
static uint64_t next_data(int fd, const struct share *s, uint64_t off, uint64_t *ret_end)
{
	off_t data, hole;

	*ret_end = s->end;
	if (!s->data_only)
		return off;
	data = lseek(fd, (off_t)off, SEEK_DATA);
	if (data < 0 && errno == ENXIO)
		return s->end;
	hole = data < 0 ? -1 : lseek(fd, data, SEEK_HOLE);
	if (hole < 0)
		err(1, "cannot find holes of '%s'", s->path);
	*ret_end = min_u64((uint64_t)hole, s->end);
	return min_u64((uint64_t)data, s->end);
}

static void *read_share(void *arg)
{
	const struct share *s = arg;
	uint64_t size, off = s->off, end;
	int fd = open_file(s->path, &size);
	void *buf = mmap(NULL, PIECE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	if (buf == MAP_FAILED)
		err(1, "no memory");
	while (off < s->end) {
		off = next_data(fd, s, off, &end);
		while (off < end) {
			ssize_t n = pread(fd, buf, min_u64(PIECE, end - off), (off_t)off);

			if (n <= 0)
				err(1, "cannot read '%s' at %" PRIu64, s->path, off);
			off += (uint64_t)n;
		}
	}
	munmap(buf, PIECE);
	close(fd);
	return NULL;
}

static double read_file(const char *path, unsigned readers, bool data_only)
{
	struct share shares[256] = { 0 };
	double start = now();
	uint64_t size;

	if (readers < 1 || readers > 256)
		errx(2, "readers: 1 to 256");
	close(open_file(path, &size));
	for (unsigned i = 0; i < readers; i++) {
		shares[i].path = path;
		shares[i].off = align_down(size / readers * i, PIECE);
		shares[i].end = i + 1 < readers ? align_down(size / readers * (i + 1), PIECE) : size;
		shares[i].data_only = data_only;
		if (pthread_create(&shares[i].thread, NULL, read_share, &shares[i]))
			errx(1, "cannot start a thread");
	}
	for (unsigned i = 0; i < readers; i++)
		pthread_join(shares[i].thread, NULL);
	return now() - start;
}

static const volatile uint8_t *map_file(const char *path, uint64_t *ret_size)
{
	int fd = open_file(path, ret_size);
	const void *map = mmap(NULL, *ret_size, PROT_READ, MAP_PRIVATE, fd, 0);

	if (map == MAP_FAILED)
		err(1, "cannot map '%s'", path);
	close(fd);
	return map;
}

static double touch(const char *path)
{
	double start = now();
	uint64_t size;
	const volatile uint8_t *map = map_file(path, &size);

	for (uint64_t off = 0; off < size; off += 4096)
		(void)map[off];
	return now() - start;
}

static uint64_t random_number(void)
{
	static uint64_t x = 88172645463325252u;

	x ^= x << 13;
	x ^= x >> 7;
	x ^= x << 17;
	return x;
}

static void shuffle(uint64_t *pages, size_t n)
{
	for (size_t i = n; i > 1; i--) {
		size_t k = random_number() % i;
		uint64_t swap = pages[i - 1];

		pages[i - 1] = pages[k];
		pages[k] = swap;
	}
}

/* a page of each MiB that has data, in no order */
static uint64_t *choose_pages(const char *path, size_t *ret_n)
{
	uint64_t size, *pages;
	int fd = open_file(path, &size);
	size_t n = 0;

	pages = calloc(size / PIECE + 1, sizeof(*pages));
	if (!pages)
		errx(1, "no memory");
	for (uint64_t slot = 0; slot + PIECE <= size; slot += PIECE) {
		uint64_t want = slot + align_down(random_number() % PIECE, 4096);
		off_t data = lseek(fd, (off_t)want, SEEK_DATA);

		if (data >= 0 && (uint64_t)data < slot + PIECE)
			pages[n++] = align_down((uint64_t)data, 4096);
	}
	shuffle(pages, n);
	close(fd);
	*ret_n = n;
	return pages;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void faults(const char *path, size_t n, const char *reference, bool random, bool again)
{
	size_t n_pages;
	uint64_t size, *pages = choose_pages(reference, &n_pages);
	double *times;

	if (n > n_pages)
		n = n_pages;
	if (!n)
		errx(1, "no data in '%s'", reference);
	times = calloc(n, sizeof(*times));
	if (!times)
		errx(1, "no memory");
	for (int pass = 0; pass <= again; pass++) {
		const volatile uint8_t *map = map_file(path, &size);

		if (random && madvise((void *)(uintptr_t)map, size, MADV_RANDOM))
			err(1, "madvise");
		for (size_t i = 0; i < n; i++) {
			double start = now();

			if (pages[i] >= size)
				errx(1, "'%s' is shorter than '%s'", path, reference);
			(void)map[pages[i]];
			times[i] = now() - start;
		}
		munmap((void *)(uintptr_t)map, size);
	}
	qsort(times, n, sizeof(*times), by_value);
	printf("%.2f %.2f\n", times[n / 2] * 1e6, times[n * 99 / 100] * 1e6);
	free(times);
	free(pages);
}

static double scatter(const char *path, unsigned percent, uint64_t step)
{
	uint64_t size, *pages = NULL;
	int fd = open_file(path, &size);
	const volatile uint8_t *map = map_file(path, &size);
	double sum = 0;

	if (madvise((void *)(uintptr_t)map, size, MADV_RANDOM))
		err(1, "madvise");
	pages = calloc(step / 4096 + 1, sizeof(*pages));
	if (!pages || step < 4096)
		errx(1, "no memory");
	for (uint64_t from = 0; from < size; from += step) {
		size_t n = 0;
		double start;

		for (uint64_t at = from; at < from + step && at < size; at += 4096) {
			off_t data = lseek(fd, (off_t)at, SEEK_DATA);

			if (data < 0)
				break;
			at = align_down((uint64_t)data, 4096);
			if (at < from + step)
				pages[n++] = at;
		}
		shuffle(pages, n);
		start = now();
		for (size_t i = 0; i < n * percent / 100; i++)
			(void)map[pages[i]];
		sum += now() - start;
	}
	close(fd);
	free(pages);
	return sum;
}

static void wait_one(void)
{
	int status;

	if (wait(&status) < 0 || status)
		errx(1, "a reader failed");
}

static double crowd(unsigned n, bool together, char **paths, int n_paths)
{
	double start = now();

	for (unsigned i = 0; i < n; i++) {
		pid_t pid = fork();

		if (pid < 0)
			err(1, "fork");
		if (pid == 0) {
			struct share s = { .path = paths[i % (unsigned)n_paths] };

			close(open_file(s.path, &s.end));
			read_share(&s);
			_exit(0);
		}
		if (!together)
			wait_one();
	}
	for (unsigned i = 0; together && i < n; i++)
		wait_one();
	return now() - start;
}

int main(int argc, char **argv)
{
	const char *what = argc > 2 ? argv[1] : "";

	if (!strcmp(what, "evict"))
		for (int i = 2; i < argc; i++)
			evict(argv[i]);
	else if (!strcmp(what, "read"))
		printf("%.6f\n", read_file(argv[2], argc > 3 ? (unsigned)atoi(argv[3]) : 1, argc > 4));
	else if (!strcmp(what, "touch"))
		printf("%.6f\n", touch(argv[2]));
	else if (!strcmp(what, "faults") && argc >= 5)
		faults(argv[2], strtoul(argv[3], NULL, 10), argv[4], argc > 5 && !strcmp(argv[5], "random"),
		       !strcmp(argv[argc - 1], "again"));
	else if (!strcmp(what, "scatter") && argc == 5)
		printf("%.6f\n", scatter(argv[2], (unsigned)atoi(argv[3]), strtoull(argv[4], NULL, 0)));
	else if (!strcmp(what, "crowd") && argc >= 5)
		printf("%.6f\n", crowd((unsigned)atoi(argv[2]), !strcmp(argv[3], "together"), argv + 4, argc - 4));
	else
		errx(2, "usage: bench_probe evict|read|touch|faults|scatter|crowd ARGUMENTS (see the source)");
	return 0;
}
