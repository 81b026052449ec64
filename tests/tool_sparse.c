/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compare two files that may be terabytes of holes: only what one of them holds as data is read.
 * tool_sparse A B [UNIT]: same size, same bytes. With UNIT also: B has no data in an aligned UNIT whose bytes are
 * all zero, so that what could be a hole is one. Directories: all regular files below A, each against that of its
 * name below B. Exits 0, or 1 with a line that says where they differ.
 */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/bytes.h"
#include "imgfmt/zero.h"

#define STEP (4u << 20)

struct file {
	const char *path;
	int fd;
	uint64_t size;
	uint8_t *buf;
};

static _Noreturn void die(const char *what, const char *path)
{
	fprintf(stderr, "tool_sparse: cannot %s '%s': %s\n", what, path, strerror(errno));
	exit(1);
}

static void open_file(struct file *f, const char *path)
{
	struct stat st;

	f->path = path;
	f->fd = open(path, O_RDONLY | O_CLOEXEC);
	f->buf = malloc(STEP);
	if (f->fd < 0 || fstat(f->fd, &st) || !f->buf)
		die("open", path);
	f->size = (uint64_t)st.st_size;
}

/* where the next data at or after @off begins; the size if there is none */
static uint64_t next_data(const struct file *f, uint64_t off)
{
	off_t data = off < f->size ? lseek(f->fd, (off_t)off, SEEK_DATA) : -1;

	if (data < 0 && off < f->size && errno != ENXIO)
		die("seek in", f->path);
	return data < 0 ? f->size : (uint64_t)data;
}

static bool data_between(const struct file *f, uint64_t from, uint64_t to)
{
	return next_data(f, from) < to;
}

static void read_part(const struct file *f, uint64_t off, size_t len)
{
	size_t done = 0;

	while (done < len) {
		ssize_t n = pread(f->fd, f->buf + done, len - done, (off_t)(off + done));

		if (n <= 0)
			die("read", f->path);
		done += (size_t)n;
	}
}

static int compare_part(const struct file *a, const struct file *b, uint64_t off, size_t len)
{
	read_part(a, off, len);
	read_part(b, off, len);
	if (!memcmp(a->buf, b->buf, len))
		return 0;
	for (size_t i = 0; i < len; i++) {
		if (a->buf[i] != b->buf[i]) {
			fprintf(stderr, "'%s' and '%s' differ at offset %" PRIu64 ": %02x, %02x\n", a->path, b->path,
				off + i, a->buf[i], b->buf[i]);
			break;
		}
	}
	return 1;
}

/* the zero units of a part that both hold the same */
static int check_holes(const struct file *b, uint64_t off, size_t len, size_t unit)
{
	for (size_t at = 0; at < len; at += unit) {
		size_t n = len - at < unit ? len - at : unit;

		if (is_zero(b->buf + at, n) && data_between(b, off + at, off + at + n)) {
			fprintf(stderr, "'%s' holds zeros as data at offset %" PRIu64 "\n", b->path, off + at);
			return 1;
		}
	}
	return 0;
}

static int compare(const struct file *a, const struct file *b, size_t unit)
{
	uint64_t off = 0;

	if (a->size != b->size) {
		fprintf(stderr, "'%s' has %" PRIu64 " bytes, '%s' has %" PRIu64 "\n", a->path, a->size, b->path,
			b->size);
		return 1;
	}
	while (off < a->size) {
		uint64_t next = align_down(min_u64(next_data(a, off), next_data(b, off)), STEP);
		size_t len;

		off = max_u64(off, next);
		if (!data_between(a, off, a->size) && !data_between(b, off, b->size))
			break;
		len = (size_t)min_u64(STEP, a->size - off);
		if (compare_part(a, b, off, len) || (unit && check_holes(b, off, len, unit)))
			return 1;
		off += len;
	}
	return 0;
}

static int compare_paths(const char *path_a, const char *path_b, size_t unit)
{
	struct file a, b;
	int rc;

	open_file(&a, path_a);
	open_file(&b, path_b);
	rc = compare(&a, &b, unit);
	close(a.fd);
	close(b.fd);
	free(a.buf);
	free(b.buf);
	return rc;
}

/* for nftw(3), which has no argument for us */
static const char *root_a, *root_b;
static size_t walk_unit;

static int visit(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	char *other;
	int rc;

	(void)ftw;
	if (type == FTW_DNR || type == FTW_NS)
		die("read", path);
	if (!S_ISREG(st->st_mode))
		return 0;
	if (asprintf(&other, "%s%s", root_b, path + strlen(root_a)) < 0)
		die("read", path);
	rc = compare_paths(path, other, walk_unit);
	free(other);
	return rc;
}

int main(int argc, char **argv)
{
	struct stat st;
	size_t unit = argc > 3 ? strtoul(argv[3], NULL, 10) : 0;

	if (argc < 3 || unit > STEP) {
		fprintf(stderr, "usage: tool_sparse A B [UNIT]\n");
		return 2;
	}
	if (stat(argv[1], &st))
		die("open", argv[1]);
	if (!S_ISDIR(st.st_mode))
		return compare_paths(argv[1], argv[2], unit);
	root_a = argv[1];
	root_b = argv[2];
	walk_unit = unit;
	return nftw(argv[1], visit, 16, FTW_PHYS) ? 1 : 0;
}
