/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/ranges.h"

#include <stdbool.h>
#include <sys/mman.h>

static bool is_private(uint32_t flags)
{
	const uint32_t what = MAP_PRIVATE | MAP_SHARED | MAP_ANONYMOUS | MAP_HUGETLB;

	/* cores say nothing of it */
	return !flags || (flags & what) == (MAP_PRIVATE | MAP_ANONYMOUS);
}

size_t ranges_add(struct pageserver_range *to, uint64_t addr, uint64_t len, uint32_t flags)
{
	if (addr >= 1ull << 47 || len > 1ull << 47)
		return 0;
	*to = (struct pageserver_range){ addr, len, addr, !is_private(flags) };
	return 1;
}
