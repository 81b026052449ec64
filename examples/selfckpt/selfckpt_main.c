/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program to be saved and restarted: fills memory with a pattern, then obeys commands from standard input, one a
 * line. Descriptor 0 is whatever the process was (re)started with, so the same program is driven before and after.
 *
 *   save PATH   write this process to PATH; says "saved" or, in the restarted process, "restarted"
 *   verify      check every byte of the pattern, every thread, libraries, brk, signals
 *   write       add one to a byte of every page of the pattern
 *   touch       read a byte of every page
 *   fork        verify in a child process
 *   count N     print N lines of a counter that goes on after a restart
 *   zero        turn the first quarter of the large block into zeros
 *   pid, wait SECONDS, exit CODE
 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "examples/selfckpt/selfckpt.h"

#define PAGE         4096ul
#define AREA_PAGES   3
#define SMALL_BLOCKS 1000
#define MAX_THREADS  64

struct block {
	uint64_t *words;
	size_t n_words;
	uint64_t seed;
};

static struct {
	uint64_t *large;
	size_t large_bytes, zero_from; /* untouched from there */
	bool zeroed;
	uint64_t written; /* how often each page's first word went up */
	size_t n_areas;
	char **areas;
	uint64_t *small[SMALL_BLOCKS];
	uint64_t counter, libraries;
	void *brk;
	pthread_t threads[MAX_THREADS];
	_Atomic uint64_t asked, answered, wrong;
	size_t n_threads;
	volatile sig_atomic_t signals;
} p;
static _Thread_local uint64_t own = 0x1234;

static void say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *fmt, ...)
{
	char line[256];
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(line, sizeof(line), fmt, ap);
	va_end(ap);
	if (n > 0 && write(1, line, (size_t)n) < 0)
		_exit(3);
}

/* -- the pattern ------------------------------------------------------------------------------- */

/* compressible: the upper half of a word is its page, the lower half a hash of its place */
static uint64_t word_at(uint64_t seed, size_t i)
{
	uint64_t x = (seed + i / 2) * 0x9e3779b97f4a7c15ull;

	return (i / 512) << 32 | (x >> 40 ^ seed);
}

static bool check_words(const char *what, const uint64_t *w, size_t first, size_t n, uint64_t seed)
{
	for (size_t i = first; i < n; i++) {
		uint64_t want = word_at(seed, i) + (i % 512 == 0 ? p.written : 0);

		if (w[i] != want) {
			say("WRONG %s: word %zu at %p is %" PRIx64 ", not %" PRIx64 "\n", what, i, (const void *)&w[i],
			    w[i], want);
			return false;
		}
	}
	return true;
}

static bool check_zeros(const char *what, const uint64_t *w, size_t first, size_t n)
{
	for (size_t i = first; i < n; i++)
		if (w[i]) {
			say("WRONG %s: word %zu at %p is %" PRIx64 ", not 0\n", what, i, (const void *)&w[i], w[i]);
			return false;
		}
	return true;
}

static void *new_memory(size_t len)
{
	void *m = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (m == MAP_FAILED) {
		say("no memory: %s\n", strerror(errno));
		exit(3);
	}
	return m;
}

static void fill(uint64_t *w, size_t n, uint64_t seed)
{
	for (size_t i = 0; i < n; i++)
		w[i] = word_at(seed, i);
}

/* every second area is read-only, and there is room between them, so that each stays an area of its own */
static void make_areas(size_t n)
{
	p.areas = calloc(n, sizeof(*p.areas));
	p.n_areas = p.areas ? n : 0;
	for (size_t i = 0; i < p.n_areas; i++) {
		char *m = new_memory((AREA_PAGES + 1) * PAGE);

		munmap(m + AREA_PAGES * PAGE, PAGE);
		fill((uint64_t *)m, AREA_PAGES * 512, i);
		if (i % 2)
			mprotect(m, AREA_PAGES * PAGE, PROT_READ);
		p.areas[i] = m;
	}
}

