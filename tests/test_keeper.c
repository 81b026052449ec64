/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory served by processes that are killed all the time: those who wait for it wait a little longer, and see nothing
 * but what the image has; when nobody can serve any more, they die of it.
 */
#include <errno.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>

#include "restore/keeper.h"
#include "tests/served.h"

/* a process whose memory is served; it begins when it is told to */
struct target {
	pid_t pid;
	int sock;
};

static void send_uffd(int sock, int uffd, uint64_t addr)
{
	union {
		char buf[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control = { { 0 } };
	struct iovec iov = { &addr, sizeof(addr) };
	struct msghdr msg = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.buf, .msg_controllen = sizeof(control.buf)
	};
	struct cmsghdr *c = CMSG_FIRSTHDR(&msg);

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &uffd, sizeof(uffd));
	CHECK(sendmsg(sock, &msg, 0) == (ssize_t)sizeof(addr));
}

static int receive_uffd(int sock, uint64_t *ret_addr)
{
	union {
		char buf[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control = { { 0 } };
	struct iovec iov = { ret_addr, sizeof(*ret_addr) };
	struct msghdr msg = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.buf, .msg_controllen = sizeof(control.buf)
	};
	int fd;

	CHECK(recvmsg(sock, &msg, MSG_CMSG_CLOEXEC) == (ssize_t)sizeof(*ret_addr) && CMSG_FIRSTHDR(&msg));
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof(fd));
	return fd;
}

static bool same(const uint8_t *mem, const uint8_t *good, size_t len)
{
	return memcmp(mem, good, len) == 0;
}

/* all kinds of changes while the memory comes, then everything is compared. Return: 0 or which part is wrong */
static int use_memory(uint8_t *mem)
{
	static const uint8_t zeros[1 << 20];
	uint8_t *to = mmap(NULL, 4 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int status;

	if (to == MAP_FAILED || madvise(mem + (1 << 20), 1 << 20, MADV_DONTNEED) ||
	    mremap(mem + (4 << 20), 4 << 20, 4 << 20, MREMAP_MAYMOVE | MREMAP_FIXED, to) != to ||
	    munmap(mem + (9 << 20), 1 << 20))
		return 1;
	for (int i = 0; i < 8; i++) {
		pid_t pid = fork();

		if (pid == 0)
			_exit(!same(mem + (16 << 20), want + (16 << 20), 4 << 20) ||
			      !same(to, want + (4 << 20), 4 << 20));
		if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0)
			return 2;
	}
	for (size_t i = 0; i < 200; i++) {
		uint8_t *page = mem + (20 << 20) + i % 512 * PAGE;

		if (madvise(page, PAGE, MADV_DONTNEED) || !same(page, zeros, PAGE))
			return 3;
	}
	if (!same(mem, want, 1 << 20) || !same(mem + (1 << 20), zeros, 1 << 20))
		return 4;
	if (!same(mem + (2 << 20), want + (2 << 20), 2 << 20) || !same(to, want + (4 << 20), 4 << 20))
		return 5;
	if (!same(mem + (8 << 20), want + (8 << 20), 1 << 20) || !same(mem + (10 << 20), want + (10 << 20), 10 << 20) ||
	    !same(mem + (20 << 20), zeros, 200 * PAGE) || !same(mem + (22 << 20), want + (22 << 20), 2 << 20))
		return 6;
	return 0;
}

