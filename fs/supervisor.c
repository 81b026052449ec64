/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One thread, one poll loop. Taking over (measured in facts that the tests repeat):
 *
 * - a worker's death is heard through its sentinel pipe, before it can be reaped (worker.c);
 * - the standby is activated at once, not after the reap: a thread of the dead worker may be stuck in the kernel
 *   until the successor has answered something;
 * - RESEND makes the kernel queue again every request that was read and not answered. The dying worker's threads may
 *   read some more until they are gone, so it is said again every few milliseconds until the reap, and once after it.
 */
#include "fs/supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/bytes.h"
#include "common/cleanup.h"
#include "common/log.h"
#include "fs/inode.h"
#include "fs/mountpoint.h"
#include "fs/session.h"
#include "fs/stats.h"

#define WORKER_SOCK    (STDERR_FILENO + 1)
#define MAX_WORKERS    16 /* with those that are dying */
#define RESEND_MS      15
#define RESPAWN_MS     500                          /* between two starts of a standby that failed */
#define CRASH_MAX      10                           /* as many crashes … */
#define CRASH_NS       ((uint64_t)30 * 1000000000u) /* … within this: it is the request that kills */
#define STOP_MS        3000                         /* a worker that is told to stop has so long */
#define UNUSED_NS      ((uint64_t)60 * 1000000000u) /* an unlisted image stays so long after its last use */
#define SEND_TIMEOUT_S 2

enum state { FREE, STARTING, READY, ACTIVATED, SERVING, DYING };

struct worker {
	enum state state;
	bool served;
	pid_t pid;
	int control, sentinel, log;
	uint64_t since; /* of DYING: when it was heard */
	size_t log_len;
	char log_line[1024];
};

struct held {
	struct control_msg info;
	int fd; /* -1 once retired */
	uint64_t unlisted_ns;
};

struct supervisor {
	struct fs_config cfg;
	struct session_init init;
	struct stats *stats;
	int fuse, stats_fd, signals;
	struct worker workers[MAX_WORKERS];
	struct held *slots;
	uint32_t n_slots;
	bool answered, scanned, ending, detached;
	uint64_t next_spawn, last_resend;
	uint64_t crashes[CRASH_MAX];
	unsigned n_crashes;
	int error;
	void (*answers)(void *ctx, int err);
	void *ctx;
};

/* -- workers ------------------------------------------------------------------------------------ */

/* memory with a copy of a struct in it, to pass on */
static int struct_fd(const void *data, size_t len)
{
	_cleanup_close_ int fd = memfd_create("thawfs", MFD_CLOEXEC);

	if (fd < 0)
		return -errno;
	if (pwrite(fd, data, len, 0) != (ssize_t)len)
		return -EIO;
	return steal_fd(&fd);
}

static int send_struct(int sock, enum control_type type, const void *data, size_t len)
{
	_cleanup_close_ int fd = struct_fd(data, len);

	return fd < 0 ? fd : control_send_type(sock, type, fd);
}

static int send_image(const struct held *held, int sock)
{
	struct control_msg msg = held->info;

	msg.type = CONTROL_IMAGE;
	return control_send(sock, &msg, held->fd);
}

/* all that a worker has to know. @sentinel is the end that only the worker keeps */
static int brief(const struct supervisor *sup, int sock, int sentinel)
{
	int err = send_struct(sock, CONTROL_CONFIG, &sup->cfg, sizeof(sup->cfg));

	if (!err)
		err = control_send_type(sock, CONTROL_STATS, sup->stats_fd);
	if (!err)
		err = send_struct(sock, CONTROL_INIT, &sup->init, sizeof(sup->init));
	if (!err)
		err = control_send_type(sock, CONTROL_FUSE, sup->fuse);
	if (!err)
		err = control_send_type(sock, CONTROL_SENTINEL, sentinel);
	for (uint32_t i = 0; !err && i < sup->n_slots; i++)
		if (sup->slots[i].fd >= 0)
			err = send_image(&sup->slots[i], sock);
	return err ? err : control_send_type(sock, CONTROL_SETTLED, -1);
}

