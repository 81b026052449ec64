/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/driver.h against the double of the driver, and the double's own watchfulness. */
#include <errno.h>
#include <fcntl.h>
#include <sys/uio.h>

#include "common/bytes.h"
#include "common/log.h"
#include "gpu/driver.h"
#include "tests/double/use.h"

static thaw_double_fn *dbl;

static void ignore_line(enum log_level level, const char *line, void *ctx)
{
	(void)level;
	(void)line;
	(void)ctx;
}

/* opening fails so, with these words */
static void check_no_driver(int want, const char *words)
{
	struct gpu_driver *drv;

	CHECK_EQ(gpu_driver_open(&drv), want);
	if (!strstr(gpu_error(), words))
		fprintf(stderr, "it said: %s\n", gpu_error());
	CHECK(strstr(gpu_error(), words));
}

static void test_no_driver(void)
{
	const char *set = getenv("THAWFS_LIBCUDA");
	char *path = strdup(set ? set : "");

	CHECK(path);
	setenv("THAWFS_LIBCUDA", "/nonexistent/libcuda.so.1", 1);
	check_no_driver(-ENODEV, "no usable GPU: /nonexistent/libcuda.so.1 not found");
	setenv("THAWFS_LIBCUDA", "/proc/self/exe", 1);
	check_no_driver(-ENODEV, "no usable GPU: cannot load /proc/self/exe");
	setenv("THAWFS_LIBCUDA", "libm.so.6", 1);
	check_no_driver(-ENODEV, "no usable GPU: the library is not a CUDA driver");
	setenv("THAWFS_LIBCUDA", path, 1);
	free(path);
	dbl("version", 10010);
	check_no_driver(-ENODEV, "no usable GPU: the driver is too old: CUDA 10.1, at least 10.2 is needed");
	dbl("version", 12080);
	dbl("devices", 0);
	check_no_driver(-ENODEV, "no usable GPU: there is no device (CUDA 100)");
	dbl("devices", 1);
	dbl("fail_code", 34);
	dbl("reset", 0);
	dbl("fail_at", 1);
	check_no_driver(-ENODEV, "toolkit's stub");
	dbl("reset", 0);
}

static void test_uuid_text(void)
{
	static const char text[] = "GPU-00112233-4455-6677-8899-aabbccddeeff";
	static const char *const bad[] = {
		"",
		"GPU-",
		"00112233-4455-6677-8899-aabbccddeeff",
		"GPU-00112233-4455-6677-8899-aabbccddeef",
		"GPU-0011223-34455-6677-8899-aabbccddeeff",
		"GPU-00112233-4455-6677-8899-aabbccddeefg",
		"GPU-00112233-4455-6677-8899-aabbccddeeff0",
	};
	char again[GPU_UUID_TEXT];
	uint8_t uuid[16];

	CHECK_EQ(gpu_uuid_parse(text, uuid), 0);
	CHECK_EQ(uuid[0], 0);
	CHECK_EQ(uuid[15], 0xff);
	CHECK_STR(gpu_uuid_text(uuid, again), text);
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
		CHECK_EQ(gpu_uuid_parse(bad[i], uuid), -EINVAL);
}

static void test_devices(void)
{
	struct gpu_driver *drv;
	uint8_t uuid[16];

	dbl("devices", 4);
	CHECK_EQ(gpu_driver_open(&drv), 0);
	CHECK_EQ(gpu_driver_version(drv), 12080);
	CHECK_EQ(gpu_count(drv), 4);
	CHECK_STR(gpu_device(drv, 2)->name, "Double One");
	CHECK_EQ(gpu_device(drv, 2)->major, 9);
	CHECK_EQ(gpu_device(drv, 2)->ordinal, 2);
	CHECK_EQ(gpu_device(drv, 2)->total_bytes, 4l << 30);
	memcpy(uuid, gpu_device(drv, 2)->uuid, sizeof(uuid));
	CHECK_EQ(gpu_find(drv, uuid), 2);
	gpu_driver_close(drv);

	/* the same cards in another order */
	dbl("rotate", 3);
	CHECK_EQ(gpu_driver_open(&drv), 0);
	CHECK_EQ(gpu_find(drv, uuid), 3);
	uuid[0]++;
	CHECK_EQ(gpu_find(drv, uuid), -ENODEV);
	gpu_driver_close(drv);

	/* no cuGetProcAddress_v2, and no UUIDs: where it is plugged in has to do */
	dbl("version", 11020);
	CHECK_EQ(gpu_driver_open(&drv), 0);
	CHECK_EQ(memcmp(gpu_device(drv, 0)->uuid, gpu_device(drv, 0)->pci, 12), 0);
	CHECK_EQ(gpu_find(drv, gpu_device(drv, 3)->uuid), 3);
	gpu_driver_close(drv);
	dbl("version", 12080);
	dbl("rotate", 0);
	dbl("devices", 1);
}

