/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loading: map of GPUs → kinds and room → addresses → memory → bytes → published. Thread model: a thread for the whole
 * call, one for each GPU that has a pipe of its own, and that pipe's workers.
 */
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "common/bytes.h"
#include "common/cleanup.h"
#include "common/log.h"
#include "common/stop.h"
#include "restore/gpu_client.h"
#include "restore/gpu_fill.h"
#include "restore/gpu_image.h"
#include "restore/gpu_private.h"
#include "restore/gpu_source.h"

/* a buffer on its way */
struct item {
	const struct gpu_buffer *record;
	struct target *target;
	uint32_t file; /* of the source */
	uint64_t size; /* of the memory: whole granules */
	uint64_t addr, handle;
	bool reserved, created, mapped, plain;
};

/* a GPU that gets some of them */
struct target {
	struct load *load;
	struct gpu *gpu;
	const struct gpu_info *wanted; /* as the manifest describes it */
	struct gpu_pipe *pipe;
	size_t *items; /* indices, in the order they are copied */
	size_t n_items;
	uint64_t bytes; /* of memory */
	unsigned first_thread, n_threads;
	pthread_t thread;
	bool started;
	int error;
	char error_text[320];
	/* what is being copied */
	size_t at;
	uint64_t off;
	XXH3_state_t *hash;
	struct gpu_profile profile, back_profile;
};

struct load {
	struct thaw_gpu_loaded loaded; /* first: what the caller has is this */
	struct thaw_gpu_load_opts opts;
	struct gpu_manifest manifest;
	struct gpu_source *source;
	pthread_mutex_t source_lock; /* over gpu_source_run() */
	struct target *targets;      /* one for each GPU of the manifest */
	struct item *items;
	struct thaw_gpu_loaded_buffer *results;
	volatile int stop; /* some GPU failed */
	const char *path;
	unsigned n_threads;
};

/* -- before anything is written ------------------------------------------------------------------------- */

static const uint8_t *mapped_uuid(const struct load *l, const uint8_t from[16])
{
	if (!l->opts.n_map)
		return from;
	for (size_t i = 0; i < l->opts.n_map; i++) {
		if (!memcmp(l->opts.map[i].from, from, 16))
			return l->opts.map[i].to;
	}
	return NULL;
}

static int find_gpu(struct load *l, const struct gpu_info *wanted, unsigned *ret)
{
	const uint8_t *uuid = mapped_uuid(l, wanted->uuid);
	char text[GPU_UUID_TEXT];
	const struct gpu_info *is;
	int ordinal;

	if (!uuid)
		return gpu_fail(-ENODEV, "cannot load: the map of GPUs does not name %s",
				gpu_uuid_text(wanted->uuid, text));
	ordinal = gpu_find(l->loaded.drv, uuid);
	if (ordinal < 0)
		return gpu_fail(-ENODEV, "cannot load: there is no %s here", gpu_uuid_text(uuid, text));
	is = gpu_device(l->loaded.drv, (unsigned)ordinal);
	if (!l->opts.other_chip &&
	    (strcmp(is->name, wanted->name) != 0 || is->major != wanted->major || is->minor != wanted->minor))
		return gpu_fail(-ENODEV, "cannot load: GPU %d is '%s' (%u.%u), the buffers are of '%s' (%u.%u)",
				ordinal, is->name, is->major, is->minor, wanted->name, wanted->major, wanted->minor);
	*ret = (unsigned)ordinal;
	return 0;
}

static int open_targets(struct load *l)
{
	size_t n = l->manifest.n_gpus;

	l->targets = calloc(n + 1, sizeof(*l->targets));
	if (!l->targets)
		return gpu_fail(-ENOMEM, "out of memory");
	assert(l->manifest.gpus || !n);
	for (size_t i = 0; i < n; i++) {
		struct target *t = &l->targets[i];
		unsigned ordinal = 0;
		int r = find_gpu(l, &l->manifest.gpus[i], &ordinal);

		for (size_t k = 0; k < i && !r; k++) {
			if (gpu_info(l->targets[k].gpu)->ordinal == ordinal)
				r = gpu_fail(-EINVAL, "cannot load: two GPUs are mapped to GPU %u", ordinal);
		}
		if (!r)
			r = gpu_open(l->loaded.drv, ordinal, &t->gpu);
		if (r)
			return r;
		t->load = l;
		t->wanted = &l->manifest.gpus[i];
	}
	return 0;
}

