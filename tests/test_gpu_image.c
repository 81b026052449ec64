/* SPDX-License-Identifier: Apache-2.0 */
/* Device buffers into an image and back, in one process: round trips, refusals, and every failure on the way. */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "common/bytes.h"
#include "common/log.h"
#include "imgfmt/image.h"
#include "restore/gpu_image.h"
#include "tests/double/use.h"

#define MAX_BUFFERS 200

static thaw_double_fn *dbl;
static char dir[] = "/tmp/thaw-gpu.XXXXXX";
static char image[64];
static char last_line[512];

static void keep_line(enum log_level level, const char *line, void *ctx)
{
	(void)level;
	(void)ctx;
	snprintf(last_line, sizeof(last_line), "%s", line);
}

static void quiet(void)
{
	log_set_sink(keep_line, NULL);
}

static void loud(void)
{
	log_set_sink(NULL, NULL);
}

/* -- buffers with known bytes ---------------------------------------------------------------------------- */

enum content { ZEROS, RANDOM, FLOATS, MIXED };

/* byte @off of buffer @i, eight at a time */
static uint64_t word(unsigned i, enum content content, uint64_t off)
{
	uint64_t x = (off / 8 + 1) * 0x9e3779b97f4a7c15u + i;
	float pair[2];

	x ^= x >> 29;
	x *= 0xbf58476d1ce4e5b9u;
	x ^= x >> 32;
	switch (content) {
	case ZEROS:
		return 0;
	case RANDOM:
		return x;
	case FLOATS:
		pair[0] = (float)(x & 0xffff) / 65536;
		pair[1] = -(float)(x >> 16 & 0xffff) / 32768;
		memcpy(&x, pair, 8);
		return x;
	default: /* in runs of 1 MiB and 64 KiB */
		return off >> 20 & 1 || off >> 16 & 1 ? 0 : x;
	}
}

struct set {
	struct gpu_driver *drv;
	struct gpu *gpu[4];
	struct gpu_pipe *pipe[4];
	unsigned n_gpus, n;
	enum content content[MAX_BUFFERS];
	struct thaw_gpu_buffer b[MAX_BUFFERS];
	uint64_t handle[MAX_BUFFERS];
	char id[MAX_BUFFERS][16];
	/* of the transfer under way */
	const struct thaw_gpu_loaded *check;
	unsigned at;
	uint64_t off;
};

static const struct gpu_pipe_opts small = { .slot_bytes = 64 << 10, .n_slots = 4, .n_streams = 2 };

static int next(void *ctx, struct gpu_piece *ret)
{
	struct set *s = ctx;

	while (s->at < s->n && s->off == s->b[s->at].size) {
		s->at++;
		s->off = 0;
	}
	if (s->at == s->n)
		return 0;
	*ret = (struct gpu_piece){
		.addr = (s->check ? s->check->buffers[s->at].addr : s->b[s->at].addr) + s->off,
		.len = min_u64(64 << 10, s->b[s->at].size - s->off),
		.off = s->off,
		.item = s->at,
	};
	s->off += ret->len;
	return 1;
}

static int fill(void *ctx, unsigned worker, const struct gpu_piece *piece, void *buf)
{
	struct set *s = ctx;

	(void)worker;
	for (uint64_t k = 0; k < piece->len; k += 8) {
		uint64_t w = word(piece->item, s->content[piece->item], piece->off + k);

		memcpy((char *)buf + k, &w, min_u64(8, piece->len - k));
	}
	return 0;
}

static int compare(void *ctx, const struct gpu_piece *piece, const void *buf)
{
	struct set *s = ctx;

	for (uint64_t k = 0; k < piece->len; k += 8) {
		uint64_t w =
			s->b[piece->item].discardable ? 0 : word(piece->item, s->content[piece->item], piece->off + k);

		CHECK_EQ(memcmp((const char *)buf + k, &w, min_u64(8, piece->len - k)), 0);
	}
	return 0;
}

/* one buffer at a time, because each has its own GPU */
static void run_each(struct set *s, enum gpu_direction direction, struct gpu_feed *feed)
{
	unsigned n = s->n;

	for (unsigned i = 0; i < n; i++) {
		unsigned ordinal = s->check ? s->check->buffers[i].ordinal : s->b[i].ordinal;

		s->at = i;
		s->off = 0;
		s->n = i + 1;
		CHECK_EQ(gpu_pipe_run(s->pipe[ordinal], direction, feed, NULL), 0);
	}
	s->n = n;
}

