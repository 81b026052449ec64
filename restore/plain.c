/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/plain.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/bytes.h"
#include "common/cleanup.h"
#include "common/log.h"
#include "imgfmt/parse.h"
#include "restore/ranges.h"

#define VIEW_END (1ull << 63)

/* a directory of the chain of parents, the first of them the one that was named */
struct dir {
	struct parse_dir pub;
	struct plain *plain;
	int fd;
	char **names;
	size_t n_names;
};

/* a file of one of them, open until the end */
struct file {
	const struct dir *dir;
	char *name;
	struct source *src;
};

struct plain {
	char *path;
	struct dir dirs[THAW_MAX_DEPTH + 1];
	size_t n_dirs;
	struct file *files;
	size_t n_files, room;
	struct layout layout;
};

static const char *name_at(void *ctx, size_t index)
{
	const struct dir *d = ctx;

	return index < d->n_names ? d->names[index] : NULL;
}

static int add_file(struct plain *plain, const struct dir *d, const char *name, struct source *src)
{
	struct file *f;

	if (plain->n_files == plain->room) {
		size_t room = plain->room ? plain->room * 2 : 64;
		struct file *more = reallocarray(plain->files, room, sizeof(*more));

		if (!more)
			return -ENOMEM;
		plain->files = more;
		plain->room = room;
	}
	f = &plain->files[plain->n_files];
	*f = (struct file){ .dir = d, .name = strdup(name), .src = src };
	if (!f->name)
		return -ENOMEM;
	plain->n_files++;
	return 0;
}

