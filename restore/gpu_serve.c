/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Thread model: the caller's thread accepts. Each connection has a thread, which listens while its command runs, so
 * that a cancel, the target's death and a timeout are seen at once. A command has a thread for each GPU that it is
 * about; they take turns at the GPU's pipe, whose threads and pinned memory are all that one GPU uses.
 *
 * Locks: server.lock over the list of connections and the engines, while they are opened and whose turn it is;
 * command.source_lock over a source's runs. None is held while another is taken, or during a transfer.
 */
#include "restore/gpu_serve.h"
#include "common/clock.h"
#include "common/stop.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "common/bytes.h"
#include "common/cleanup.h"
#include "common/log.h"
#include "gpu/manifest.h"
#include "restore/gpu_fill.h"
#include "restore/gpu_protocol.h"

#define MAX_CONNECTIONS 256u
#define ACCEPT_POLL_MS  200
#define TURN_POLL_MS    50

/* one GPU: opened under server.lock when it is first used, then it stays */
struct engine {
	struct gpu *gpu;
	struct gpu_pipe *pipe;
	bool busy; /* some command uses the pipe; under server.lock */
};

struct server {
	struct gpu_driver *drv;
	const struct gpu_serve_opts *opts;
	int sock;
	unsigned threads_each; /* for one GPU */
	pthread_mutex_t lock;
	pthread_cond_t turn, gone; /* somebody's turn ended; a connection ended */
	struct engine engines[GPU_MAX];
	struct connection *connections;
	unsigned n_connections;
	volatile int quit, lost;
};

struct connection {
	struct connection *next;
	struct server *server;
	int sock;
	struct ucred peer;
	struct command *command; /* between BEGIN and its result */
};

/* memory of the target, mapped here */
struct import {
	unsigned ordinal;
	uint64_t addr, size, handle;
	bool imported, reserved, mapped;
};

/* what is to be done on one GPU */
struct part {
	struct command *command;
	unsigned ordinal;
	struct gpu_fill_item *items;
	size_t n_items;
	struct gpu_profile profile;
	pthread_t thread;
	bool started;
	int error;
	char error_text[320];
};

struct command {
	struct connection *connection;
	char name[256];
	bool other_chip;
	struct gpu_source *source;
	pthread_mutex_t source_lock;
	struct gpu_manifest manifest;
	bool *seen; /* by buffer of the manifest */
	struct import *imports;
	size_t n_imports;
	struct part *parts; /* by ordinal */
	int done_fd;        /* counts parts that came to their end */
	volatile int stop;
};

/* -- engines ------------------------------------------------------------------------------------------ */

static bool stopped(const struct command *c)
{
	return stop_asked(&c->stop) || stop_asked(&c->connection->server->quit);
}

/* wait until no other command uses the GPU's pipe. Return: 0, or -ECANCELED if the command is stopped before */
static int take_turn(struct command *c, struct engine *e)
{
	struct server *s = c->connection->server;
	LOCK_GUARD(&s->lock);

	while (e->busy && !stopped(c)) {
		struct timespec t;

		clock_gettime(CLOCK_REALTIME, &t);
		t.tv_nsec += TURN_POLL_MS * 1000000l;
		t.tv_sec += t.tv_nsec / 1000000000l;
		t.tv_nsec %= 1000000000l;
		pthread_cond_timedwait(&s->turn, &s->lock, &t);
	}
	if (stopped(c)) {
		gpu_keep_error("given up");
		return -ECANCELED;
	}
	e->busy = true;
	return 0;
}

static void end_turn(struct server *s, struct engine *e)
{
	LOCK_GUARD(&s->lock);

	if (gpu_lost(e->gpu))
		stop_ask(&s->lost);
	e->busy = false;
	pthread_cond_broadcast(&s->turn);
}

/* the device and its pinned memory, from its first use on */
static int open_engine(struct server *s, unsigned ordinal)
{
	struct engine *e = &s->engines[ordinal];
	int r;
	LOCK_GUARD(&s->lock);

	r = e->gpu ? 0 : gpu_open(s->drv, ordinal, &e->gpu);
	if (!r && !e->pipe)
		r = gpu_pipe_new(e->gpu, &s->opts->pipe, &e->pipe);
	return r;
}