/* sizes in whole granules of the GPU that it comes to, and the file it is in */
static int plan_item(struct load *l, struct item *it, const struct gpu_buffer *b)
{
	struct target *t = &l->targets[b->gpu];
	uint64_t granularity = gpu_granularity(t->gpu), want = max_u64(b->mapped_size, b->size), size;
	int r;

	it->record = b;
	it->target = t;
	if (b->shared_with || (b->access & ~(1ull << b->gpu)))
		return gpu_fail(-EOPNOTSUPP, "cannot load '%s': it is memory that is shared between buffers or GPUs",
				b->id);
	it->plain = b->kind == GPU_PLAIN && !l->opts.exportable;
	if (want > INT64_MAX - granularity)
		return gpu_fail(-EBADMSG, "cannot load '%s': a size of %llu bytes", b->id, (unsigned long long)want);
	it->size = align_up(want, granularity);
	if (!b->size)
		it->size = 0;
	if (!l->opts.anywhere && b->kind == GPU_VMM && it->size && b->va % granularity)
		return gpu_fail(-EADDRINUSE, "cannot load '%s': address 0x%llx is not possible on GPU %u", b->id,
				(unsigned long long)b->va, gpu_info(t->gpu)->ordinal);
	r = gpu_source_find(l->source, b->file, &it->file, &size);
	if (!r && !b->discardable && !range_inside(b->offset, b->size, size))
		r = gpu_fail(-EBADMSG, "cannot load '%s': '%s' has only %llu bytes", b->id, b->file,
			     (unsigned long long)size);
	if (r)
		return r;
	if (add_overflows(t->bytes, it->size, &t->bytes))
		return gpu_fail(-ENOMEM, "cannot load '%s': no GPU has so much memory", b->id);
	t->n_items++;
	return 0;
}

static int plan(struct load *l)
{
	size_t n = l->manifest.n_buffers;
	int r = 0;

	l->items = calloc(n + 1, sizeof(*l->items));
	l->results = calloc(n + 1, sizeof(*l->results));
	if (!l->items || !l->results)
		return gpu_fail(-ENOMEM, "out of memory");
	for (size_t i = 0; i < n && !r; i++)
		r = plan_item(l, &l->items[i], &l->manifest.buffers[i]);
	for (size_t g = 0; g < l->manifest.n_gpus && !r; g++) {
		struct target *t = &l->targets[g];

		t->items = calloc(t->n_items + 1, sizeof(*t->items));
		t->n_items = 0;
		if (!t->items)
			return gpu_fail(-ENOMEM, "out of memory");
	}
	for (size_t i = 0; i < n && !r; i++) {
		struct target *t = l->items[i].target;

		assert(t->items);
		t->items[t->n_items++] = i;
	}
	return r;
}

static int check_room(struct load *l)
{
	for (size_t g = 0; g < l->manifest.n_gpus; g++) {
		struct target *t = &l->targets[g];
		uint64_t free_bytes, total;
		int r = gpu_free_bytes(t->gpu, &free_bytes, &total);

		if (r)
			return r;
		if (t->bytes > free_bytes)
			return gpu_fail(-ENOMEM, "cannot load: GPU %u has %llu of %llu bytes free, %llu are needed",
					gpu_info(t->gpu)->ordinal, (unsigned long long)free_bytes,
					(unsigned long long)total, (unsigned long long)t->bytes);
	}
	return 0;
}

static int reserve_all(struct load *l)
{
	int r = 0;

	for (size_t i = 0; i < l->manifest.n_buffers && !r; i++) {
		struct item *it = &l->items[i];
		bool fixed;

		assert(it->record);
		fixed = it->record->kind == GPU_VMM && !l->opts.anywhere;

		if (it->plain || !it->size)
			continue;
		r = gpu_reserve(it->target->gpu, fixed ? it->record->va : 0, it->size, &it->addr);
		it->reserved = !r;
	}
	return r;
}

static int create_all(struct load *l)
{
	int r = 0;

	for (size_t i = 0; i < l->manifest.n_buffers && !r; i++) {
		struct item *it = &l->items[i];
		bool export = it->record->exportable || l->opts.exportable;

		if (!it->size)
			continue;
		if (it->plain) {
			r = gpu_alloc(it->target->gpu, it->record->size, &it->addr);
			it->created = !r;
			continue;
		}
		r = gpu_create(it->target->gpu, it->size, export, &it->handle);
		it->created = !r;
		if (!r)
			r = gpu_map(it->target->gpu, it->addr, it->size, it->handle);
		it->mapped = it->created && !r;
	}
	return r;
}

