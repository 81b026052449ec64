/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tool_resident FILE [OFFSET LENGTH]: which pages of a file are in the page cache, by mincore(2), which brings none in.
 * Prints three numbers: pages with data, those of them that are resident, and resident pages without data.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "common/bytes.h"
#include "tests/test.h"

#define PAGE ((uint64_t)4096)
#define STEP ((uint64_t)64 << 20)

static int fd;

/* resident pages of [from, to), both multiples of PAGE */
static uint64_t resident(uint64_t from, uint64_t to)
{
	static unsigned char vec[STEP / PAGE];
	uint64_t n = 0;

	for (uint64_t at = from; at < to; at += STEP) {
		size_t len = min_u64(STEP, to - at);
		void *map = mmap(NULL, len, PROT_READ, MAP_SHARED, fd, (off_t)at);

		CHECK(map != MAP_FAILED);
		CHECK(mincore(map, len, vec) == 0);
		for (size_t i = 0; i < len / PAGE; i++)
			n += vec[i] & 1;
		munmap(map, len);
	}
	return n;
}

int main(int argc, char **argv)
{
	uint64_t data = 0, in_data = 0, in_holes = 0, from, to, done;
	struct stat st;

	CHECK(argc == 2 || argc == 4);
	fd = open(argv[1], O_RDONLY | O_CLOEXEC);
	CHECK(fd >= 0);
	CHECK(fstat(fd, &st) == 0);
	from = argc == 4 ? strtoull(argv[2], NULL, 0) & ~(PAGE - 1) : 0;
	to = argc == 4 ? from + strtoull(argv[3], NULL, 0) : (uint64_t)st.st_size;
	to = min_u64(to, (uint64_t)st.st_size);
	done = from;
	for (uint64_t at = from; at < to;) {
		off_t start = lseek(fd, (off_t)at, SEEK_DATA), end;
		uint64_t first, last;

		if (start < 0 || (uint64_t)start >= to)
			break;
		end = lseek(fd, start, SEEK_HOLE);
		CHECK(end > start);
		at = (uint64_t)end;
		/* a page that is partly data is data, once */
		first = max_u64((uint64_t)start & ~(PAGE - 1), done);
		last = align_up(min_u64(at, to), PAGE);
		if (first >= last)
			continue;
		/* holes of a memory view are too many pages to look at */
		if (first - done <= (uint64_t)1 << 30)
			in_holes += resident(done, first);
		data += (last - first) / PAGE;
		in_data += resident(first, last);
		done = last;
	}
	if (done < to && to - done <= (uint64_t)1 << 30)
		in_holes += resident(done, align_up(to, PAGE));
	printf("%" PRIu64 " %" PRIu64 " %" PRIu64 "\n", data, in_data, in_holes);
	return 0;
}