static int run_part(struct part *p)
{
	struct command *c = p->command;
	struct server *s = c->connection->server;
	struct engine *e = &s->engines[p->ordinal];
	struct gpu_fill fill = {
		.source = c->source,
		.source_lock = &c->source_lock,
		.items = p->items,
		.n_items = p->n_items,
		.first_thread = p->ordinal * s->threads_each,
		.n_threads = s->threads_each,
		.stop = &c->stop,
		.stop_too = &s->quit,
	};
	int r;

	r = take_turn(c, e);
	if (r)
		return r;
	r = gpu_fill_run(&fill, e->pipe, &p->profile);
	end_turn(s, e);
	return r;
}

static void *serve_part(void *arg)
{
	struct part *p = arg;
	const uint64_t one = 1;

	p->error = run_part(p);
	if (p->error) {
		strncpy(p->error_text, gpu_error(), sizeof(p->error_text) - 1);
		stop_ask(&p->command->stop);
	}
	if (write(p->command->done_fd, &one, sizeof(one)) < 0)
		log_error("cannot tell that a copy is done: %s", strerror(errno));
	return NULL;
}

/* -- commands ----------------------------------------------------------------------------------------- */

static void release_import(struct server *s, struct import *im)
{
	struct gpu *gpu = s->engines[im->ordinal].gpu;

	if (im->mapped)
		gpu_unmap(gpu, im->addr, im->size);
	if (im->imported)
		gpu_release(gpu, im->handle);
	if (im->reserved)
		gpu_unreserve(gpu, im->addr, im->size);
}

static void end_command(struct connection *conn)
{
	struct command *c = conn->command;

	if (!c)
		return;
	conn->command = NULL;
	for (size_t i = 0; i < c->n_imports; i++)
		release_import(conn->server, &c->imports[i]);
	for (unsigned i = 0; c->parts && i < gpu_count(conn->server->drv); i++)
		free(c->parts[i].items);
	gpu_source_close(c->source);
	gpu_manifest_release(&c->manifest);
	if (c->done_fd >= 0)
		close(c->done_fd);
	pthread_mutex_destroy(&c->source_lock);
	free(c->seen);
	free(c->imports);
	free(c->parts);
	free(c);
}

/* by its descriptor: what the target may read is for the target to prove, not for the helper to lend */
static int open_source(struct command *c, int fd)
{
	struct server *s = c->connection->server;
	const char *base_path[2] = { NULL, NULL };
	char path[32], dir[256];
	struct stat st;
	ssize_t n;
	char *slash;
	int r;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	n = readlink(path, c->name, sizeof(c->name) - 1);
	if (n < 0 || fstat(fd, &st) || (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)))
		return gpu_fail(-EINVAL, "what was sent is no image");
	c->name[n] = '\0';
	snprintf(dir, sizeof(dir), "%s", c->name);
	slash = strrchr(dir, '/');
	if (slash)
		*slash = '\0';
	base_path[0] = dir;
	r = gpu_source_open(path, base_path, s->threads_each * gpu_count(s->drv), &c->source);
	return r ? r : gpu_source_rename(c->source, c->name);
}

static int begin(struct connection *conn, const struct gpu_msg_begin *msg, int fd)
{
	struct command *c = calloc(1, sizeof(*c));
	_cleanup_free_ char *text = NULL;
	size_t len = 0;
	int r;

	if (!c)
		return gpu_fail(-ENOMEM, "out of memory");
	pthread_mutex_init(&c->source_lock, NULL);
	c->connection = conn;
	c->other_chip = msg->other_chip;
	c->done_fd = eventfd(0, EFD_CLOEXEC);
	conn->command = c;
	c->parts = calloc(gpu_count(conn->server->drv), sizeof(*c->parts));
	if (c->done_fd < 0 || !c->parts)
		return gpu_fail(-ENOMEM, "out of memory");
	if (msg->protocol != GPU_PROTOCOL)
		return gpu_fail(-EPROTONOSUPPORT, "the target speaks version %u of the protocol, not %u", msg->protocol,
				GPU_PROTOCOL);
	r = open_source(c, fd);
	if (!r)
		r = gpu_source_manifest(c->source, &text, &len);
	if (!r)
		r = gpu_manifest_parse(c->name, text, len, &c->manifest);
	if (r)
		return r;
	c->seen = calloc(c->manifest.n_buffers + 1, sizeof(*c->seen));
	c->imports = calloc(c->manifest.n_buffers + 1, sizeof(*c->imports));
	return c->seen && c->imports ? 0 : gpu_fail(-ENOMEM, "out of memory");
}

