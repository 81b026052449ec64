/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The walk: one thread makes directories, links and special files itself and hands regular files to the pool. A
 * second walk, when all data is there, makes hard links and gives directories their metadata on leaving them,
 * because what is made in a directory changes its time.
 *
 * Only the directory at hand is open. The way up is "..", checked to be the directory that the walk came from,
 * so depth needs no descriptors and a directory that somebody moves meanwhile leads nowhere else.
 */
#include "imgfmt/unpack.h"
#include "common/stop.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/bytes.h"
#include "common/cleanup.h"
#include "common/log.h"
#include "imgfmt/table.h"
#include "imgfmt/unpack_pool.h"
#include "imgfmt/walk.h"

/* a file with several names: where its first one is */
struct link {
	uint32_t ino;
	atomic_bool lost;
	char path[]; /* below the destination */
};

struct level {
	dev_t dev;
	ino_t ino;
	struct image_inode inode;
	bool made; /* it was not there before */
};

struct unpack {
	struct image *img;
	const struct unpack_opts *opts;
	const char *dest;
	struct unpack_pool pool;
	struct unpack_dir *dir; /* at hand: the last of levels */
	struct level *levels;
	size_t n_levels, cap_levels;
	int root;             /* descriptor of the destination, or of the directory a single member goes to */
	void *links;          /* tsearch(3) tree of struct link */
	struct table sources; /* struct stat of the image and its bases, if files may be replaced */
	bool bare_root;       /* the image's root directory is made up: it has no metadata to restore */
};

/* -- directories ------------------------------------------------------------------------------- */

/* the directory behind @fd becomes the one at hand; takes the descriptor. Not logged */
static int push_level(struct unpack *u, int fd, const struct image_inode *inode)
{
	struct unpack_dir *dir;
	struct stat st;

	if (u->n_levels == u->cap_levels) {
		size_t cap = u->cap_levels ? u->cap_levels * 2 : 16;
		struct level *p = reallocarray(u->levels, cap, sizeof(*p));

		if (!p) {
			close(fd);
			return -ENOMEM;
		}
		u->levels = p;
		u->cap_levels = cap;
	}
	if (fstat(fd, &st)) {
		int err = -errno;

		close(fd);
		return err;
	}
	dir = unpack_dir_new(fd);
	if (!dir)
		return -ENOMEM;
	u->levels[u->n_levels++] = (struct level){ .dev = st.st_dev, .ino = st.st_ino, .inode = *inode };
	unpack_dir_put(u->dir);
	u->dir = dir;
	return 0;
}

static int at_hand(const struct unpack *u)
{
	return u->dir ? u->dir->fd : -1;
}

