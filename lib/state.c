/* SPDX-License-Identifier: Apache-2.0 */
/* Thread model: the threads that fill or prefetch a mapping take pieces of it by an atomic counter, and are joined. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/bytes.h"
#include "common/cleanup.h"
#include "common/log.h"
#include "imgfmt/image.h"
#include "imgfmt/series.h"
#include "lib/thaw.h"

#define PIECE       (4ull << 20) /* of a file, for one thread: whole chunks of every size */
#define MAX_THREADS 64

struct thaw_state {
	struct image *img; /* NULL: on a mount */
	int dir;           /* on a mount: the image's directory */
	uint64_t sequence;
};

/* -- opening ---------------------------------------------------------------------------------- */

static int open_from_store(struct thaw_state *st, const char *store, const char *name)
{
	_cleanup_free_ char *file = NULL, *path = NULL;
	struct series_list list = { 0 };
	int r = 0;

	if (!st->sequence) {
		const struct series_file *newest;

		r = series_scan(store, name, SERIES_ONLY, NULL, &list);
		newest = r ? NULL : series_newest(&list, name);
		if (newest)
			st->sequence = newest->sequence;
		series_release(&list);
		if (!r && !newest)
			r = -ENOENT;
	}
	if (r)
		return r;
	file = series_format(name, st->sequence);
	if (!file || asprintf(&path, "%s/%s", store, file) < 0) {
		path = NULL;
		return -ENOMEM;
	}
	if (access(path, F_OK))
		return -errno;
	return image_open(path, NULL, &st->img);
}

/* MNT/NAME-latest leads to NAME-<sequence> */
static int open_from_mount(struct thaw_state *st, const char *mnt, const char *name)
{
	char path[PATH_MAX], target[NAME_MAX + 8];
	uint64_t sequence;
	size_t len;
	ssize_t n;

	if (!st->sequence) {
		snprintf(path, sizeof(path), "%s/%s-latest", mnt, name);
		n = readlink(path, target, NAME_MAX);
		if (n < 0)
			return -errno;
		strcpy(target + n, ".thaw");
		if (!series_parse(target, &len, &sequence))
			return -ENOENT;
		st->sequence = sequence;
	}
	snprintf(path, sizeof(path), "%s/%s-%06" PRIu64, mnt, name, st->sequence);
	st->dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return st->dir < 0 ? -errno : 0;
}

int thaw_open(const char *store, const char *name, uint64_t sequence, struct thaw_state **ret)
{
	_cleanup_free_ char *hidden = NULL;
	struct thaw_state *st;
	int r;

	if (!series_good_name(name))
		return -EINVAL;
	if (asprintf(&hidden, "%s/.thawfs/by-id", store) < 0) {
		hidden = NULL;
		return -ENOMEM;
	}
	st = calloc(1, sizeof(*st));
	if (!st)
		return -ENOMEM;
	st->dir = -1;
	st->sequence = sequence;
	r = access(hidden, F_OK) ? open_from_store(st, store, name) : open_from_mount(st, store, name);
	if (r) {
		thaw_close(st);
		return r;
	}
	*ret = st;
	return 0;
}

uint64_t thaw_sequence(const struct thaw_state *state)
{
	return state->sequence;
}

void thaw_close(struct thaw_state *state)
{
	if (!state)
		return;
	image_close(state->img);
	if (state->dir >= 0)
		close(state->dir);
	free(state);
}

/* -- threads ---------------------------------------------------------------------------------- */

/* work on [off, off + len) in pieces */
struct pieces {
	int (*work)(struct pieces *p, uint64_t off, uint64_t len, struct chunk_ctx *ctx);
	struct image *img;
	uint32_t ino;
	uint8_t *addr;
	uint64_t off, len;
	atomic_ullong next;
	atomic_int error;
};

static void *work_on_pieces(void *arg)
{
	struct pieces *p = arg;
	struct chunk_ctx *ctx = p->img ? chunk_ctx_new() : NULL;
	int none = 0;

	if (p->img && !ctx)
		atomic_compare_exchange_strong(&p->error, &none, -ENOMEM);
	while (!atomic_load(&p->error)) {
		uint64_t at = atomic_fetch_add(&p->next, 1) * PIECE;
		int r;

		if (at >= p->len)
			break;
		r = p->work(p, p->off + at, min_u64(PIECE, p->len - at), ctx);
		none = 0;
		if (r)
			atomic_compare_exchange_strong(&p->error, &none, r);
	}
	chunk_ctx_free(ctx);
	return NULL;
}

