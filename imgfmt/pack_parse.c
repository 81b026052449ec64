/* SPDX-License-Identifier: Apache-2.0 */
/* The stage of pack() that recognizes foreign images and runs the parsers over them. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "common/bytes.h"
#include "common/cleanup.h"
#include "common/io.h"
#include "common/log.h"
#include "common/stop.h"
#include "imgfmt/output_spare.h"
#include "imgfmt/packer.h"
#include "imgfmt/parse.h"

#define HEAD            4096
#define SMALLEST        64 /* a file below this is nothing we know */
#define COPY_BUFFER     (1u << 20)
#define GZIP_ONLY       (15 + 16) /* zlib: any window, a gzip header and none else */
#define GZIP_FIRST_BYTE 0x1f
#define PATH_ROOM       4096
#define MAX_OPEN        8 /* files of a CRIU directory kept open at a time */

/* @r, said if it ends the pack; -EBADMSG does not, and an interruption is said by the caller */
static int failed(const char *path, int r)
{
	if (r && r != -EBADMSG && r != -EINTR)
		log_error("cannot read '%s': %s", *path ? path : ".", strerror(-r));
	return r;
}

/* -- files of the tree as sources ------------------------------------------------------------- */

/*
 * A CRIU directory may have more files than we may have descriptors, so a source of the tree opens its file when
 * it is read and the last few stay open.
 */
struct tree_files {
	struct packer *p;
	int fds[MAX_OPEN];
	uint32_t inos[MAX_OPEN];
	unsigned next;
	struct tree_source *all; /* every source made, to be freed at the end */
};

struct tree_source {
	struct source base;
	struct tree_files *files;
	struct tree_source *next;
	uint32_t ino;
	uint16_t image; /* k: of packer.parents[k - 1] */
	struct chunk_ctx *ctx;
};

static int tree_file_fd(struct tree_files *files, uint32_t ino)
{
	int fd;

	for (unsigned i = 0; i < MAX_OPEN; i++)
		if (files->fds[i] >= 0 && files->inos[i] == ino)
			return files->fds[i];
	fd = packer_reopen(files->p, ino);
	if (fd < 0)
		return fd;
	if (files->fds[files->next] >= 0)
		close(files->fds[files->next]);
	files->fds[files->next] = fd;
	files->inos[files->next] = ino;
	files->next = (files->next + 1) % MAX_OPEN;
	return fd;
}

static int tree_source_pread(struct source *src, void *buf, size_t len, uint64_t off)
{
	struct tree_source *ts = (struct tree_source *)src;
	int fd;

	/* every loop of a parser reads, so this ends all of them */
	if (stop_asked(ts->files->p->opts->stop))
		return -EINTR;
	if (ts->image)
		return image_read(ts->files->p->parents[ts->image - 1], ts->ctx, ts->ino, off, buf, len);
	fd = tree_file_fd(ts->files, ts->ino);
	return fd < 0 ? fd : io_read_at(fd, buf, len, off);
}

static void tree_source_close(struct source *src)
{
	struct tree_source *ts = (struct tree_source *)src;

	chunk_ctx_free(ts->ctx);
	free((char *)ts->base.name);
	free(ts);
}

static const struct source_ops tree_source_ops = { .pread = tree_source_pread, .close = tree_source_close };

/* @image: 0 for the tree, else a parent image */
static struct source *make_source(struct tree_files *files, uint16_t image, uint32_t ino, uint64_t size,
				  const char *name)
{
	struct tree_source *ts = calloc(1, sizeof(*ts));

	if (!ts)
		return NULL;
	ts->base = (struct source){ .ops = &tree_source_ops, .size = size, .name = strdup(name) };
	ts->files = files;
	ts->ino = ino;
	ts->image = image;
	ts->ctx = image ? chunk_ctx_new() : NULL;
	if (!ts->base.name || (image && !ts->ctx)) {
		tree_source_close(&ts->base);
		return NULL;
	}
	ts->next = files->all;
	files->all = ts;
	return &ts->base;
}

