/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The page server over an image of a core file: memory of this process and of its children is filled on demand and in
 * the background, follows fork, mremap, munmap and madvise, and is poisoned where the image is damaged.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

#include "common/log.h"
#include "restore/pageserver.h"
#include "restore/pagetable.h"
#include "tests/served.h"

struct served {
	struct image *img;
	struct pageserver *ps;
	uint8_t *mem;
};

static void serve(struct served *s, const char *path, unsigned threads)
{
	struct pageserver_range range = { .len = LEN, .src = BASE };
	struct image_space space;
	int fd = open_uffd();

	CHECK(fd >= 0);
	CHECK_EQ(image_open(path, NULL, &s->img), 0);
	CHECK_EQ(image_space(s->img, 0, &space), 0);
	s->mem = map_missing(fd);
	range.addr = (uintptr_t)s->mem;
	CHECK_EQ(pageserver_new(s->img, NULL, threads, NULL, &s->ps), 0);
	CHECK_EQ(pageserver_add(s->ps, fd, getpid(), 0, &range, 1), 0);
}

static void end(struct served *s, struct pageserver_stats *ret)
{
	pageserver_fill(s->ps);
	pageserver_wait(s->ps);
	pageserver_stats(s->ps, ret);
	pageserver_free(s->ps);
	image_close(s->img);
}

static size_t resident(const uint8_t *mem)
{
	unsigned char in[LEN / PAGE];
	size_t n = 0;

	CHECK(mincore((void *)(uintptr_t)mem, LEN, in) == 0);
	for (size_t i = 0; i < LEN / PAGE; i++)
		n += in[i] & 1;
	return n;
}

static void test_demand_and_fill(void)
{
	struct pageserver_stats stats;
	struct served s;
	uint64_t state = 7;

	serve(&s, image, 2);
	for (int i = 0; i < 60; i++) {
		size_t at = test_random(&state) % (LEN / PAGE) * PAGE;

		CHECK(memcmp(s.mem + at, want + at, PAGE) == 0);
	}
	/* nothing was allowed to come by itself yet, but what is beside the pages */
	CHECK(resident(s.mem) < LEN / PAGE);
	end(&s, &stats);
	CHECK(stats.faults > 20 && stats.demand_bytes > 0 && stats.fill_bytes > 0 && stats.poisoned_bytes == 0);
	/* each page that is not zero exactly once, zeros only where asked for */
	CHECK_EQ(stats.demand_bytes + stats.fill_bytes, LEN / 4 * 3);
	CHECK(stats.zero_pages < LEN / 4 / PAGE);
	CHECK(memcmp(s.mem, want, LEN) == 0);
	munmap(s.mem, LEN);
}

