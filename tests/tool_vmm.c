/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tool_vmm SOURCE MOUNTED STEPS
 * What a virtual machine monitor does with a memory file: the file is a guest's memory, mapped privately; four
 * processors read and write pages in no order, a balloon gives pages back, which brings the file's bytes again, and
 * another one has the same file mapped shared and read-only. Every page is compared, with SOURCE or with what was
 * written to it. Exits 0 if all were right and the file is as it was.
 */
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>

#include "common/bytes.h"
#include "tests/test.h"

#define PAGE       4096u
#define PROCESSORS 4u
/* how a monitor aligns memory, so that huge pages could be had */
#define ALIGN      ((size_t)2 << 20)

static const uint8_t *source, *shared;
static uint8_t *guest;
static size_t n_pages;
static uint32_t *written; /* by page: number of the last write, 0 for none; of its processor */
static unsigned long steps;

static void fill(uint8_t *page, size_t number, uint32_t write)
{
	uint64_t x = number << 32 | write;

	for (size_t i = 0; i < PAGE; i += 8) {
		x = x * 6364136223846793005u + 1442695040888963407u;
		memcpy(page + i, &x, 8);
	}
}

static void check_page(size_t number)
{
	uint8_t want[PAGE];

	if (written[number])
		fill(want, number, written[number]);
	else
		memcpy(want, source + number * PAGE, PAGE);
	if (memcmp(guest + number * PAGE, want, PAGE) != 0) {
		fprintf(stderr, "page %zu, written %u times: wrong bytes\n", number, written[number]);
		exit(1);
	}
}

static void *processor(void *arg)
{
	uintptr_t self = (uintptr_t)arg;
	uint64_t rnd = 88172645463325252u + self;

	for (unsigned long i = 0; i < steps; i++) {
		/* pages of other processors are theirs to write and to compare */
		size_t number = test_random(&rnd) % (n_pages / PROCESSORS) * PROCESSORS + self;
		uint8_t *page = guest + number * PAGE;

		switch (test_random(&rnd) % 8) {
		case 0:
			fill(page, number, ++written[number]);
			break;
		case 1:
			CHECK(madvise(page, PAGE, MADV_DONTNEED) == 0);
			written[number] = 0;
			break;
		case 2:
			if (memcmp(shared + number * PAGE, source + number * PAGE, PAGE) != 0) {
				fprintf(stderr, "page %zu, shared: wrong bytes\n", number);
				exit(1);
			}
			break;
		default:
			check_page(number);
		}
	}
	return NULL;
}

static const uint8_t *map_shared(const char *path, size_t size)
{
	int fd = open(path, O_RDONLY);
	const void *map = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);

	CHECK(fd >= 0 && map != MAP_FAILED);
	close(fd);
	return map;
}

int main(int argc, char **argv)
{
	pthread_t threads[PROCESSORS];
	struct stat st;
	uint8_t *room;
	size_t size;
	int fd;

	CHECK(argc == 4);
	steps = strtoul(argv[3], NULL, 10);
	fd = open(argv[2], O_RDONLY);
	CHECK(fd >= 0 && fstat(fd, &st) == 0 && stat(argv[1], &st) == 0);
	size = (size_t)st.st_size;
	n_pages = size / PAGE;
	CHECK(steps > 0 && n_pages >= PROCESSORS && n_pages % PROCESSORS == 0);
	source = map_shared(argv[1], size);
	shared = map_shared(argv[2], size);
	written = calloc(n_pages, sizeof(*written));
	room = mmap(NULL, size + ALIGN, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	CHECK(written && room != MAP_FAILED);
	guest = room + (ALIGN - (uintptr_t)room % ALIGN) % ALIGN;
	CHECK(mmap(guest, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, fd, 0) == guest);
	/* a monitor closes it, and expects nothing to change */
	close(fd);
	CHECK(madvise(guest, size, MADV_RANDOM) == 0);
	for (uintptr_t i = 0; i < PROCESSORS; i++)
		CHECK(pthread_create(&threads[i], NULL, processor, (void *)i) == 0);
	for (unsigned i = 0; i < PROCESSORS; i++)
		pthread_join(threads[i], NULL);
	for (size_t i = 0; i < n_pages; i++)
		check_page(i);
	/* the file has nothing of what was written, in nobody's mapping */
	CHECK(memcmp(shared, source, size) == 0);
	return 0;
}
