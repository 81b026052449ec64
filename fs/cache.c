/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/cache.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/bytes.h"
#include "common/cleanup.h"
#include "imgfmt/format.h"

#define MIN_SHIFT 16 /* the smallest buffer, THAW_CHUNK_MIN */
#define CLASSES   7  /* 64 KiB to 4 MiB, the sizes a chunk may have */
#define WAKEUPS   64 /* condition variables that loads are spread over */

_Static_assert(1u << MIN_SHIFT == THAW_CHUNK_MIN, "smallest class");
_Static_assert(1u << (MIN_SHIFT + CLASSES - 1) == THAW_CHUNK_MAX, "largest class");

enum state { LOADING, READY, FAILED };

/* all under cache->lock, but the bytes of data while LOADING, and len, data and asked while pinned */
struct cache_ref {
	struct cache_key key;
	enum state state;
	int error; /* FAILED */
	unsigned pins;
	unsigned class;
	bool cold;
	_Atomic unsigned asked; /* not under lock */
	uint32_t len;
	void *data;
	struct cache_ref *next_hash;
	struct cache_ref *newer, *older; /* in the LRU list while READY and not pinned */
};

struct spare {
	struct spare *next;
};

struct cache {
	uint64_t limit;
	struct stats *stats;
	pthread_mutex_t lock;
	pthread_cond_t loaded[WAKEUPS]; /* a load ended, by hash of its key */
	pthread_cond_t room;            /* a buffer may be had */
	uint64_t used;                  /* bytes of all buffers, spare ones too */
	unsigned waiting;               /* for room */
	struct spare *spares[CLASSES];
	struct cache_ref *newest, *oldest;
	size_t n_buckets; /* a power of two */
	struct cache_ref **buckets;
};

static size_t hash_key(const struct cache_key *key)
{
	/* the id is a hash already */
	uint64_t h = load_le64(key->id) + key->chunk * 0x9e3779b97f4a7c15u;

	return (size_t)(h ^ h >> 29);
}

static bool same_key(const struct cache_key *a, const struct cache_key *b)
{
	return a->chunk == b->chunk && !memcmp(a->id, b->id, sizeof(a->id));
}

int cache_new(uint64_t limit, struct stats *stats, struct cache **ret)
{
	struct cache *cache = calloc(1, sizeof(*cache));

	if (!cache)
		return -ENOMEM;
	cache->limit = max_u64(limit, CACHE_MIN);
	cache->stats = stats;
	for (cache->n_buckets = 1024; cache->n_buckets < cache->limit >> MIN_SHIFT && cache->n_buckets < 1u << 24;)
		cache->n_buckets *= 2;
	cache->buckets = calloc(cache->n_buckets, sizeof(struct cache_ref *));
	if (!cache->buckets) {
		free(cache);
		return -ENOMEM;
	}
	pthread_mutex_init(&cache->lock, NULL);
	pthread_cond_init(&cache->room, NULL);
	for (int i = 0; i < WAKEUPS; i++)
		pthread_cond_init(&cache->loaded[i], NULL);
	*ret = cache;
	return 0;
}

static size_t class_bytes(unsigned class)
{
	return (size_t)1 << (MIN_SHIFT + class);
}

static struct cache_ref **bucket(struct cache *cache, const struct cache_key *key)
{
	return &cache->buckets[hash_key(key) & (cache->n_buckets - 1)];
}

static pthread_cond_t *wakeup(struct cache *cache, const struct cache_key *key)
{
	return &cache->loaded[hash_key(key) >> 8 & (WAKEUPS - 1)];
}

static struct cache_ref *find(struct cache *cache, const struct cache_key *key)
{
	struct cache_ref *ref = *bucket(cache, key);

	while (ref && !same_key(&ref->key, key))
		ref = ref->next_hash;
	return ref;
}

static void unhash(struct cache *cache, struct cache_ref *ref)
{
	struct cache_ref **p = bucket(cache, &ref->key);

	while (*p != ref)
		p = &(*p)->next_hash;
	*p = ref->next_hash;
}

