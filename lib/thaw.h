/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libthaw: for programs whose state is files, and whose checkpoints are a series of thawfs images (thawfs-snap(1)).
 *
 *     struct thaw_state *st;
 *     struct thaw_map slab;
 *     if (thaw_open("/scratch/store", "state", 0, &st) == 0 && thaw_map(st, "slab0017", 0, &slab) == 0)
 *             … slab.addr, slab.len
 *     thaw_release(&slab);
 *     thaw_close(st);
 *
 * Functions return 0 or a negative errno: -EBADMSG the image is damaged, -ENOENT there is no such series, image or
 * file, -ENOMEM, -EIO and what else the system says. Errors of images are also said on standard error, in one line.
 * What a mapping shows is right or is not there: data is checked against its hash before thaw_map() returns, or, on a
 * mount, by the mount, where a damaged chunk is SIGBUS.
 *
 * Threads may share a state, except for thaw_close(). One thread for each struct thaw_map. Link with -lthaw -lzstd
 * -lxxhash -llz4 -lcjson -lz -lpthread -lm.
 */
#ifndef THAW_H
#define THAW_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct thaw_state;

/*
 * thaw_open - the newest complete image of a series, or one by its number
 * @store:     directory of the store, or a mount of it ("thawfs mount STORE DIR")
 * @sequence:  0: the newest
 * Return: 0; -ENOENT; -errno. The state is to be closed by thaw_close(), after all its mappings were released.
 */
int thaw_open(const char *store, const char *name, uint64_t sequence, struct thaw_state **ret);
uint64_t thaw_sequence(const struct thaw_state *state);
/* NULL is fine */
void thaw_close(struct thaw_state *state);

struct thaw_map {
	void *addr; /* page-aligned; NULL for an empty file */
	size_t len; /* bytes of the file; the mapping goes on with zeros to the end of the page */
	int lazy;   /* it is a mapping of a file on a mount */
};

enum thaw_map_flags {
	THAW_MAP_READONLY = 1 << 0, /* else stores go to this process alone */
};

/*
 * thaw_map - a file of the state as memory
 * @path:  relative to the root of the image
 * From a store: private memory, filled by as many threads as there are processors before this returns. Zeros that
 * the image does not store are not touched: the memory comes to where it is first used (first-touch NUMA placement).
 * From a mount: a mapping of the file (MAP_PRIVATE), read when it is touched.
 * Return: 0; -ENOENT; -EISDIR; -EBADMSG; -errno. thaw_release() is to be called only after 0.
 */
int thaw_map(struct thaw_state *state, const char *path, unsigned flags, struct thaw_map *ret);

/*
 * thaw_prefetch - have bytes [off, off + len) of a mapping in memory, by @threads threads (0: as many as processors)
 * What thaw_map() filled is there already, except for zeros. Return: 0; -EIO; -EFAULT not inside the mapping
 */
int thaw_prefetch(const struct thaw_map *map, size_t off, size_t len, unsigned threads);

/* give a mapping back, as thaw_unmap() does; an empty one is fine */
void thaw_release(struct thaw_map *map);

/* -- letting go of large mappings --------------------------------------------------------------- */

enum thaw_unmap_flags {
	THAW_UNMAP_BACKGROUND = 1 << 0, /* return at once: a thread does it; see thaw_unmap_wait() */
};

struct thaw_range {
	void *addr; /* as mmap(2) returned it */
	size_t len;
};

/*
 * thaw_unmap - munmap(2) for large mappings, by @threads threads (0: as many as processors, at most 16)
 * A mapping is unmapped in slices, several mappings at a time. The pages of a shared file whose name is gone are freed
 * by the system when its last mapping goes, by one thread a file: so many files go faster than a large one. The memory
 * must not be used any more, and must not be mapped anew before it is done. With THAW_UNMAP_BACKGROUND @ranges is
 * copied. Return: 0; -EINVAL; -ENOMEM. Where no thread can be started the calling one does the work.
 */
int thaw_unmap(const struct thaw_range *ranges, size_t n, unsigned threads, unsigned flags);

/* wait until everything is unmapped that THAW_UNMAP_BACKGROUND left to threads */
void thaw_unmap_wait(void);

#ifdef __cplusplus
}
#endif

#endif