/* in the child: become a worker that has nothing open but @sock, and @log to write to */
static void exec_worker(int sock, int log)
{
	char *argv[] = { "thawfs", "mount", "--worker", NULL };
	int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
	char number[16];
	sigset_t none;

	/* the standard ones are never free (main()), so all that is ours lies above them */
	if (null < 0 || dup2(null, STDIN_FILENO) < 0 || dup2(log, STDOUT_FILENO) < 0 || dup2(log, STDERR_FILENO) < 0)
		_exit(127);
	if (sock == WORKER_SOCK ? fcntl(sock, F_SETFD, 0) < 0 : dup2(sock, WORKER_SOCK) < 0)
		_exit(127);
	/* in the foreground the caller's are still among them */
	close_range(WORKER_SOCK + 1, ~0u, 0);
	snprintf(number, sizeof(number), "%d", WORKER_SOCK);
	setenv(CONTROL_FD_ENV, number, 1);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	execv("/proc/self/exe", argv);
	_exit(127);
}

static void close_worker(struct worker *w)
{
	if (w->control >= 0)
		close(w->control);
	if (w->sentinel >= 0)
		close(w->sentinel);
	if (w->log >= 0)
		close(w->log);
	*w = (struct worker){ .state = FREE, .control = -1, .sentinel = -1, .log = -1 };
}

static int make_channels(struct worker *w, int *ret_sock, int *ret_sentinel, int *ret_log)
{
	struct timeval limit = { .tv_sec = SEND_TIMEOUT_S };
	int sock[2], sentinel[2], log[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sock))
		return -errno;
	w->control = sock[0];
	*ret_sock = sock[1];
	/* a worker that does not listen must not stop us */
	setsockopt(w->control, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
	if (pipe2(sentinel, O_CLOEXEC))
		return -errno;
	w->sentinel = sentinel[0];
	*ret_sentinel = sentinel[1];
	/* messages are lost rather than waited for */
	if (pipe2(log, O_CLOEXEC | O_NONBLOCK))
		return -errno;
	w->log = log[0];
	*ret_log = log[1];
	return 0;
}

static int spawn(struct supervisor *sup)
{
	_cleanup_close_ int sock = -1, sentinel = -1, log = -1;
	struct worker *w = sup->workers;
	int err;

	while (w->state != FREE)
		if (++w == sup->workers + MAX_WORKERS)
			return -EAGAIN;
	err = make_channels(w, &sock, &sentinel, &log);
	if (!err) {
		w->pid = fork();
		if (w->pid == 0)
			exec_worker(sock, log);
		if (w->pid < 0)
			err = -errno;
	}
	if (err) {
		close_worker(w);
		return err;
	}
	w->state = STARTING;
	stats_add(&sup->stats->workers_started, 1);
	err = brief(sup, w->control, sentinel);
	if (err)
		kill(w->pid, SIGKILL);
	return err;
}

static struct worker *find_worker(struct supervisor *sup, enum state first, enum state last)
{
	for (struct worker *w = sup->workers; w < sup->workers + MAX_WORKERS; w++)
		if (w->state >= first && w->state <= last)
			return w;
	return NULL;
}

static void tell_all(struct supervisor *sup, const struct control_msg *msg, int fd)
{
	for (struct worker *w = sup->workers; w < sup->workers + MAX_WORKERS; w++)
		if (w->state >= STARTING && w->state <= SERVING && control_send(w->control, msg, fd))
			kill(w->pid, SIGKILL);
}

static void set_answered(struct supervisor *sup, int err)
{
	if (sup->answered)
		return;
	sup->answered = true;
	sup->answers(sup->ctx, err);
}

/* give up: the connection ends, whoever uses the mount gets an error */
static void give_up(struct supervisor *sup, int err)
{
	sup->error = err;
	sup->ending = true;
}

static void resend(struct supervisor *sup)
{
	session_resend(sup->fuse);
	sup->last_resend = stats_now_ns();
}

/* let the standby serve, if there is one and nobody does */
static void activate(struct supervisor *sup)
{
	struct worker *w = find_worker(sup, READY, READY);

	if (!w || sup->ending || find_worker(sup, ACTIVATED, SERVING))
		return;
	w->state = ACTIVATED;
	w->served = true;
	if (control_send_type(w->control, CONTROL_ACTIVATE, -1))
		kill(w->pid, SIGKILL);
}