/* what a process does to its memory while the filler runs */
static void test_events(void)
{
	struct pageserver_stats stats;

	for (int round = 0; round < 20; round++) {
		static const uint8_t zeros[1 << 20];
		struct served s;
		uint8_t *to;

		serve(&s, image, 2);
		to = mmap(NULL, 4 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		CHECK(to != MAP_FAILED);
		if (round % 2)
			pageserver_fill(s.ps);
		CHECK(madvise(s.mem + (1 << 20), 1 << 20, MADV_DONTNEED) == 0);
		CHECK(mremap(s.mem + (4 << 20), 4 << 20, 4 << 20, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to);
		CHECK(munmap(s.mem + (9 << 20), 1 << 20) == 0);
		CHECK(mprotect(s.mem + (12 << 20) + 5 * PAGE, 3 * PAGE, PROT_READ) == 0);
		CHECK(memcmp(s.mem + (1 << 20), zeros, 1 << 20) == 0);
		CHECK(memcmp(to + (1 << 20), want + (5 << 20), 1 << 20) == 0);
		end(&s, &stats);
		CHECK_EQ(stats.poisoned_bytes, 0);
		CHECK(memcmp(s.mem, want, 1 << 20) == 0);
		CHECK(memcmp(s.mem + (1 << 20), zeros, 1 << 20) == 0);
		CHECK(memcmp(s.mem + (2 << 20), want + (2 << 20), 2 << 20) == 0);
		CHECK(memcmp(to, want + (4 << 20), 4 << 20) == 0);
		CHECK(memcmp(s.mem + (8 << 20), want + (8 << 20), 1 << 20) == 0);
		CHECK(memcmp(s.mem + (10 << 20), want + (10 << 20), LEN - (10 << 20)) == 0);
		munmap(to, 4 << 20);
		munmap(s.mem, LEN);
	}
}

/* not fork(), which holds locks of malloc(): the server is in this very process */
static void test_fork(void)
{
	struct pageserver_stats stats;
	int status;

	for (int round = 0; round < 10; round++) {
		struct served s;
		pid_t pid;

		serve(&s, image, 2);
		if (round % 2)
			pageserver_fill(s.ps);
		pid = _Fork();
		CHECK(pid >= 0);
		if (!pid)
			_exit(memcmp(s.mem, want, LEN) ? 1 : 0);
		CHECK(waitpid(pid, &status, 0) == pid);
		CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
		end(&s, &stats);
		CHECK(stats.processes == 2);
		CHECK(memcmp(s.mem, want, LEN) == 0);
		munmap(s.mem, LEN);
	}
}

static char last_message[1024];
static void keep_message(enum log_level level, const char *line, void *ctx)
{
	(void)level;
	(void)ctx;
	snprintf(last_message, sizeof(last_message), "%s", line);
}

/* how a child ends that reads [at, at + len) */
static int reader_status(const uint8_t *mem, size_t at, size_t len)
{
	int status;
	pid_t pid = _Fork();

	CHECK(pid >= 0);
	if (!pid) {
		signal(SIGBUS, SIG_DFL);
		_exit(memcmp(mem + at, want + at, len) ? 1 : 0);
	}
	CHECK(waitpid(pid, &status, 0) == pid);
	return status;
}

/* neither on demand nor after the end does a damaged page become anything */
static void test_damage(void)
{
	struct pageserver_stats stats;
	struct served s;
	size_t good = 0, poisoned = 0;

	log_set_sink(keep_message, NULL);
	serve(&s, damaged, 2);
	end(&s, &stats);
	log_set_sink(NULL, NULL);
	CHECK(stats.poisoned_bytes >= PAGE && stats.poisoned_bytes <= 2 << 20);
	CHECK(strstr(last_message, "cannot read '") && strstr(last_message, "/d.thaw'") &&
	      strstr(last_message, "checksum mismatch"));
	for (size_t at = 0; at < LEN; at += 64 << 10) {
		int status = reader_status(s.mem, at, 64 << 10);

		if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
			good++;
		else if (WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS)
			poisoned++;
		else
			CHECK(!"memory that is wrong");
	}
	CHECK_EQ(poisoned, stats.poisoned_bytes / (64 << 10));
	CHECK_EQ(good + poisoned, LEN / (64 << 10));
	munmap(s.mem, LEN);
}

static void check_range(const struct pagetable *t, size_t i, uint64_t addr, uint64_t len, uint64_t src)
{
	CHECK(i < t->n);
	CHECK_EQ(t->ranges[i].addr, addr);
	CHECK_EQ(t->ranges[i].len, len);
	CHECK_EQ(t->ranges[i].src, src);
}

static void test_table(void)
{
	static const struct pageserver_range two[] = { { 0x1000, 0x8000, 0x101000, 0 },
						       { 0x10000, 0x2000, 0x110000, 0 } };
	static const struct pageserver_range overlap[] = { { 0x1000, 0x2000, 0, 0 }, { 0x2000, 0x1000, 0, 0 } };
	static const struct pageserver_range odd = { 0x1001, 0x1000, 0, 0 };
	struct pagetable t;

	CHECK_EQ(pagetable_init(&t, overlap, 2), -EINVAL);
	CHECK_EQ(pagetable_init(&t, &odd, 1), -EINVAL);
	CHECK_EQ(pagetable_init(&t, two, 2), 0);
	CHECK_EQ(pagetable_remove(&t, 0x3000, 0x4000), 0);
	CHECK_EQ(t.n, 3);
	check_range(&t, 0, 0x1000, 0x2000, 0x101000);
	check_range(&t, 1, 0x4000, 0x5000, 0x104000);
	/* over a border, onto something that is there */
	CHECK_EQ(pagetable_move(&t, 0x8000, 0x11000, 0x9000), 0);
	CHECK_EQ(t.n, 4);
	check_range(&t, 1, 0x4000, 0x4000, 0x104000);
	check_range(&t, 2, 0x11000, 0x1000, 0x108000);
	check_range(&t, 3, 0x19000, 0x1000, 0x110000);
	CHECK(pagetable_at(&t, 0x7fff) == &t.ranges[1] && pagetable_at(&t, 0x8000) == &t.ranges[2]);
	CHECK(!pagetable_at(&t, 0x1a000));
	CHECK_EQ(pagetable_remove(&t, 0, UINT64_MAX), 0);
	CHECK_EQ(t.n, 0);
	pagetable_release(&t);
}

int main(void)
{
	int fd;

	test_table();
	fd = open_uffd();
	if (fd < 0) {
		printf("needs userfaultfd with its events: %s\n", strerror(errno));
		return 77;
	}
	close(fd);
	make_images();
	test_demand_and_fill();
	test_events();
	test_fork();
	test_damage();
	return 0;
}