static void make(struct set *s, unsigned i, uint64_t size, enum content content, unsigned ordinal, bool vmm)
{
	struct thaw_gpu_buffer *b = &s->b[i];

	snprintf(s->id[i], sizeof(s->id[i]), "buffer-%u", i);
	*b = (struct thaw_gpu_buffer){ .id = s->id[i], .ordinal = ordinal, .size = size };
	s->content[i] = content;
	s->handle[i] = 0;
	if (!size)
		return;
	if (vmm) {
		b->mapped_size = align_up(size, gpu_granularity(s->gpu[ordinal]));
		CHECK_EQ(gpu_reserve(s->gpu[ordinal], 0, b->mapped_size, &b->addr), 0);
		CHECK_EQ(gpu_create(s->gpu[ordinal], b->mapped_size, false, &s->handle[i]), 0);
		CHECK_EQ(gpu_map(s->gpu[ordinal], b->addr, b->mapped_size, s->handle[i]), 0);
	} else {
		CHECK_EQ(gpu_alloc(s->gpu[ordinal], size, &b->addr), 0);
	}
}

static void open_set(struct set *s, unsigned n_gpus)
{
	/* what buffers it had stays known */
	CHECK_EQ(gpu_driver_open(&s->drv), 0);
	s->n_gpus = n_gpus;
	for (unsigned i = 0; i < n_gpus; i++) {
		CHECK_EQ(gpu_open(s->drv, i, &s->gpu[i]), 0);
		CHECK_EQ(gpu_pipe_new(s->gpu[i], &small, &s->pipe[i]), 0);
	}
}

static void fill_set(struct set *s)
{
	struct gpu_feed feed = { .next = next, .fill = fill, .ctx = s };

	s->check = NULL;
	run_each(s, GPU_IN, &feed);
}

static void free_buffers(struct set *s)
{
	for (unsigned i = 0; i < s->n; i++) {
		const struct thaw_gpu_buffer *b = &s->b[i];

		if (!b->size)
			continue;
		if (!b->mapped_size) {
			CHECK_EQ(gpu_free(s->gpu[b->ordinal], b->addr), 0);
			continue;
		}
		CHECK_EQ(gpu_unmap(s->gpu[b->ordinal], b->addr, b->mapped_size), 0);
		CHECK_EQ(gpu_release(s->gpu[b->ordinal], s->handle[i]), 0);
		CHECK_EQ(gpu_unreserve(s->gpu[b->ordinal], b->addr, b->mapped_size), 0);
	}
}

static void close_set(struct set *s)
{
	for (unsigned i = 0; i < s->n_gpus; i++) {
		gpu_pipe_free(s->pipe[i]);
		gpu_close(s->gpu[i]);
	}
	gpu_driver_close(s->drv);
	if (dbl)
		CHECK_EQ(dbl("problems", 0), 0);
}

static void compare_set(struct set *s, const struct thaw_gpu_loaded *loaded)
{
	struct gpu_feed feed = { .next = next, .done = compare, .ctx = s };

	CHECK_EQ(loaded->n_buffers, s->n);
	for (unsigned i = 0; i < s->n; i++) {
		CHECK_STR(loaded->buffers[i].id, s->id[i]);
		CHECK_EQ(loaded->buffers[i].size, s->b[i].size);
		if (s->b[i].mapped_size)
			CHECK_EQ(loaded->buffers[i].addr, s->b[i].addr);
	}
	s->check = loaded;
	run_each(s, GPU_OUT, &feed);
	s->check = NULL;
}

/* save, free, load, compare, and again with all read back */
static void round_trip(struct set *s, const struct gpu_pipe_opts *pipe)
{
	const struct thaw_gpu_save_opts save = { .no_fsync = true, .verify = true, .pipe = *pipe };
	struct thaw_gpu_load_opts load = { .threads = 3, .pipe = *pipe };
	struct thaw_gpu_loaded *loaded;
	struct pack_result res;
	uint64_t total = 0;

	fill_set(s);
	CHECK_EQ(thaw_gpu_save(s->drv, image, s->b, s->n, &save, &res), 0);
	for (unsigned i = 0; i < s->n; i++)
		total += s->b[i].size;
	CHECK_EQ(res.n_files, s->n + 1);
	CHECK(res.logical_bytes > total);
	free_buffers(s);
	CHECK_EQ(thaw_gpu_load(s->drv, image, &load, &loaded), 0);
	compare_set(s, loaded);
	CHECK_EQ(thaw_gpu_unload(loaded), 0);
	load.read_back = true;
	load.exportable = true;
	CHECK_EQ(thaw_gpu_load(s->drv, image, &load, &loaded), 0);
	compare_set(s, loaded);
	CHECK_EQ(thaw_gpu_unload(loaded), 0);
}