/* a sum of what is mapped from files and cannot be written: code, constants */
static uint64_t sum_libraries(void)
{
	FILE *f = fopen("/proc/self/maps", "re");
	char line[512];
	uint64_t sum = 0;

	while (f && fgets(line, sizeof(line), f)) {
		uint64_t start, end;

		if (sscanf(line, "%" SCNx64 "-%" SCNx64 " r-", &start, &end) != 2 || !strchr(line, '/') ||
		    !strstr(line, "r-xp"))
			continue;
		for (const uint64_t *w = (const uint64_t *)start; w < (const uint64_t *)end; w++)
			sum = (sum ^ *w) * 0x100000001b3ull;
	}
	if (f)
		fclose(f);
	return sum;
}

/* -- threads, signals -------------------------------------------------------------------------- */

static void on_signal(int sig)
{
	(void)sig;
	p.signals++;
}

/* answers each question once, and knows its own number from TLS and from its stack */
static void *run_thread(void *arg)
{
	volatile uint64_t number = (uint64_t)(uintptr_t)arg;
	uint64_t seen = 0;

	own = number * 77;
	for (;;) {
		struct timespec ms = { 0, 1000000 };

		nanosleep(&ms, NULL);
		if (p.asked == seen)
			continue;
		seen++;
		if (own != number * 77)
			p.wrong++;
		p.answered++;
	}
	return NULL;
}

static bool check_threads(void)
{
	struct timespec ms = { 0, 1000000 };

	p.answered = 0;
	p.asked++;
	for (int i = 0; i < 20000 && p.answered < p.n_threads; i++)
		nanosleep(&ms, NULL);
	if (p.answered == p.n_threads && !p.wrong)
		return true;
	say("WRONG threads: %d of %zu answered\n", (int)p.answered, p.n_threads);
	return false;
}

/* SIGUSR1 is blocked by us, SIGUSR2 handled */
static bool check_process(void)
{
	int before = p.signals;
	sigset_t mask;
	void *top = sbrk(0);

	sigprocmask(SIG_BLOCK, NULL, &mask);
	raise(SIGUSR2);
	if (own != 0x1234 || p.signals != before + 1 || sigismember(&mask, SIGUSR1) != 1 ||
	    sigismember(&mask, SIGUSR2) != 0) {
		say("WRONG process: TLS or signals\n");
		return false;
	}
	if ((char *)top < (char *)p.brk || sbrk(PAGE) != top || sbrk(0) != (char *)top + PAGE ||
	    sbrk(-(intptr_t)PAGE) == (void *)-1) {
		say("WRONG brk: %p, at first %p\n", top, p.brk);
		return false;
	}
	return true;
}

/* -- commands ---------------------------------------------------------------------------------- */

static bool check_all(bool threads)
{
	size_t words = p.large_bytes / 8, end = p.zero_from / 8, quarter = p.zeroed ? words / 4 : 0;

	if (!check_zeros("zeroed", p.large, 0, quarter) || !check_words("large", p.large, quarter, end, 42) ||
	    !check_zeros("untouched", p.large, end, words))
		return false;
	for (size_t i = 0; i < p.n_areas; i++) {
		uint64_t kept = p.written;
		bool good;

		p.written = i % 2 ? 0 : kept;
		good = check_words("area", (uint64_t *)p.areas[i], 0, AREA_PAGES * 512, i);
		p.written = kept;
		if (!good)
			return false;
	}
	for (size_t i = 0; i < SMALL_BLOCKS; i++)
		for (size_t k = 0; k < 64; k++)
			if (p.small[i][k] != word_at(i, k)) {
				say("WRONG heap: block %zu\n", i);
				return false;
			}
	if (sum_libraries() != p.libraries) {
		say("WRONG libraries\n");
		return false;
	}
	return check_process() && (!threads || check_threads());
}

static void write_all(void)
{
	size_t words = p.large_bytes / 8, quarter = p.zeroed ? words / 4 : 0;

	p.written++;
	for (size_t i = quarter; i < p.zero_from / 8; i += 512)
		p.large[i]++;
	for (size_t i = 0; i < p.n_areas; i += 2)
		for (size_t k = 0; k < AREA_PAGES; k++)
			((uint64_t *)p.areas[i])[k * 512]++;
}

