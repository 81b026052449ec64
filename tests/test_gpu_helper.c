/* SPDX-License-Identifier: Apache-2.0 */
/* The GPU helper and its target in one process: every driver call of either fails in turn, and every copy. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>

#include "common/log.h"
#include "common/stop.h"
#include "restore/gpu_client.h"
#include "restore/gpu_image.h"
#include "restore/gpu_serve.h"
#include "tests/double/use.h"

static thaw_double_fn *dbl;
static char dir[] = "/tmp/thaw-gpu.XXXXXX";
static char image[64], file[64], sock[64];
static const struct gpu_pipe_opts small = { .slot_bytes = 64 << 10, .n_slots = 2, .n_streams = 1 };

static void ignore_line(enum log_level level, const char *line, void *ctx)
{
	(void)level;
	(void)line;
	(void)ctx;
}

struct helper {
	pthread_t thread;
	struct gpu_driver *drv;
	volatile int stop;
	pthread_mutex_t lock;
	pthread_cond_t change;
	bool ready, ended;
	int result;
};

static void set_ready(void *ctx)
{
	struct helper *h = ctx;

	pthread_mutex_lock(&h->lock);
	h->ready = true;
	pthread_cond_signal(&h->change);
	pthread_mutex_unlock(&h->lock);
}

static void *serve(void *arg)
{
	struct helper *h = arg;
	const struct gpu_serve_opts opts = {
		.socket = sock,
		.threads = 1,
		.pipe = small,
		.stop = &h->stop,
		.ready = set_ready,
		.ctx = h,
	};
	int r = gpu_serve(h->drv, &opts);

	pthread_mutex_lock(&h->lock);
	h->result = r;
	h->ended = true;
	pthread_cond_signal(&h->change);
	pthread_mutex_unlock(&h->lock);
	return NULL;
}

static void start(struct helper *h, struct gpu_driver *drv)
{
	memset(h, 0, sizeof(*h));
	h->drv = drv;
	pthread_mutex_init(&h->lock, NULL);
	pthread_cond_init(&h->change, NULL);
	CHECK_EQ(pthread_create(&h->thread, NULL, serve, h), 0);
	pthread_mutex_lock(&h->lock);
	while (!h->ready && !h->ended)
		pthread_cond_wait(&h->change, &h->lock);
	pthread_mutex_unlock(&h->lock);
}

static int stop(struct helper *h)
{
	struct gpu_client *c = NULL;

	stop_ask(&h->stop);
	/* it looks when somebody comes, or a while later */
	if (!gpu_client_open(sock, &c))
		gpu_client_close(c);
	pthread_join(h->thread, NULL);
	return h->result;
}

static void make_image(struct gpu_driver *drv)
{
	const struct thaw_gpu_load_opts load = { .pipe = small };
	const struct thaw_gpu_save_opts save = { .pipe = small, .no_fsync = true };
	const char *paths[] = { file };
	struct thaw_gpu_buffer b = { .id = "data" };
	struct thaw_gpu_loaded *loaded;
	FILE *f = fopen(file, "we");
	uint64_t seed = 7;

	CHECK(f);
	for (unsigned i = 0; i < 200000 / 8; i++) {
		uint64_t v = test_random(&seed);

		CHECK_EQ(fwrite(&v, 8, 1, f), 1);
	}
	CHECK_EQ(fclose(f), 0);
	CHECK_EQ(thaw_gpu_load_files(drv, paths, 1, 0, GPU_VMM, &load, &loaded), 0);
	b.addr = loaded->buffers[0].addr;
	b.size = loaded->buffers[0].size;
	b.mapped_size = loaded->buffers[0].mapped_size;
	CHECK_EQ(thaw_gpu_save(drv, image, &b, 1, &save, NULL), 0);
	CHECK_EQ(thaw_gpu_unload(loaded), 0);
}

/* @n: which fails. Return: whether it came so far */
static bool try_failure(struct gpu_driver *drv, const char *at, const char *code_name, long code, long n)
{
	const struct thaw_gpu_load_opts load = { .pipe = small, .threads = 1, .helper = sock, .read_back = true };
	struct thaw_gpu_loaded *loaded = NULL;
	struct helper h;
	bool fired, fired_before;
	int r, r2;

	dbl("reset", 0);
	dbl(code_name, code);
	dbl(at, n);
	start(&h, drv);
	r = thaw_gpu_load(drv, image, &load, &loaded);
	fired_before = dbl("fired", 0) != 0;
	r2 = thaw_gpu_unload(loaded);
	CHECK(r <= 0 && r2 <= 0);
	/* a load that nothing happened to is good: it was read back and compared */
	CHECK(!r || fired_before);
	r2 = stop(&h);
	CHECK(r2 == 0 || r2 == -EIO);
	fired = dbl("fired", 0) != 0;
	CHECK_EQ(dbl("problems", 0), 0);
	return fired;
}

static void test_failures(struct gpu_driver *drv, const char *at, const char *code_name, long code)
{
	long n = 1;

	while (try_failure(drv, at, code_name, code, n))
		n++;
	CHECK(n > 3);
	dbl("reset", 0);
}

static void clean_up(void)
{
	unlink(image);
	unlink(file);
	unlink(sock);
	rmdir(dir);
}

int main(void)
{
	struct gpu_driver *drv;

	dbl = use_double();
	if (!dbl) {
		printf("needs the double of the driver\n");
		return 77;
	}
	CHECK(mkdtemp(dir));
	snprintf(image, sizeof(image), "%s/x.thaw", dir);
	snprintf(file, sizeof(file), "%s/data", dir);
	snprintf(sock, sizeof(sock), "%s/s", dir);
	atexit(clean_up);
	CHECK_EQ(gpu_driver_open(&drv), 0);
	make_image(drv);
	log_set_sink(ignore_line, NULL);
	test_failures(drv, "fail_at", "fail_code", 2);
	test_failures(drv, "fail_at", "fail_code", 719);
	test_failures(drv, "async_at", "async_code", 214);
	log_set_sink(NULL, NULL);
	gpu_driver_close(drv);
	return 0;
}
