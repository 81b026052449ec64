/* SPDX-License-Identifier: Apache-2.0 */
/*
 * munmap(2) takes the lock of the address space for writing only while it takes the mapping out; the pages are let go
 * under a lock that threads share. So slices can go in parallel. The last slice of an unlinked file frees the pages of
 * the file, which is most of the work, and is done by the thread that unmaps it: threads take slices file by file, so
 * that several files are freed at a time.
 *
 * Thread model: workers take slices by an atomic counter; nothing else is shared. A background call has one thread
 * more, which waits for them.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/bytes.h"
#include "common/cleanup.h"
#include "lib/thaw.h"

#define MAX_THREADS 16
/* Slices end where page tables do, or two threads would meet in one. */
#define SLICE_ALIGN (2ull << 20)
#define SLICE_MIN   (16ull << 20)

struct unmapping {
	struct thaw_range *ranges;
	size_t n;
	unsigned threads;
	unsigned per_range; /* slices of each */
	atomic_size_t next;
};

static pthread_mutex_t background_lock = PTHREAD_MUTEX_INITIALIZER; /* guards n_background */
static pthread_cond_t background_done = PTHREAD_COND_INITIALIZER;
static unsigned n_background;

/* slice @k of @n of a range; the pieces of a range that is small are empty but for the first */
static void unmap_slice(const struct thaw_range *r, unsigned k, unsigned n)
{
	uintptr_t start = (uintptr_t)r->addr, end = start + r->len;
	uintptr_t step = align_up(max_u64(r->len / n, SLICE_MIN), SLICE_ALIGN);
	uintptr_t first = align_down(start, SLICE_ALIGN);
	uintptr_t from = (uintptr_t)max_u64(start, first + k * step);
	uintptr_t to = k + 1 == n ? end : (uintptr_t)min_u64(end, first + (k + 1) * step);

	if (from < to)
		munmap((void *)from, to - from);
}

static void *unmap_slices(void *arg)
{
	struct unmapping *u = arg;

	for (;;) {
		size_t i = atomic_fetch_add(&u->next, 1);

		if (i >= u->n * u->per_range)
			return NULL;
		unmap_slice(&u->ranges[i / u->per_range], (unsigned)(i % u->per_range), u->per_range);
	}
}

static void unmap_all(struct unmapping *u)
{
	pthread_t threads[MAX_THREADS];
	unsigned n = 0;

	while (n + 1 < u->threads && pthread_create(&threads[n], NULL, unmap_slices, u) == 0)
		n++;
	unmap_slices(u);
	while (n)
		pthread_join(threads[--n], NULL);
}

static void unmapping_free(struct unmapping *u)
{
	free(u->ranges);
	free(u);
}

static void *unmap_in_background(void *arg)
{
	struct unmapping *u = arg;

	unmap_all(u);
	unmapping_free(u);
	LOCK_GUARD(&background_lock);
	if (--n_background == 0)
		pthread_cond_broadcast(&background_done);
	return NULL;
}

static int start_background(struct unmapping *u)
{
	pthread_attr_t attr;
	pthread_t thread;
	int r;

	{
		LOCK_GUARD(&background_lock);
		n_background++;
	}
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	r = pthread_create(&thread, &attr, unmap_in_background, u);
	pthread_attr_destroy(&attr);
	if (r)
		unmap_in_background(u);
	return 0;
}

static unsigned count_processors(void)
{
	cpu_set_t set;

	return sched_getaffinity(0, sizeof(set), &set) ? 1 : (unsigned)CPU_COUNT(&set);
}

int thaw_unmap(const struct thaw_range *ranges, size_t n, unsigned threads, unsigned flags)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	struct unmapping *u;

	for (size_t i = 0; i < n; i++)
		if ((uintptr_t)ranges[i].addr % page || !ranges[i].len ||
		    (uintptr_t)ranges[i].addr + ranges[i].len < (uintptr_t)ranges[i].addr)
			return -EINVAL;
	if (!n)
		return 0;
	u = calloc(1, sizeof(*u));
	if (!u)
		return -ENOMEM;
	u->ranges = malloc(n * sizeof(*ranges));
	if (!u->ranges) {
		unmapping_free(u);
		return -ENOMEM;
	}
	memcpy(u->ranges, ranges, n * sizeof(*ranges));
	u->n = n;
	u->threads = threads ? threads : count_processors();
	if (u->threads > MAX_THREADS)
		u->threads = MAX_THREADS;
	/* enough mappings for everybody: then each goes whole, with its file */
	u->per_range = n >= u->threads ? 1 : u->threads;
	if (flags & THAW_UNMAP_BACKGROUND)
		return start_background(u);
	unmap_all(u);
	unmapping_free(u);
	return 0;
}

void thaw_unmap_wait(void)
{
	LOCK_GUARD(&background_lock);

	while (n_background)
		pthread_cond_wait(&background_done, &background_lock);
}