static void touch_all(void)
{
	volatile uint64_t sum = 0;

	for (size_t i = 0; i < p.large_bytes / 8; i += 512)
		sum += p.large[i];
	say("touched\n");
}

static void verify_in_child(void)
{
	int status = 0;
	pid_t pid = fork();

	if (pid == 0)
		_exit(check_all(false) ? 0 : 1);
	if (pid < 0 || waitpid(pid, &status, 0) < 0 || status != 0)
		say("WRONG child: status %d\n", status);
	else
		say("child verified\n");
}

static void save(const char *path)
{
	int r = selfckpt_save(path);

	if (r < 0)
		say("cannot save to '%s': %s\n", path, strerror(-r));
	else
		say(r ? "restarted\n" : "saved\n");
}

static void obey(const char *command)
{
	const char *arg = strchr(command, ' ');

	arg = arg ? arg + 1 : "";
	if (!strncmp(command, "save ", 5)) {
		save(arg);
	} else if (!strcmp(command, "verify")) {
		if (check_all(true))
			say("verified\n");
	} else if (!strcmp(command, "write")) {
		write_all();
		say("written\n");
	} else if (!strcmp(command, "touch")) {
		touch_all();
	} else if (!strcmp(command, "fork")) {
		verify_in_child();
	} else if (!strcmp(command, "zero")) {
		memset(p.large, 0, p.large_bytes / 4);
		p.zeroed = true;
		say("zeroed\n");
	} else if (!strncmp(command, "count ", 6)) {
		for (long n = strtol(arg, NULL, 10); n > 0; n--)
			say("count %" PRIu64 "\n", ++p.counter);
	} else if (!strcmp(command, "pid")) {
		say("pid %d\n", (int)getpid());
	} else if (!strncmp(command, "wait ", 5)) {
		usleep((useconds_t)(strtod(arg, NULL) * 1e6));
	} else if (!strncmp(command, "exit", 4)) {
		exit((int)strtol(arg, NULL, 10));
	} else {
		say("no such command: '%s'\n", command);
	}
}

/* byte by byte: what stood in a buffer would be in the image */
static bool read_command(char *buf, size_t room)
{
	size_t len = 0;
	char c;

	for (;;) {
		ssize_t n = read(0, &c, 1);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return false;
		if (c == '\n')
			break;
		if (len + 1 < room)
			buf[len++] = c;
	}
	buf[len] = '\0';
	return true;
}

static void prepare(size_t mib, size_t areas, size_t threads)
{
	struct sigaction sa = { .sa_handler = on_signal };
	sigset_t set;

	p.large_bytes = mib << 20;
	p.zero_from = p.large_bytes / 4 * 3;
	p.large = new_memory(p.large_bytes);
	fill(p.large, p.zero_from / 8, 42);
	make_areas(areas);
	for (size_t i = 0; i < SMALL_BLOCKS; i++) {
		p.small[i] = malloc(64 * sizeof(uint64_t));
		if (!p.small[i])
			exit(3);
		fill(p.small[i], 64, i);
	}
	for (size_t i = 0; i < threads; i++)
		if (pthread_create(&p.threads[i], NULL, run_thread, (void *)(uintptr_t)(i + 1)) != 0)
			exit(3);
	p.n_threads = threads;
	sigaction(SIGUSR2, &sa, NULL);
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigprocmask(SIG_BLOCK, &set, NULL);
	free(malloc(100000));
	p.libraries = sum_libraries();
	p.brk = sbrk(0);
}

int main(int argc, char **argv)
{
	size_t mib = 16, areas = 10, threads = 0;
	char command[4096];
	int c, r;

	while ((c = getopt(argc, argv, "m:a:t:")) != -1) {
		unsigned long n = optarg ? strtoul(optarg, NULL, 10) : 0;

		if (c == 'm')
			mib = n;
		else if (c == 'a')
			areas = n;
		else if (c == 't')
			threads = n <= MAX_THREADS ? n : MAX_THREADS;
		else
			return 2;
	}
	r = selfckpt_init();
	if (r < 0) {
		say("cannot reserve memory: %s\n", strerror(-r));
		return 1;
	}
	prepare(mib, areas, threads);
	while (read_command(command, sizeof(command)))
		obey(command);
	return 0;
}