/* the directory above the one at hand, if it is still the one we came from */
static int open_parent(const struct unpack *u)
{
	const struct level *up = &u->levels[u->n_levels - 2];
	_cleanup_close_ int fd = openat(at_hand(u), "..", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	struct stat st;

	if (fd < 0 || fstat(fd, &st))
		return -errno;
	if (st.st_dev != up->dev || st.st_ino != up->ino)
		return -ESTALE;
	return steal_fd(&fd);
}

/* leave directories until @depth are left; @dress: give each its metadata */
static int pop_levels(struct unpack *u, size_t depth, bool dress, const char *path)
{
	while (u->n_levels > depth) {
		struct level *level = &u->levels[u->n_levels - 1];
		struct unpack_dir *up = NULL;
		int err = 0;

		/* first: the mode may forbid to look up ".." */
		if (u->n_levels > 1) {
			int fd = open_parent(u);

			if (fd < 0) {
				log_error("cannot leave a directory near '%s': %s", path,
					  fd == -ESTALE ? "it was moved meanwhile" : strerror(-fd));
				return fd;
			}
			up = unpack_dir_new(fd);
			if (!up)
				return -ENOMEM;
		}
		if (dress && !(u->n_levels == 1 && u->bare_root))
			err = out_metadata(u->img, &level->inode, at_hand(u), path, &u->pool.notes);
		if (err)
			log_error("cannot restore the metadata of a directory near '%s': %s", path, strerror(-err));
		unpack_dir_put(u->dir);
		u->dir = up;
		u->n_levels--;
		if (err)
			return err;
	}
	return 0;
}

static int say(const char *path, int err)
{
	if (err == -EEXIST)
		log_error("cannot create '%s': it exists (-f replaces it)", path);
	else if (err == -EISDIR)
		log_error("cannot create '%s': a directory is in the way", path);
	else if (err)
		log_error("cannot create '%s': %s", path, strerror(-err));
	return err;
}

/* -- first walk -------------------------------------------------------------------------------- */

static int compare_links(const void *a, const void *b)
{
	const struct link *x = a, *y = b;

	return x->ino < y->ino ? -1 : x->ino > y->ino;
}

static struct link *find_link(struct unpack *u, uint32_t ino)
{
	struct link key = { .ino = ino };
	struct link **found = tfind(&key, &u->links, compare_links);

	return found ? *found : NULL;
}

static int add_link(struct unpack *u, uint32_t ino, const char *path, struct link **ret)
{
	size_t len = strlen(path) + 1;
	struct link *link = calloc(1, sizeof(*link) + len);

	if (!link)
		return -ENOMEM;
	link->ino = ino;
	memcpy(link->path, path, len);
	if (!tsearch(link, &u->links, compare_links)) {
		free(link);
		return -ENOMEM;
	}
	*ret = link;
	return 0;
}

/* open the file in the directory at hand; a shortage of descriptors is waited out */
static int open_file(struct unpack *u, struct unpack_file *file)
{
	int err = pool_wait(&u->pool, ~0u);

	if (err)
		return err;
	file->fd = out_create(at_hand(u), file->name, u->opts->force, file->temp);
	if (file->fd == -EMFILE || file->fd == -ENFILE) {
		err = pool_wait(&u->pool, 0);
		if (err)
			return err;
		file->fd = out_create(at_hand(u), file->name, u->opts->force, file->temp);
	}
	if (file->fd < 0)
		return say(file->path, file->fd);
	if (ftruncate(file->fd, (off_t)file->inode.size)) {
		err = -errno;
		log_error("cannot make '%s' %llu bytes long: %s", file->path, (unsigned long long)file->inode.size,
			  strerror(errno));
		unlinkat(at_hand(u), file->temp[0] ? file->temp : file->name, 0);
		return err;
	}
	file->dir = unpack_dir_hold(u->dir);
	return 0;
}

static int put_file(struct unpack *u, const struct walk *w, const char *name, struct link *link)
{
	struct unpack_file *file = calloc(1, sizeof(*file));
	int err = -ENOMEM;

	if (!file)
		return -ENOMEM;
	file->fd = -1;
	file->inode = w->inode;
	file->lost = link ? &link->lost : NULL;
	file->path = strdup(w->path);
	file->own_name = strdup(name);
	file->name = file->own_name;
	if (file->path && file->own_name)
		err = open_file(u, file);
	if (err) {
		unpack_file_free(file);
		return err;
	}
	return pool_put(&u->pool, file);
}

static int put_other(struct unpack *u, const struct walk *w, const char *name, struct link *link)
{
	int err = out_special(u->img, &w->inode, at_hand(u), name, u->opts->force, w->path, &u->pool.notes);

	if (err == -EBADMSG) {
		log_error("cannot unpack '%s': the index is damaged", w->path);
		if (link)
			atomic_store(&link->lost, true);
		pool_lost(&u->pool, err);
		return 0;
	}
	return say(w->path, err);
}

static int note_source(void *ctx, struct image *img)
{
	struct unpack *u = ctx;
	int fd = source_fd(image_source(img));
	struct stat *st = fd < 0 ? NULL : table_push(&u->sources);

	return fd < 0 ? 0 : !st ? -ENOMEM : fstat(fd, st) ? -errno : 0;
}

/* what is read from is not replaced by what is in it */
static int check_place(const struct unpack *u, const struct walk *w, const char *name)
{
	struct stat st;

	if (!u->sources.n || fstatat(at_hand(u), name, &st, AT_SYMLINK_NOFOLLOW))
		return 0;
	for (size_t i = 0; i < u->sources.n; i++) {
		const struct stat *source = table_at(&u->sources, i);

		if (st.st_dev == source->st_dev && st.st_ino == source->st_ino) {
			log_error("cannot create '%s': the image, or a base of it, is in its place", w->path);
			return -EBUSY;
		}
	}
	return 0;
}

static int put_entry(struct unpack *u, const struct walk *w, const char *name)
{
	struct link *link = NULL;
	int err = check_place(u, w, name), fd;

	if (err)
		return err;
	if (S_ISDIR(w->inode.mode)) {
		fd = out_enter(at_hand(u), name, u->opts->force);
		return say(w->path, fd < 0 ? fd : push_level(u, fd, &w->inode));
	}
	if (w->inode.nlink > 1) {
		if (find_link(u, w->inode.ino))
			return 0; /* the second walk makes it */
		err = add_link(u, w->inode.ino, w->path, &link);
		if (err)
			return err;
	}
	if (S_ISREG(w->inode.mode))
		return put_file(u, w, name, link);
	return put_other(u, w, name, link);
}

/* -- second walk ------------------------------------------------------------------------------- */

/* the directory that holds @path below the destination, by its parts, through no link. Return: descriptor */
static int open_below(int root, const char *path, const char **ret_name)
{
	_cleanup_close_ int fd = openat(root, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	const char *slash;
	char part[THAW_NAME_MAX + 1];

	if (fd < 0)
		return -errno;
	while ((slash = strchr(path, '/'))) {
		size_t len = (size_t)(slash - path);
		int next;

		if (len > THAW_NAME_MAX)
			return -ENAMETOOLONG;
		memcpy(part, path, len);
		part[len] = '\0';
		next = openat(fd, part, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		if (next < 0)
			return -errno;
		close(fd);
		fd = next;
		path = slash + 1;
	}
	*ret_name = path;
	return steal_fd(&fd);
}

static int make_link(struct unpack *u, const struct walk *w, const char *name)
{
	struct link *link = find_link(u, w->inode.ino);
	_cleanup_close_ int from = -1;
	const char *from_name = NULL;

	int err;

	if (!link || !strcmp(link->path, w->path))
		return 0;
	err = check_place(u, w, name);
	if (err)
		return err;
	if (atomic_load(&link->lost)) {
		log_error("cannot unpack '%s': it is a link to '%s'", w->path, link->path);
		return 0;
	}
	from = open_below(u->root, link->path, &from_name);
	if (from < 0 || !from_name)
		return say(w->path, from);
	return say(w->path, out_link(from, from_name, at_hand(u), name, u->opts->force));
}

static int finish_entry(struct unpack *u, const struct walk *w, const char *name)
{
	int fd;

	if (!S_ISDIR(w->inode.mode))
		return make_link(u, w, name);
	fd = openat(at_hand(u), name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	return say(w->path, fd < 0 ? -errno : push_level(u, fd, &w->inode));
}

/* -- both -------------------------------------------------------------------------------------- */

typedef int entry_fn(struct unpack *u, const struct walk *w, const char *name);

/* do @fn for all below the directory @ino, which is at hand */
static int walk_below(struct unpack *u, uint32_t ino, entry_fn *fn, bool dress)
{
	struct walk w;
	int err = walk_start(&w, u->img, ino, ""), more = 0;

	if (err)
		return err;
	w.partial |= dress; /* the first walk has said what is hidden */
	while (!err && (more = walk_next(&w)) == 1) {
		const char *name = w.path + w.name_off;

		if (w.depth == 0)
			continue;
		err = pop_levels(u, w.depth, dress, w.path);
		if (!err && !out_name_good(name, w.path_len - w.name_off)) {
			log_error("cannot unpack '%s': '%s' is no name for a file", image_path(u->img), w.path);
			err = -EBADMSG;
		}
		if (!err)
			err = fn(u, &w, name);
		if (!err && stop_asked(u->opts->stop))
			err = -EINTR;
	}
	if (!err)
		err = more;
	if (!err)
		err = pop_levels(u, dress ? 0 : 1, dress, w.path);
	walk_release(&w);
	return err;
}

/* bytes of data in a part of the image, for the progress; a file counts for each of its names */
static int count_bytes(struct image *img, uint32_t ino, uint64_t *ret)
{
	uint64_t sum = 0;
	struct walk w;
	int err;

	if (ino == IMAGE_ROOT) {
		const struct image_info *info = image_info(img);

		*ret = info->logical_bytes - min_u64(info->hole_bytes, info->logical_bytes);
		return 0;
	}
	err = walk_start(&w, img, ino, "");
	if (err)
		return err;
	while ((err = walk_next(&w)) == 1)
		sum += w.inode.size - min_u64(w.inode.hole_bytes, w.inode.size);
	walk_release(&w);
	if (!err)
		*ret = sum;
	return err;
}

static bool is_single(struct image *img)
{
	const char *json;
	size_t len;
	cJSON *root;
	bool single;

	if (image_properties(img, &json, &len) || !len)
		return false;
	root = cJSON_ParseWithLength(json, len);
	single = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(root, "single"));
	cJSON_Delete(root);
	return single;
}

/* errors of the image cost what they cost; the destination's end everything */
static int overall(struct unpack *u, int err)
{
	int end = pool_finish(&u->pool);

	if (end)
		return end;
	return err ? err : u->pool.image_err;
}

static int unpack_tree(struct unpack *u, uint32_t ino)
{
	struct image_inode inode;
	int err = image_inode(u->img, ino, &inode), err2;
	_cleanup_close_ int fd = -1;

	if (err)
		return overall(u, err);
	u->bare_root = ino == IMAGE_ROOT && is_single(u->img);
	fd = fcntl(u->root, F_DUPFD_CLOEXEC, 0);
	err = fd < 0 ? -errno : push_level(u, steal_fd(&fd), &inode);
	if (err)
		log_error("cannot open '%s': %s", u->dest, strerror(-err));
	if (!err)
		err = walk_below(u, ino, put_entry, false);
	if (err && err != -EBADMSG)
		pool_fail(&u->pool, err);
	err = overall(u, err);
	/* what is damaged is missing; the rest is to be as it was. The walk stops where the first one did */
	if (err && u->pool.err)
		return err;
	pop_levels(u, 1, false, u->dest);
	err2 = walk_below(u, ino, finish_entry, true);
	pop_levels(u, 0, true, u->dest);
	return err ? err : err2;
}

static int unpack_one(struct unpack *u, uint32_t ino, const char *name)
{
	struct walk w;
	int err = walk_start(&w, u->img, ino, name), fd;

	if (err)
		return overall(u, err);
	w.inode.nlink = 1; /* its other names are not wanted */
	fd = fcntl(u->root, F_DUPFD_CLOEXEC, 0);
	err = fd < 0 ? -errno : push_level(u, fd, &w.inode);
	if (err)
		log_error("cannot open the directory of '%s': %s", u->dest, strerror(-err));
	if (!err)
		err = put_entry(u, &w, name);
	walk_release(&w);
	if (err && err != -EBADMSG)
		pool_fail(&u->pool, err);
	return overall(u, err);
}

/* -- where it goes ----------------------------------------------------------------------------- */

static int open_dir(const char *path, bool make)
{
	int fd;

	if (make && mkdir(path, 0700) && errno != EEXIST)
		return -errno;
	fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

/* "a/b/" is the directory "a" and the name "b". @ret_dir: the caller frees */
static int split_path(const char *path, char **ret_dir, char **ret_name)
{
	size_t len = strlen(path), start;

	while (len > 1 && path[len - 1] == '/')
		len--;
	start = len;
	while (start && path[start - 1] != '/')
		start--;
	*ret_dir = start ? strndup(path, start) : strdup(".");
	*ret_name = strndup(path + start, len - start);
	return *ret_dir && *ret_name ? 0 : -ENOMEM;
}

struct place {
	char *dir;  /* to open, through links too: it is what the user named */
	char *name; /* of a single file in it, or (tree) of a directory in it, which is not opened through a link */
	bool tree;  /* without a name dir is its root */
};

static int fill_place(struct place *ret, const char *dir, const char *name)
{
	if (!out_name_good(name, strlen(name)))
		return -EINVAL;
	ret->dir = strdup(dir);
	ret->name = strdup(name);
	return ret->dir && ret->name ? 0 : -ENOMEM;
}

/* a member goes where cp(1) would put it */
static int member_place(struct unpack *u, const struct image_inode *inode, struct place *ret)
{
	char *dir = NULL, *name = NULL;
	struct stat st;
	bool inside = stat(u->dest, &st) == 0 && S_ISDIR(st.st_mode);
	int err = split_path(inside ? u->opts->member : u->dest, &dir, &name);

	ret->tree = S_ISDIR(inode->mode);
	if (!err)
		err = fill_place(ret, inside ? u->dest : dir, name);
	if (err)
		log_error("cannot unpack to '%s': %s", u->dest, strerror(-err));
	free(dir);
	free(name);
	return err;
}

static int find_member(struct unpack *u, uint32_t *ret_ino, struct place *ret)
{
	const char *member = u->opts->member;
	struct image_inode inode;
	int err = 0;

	*ret_ino = IMAGE_ROOT;
	if (member)
		err = image_walk(u->img, member, ret_ino);
	if (err) {
		log_error("cannot unpack '%s' from '%s': %s", member, image_path(u->img),
			  err == -ENOENT ? "no such member" : strerror(-err));
		return err;
	}
	if (*ret_ino == IMAGE_ROOT) {
		ret->tree = true;
		ret->dir = strdup(u->dest);
		return ret->dir ? 0 : -ENOMEM;
	}
	err = image_inode(u->img, *ret_ino, &inode);
	if (!err)
		err = member_place(u, &inode, ret);
	return err;
}

static void free_link(void *p)
{
	free(p);
}

static void unpack_release(struct unpack *u)
{
	unpack_dir_put(u->dir);
	free(u->levels);
	tdestroy(u->links, free_link);
	table_release(&u->sources);
	if (u->root >= 0)
		close(u->root);
}

static int open_place(struct unpack *u, const struct place *place)
{
	int parent = open_dir(place->dir, !place->name);

	if (parent < 0) {
		log_error("cannot open '%s': %s", place->dir, strerror(-parent));
		return parent;
	}
	u->root = parent;
	if (!place->tree || !place->name)
		return 0;
	u->root = out_enter(parent, place->name, u->opts->force);
	close(parent);
	return u->root < 0 ? say(place->name, u->root) : 0;
}

static int unpack_to(struct unpack *u, uint32_t ino, const struct place *place)
{
	int err = open_place(u, place);

	if (err)
		return err;
	err = pool_start(&u->pool, u->img, u->opts);
	if (err) {
		log_error("cannot start threads: %s", strerror(-err));
		return err;
	}
	err = count_bytes(u->img, ino, &u->pool.total_bytes);
	if (err)
		pool_finish(&u->pool);
	else
		err = place->tree ? unpack_tree(u, ino) : unpack_one(u, ino, place->name);
	/* also after damage: what is there is to stay */
	if (!u->pool.err && !u->opts->no_fsync && syncfs(u->root)) {
		err = -errno;
		log_error("cannot write to '%s': %s", u->dest, strerror(errno));
	}
	return err;
}

int image_unpack(struct image *img, const char *dest, const struct unpack_opts *opts, struct unpack_result *ret)
{
	static const struct unpack_opts none;
	struct unpack u = { .img = img, .opts = opts ? opts : &none, .dest = dest, .root = -1 };
	struct place place = { 0 };
	uint32_t ino;
	int err;

	table_init(&u.sources, sizeof(struct stat));
	err = find_member(&u, &ino, &place);
	if (!err && u.opts->force)
		err = image_each_needed(img, note_source, &u);
	if (!err)
		err = unpack_to(&u, ino, &place);
	if (ret)
		*ret = (struct unpack_result){ .n_files = u.pool.n_files,
					       .n_bytes = u.pool.n_bytes,
					       .n_failed = u.pool.n_failed };
	free(place.dir);
	free(place.name);
	unpack_release(&u);
	return err;
}