static struct gpu_buffer *find_buffer(struct command *c, const char *id)
{
	for (size_t i = 0; i < c->manifest.n_buffers; i++) {
		if (!strcmp(c->manifest.buffers[i].id, id))
			return &c->manifest.buffers[i];
	}
	return NULL;
}

static int check_buffer(struct command *c, const struct gpu_msg_buffer *msg, const struct gpu_buffer **ret,
			unsigned *ret_ordinal)
{
	struct gpu_driver *drv = c->connection->server->drv;
	int ordinal = gpu_find(drv, msg->uuid);
	const struct gpu_info *is, *wanted;
	char uuid[GPU_UUID_TEXT];
	struct gpu_buffer *b = find_buffer(c, msg->id);

	if (!b)
		return gpu_fail(-ENOENT, "'%s' has no buffer '%s'", c->name, msg->id);
	if (c->seen[b - c->manifest.buffers])
		return gpu_fail(-EEXIST, "'%s' was sent twice", b->id);
	if (b->size != msg->size || msg->mapped_size < msg->size)
		return gpu_fail(-EINVAL, "'%s' has %llu bytes, not %llu", b->id, (unsigned long long)b->size,
				(unsigned long long)msg->size);
	if (ordinal < 0)
		return gpu_fail(-ENODEV, "there is no %s here", gpu_uuid_text(msg->uuid, uuid));
	is = gpu_device(drv, (unsigned)ordinal);
	wanted = &c->manifest.gpus[b->gpu];
	if (!c->other_chip &&
	    (strcmp(is->name, wanted->name) != 0 || is->major != wanted->major || is->minor != wanted->minor))
		return gpu_fail(-ENODEV, "GPU %d is '%s' (%u.%u), the buffers are of '%s' (%u.%u)", ordinal, is->name,
				is->major, is->minor, wanted->name, wanted->major, wanted->minor);
	c->seen[b - c->manifest.buffers] = true;
	*ret = b;
	*ret_ordinal = (unsigned)ordinal;
	return 0;
}

static int import(struct command *c, const struct gpu_msg_buffer *msg, int fd, unsigned ordinal, uint64_t *ret_addr)
{
	struct import *im = &c->imports[c->n_imports++];
	struct server *s = c->connection->server;
	struct gpu *gpu;
	int r = open_engine(s, ordinal);

	im->ordinal = ordinal;
	im->size = msg->mapped_size;
	if (r)
		return r;
	gpu = s->engines[ordinal].gpu;
	if (!im->size || im->size % gpu_granularity(gpu))
		return gpu_fail(-EINVAL, "'%s' has no whole granules", msg->id);
	r = gpu_import(gpu, fd, &im->handle);
	im->imported = !r;
	if (!r) {
		r = gpu_reserve(gpu, 0, im->size, &im->addr);
		im->reserved = !r;
	}
	if (!r) {
		r = gpu_map(gpu, im->addr, im->size, im->handle);
		im->mapped = !r;
	}
	*ret_addr = im->addr;
	return r;
}

static int add_buffer(struct command *c, const struct gpu_msg_buffer *msg, int fd)
{
	const struct gpu_buffer *b = NULL;
	unsigned ordinal = 0;
	struct gpu_fill_item *bigger;
	struct part *p;
	uint64_t size, addr = 0;
	uint32_t file;
	int r;

	if (fd < 0 || msg->id[sizeof(msg->id) - 1] || !gpu_id_good(msg->id))
		return gpu_fail(-EBADMSG, "the target does not speak as it should");
	r = check_buffer(c, msg, &b, &ordinal);
	if (r)
		return r;
	assert(b);
	r = gpu_source_find(c->source, b->file, &file, &size);
	if (!r && !b->discardable && !range_inside(b->offset, b->size, size))
		r = gpu_fail(-EBADMSG, "'%s' has only %llu bytes of '%s'", c->name, (unsigned long long)size, b->id);
	if (!r)
		r = import(c, msg, fd, ordinal, &addr);
	if (r)
		return r;
	p = &c->parts[ordinal];
	bigger = reallocarray(p->items, p->n_items + 1, sizeof(*bigger));
	if (!bigger)
		return gpu_fail(-ENOMEM, "out of memory");
	p->items = bigger;
	bigger[p->n_items++] = (struct gpu_fill_item){
		.addr = addr,
		.size = b->size,
		.off = b->offset,
		.file = file,
		.zero = b->discardable,
	};
	return 0;
}

