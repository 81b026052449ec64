/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processes: the keeper (this one), the server, the holder; each made by clone(CLONE_FILES), so none of them may
 * execute another program, and a descriptor number means the same in all of them. The keeper never looks into the
 * image and does nothing that depends on its contents. They hear of each other's death through pidfds, which are
 * ready when all threads are gone: only then may a successor start, as the dead one's last system calls may still place
 * pages.
 *
 * The holder waits for the keeper's death and is the keeper from then on, with a new holder.
 */
#include "restore/keeper.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/log.h"

#define BARREN_MAX  20  /* servers in a row that placed nothing and died of themselves */
#define KILLED_MAX  500 /* … or were killed, which may be for want of memory */
#define BARREN_SOON 3   /* as many are replaced at once, then after a while */
#define BARREN_MS   10
#define OWN_FDS     3

struct shared {
	_Atomic int server; /* pidfd; -1: there is none */
	_Atomic int over;
	_Atomic int result;
	/* since when no page was placed */
	uint64_t placed;
	unsigned barren, killed;
};

struct keeper {
	struct image *img;
	const struct plain *plain;
	unsigned threads;
	struct roster *roster;
	const struct keeper_events *events;
	void *ctx;
	struct shared *shared;
	int signals, holder; /* signalfd, pidfd */
	pid_t holder_pid;
};

/* -- processes ---------------------------------------------------------------------------------- */

/* fork(2) with one table of descriptors. Return: as fork() */
static pid_t fork_sharing(void)
{
	int *tid = NULL;
	unsigned long flags = CLONE_FILES | SIGCHLD;

	/* the C library has the thread's id there, and knows nothing of this clone */
	if (prctl(PR_GET_TID_ADDRESS, &tid, 0, 0, 0) == 0 && tid)
		flags |= CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID;
#ifdef __x86_64__
	return (pid_t)syscall(SYS_clone, flags, NULL, NULL, tid, NULL);
#else
	return (pid_t)syscall(SYS_clone, flags, NULL, NULL, NULL, tid);
#endif
}

static int pidfd_of(pid_t pid)
{
	return (int)syscall(SYS_pidfd_open, pid, 0);
}

static void end_process(int pidfd)
{
	struct pollfd fd = { .fd = pidfd, .events = POLLIN };

	(void)syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, NULL, 0);
	while (poll(&fd, 1, -1) < 0 && errno == EINTR)
		;
}

static _Noreturn void serve(const struct keeper *k)
{
	struct pageserver *ps;
	int err;

	prctl(PR_SET_NAME, "thawfs-pages");
	err = pageserver_new(k->img, k->plain, k->threads, k->roster, &ps);
	if (err) {
		log_error("cannot serve memory: %s", strerror(-err));
		_exit(1);
	}
	pageserver_wait(ps);
	k->roster->complete = 1;
	_exit(0);
}

static int start_server(struct keeper *k)
{
	pid_t pid = fork_sharing();
	int fd;

	if (pid == 0)
		serve(k);
	if (pid < 0)
		return -errno;
	fd = pidfd_of(pid);
	if (fd < 0) {
		int err = -errno;

		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
		return err;
	}
	k->roster->server_pid = pid;
	k->shared->server = fd;
	return 0;
}

static int supervise(struct keeper *k);

static _Noreturn void hold(struct keeper *k, int keeper)
{
	struct pollfd fd = { .fd = keeper, .events = POLLIN };

	prctl(PR_SET_NAME, "thawfs-hold");
	while (poll(&fd, 1, -1) < 0 && errno == EINTR)
		;
	close(keeper);
	if (k->shared->over)
		_exit(0);
	log_warn("the process that watched the page server died; another one does");
	prctl(PR_SET_NAME, "thawfs-keeper");
	_exit(supervise(k) ? 1 : 0);
}

static int start_holder(struct keeper *k)
{
	int self = pidfd_of(getpid());
	pid_t pid = self < 0 ? -1 : fork_sharing();

	if (pid == 0)
		hold(k, self);
	if (pid < 0)
		return -errno;
	k->holder = pidfd_of(pid);
	k->holder_pid = pid;
	return k->holder < 0 ? -errno : 0;
}

/* -- the keeper --------------------------------------------------------------------------------- */

static uint64_t placed(const struct roster *roster)
{
	const struct roster_counts *c = &roster->counts;

	return c->demand_bytes + c->fill_bytes + c->zero_pages + c->poisoned_bytes;
}

