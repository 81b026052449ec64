/* SPDX-License-Identifier: Apache-2.0 */
/* Thread model: threads that touch pages take pieces of the address space by a counter. */
#include "restore/gpu_resume.h"
#include "common/clock.h"
#include "common/stop.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/bytes.h"
#include "common/cleanup.h"
#include "common/log.h"
#include "gpu/manifest.h"
#include "restore/gpu_fill.h"

#define PIECE          (16ull << 20)
#define MAX_THREADS    64u
#define TOUCHES        512 /* pages in one call; the kernel takes up to 1024 */
#define MADV_MAKE_HUGE 25  /* MADV_COLLAPSE, Linux 6.1 */

struct piece {
	uint64_t addr, len;
};

struct populate {
	pid_t pid;
	int pidfd;
	struct piece *pieces;
	size_t n_pieces;
	_Atomic size_t next;
	_Atomic uint64_t bytes;
	const volatile int *stop;
};

static unsigned count_threads(unsigned asked)
{
	cpu_set_t set;
	unsigned n = asked;

	if (!n && !sched_getaffinity(0, sizeof(set), &set))
		n = (unsigned)CPU_COUNT(&set);
	return n < 1 ? 1 : n > MAX_THREADS ? MAX_THREADS : n;
}

/* -- bringing in pages ------------------------------------------------------------------------------------ */

static int add_pieces(struct populate *p, uint64_t from, uint64_t to)
{
	while (from < to) {
		struct piece *bigger = p->pieces;

		if (!(p->n_pieces & (p->n_pieces - 1)))
			bigger = reallocarray(p->pieces, p->n_pieces ? 2 * p->n_pieces : 1, sizeof(*bigger));
		if (!bigger)
			return -ENOMEM;
		p->pieces = bigger;
		bigger[p->n_pieces++] = (struct piece){ .addr = from, .len = min_u64(PIECE, to - from) };
		from += bigger[p->n_pieces - 1].len;
	}
	return 0;
}

/* private memory that can be written and is nobody's device: that is where device memory was put */
static int list_pieces(struct populate *p)
{
	char path[32], line[512];
	_cleanup_fclose_ FILE *maps = NULL;

	snprintf(path, sizeof(path), "/proc/%d/maps", (int)p->pid);
	maps = fopen(path, "re");
	if (!maps)
		return gpu_fail(errno == ENOENT ? -ESRCH : -errno, "cannot look at the memory of process %d: %s",
				(int)p->pid, strerror(errno == ENOENT ? ESRCH : errno));
	while (fgets(line, sizeof(line), maps)) {
		uint64_t from, to;
		char prot[8], name[256] = "";

		if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %7s %*s %*s %*s %255s", &from, &to, prot, name) < 3)
			continue;
		if (prot[0] != 'r' || prot[1] != 'w' || prot[3] != 'p' || !strncmp(name, "/dev/", 5))
			continue;
		if (add_pieces(p, from, to))
			return gpu_fail(-ENOMEM, "out of memory");
	}
	return 0;
}

/* one byte of each page, by the kernel: it waits for pages that come lazily, and nothing is changed */
static void touch(struct populate *p, const struct piece *piece)
{
	static const uint64_t page = 4096;
	char sink[TOUCHES];
	struct iovec there[TOUCHES], here = { .iov_base = sink };

	for (uint64_t off = 0; off < piece->len;) {
		unsigned n = 0;
		ssize_t got;

		for (; n < TOUCHES && off + n * page < piece->len; n++)
			there[n] = (struct iovec){ (void *)(uintptr_t)(piece->addr + off + n * page), 1 };
		here.iov_len = n;
		got = process_vm_readv(p->pid, &here, 1, there, n, 0);
		/* what cannot be read (poisoned, or unmapped meanwhile) is not ours to report: the driver will meet it
		 */
		off += got > 0 ? (uint64_t)got * page : page;
	}
	atomic_fetch_add(&p->bytes, piece->len);
	if (p->pidfd >= 0) {
		struct iovec whole = { (void *)(uintptr_t)piece->addr, piece->len };

		/* huge pages where they can be had: fewer entries to pin for the driver */
		syscall(SYS_process_madvise, p->pidfd, &whole, 1, MADV_MAKE_HUGE, 0);
	}
}

