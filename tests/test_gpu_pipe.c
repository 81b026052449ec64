/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/pipe.h: what goes in comes out, in order; and what happens when something fails. */
#include <errno.h>
#include <pthread.h>

#include "common/bytes.h"
#include "common/log.h"
#include "common/stop.h"
#include "gpu/pipe.h"
#include "tests/double/use.h"

#define SLOT    (16u << 10)
#define N_ITEMS 3

static thaw_double_fn *dbl;

/* some buffers, cut into pieces of at most a slot; every fourth piece is zeros */
struct transfer {
	struct gpu_driver *drv;
	struct gpu *gpu;
	struct gpu_pipe *pipe;
	uint64_t addr[N_ITEMS], size[N_ITEMS];
	uint8_t *want, *got; /* all of them, one behind the other */
	uint32_t item;
	uint64_t off, n, reaped;
	unsigned bad_fill, bad_done; /* the n-th fails */
	uint64_t n_fills;
	volatile int stop;
	unsigned stop_at;
};

static uint64_t base(const struct transfer *t, uint32_t item)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < item; i++)
		sum += t->size[i];
	return sum;
}

static int next(void *ctx, struct gpu_piece *ret)
{
	struct transfer *t = ctx;

	while (t->item < N_ITEMS && t->off == t->size[t->item]) {
		t->item++;
		t->off = 0;
	}
	if (t->item == N_ITEMS)
		return 0;
	t->n++;
	*ret = (struct gpu_piece){
		.addr = t->addr[t->item] + t->off,
		.len = min_u64(t->n % 4 ? SLOT - t->n % 100 * 8 : 3 * SLOT, t->size[t->item] - t->off),
		.off = base(t, t->item) + t->off,
		.item = t->item,
		.zero = t->n % 4 == 0,
	};
	t->off += ret->len;
	return 1;
}

static int next_out(void *ctx, struct gpu_piece *ret)
{
	int r = next(ctx, ret);
	struct transfer *t = ctx;

	if (r == 1 && ret->len > SLOT) {
		t->off -= ret->len - SLOT;
		ret->len = SLOT;
	}
	return r;
}

static int fill(void *ctx, unsigned worker, const struct gpu_piece *piece, void *buf)
{
	struct transfer *t = ctx;

	CHECK(worker < 3);
	CHECK(!piece->zero);
	if (__atomic_add_fetch(&t->n_fills, 1, __ATOMIC_RELAXED) == t->bad_fill)
		return -EBADMSG;
	memcpy(buf, t->want + piece->off, piece->len);
	return 0;
}

static int done(void *ctx, const struct gpu_piece *piece, const void *buf)
{
	struct transfer *t = ctx;

	CHECK_EQ(t->reaped, piece->off);
	t->reaped += piece->len;
	if (buf)
		memcpy(t->got + piece->off, buf, piece->len);
	else if (piece->zero)
		memset(t->want + piece->off, 0, piece->len);
	if (t->bad_done && !--t->bad_done)
		return -ENOSPC;
	if (t->stop_at && !--t->stop_at)
		stop_ask(&t->stop);
	return 0;
}

static int set_up(struct transfer *t)
{
	const struct gpu_pipe_opts opts = { .slot_bytes = SLOT, .n_slots = 4, .n_streams = 2 };
	uint64_t seed = 42, total;
	int r;

	memset(t, 0, sizeof(*t));
	t->size[0] = 3 * SLOT + 17;
	t->size[1] = 1;
	t->size[2] = 9 * SLOT;
	total = base(t, N_ITEMS);
	t->want = calloc(1, total);
	t->got = calloc(1, total);
	CHECK(t->want && t->got);
	for (uint64_t i = 0; i + 8 <= total; i += 8) {
		uint64_t v = test_random(&seed);

		memcpy(t->want + i, &v, 8);
	}
	r = gpu_driver_open(&t->drv);
	if (!r)
		r = gpu_open(t->drv, 0, &t->gpu);
	if (!r)
		r = gpu_pipe_new(t->gpu, &opts, &t->pipe);
	for (unsigned i = 0; i < N_ITEMS && !r; i++)
		r = gpu_alloc(t->gpu, t->size[i], &t->addr[i]);
	return r;
}