static int open_name(void *ctx, const char *name, struct parse_file *ret)
{
	const struct dir *d = ctx;
	struct plain *plain = d->plain;
	struct source *src;
	int fd, err;

	for (size_t i = 0; i < plain->n_files; i++) {
		if (plain->files[i].dir == d && strcmp(plain->files[i].name, name) == 0) {
			*ret = (struct parse_file){ .src = plain->files[i].src, .ino = (uint32_t)i };
			return 0;
		}
	}
	fd = openat(d->fd, name, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	err = source_open_fd(fd, name, &src);
	if (err)
		return err;
	err = add_file(plain, d, name, src);
	if (err) {
		source_close(src);
		return err;
	}
	*ret = (struct parse_file){ .src = src, .ino = (uint32_t)plain->n_files - 1 };
	return 0;
}

static int list_names(struct dir *d)
{
	int fd = dup(d->fd);
	_cleanup_closedir_ DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *e;
	size_t room = 0;

	if (!dir) {
		int err = -errno;

		if (fd >= 0)
			close(fd);
		return err;
	}
	while ((e = readdir(dir))) {
		if (d->n_names == room) {
			char **more = reallocarray(d->names, room * 2 + 64, sizeof(*more));

			if (!more)
				return -ENOMEM;
			d->names = more;
			room = room * 2 + 64;
		}
		d->names[d->n_names] = strdup(e->d_name);
		if (!d->names[d->n_names])
			return -ENOMEM;
		d->n_names++;
	}
	return 0;
}

/* the directory that @fd is (which becomes the plain's), and those that its link leads to */
static int add_dirs(struct plain *plain, int fd)
{
	int err = 0;

	while (!err && fd >= 0) {
		struct dir *d = &plain->dirs[plain->n_dirs++];
		struct dir *child = plain->n_dirs > 1 ? d - 1 : NULL;

		*d = (struct dir){ .pub = { .path = "", .ctx = d, .name = name_at, .open = open_name },
				   .plain = plain,
				   .fd = fd };
		if (child)
			child->pub.parent = &d->pub;
		err = list_names(d);
		fd = openat(d->fd, "parent", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (fd < 0 && errno != ENOENT)
			d->pub.parent_missing = true;
		/* a link that leads nowhere is there, too */
		if (fd < 0 && errno == ENOENT && faccessat(d->fd, "parent", F_OK, AT_SYMLINK_NOFOLLOW) == 0)
			d->pub.parent_missing = true;
		if (fd >= 0 && plain->n_dirs > THAW_MAX_DEPTH) {
			close(fd);
			fd = -1;
			d->pub.parent_missing = true;
		}
	}
	return err;
}

static void say_note(void *ctx, const char *note)
{
	const struct plain *plain = ctx;

	log_warn("'%s': %s", plain->path, note);
}

int plain_open(const char *path, struct plain **ret)
{
	struct plain *plain = calloc(1, sizeof(*plain));
	int fd, err;

	if (!plain)
		return -ENOMEM;
	layout_init(&plain->layout);
	plain->path = strdup(path);
	fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	err = !plain->path ? -ENOMEM : fd < 0 ? -errno : add_dirs(plain, fd);
	if (!err && !parse_criu_detect(&plain->dirs[0].pub))
		err = -EINVAL;
	if (!err)
		err = parse_criu(&plain->layout, &plain->dirs[0].pub, say_note, plain);
	if (!err)
		err = layout_finish(&plain->layout);
	if (err) {
		log_error("cannot serve from '%s': %s", path,
			  err == -EINVAL ? "it is neither an image, nor on a mount, nor a directory of CRIU's"
					 : strerror(-err));
		plain_close(plain);
		return err;
	}
	*ret = plain;
	return 0;
}

void plain_close(struct plain *plain)
{
	if (!plain)
		return;
	for (size_t i = 0; i < plain->n_files; i++) {
		source_close(plain->files[i].src);
		free(plain->files[i].name);
	}
	for (size_t i = 0; i < plain->n_dirs; i++) {
		for (size_t k = 0; k < plain->dirs[i].n_names; k++)
			free(plain->dirs[i].names[k]);
		free(plain->dirs[i].names);
		close(plain->dirs[i].fd);
	}
	layout_release(&plain->layout);
	free(plain->files);
	free(plain->path);
	free(plain);
}

const char *plain_path(const struct plain *plain)
{
	return plain->path;
}

int plain_find(const struct plain *plain, const char *name, uint32_t *ret_space)
{
	const struct layout *lay = &plain->layout;

	for (size_t i = 0; i < lay->n_spaces; i++) {
		const struct layout_space *s = &lay->spaces[i];

		if (s->name_len == strlen(name) && memcmp(lay->strings + s->name_off, name, s->name_len) == 0) {
			*ret_space = (uint32_t)i;
			return 0;
		}
	}
	return -ENOENT;
}

int plain_ranges(const struct plain *plain, uint32_t space, struct pageserver_range **ret, size_t *ret_n)
{
	const struct layout_space *s = &plain->layout.spaces[space];
	_cleanup_free_ struct pageserver_range *ranges = calloc(s->n_regions ? s->n_regions : 1, sizeof(*ranges));
	size_t n = 0;

	if (!ranges)
		return -ENOMEM;
	for (uint32_t i = 0; i < s->n_regions; i++) {
		const struct layout_region *r = &plain->layout.regions[s->first_region + i];

		n += ranges_add(ranges + n, r->addr, r->len, r->flags);
	}
	*ret = steal_ptr(&ranges);
	*ret_n = n;
	return 0;
}

void plain_map(const struct plain *plain, uint32_t space, uint64_t addr, struct plain_run *ret)
{
	const struct layout_space *s = &plain->layout.spaces[space];
	const struct layout_segment *segments = plain->layout.segments + s->first_segment, *g;
	size_t lo = 0, hi = s->n_segments;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (segments[mid].addr + segments[mid].len <= addr)
			lo = mid + 1;
		else
			hi = mid;
	}
	g = lo < s->n_segments ? &segments[lo] : NULL;
	if (!g || g->addr > addr) {
		*ret = (struct plain_run){ .len = (g ? g->addr : VIEW_END) - addr, .kind = RUN_HOLE };
		return;
	}
	*ret = (struct plain_run){ .len = g->addr + g->len - addr,
				   .kind = g->kind == THAW_SEG_DATA   ? RUN_DATA
					   : g->kind == THAW_SEG_HOLE ? RUN_HOLE
								      : RUN_ABSENT,
				   .file = g->ino,
				   .off = g->off + (addr - g->addr) };
}

int plain_read(const struct plain *plain, const struct plain_run *run, void *buf, size_t len)
{
	return source_read(plain->files[run->file].src, buf, len, run->off);
}