static void *work(void *arg)
{
	struct populate *p = arg;

	for (;;) {
		size_t i = atomic_fetch_add(&p->next, 1);

		if (i >= p->n_pieces || stop_asked(p->stop))
			return NULL;
		touch(p, &p->pieces[i]);
	}
}

int64_t gpu_resume_populate(pid_t pid, unsigned threads, const volatile int *stop)
{
	struct populate p = { .pid = pid, .stop = stop };
	pthread_t list[MAX_THREADS];
	unsigned n = count_threads(threads), started = 0;
	int r = list_pieces(&p);

	p.pidfd = r ? -1 : (int)syscall(SYS_pidfd_open, pid, 0);
	while (!r && started < n - 1 && !pthread_create(&list[started], NULL, work, &p))
		started++;
	if (!r)
		work(&p);
	for (unsigned i = 0; i < started; i++)
		pthread_join(list[i], NULL);
	if (p.pidfd >= 0)
		close(p.pidfd);
	free(p.pieces);
	return r ? r : (int64_t)atomic_load(&p.bytes);
}

/* -- without the driver's interface ------------------------------------------------------------------------- */

static int run_tool(const char *tool, const char *action, pid_t pid, const char *map)
{
	char pid_text[16];
	const char *argv[8] = { tool, "--action", action, "--pid", pid_text };
	int status, r;
	pid_t child;

	snprintf(pid_text, sizeof(pid_text), "%d", (int)pid);
	if (map && *map) {
		argv[5] = "--device-map";
		argv[6] = map;
	}
	r = -posix_spawnp(&child, tool, NULL, NULL, (char *const *)argv, environ);
	if (r)
		return gpu_fail(r == -ENOENT ? -EOPNOTSUPP : r, "cannot run '%s': %s", tool, strerror(-r));
	while (waitpid(child, &status, 0) < 0 && errno == EINTR)
		;
	if (!WIFEXITED(status) || WEXITSTATUS(status))
		return gpu_fail(-EIO, "'%s --action %s' failed for process %d", tool, action, (int)pid);
	return 0;
}

static char *map_text(const struct gpu_resume_opts *o)
{
	char *text = NULL, before[GPU_UUID_TEXT], after[GPU_UUID_TEXT];
	size_t len = 0;
	FILE *f = open_memstream(&text, &len);

	for (size_t i = 0; f && i < o->n_pairs; i++)
		fprintf(f, "%s%s=%s", i ? "," : "", gpu_uuid_text(o->pairs[i].before, before),
			gpu_uuid_text(o->pairs[i].after, after));
	if (!f || fclose(f)) {
		free(text);
		return NULL;
	}
	return text;
}

static int resume_by_tool(pid_t pid, const struct gpu_resume_opts *o)
{
	const char *tool = o->tool ? o->tool : "cuda-checkpoint";
	_cleanup_free_ char *map = map_text(o);
	int r;

	if (!map)
		return gpu_fail(-ENOMEM, "out of memory");
	if (o->storage)
		return gpu_fail(-EOPNOTSUPP, "the driver does not leave storage to others");
	r = run_tool(tool, "restore", pid, map);
	return r ? r : run_tool(tool, "unlock", pid, NULL);
}

/* -- storage that the driver leaves to us -------------------------------------------------------------------- */

struct storage {
	struct gpu_driver *drv;
	const struct gpu_resume_opts *opts;
	struct gpu_source *source;
	struct gpu_manifest manifest;
	pthread_mutex_t lock;
	unsigned threads;
};

/* the image has one buffer for each device, of the size that is asked for */
static int fill_part(struct storage *s, size_t i, const struct gpu_storage_part *part)
{
	struct gpu_buffer *b = &s->manifest.buffers[i];
	struct gpu_fill_item item = { .addr = part->addr, .size = part->size, .off = b->offset };
	struct gpu_fill fill = {
		.source = s->source,
		.source_lock = &s->lock,
		.items = &item,
		.n_items = 1,
		.n_threads = s->threads,
		.stop = s->opts->stop,
	};
	struct gpu_pipe *pipe = NULL;
	struct gpu *gpu = NULL;
	uint64_t file_size;
	int r;

	if (b->size != part->size)
		return gpu_fail(-EINVAL, "the driver wants %" PRIu64 " bytes for GPU %u, '%s' has %" PRIu64, part->size,
				part->ordinal, b->id, b->size);
	r = gpu_source_find(s->source, b->file, &item.file, &file_size);
	if (!r && !range_inside(b->offset, b->size, file_size))
		r = gpu_fail(-EBADMSG, "'%s' is cut short", b->id);
	if (!r)
		r = gpu_open(s->drv, part->ordinal, &gpu);
	if (!r)
		r = gpu_pipe_new(gpu, &s->opts->pipe, &pipe);
	if (!r)
		r = gpu_fill_run(&fill, pipe, NULL);
	gpu_pipe_free(pipe);
	gpu_close(gpu);
	return r;
}

