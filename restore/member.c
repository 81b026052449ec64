/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Thread model: the caller's thread and helpers take pieces of the file by an atomic counter, each with its own
 * decoder and chunk; the first error stops all. What lies behind a piece's border in the same chunk is decoded twice.
 */
#include "restore/member.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/bytes.h"
#include "common/cleanup.h"
#include "common/io.h"
#include "common/log.h"

#define PIECE       (16ull << 20)
#define MAX_THREADS 64u

struct job {
	struct image *img;
	uint32_t ino;
	uint64_t size;
	const struct member_range *leave;
	size_t n_leave;
	int fd;
	_Atomic uint64_t next; /* piece */
	_Atomic int err;       /* the first */
};

/* one thread's decoder and the chunk it decoded last */
struct decoder {
	struct chunk_ctx *ctx;
	uint8_t *buf;
	size_t room;
	struct image *img;
	uint32_t chunk, len;
};

static int decode(struct job *job, struct decoder *d, const struct image_run *run)
{
	size_t want = image_info(run->img)->chunk_size;
	int err;

	if (d->img == run->img && d->chunk == run->chunk)
		return 0;
	d->img = NULL;
	if (d->room < want) {
		free(d->buf);
		d->room = 0;
		d->buf = malloc(want);
		if (!d->buf)
			return -ENOMEM;
		d->room = want;
	}
	err = image_chunk_read(run->img, d->ctx, run->chunk, d->buf, &d->len);
	if (err) {
		log_error("cannot read '%s': the file's offset %" PRIu64 ": %s", image_path(job->img), run->off,
			  chunk_ctx_error(d->ctx));
		return err;
	}
	d->img = run->img;
	d->chunk = run->chunk;
	return 0;
}

static int write_run(struct job *job, struct decoder *d, const struct image_run *run, uint64_t len)
{
	int err = decode(job, d, run);

	if (err)
		return err;
	if (!range_inside(run->chunk_off, len, d->len))
		return -EBADMSG;
	return io_write_at(job->fd, d->buf + run->chunk_off, len, run->off);
}

/* the first range left out that ends after @off; NULL: none */
static const struct member_range *left_out(const struct job *job, uint64_t off)
{
	size_t lo = 0, hi = job->n_leave;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (job->leave[mid].off + job->leave[mid].len <= off)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo < job->n_leave ? &job->leave[lo] : NULL;
}

static int write_piece(struct job *job, struct decoder *d, uint64_t off, uint64_t end)
{
	int err = 0;

	while (!err && off < end) {
		const struct member_range *leave = left_out(job, off);
		struct image_run run;
		uint64_t len;

		if (leave && leave->off <= off) {
			off = leave->off + leave->len;
			continue;
		}
		err = image_map(job->img, job->ino, off, &run);
		if (err)
			return err;
		len = min_u64(run.len, end - off);
		if (leave)
			len = min_u64(len, leave->off - off);
		if (run.kind == RUN_ABSENT)
			err = -ENODATA;
		else if (run.kind == RUN_DATA)
			err = write_run(job, d, &run, len);
		off += len;
	}
	return err;
}

static void *work(void *arg)
{
	struct job *job = arg;
	struct decoder d = { .ctx = chunk_ctx_new() };
	int err = d.ctx ? 0 : -ENOMEM;

	while (!err && !job->err) {
		uint64_t off = atomic_fetch_add(&job->next, 1) * PIECE;

		if (off >= job->size)
			break;
		err = write_piece(job, &d, off, min_u64(off + PIECE, job->size));
	}
	if (err) {
		int none = 0;

		atomic_compare_exchange_strong(&job->err, &none, err);
	}
	chunk_ctx_free(d.ctx);
	free(d.buf);
	return NULL;
}

static void run_threads(struct job *job, unsigned threads)
{
	pthread_t helpers[MAX_THREADS];
	unsigned n = 0;
	long processors = sysconf(_SC_NPROCESSORS_ONLN);

	if (!threads)
		threads = processors > 0 ? (unsigned)processors : 1;
	threads = (unsigned)min_u64(min_u64(threads, MAX_THREADS), job->size / PIECE + 1);
	/* fewer helpers are no error */
	while (n + 1 < threads && pthread_create(&helpers[n], NULL, work, job) == 0)
		n++;
	work(job);
	while (n)
		pthread_join(helpers[--n], NULL);
}

int member_to_memory(struct image *img, uint32_t ino, unsigned threads, const struct member_range *leave,
		     size_t n_leave, int *ret_fd)
{
	struct job job = { .img = img, .ino = ino, .leave = leave, .n_leave = n_leave };
	_cleanup_close_ int fd = -1;
	struct image_inode inode;
	int err = image_inode(img, ino, &inode);

	if (err)
		return err;
	if (!S_ISREG(inode.mode))
		return S_ISDIR(inode.mode) ? -EISDIR : -EINVAL;
	fd = memfd_create("thawfs-member", MFD_CLOEXEC);
	if (fd < 0 || ftruncate(fd, (off_t)inode.size) < 0)
		return -errno;
	job.fd = fd;
	job.size = inode.size;
	run_threads(&job, threads);
	if (job.err)
		return job.err;
	*ret_fd = steal_fd(&fd);
	return 0;
}