/* -- running ------------------------------------------------------------------------------------------ */

static unsigned start_parts(struct command *c, int *ret_error)
{
	unsigned n = 0;

	*ret_error = 0;
	for (unsigned i = 0; i < gpu_count(c->connection->server->drv) && !*ret_error; i++) {
		struct part *p = &c->parts[i];

		if (!p->n_items)
			continue;
		p->command = c;
		p->ordinal = i;
		*ret_error = -pthread_create(&p->thread, NULL, serve_part, p);
		p->started = !*ret_error;
		n += p->started;
	}
	if (*ret_error) {
		gpu_fail(*ret_error, "cannot start a thread: %s", strerror(-*ret_error));
		stop_ask(&c->stop);
	}
	return n;
}

/* the target says something while its command runs: only to cancel it. What it means for the command, or 0 */
static int listen_once(struct connection *conn)
{
	char buf[GPU_MSG_MAX];
	struct gpu_msg_go msg;
	int fd = -1, n = gpu_packet_receive(conn->sock, buf, &fd);

	if (fd >= 0)
		close(fd);
	if (n <= 0)
		return -EPIPE;
	memcpy(&msg, buf, sizeof(msg));
	return n == sizeof(msg) && msg.type == GPU_MSG_CANCEL ? -ECANCELED : -EBADMSG;
}

/* until all @n parts have come to their end. Return: why they were stopped, or 0 */
static int watch(struct command *c, unsigned n, unsigned timeout_ms)
{
	struct pollfd p[2] = { { .fd = c->done_fd, .events = POLLIN },
			       { .fd = c->connection->sock, .events = POLLIN } };
	uint64_t end = timeout_ms ? clock_ms() + timeout_ms : UINT64_MAX, done = 0, more, now;
	int why = 0;

	while (done < n) {
		now = clock_ms();
		if (!why && now >= end)
			why = -ETIMEDOUT;
		if (why)
			stop_ask(&c->stop);
		/* what stopped it was said: the socket has nothing more that matters */
		if (poll(p, why ? 1 : 2, why || !timeout_ms ? -1 : (int)min_u64(end - now, 60000)) < 0)
			continue;
		if (!why && (p[1].revents & (POLLIN | POLLHUP | POLLERR)))
			why = listen_once(c->connection);
		if ((p[0].revents & POLLIN) && read(c->done_fd, &more, sizeof(more)) == sizeof(more))
			done += more;
		p[0].revents = p[1].revents = 0;
	}
	return why;
}

static int join_parts(struct command *c, int r, struct gpu_msg_result *res)
{
	for (unsigned i = 0; i < gpu_count(c->connection->server->drv); i++) {
		struct part *p = &c->parts[i];

		if (!p->started)
			continue;
		pthread_join(p->thread, NULL);
		res->bytes += p->profile.bytes;
		res->zero_bytes += p->profile.zero_bytes;
		res->wall_ns = max_u64(res->wall_ns, p->profile.wall_ns);
		if (p->error && (!r || r == -ECANCELED)) {
			r = p->error;
			gpu_keep_error(p->error_text);
		}
	}
	return r;
}

static int go(struct command *c, const struct gpu_msg_go *msg, struct gpu_msg_result *res)
{
	unsigned limit = c->connection->server->opts->timeout_ms, timeout_ms = msg->timeout_ms, n;
	int r, why;

	if (limit && (!timeout_ms || timeout_ms > limit))
		timeout_ms = limit;
	log_note("process %d: filling %zu buffers from '%s'", (int)c->connection->peer.pid, c->n_imports, c->name);
	n = start_parts(c, &r);
	why = watch(c, n, timeout_ms);
	r = join_parts(c, r, res);
	/* it is done, whatever was said meanwhile */
	if (!r)
		return 0;
	if (r == -ECANCELED && stop_asked(&c->connection->server->quit))
		return gpu_fail(r, "the helper ends");
	if (why && r == -ECANCELED)
		r = gpu_fail(why, "%s",
			     why == -ETIMEDOUT   ? "it took too long"
			     : why == -ECANCELED ? "cancelled by the target"
			     : why == -EPIPE     ? "the target is gone"
						 : "the target does not speak as it should");
	return r;
}