static void test_round_trips(void)
{
	static const uint64_t sizes[] = { 0, 1, 4095, 65536, 65537, 262144, 1 << 20, 3500001 };
	static struct set s;
	struct gpu_pipe_opts pipe = small;

	open_set(&s, 1);
	s.n = 1;
	make(&s, 0, 5000000, RANDOM, 0, true);
	round_trip(&s, &small);
	s.n = 3;
	make(&s, 0, 700000, FLOATS, 0, false);
	make(&s, 1, 9000000, MIXED, 0, true);
	make(&s, 2, 6000000, ZEROS, 0, true);
	pipe.slot_bytes = 1 << 20;
	round_trip(&s, &pipe);
	s.n = MAX_BUFFERS;
	for (unsigned i = 0; i < s.n; i++)
		make(&s, i, sizes[i % 7], (enum content)(i % 4), 0, i % 3 != 0);
	round_trip(&s, &small);
	s.n = ARRAY_SIZE(sizes);
	for (unsigned i = 0; i < s.n; i++) {
		make(&s, i, sizes[i], MIXED, 0, i % 2);
		s.b[i].discardable = i == 6;
	}
	round_trip(&s, &pipe);
	close_set(&s);
}

static void test_large(uint64_t size)
{
	static struct set s;

	open_set(&s, 1);
	s.n = 1;
	make(&s, 0, size, MIXED, 0, true);
	round_trip(&s, &(struct gpu_pipe_opts){ 0 });
	close_set(&s);
}

/* four cards; then the same ones in another order, and others */
static void test_devices(void)
{
	const struct thaw_gpu_save_opts save = { .no_fsync = true, .pipe = small };
	struct thaw_gpu_load_opts load = { .threads = 2, .pipe = small, .read_back = true };
	struct thaw_gpu_map map[4];
	struct thaw_gpu_loaded *loaded;
	static struct set s;

	dbl("devices", 4);
	open_set(&s, 4);
	s.n = 9;
	for (unsigned i = 0; i < s.n; i++)
		make(&s, i, 100000 + i, RANDOM, i * 4 / 9, true);
	round_trip(&s, &small);
	for (unsigned i = 0; i < 4; i++) {
		memcpy(map[i].from, gpu_device(s.drv, i)->uuid, 16);
		memcpy(map[i].to, gpu_device(s.drv, (i + 1) % 4)->uuid, 16);
	}
	for (unsigned i = 0; i < s.n; i++)
		make(&s, i, 100000 + i, RANDOM, i * 4 / 9, true);
	fill_set(&s);
	CHECK_EQ(thaw_gpu_save(s.drv, image, s.b, s.n, &save, NULL), 0);
	free_buffers(&s);
	close_set(&s);

	dbl("rotate", 1);
	open_set(&s, 4);
	s.n = 9;
	CHECK_EQ(thaw_gpu_load(s.drv, image, &load, &loaded), 0);
	for (unsigned i = 0; i < s.n; i++)
		CHECK_EQ(loaded->buffers[i].ordinal, (i * 4 / 9 + 3) % 4);
	compare_set(&s, loaded);
	CHECK_EQ(thaw_gpu_unload(loaded), 0);
	/* on each the buffers of its neighbour: back to the ordinals that they had */
	load.map = map;
	load.n_map = 4;
	CHECK_EQ(thaw_gpu_load(s.drv, image, &load, &loaded), 0);
	for (unsigned i = 0; i < s.n; i++)
		CHECK_EQ(loaded->buffers[i].ordinal, i * 4 / 9);
	compare_set(&s, loaded);
	CHECK_EQ(thaw_gpu_unload(loaded), 0);
	quiet();
	load.n_map = 3;
	CHECK_EQ(thaw_gpu_load(s.drv, image, &load, &loaded), -ENODEV);
	CHECK(strstr(gpu_error(), "the map of GPUs does not name"));
	load.n_map = 4;
	memcpy(map[3].to, map[2].to, 16);
	CHECK_EQ(thaw_gpu_load(s.drv, image, &load, &loaded), -EINVAL);
	CHECK(strstr(gpu_error(), "two GPUs are mapped to GPU"));
	map[3].to[0]++;
	CHECK_EQ(thaw_gpu_load(s.drv, image, &load, &loaded), -ENODEV);
	CHECK(strstr(gpu_error(), "there is no GPU-"));
	loud();
	close_set(&s);
	dbl("rotate", 0);
	dbl("devices", 1);
}