/* a worker is dying, or dead: called when that is first heard */
static void on_dying(struct supervisor *sup, struct worker *w)
{
	if (w->state == DYING || w->state == FREE)
		return;
	kill(w->pid, SIGKILL);
	w->state = DYING;
	w->since = stats_now_ns();
	if (!w->served || sup->ending)
		return;
	if (!sup->stats->has_resend) {
		log_error("the worker died, and %s",
			  sup->init.io_uring ? "with io_uring no other can take over"
					     : "this kernel (before 6.9) cannot give its requests to another");
		give_up(sup, -EIO);
		return;
	}
	stats_add(&sup->stats->takeovers, 1);
	resend(sup);
	activate(sup);
}

/* the same request may kill one worker after the other: stop before that fills the logs for ever */
static bool crashes_too_often(struct supervisor *sup)
{
	uint64_t now = stats_now_ns(), *slot = &sup->crashes[sup->n_crashes++ % CRASH_MAX];
	bool often = *slot && now - *slot < CRASH_NS;

	*slot = now;
	return often;
}

static void on_reaped(struct supervisor *sup, struct worker *w, int status)
{
	bool crashed = WIFEXITED(status) || (WTERMSIG(status) != SIGKILL && WTERMSIG(status) != SIGTERM);
	bool served = w->served;

	on_dying(sup, w);
	if (sup->ending) {
		close_worker(w);
		return;
	}
	resend(sup);
	if (WIFEXITED(status))
		log_warn("a worker (process %d) ended with exit code %d", (int)w->pid, WEXITSTATUS(status));
	else
		log_warn("a worker (process %d) was ended by signal %d", (int)w->pid, WTERMSIG(status));
	close_worker(w);
	if (!served)
		sup->next_spawn = stats_now_ns() + RESPAWN_MS * 1000000u;
	if (served && crashed && crashes_too_often(sup)) {
		log_error("workers crash again and again: giving up");
		give_up(sup, -EIO);
	}
	if (!sup->answered) {
		set_answered(sup, -EIO);
		give_up(sup, -EIO);
	}
}

/* one that serves, one that stands by */
static void keep_staffed(struct supervisor *sup)
{
	uint64_t now = stats_now_ns();
	bool serving = find_worker(sup, ACTIVATED, SERVING), standby = find_worker(sup, STARTING, READY);
	int err;

	if (sup->ending || standby || (serving && !sup->answered) || (serving && !sup->stats->has_resend))
		return;
	if (now < sup->next_spawn)
		return;
	err = spawn(sup);
	sup->next_spawn = err ? now + RESPAWN_MS * 1000000u : 0;
	if (err)
		log_warn("cannot start a worker: %s", strerror(-err));
	if (err && !sup->answered) {
		set_answered(sup, err);
		give_up(sup, err);
	}
}

/* -- images ------------------------------------------------------------------------------------- */

static struct held *find_listed(struct supervisor *sup, const char *name)
{
	for (uint32_t i = 0; i < sup->n_slots; i++)
		if (sup->slots[i].fd >= 0 && sup->slots[i].info.listed && !strcmp(sup->slots[i].info.name, name))
			return &sup->slots[i];
	return NULL;
}

static void unlist(struct supervisor *sup, struct held *held)
{
	struct control_msg msg = { .type = CONTROL_UNLIST, .slot = held->info.slot };

	if (held->fd < 0 || !held->info.listed)
		return;
	held->info.listed = 0;
	held->unlisted_ns = stats_now_ns();
	stats_sub(&sup->stats->images, 1);
	tell_all(sup, &msg, -1);
}

/* takes @fd */
static int add_image(struct supervisor *sup, const struct control_msg *found, int fd)
{
	_cleanup_close_ int own = fd;
	struct held *old = find_listed(sup, found->name), *p;
	struct control_msg msg;

	/* a worker that looked twice before it heard of the slot */
	if (old && old->info.dev == found->dev && old->info.ino == found->ino && old->info.size == found->size &&
	    old->info.mtime_ns == found->mtime_ns)
		return 0;
	if (sup->n_slots == NODE_MAX_SLOTS)
		return -ENOSPC;
	if (old)
		unlist(sup, old);
	if ((sup->n_slots & (sup->n_slots - 1)) == 0) {
		p = realloc(sup->slots, max_u64(sup->n_slots * 2ull, 1) * sizeof(*p));
		if (!p)
			return -ENOMEM;
		sup->slots = p;
	}
	p = &sup->slots[sup->n_slots];
	*p = (struct held){ .info = *found, .fd = steal_fd(&own) };
	p->info.slot = sup->n_slots++;
	p->info.listed = 1;
	stats_add(&sup->stats->images, 1);
	msg = p->info;
	msg.type = CONTROL_IMAGE;
	tell_all(sup, &msg, p->fd);
	return 0;
}