/* Return: 0: start another one; -EIO: given up */
static int server_died(struct keeper *k)
{
	struct shared *s = k->shared;
	uint64_t now = placed(k->roster);
	int status = SIGKILL; /* whose parent died cannot be asked */

	close(s->server);
	s->server = -1;
	(void)waitpid(k->roster->server_pid, &status, WNOHANG);
	if (now != s->placed)
		s->barren = s->killed = 0;
	s->placed = now;
	if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
		s->killed++;
	else
		s->barren++;
	if (s->barren > BARREN_MAX || s->killed > KILLED_MAX) {
		log_error("%u page servers died without placing a page: what is missing is poisoned",
			  s->barren + s->killed);
		pageserver_poison(k->roster);
		return -EIO;
	}
	log_warn("the page server died; another one takes over");
	if (s->barren + s->killed > BARREN_SOON)
		usleep(BARREN_MS * 1000);
	return 0;
}

static int asked_to_end(const struct keeper *k)
{
	struct signalfd_siginfo info;

	if (read(k->signals, &info, sizeof(info)) != (ssize_t)sizeof(info))
		return 0;
	if (!k->roster->n_added)
		return -ECANCELED;
	log_note("processes still miss memory: the page server ends when it is all there");
	keeper_fill(k->roster);
	return 0;
}

static int wait_once(struct keeper *k)
{
	struct pollfd fds[OWN_FDS + KEEPER_FDS] = {
		{ .fd = k->signals, .events = POLLIN },
		{ .fd = k->shared->server, .events = POLLIN },
		{ .fd = k->holder, .events = POLLIN },
	};
	size_t n = k->events->watch(k->ctx, fds + OWN_FDS);

	if (poll(fds, OWN_FDS + n, -1) < 0)
		return errno == EINTR ? 0 : -errno;
	if (fds[0].revents)
		return asked_to_end(k);
	if (fds[1].revents) {
		if (k->roster->complete)
			return 1;
		return server_died(k);
	}
	if (fds[2].revents) {
		close(k->holder);
		k->holder = -1;
		waitpid(k->holder_pid, NULL, WNOHANG);
	}
	for (size_t i = 0; i < n; i++)
		if (fds[OWN_FDS + i].revents)
			return k->events->ready(k->ctx, k->roster, fds + OWN_FDS, n);
	return 0;
}

/* Return: 0 when all memory is there, -errno */
static int supervise(struct keeper *k)
{
	int r = 0;

	k->holder = -1;
	k->roster->keeper_pid = getpid();
	while (r == 0) {
		if (k->holder < 0)
			r = start_holder(k);
		if (r == 0 && k->shared->server < 0)
			r = start_server(k);
		if (r < 0)
			log_error("cannot start a process that serves memory: %s", strerror(-r));
		else
			r = wait_once(k);
	}
	if (k->shared->server >= 0)
		end_process(k->shared->server);
	k->shared->over = 1;
	if (k->holder >= 0) {
		end_process(k->holder);
		close(k->holder);
		waitpid(k->holder_pid, NULL, 0);
	}
	waitpid(k->roster->server_pid, NULL, WNOHANG);
	return r < 0 ? r : 0;
}

void keeper_fill(struct roster *roster)
{
	roster->filling = 1;
	roster_poke(roster);
}

/* as many descriptors as there may be processes */
static void raise_limit(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
		limit.rlim_cur = limit.rlim_max;
		(void)setrlimit(RLIMIT_NOFILE, &limit);
	}
}

int keeper_run(struct image *img, const struct plain *plain, unsigned threads, struct roster *roster,
	       const struct keeper_events *events, void *ctx)
{
	struct keeper k = { .img = img,
			    .plain = plain,
			    .threads = threads,
			    .roster = roster,
			    .events = events,
			    .ctx = ctx,
			    .holder = -1 };
	sigset_t ending, old;
	int err;

	k.shared = mmap(NULL, sizeof(*k.shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (k.shared == MAP_FAILED)
		return -errno;
	k.shared->server = -1;
	raise_limit();
	sigemptyset(&ending);
	sigaddset(&ending, SIGINT);
	sigaddset(&ending, SIGTERM);
	sigaddset(&ending, SIGHUP);
	/* the others do not get them at all */
	sigprocmask(SIG_BLOCK, &ending, &old);
	k.signals = signalfd(-1, &ending, SFD_CLOEXEC | SFD_NONBLOCK);
	err = k.signals < 0 ? -errno : supervise(&k);
	if (k.signals >= 0)
		close(k.signals);
	sigprocmask(SIG_SETMASK, &old, NULL);
	munmap(k.shared, sizeof(*k.shared));
	return err;
}
