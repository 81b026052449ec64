/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/pagetable.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/bytes.h"
#include "common/cleanup.h"

#define PAGE_MASK 4095u

static int reserve(struct pagetable *t, size_t n)
{
	struct pageserver_range *p;
	size_t room = t->room ? t->room : 16;

	if (n <= t->room)
		return 0;
	while (room < n)
		room *= 2;
	p = reallocarray(t->ranges, room, sizeof(*p));
	if (!p)
		return -ENOMEM;
	t->ranges = p;
	t->room = room;
	return 0;
}

int pagetable_init(struct pagetable *t, const struct pageserver_range *ranges, size_t n)
{
	uint64_t end = 0;

	*t = (struct pagetable){ 0 };
	for (size_t i = 0; i < n; i++) {
		const struct pageserver_range *r = &ranges[i];

		if (!r->len || ((r->addr | r->len | r->src) & PAGE_MASK) || r->addr < end ||
		    r->len > UINT64_MAX - r->addr || r->len > UINT64_MAX - r->src)
			return -EINVAL;
		end = r->addr + r->len;
	}
	if (reserve(t, n) < 0)
		return -ENOMEM;
	if (n)
		memcpy(t->ranges, ranges, n * sizeof(*ranges));
	t->n = n;
	return 0;
}

void pagetable_release(struct pagetable *t)
{
	free(t->ranges);
	*t = (struct pagetable){ 0 };
}

static size_t index_at(const struct pagetable *t, uint64_t addr)
{
	size_t lo = 0, hi = t->n;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (t->ranges[mid].addr + t->ranges[mid].len <= addr)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

const struct pageserver_range *pagetable_at(const struct pagetable *t, uint64_t addr)
{
	size_t i = index_at(t, addr);

	return i < t->n ? &t->ranges[i] : NULL;
}

/* a border at @addr, if a range passes over it; there is room */
static void split(struct pagetable *t, uint64_t addr)
{
	size_t i = index_at(t, addr);
	struct pageserver_range *r = t->ranges + i;
	uint64_t head;

	if (i == t->n || r->addr >= addr)
		return;
	head = addr - r->addr;
	memmove(r + 1, r, (t->n - i) * sizeof(*r));
	t->n++;
	r[0].len = head;
	r[1] = (struct pageserver_range){ addr, r[1].len - head, r[1].src + head, r[1].on_demand };
}

int pagetable_remove(struct pagetable *t, uint64_t start, uint64_t end)
{
	size_t first, last;

	if (start >= end)
		return 0;
	if (reserve(t, t->n + 2) < 0)
		return -ENOMEM;
	split(t, start);
	split(t, end);
	first = index_at(t, start);
	for (last = first; last < t->n && t->ranges[last].addr < end; last++)
		;
	if (last > first)
		memmove(t->ranges + first, t->ranges + last, (t->n - last) * sizeof(*t->ranges));
	t->n -= last - first;
	return 0;
}

int pagetable_move(struct pagetable *t, uint64_t from, uint64_t to, uint64_t len)
{
	_cleanup_free_ struct pageserver_range *moved = NULL;
	size_t first, n = 0;
	int err;

	if (!len || len > UINT64_MAX - from || len > UINT64_MAX - to)
		return 0;
	if (reserve(t, t->n + 2) < 0)
		return -ENOMEM;
	split(t, from);
	split(t, from + len);
	first = index_at(t, from);
	while (first + n < t->n && t->ranges[first + n].addr < from + len)
		n++;
	moved = calloc(n ? n : 1, sizeof(*moved));
	if (!moved)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++) {
		moved[i] = t->ranges[first + i];
		moved[i].addr = moved[i].addr - from + to;
	}
	err = pagetable_remove(t, from, from + len);
	if (!err)
		err = pagetable_remove(t, to, to + len);
	if (!err)
		err = reserve(t, t->n + n);
	if (err)
		return err;
	first = index_at(t, to);
	if (n) {
		memmove(t->ranges + first + n, t->ranges + first, (t->n - first) * sizeof(*moved));
		memcpy(t->ranges + first, moved, n * sizeof(*moved));
	}
	t->n += n;
	return 0;
}