/* close images whose name is gone and of which nothing has been open for a while. Return: when to look again */
static uint64_t retire_unused(struct supervisor *sup)
{
	uint64_t now = stats_now_ns(), next = UINT64_MAX;

	for (uint32_t i = 0; i < sup->n_slots && i < STATS_SLOTS; i++) {
		struct control_msg msg = { .type = CONTROL_RETIRE, .slot = i };
		struct held *held = &sup->slots[i];

		if (held->fd < 0 || held->info.listed)
			continue;
		if (sup->stats->opens[i])
			held->unlisted_ns = now;
		if (now - held->unlisted_ns < UNUSED_NS) {
			next = min_u64(next, held->unlisted_ns + UNUSED_NS);
			continue;
		}
		tell_all(sup, &msg, -1);
		close(held->fd);
		held->fd = -1;
	}
	return next;
}

/* -- events ------------------------------------------------------------------------------------- */

static void tune_readahead(struct supervisor *sup)
{
	uint32_t kb = 0;
	int err = mountpoint_set_readahead(sup->cfg.mnt, sup->cfg.readahead_kb, &kb);

	sup->stats->readahead_kb = kb;
	if (err)
		log_note("the kernel's read-ahead stays at %u KiB: %s", kb, strerror(-err));
}

static void maybe_answered(struct supervisor *sup)
{
	if (sup->answered || !find_worker(sup, SERVING, SERVING) || (sup->cfg.store && !sup->scanned))
		return;
	tune_readahead(sup);
	set_answered(sup, 0);
}

static void on_serving(struct supervisor *sup, struct worker *w)
{
	struct worker *dead = find_worker(sup, DYING, DYING);
	uint64_t took = dead ? stats_now_ns() - dead->since : 0;

	w->state = SERVING;
	if (took > stats_get(&sup->stats->takeover_ns_max))
		sup->stats->takeover_ns_max = took;
	if (dead)
		resend(sup);
}

static void on_message(struct supervisor *sup, struct worker *w, const struct control_msg *msg, int fd)
{
	int err = 0;

	switch (msg->type) {
	case CONTROL_READY:
		if (w->state == STARTING)
			w->state = READY;
		activate(sup);
		break;
	case CONTROL_SERVING:
		if (w->state == ACTIVATED)
			on_serving(sup, w);
		break;
	case CONTROL_FOUND:
		err = add_image(sup, msg, fd);
		fd = -1;
		break;
	case CONTROL_VANISHED:
		if (msg->slot < sup->n_slots)
			unlist(sup, &sup->slots[msg->slot]);
		break;
	case CONTROL_SCANNED:
		sup->scanned = true;
		break;
	default:
		err = -EPROTO;
	}
	if (fd >= 0)
		close(fd);
	if (err)
		log_warn("cannot do what a worker asks: %s", strerror(-err));
	maybe_answered(sup);
}

static void on_control(struct supervisor *sup, struct worker *w)
{
	struct control_msg msg;
	int fd, n = control_recv(w->control, &msg, &fd);

	if (n > 0) {
		on_message(sup, w, &msg, fd);
	} else if (n == -EMFILE) {
		log_warn("cannot show another image: too many open files");
	} else if (n != -EAGAIN) {
		/* it closes its end only by ending */
		close(w->control);
		w->control = -1;
		on_dying(sup, w);
	}
}

/* pass on what a worker writes to its standard error, line by line. Return: false when there is no more now */
static bool on_log(struct worker *w)
{
	static const char prefix[] = "thawfs: ";
	ssize_t n = read(w->log, w->log_line + w->log_len, sizeof(w->log_line) - 1 - w->log_len);
	char *line = w->log_line, *end;

	if (n <= 0) {
		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return false;
		close(w->log);
		w->log = -1;
		return false;
	}
	w->log_len += (size_t)n;
	w->log_line[w->log_len] = '\0';
	while ((end = strchr(line, '\n')) || (line == w->log_line && w->log_len == sizeof(w->log_line) - 1)) {
		if (end)
			*end = '\0';
		if (!strncmp(line, prefix, strlen(prefix)))
			line += strlen(prefix);
		log_error("%s", line);
		line = end ? end + 1 : w->log_line + w->log_len;
	}
	w->log_len -= (size_t)(line - w->log_line);
	memmove(w->log_line, line, w->log_len);
	return true;
}

