/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Thread model: the main thread listens to the supervisor and nothing else; session.c's threads serve; store.c's
 * thread watches a store; others of record.c, hydrate.c and prefetch.c; the sentinel thread waits to die.
 *
 * The sentinel: a worker that was killed can linger, because a thread of it may be stuck in the kernel (a push
 * waits for a page that only the successor can fill), and until then its descriptors stay open and its parent hears
 * nothing. So one thread has a descriptor table of its own with a single pipe in it, and does nothing: a SIGKILL ends
 * it at once, whatever the others do, and the supervisor sees the pipe close.
 */
#include "fs/worker.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/log.h"
#include "fs/control.h"
#include "fs/fs.h"
#include "fs/hydrate.h"
#include "fs/ops.h"
#include "fs/prefetch.h"
#include "fs/record.h"
#include "fs/session.h"
#include "fs/store.h"

struct worker {
	struct fs fs;
	struct store *store;
	struct session_init init;
	int control;
	int fuse;  /* -1 once the session has it */
	int ended; /* eventfd: the kernel ended the session */
	bool ready, active, orphan;
};

/* -- sentinel ----------------------------------------------------------------------------------- */

struct sentinel {
	int fd;
	sem_t apart; /* posted once the thread has its own table */
	int error;
};

static void *watch_over_us(void *arg)
{
	struct sentinel *s = arg;
	int fd = s->fd;

	if (unshare(CLONE_FILES)) {
		s->error = -errno;
		sem_post(&s->apart);
		return NULL;
	}
	if (fd > 0)
		close_range(0, (unsigned)fd - 1, 0);
	close_range((unsigned)fd + 1, ~0u, 0);
	sem_post(&s->apart);
	for (;;)
		pause();
	return NULL;
}

/* takes @fd */
static int start_sentinel(int fd)
{
	struct sentinel s = { .fd = fd };
	pthread_attr_t attr;
	pthread_t thread;
	int err;

	sem_init(&s.apart, 0, 0);
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attr, 64 << 10);
	err = -pthread_create(&thread, &attr, watch_over_us, &s);
	pthread_attr_destroy(&attr);
	if (!err) {
		while (sem_wait(&s.apart))
			;
		err = s.error;
	}
	sem_destroy(&s.apart);
	close(fd);
	return err;
}

/* -- what the supervisor says ------------------------------------------------------------------- */

/* a struct handed over as memory. Takes @fd */
static int read_struct(int fd, void *data, size_t len)
{
	_cleanup_close_ int own = fd;
	ssize_t n = pread(own, data, len, 0);

	if (n < 0)
		return -errno;
	return (size_t)n == len ? 0 : -EPROTO;
}

static int on_config(struct worker *w, int fd)
{
	struct fs_config *cfg = &w->fs.cfg;
	int err = read_struct(fd, cfg, sizeof(*cfg));

	if (!err && (cfg->version != FS_CONFIG_VERSION || cfg->size != sizeof(*cfg) || cfg->threads == 0))
		err = -EPROTO;
	return err ? err : slots_new(cfg->src, cfg->store, &w->fs.slots);
}

static int open_session(struct worker *w)
{
	int fd = w->fuse;

	w->fuse = -1;
	return session_open(&w->fs, fd, &w->init);
}

/* everything is known: make what serving needs, so that taking over is quick */
static int on_settled(struct worker *w)
{
	int err = cache_new(w->fs.cfg.cache_bytes, w->fs.stats, &w->fs.cache);

	/* rings serve as soon as they are there */
	if (!err && !w->init.io_uring)
		err = open_session(w);
	if (!err && w->fs.cfg.store)
		err = store_new(&w->fs, w->control, &w->store);
	if (err)
		return err;
	w->ready = true;
	return control_send_type(w->control, CONTROL_READY, -1);
}

static int on_activate(struct worker *w)
{
	int err = w->fs.cfg.record ? record_new(&w->fs, &w->fs.recorder) : 0;

	if (!err && w->init.passthrough)
		err = hydrate_new(&w->fs, &w->fs.hydrator);
	if (!err && w->fs.cfg.prefetch != FS_PREFETCH_OFF)
		err = prefetch_new(&w->fs, &w->fs.prefetcher);
	if (!err && w->init.io_uring)
		err = open_session(w);
	if (!err)
		err = session_serve(&w->fs, w->ended);
	if (err)
		return err;
	w->active = true;
	if (w->fs.prefetcher && (err = prefetch_start(w->fs.prefetcher)))
		log_warn("cannot prefetch: %s", strerror(-err));
	w->fs.stats->worker_pid = getpid();
	err = control_send_type(w->control, CONTROL_SERVING, -1);
	return err || !w->store ? err : store_watch(w->store);
}