static int run_pieces(struct pieces *p, unsigned threads)
{
	pthread_t others[MAX_THREADS];
	cpu_set_t set;
	unsigned n = 0;

	if (!threads)
		threads = sched_getaffinity(0, sizeof(set), &set) ? 1 : (unsigned)CPU_COUNT(&set);
	if (threads > MAX_THREADS)
		threads = MAX_THREADS;
	while (n + 1 < threads && n + 1 < p->len / PIECE && pthread_create(&others[n], NULL, work_on_pieces, p) == 0)
		n++;
	work_on_pieces(p);
	while (n)
		pthread_join(others[--n], NULL);
	return atomic_load(&p->error);
}

/* -- mapping ---------------------------------------------------------------------------------- */

/* what is not a hole; the rest is zero already, and untouched */
static int fill(struct pieces *p, uint64_t off, uint64_t len, struct chunk_ctx *ctx)
{
	for (uint64_t end = off + len; off < end;) {
		struct image_run run;
		int r = image_map(p->img, p->ino, off, &run);

		if (r)
			return r;
		run.len = min_u64(run.len, end - off);
		if (run.kind != RUN_HOLE)
			r = image_read(p->img, ctx, p->ino, off, p->addr + off, run.len);
		if (r) {
			log_error("cannot read '%s': %s", image_path(p->img), chunk_ctx_error(ctx));
			return r;
		}
		off += run.len;
	}
	return 0;
}

static int map_image(const struct thaw_state *st, const char *path, struct thaw_map *map)
{
	struct image_inode inode;
	struct pieces p = { .work = fill, .img = st->img };
	int r = image_walk(st->img, path, &p.ino);

	if (!r)
		r = image_inode(st->img, p.ino, &inode);
	if (!r && !S_ISREG(inode.mode))
		r = S_ISDIR(inode.mode) ? -EISDIR : -EINVAL;
	if (!r && inode.size > SIZE_MAX / 2)
		r = -EFBIG;
	if (r || !inode.size)
		return r;
	map->len = inode.size;
	map->addr = mmap(NULL, map->len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (map->addr == MAP_FAILED)
		return -errno;
	p.addr = map->addr;
	p.len = inode.size;
	r = run_pieces(&p, 0);
	if (r)
		munmap(map->addr, map->len);
	return r;
}

static int map_mounted(const struct thaw_state *st, const char *path, struct thaw_map *map)
{
	_cleanup_close_ int fd = openat(st->dir, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	struct stat sb;

	if (fd < 0 || fstat(fd, &sb))
		return -errno;
	if (!S_ISREG(sb.st_mode))
		return S_ISDIR(sb.st_mode) ? -EISDIR : -EINVAL;
	if (!sb.st_size)
		return 0;
	map->len = (size_t)sb.st_size;
	map->lazy = 1;
	map->addr = mmap(NULL, map->len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd, 0);
	return map->addr == MAP_FAILED ? -errno : 0;
}

int thaw_map(struct thaw_state *state, const char *path, unsigned flags, struct thaw_map *ret)
{
	struct thaw_map map = { 0 };
	int r = state->img ? map_image(state, path, &map) : map_mounted(state, path, &map);

	if (r)
		return r;
	if (map.addr && (flags & THAW_MAP_READONLY) && mprotect(map.addr, map.len, PROT_READ)) {
		r = -errno;
		munmap(map.addr, map.len);
		return r;
	}
	*ret = map;
	return 0;
}

static int populate(struct pieces *p, uint64_t off, uint64_t len, struct chunk_ctx *ctx)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), from = align_down(off, page);

	(void)ctx;
	return madvise(p->addr + from, off + len - from, MADV_POPULATE_READ) ? -errno : 0;
}

int thaw_prefetch(const struct thaw_map *map, size_t off, size_t len, unsigned threads)
{
	struct pieces p = { .work = populate, .addr = map->addr, .off = off, .len = len };

	if (!range_inside(off, len, map->len))
		return -EFAULT;
	return map->lazy && len ? run_pieces(&p, threads) : 0;
}

void thaw_release(struct thaw_map *map)
{
	const struct thaw_range range = { map->addr, map->len };

	if (map->addr)
		thaw_unmap(&range, 1, 0, 0);
	*map = (struct thaw_map){ 0 };
}