static void files_init(struct tree_files *files, struct packer *p)
{
	*files = (struct tree_files){ .p = p };
	for (unsigned i = 0; i < MAX_OPEN; i++)
		files->fds[i] = -1;
}

static void files_release(struct tree_files *files)
{
	while (files->all) {
		struct tree_source *ts = files->all;

		files->all = ts->next;
		tree_source_close(&ts->base);
	}
	for (unsigned i = 0; i < MAX_OPEN; i++)
		if (files->fds[i] >= 0)
			close(files->fds[i]);
}

/* -- CRIU directories ------------------------------------------------------------------------- */

/* a directory of the tree (@image 0) or of a parent image, as parse_criu() wants it */
struct criu_dir {
	struct parse_dir dir;
	struct tree_files *files;
	uint16_t image;
	uint32_t ino;
	char name[NAME_MAX + 1]; /* the one given out last */
	char path[PATH_ROOM];
};

static const char *criu_name(void *ctx, size_t index)
{
	struct criu_dir *d = ctx;
	struct packer *p = d->files->p;

	if (d->image) {
		struct image_dirent e;

		if (image_readdir(p->parents[d->image - 1], d->ino, index, &e))
			return NULL;
		memcpy(d->name, e.name, e.len);
		d->name[e.len] = '\0';
	} else {
		const struct tree_node *node = tree_node(&p->tree, d->ino);
		const struct tree_name *name;

		if (index >= node->n_names)
			return NULL;
		name = table_at(&p->tree.names, node->first + index);
		memcpy(d->name, tree_string(&p->tree, name->off), name->len);
		d->name[name->len] = '\0';
	}
	return d->name;
}

static int criu_open_in_image(struct criu_dir *d, const char *name, struct parse_file *ret)
{
	struct image *img = d->files->p->parents[d->image - 1];
	struct image_inode inode;
	uint32_t ino;
	int r = image_lookup(img, d->ino, name, strlen(name), &ino);

	if (!r)
		r = image_inode(img, ino, &inode);
	if (r || !S_ISREG(inode.mode))
		return r ? r : -ENOENT;
	*ret = (struct parse_file){ .src = make_source(d->files, d->image, ino, inode.size, name),
				    .ino = ino,
				    .base = d->image };
	return ret->src ? 0 : -ENOMEM;
}

static int criu_open(void *ctx, const char *name, struct parse_file *ret)
{
	struct criu_dir *d = ctx;
	struct packer *p = d->files->p;
	const struct tree_node *node;
	int64_t ino;

	if (d->image)
		return criu_open_in_image(d, name, ret);
	ino = tree_lookup(&p->tree, d->ino, name, strlen(name));
	if (ino < 0)
		return -ENOENT;
	node = tree_node(&p->tree, (uint32_t)ino);
	if (!S_ISREG(node->st.st_mode))
		return -ENOENT;
	*ret = (struct parse_file){
		.src = make_source(d->files, 0, (uint32_t)ino, (uint64_t)node->st.st_size, name),
		.ino = (uint32_t)ino,
	};
	return ret->src ? 0 : -ENOMEM;
}

static struct criu_dir *criu_dir_new(struct tree_files *files, uint16_t image, uint32_t ino)
{
	struct criu_dir *d = calloc(1, sizeof(*d));

	if (!d)
		return NULL;
	d->files = files;
	d->image = image;
	d->ino = ino;
	if (!image && ino) {
		const char *path = tree_path(&files->p->tree, ino, d->path, sizeof(d->path));

		memmove(d->path, path, strlen(path) + 1);
	}
	d->dir = (struct parse_dir){ .path = d->path, .ctx = d, .name = criu_name, .open = criu_open };
	return d;
}

/* -- where a `parent` link leads -------------------------------------------------------------- */