static void reap(struct supervisor *sup)
{
	for (struct worker *w = sup->workers; w < sup->workers + MAX_WORKERS; w++) {
		int status;

		if (w->state == FREE || waitpid(w->pid, &status, WNOHANG) != w->pid)
			continue;
		while (w->log >= 0 && on_log(w))
			;
		on_reaped(sup, w, status);
	}
}

/* asked to end: readers that are inside keep what they have, as long as we are not asked again */
static void on_terminate(struct supervisor *sup)
{
	int err;

	if (sup->detached) {
		log_warn("told to end again: cutting off who still uses '%s'", sup->cfg.mnt);
		sup->ending = true;
		return;
	}
	err = mountpoint_unmount(sup->cfg.mnt, false);
	if (err == -EBUSY) {
		log_warn("'%s' is in use: detached, and served until the last user is gone", sup->cfg.mnt);
		mountpoint_holders(sup->cfg.mnt, 10, stderr);
		err = mountpoint_unmount(sup->cfg.mnt, true);
		sup->detached = !err;
	}
	if (err && err != -EINVAL)
		log_error("cannot unmount '%s': %s", sup->cfg.mnt, strerror(-err));
	if (err)
		sup->ending = true;
}

static void on_signal(struct supervisor *sup)
{
	struct signalfd_siginfo info;

	while (read(sup->signals, &info, sizeof(info)) == sizeof(info)) {
		if (info.ssi_signo == SIGCHLD)
			reap(sup);
		else
			on_terminate(sup);
	}
}

/* milliseconds until something is due, -1 for never */
static int next_timeout(struct supervisor *sup)
{
	uint64_t now = stats_now_ns(), next = retire_unused(sup);

	if (find_worker(sup, DYING, DYING))
		next = min_u64(next, sup->last_resend + RESEND_MS * 1000000u);
	if (sup->next_spawn)
		next = min_u64(next, sup->next_spawn);
	if (next == UINT64_MAX)
		return -1;
	return next <= now ? 0 : (int)min_u64((next - now) / 1000000 + 1, 60000);
}

static void on_worker_events(struct supervisor *sup, struct worker *w, const struct pollfd fds[3])
{
	if (fds[2].revents && w->log >= 0)
		on_log(w);
	/* what it said before it died comes first, then that it did */
	if (fds[0].revents && w->control >= 0)
		on_control(sup, w);
	if (fds[1].revents & (POLLHUP | POLLERR) && w->sentinel >= 0) {
		close(w->sentinel);
		w->sentinel = -1;
		on_dying(sup, w);
	}
}

static void loop_once(struct supervisor *sup)
{
	struct pollfd fds[2 + MAX_WORKERS * 3];

	keep_staffed(sup);
	fds[0] = (struct pollfd){ .fd = sup->signals, .events = POLLIN };
	/* an error there says that the mount is gone */
	fds[1] = (struct pollfd){ .fd = sup->fuse };
	for (int i = 0; i < MAX_WORKERS; i++) {
		const struct worker *w = &sup->workers[i];

		fds[2 + i * 3] = (struct pollfd){ .fd = w->control, .events = POLLIN };
		fds[3 + i * 3] = (struct pollfd){ .fd = w->sentinel };
		fds[4 + i * 3] = (struct pollfd){ .fd = w->log, .events = POLLIN };
	}
	if (poll(fds, ARRAY_SIZE(fds), next_timeout(sup)) < 0 && errno != EINTR) {
		give_up(sup, -errno);
		return;
	}
	if (fds[1].revents & (POLLERR | POLLHUP)) {
		sup->ending = true;
		return;
	}
	for (int i = 0; i < MAX_WORKERS; i++)
		if (sup->workers[i].state != FREE)
			on_worker_events(sup, &sup->workers[i], &fds[2 + i * 3]);
	if (fds[0].revents)
		on_signal(sup);
	if (find_worker(sup, DYING, DYING) && stats_now_ns() - sup->last_resend >= RESEND_MS * 1000000u)
		resend(sup);
}

/* -- beginning and end --------------------------------------------------------------------------- */

/* every image takes a descriptor */
static void raise_file_limit(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
}