static void lru_remove(struct cache *cache, struct cache_ref *ref)
{
	*(ref->newer ? &ref->newer->older : &cache->newest) = ref->older;
	*(ref->older ? &ref->older->newer : &cache->oldest) = ref->newer;
	ref->newer = ref->older = NULL;
}

static void lru_add(struct cache *cache, struct cache_ref *ref)
{
	ref->newer = NULL;
	ref->older = cache->newest;
	*(cache->newest ? &cache->newest->newer : &cache->oldest) = ref;
	cache->newest = ref;
}

static void lru_add_oldest(struct cache *cache, struct cache_ref *ref)
{
	ref->older = NULL;
	ref->newer = cache->oldest;
	*(cache->oldest ? &cache->oldest->older : &cache->newest) = ref;
	cache->oldest = ref;
}

static void give_back(struct cache *cache, void *data, unsigned class)
{
	struct spare *spare = data;

	spare->next = cache->spares[class];
	cache->spares[class] = spare;
	if (cache->waiting)
		pthread_cond_broadcast(&cache->room);
}

/* drop what was not used for longest; false if everything is pinned */
static bool evict(struct cache *cache)
{
	struct cache_ref *ref = cache->oldest;

	if (!ref)
		return false;
	lru_remove(cache, ref);
	unhash(cache, ref);
	give_back(cache, ref->data, ref->class);
	free(ref);
	stats_add(&cache->stats->cache_evictions, 1);
	return true;
}

/* return spare buffers of other sizes to the system until @need more bytes fit; false if they do not */
static bool trim(struct cache *cache, size_t need)
{
	for (unsigned c = 0; c < CLASSES && cache->used + need > cache->limit; c++)
		while (cache->spares[c] && cache->used + need > cache->limit) {
			struct spare *spare = cache->spares[c];

			cache->spares[c] = spare->next;
			munmap(spare, class_bytes(c));
			cache->used -= class_bytes(c);
		}
	return cache->used + need <= cache->limit;
}

/* Return: 0, -EAGAIN if all buffers are pinned, -ENOMEM */
static int take_buffer(struct cache *cache, unsigned class, void **ret)
{
	size_t bytes = class_bytes(class);
	void *p;

	while (!cache->spares[class] && !trim(cache, bytes))
		if (!evict(cache))
			return -EAGAIN;
	if (cache->spares[class]) {
		*ret = cache->spares[class];
		cache->spares[class] = cache->spares[class]->next;
		return 0;
	}
	p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return -ENOMEM;
	cache->used += bytes;
	atomic_store(&cache->stats->cache_used, cache->used);
	*ret = p;
	return 0;
}

static void unpin(struct cache *cache, struct cache_ref *ref)
{
	assert(ref->pins > 0);
	if (--ref->pins)
		return;
	if (ref->state == READY) {
		if (ref->cold)
			lru_add_oldest(cache, ref);
		else
			lru_add(cache, ref);
		if (cache->waiting)
			pthread_cond_broadcast(&cache->room);
		return;
	}
	free(ref); /* FAILED: out of the table already, its buffer given back */
}

/* wait for another thread's load; the lock is held and @ref pinned */
static int await(struct cache *cache, struct cache_ref *ref)
{
	int err;

	if (ref->state == LOADING)
		stats_add(&cache->stats->cache_waits, 1);
	while (ref->state == LOADING)
		pthread_cond_wait(wakeup(cache, &ref->key), &cache->lock);
	if (ref->state == READY)
		return 0;
	err = ref->error;
	unpin(cache, ref);
	return err;
}

/* load into @ref, which is in the table as LOADING and pinned; called and returns with the lock held */
static int load_ref(struct cache *cache, struct cache_ref *ref, cache_load_fn *load, void *ctx)
{
	uint32_t len = 0;
	int err;

	pthread_mutex_unlock(&cache->lock);
	err = load(ctx, ref->data, &len);
	pthread_mutex_lock(&cache->lock);
	ref->len = len;
	ref->state = err ? FAILED : READY;
	if (err) {
		ref->error = err;
		unhash(cache, ref);
		give_back(cache, ref->data, ref->class);
		ref->data = NULL;
	}
	pthread_cond_broadcast(wakeup(cache, &ref->key));
	if (err)
		unpin(cache, ref);
	return err;
}