static int fill_storage(struct storage *s, const struct gpu_storage *wanted)
{
	int r = 0;

	if (s->manifest.n_buffers != wanted->n_parts)
		return gpu_fail(-EINVAL, "the driver wants memory of %zu GPUs filled, '%s' has %zu buffers",
				wanted->n_parts, s->opts->storage, s->manifest.n_buffers);
	for (size_t i = 0; i < wanted->n_parts && !r; i++) {
		if (wanted->parts[i].size || s->manifest.buffers[i].size)
			r = fill_part(s, i, &wanted->parts[i]);
	}
	return r;
}

static int open_storage(struct storage *s)
{
	_cleanup_free_ char *text = NULL;
	size_t len = 0;
	int r = gpu_source_open(s->opts->storage, NULL, s->threads, &s->source);

	if (!r)
		r = gpu_source_manifest(s->source, &text, &len);
	return r ? r : gpu_manifest_parse(s->opts->storage, text, len, &s->manifest);
}

/* everything about the image is known to be good before the driver is asked: from then on, failing kills */
static int resume_with_storage(struct gpu_driver *drv, pid_t pid, const struct gpu_resume_opts *o, uint64_t *ret_bytes)
{
	struct storage s = { .drv = drv, .opts = o, .threads = count_threads(o->threads) };
	struct gpu_storage wanted = { 0 };
	int r, r2;

	pthread_mutex_init(&s.lock, NULL);
	r = open_storage(&s);
	if (!r)
		r = gpu_checkpoint_restore(drv, pid, o->pairs, o->n_pairs, &wanted);
	if (!r && wanted.handle) {
		r = fill_storage(&s, &wanted);
		for (size_t i = 0; i < wanted.n_parts; i++)
			*ret_bytes += wanted.parts[i].size;
		if (r) {
			log_warn("process %d is killed: its device memory could not be filled", (int)pid);
			kill(pid, SIGKILL);
		}
		r2 = gpu_checkpoint_complete(drv, &wanted);
		r = r ? r : r2;
	}
	gpu_source_close(s.source);
	gpu_manifest_release(&s.manifest);
	pthread_mutex_destroy(&s.lock);
	return r;
}

/* -- the whole ------------------------------------------------------------------------------------------------ */

static int check_state(struct gpu_driver *drv, pid_t pid)
{
	enum gpu_process_state state = GPU_RUNNING;
	int r = gpu_checkpoint_state(drv, pid, &state);

	if (!r && state != GPU_CHECKPOINTED)
		r = gpu_fail(-EBUSY, "process %d is %s, not checkpointed", (int)pid, gpu_process_state_text(state));
	return r;
}

int gpu_resume(struct gpu_driver *drv, pid_t pid, const struct gpu_resume_opts *opts, struct gpu_resume_result *ret)
{
	struct gpu_resume_result res = { 0 };
	bool able = gpu_checkpoint_able(drv);
	uint64_t start;
	int64_t bytes;
	int r = able ? check_state(drv, pid) : 0;

	if (r)
		return r;
	start = clock_ns();
	bytes = gpu_resume_populate(pid, opts->threads, opts->stop);
	if (bytes < 0)
		return (int)bytes;
	if (stop_asked(opts->stop))
		return gpu_fail(-ECANCELED, "given up");
	res.resident_bytes = (uint64_t)bytes;
	res.resident_ns = clock_ns() - start;
	start = clock_ns();
	if (!able)
		r = resume_by_tool(pid, opts);
	else if (opts->storage)
		r = resume_with_storage(drv, pid, opts, &res.storage_bytes);
	else
		r = gpu_checkpoint_restore(drv, pid, opts->pairs, opts->n_pairs, NULL);
	if (!r && able)
		r = gpu_checkpoint_unlock(drv, pid);
	res.restore_ns = clock_ns() - start;
	if (!r && ret)
		*ret = res;
	return r;
}
