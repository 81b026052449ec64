/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/log.h"
#include "fs/inode.h"

#define SUFFIX         ".thaw"
#define EVENTS         (IN_CLOSE_WRITE | IN_MOVED_TO | IN_MOVED_FROM | IN_DELETE)
#define SETTLE_MS      20   /* after an event wait for more of the same */
#define POLL_MS        5000 /* look anyway, for file systems whose changes by other hosts make no events */
#define MAX_REMEMBERED 4096

/* an image that could not be opened: said once, not tried again until the file is another one */
struct bad {
	uint64_t dev, ino, size;
	int64_t mtime_ns;
};

struct store {
	struct fs *fs;
	int control;
	int inotify, wake;
	bool started;
	pthread_t thread;
	/* the thread's own */
	struct bad *bad;
	size_t n_bad;
};

/* -- one image ---------------------------------------------------------------------------------- */

static void identity(const struct stat *st, struct control_msg *msg)
{
	msg->dev = st->st_dev;
	msg->ino = st->st_ino;
	msg->size = (uint64_t)st->st_size;
	msg->mtime_ns = (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec;
}

int store_identify(const char *path, const struct image_opts *opts, struct control_msg *ret, int *ret_fd)
{
	_cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	struct control_msg msg = { 0 };
	struct source *src = NULL;
	struct image *img;
	struct stat st = { 0 };
	int copy, err = 0;

	if (fd < 0 || fstat(fd, &st) || (copy = fcntl(fd, F_DUPFD_CLOEXEC, 3)) < 0)
		err = -errno;
	else
		err = source_open_fd(copy, path, &src);
	if (err) {
		log_error("cannot open '%s': %s", path, strerror(-err));
		return err;
	}
	err = image_open_source(src, opts, &img);
	if (err)
		return err;
	identity(&st, &msg);
	memcpy(msg.id, image_info(img)->id, sizeof(msg.id));
	image_close(img);
	*ret = msg;
	*ret_fd = steal_fd(&fd);
	return 0;
}

static bool same_file(const struct control_msg *a, const struct control_msg *b)
{
	return a->dev == b->dev && a->ino == b->ino && a->size == b->size && a->mtime_ns == b->mtime_ns;
}

static bool known_bad(const struct store *store, const struct control_msg *msg)
{
	for (size_t i = 0; i < store->n_bad; i++) {
		const struct bad *b = &store->bad[i];

		if (b->dev == msg->dev && b->ino == msg->ino && b->size == msg->size && b->mtime_ns == msg->mtime_ns)
			return true;
	}
	return false;
}

static void remember_bad(struct store *store, const struct control_msg *msg)
{
	struct bad *p;

	if (store->n_bad >= MAX_REMEMBERED)
		store->n_bad = 0;
	p = realloc(store->bad, (store->n_bad + 1) * sizeof(*p));
	if (!p)
		return;
	store->bad = p;
	p[store->n_bad++] = (struct bad){ msg->dev, msg->ino, msg->size, msg->mtime_ns };
}

/* -- looking through ----------------------------------------------------------------------------- */

/* the name the mount shows; false if the file is not an image by its name */
static bool shown_name(const char *file, char ret[CONTROL_NAME_MAX])
{
	size_t n = strlen(file), suffix = strlen(SUFFIX);

	if (file[0] == '.' || n <= suffix || n >= CONTROL_NAME_MAX || strcmp(file + n - suffix, SUFFIX) != 0)
		return false;
	memcpy(ret, file, n - suffix);
	ret[n - suffix] = '\0';
	return true;
}

static int vanish(const struct store *store, const struct slot *slot)
{
	struct control_msg msg = { .type = CONTROL_VANISHED, .slot = slot_number(slot) };

	return control_send(store->control, &msg, -1);
}

/* a file is there under @msg's names: is it the one we show? */
static int consider(struct store *store, struct control_msg *msg)
{
	const char *const base_path[] = { store->fs->cfg.src, NULL };
	struct image_opts opts = { .base_path = base_path };
	_cleanup_close_ int fd = -1;
	char path[PATH_MAX + CONTROL_NAME_MAX];
	struct control_msg found;
	struct slot *slot;
	int err;

	if (slots_find_name(store->fs->slots, msg->name, &slot) == 0) {
		bool same = same_file(slot_info(slot), msg);

		err = same ? 0 : vanish(store, slot);
		slot_put(slot);
		if (same || err)
			return err;
	}
	if (known_bad(store, msg))
		return 0;
	snprintf(path, sizeof(path), "%s/%s", store->fs->cfg.src, msg->file);
	if (store_identify(path, &opts, &found, &fd)) {
		remember_bad(store, msg);
		return 0;
	}
	found.type = CONTROL_FOUND;
	found.listed = 1;
	memcpy(found.name, msg->name, sizeof(found.name));
	memcpy(found.file, msg->file, sizeof(found.file));
	return control_send(store->control, &found, fd);
}

static int look_at(struct store *store, int dir_fd, const char *file)
{
	struct control_msg msg = { 0 };
	struct stat st;

	if (!shown_name(file, msg.name) || fstatat(dir_fd, file, &st, 0) || !S_ISREG(st.st_mode))
		return 0;
	snprintf(msg.file, sizeof(msg.file), "%s", file);
	identity(&st, &msg);
	return consider(store, &msg);
}

/* names we show that are no longer there */
static int look_for_gone(const struct store *store, int dir_fd)
{
	struct slot *slot;
	int err = 0;

	for (uint32_t i = 0; !err && slots_next(store->fs->slots, i, true, &slot) == 0; slot_put(slot)) {
		struct stat st;

		i = slot_number(slot) + 1;
		if (fstatat(dir_fd, slot_info(slot)->file, &st, 0) && errno == ENOENT)
			err = vanish(store, slot);
	}
	return err;
}

static int look_through(struct store *store)
{
	_cleanup_closedir_ DIR *dir = opendir(store->fs->cfg.src);
	struct dirent *e;
	int err;

	if (!dir) {
		log_warn("cannot read the store '%s': %s", store->fs->cfg.src, strerror(errno));
		return 0;
	}
	err = look_for_gone(store, dirfd(dir));
	while (!err && (e = readdir(dir)))
		err = look_at(store, dirfd(dir), e->d_name);
	return err;
}

/* -- the thread ---------------------------------------------------------------------------------- */

/* take all events, which say no more than "look again". Return: false to end */
static bool wait_for_change(const struct store *store)
{
	struct pollfd fds[] = { { .fd = store->wake, .events = POLLIN }, { .fd = store->inotify, .events = POLLIN } };
	char events[4096] __attribute__((aligned(8)));

	if (poll(fds, 2, POLL_MS) > 0 && !fds[0].revents)
		poll(fds, 1, SETTLE_MS);
	while (store->inotify >= 0 && read(store->inotify, events, sizeof(events)) > 0)
		;
	return !fds[0].revents;
}

static void *watch(void *arg)
{
	struct store *store = arg;
	int err = look_through(store);

	if (!err)
		err = control_send_type(store->control, CONTROL_SCANNED, -1);
	while (!err && wait_for_change(store))
		err = look_through(store);
	if (err && err != -EPIPE)
		log_warn("cannot follow the store '%s': %s", store->fs->cfg.src, strerror(-err));
	return NULL;
}

int store_new(struct fs *fs, int control, struct store **ret)
{
	struct store *store = calloc(1, sizeof(*store));

	if (!store)
		return -ENOMEM;
	store->fs = fs;
	store->control = control;
	store->wake = eventfd(0, EFD_CLOEXEC);
	store->inotify = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
	if (store->wake < 0) {
		int err = -errno;

		store_free(store);
		return err;
	}
	if (store->inotify < 0 || inotify_add_watch(store->inotify, fs->cfg.src, EVENTS) < 0)
		log_warn("cannot watch the store '%s': %s; looking every %d s instead", fs->cfg.src, strerror(errno),
			 POLL_MS / 1000);
	*ret = store;
	return 0;
}

int store_watch(struct store *store)
{
	int err = pthread_create(&store->thread, NULL, watch, store);

	store->started = !err;
	return -err;
}

void store_free(struct store *store)
{
	uint64_t one = 1;

	if (!store)
		return;
	if (store->started && write(store->wake, &one, sizeof(one)) == sizeof(one))
		pthread_join(store->thread, NULL);
	if (store->inotify >= 0)
		close(store->inotify);
	if (store->wake >= 0)
		close(store->wake);
	free(store->bad);
	free(store);
}