/* -- connections -------------------------------------------------------------------------------------- */

static int answer(struct connection *conn, int error, struct gpu_msg_result *res)
{
	res->type = GPU_MSG_RESULT;
	res->error = error;
	if (error)
		snprintf(res->reason, sizeof(res->reason), "%s", gpu_error());
	/* before the answer: what the target handed over is its own again */
	end_command(conn);
	return gpu_packet_send(conn->sock, res, sizeof(*res), -1);
}

/* one message. Return: 0 go on, else the connection ends */
static int take_message(struct connection *conn, const void *buf, size_t len, int fd)
{
	struct gpu_msg_result res = { 0 };
	union {
		uint32_t type;
		struct gpu_msg_begin begin;
		struct gpu_msg_buffer buffer;
		struct gpu_msg_go go;
	} msg = { 0 };
	int r;

	memcpy(&msg, buf, min_u64(len, sizeof(msg)));
	if (msg.type == GPU_MSG_BEGIN && len == sizeof(msg.begin) && !conn->command && fd >= 0) {
		r = begin(conn, &msg.begin, fd);
		return r ? answer(conn, r, &res) : 0;
	}
	/* the target is still sending what belongs to a command that failed */
	if (!conn->command && (msg.type == GPU_MSG_BUFFER || msg.type == GPU_MSG_GO || msg.type == GPU_MSG_CANCEL))
		return 0;
	if (msg.type == GPU_MSG_BUFFER && len == sizeof(msg.buffer)) {
		r = add_buffer(conn->command, &msg.buffer, fd);
		return r ? answer(conn, r, &res) : 0;
	}
	if (msg.type == GPU_MSG_GO && len == sizeof(msg.go)) {
		r = go(conn->command, &msg.go, &res);
		return answer(conn, r, &res);
	}
	if (msg.type == GPU_MSG_CANCEL && len == sizeof(msg.go))
		return answer(conn, gpu_fail(-ECANCELED, "cancelled by the target"), &res);
	answer(conn, gpu_fail(-EBADMSG, "process %d does not speak as it should", (int)conn->peer.pid), &res);
	return -EBADMSG;
}

static void leave(struct connection *conn)
{
	struct server *s = conn->server;
	LOCK_GUARD(&s->lock);

	for (struct connection **p = &s->connections; *p; p = &(*p)->next) {
		if (*p == conn) {
			*p = conn->next;
			break;
		}
	}
	close(conn->sock);
	free(conn);
	s->n_connections--;
	pthread_cond_broadcast(&s->gone);
}

static void *serve_connection(void *arg)
{
	struct connection *conn = arg;
	char buf[GPU_MSG_MAX];
	int r = 0;

	while (!r) {
		int fd = -1, n = gpu_packet_receive(conn->sock, buf, &fd);

		if (n <= 0)
			break;
		r = take_message(conn, buf, (size_t)n, fd);
		if (fd >= 0)
			close(fd);
	}
	end_command(conn);
	leave(conn);
	return NULL;
}

static bool may_use(const struct server *s, uid_t uid)
{
	if (uid == 0 || uid == geteuid())
		return true;
	for (size_t i = 0; i < s->opts->n_allow; i++) {
		if (s->opts->allow[i] == uid)
			return true;
	}
	return false;
}

/* Return: why it is not let in, or 0 */
static int let_in(struct server *s, struct connection *conn)
{
	socklen_t len = sizeof(conn->peer);
	pthread_attr_t attr;
	pthread_t thread;
	int r;
	LOCK_GUARD(&s->lock);

	if (getsockopt(conn->sock, SOL_SOCKET, SO_PEERCRED, &conn->peer, &len) || !may_use(s, conn->peer.uid))
		return gpu_fail(-EACCES, "user %u may not use this helper", (unsigned)conn->peer.uid);
	if (s->n_connections >= MAX_CONNECTIONS)
		return gpu_fail(-EBUSY, "more than %u targets at once", MAX_CONNECTIONS);
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	r = -pthread_create(&thread, &attr, serve_connection, conn);
	pthread_attr_destroy(&attr);
	if (r)
		return gpu_fail(r, "cannot start a thread: %s", strerror(-r));
	conn->next = s->connections;
	s->connections = conn;
	s->n_connections++;
	return 0;
}