/* -- bytes ---------------------------------------------------------------------------------------------- */

/* the item that has bytes left, or NULL */
static struct item *current_item(struct target *t)
{
	while (t->at < t->n_items) {
		struct item *it = &t->load->items[t->items[t->at]];

		if (t->off < it->record->size)
			return it;
		t->at++;
		t->off = 0;
	}
	return NULL;
}

static int next_back(void *ctx, struct gpu_piece *ret)
{
	struct target *t = ctx;
	struct item *it = current_item(t);

	if (!it)
		return 0;
	*ret = (struct gpu_piece){
		.addr = it->addr + t->off,
		.len = min_u64(gpu_pipe_slot_bytes(t->pipe), it->record->size - t->off),
		.off = t->off,
		.item = (uint32_t)t->items[t->at],
	};
	t->off += ret->len;
	return 1;
}

static int compare_back(void *ctx, const struct gpu_piece *piece, const void *buf)
{
	struct target *t = ctx;
	const struct gpu_buffer *b = t->load->items[piece->item].record;
	XXH128_canonical_t sum;

	if (!b->has_checksum || b->discardable)
		return 0;
	if (!piece->off)
		XXH3_128bits_reset(t->hash);
	XXH3_128bits_update(t->hash, buf, piece->len);
	if (piece->off + piece->len < b->size)
		return 0;
	XXH128_canonicalFromHash(&sum, XXH3_128bits_digest(t->hash));
	if (memcmp(sum.digest, b->checksum, sizeof(b->checksum)) != 0)
		return gpu_fail(-EIO, "'%s' is not on GPU %u as it is in the image", b->id, gpu_info(t->gpu)->ordinal);
	return 0;
}

static int read_back(struct target *t)
{
	const struct gpu_feed feed = { .next = next_back, .done = compare_back, .ctx = t, .stop = &t->load->stop };

	return gpu_pipe_run(t->pipe, GPU_OUT, &feed, &t->back_profile);
}

static int fill_target(struct target *t)
{
	struct load *l = t->load;
	struct gpu_fill_item *items = calloc(t->n_items, sizeof(*items));
	struct gpu_fill fill = {
		.source = l->source,
		.source_lock = &l->source_lock,
		.items = items,
		.n_items = t->n_items,
		.first_thread = t->first_thread,
		.n_threads = t->n_threads,
		.stop = &l->stop,
		.stop_too = l->opts.stop,
	};
	int r = items ? gpu_pipe_new(t->gpu, &l->opts.pipe, &t->pipe) : gpu_fail(-ENOMEM, "out of memory");

	for (size_t i = 0; items && i < t->n_items && !r; i++) {
		const struct item *it = &l->items[t->items[i]];

		items[i] = (struct gpu_fill_item){
			.addr = it->addr,
			.size = it->record->size,
			.off = it->record->offset,
			.file = it->file,
			.zero = it->record->discardable,
		};
	}
	if (!r && !l->opts.helper)
		r = gpu_fill_run(&fill, t->pipe, &t->profile);
	if (!r && l->opts.read_back)
		r = read_back(t);
	gpu_pipe_free(t->pipe);
	t->pipe = NULL;
	free(items);
	return r;
}

static void *serve_target(void *arg)
{
	struct target *t = arg;

	t->error = fill_target(t);
	if (t->error) {
		strncpy(t->error_text, gpu_error(), sizeof(t->error_text) - 1);
		stop_ask(&t->load->stop);
	}
	return NULL;
}

static void add_up(struct gpu_profile *to, const struct gpu_profile *from)
{
	uint64_t wall = max_u64(to->wall_ns, from->wall_ns);

	gpu_profile_add(to, from);
	to->wall_ns = wall; /* side by side */
}

static int fill_all(struct load *l)
{
	unsigned n_busy = 0, thread = 0;
	int r = 0;

	for (size_t g = 0; g < l->manifest.n_gpus; g++)
		n_busy += l->targets[g].n_items > 0;
	for (size_t g = 0; g < l->manifest.n_gpus && !r; g++) {
		struct target *t = &l->targets[g];

		if (!t->n_items)
			continue;
		t->n_threads = (unsigned)max_u64(1, l->n_threads / n_busy);
		t->first_thread = thread;
		thread += t->n_threads;
		t->hash = XXH3_createState();
		r = t->hash ? -pthread_create(&t->thread, NULL, serve_target, t) : -ENOMEM;
		t->started = !r;
		if (r) {
			gpu_fail(r, "cannot start a thread: %s", strerror(-r));
			stop_ask(&l->stop);
		}
	}
	for (size_t g = 0; g < l->manifest.n_gpus; g++) {
		struct target *t = &l->targets[g];

		if (!t->started)
			continue;
		pthread_join(t->thread, NULL);
		if (l->opts.profile)
			add_up(l->opts.profile, &t->profile);
		if (l->opts.back_profile)
			add_up(l->opts.back_profile, &t->back_profile);
		/* the others were stopped because of the first */
		if (t->error && (!r || r == -ECANCELED)) {
			r = t->error;
			gpu_keep_error(t->error_text);
		}
	}
	return r;
}

