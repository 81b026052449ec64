/* SPDX-License-Identifier: Apache-2.0 */
/* The chunk cache: one load for many readers, its bound, failures, and 64 readers while it evicts. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "fs/cache.h"
#include "imgfmt/format.h"
#include "tests/test.h"

static struct stats stats;
static _Atomic unsigned n_loads;

static struct cache *make_cache(uint64_t limit)
{
	struct cache *cache;

	memset(&stats, 0, sizeof(stats));
	n_loads = 0;
	CHECK_EQ(cache_new(limit, &stats, &cache), 0);
	return cache;
}

static struct cache_key key_of(uint32_t chunk)
{
	struct cache_key key = { .chunk = chunk };

	memset(key.id, 0x5a, sizeof(key.id));
	return key;
}

struct load {
	uint32_t chunk, len;
	unsigned waiters; /* load when so many wait for it */
	int error;
};

/* every word of a chunk tells which it is */
static int load(void *ctx, void *buf, uint32_t *ret_len)
{
	const struct load *l = ctx;
	struct timespec pause = { .tv_nsec = 1000000 };

	n_loads++;
	/* a minute at most */
	for (int i = 0; i < 60000 && stats_get(&stats.cache_waits) < l->waiters; i++)
		nanosleep(&pause, NULL);
	if (l->error)
		return l->error;
	for (uint32_t i = 0; i < l->len / 4; i++)
		((uint32_t *)buf)[i] = l->chunk;
	*ret_len = l->len;
	return 0;
}

static struct cache_ref *get(struct cache *cache, uint32_t chunk, uint32_t len, unsigned flags)
{
	struct load l = { .chunk = chunk, .len = len };
	struct cache_key key = key_of(chunk);
	struct cache_ref *ref;

	CHECK_EQ(cache_get(cache, &key, len, flags, load, &l, &ref), 0);
	CHECK_EQ(cache_len(ref), len);
	CHECK_EQ(((const uint32_t *)cache_data(ref))[0], chunk);
	CHECK_EQ(((const uint32_t *)cache_data(ref))[len / 4 - 1], chunk);
	return ref;
}

static void test_bound(void)
{
	struct cache *cache = make_cache(CACHE_MIN);
	struct cache_key first = key_of(0), last = key_of(999);

	for (uint32_t i = 0; i < 1000; i++)
		cache_put(cache, get(cache, i, 256 << 10, 0));
	CHECK(stats.cache_used <= CACHE_MIN);
	CHECK_EQ(n_loads, 1000);
	CHECK(!cache_has(cache, &first));
	CHECK(cache_has(cache, &last));
	/* other sizes take the room of the first ones */
	for (uint32_t i = 0; i < 20; i++) {
		cache_put(cache, get(cache, 2000 + i, THAW_CHUNK_MAX, 0));
		cache_put(cache, get(cache, 3000 + i, THAW_CHUNK_MIN, 0));
		CHECK(stats.cache_used <= CACHE_MIN);
	}
	cache_free(cache);
}

static void test_least_recent_goes(void)
{
	struct cache *cache = make_cache(CACHE_MIN);
	struct cache_key kept = key_of(0), gone = key_of(1), cold = key_of(9);

	for (uint32_t i = 0; i < 7; i++)
		cache_put(cache, get(cache, i, THAW_CHUNK_MAX, 0));
	cache_put(cache, get(cache, 9, THAW_CHUNK_MAX, CACHE_COLD));
	cache_put(cache, get(cache, 0, THAW_CHUNK_MAX, 0));
	cache_put(cache, get(cache, 7, THAW_CHUNK_MAX, 0));
	CHECK(!cache_has(cache, &cold)); /* first of all, though it came last */
	CHECK(cache_has(cache, &gone));
	cache_put(cache, get(cache, 8, THAW_CHUNK_MAX, 0));
	CHECK(!cache_has(cache, &gone));
	CHECK(cache_has(cache, &kept));
	cache_free(cache);
}