/* -- memory ------------------------------------------------------------------------------------------ */

struct bench {
	struct gpu_driver *drv;
	struct gpu *gpu;
	struct gpu_stream *stream;
	struct gpu_event *event;
	uint8_t *host;
	uint64_t addr, size, handle;
	bool reserved, created, mapped;
};

static int set_up(struct bench *b, uint64_t at)
{
	int r = gpu_driver_open(&b->drv);
	void *host = NULL;

	if (!r)
		r = gpu_open(b->drv, 0, &b->gpu);
	if (!r)
		r = gpu_host_alloc(b->gpu, 1 << 20, &host);
	b->host = host;
	if (!r)
		r = gpu_stream_new(b->gpu, &b->stream);
	if (!r)
		r = gpu_event_new(b->gpu, &b->event);
	if (!r) {
		b->size = 2 * gpu_granularity(b->gpu);
		r = gpu_reserve(b->gpu, at, b->size, &b->addr);
		b->reserved = !r;
	}
	if (!r) {
		r = gpu_create(b->gpu, b->size, true, &b->handle);
		b->created = !r;
	}
	if (!r) {
		r = gpu_map(b->gpu, b->addr, b->size, b->handle);
		b->mapped = !r;
	}
	return r;
}

static int take_down(struct bench *b, bool wait)
{
	int r = 0;

	if (wait && b->stream)
		r |= gpu_stream_wait(b->gpu, b->stream);
	if (b->mapped)
		r |= gpu_unmap(b->gpu, b->addr, b->size);
	if (b->created)
		r |= gpu_release(b->gpu, b->handle);
	if (b->reserved)
		r |= gpu_unreserve(b->gpu, b->addr, b->size);
	if (b->event)
		r |= gpu_event_free(b->gpu, b->event);
	if (b->stream)
		r |= gpu_stream_free(b->gpu, b->stream);
	if (b->host)
		r |= gpu_host_free(b->gpu, b->host);
	gpu_close(b->gpu);
	gpu_driver_close(b->drv);
	memset(b, 0, sizeof(*b));
	return r;
}

static int use_it(struct bench *b)
{
	int r = gpu_zero(b->gpu, b->addr, b->size, b->stream);

	memset(b->host, 0x77, 1000);
	if (!r)
		r = gpu_copy_in(b->gpu, b->addr + 4097, b->host, 1000, b->stream);
	if (!r)
		r = gpu_event_put(b->gpu, b->event, b->stream);
	if (!r)
		r = gpu_event_wait(b->gpu, b->event);
	if (r)
		return r;
	memset(b->host, 0, 1 << 20);
	r = gpu_copy_out(b->gpu, b->host, b->addr + 4000, 10000, b->stream);
	if (!r)
		r = gpu_stream_wait(b->gpu, b->stream);
	if (r)
		return r;
	for (unsigned i = 0; i < 10000; i++)
		CHECK_EQ(b->host[i], i >= 97 && i < 1097 ? 0x77 : 0);
	return 0;
}