/* -- a helper copies instead ------------------------------------------------------------------------------ */

static int send_items(struct load *l, struct gpu_client *c)
{
	int r = 0;

	for (size_t i = 0; i < l->manifest.n_buffers && !r; i++) {
		const struct item *it = &l->items[i];
		_cleanup_close_ int fd = -1;

		if (!it->size)
			continue;
		r = gpu_export(it->target->gpu, it->handle, &fd);
		if (!r)
			r = gpu_client_buffer(c, it->record->id, gpu_info(it->target->gpu)->uuid, it->record->size,
					      it->size, fd);
	}
	return r;
}

static int ask_helper(struct load *l)
{
	struct gpu_client *c = NULL;
	struct gpu_client_result result;
	int r = gpu_client_open(l->opts.helper, &c);

	if (!r)
		r = gpu_client_begin(c, l->path, l->opts.other_chip);
	if (!r)
		r = send_items(l, c);
	if (!r)
		r = gpu_client_go(c, l->opts.helper_timeout_ms);
	if (!r)
		r = gpu_client_wait(c, l->opts.stop, &result);
	gpu_client_close(c);
	if (!r && l->opts.profile) {
		l->opts.profile->bytes += result.bytes;
		l->opts.profile->zero_bytes += result.zero_bytes;
		l->opts.profile->wall_ns += result.wall_ns;
	}
	return r;
}

/* -- the whole -------------------------------------------------------------------------------------------- */

static int release_item(struct item *it)
{
	struct gpu *gpu = it->target ? it->target->gpu : NULL;
	int r = 0, r2;

	if (it->plain && it->created)
		return gpu_free(gpu, it->addr);
	if (it->mapped)
		r = gpu_unmap(gpu, it->addr, it->size);
	if (it->created) {
		r2 = gpu_release(gpu, it->handle);
		r = r ? r : r2;
	}
	if (it->reserved) {
		r2 = gpu_unreserve(gpu, it->addr, it->size);
		r = r ? r : r2;
	}
	return r;
}

static int release_load(struct load *l)
{
	int r = 0;

	for (size_t i = 0; l->items && i < l->manifest.n_buffers; i++) {
		int r2 = release_item(&l->items[i]);

		r = r ? r : r2;
	}
	for (size_t g = 0; l->targets && g < l->manifest.n_gpus; g++) {
		gpu_close(l->targets[g].gpu);
		free(l->targets[g].items);
		XXH3_freeState(l->targets[g].hash);
	}
	gpu_source_close(l->source);
	gpu_manifest_release(&l->manifest);
	pthread_mutex_destroy(&l->source_lock);
	free(l->targets);
	free(l->items);
	free(l->results);
	free(l);
	return r;
}

static void publish(struct load *l)
{
	for (size_t i = 0; i < l->manifest.n_buffers; i++) {
		const struct item *it = &l->items[i];

		l->results[i] = (struct thaw_gpu_loaded_buffer){
			.id = it->record->id,
			.ordinal = gpu_info(it->target->gpu)->ordinal,
			.addr = it->addr,
			.size = it->record->size,
			.mapped_size = it->size,
			.handle = it->handle,
		};
	}
	l->loaded.buffers = l->results;
	l->loaded.n_buffers = l->manifest.n_buffers;
	gpu_source_close(l->source);
	l->source = NULL;
}

/* the manifest and source are there */
static int load_all(struct load *l)
{
	int r = open_targets(l);

	if (!r)
		r = plan(l);
	if (!r)
		r = check_room(l);
	if (!r)
		r = reserve_all(l);
	if (!r)
		r = create_all(l);
	if (!r && stop_asked(l->opts.stop))
		r = gpu_fail(-ECANCELED, "given up");
	if (!r && l->opts.helper)
		r = ask_helper(l);
	/* what a helper did is only to be looked at */
	if (!r && (!l->opts.helper || l->opts.read_back))
		r = fill_all(l);
	if (!r)
		publish(l);
	return r;
}