/* more changes than the log has room for */
static int use_log(uint8_t *mem)
{
	uint8_t *gone = mem + (20 << 20), *away = mmap(NULL, 1 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	static const uint8_t zeros[PAGE];

	if (away == MAP_FAILED || mremap(mem, 1 << 20, 1 << 20, MREMAP_MAYMOVE | MREMAP_FIXED, away) != away)
		return 1;
	for (size_t i = 0; i < 3 * ROSTER_SLOTS; i++)
		if (madvise(gone + i % 64 * PAGE, PAGE, MADV_DONTNEED))
			return 2;
	for (size_t i = 0; i < 64; i++)
		if (!same(gone + i * PAGE, zeros, PAGE))
			return 3;
	return !same(away, want, 1 << 20) || !same(gone + 64 * PAGE, want + (20 << 20) + 64 * PAGE, 1 << 20) ? 4 : 0;
}

static int read_memory(uint8_t *mem)
{
	return !same(mem, want, LEN);
}

static void start_target(int (*use)(uint8_t *mem), struct target *ret)
{
	int sock[2];

	CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sock) == 0);
	ret->pid = fork();
	CHECK(ret->pid >= 0);
	if (!ret->pid) {
		int fd = open_uffd();
		uint8_t *mem = map_missing(fd);
		char go;

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		send_uffd(sock[1], fd, (uintptr_t)mem);
		close(fd);
		CHECK(read(sock[1], &go, 1) == 1);
		_exit(use(mem));
	}
	close(sock[1]);
	ret->sock = sock[0];
}

static size_t watch_nothing(void *ctx, struct pollfd *fds)
{
	(void)ctx;
	(void)fds;
	return 0;
}
static int never_ready(void *ctx, struct roster *roster, const struct pollfd *fds, size_t n)
{
	(void)ctx;
	(void)roster;
	(void)fds;
	(void)n;
	return -EIO;
}
static const struct keeper_events no_events = { watch_nothing, never_ready };

/* a keeper for @n targets, which then begin. Return: its pid */
static pid_t start_keeper(const char *path, struct target *targets, size_t n, bool fill, struct roster **ret_roster)
{
	struct roster *roster = roster_new();
	pid_t pid;
	char go = 1;

	CHECK(roster);
	pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		struct image *img;
		int err;

		CHECK(image_open(path, NULL, &img) == 0);
		for (size_t i = 0; i < n; i++) {
			struct pageserver_range range = { .len = LEN, .src = BASE };
			int fd = receive_uffd(targets[i].sock, &range.addr);

			CHECK(roster_add(roster, fd, targets[i].pid, 0, &range, 1) == 0);
		}
		if (fill)
			keeper_fill(roster);
		for (size_t i = 0; i < n; i++)
			CHECK(write(targets[i].sock, &go, 1) == 1);
		err = keeper_run(img, NULL, 2, roster, &no_events, NULL);
		_exit(-err);
	}
	*ret_roster = roster;
	return pid;
}

static void pause_us(unsigned us)
{
	struct timespec t = { .tv_nsec = (long)us * 1000 };

	nanosleep(&t, NULL);
}

static pid_t wait_for_change(_Atomic pid_t *pid, pid_t old)
{
	for (int i = 0; i < 20000 && *pid == old; i++)
		pause_us(500);
	CHECK(*pid != old);
	return *pid;
}

static int end_status(pid_t pid)
{
	int status;

	CHECK(waitpid(pid, &status, 0) == pid);
	return status;
}

static bool ended(pid_t pid)
{
	siginfo_t info = { 0 };

	CHECK(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0);
	return info.si_pid == pid;
}

/* kill servers while processes use their memory */
static void test_killed(unsigned rounds)
{
	uint64_t state = 99;
	unsigned all_kills = 0;

	for (unsigned round = 0; round < rounds; round++) {
		struct target targets[2];
		struct roster *roster;
		unsigned kills = 0;
		pid_t keeper;

		start_target(use_memory, &targets[0]);
		start_target(read_memory, &targets[1]);
		keeper = start_keeper(image, targets, 2, round % 2, &roster);
		while (!ended(targets[0].pid) || !ended(targets[1].pid)) {
			pause_us((unsigned)(test_random(&state) % 6000));
			/* a machine with much else to do would never come to an end of it */
			if (kills < 25 && roster->server_pid > 0 && kill(roster->server_pid, SIGKILL) == 0)
				kills++;
		}
		CHECK_EQ(end_status(targets[0].pid), 0);
		CHECK_EQ(end_status(targets[1].pid), 0);
		CHECK_EQ(roster->counts.poisoned_bytes, 0);
		keeper_fill(roster);
		CHECK_EQ(end_status(keeper), 0);
		roster_free(roster);
		close(targets[0].sock);
		close(targets[1].sock);
		all_kills += kills;
	}
	CHECK(all_kills > rounds);
}