/* the target of the link, or NULL; "" when `parent` is itself a directory, given in *ret_dir */
static bool parent_of(const struct criu_dir *d, char *target, size_t room, int64_t *ret_dir)
{
	struct packer *p = d->files->p;

	*ret_dir = -1;
	if (d->image) {
		struct image *img = p->parents[d->image - 1];
		const char *text;
		size_t len;
		uint32_t ino;

		if (image_lookup(img, d->ino, "parent", 6, &ino))
			return false;
		if (image_readlink(img, ino, &text, &len)) {
			*ret_dir = ino;
			return true;
		}
		if (len >= room)
			return false;
		memcpy(target, text, len);
		target[len] = '\0';
		return true;
	}
	*ret_dir = tree_lookup(&p->tree, d->ino, "parent", 6);
	if (*ret_dir < 0)
		return false;
	if (S_ISLNK(tree_node(&p->tree, (uint32_t)*ret_dir)->st.st_mode)) {
		const struct tree_node *node = tree_node(&p->tree, (uint32_t)*ret_dir);

		if (node->target_len >= room)
			return false;
		memcpy(target, tree_string(&p->tree, node->target_off), node->target_len);
		target[node->target_len] = '\0';
		*ret_dir = -1;
	}
	return true;
}

/* one step from a directory; -1: no such directory, -2: it leaves the tree or image */
static int64_t step(const struct criu_dir *d, uint32_t dir, const char *name, size_t len)
{
	struct packer *p = d->files->p;
	bool up = len == 2 && !memcmp(name, "..", 2);
	int64_t ino;

	if (len == 0 || (len == 1 && *name == '.'))
		return dir;
	if (up && dir == 0)
		return -2;
	if (d->image) {
		struct image_inode inode;
		uint32_t found;

		if (image_inode(p->parents[d->image - 1], dir, &inode))
			return -1;
		if (up)
			return inode.parent;
		if (image_lookup(p->parents[d->image - 1], dir, name, len, &found) ||
		    image_inode(p->parents[d->image - 1], found, &inode) || !S_ISDIR(inode.mode))
			return -1;
		return found;
	}
	if (up)
		return tree_node(&p->tree, dir)->parent;
	ino = tree_lookup(&p->tree, dir, name, len);
	return ino >= 0 && S_ISDIR(tree_node(&p->tree, (uint32_t)ino)->st.st_mode) ? ino : -1;
}

/* follow a path by names alone; symlinks on the way are not followed */
static int64_t resolve(const struct criu_dir *d, const char *path)
{
	int64_t at = d->ino;

	while (at >= 0 && *path) {
		size_t len = strcspn(path, "/");

		at = step(d, (uint32_t)at, path, len);
		path += len;
		path += *path == '/';
	}
	return at;
}

/* an absolute target below the source directory becomes relative to its root */
static const char *below_source(const struct packer *p, const char *target)
{
	char root[PATH_MAX];
	size_t len;

	if (!realpath(p->opts->src, root))
		return NULL;
	len = strlen(root);
	return !strncmp(target, root, len) && target[len] == '/' ? target + len + 1 : NULL;
}

/* "NAME.thaw" beside the output; the number of the parent image, 0 if there is none, or -errno */
static int open_parent_image(struct packer *p, const char *target)
{
	const struct image_opts opts = { .quiet = true };
	char name[NAME_MAX + 1], path[PATH_ROOM];
	size_t len = strlen(target), start;
	struct image **bigger;
	int r;

	while (len && target[len - 1] == '/')
		len--;
	for (start = len; start && target[start - 1] != '/';)
		start--;
	if (len == start || len - start > NAME_MAX - 5)
		return 0;
	snprintf(name, sizeof(name), "%.*s", (int)(len - start), target + start);
	if (!strcmp(name, "..") || !p->out.seekable ||
	    snprintf(path, sizeof(path), "%s/%s.thaw", p->out.dir, name) >= (int)sizeof(path))
		return 0;
	for (unsigned i = 0; i < p->n_parents; i++)
		if (!strcmp(image_path(p->parents[i]), path))
			return (int)i + 1;
	if (p->n_parents >= THAW_MAX_BASES)
		return 0;
	bigger = reallocarray(p->parents, p->n_parents + 1, sizeof(struct image *));
	if (!bigger)
		return failed(path, -ENOMEM);
	p->parents = bigger;
	if (image_open(path, &opts, &p->parents[p->n_parents]))
		return 0;
	r = output_spare(&p->out, p->parents[p->n_parents++], false);
	return r ? r : (int)p->n_parents;
}

