/* SPDX-License-Identifier: Apache-2.0 */
/* thaw_unmap(): what it was given is gone, to the last page, and nothing beside it. */
#include <errno.h>
#include <stdint.h>
#include <sys/mman.h>

#include "common/bytes.h"
#include "lib/thaw.h"
#include "tests/test.h"

#define PAGE  4096ull
#define MIB   (1ull << 20)
#define GUARD (2 * MIB)

static int is_mapped(uintptr_t addr)
{
	unsigned char v;

	return mincore((void *)addr, PAGE, &v) == 0;
}

/* a mapping with others on both sides, @shift bytes after a border of 2 MiB */
static uintptr_t make(uint64_t len, uint64_t shift)
{
	uint64_t room = len + 4 * GUARD;
	uint8_t *p = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	uintptr_t at = align_up((uintptr_t)p + GUARD, GUARD) + shift;

	CHECK(p != MAP_FAILED);
	for (uint64_t off = 0; off < len; off += 64 * PAGE)
		*(uint8_t *)(at + off) = 1;
	return at;
}

static void check_gone(uintptr_t at, uint64_t len)
{
	for (uint64_t off = 0; off < len; off += PAGE)
		if (is_mapped(at + off)) {
			CHECK_EQ(off, UINT64_MAX);
			return;
		}
	CHECK(is_mapped(at - PAGE));
	CHECK(is_mapped(at + len));
}

static void test_one(void)
{
	static const uint64_t lens[] = { PAGE, 2 * MIB, 16 * MIB, 16 * MIB + PAGE, 33 * MIB, 70 * MIB - PAGE };

	for (unsigned threads = 0; threads < 20; threads += threads < 2 ? 1 : 8)
		for (size_t i = 0; i < ARRAY_SIZE(lens); i++)
			for (uint64_t shift = 0; shift < 2 * PAGE; shift += PAGE) {
				struct thaw_range r = { (void *)make(lens[i], shift), lens[i] };

				CHECK_EQ(thaw_unmap(&r, 1, threads, 0), 0);
				check_gone((uintptr_t)r.addr, r.len);
			}
}

static void test_many(void)
{
	struct thaw_range r[50];

	for (size_t i = 0; i < ARRAY_SIZE(r); i++)
		r[i] = (struct thaw_range){ (void *)make((i + 1) * MIB, 0), (i + 1) * MIB };
	CHECK_EQ(thaw_unmap(r, ARRAY_SIZE(r), 3, THAW_UNMAP_BACKGROUND), 0);
	thaw_unmap_wait();
	for (size_t i = 0; i < ARRAY_SIZE(r); i++)
		check_gone((uintptr_t)r[i].addr, r[i].len);
	thaw_unmap_wait();
}

static void test_wrong(void)
{
	struct thaw_range odd = { (void *)(uintptr_t)1, PAGE }, empty = { (void *)(uintptr_t)PAGE, 0 };
	struct thaw_range wraps = { (void *)(uintptr_t)PAGE, UINT64_MAX };

	CHECK_EQ(thaw_unmap(&odd, 1, 0, 0), -EINVAL);
	CHECK_EQ(thaw_unmap(&empty, 1, 0, 0), -EINVAL);
	CHECK_EQ(thaw_unmap(&wraps, 1, 0, 0), -EINVAL);
	CHECK_EQ(thaw_unmap(NULL, 0, 0, 0), 0);
}

int main(void)
{
	test_one();
	test_many();
	test_wrong();
	return 0;
}