static void accept_one(struct server *s)
{
	struct connection *conn = calloc(1, sizeof(*conn));
	struct gpu_msg_result res = { 0 };
	int r;

	if (!conn)
		return;
	conn->server = s;
	conn->sock = accept4(s->sock, NULL, NULL, SOCK_CLOEXEC);
	if (conn->sock < 0) {
		free(conn);
		return;
	}
	r = let_in(s, conn);
	if (!r)
		return;
	answer(conn, r, &res);
	close(conn->sock);
	free(conn);
}

/* -- the socket --------------------------------------------------------------------------------------- */

/* a socket that nobody listens at any more is in the way */
static void remove_stale(const struct sockaddr_un *addr)
{
	int probe = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	struct stat st;

	if (probe < 0)
		return;
	if (!lstat(addr->sun_path, &st) && S_ISSOCK(st.st_mode) &&
	    connect(probe, (const struct sockaddr *)addr, sizeof(*addr)) && errno == ECONNREFUSED)
		unlink(addr->sun_path);
	close(probe);
}

static int listen_at(struct server *s)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	const char *path = s->opts->socket;
	mode_t mode = s->opts->n_allow ? 0666 : 0600, old;
	int r;

	if (strlen(path) >= sizeof(addr.sun_path))
		return gpu_fail(-ENAMETOOLONG, "cannot listen at '%s': the name is too long", path);
	memcpy(addr.sun_path, path, strlen(path));
	remove_stale(&addr);
	s->sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (s->sock < 0)
		return gpu_fail(-errno, "cannot make a socket: %s", strerror(errno));
	old = umask(0777 & ~mode);
	r = bind(s->sock, (struct sockaddr *)&addr, sizeof(addr)) ? -errno : 0;
	umask(old);
	if (!r && listen(s->sock, 64))
		r = -errno;
	return r ? gpu_fail(r, "cannot listen at '%s': %s", path, strerror(-r)) : 0;
}

static void end_all(struct server *s)
{
	LOCK_GUARD(&s->lock);

	stop_ask(&s->quit);
	/* commands are stopped by quit and answered; who only listens hears the end */
	for (struct connection *c = s->connections; c; c = c->next)
		shutdown(c->sock, SHUT_RD);
	while (s->n_connections)
		pthread_cond_wait(&s->gone, &s->lock);
}

static unsigned count_threads(unsigned asked)
{
	cpu_set_t set;

	if (asked)
		return asked;
	return sched_getaffinity(0, sizeof(set), &set) ? 1 : (unsigned)CPU_COUNT(&set);
}

static int serve(struct server *s)
{
	struct pollfd p = { .fd = s->sock, .events = POLLIN };

	if (s->opts->ready)
		s->opts->ready(s->opts->ctx);
	while (!stop_asked(s->opts->stop) && !stop_asked(&s->lost)) {
		int n = poll(&p, 1, ACCEPT_POLL_MS);

		if (n > 0)
			accept_one(s);
		else if (n < 0 && errno != EINTR)
			return gpu_fail(-errno, "cannot wait for targets: %s", strerror(errno));
	}
	if (stop_asked(&s->lost))
		return gpu_fail(-EIO, "a GPU is lost to this process; start the helper again");
	return 0;
}

int gpu_serve(struct gpu_driver *drv, const struct gpu_serve_opts *opts)
{
	struct server *s = calloc(1, sizeof(*s));
	int r;

	if (!s)
		return gpu_fail(-ENOMEM, "out of memory");
	s->drv = drv;
	s->opts = opts;
	s->sock = -1;
	s->threads_each = (unsigned)max_u64(1, count_threads(opts->threads) / gpu_count(drv));
	pthread_mutex_init(&s->lock, NULL);
	pthread_cond_init(&s->turn, NULL);
	pthread_cond_init(&s->gone, NULL);
	r = listen_at(s);
	if (!r) {
		r = serve(s);
		unlink(opts->socket);
		end_all(s);
	}
	if (s->sock >= 0)
		close(s->sock);
	for (unsigned i = 0; i < gpu_count(drv); i++) {
		gpu_pipe_free(s->engines[i].pipe);
		gpu_close(s->engines[i].gpu);
	}
	pthread_cond_destroy(&s->turn);
	pthread_cond_destroy(&s->gone);
	pthread_mutex_destroy(&s->lock);
	free(s);
	return r;
}