/* find the directory that the `parent` of @d leads to: sets d->dir.parent or parent_missing */
static int link_parent(struct criu_dir *d, struct criu_dir **ret)
{
	struct packer *p = d->files->p;
	const char *inside = NULL;
	char target[PATH_ROOM] = "";
	uint16_t image = d->image;
	int64_t dir;
	int k;

	*ret = NULL;
	if (!parent_of(d, target, sizeof(target), &dir))
		return 0;
	if (dir < 0 && *target == '/' && !d->image && (inside = below_source(p, target))) {
		const struct criu_dir root = { .files = d->files };

		dir = resolve(&root, inside);
	} else if (dir < 0) {
		dir = *target == '/' ? -2 : resolve(d, target);
	}
	if (dir == -2) {
		k = open_parent_image(p, target);
		if (k < 0)
			return k;
		image = (uint16_t)k;
		dir = k ? 0 : -1;
	}
	if (dir < 0 || (dir == d->ino && image == d->image)) {
		d->dir.parent_missing = true;
		return 0;
	}
	*ret = criu_dir_new(d->files, image, (uint32_t)dir);
	if (!*ret)
		return failed(d->path, -ENOMEM);
	d->dir.parent = &(*ret)->dir;
	return 0;
}

static void note_to_packer(void *ctx, const char *note)
{
	const struct criu_dir *d = ctx;

	packer_note(d->files->p, *d->path ? d->path : ".", note);
}

static int parse_criu_directory(struct packer *p, uint32_t ino)
{
	struct criu_dir *chain[THAW_MAX_DEPTH + 1] = { NULL };
	struct layout_mark mark = layout_mark(&p->layout);
	struct tree_files files;
	unsigned n = 0;
	int r = 0;

	files_init(&files, p);
	chain[n] = criu_dir_new(&files, 0, ino);
	if (!chain[n])
		return failed("", -ENOMEM);
	if (parse_criu_detect(&chain[0]->dir)) {
		while (!r && chain[n] && n < THAW_MAX_DEPTH) {
			r = link_parent(chain[n], &chain[n + 1]);
			n++;
		}
		/* a chain without end (a cycle of links) is cut, so what only its end could say is absent */
		if (chain[n])
			chain[n]->dir.parent_missing = true;
		if (!r)
			r = failed(chain[0]->path, parse_criu(&p->layout, &chain[0]->dir, note_to_packer, chain[0]));
		p->has_criu = true;
		for (uint64_t i = 0; i < tree_node(&p->tree, ino)->n_names; i++) {
			const struct tree_name *name = table_at(&p->tree.names, tree_node(&p->tree, ino)->first + i);
			struct tree_node *node = tree_node(&p->tree, name->ino);

			if (S_ISREG(node->st.st_mode))
				node->format = THAW_CRIU;
		}
		if (r == -EBADMSG) {
			packer_note(p, *chain[0]->path ? chain[0]->path : ".", p->layout.error);
			layout_rollback(&p->layout, mark);
			r = 0;
		}
	}
	files_release(&files);
	for (unsigned i = 0; i <= THAW_MAX_DEPTH; i++)
		free(chain[i]);
	return r;
}

/* -- single files ----------------------------------------------------------------------------- */

struct note_target {
	struct packer *p;
	const char *path;
};

static void note_about_file(void *ctx, const char *note)
{
	const struct note_target *t = ctx;

	packer_note(t->p, t->path, note);
}