/* the kernel may hold the name, or that there is none */
static void forget_name(const struct worker *w, const char *name)
{
	if (w->active && w->fs.cfg.store)
		fuse_lowlevel_notify_inval_entry(w->fs.se, FUSE_ROOT_ID, name, strlen(name));
}

static int on_image(struct worker *w, const struct control_msg *msg, int fd)
{
	int err = slots_add(w->fs.slots, msg, fd);

	if (!err)
		forget_name(w, msg->name);
	return err;
}

static void on_unlist(const struct worker *w, uint32_t number)
{
	struct slot *slot;

	if (slots_get(w->fs.slots, number, &slot))
		return;
	slots_unlist(w->fs.slots, number);
	forget_name(w, slot_info(slot)->name);
	slot_put(slot);
}

/* Return: 0; 1 to end; -errno. Takes @fd */
static int on_message(struct worker *w, const struct control_msg *msg, int fd)
{
	if (msg->type != CONTROL_CONFIG && !w->fs.slots) {
		/* the order is the supervisor's: this is a mistake of ours */
		if (fd >= 0)
			close(fd);
		return -EPROTO;
	}
	switch (msg->type) {
	case CONTROL_CONFIG:
		return on_config(w, fd);
	case CONTROL_STATS: {
		_cleanup_close_ int own = fd;
		int err = stats_map(own, &w->fs.stats);

		slots_count(w->fs.slots, w->fs.stats);
		return err;
	}
	case CONTROL_INIT:
		return read_struct(fd, &w->init, sizeof(w->init));
	case CONTROL_FUSE:
		w->fuse = fd;
		return 0;
	case CONTROL_SENTINEL:
		return start_sentinel(fd);
	case CONTROL_IMAGE:
		return on_image(w, msg, fd);
	case CONTROL_UNLIST:
		on_unlist(w, msg->slot);
		return 0;
	case CONTROL_RETIRE:
		slots_retire(w->fs.slots, msg->slot);
		return 0;
	case CONTROL_SETTLED:
		return on_settled(w);
	case CONTROL_ACTIVATE:
		return w->ready ? on_activate(w) : -EPROTO;
	case CONTROL_STOP:
		return 1;
	default:
		return -EPROTO;
	}
}

/* Return: 0 to go on, 1 to end, -errno */
static int listen_once(struct worker *w)
{
	struct pollfd fds[] = { { .fd = w->ended, .events = POLLIN },
				{ .fd = w->orphan ? -1 : w->control, .events = POLLIN } };
	struct control_msg msg;
	int fd, n;

	if (poll(fds, 2, -1) < 0)
		return errno == EINTR ? 0 : -errno;
	if (fds[0].revents)
		return 1;
	if (!fds[1].revents)
		return 0;
	n = control_recv(w->control, &msg, &fd);
	if (n > 0)
		return on_message(w, &msg, fd);
	if (n < 0 && n != -ECONNRESET)
		return n;
	if (!w->active)
		return 1;
	/* readers come first: serve on, though nobody is there to follow us */
	log_warn("the supervisor is gone; this mount goes on without a standby");
	w->orphan = true;
	return 0;
}

static void tear_down(struct worker *w)
{
	store_free(w->store);
	prefetch_stop(w->fs.prefetcher);
	if (w->active)
		session_stop(&w->fs);
	/* ends the threads of rings */
	if (w->init.io_uring)
		session_close(&w->fs);
	prefetch_free(w->fs.prefetcher);
	hydrate_free(w->fs.hydrator);
	record_free(w->fs.recorder);
	session_close(&w->fs);
	if (w->fuse >= 0)
		close(w->fuse);
	cache_free(w->fs.cache);
	slots_free(w->fs.slots);
	close(w->ended);
	close(w->control);
}

int worker_main(void)
{
	static struct worker w = { .fuse = -1 };
	const char *text = getenv(CONTROL_FD_ENV);
	struct stat st;
	int err = 0;

	w.control = text ? atoi(text) : -1;
	if (w.control < 0 || fstat(w.control, &st) || !S_ISSOCK(st.st_mode)) {
		log_error("a worker is started by 'thawfs mount', not by hand");
		return 2;
	}
	fcntl(w.control, F_SETFD, FD_CLOEXEC);
	prctl(PR_SET_NAME, "thawfs-worker");
	/* the supervisor decides when we end; a terminal's ^C goes to it as well */
	signal(SIGINT, SIG_IGN);
	signal(SIGTERM, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	signal(SIGPIPE, SIG_IGN);
	w.ended = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	while (!err)
		err = w.ended < 0 ? -errno : listen_once(&w);
	if (err < 0)
		log_error("a worker gives up: %s", strerror(-err));
	tear_down(&w);
	return err < 0;
}
