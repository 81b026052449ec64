/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tool_mount_io SOURCE MOUNTED: read a mounted file in every way a program may, compare with its source (on tmpfs), and
 * compare what lseek and stat say. Buffers hold a canary first, so that a hole that is not filled shows.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include "common/bytes.h"
#include "tests/test.h"

#define CANARY 0xa5
#define N_IOV  1024

static const uint8_t *source;
static uint64_t size;
static int fd, source_fd;

static void check_bytes(const uint8_t *got, uint64_t off, size_t len)
{
	for (size_t i = 0; i < len; i += 1 << 20) {
		size_t n = min_u64(1 << 20, len - i);

		if (memcmp(got + i, source + off + i, n) != 0) {
			fprintf(stderr, "wrong bytes in [%" PRIu64 ", +%zu)\n", off + i, n);
			exit(1);
		}
	}
}

static void drop_pages(void)
{
	CHECK(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0);
}

/* odd sizes and offsets, to the end and past it */
static void by_read(void)
{
	enum { LEN = 777777 };
	uint8_t *buf = guarded_buffer(LEN);

	drop_pages();
	for (uint64_t off = 0; off < size; off += LEN) {
		size_t want = min_u64(LEN, size - off);

		memset(buf, CANARY, LEN);
		CHECK_EQ(pread(fd, buf, LEN, (off_t)off), want);
		check_bytes(buf, off, want);
		for (size_t i = want; i < LEN; i++)
			CHECK_EQ(buf[i], CANARY);
	}
	CHECK_EQ(pread(fd, buf, LEN, (off_t)size), 0);
	CHECK_EQ(pread(fd, buf, LEN, (off_t)size + 12345), 0);
}

static void by_mmap(int flags)
{
	const uint8_t *map;

	if (!size)
		return;
	drop_pages();
	map = mmap(NULL, size, PROT_READ, flags, fd, 0);
	CHECK(map != MAP_FAILED);
	check_bytes(map, 0, size);
	/* the rest of the last page is zero */
	for (uint64_t i = size; i % 4096; i++)
		CHECK_EQ(map[i], 0);
	CHECK(munmap((void *)(uintptr_t)map, size) == 0);
}

static void by_direct(const char *path)
{
	enum { LEN = 3 << 20 };
	int direct = open(path, O_RDONLY | O_DIRECT);
	uint8_t *buf = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(direct >= 0 && buf != MAP_FAILED);
	for (uint64_t off = 0; off < size; off += LEN) {
		size_t want = min_u64(LEN, size - off);

		memset(buf, CANARY, LEN);
		CHECK_EQ(pread(direct, buf, LEN, (off_t)off), want);
		check_bytes(buf, off, want);
	}
	CHECK_EQ(pread(direct, buf, LEN, (off_t)align_up(size, 4096)), 0);
	close(direct);
	munmap(buf, LEN);
}

/* as CRIU reads pages: one call, very many places */
static void by_preadv(void)
{
	static uint8_t pages[N_IOV][4096];
	struct iovec iov[N_IOV];

	drop_pages();
	for (int i = 0; i < N_IOV; i++)
		iov[i] = (struct iovec){ pages[N_IOV - 1 - i], sizeof(pages[0]) };
	for (uint64_t off = 0; off < size; off += sizeof(pages)) {
		size_t want = min_u64(sizeof(pages), size - off);

		memset(pages, CANARY, sizeof(pages));
		CHECK_EQ(preadv(fd, iov, N_IOV, (off_t)off), want);
		for (int i = 0; i < N_IOV && (size_t)i * 4096 < want; i++)
			check_bytes(iov[i].iov_base, off + (uint64_t)i * 4096, min_u64(4096, want - (size_t)i * 4096));
	}
}

/* the largest a call may be: 2 GiB less a page */
static void by_one_read(void)
{
	size_t want = min_u64(size, 0x7ffff000);
	uint8_t *buf =
		mmap(NULL, (size_t)1 << 31, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	CHECK(buf != MAP_FAILED);
	drop_pages();
	memset(buf, CANARY, want);
	CHECK_EQ(pread(fd, buf, (size_t)1 << 31, 0), want);
	check_bytes(buf, 0, want);
	munmap(buf, (size_t)1 << 31);
}

static void seek_both(off_t off, int whence)
{
	off_t want, got;
	int want_errno;

	errno = 0;
	want = lseek(source_fd, off, whence);
	want_errno = errno;
	errno = 0;
	got = lseek(fd, off, whence);
	if (got != want || errno != want_errno) {
		fprintf(stderr, "lseek(%jd, %s) is %jd (%s), not %jd (%s)\n", (intmax_t)off,
			whence == SEEK_DATA ? "SEEK_DATA" : "SEEK_HOLE", (intmax_t)got, strerror(errno), (intmax_t)want,
			strerror(want_errno));
		exit(1);
	}
}

static void by_seek(void)
{
	off_t at = 0;

	while (at >= 0) {
		off_t next;

		for (int i = -1; i <= 1; i++) {
			if (at + i < 0)
				continue;
			seek_both(at + i, SEEK_DATA);
			seek_both(at + i, SEEK_HOLE);
		}
		next = lseek(source_fd, at, SEEK_HOLE);
		if (next == at)
			next = lseek(source_fd, at, SEEK_DATA);
		at = next;
	}
	for (int i = -1; i <= 1; i++) {
		if ((off_t)size + i < 0)
			continue;
		seek_both((off_t)size + i, SEEK_DATA);
		seek_both((off_t)size + i, SEEK_HOLE);
	}
}

static void by_stat(void)
{
	struct stat want, got;

	CHECK(fstat(source_fd, &want) == 0 && fstat(fd, &got) == 0);
	CHECK_EQ(got.st_size, want.st_size);
	CHECK_EQ(got.st_mode, want.st_mode);
	CHECK_EQ(got.st_mtim.tv_sec, want.st_mtim.tv_sec);
	CHECK_EQ(got.st_mtim.tv_nsec, want.st_mtim.tv_nsec);
	CHECK_EQ(got.st_blocks, want.st_blocks);
}

/* not a mapping of the file: touching a hole of a tmpfs file by mmap fills it, and then it is one no more */
static void load_source(void)
{
	uint8_t *copy = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	off_t data = 0, hole;

	CHECK(copy != MAP_FAILED);
	while ((data = lseek(source_fd, data, SEEK_DATA)) >= 0) {
		hole = lseek(source_fd, data, SEEK_HOLE);
		CHECK(hole > data);
		for (ssize_t n; data < hole; data += n) {
			n = pread(source_fd, copy + data, (size_t)(hole - data), data);
			CHECK(n > 0);
		}
	}
	CHECK(errno == ENXIO);
	source = copy;
}

int main(int argc, char **argv)
{
	struct stat st;

	CHECK(argc == 3);
	source_fd = open(argv[1], O_RDONLY);
	fd = open(argv[2], O_RDONLY);
	CHECK(source_fd >= 0 && fd >= 0 && fstat(source_fd, &st) == 0);
	size = (uint64_t)st.st_size;
	if (size)
		load_source();
	by_stat();
	by_seek();
	by_read();
	by_mmap(MAP_PRIVATE);
	by_mmap(MAP_SHARED);
	by_direct(argv[2]);
	by_preadv();
	by_one_read();
	return 0;
}