static int parse_file_as(struct packer *p, int format, const struct parse_file *file, const char *path)
{
	struct layout_mark mark = layout_mark(&p->layout);
	struct note_target target = { p, path };
	char line[512];
	int r = format == THAW_DMTCP ? parse_dmtcp(&p->layout, file, path, note_about_file, &target)
				     : parse_elf(&p->layout, file, path, note_about_file, &target);

	if (!r) {
		p->has_dmtcp |= format == THAW_DMTCP;
		p->has_core |= format == THAW_CORE;
		tree_node(&p->tree, file->ino)->format = (uint32_t)format;
		return 0;
	}
	layout_rollback(&p->layout, mark);
	if (r != -EBADMSG && r != -EOVERFLOW && r != -ENODATA)
		return r;
	snprintf(line, sizeof(line), "stored as plain bytes, without memory views: %s", p->layout.error);
	packer_note(p, path, line);
	return 0;
}

enum gzip_end { GZIP_WHOLE, GZIP_DAMAGED, GZIP_MORE };

struct inflater {
	z_stream z;
	struct packer *p;
	int in, out;
	uint64_t in_off, size;
	bool at_end; /* of a stream: another one may follow */
	uint8_t *buf, *plain;
};

/* Return: whether there is input, or -errno */
static int fill_input(struct inflater *f)
{
	ssize_t n;

	if (f->z.avail_in)
		return 1;
	do
		n = pread(f->in, f->buf, COPY_BUFFER, (off_t)f->in_off);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	f->in_off += (uint64_t)n;
	f->z.next_in = f->buf;
	f->z.avail_in = (uInt)n;
	return n > 0;
}

/* one step. Return: 1: go on; 0 with *ret set: the end; -errno */
static int inflate_some(struct inflater *f, enum gzip_end *ret)
{
	int r = fill_input(f), code;
	size_t n;

	if (r < 0)
		return r;
	*ret = !r ? (f->at_end ? GZIP_WHOLE : GZIP_DAMAGED) : GZIP_MORE;
	/* streams may follow each other; what does not begin like one is something else */
	if (!r || (f->at_end && f->z.next_in[0] != GZIP_FIRST_BYTE))
		return 0;
	f->at_end = false;
	f->z.next_out = f->plain;
	f->z.avail_out = COPY_BUFFER;
	code = inflate(&f->z, Z_NO_FLUSH);
	if (code == Z_MEM_ERROR)
		return -ENOMEM;
	if (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR) {
		/* not even a header: a byte that happens to be the same */
		*ret = f->size && f->z.total_out == 0 ? GZIP_MORE : GZIP_DAMAGED;
		return 0;
	}
	n = COPY_BUFFER - f->z.avail_out;
	r = io_write(f->out, f->plain, n);
	if (r)
		return r;
	f->size += n;
	f->at_end = code == Z_STREAM_END;
	if (f->at_end && inflateReset(&f->z) != Z_OK)
		return -EINVAL;
	return stop_asked(f->p->opts->stop) ? -EINTR : 1;
}