static void test_memory(void)
{
	struct bench b = { 0 };
	uint64_t free_bytes, total, before, other;
	uint64_t at;
	int fd;

	CHECK_EQ(set_up(&b, 0), 0);
	at = b.addr;
	CHECK_EQ(use_it(&b), 0);
	/* exported and imported again, it is the same memory */
	CHECK_EQ(gpu_free_bytes(b.gpu, &before, &total), 0);
	CHECK_EQ(gpu_export(b.gpu, b.handle, &fd), 0);
	CHECK_EQ(gpu_import(b.gpu, fd, &other), 0);
	CHECK_EQ(gpu_unmap(b.gpu, b.addr, b.size), 0);
	CHECK_EQ(gpu_map(b.gpu, b.addr, b.size, other), 0);
	close(fd);
	CHECK_EQ(gpu_copy_out(b.gpu, b.host, b.addr + 4097, 1000, b.stream), 0);
	CHECK_EQ(gpu_stream_wait(b.gpu, b.stream), 0);
	CHECK_EQ(b.host[999], 0x77);
	CHECK_EQ(gpu_free_bytes(b.gpu, &free_bytes, &total), 0);
	CHECK_EQ(free_bytes, before);
	CHECK_EQ(gpu_release(b.gpu, other), 0);
	CHECK_EQ(take_down(&b, true), 0);

	/* at the same address again */
	CHECK_EQ(set_up(&b, at), 0);
	CHECK_EQ(b.addr, at);
	CHECK_EQ(gpu_reserve(b.gpu, at, b.size, &other), -EADDRINUSE);
	CHECK_EQ(take_down(&b, true), 0);
}

static void test_memory_of_the_double(void)
{
	struct bench b = { 0 };
	struct iovec here = { .iov_len = 1 }, there = { .iov_len = 1 };
	char byte;
	uint64_t addr, handle;
	void *file;
	int fd;

	CHECK_EQ(set_up(&b, 0), 0);
	/* as on a discrete card, the CPU cannot read it */
	here.iov_base = &byte;
	there.iov_base = (void *)(uintptr_t)b.addr;
	CHECK_EQ(process_vm_readv(getpid(), &here, 1, &there, 1, 0), -1);
	CHECK_EQ(errno, EFAULT);
	/* memory holds rubbish at first */
	CHECK_EQ(gpu_copy_out(b.gpu, b.host, b.addr + b.size - 100, 100, b.stream), 0);
	CHECK_EQ(gpu_stream_wait(b.gpu, b.stream), 0);
	CHECK_EQ(b.host[99], 0xa5);
	CHECK_EQ(gpu_copy_out(b.gpu, b.host, b.addr + b.size - 99, 100, b.stream), -EINVAL);
	/* more than there is */
	dbl("capacity", 8 << 20);
	CHECK_EQ(gpu_create(b.gpu, 6 << 20, false, &handle), -ENOMEM);
	CHECK_EQ(gpu_alloc(b.gpu, 6 << 20, &addr), -ENOMEM);
	CHECK_EQ(gpu_create(b.gpu, 3 << 20, false, &handle), -EINVAL);
	CHECK_EQ(gpu_alloc(b.gpu, 3 << 20, &addr), 0);
	CHECK_EQ(gpu_alloc(b.gpu, 1, &handle), -ENOMEM);
	CHECK_EQ(gpu_free(b.gpu, addr), 0);
	dbl("capacity", 4l << 30);
	/* pinning: what is anonymous, not what is a file's */
	CHECK_EQ(gpu_host_register(b.gpu, b.host, 4096), -EEXIST);
	fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	file = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	CHECK(file != MAP_FAILED);
	CHECK_EQ(gpu_host_register(b.gpu, file, 4096), -EINVAL);
	munmap(file, 4096);
	close(fd);
	CHECK_EQ(take_down(&b, true), 0);
	CHECK_EQ(dbl("problems", 0), 0);
}

static void test_refused_address(void)
{
	struct bench b = { 0 };
	uint64_t at;

	CHECK_EQ(set_up(&b, 0), 0);
	at = b.addr;
	take_down(&b, true);
	dbl("refuse", 1);
	CHECK_EQ(set_up(&b, at + (64ul << 30)), -EADDRINUSE);
	CHECK(strstr(gpu_error(), "is taken"));
	take_down(&b, true);
	dbl("refuse", 0);
	CHECK_EQ(dbl("problems", 0), 0);
}