static unsigned class_of(uint32_t room)
{
	unsigned class = 0;

	while (class_bytes(class) < room)
		class ++;
	return class;
}

static int insert(struct cache *cache, const struct cache_key *key, unsigned class, void *data, struct cache_ref **ret)
{
	struct cache_ref *ref = calloc(1, sizeof(*ref));

	if (!ref) {
		give_back(cache, data, class);
		return -ENOMEM;
	}
	ref->key = *key;
	ref->class = class;
	ref->data = data;
	ref->pins = 1;
	ref->next_hash = *bucket(cache, key);
	*bucket(cache, key) = ref;
	*ret = ref;
	return 0;
}

static void count(struct cache *cache, unsigned flags, bool hit)
{
	if (!(flags & (CACHE_COLD | CACHE_AHEAD)))
		stats_add(hit ? &cache->stats->cache_hits : &cache->stats->cache_misses, 1);
}

int cache_get(struct cache *cache, const struct cache_key *key, uint32_t room, unsigned flags, cache_load_fn *load,
	      void *ctx, struct cache_ref **ret)
{
	struct cache_ref *ref;
	void *data = NULL;
	int err;

	if (room == 0 || room > THAW_CHUNK_MAX)
		return -EINVAL;
	LOCK_GUARD(&cache->lock);
	for (;;) {
		ref = find(cache, key);
		if (ref)
			break;
		err = take_buffer(cache, class_of(room), &data);
		if (!err)
			break;
		if (err != -EAGAIN || flags & CACHE_NOWAIT)
			return err;
		cache->waiting++;
		pthread_cond_wait(&cache->room, &cache->lock);
		cache->waiting--;
	}
	count(cache, flags, ref != NULL);
	if (ref) {
		ref->cold &= (flags & CACHE_COLD) != 0;
		if (ref->state == READY && !ref->pins)
			lru_remove(cache, ref);
		ref->pins++;
		err = await(cache, ref);
	} else {
		err = insert(cache, key, class_of(room), data, &ref);
		if (!err) {
			ref->cold = flags & CACHE_COLD;
			err = load_ref(cache, ref, load, ctx);
		}
	}
	if (!err)
		*ret = ref;
	return err;
}

void cache_put(struct cache *cache, struct cache_ref *ref)
{
	LOCK_GUARD(&cache->lock);
	unpin(cache, ref);
}

void cache_hold(struct cache *cache, struct cache_ref *ref)
{
	LOCK_GUARD(&cache->lock);
	assert(ref->pins > 0);
	ref->pins++;
}

bool cache_has(struct cache *cache, const struct cache_key *key)
{
	const struct cache_ref *ref;

	LOCK_GUARD(&cache->lock);
	ref = find(cache, key);
	return ref && ref->state == READY;
}

unsigned cache_ask(struct cache_ref *ref)
{
	return atomic_fetch_add_explicit(&ref->asked, 1, memory_order_relaxed) + 1;
}

const void *cache_data(const struct cache_ref *ref)
{
	return ref->data;
}

uint32_t cache_len(const struct cache_ref *ref)
{
	return ref->len;
}

void cache_free(struct cache *cache)
{
	if (!cache)
		return;
	while (evict(cache))
		;
	for (unsigned c = 0; c < CLASSES; c++)
		while (cache->spares[c]) {
			struct spare *spare = cache->spares[c];

			cache->spares[c] = spare->next;
			munmap(spare, class_bytes(c));
		}
	pthread_mutex_destroy(&cache->lock);
	pthread_cond_destroy(&cache->room);
	for (int i = 0; i < WAKEUPS; i++)
		pthread_cond_destroy(&cache->loaded[i]);
	free(cache->buckets);
	free(cache);
}