static void test_pinned_stays(void)
{
	struct cache *cache = make_cache(CACHE_MIN);
	struct load l = { .chunk = 100, .len = THAW_CHUNK_MAX };
	struct cache_key key = key_of(100);
	struct cache_ref *refs[8], *ref;

	for (uint32_t i = 0; i < 8; i++)
		refs[i] = get(cache, i, THAW_CHUNK_MAX, 0);
	CHECK_EQ(cache_get(cache, &key, l.len, CACHE_NOWAIT, load, &l, &ref), -EAGAIN);
	/* what is there needs no room */
	ref = get(cache, 3, THAW_CHUNK_MAX, CACHE_NOWAIT);
	cache_put(cache, ref);
	CHECK_EQ(cache_get(cache, &key, l.len, CACHE_NOWAIT, load, &l, &ref), -EAGAIN);
	cache_put(cache, refs[5]);
	CHECK_EQ(cache_get(cache, &key, l.len, CACHE_NOWAIT, load, &l, &ref), 0);
	cache_put(cache, ref);
	for (uint32_t i = 0; i < 8; i++)
		if (i != 5)
			cache_put(cache, refs[i]);
	CHECK_EQ(cache_get(cache, &key, THAW_CHUNK_MAX + 1, 0, load, &l, &ref), -EINVAL);
	CHECK_EQ(cache_get(cache, &key, 0, 0, load, &l, &ref), -EINVAL);
	cache_free(cache);
}

static void test_failure_is_not_kept(void)
{
	struct cache *cache = make_cache(CACHE_MIN);
	struct load l = { .chunk = 1, .len = THAW_CHUNK_MIN, .error = -EIO };
	struct cache_key key = key_of(1);
	struct cache_ref *ref;

	for (unsigned i = 0; i < 1000; i++)
		CHECK_EQ(cache_get(cache, &key, l.len, 0, load, &l, &ref), -EIO);
	CHECK_EQ(n_loads, 1000);
	CHECK_EQ(stats.cache_used, THAW_CHUNK_MIN);
	cache_put(cache, get(cache, 1, THAW_CHUNK_MIN, 0));
	cache_free(cache);
}

/* -- threads ------------------------------------------------------------------------------------ */

static struct cache *shared;

static void *read_same(void *arg)
{
	struct load l = { .chunk = 7, .len = THAW_CHUNK_MIN, .waiters = 63, .error = *(int *)arg };
	struct cache_key key = key_of(7);
	struct cache_ref *ref;
	intptr_t err = cache_get(shared, &key, l.len, 0, load, &l, &ref);

	if (!err)
		cache_put(shared, ref);
	return (void *)err;
}

static void test_one_load(int error)
{
	pthread_t threads[64];
	void *err;

	shared = make_cache(CACHE_MIN);
	for (int i = 0; i < 64; i++)
		CHECK(pthread_create(&threads[i], NULL, read_same, &error) == 0);
	for (int i = 0; i < 64; i++) {
		CHECK(pthread_join(threads[i], &err) == 0);
		CHECK_EQ((intptr_t)err, error);
	}
	CHECK_EQ(n_loads, 1);
	CHECK_EQ(stats.cache_waits, 63);
	cache_free(shared);
}

static void *read_random(void *arg)
{
	uint64_t rnd = (uintptr_t)arg * 7919 + 1;

	for (int i = 0; i < 400; i++) {
		uint32_t chunk = (uint32_t)(test_random(&rnd) % 300);
		uint32_t len = THAW_CHUNK_MIN << chunk % 4;
		struct cache_ref *ref = get(shared, chunk, len, 0);
		const uint32_t *words = cache_data(ref);

		/* it must not change under a pin */
		for (uint32_t w = 0; w < len / 4; w += 1021)
			CHECK_EQ(words[w], chunk);
		cache_put(shared, ref);
	}
	return NULL;
}

static void test_many_readers(void)
{
	pthread_t threads[64];

	shared = make_cache(CACHE_MIN);
	for (uintptr_t i = 0; i < 64; i++)
		CHECK(pthread_create(&threads[i], NULL, read_random, (void *)i) == 0);
	for (int i = 0; i < 64; i++)
		pthread_join(threads[i], NULL);
	CHECK(stats.cache_evictions > 100);
	CHECK(stats.cache_used <= CACHE_MIN);
	CHECK_EQ(stats.cache_hits + stats.cache_misses, 64 * 400);
	cache_free(shared);
}

int main(void)
{
	test_bound();
	test_least_recent_goes();
	test_pinned_stays();
	test_failure_is_not_kept();
	test_one_load(0);
	test_one_load(-EBADMSG);
	test_many_readers();
	return 0;
}