/* -- refusals ---------------------------------------------------------------------------------------------- */

static void refused(struct gpu_driver *drv, const struct thaw_gpu_load_opts *opts, int want, const char *words)
{
	struct thaw_gpu_loaded *loaded = NULL;

	quiet();
	CHECK_EQ(thaw_gpu_load(drv, image, opts, &loaded), want);
	loud();
	if (!strstr(gpu_error(), words))
		fprintf(stderr, "it said: %s\n", gpu_error());
	CHECK(strstr(gpu_error(), words));
}

static void save_some(struct set *s)
{
	const struct thaw_gpu_save_opts save = { .no_fsync = true, .pipe = small };

	s->n = 2;
	make(s, 0, 300000, RANDOM, 0, true);
	make(s, 1, 100000, FLOATS, 0, false);
	fill_set(s);
	CHECK_EQ(thaw_gpu_save(s->drv, image, s->b, s->n, &save, NULL), 0);
	free_buffers(s);
}

static void test_refusals(void)
{
	struct thaw_gpu_load_opts load = { .threads = 1, .pipe = small };
	struct thaw_gpu_loaded *loaded;
	volatile int stop = 1;
	static struct set s;
	uint64_t addr, got;

	open_set(&s, 1);
	save_some(&s);
	addr = s.b[0].addr;
	close_set(&s);
	/* another kind of card */
	dbl("chip", 1);
	open_set(&s, 1);
	refused(s.drv, &load, -ENODEV, "GPU 0 is 'Double Two' (10.0), the buffers are of 'Double One' (9.0)");
	load.other_chip = true;
	CHECK_EQ(thaw_gpu_load(s.drv, image, &load, &loaded), 0);
	CHECK_EQ(thaw_gpu_unload(loaded), 0);
	load.other_chip = false;
	close_set(&s);
	dbl("chip", 0);
	/* no room: nothing was reserved or copied */
	open_set(&s, 1);
	dbl("capacity", 3 << 20);
	refused(s.drv, &load, -ENOMEM, "GPU 0 has 3145728 of 3145728 bytes free, 4194304 are needed");
	dbl("capacity", 4l << 30);
	/* the address is taken, or the driver will not have it */
	CHECK_EQ(gpu_reserve(s.gpu[0], addr, 2 << 20, &got), 0);
	refused(s.drv, &load, -EADDRINUSE, "is taken");
	CHECK_EQ(gpu_unreserve(s.gpu[0], got, 2 << 20), 0);
	dbl("refuse", 1);
	refused(s.drv, &load, -EADDRINUSE, "is taken");
	load.anywhere = true;
	CHECK_EQ(thaw_gpu_load(s.drv, image, &load, &loaded), 0);
	CHECK_EQ(thaw_gpu_unload(loaded), 0);
	load.anywhere = false;
	dbl("refuse", 0);
	load.stop = &stop;
	refused(s.drv, &load, -ECANCELED, "given up");
	close_set(&s);
}

/* -- damage ------------------------------------------------------------------------------------------------ */

static void flip_byte(off_t off)
{
	int fd = open(image, O_RDWR | O_CLOEXEC);
	uint8_t byte;

	CHECK(fd >= 0 && pread(fd, &byte, 1, off) == 1);
	byte ^= 0x10;
	CHECK_EQ(pwrite(fd, &byte, 1, off), 1);
	close(fd);
}

static void test_damage(void)
{
	struct thaw_gpu_load_opts load = { .threads = 1, .pipe = small };
	static struct set s;

	open_set(&s, 1);
	save_some(&s);
	flip_byte(4096 + 100000);
	refused(s.drv, &load, -EBADMSG, "'buffer-0' at offset 0: ");
	/* several pieces are of the damaged chunk: any of them may be the first */
	load.threads = 2;
	refused(s.drv, &load, -EBADMSG, "'buffer-0' at offset ");
	flip_byte(4096 + 100000);
	CHECK_EQ(unlink(image), 0);
	refused(s.drv, &load, -ENOENT, image);
	close_set(&s);
}

