/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tool_mount_reader SOURCE MOUNTED READERS MAX_MS
 * Read a mounted file in READERS threads, each in its own way (pread, mmap after dropping the page cache, O_DIRECT,
 * readdir with stat, lseek, open and close), comparing every byte with SOURCE, until SIGTERM. Prints what
 * happened; exits 0 if no call failed, no byte differed and none took longer than MAX_MS.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <time.h>

#include "common/bytes.h"
#include "tests/test.h"

#define PIECE 131072u

static const char *mounted;
static char *dir_path;
static const uint8_t *source;
static uint64_t size;
static atomic_bool stop;
static _Atomic uint64_t n_calls, n_failed, n_wrong, longest_ns;

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void done(uint64_t start, const char *what, int failed)
{
	uint64_t took = now_ns() - start, longest = longest_ns;

	n_calls++;
	while (took > longest && !atomic_compare_exchange_weak(&longest_ns, &longest, took))
		;
	if (!failed)
		return;
	n_failed++;
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
}

static void compare(const char *what, const void *got, uint64_t off, size_t len)
{
	if (memcmp(got, source + off, len) == 0)
		return;
	n_wrong++;
	fprintf(stderr, "%s: wrong bytes in [%" PRIu64 ", +%zu)\n", what, off, len);
}

static void read_once(int fd, uint64_t off, size_t len, uint8_t *buf, const char *what)
{
	uint64_t start = now_ns();
	ssize_t n;

	memset(buf, 0xa5, len);
	n = pread(fd, buf, len, (off_t)off);
	done(start, what, n < 0);
	if (n >= 0 && (size_t)n != len) {
		n_failed++;
		fprintf(stderr, "%s: short read at %" PRIu64 ": %zd\n", what, off, n);
	}
	if (n == (ssize_t)len)
		compare(what, buf, off, len);
}

static void by_read(uint64_t *rnd, bool direct)
{
	int fd = open(mounted, O_RDONLY | (direct ? O_DIRECT : 0));
	static _Thread_local uint8_t buf[PIECE + 4096];
	uint8_t *aligned = buf + (4096 - (uintptr_t)buf % 4096) % 4096;

	done(now_ns(), "open", fd < 0);
	for (int i = 0; fd >= 0 && i < 50 && !stop; i++) {
		uint64_t off = test_random(rnd) % size;
		size_t len = 1 + test_random(rnd) % PIECE;

		if (direct) {
			off = align_down(off, 4096);
			len = align_up(len, 4096);
		}
		if (len > size - off && !direct)
			len = size - off;
		if (len > size - off)
			continue;
		posix_fadvise(fd, (off_t)off, (off_t)len, POSIX_FADV_DONTNEED);
		read_once(fd, off, len, aligned, direct ? "O_DIRECT" : "pread");
	}
	if (fd >= 0)
		close(fd);
}

static void by_mmap(uint64_t *rnd)
{
	int fd = open(mounted, O_RDONLY);
	uint64_t start = now_ns();
	const uint8_t *map = fd < 0 ? MAP_FAILED : mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);

	done(start, "mmap", map == MAP_FAILED);
	for (int i = 0; map != MAP_FAILED && i < 50 && !stop; i++) {
		uint64_t off = test_random(rnd) % size;
		size_t len = min_u64(4096, size - off);

		posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
		madvise((void *)(uintptr_t)(map + align_down(off, 4096)), len, MADV_DONTNEED);
		start = now_ns();
		compare("mmap", map + off, off, len);
		done(start, "mmap", 0);
	}
	if (map != MAP_FAILED)
		munmap((void *)(uintptr_t)map, size);
	if (fd >= 0)
		close(fd);
}

static void by_name(void)
{
	DIR *dir = opendir(dir_path);
	uint64_t start = now_ns();
	struct dirent *e;
	unsigned n = 0;

	done(start, "opendir", !dir);
	while (dir && (errno = 0, e = readdir(dir))) {
		struct stat st;
		int rc;

		start = now_ns();
		rc = fstatat(dirfd(dir), e->d_name, &st, AT_SYMLINK_NOFOLLOW | AT_STATX_FORCE_SYNC);
		done(start, "stat", rc);
		n++;
	}
	if (dir && errno)
		done(start, "readdir", 1);
	if (dir && n < 3) {
		n_wrong++;
		fprintf(stderr, "readdir: only %u entries\n", n);
	}
	if (dir)
		closedir(dir);
}

static void by_seek(void)
{
	int fd = open(mounted, O_RDONLY);
	off_t at = 0;

	while (fd >= 0 && !stop) {
		uint64_t start = now_ns();
		off_t data = lseek(fd, at, SEEK_DATA), hole;

		if (data < 0) {
			done(start, "SEEK_DATA", errno != ENXIO);
			break;
		}
		done(start, "SEEK_DATA", 0);
		start = now_ns();
		hole = lseek(fd, data, SEEK_HOLE);
		done(start, "SEEK_HOLE", hole <= data);
		for (off_t i = at; i < data; i += 512)
			if (source[i]) {
				n_wrong++;
				fprintf(stderr, "lseek: data in a hole at %jd\n", (intmax_t)i);
				break;
			}
		at = hole;
	}
	if (fd >= 0)
		close(fd);
}

static void *run(void *arg)
{
	uintptr_t kind = (uintptr_t)arg;
	uint64_t rnd = 88172645463325252u + kind;

	while (!stop) {
		switch (kind % 6) {
		case 0:
		case 3:
			by_read(&rnd, false);
			break;
		case 1:
			by_mmap(&rnd);
			break;
		case 2:
			by_read(&rnd, true);
			break;
		case 4:
			by_name();
			break;
		case 5:
			by_seek();
			break;
		}
	}
	return NULL;
}

int main(int argc, char **argv)
{
	pthread_t threads[64];
	sigset_t set;
	struct stat st;
	unsigned n;
	uint64_t max_ms;
	int fd, sig;

	CHECK(argc == 5);
	n = (unsigned)atoi(argv[3]);
	max_ms = (uint64_t)atoi(argv[4]);
	CHECK(n >= 1 && n <= 64);
	fd = open(argv[1], O_RDONLY);
	CHECK(fd >= 0 && fstat(fd, &st) == 0);
	size = (uint64_t)st.st_size;
	source = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
	CHECK(source != MAP_FAILED);
	mounted = argv[2];
	dir_path = dirname(strdup(mounted));
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	for (uintptr_t i = 0; i < n; i++)
		CHECK(pthread_create(&threads[i], NULL, run, (void *)i) == 0);
	sigwait(&set, &sig);
	stop = true;
	for (unsigned i = 0; i < n; i++)
		pthread_join(threads[i], NULL);
	printf("%" PRIu64 " calls, %" PRIu64 " failed, %" PRIu64 " wrong, longest %.1f ms\n", n_calls, n_failed,
	       n_wrong, (double)longest_ns / 1e6);
	return n_failed || n_wrong || longest_ns > max_ms * 1000000u || n_calls < n;
}