static void take_down(struct transfer *t)
{
	gpu_pipe_free(t->pipe);
	for (unsigned i = 0; i < N_ITEMS; i++) {
		if (t->addr[i])
			gpu_free(t->gpu, t->addr[i]);
	}
	gpu_close(t->gpu);
	gpu_driver_close(t->drv);
	free(t->want);
	free(t->got);
}

static void rewind_feed(struct transfer *t)
{
	t->item = 0;
	t->off = t->n = t->reaped = 0;
}

static int there_and_back(struct transfer *t, struct gpu_profile *profile)
{
	struct gpu_feed feed = { .next = next, .fill = fill, .done = done, .ctx = t, .threads = 3, .stop = &t->stop };
	int r = gpu_pipe_run(t->pipe, GPU_IN, &feed, profile);

	if (r)
		return r;
	rewind_feed(t);
	feed.next = next_out;
	r = gpu_pipe_run(t->pipe, GPU_OUT, &feed, profile);
	if (!r)
		CHECK_EQ(memcmp(t->want, t->got, base(t, N_ITEMS)), 0);
	return r;
}

static void test_round_trip(void)
{
	struct gpu_profile profile = { 0 };
	struct transfer t;

	CHECK_EQ(set_up(&t), 0);
	CHECK_EQ(there_and_back(&t, &profile), 0);
	CHECK_EQ(t.reaped, base(&t, N_ITEMS));
	CHECK_EQ(profile.bytes + profile.zero_bytes, 2 * base(&t, N_ITEMS));
	CHECK(profile.zero_bytes > 0 && profile.fill_ns > 0 && profile.wall_ns > 0);
	/* and again with the same ring */
	rewind_feed(&t);
	CHECK_EQ(there_and_back(&t, NULL), 0);
	take_down(&t);
}

/* copies that are late, and a driver that pins nothing that is there */
static void test_late_copies(void)
{
	dbl("delay_us", 300);
	dbl("check", 1);
	test_round_trip();
	dbl("registering", 0);
	test_round_trip();
	dbl("registering", 1);
	dbl("check", 0);
	dbl("delay_us", 0);
	CHECK_EQ(dbl("problems", 0), 0);
}

static void test_feed_errors(void)
{
	struct transfer t;

	CHECK_EQ(set_up(&t), 0);
	t.bad_fill = 5;
	CHECK_EQ(there_and_back(&t, NULL), -EBADMSG);
	CHECK(t.reaped < base(&t, N_ITEMS));
	rewind_feed(&t);
	t.bad_fill = 0;
	t.bad_done = 5;
	CHECK_EQ(there_and_back(&t, NULL), -ENOSPC);
	rewind_feed(&t);
	t.stop_at = 6;
	CHECK_EQ(there_and_back(&t, NULL), -ECANCELED);
	/* the ring is as good as before */
	rewind_feed(&t);
	t.stop = 0;
	CHECK_EQ(there_and_back(&t, NULL), 0);
	take_down(&t);
	CHECK_EQ(dbl("problems", 0), 0);
}

static void ignore_line(enum log_level level, const char *line, void *ctx)
{
	(void)level;
	(void)line;
	(void)ctx;
}

static void test_every_failure(const char *at, const char *code_name, int code)
{
	struct transfer t;
	unsigned n = 1, ignored = 0;

	log_set_sink(ignore_line, NULL);
	for (;; n++) {
		bool fired;
		int r;

		dbl("reset", 0);
		dbl(code_name, code);
		dbl(at, n);
		r = set_up(&t);
		if (!r)
			r = there_and_back(&t, NULL);
		ignored += dbl("fired", 0) && !r;
		take_down(&t);
		fired = dbl("fired", 0) != 0;
		CHECK_EQ(dbl("problems", 0), 0);
		if (!fired)
			break;
	}
	log_set_sink(NULL, NULL);
	dbl("reset", 0);
	/* what a refused registration costs is another way to pin: the two calls of it */
	CHECK(ignored <= 2 && n > 10);
}

int main(void)
{
	struct gpu_driver *drv;

	dbl = use_double();
	if (!dbl && gpu_driver_open(&drv)) {
		printf("needs a GPU: %s\n", gpu_error());
		return 77;
	}
	test_round_trip();
	if (!dbl)
		return 0;
	CHECK_EQ(dbl("problems", 0), 0);
	test_late_copies();
	test_feed_errors();
	test_every_failure("fail_at", "fail_code", 2);
	test_every_failure("fail_at", "fail_code", 719);
	test_every_failure("async_at", "async_code", 214);
	return 0;
}