static int read_manifest(struct load *l)
{
	_cleanup_free_ char *text = NULL;
	size_t len = 0;
	int r = gpu_source_manifest(l->source, &text, &len);

	return r ? r : gpu_manifest_parse(l->path, text, len, &l->manifest);
}

static unsigned count_threads(unsigned asked, size_t n_gpus)
{
	cpu_set_t set;
	unsigned n = asked;

	if (!n && !sched_getaffinity(0, sizeof(set), &set))
		n = (unsigned)CPU_COUNT(&set);
	/* the driver and whatever restores the CPU's side want some too */
	if (!asked && n > 4)
		n -= 2;
	return (unsigned)max_u64(n, max_u64(n_gpus, 1));
}

struct request {
	struct gpu_driver *drv;
	const char *path;
	const char *const *paths;
	size_t n_paths;
	unsigned ordinal;
	enum gpu_kind kind;
	const struct thaw_gpu_load_opts *opts;
	struct load *load;
};

/* records for files that are none of an image */
static int describe_files(struct load *l, const struct request *q)
{
	const struct gpu_info *info = gpu_device(q->drv, q->ordinal);
	int r = gpu_manifest_add_gpu(&l->manifest, info);

	for (size_t i = 0; i < q->n_paths && r >= 0; i++) {
		const char *slash = strrchr(q->paths[i], '/'), *id = slash ? slash + 1 : q->paths[i];
		struct gpu_buffer *b;
		uint32_t number;

		if (!gpu_id_good(id))
			return gpu_fail(-EINVAL,
					"cannot use '%s': its name is not 1 to %u letters, digits, '.', '_' or '-'",
					q->paths[i], GPU_ID_MAX);
		b = gpu_manifest_add(&l->manifest);
		if (!b)
			return gpu_fail(-ENOMEM, "out of memory");
		b->id = strdup(id);
		b->file = strdup(q->paths[i]);
		b->kind = q->kind;
		if (!b->id || !b->file)
			return gpu_fail(-ENOMEM, "out of memory");
		r = gpu_source_find(l->source, b->file, &number, &b->size);
	}
	return r < 0 ? r : 0;
}

static int answer(void *arg)
{
	struct request *q = arg;
	struct load *l = calloc(1, sizeof(*l));
	int r;

	if (!l)
		return gpu_fail(-ENOMEM, "out of memory");
	pthread_mutex_init(&l->source_lock, NULL);
	l->loaded.drv = q->drv;
	if (q->opts)
		l->opts = *q->opts;
	/* a helper imports the memory */
	l->opts.exportable |= l->opts.helper != NULL;
	l->path = q->path ? q->path : ".";
	/* a GPU takes at least one thread, and how many there are is in the manifest */
	l->n_threads = count_threads(l->opts.threads, gpu_count(q->drv));
	if (q->path)
		r = gpu_source_open(q->path, l->opts.base_path, l->n_threads, &l->source);
	else
		r = gpu_source_open_files(l->n_threads, &l->source);
	if (!r && q->path)
		r = read_manifest(l);
	else if (!r) {
		/* new memory has no address to go back to */
		l->opts.anywhere = true;
		r = describe_files(l, q);
	}
	if (!r)
		r = load_all(l);
	if (r) {
		release_load(l);
		return r;
	}
	q->load = l;
	return 0;
}

static int request(struct request *q, struct thaw_gpu_loaded **ret)
{
	int r = gpu_in_thread(answer, q);

	if (!r)
		*ret = &q->load->loaded;
	return r;
}

int thaw_gpu_load(struct gpu_driver *drv, const char *path, const struct thaw_gpu_load_opts *opts,
		  struct thaw_gpu_loaded **ret)
{
	struct request q = { .drv = drv, .path = path, .opts = opts };

	return request(&q, ret);
}

int thaw_gpu_load_files(struct gpu_driver *drv, const char *const *paths, size_t n_paths, unsigned ordinal,
			enum gpu_kind kind, const struct thaw_gpu_load_opts *opts, struct thaw_gpu_loaded **ret)
{
	struct request q = {
		.drv = drv, .paths = paths, .n_paths = n_paths, .ordinal = ordinal, .kind = kind, .opts = opts
	};

	return request(&q, ret);
}

static int unload(void *arg)
{
	return release_load(arg);
}

int thaw_gpu_unload(struct thaw_gpu_loaded *loaded)
{
	return loaded ? gpu_in_thread(unload, loaded) : 0;
}