static void test_log(void)
{
	struct target target;
	struct roster *roster;
	pid_t keeper;
	int kills = 0;

	start_target(use_log, &target);
	keeper = start_keeper(image, &target, 1, false, &roster);
	while (!ended(target.pid)) {
		pause_us(5000);
		if (roster->server_pid > 0 && kills++ < 20)
			kill(roster->server_pid, SIGKILL);
	}
	CHECK_EQ(end_status(target.pid), 0);
	CHECK(roster->snapshots[roster->current].seq > ROSTER_SLOTS);
	keeper_fill(roster);
	CHECK_EQ(end_status(keeper), 0);
	roster_free(roster);
}

/* the keeper dies, and the one after it, and servers with them */
static void test_keeper_killed(void)
{
	struct target target;
	struct roster *roster;
	pid_t first, second, server;

	start_target(use_memory, &target);
	first = start_keeper(image, &target, 1, false, &roster);
	server = wait_for_change(&roster->server_pid, 0);
	kill(first, SIGKILL);
	second = wait_for_change(&roster->keeper_pid, first);
	kill(server, SIGKILL);
	server = wait_for_change(&roster->server_pid, server);
	kill(second, SIGKILL);
	wait_for_change(&roster->keeper_pid, second);
	CHECK_EQ(end_status(target.pid), 0);
	CHECK_EQ(WTERMSIG(end_status(first)), SIGKILL);
	kill(server, SIGKILL);
	keeper_fill(roster);
	wait_for_change((_Atomic pid_t *)&roster->complete, 0);
	roster_free(roster);
}

/* servers that die without doing anything: the process does not see zeros */
static void test_given_up(void)
{
	struct target target;
	struct roster *roster;
	pid_t keeper, server = 0;
	char go = 1;
	int status;

	start_target(read_memory, &target);
	roster = roster_new();
	CHECK(roster);
	keeper = fork();
	CHECK(keeper >= 0);
	if (!keeper) {
		struct pageserver_range range = { .len = LEN, .src = BASE };
		int fd = receive_uffd(target.sock, &range.addr);
		struct image *img;

		CHECK(image_open(image, NULL, &img) == 0);
		CHECK(roster_add(roster, fd, target.pid, 0, &range, 1) == 0);
		_exit(-keeper_run(img, NULL, 1, roster, &no_events, NULL));
	}
	while (!ended(keeper)) {
		if (roster->server_pid > 0 && roster->server_pid != server) {
			server = roster->server_pid;
			kill(server, SIGUSR1); /* like a crash, but without a core */
		}
		pause_us(200);
	}
	CHECK_EQ(WEXITSTATUS(end_status(keeper)), EIO);
	CHECK(write(target.sock, &go, 1) == 1);
	status = end_status(target.pid);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
	roster_free(roster);
}

static void test_damage(void)
{
	struct target target;
	struct roster *roster;
	pid_t keeper;
	int status;

	start_target(read_memory, &target);
	keeper = start_keeper(damaged, &target, 1, true, &roster);
	kill(wait_for_change(&roster->server_pid, 0), SIGKILL);
	status = end_status(target.pid);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
	CHECK_EQ(end_status(keeper), 0);
	CHECK(roster->counts.poisoned_bytes >= PAGE);
	roster_free(roster);
}

int main(void)
{
	const char *san = getenv("THAW_SAN");
	int fd = open_uffd();

	if (fd < 0) {
		printf("needs userfaultfd with its events: %s\n", strerror(errno));
		return 77;
	}
	close(fd);
	if (san && strcmp(san, "tsan") == 0) {
		printf("ThreadSanitizer does not know processes made by clone\n");
		return 77;
	}
	make_images();
	test_killed(getenv("THAW_LONG") ? 100 : 8);
	test_log();
	test_keeper_killed();
	test_given_up();
	test_damage();
	return 0;
}