/* the n-th call fails, for each n: an error, nothing kept */
static void test_every_call(int code, int want)
{
	unsigned n = 1;

	log_set_sink(ignore_line, NULL);
	for (;; n++) {
		struct bench b = { 0 };
		int r, r2;

		dbl("reset", 0);
		dbl("fail_code", code);
		dbl("fail_at", n);
		r = set_up(&b, 0);
		if (!r)
			r = use_it(&b);
		r2 = take_down(&b, true);
		if (!dbl("fired", 0))
			break;
		/* only an error of the very last call, which gives the device back, is lost */
		if (r || r2)
			CHECK(r == want || r2 == want || r == -ENODEV || r2);
		CHECK_EQ(dbl("problems", 0), 0);
	}
	log_set_sink(NULL, NULL);
	CHECK(n > 40);
	dbl("reset", 0);
}

static void test_lost_device(void)
{
	struct bench b = { 0 };

	log_set_sink(ignore_line, NULL);
	dbl("reset", 0);
	CHECK_EQ(set_up(&b, 0), 0);
	dbl("async_code", 214);
	dbl("async_at", 2);
	CHECK(!gpu_lost(b.gpu));
	CHECK_EQ(use_it(&b), -EIO);
	CHECK(strstr(gpu_error(), "a memory error that could not be corrected (CUDA 214)"));
	CHECK(gpu_lost(b.gpu));
	CHECK_EQ(gpu_copy_in(b.gpu, b.addr, b.host, 1000, b.stream), -EIO);
	CHECK(take_down(&b, true) != 0);
	log_set_sink(NULL, NULL);
	CHECK_EQ(dbl("problems", 0), 0);
	dbl("reset", 0);
}

/* the double notices what a real card would not, or not at once */
static void test_watchfulness(void)
{
	struct bench b = { 0 };
	static uint8_t pageable[4096];

	fprintf(stderr, "(the double is to complain now)\n");
	log_set_sink(ignore_line, NULL);
	CHECK_EQ(set_up(&b, 0), 0);
	CHECK(dbl("problems", 0) > 0); /* all that is not given back yet */

	CHECK_EQ(take_down(&b, true), 0);
	CHECK_EQ(dbl("problems", 0), 0);
	CHECK_EQ(set_up(&b, 0), 0);
	CHECK_EQ(gpu_copy_in(b.gpu, b.addr, pageable, sizeof(pageable), b.stream), 0);
	CHECK_EQ(take_down(&b, true), 0);
	CHECK_EQ(dbl("problems", 0), 1);

	dbl("reset", 0);
	dbl("delay_us", 20000);
	CHECK_EQ(set_up(&b, 0), 0);
	CHECK_EQ(gpu_copy_in(b.gpu, b.addr, b.host, 4096, b.stream), 0);
	CHECK_EQ(take_down(&b, false), 0); /* unmapped under the copy */
	CHECK_EQ(dbl("problems", 0), 1);

	dbl("reset", 0);
	dbl("check", 1);
	CHECK_EQ(set_up(&b, 0), 0);
	CHECK_EQ(gpu_copy_in(b.gpu, b.addr, b.host, 4096, b.stream), 0);
	CHECK_EQ(gpu_stream_wait(b.gpu, b.stream), 0);
	CHECK_EQ(gpu_copy_in(b.gpu, b.addr, b.host, 4096, b.stream), 0);
#ifndef __SANITIZE_THREAD__
	b.host[17]++;
#endif
	CHECK_EQ(gpu_stream_wait(b.gpu, b.stream), 0);
	CHECK_EQ(take_down(&b, true), 0);
#ifndef __SANITIZE_THREAD__
	CHECK_EQ(dbl("problems", 0), 1);
#endif
	dbl("reset", 0);
	dbl("check", 0);
	dbl("delay_us", 0);
	log_set_sink(NULL, NULL);
	fprintf(stderr, "(and to be silent from here on)\n");
}

int main(void)
{
	struct gpu_driver *drv;

	dbl = use_double();
	test_uuid_text();
	if (!dbl) {
		if (gpu_driver_open(&drv)) {
			printf("needs a GPU: %s\n", gpu_error());
			return 77;
		}
		gpu_driver_close(drv);
		test_memory();
		return 0;
	}
	test_no_driver();
	test_devices();
	test_memory();
	test_memory_of_the_double();
	test_refused_address();
	test_every_call(2, -ENOMEM);
	test_every_call(700, -EIO);
	test_lost_device();
	test_watchfulness();
	return 0;
}