static int catch_signals(struct supervisor *sup)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGHUP);
	sigprocmask(SIG_BLOCK, &set, NULL);
	signal(SIGPIPE, SIG_IGN);
	sup->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	return sup->signals < 0 ? -errno : 0;
}

/* the kernel takes backing files only from root */
static bool may_pass(const struct fs_config *cfg)
{
	return cfg->hydrate_dir[0] && geteuid() == 0;
}

static int begin(struct supervisor *sup, const struct control_msg *image, int image_fd)
{
	_cleanup_close_ int own = image_fd;
	int err = stats_new(&sup->stats_fd, &sup->stats);

	raise_file_limit();
	if (!err) {
		sup->stats->supervisor_pid = getpid();
		err = catch_signals(sup);
	}
	if (!err && !sup->cfg.store)
		err = add_image(sup, image, steal_fd(&own));
	if (err) {
		log_error("cannot start: %s", strerror(-err));
		return err;
	}
	err = mountpoint_mount(&sup->cfg, &sup->fuse);
	if (err)
		return err;
	err = session_negotiate(sup->fuse, may_pass(&sup->cfg), sup->cfg.io_uring, &sup->init);
	if (err) {
		mountpoint_unmount(sup->cfg.mnt, true);
		return err;
	}
	sup->stats->has_passthrough = sup->init.passthrough;
	if (sup->cfg.hydrate_dir[0] && !sup->init.passthrough)
		log_warn("cannot hydrate files: %s; they are served as without hydrate_dir",
			 may_pass(&sup->cfg) ? "this kernel has no FUSE passthrough" : "only root may");
	sup->stats->has_io_uring = sup->init.io_uring;
	if (sup->cfg.io_uring && !sup->init.io_uring)
		log_warn("io_uring is not used: %s; requests are read as without it",
			 session_knows_io_uring() ? "the kernel does not offer it (Linux 6.14, with Y in "
						    "/sys/module/fuse/parameters/enable_uring)"
						  : "this program was built with a libfuse before 3.18");
	/* rings belong to the process that made them: there is nothing that another one could take over */
	sup->stats->has_resend = !sup->init.io_uring && session_can_resend(&sup->init);
	return 0;
}

static unsigned n_alive(const struct supervisor *sup)
{
	unsigned n = 0;

	for (int i = 0; i < MAX_WORKERS; i++)
		n += sup->workers[i].state != FREE;
	return n;
}

/* the workers may finish if they do it soon; one that hangs in storage is left behind with its kill pending */
static void end(struct supervisor *sup)
{
	uint64_t until = stats_now_ns() + STOP_MS * 1000000u;
	struct control_msg stop = { .type = CONTROL_STOP };

	if (sup->error || !sup->answered)
		mountpoint_unmount(sup->cfg.mnt, true);
	set_answered(sup, sup->error ? sup->error : -EIO);
	tell_all(sup, &stop, -1);
	close(sup->fuse);
	while (n_alive(sup) && stats_now_ns() < until) {
		struct pollfd fd = { .fd = sup->signals, .events = POLLIN };

		reap(sup);
		if (n_alive(sup))
			poll(&fd, 1, 10);
	}
	for (int i = 0; i < MAX_WORKERS; i++)
		if (sup->workers[i].state != FREE) {
			kill(sup->workers[i].pid, SIGKILL);
			close_worker(&sup->workers[i]);
		}
	for (uint32_t i = 0; i < sup->n_slots; i++)
		if (sup->slots[i].fd >= 0)
			close(sup->slots[i].fd);
	free(sup->slots);
	munmap(sup->stats, sizeof(*sup->stats));
	close(sup->stats_fd);
	close(sup->signals);
}

int supervisor_run(const struct fs_config *cfg, const struct control_msg *image, int image_fd,
		   void (*answers)(void *ctx, int err), void *ctx)
{
	static struct supervisor sup;
	int err;

	sup = (struct supervisor){ .cfg = *cfg, .answers = answers, .ctx = ctx };
	for (int i = 0; i < MAX_WORKERS; i++)
		sup.workers[i] = (struct worker){ .control = -1, .sentinel = -1, .log = -1 };
	err = begin(&sup, image, image_fd);
	if (err) {
		set_answered(&sup, err);
		return err;
	}
	while (!sup.ending)
		loop_once(&sup);
	end(&sup);
	return sup.error;
}
