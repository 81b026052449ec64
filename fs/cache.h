/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decoded chunks, shared by all readers of a worker and by all images that reference the same stored chunk.
 *
 * One decode for many readers: the first that asks for a chunk loads it, the others wait for that. A chunk in
 * use is pinned; what is not pinned is given up in least-recently-used order when room is needed. Memory is bounded
 * by the limit, buffers in use and spare ones together; buffers are reused, not returned, so a decode meets
 * resident pages. A failed load is not remembered: those who waited for it share the error, the next caller tries anew.
 *
 * Thread model: one lock, never held while loading. A caller that holds a pin must not wait for another
 * buffer (CACHE_NOWAIT), or two such callers could wait for each other for ever.
 */
#ifndef THAW_FS_CACHE_H
#define THAW_FS_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fs/stats.h"

struct cache;
struct cache_ref; /* a pinned chunk */

/* where a chunk is really stored (image_chunk_resolve) */
struct cache_key {
	uint8_t id[16];
	uint32_t chunk;
};

enum cache_flags {
	CACHE_NOWAIT = 1 << 0, /* -EAGAIN instead of waiting for a buffer */
	CACHE_AHEAD = 1 << 1,  /* nobody asked for it yet: not counted as hit or miss */
	CACHE_COLD = 1 << 2,   /* nobody will ask for it soon: the first to be given up, unless a reader took it */
};

/*
 * Decode into @buf, which has @room bytes. Called without locks, by the thread that called cache_get().
 * @ret_len: bytes that are valid. Return: 0, -errno
 */
typedef int cache_load_fn(void *ctx, void *buf, uint32_t *ret_len);

#define CACHE_MIN ((uint64_t)32 << 20)

/* @limit: bytes, at least CACHE_MIN */
int cache_new(uint64_t limit, struct stats *stats, struct cache **ret);
/* NULL is fine; nothing may be pinned */
void cache_free(struct cache *cache);

/*
 * cache_get - the decoded chunk, pinned until cache_put()
 * @room:  bytes its buffer needs: the chunk size of the image that stores it, at most THAW_CHUNK_MAX
 * Return: 0; -EAGAIN (only with CACHE_NOWAIT); -ENOMEM; the error of the load
 */
int cache_get(struct cache *cache, const struct cache_key *key, uint32_t room, unsigned flags, cache_load_fn *load,
	      void *ctx, struct cache_ref **ret);
void cache_put(struct cache *cache, struct cache_ref *ref);
/* pin once more */
void cache_hold(struct cache *cache, struct cache_ref *ref);

/* is it there, decoded? without pinning or counting */
bool cache_has(struct cache *cache, const struct cache_key *key);

/* one more reader asked for a small part of it. Return: how many have, as long as it has been decoded */
unsigned cache_ask(struct cache_ref *ref);

const void *cache_data(const struct cache_ref *ref);
uint32_t cache_len(const struct cache_ref *ref);

#endif