/* inflate @fd into an unnamed file, which *ret_fd is if the whole file is gzip. Return: 0 or -errno */
static int inflate_to_spool(struct packer *p, int fd, enum gzip_end *ret_end, int *ret_fd, uint64_t *ret_size)
{
	_cleanup_close_ int out = open(p->out.dir ? p->out.dir : "/var/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	_cleanup_free_ uint8_t *buf = malloc((size_t)2 * COPY_BUFFER);
	struct inflater f = { .p = p, .in = fd, .out = out, .buf = buf };
	int r;

	if (out < 0)
		return -errno;
	if (!buf || inflateInit2(&f.z, GZIP_ONLY) != Z_OK)
		return -ENOMEM;
	f.plain = buf + COPY_BUFFER;
	while ((r = inflate_some(&f, ret_end)) == 1)
		;
	inflateEnd(&f.z);
	if (r)
		return r;
	*ret_fd = steal_fd(&out);
	*ret_size = f.size;
	return 0;
}

/* replace a gzip image by what is in it; 0 if it stays as it is */
static int gunzip_member(struct packer *p, uint32_t ino, int fd, const char *path, bool *ret_done)
{
	struct tree_node *node = tree_node(&p->tree, ino);
	_cleanup_close_ int spool = -1;
	enum gzip_end end = GZIP_DAMAGED;
	uint64_t size = 0;
	int r;

	*ret_done = false;
	if (!p->opts->gunzip) {
		packer_note(
			p, path,
			"gzip inside: kept as it is, so it is not made smaller, its zeros are not found and it cannot "
			"be restored lazily; --gunzip stores what is in it");
		return 0;
	}
	r = inflate_to_spool(p, fd, &end, &spool, &size);
	if (r) {
		if (r != -EINTR)
			log_error("cannot unpack the gzip image '%s': %s", path, strerror(-r));
		return r;
	}
	if (packer_changed(node, fd)) {
		log_error("cannot pack '%s': it changed while it was read", path);
		return -EAGAIN;
	}
	if (end != GZIP_WHOLE) {
		packer_note(p, path,
			    end == GZIP_DAMAGED ? "gzip inside, but damaged or cut short: kept as it is"
						: "gzip inside, but something else behind it: kept as it is");
		return 0;
	}
	p->tree.total_bytes += size - (uint64_t)node->st.st_size;
	node->st.st_size = (off_t)size;
	node->spool_fd = steal_fd(&spool);
	*ret_done = true;
	return 0;
}

/* the first bytes of a file, @ret_len of them. Return: 0 or -errno */
static int read_head(int fd, uint8_t head[HEAD], size_t *ret_len)
{
	size_t len = 0;

	while (len < HEAD) {
		ssize_t n = pread(fd, head + len, HEAD - len, (off_t)len);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			break;
		len += (size_t)n;
	}
	*ret_len = len;
	return 0;
}

static int look_at(struct packer *p, uint32_t ino, int fd, const char *path)
{
	struct tree_node *node = tree_node(&p->tree, ino);
	struct parse_file file = { .ino = ino };
	struct tree_files files;
	uint8_t head[HEAD];
	size_t len = 0;
	int format, r = read_head(fd, head, &len);
	bool inflated;

	if (r) {
		log_error("cannot read '%s': %s", path, strerror(-r));
		return r;
	}
	format = parse_detect(head, len);
	if (format == THAW_DMTCP_GZ) {
		r = gunzip_member(p, ino, fd, path, &inflated);
		if (r)
			return r;
		if (!inflated) {
			node->format = THAW_DMTCP_GZ;
			return 0;
		}
		format = THAW_DMTCP;
	}
	if (format != THAW_DMTCP && format != THAW_CORE)
		return 0;
	files_init(&files, p);
	file.src = make_source(&files, 0, ino, (uint64_t)node->st.st_size, path);
	r = file.src ? parse_file_as(p, format, &file, path) : -ENOMEM;
	files_release(&files);
	return failed(path, r);
}

/* an error here ends the pack, as it would when the data is read: without it, views would be lost silently */
static int look_at_file(struct packer *p, uint32_t ino)
{
	_cleanup_close_ int fd = tree_open(&p->tree, ino);
	char buf[PATH_ROOM];
	const char *path = tree_path(&p->tree, ino, buf, sizeof(buf));

	if (fd < 0) {
		log_error("cannot open '%s': %s", path, strerror(-fd));
		return fd;
	}
	return look_at(p, ino, fd, path);
}

int packer_parse(struct packer *p)
{
	int r = 0;

	if (tree_lookup(&p->tree, 0, ".thaw", 5) >= 0)
		packer_note(p, ".thaw", "in a mount this member is hidden by thawfs's own directory of that name");
	for (uint32_t ino = 0; ino < p->tree.nodes.n && !r; ino++) {
		const struct tree_node *node = tree_node(&p->tree, ino);

		if (stop_asked(p->opts->stop))
			r = -EINTR;
		else if (S_ISDIR(node->st.st_mode))
			r = parse_criu_directory(p, ino);
		else if (S_ISREG(node->st.st_mode) && node->st.st_size >= SMALLEST && node->format == THAW_PLAIN)
			r = look_at_file(p, ino);
	}
	if (r)
		return r;
	return failed(p->opts->src, layout_finish(&p->layout));
}
