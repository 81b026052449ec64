/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long letting go of shared memory takes: bench_unmap DIR METHOD THREADS FILES MIB_PER_FILE [unlink]
 *
 * FILES files in DIR (a tmpfs) are made, written and mapped; with "unlink" their names are removed before the mappings
 * go, so that the system frees the pages as part of that. METHOD: munmap, one call a file; thaw, thaw_unmap() with
 * THREADS; punch, THREADS threads that punch holes (MADV_REMOVE) in slices, then munmap; caller, how long thaw_unmap()
 * with THAW_UNMAP_BACKGROUND keeps the caller. Prints seconds.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "lib/thaw.h"

#define MAX_FILES 1024

static struct thaw_range ranges[MAX_FILES];
static size_t n_files, file_len;
static unsigned n_threads;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static double now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

static void make_file(const char *dir, size_t i, int is_unlinked)
{
	char path[4096];
	int fd;

	snprintf(path, sizeof(path), "%s/unmap.%ld.%zu", dir, (long)getpid(), i);
	fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0 || ftruncate(fd, (off_t)file_len))
		die(path);
	ranges[i].len = file_len;
	ranges[i].addr = mmap(NULL, file_len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (ranges[i].addr == MAP_FAILED)
		die("mmap");
	memset(ranges[i].addr, 1, file_len);
	close(fd);
	if (is_unlinked)
		unlink(path);
}

static void *punch(void *arg)
{
	size_t k = (size_t)arg, total = n_files * file_len, share = total / n_threads / 4096 * 4096;
	size_t from = k * share, to = k + 1 == n_threads ? total : from + share;

	while (from < to) {
		size_t i = from / file_len, off = from % file_len, len = file_len - off;

		if (len > to - from)
			len = to - from;
		if (madvise((char *)ranges[i].addr + off, len, MADV_REMOVE))
			die("MADV_REMOVE");
		from += len;
	}
	return NULL;
}

static void punch_all(void)
{
	pthread_t threads[64];

	for (size_t k = 0; k < n_threads; k++)
		if (pthread_create(&threads[k], NULL, punch, (void *)k))
			die("pthread_create");
	for (size_t k = 0; k < n_threads; k++)
		pthread_join(threads[k], NULL);
}

static double let_go(const char *method)
{
	double start = now(), seconds;
	int caller = !strcmp(method, "caller");

	if (!strcmp(method, "punch"))
		punch_all();
	if (caller || !strcmp(method, "thaw")) {
		if (thaw_unmap(ranges, n_files, n_threads, caller ? THAW_UNMAP_BACKGROUND : 0))
			die("thaw_unmap");
	} else {
		for (size_t i = 0; i < n_files; i++)
			munmap(ranges[i].addr, ranges[i].len);
	}
	seconds = now() - start;
	thaw_unmap_wait();
	return seconds;
}

int main(int argc, char **argv)
{
	int is_unlinked = argc == 7 && !strcmp(argv[6], "unlink");
	double seconds;

	if (argc < 6 || argc > 7 || (argc == 7 && !is_unlinked)) {
		fprintf(stderr,
			"usage: bench_unmap DIR munmap|thaw|punch|caller THREADS FILES MIB_PER_FILE [unlink]\n");
		return 2;
	}
	n_threads = (unsigned)atoi(argv[3]);
	n_files = (size_t)atol(argv[4]);
	file_len = (size_t)atol(argv[5]) << 20;
	if (!n_threads || n_threads > 64 || !n_files || n_files > MAX_FILES || !file_len)
		return 2;
	for (size_t i = 0; i < n_files; i++)
		make_file(argv[1], i, is_unlinked);
	seconds = let_go(argv[2]);
	printf("%.6f\n", seconds);
	for (size_t i = 0; i < n_files && !is_unlinked; i++) {
		char path[4096];

		snprintf(path, sizeof(path), "%s/unmap.%ld.%zu", argv[1], (long)getpid(), i);
		unlink(path);
	}
	return 0;
}