static void test_wrong_saves(void)
{
	const struct thaw_gpu_save_opts save = { .no_fsync = true, .pipe = small };
	static struct set s;

	open_set(&s, 1);
	s.n = 2;
	make(&s, 0, 100, RANDOM, 0, false);
	make(&s, 1, 100, RANDOM, 0, false);
	fill_set(&s);
	quiet();
	s.b[1].id = "buffer-0";
	CHECK_EQ(thaw_gpu_save(s.drv, image, s.b, s.n, &save, NULL), -EINVAL);
	s.b[1].id = "a/b";
	CHECK_EQ(thaw_gpu_save(s.drv, image, s.b, s.n, &save, NULL), -EINVAL);
	s.b[1].id = "manifest.json";
	CHECK_EQ(thaw_gpu_save(s.drv, image, s.b, s.n, &save, NULL), -EINVAL);
	s.b[1].id = "b";
	s.b[1].ordinal = 1;
	CHECK_EQ(thaw_gpu_save(s.drv, image, s.b, s.n, &save, NULL), -EINVAL);
	s.b[1].ordinal = 0;
	s.b[1].size = 3 << 20; /* more than there is at this address */
	CHECK_EQ(thaw_gpu_save(s.drv, image, s.b, s.n, &save, NULL), -EINVAL);
	s.b[1].size = 100;
	CHECK_EQ(thaw_gpu_save(s.drv, "/nonexistent/x.thaw", s.b, s.n, &save, NULL), -ENOENT);
	loud();
	CHECK_EQ(access(image, F_OK), -1);
	free_buffers(&s);
	close_set(&s);
}

/* -- failures ---------------------------------------------------------------------------------------------- */

/* a step at a time: the n-th call (or copy) from here on fails */
static void arm(const char *at, long n, const char *code_name, long code)
{
	dbl("reset", 0);
	dbl(code_name, code);
	dbl(at, n);
}

/*
 * Every call, or every copy, of a save and of a load with all read back fails in turn: an error, no image that was not
 * there, nothing kept. The set is opened anew for codes that lose the device.
 */
static void test_failures(bool saving, const char *at, const char *code_name, long code)
{
	const struct thaw_gpu_save_opts save = { .no_fsync = true, .threads = 1, .pipe = small };
	const struct thaw_gpu_load_opts load = { .threads = 2, .pipe = small, .read_back = true };
	static struct set s;
	unsigned n, ignored = 0;

	open_set(&s, 1);
	s.n = 2;
	make(&s, 0, 130000, RANDOM, 0, true);
	make(&s, 1, 70000, ZEROS, 0, false);
	fill_set(&s);
	CHECK_EQ(thaw_gpu_save(s.drv, image, s.b, s.n, &save, NULL), 0);
	if (!saving)
		free_buffers(&s);
	else
		CHECK_EQ(unlink(image), 0);
	quiet();
	for (n = 1;; n++) {
		struct thaw_gpu_loaded *loaded = NULL;
		int r, r2 = 0;

		arm(at, n, code_name, code);
		r = saving ? thaw_gpu_save(s.drv, image, s.b, s.n, &save, NULL)
			   : thaw_gpu_load(s.drv, image, &load, &loaded);
		CHECK(r || !saving || !access(image, F_OK));
		CHECK(!r || !saving || access(image, F_OK));
		if (!r && !saving)
			r2 = thaw_gpu_unload(loaded);
		CHECK(r <= 0 && r2 <= 0);
		if (!dbl("fired", 0))
			break;
		/* giving back what is done with may fail without that it matters */
		ignored += !r && !r2;
		if (saving)
			unlink(image);
	}
	loud();
	dbl("reset", 0);
	CHECK(n > 4);
	/* pinning the other way, and the end of slots, streams and of the device after all went well */
	CHECK(ignored < 60 && ignored < n / 2);
	if (saving)
		free_buffers(&s);
	close_set(&s);
}

static void clean_up(void)
{
	unlink(image);
	rmdir(dir);
}

int main(void)
{
	const char *thorough = getenv("THAW_LONG");
	struct gpu_driver *drv;

	dbl = use_double();
	if (!dbl) {
		if (gpu_driver_open(&drv)) {
			printf("needs a GPU: %s\n", gpu_error());
			return 77;
		}
		gpu_driver_close(drv);
	}
	CHECK(mkdtemp(dir));
	snprintf(image, sizeof(image), "%s/x.thaw", dir);
	atexit(clean_up);
	test_round_trips();
	if (thorough && !strcmp(thorough, "1"))
		test_large(3ull << 30);
	else
		test_large(40 << 20);
	if (!dbl)
		return 0;
	test_devices();
	test_refusals();
	test_damage();
	test_wrong_saves();
	test_failures(true, "fail_at", "fail_code", 2);
	test_failures(true, "async_at", "async_code", 214);
	test_failures(false, "fail_at", "fail_code", 2);
	test_failures(false, "fail_at", "fail_code", 700);
	test_failures(false, "async_at", "async_code", 719);
	return 0;
}
