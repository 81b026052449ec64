/* SPDX-License-Identifier: Apache-2.0 */
#include "imgfmt/tree.h"
#include "common/stop.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>

#include "common/bytes.h"
#include "common/cleanup.h"
#include "common/log.h"
#include "imgfmt/format.h"

#define PATH_ROOM 4096

int tree_add_string(struct tree *tree, const void *bytes, size_t len, uint64_t *ret_off)
{
	if (len > tree->strings_cap - tree->strings_len) {
		uint64_t cap = max_u64(2 * tree->strings_cap, tree->strings_len + len + 4096);
		char *p = realloc(tree->strings, cap);

		if (!p)
			return -ENOMEM;
		tree->strings = p;
		tree->strings_cap = cap;
	}
	if (len)
		memcpy(tree->strings + tree->strings_len, bytes, len);
	*ret_off = tree->strings_len;
	tree->strings_len += len;
	return 0;
}

/* -- hard links: an open-addressing map of (device, inode) ------------------------------------ */

struct link {
	dev_t dev;
	ino_t ino;
	uint32_t node;
	bool used;
};

static struct link *link_slot(struct link *links, size_t cap, dev_t dev, ino_t ino)
{
	size_t i = (size_t)((uint64_t)ino * 0x9e3779b97f4a7c15u ^ (uint64_t)dev * 0xc2b2ae3d27d4eb4fu) & (cap - 1);

	while (links[i].used && (links[i].dev != dev || links[i].ino != ino))
		i = (i + 1) & (cap - 1);
	return &links[i];
}

static int grow_links(struct tree *tree)
{
	size_t cap = tree->cap_links ? 2 * tree->cap_links : 64;
	struct link *old = tree->links, *bigger = calloc(cap, sizeof(*bigger));

	if (!bigger)
		return -ENOMEM;
	for (size_t i = 0; i < tree->cap_links; i++)
		if (old[i].used)
			*link_slot(bigger, cap, old[i].dev, old[i].ino) = old[i];
	free(old);
	tree->links = bigger;
	tree->cap_links = cap;
	return 0;
}

/* the node that already stands for this file, or -1 after remembering @node for it */
static int64_t find_or_add_link(struct tree *tree, const struct stat *st, uint32_t node)
{
	struct link *slot;

	if (2 * (tree->n_links + 1) > tree->cap_links && grow_links(tree))
		return -ENOMEM;
	slot = link_slot(tree->links, tree->cap_links, st->st_dev, st->st_ino);
	if (slot->used)
		return slot->node;
	*slot = (struct link){ .dev = st->st_dev, .ino = st->st_ino, .node = node, .used = true };
	tree->n_links++;
	return -1;
}

/* -- extended attributes ---------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static int add_xattr(struct tree *tree, struct tree_node *node, const char *path, const char *name)
{
	_cleanup_free_ char *value = malloc(THAW_XATTR_MAX + 1);
	struct tree_xattr *x;
	ssize_t n;
	int r;

	if (!value)
		return -ENOMEM;
	n = tree->single ? getxattr(path, name, value, THAW_XATTR_MAX + 1)
			 : lgetxattr(path, name, value, THAW_XATTR_MAX + 1);
	if (n < 0)
		return errno == ENODATA ? 0 : -errno;
	if (n > (ssize_t)THAW_XATTR_MAX || strlen(name) > THAW_NAME_MAX)
		return -E2BIG;
	x = table_push(&tree->xattrs);
	if (!x)
		return -ENOMEM;
	x->name_len = (uint32_t)strlen(name);
	x->value_len = (uint32_t)n;
	r = tree_add_string(tree, name, x->name_len, &x->name_off);
	if (!r && n)
		r = tree_add_string(tree, value, (size_t)n, &x->value_off);
	if (!r) {
		if (!node->n_xattrs++)
			node->first_xattr = tree->xattrs.n - 1;
	}
	return r;
}

/* as everywhere: a single file may be named through a symlink, below a tree none is followed */
static ssize_t list_xattrs(const struct tree *tree, const char *path, char *list, size_t room)
{
	return tree->single ? listxattr(path, list, room) : llistxattr(path, list, room);
}

/* @path leads to the entry through /proc/self/fd, so its length does not matter */
static int scan_xattrs(struct tree *tree, struct tree_node *node, const char *path)
{
	ssize_t len = list_xattrs(tree, path, NULL, 0);
	_cleanup_free_ char *list = NULL;
	_cleanup_free_ char **names = NULL;
	size_t n = 0;
	int r = 0;

	if (len <= 0)
		return len < 0 && errno != ENOTSUP && errno != ENOENT ? -errno : 0;
	list = malloc((size_t)len + 4096);
	names = malloc(((size_t)len + 4096) / 2 * sizeof(*names));
	if (!list || !names)
		return -ENOMEM;
	len = list_xattrs(tree, path, list, (size_t)len + 4095);
	if (len < 0)
		return -errno;
	list[len] = '\0';
	for (char *p = list; p < list + len; p += strlen(p) + 1)
		if (*p)
			names[n++] = p;
	qsort(names, n, sizeof(*names), by_name);
	for (size_t i = 0; i < n && !r; i++)
		r = add_xattr(tree, node, path, names[i]);
	return r;
}

/* -- scanning --------------------------------------------------------------------------------- */

static int read_target(struct tree *tree, struct tree_node *node, int dir_fd, const char *name)
{
	char target[THAW_TARGET_MAX + 2];
	ssize_t n = readlinkat(dir_fd, name, target, sizeof(target));

	if (n < 0)
		return -errno;
	if (n > (ssize_t)THAW_TARGET_MAX)
		return -ENAMETOOLONG;
	if (n == 0)
		return -EINVAL;
	node->target_len = (uint32_t)n;
	return tree_add_string(tree, target, (size_t)n, &node->target_off);
}

/* make a node for @name in the open directory @dir_fd, number @dir; or count one more link to a known one */
static int add_entry(struct tree *tree, int dir_fd, uint32_t dir, const char *name, const struct stat *st)
{
	char path[64 + NAME_MAX];
	uint32_t ino = (uint32_t)tree->nodes.n;
	struct tree_node *node;
	struct tree_name *entry;
	int r;

	if (tree->nodes.n >= THAW_MAX_ENTRIES)
		return -EOVERFLOW;
	entry = table_push(&tree->names);
	if (!entry)
		return -ENOMEM;
	entry->len = (uint32_t)strlen(name);
	entry->parent = dir;
	r = tree_add_string(tree, name, entry->len, &entry->off);
	if (r)
		return r;
	if (st->st_nlink > 1 && !S_ISDIR(st->st_mode)) {
		int64_t known = find_or_add_link(tree, st, ino);

		if (known == -ENOMEM)
			return -ENOMEM;
		if (known >= 0) {
			entry->ino = (uint32_t)known;
			tree_node(tree, entry->ino)->nlink++;
			return 0;
		}
	}
	node = table_push(&tree->nodes);
	if (!node)
		return -ENOMEM;
	entry->ino = ino;
	node->st = *st;
	node->nlink = 1;
	node->parent = dir;
	node->name = (uint32_t)tree->names.n - 1;
	node->spool_fd = -1;
	if (S_ISREG(st->st_mode))
		tree->total_bytes += (uint64_t)st->st_size;
	if (S_ISLNK(st->st_mode) && (r = read_target(tree, node, dir_fd, name)))
		return r;
	snprintf(path, sizeof(path), "/proc/self/fd/%d/%s", dir_fd, name);
	return scan_xattrs(tree, node, path);
}

/* by name, not by what it is: another name of the same file is a member like any other. @dir: the directory */
static bool excluded(const struct stat *dir, const char *name, const struct tree_exclude *exclude, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		if (dir->st_dev == exclude[i].dev && dir->st_ino == exclude[i].ino && !strcmp(name, exclude[i].name))
			return true;
	return false;
}

/* sorted names of a directory */
static int list_directory(int fd, char ***ret_names, size_t *ret_n)
{
	_cleanup_closedir_ DIR *d = NULL;
	int copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	size_t n = 0, cap = 0;
	char **names = NULL;
	struct dirent *e;
	int r = 0;

	d = copy < 0 ? NULL : fdopendir(copy);
	if (!d) {
		r = -errno;
		if (copy >= 0)
			close(copy);
		return r;
	}
	while (errno = 0, (e = readdir(d))) {
		if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
			continue;
		if (n == cap) {
			char **bigger = reallocarray(names, cap = 2 * cap + 64, sizeof(*names));

			if (!bigger) {
				r = -ENOMEM;
				break;
			}
			names = bigger;
		}
		names[n] = strdup(e->d_name);
		if (!names[n]) {
			r = -ENOMEM;
			break;
		}
		n++;
	}
	if (!r && errno)
		r = -errno;
	if (n)
		qsort(names, n, sizeof(*names), by_name);
	*ret_names = names;
	*ret_n = n;
	return r;
}

static int scan_directory(struct tree *tree, uint32_t dir, const struct tree_exclude *exclude, unsigned n_exclude,
			  const volatile int *stop)
{
	_cleanup_close_ int fd = tree_open(tree, dir);
	char where[PATH_ROOM];
	char **names = NULL;
	struct stat self;
	size_t n = 0;
	int r;

	if (fd < 0) {
		log_error("cannot open directory '%s': %s", tree_path(tree, dir, where, sizeof(where)), strerror(-fd));
		return fd;
	}
	r = fstat(fd, &self) ? -errno : list_directory(fd, &names, &n);
	if (r)
		log_error("cannot read directory '%s': %s", tree_path(tree, dir, where, sizeof(where)), strerror(-r));
	tree_node(tree, dir)->first = tree->names.n;
	for (size_t i = 0; i < n && !r; i++) {
		struct stat st;

		if (excluded(&self, names[i], exclude, n_exclude))
			continue;
		if (stop_asked(stop)) {
			r = -EINTR;
			break;
		}
		r = fstatat(fd, names[i], &st, AT_SYMLINK_NOFOLLOW) ? -errno : 0;
		if (!r)
			r = add_entry(tree, fd, dir, names[i], &st);
		if (r)
			log_error("cannot pack '%s/%s': %s", tree_path(tree, dir, where, sizeof(where)), names[i],
				  strerror(-r));
	}
	tree_node(tree, dir)->n_names = tree->names.n - tree_node(tree, dir)->first;
	for (size_t i = 0; i < n; i++)
		free(names[i]);
	free(names);
	return r;
}

static int scan_root_directory(struct tree *tree, const struct stat *st, const struct tree_exclude *exclude,
			       unsigned n_exclude, const volatile int *stop)
{
	struct tree_node *root = table_push(&tree->nodes);
	char path[64];
	int r;

	if (!root)
		return -ENOMEM;
	root->st = *st;
	root->spool_fd = -1;
	snprintf(path, sizeof(path), "/proc/self/fd/%d/.", tree->root_fd);
	r = scan_xattrs(tree, root, path);
	if (r)
		log_error("cannot read the attributes of the source itself: %s", strerror(-r));
	/* the list of nodes is the queue */
	for (uint32_t ino = 0; !r && ino < tree->nodes.n; ino++)
		if (S_ISDIR(tree_node(tree, ino)->st.st_mode))
			r = scan_directory(tree, ino, exclude, n_exclude, stop);
	return r;
}

/* a root that the source does not have: it takes owner and time from the file, so that the image depends on nothing
 * else */
static int scan_single_file(struct tree *tree, const struct stat *st)
{
	struct tree_node *root = table_push(&tree->nodes);
	int r;

	if (!root)
		return -ENOMEM;
	root->st = *st;
	root->st.st_mode = S_IFDIR | 0700;
	root->st.st_size = 0;
	root->spool_fd = -1;
	r = add_entry(tree, tree->root_fd, 0, tree->single_name, st);
	root->n_names = tree->names.n;
	if (r)
		log_error("cannot pack '%s': %s", tree->single_name, strerror(-r));
	return r;
}

/* "a/b/c" -> directory descriptor of "a/b" and name "c" */
static int open_parent(struct tree *tree, const char *src)
{
	_cleanup_free_ char *copy = strdup(src);
	char *slash;

	if (!copy)
		return -ENOMEM;
	slash = strrchr(copy, '/');
	tree->single_name = strdup(slash ? slash + 1 : copy);
	if (!tree->single_name)
		return -ENOMEM;
	if (slash)
		slash[slash == copy] = '\0';
	tree->root_fd = open(slash ? copy : ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
	return tree->root_fd < 0 ? -errno : 0;
}

int tree_scan(struct tree *tree, const char *src, const struct tree_exclude *exclude, unsigned n_exclude,
	      const volatile int *stop)
{
	struct stat st;
	int r;

	*tree = (struct tree){ .root_fd = -1, .dir_fd = -1 };
	table_init(&tree->nodes, sizeof(struct tree_node));
	table_init(&tree->names, sizeof(struct tree_name));
	table_init(&tree->xattrs, sizeof(struct tree_xattr));
	/* a symlink that the user names is followed, what lies below is not */
	r = stat(src, &st) ? -errno : 0;
	if (!r && S_ISDIR(st.st_mode)) {
		tree->root_fd = open(src, O_PATH | O_DIRECTORY | O_CLOEXEC);
		if (tree->root_fd >= 0)
			return scan_root_directory(tree, &st, exclude, n_exclude, stop);
		r = -errno;
	} else if (!r && S_ISREG(st.st_mode)) {
		tree->single = true;
		r = open_parent(tree, src);
		if (!r)
			return scan_single_file(tree, &st);
	} else if (!r) {
		log_error("cannot pack '%s': neither a file nor a directory", src);
		return -EINVAL;
	}
	log_error("cannot open '%s': %s", src, strerror(-r));
	return r;
}

void tree_release(struct tree *tree)
{
	for (size_t i = 0; i < tree->nodes.n; i++)
		if (tree_node(tree, (uint32_t)i)->spool_fd >= 0)
			close(tree_node(tree, (uint32_t)i)->spool_fd);
	table_release(&tree->nodes);
	table_release(&tree->names);
	table_release(&tree->xattrs);
	free(tree->strings);
	free(tree->links);
	free(tree->single_name);
	if (tree->dir_fd >= 0)
		close(tree->dir_fd);
	if (tree->root_fd >= 0)
		close(tree->root_fd);
}

/* -- opening ---------------------------------------------------------------------------------- */

static int open_name(const struct tree *tree, int dir_fd, const struct tree_node *node, int flags)
{
	const struct tree_name *entry = table_at(&tree->names, node->name);
	char name[NAME_MAX + 1];
	int fd;

	memcpy(name, tree_string(tree, entry->off), entry->len);
	name[entry->len] = '\0';
	fd = openat(dir_fd, name, flags | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

/*
 * Component by component, so that depth is bounded by nothing; O_NOFOLLOW, so that the tree cannot lead elsewhere. From
 * the directory used last if the way leads through it, so that a deep chain does not cost the square of its depth.
 */
static int open_directory(struct tree *tree, uint32_t ino)
{
	_cleanup_free_ uint32_t *chain = NULL;
	size_t depth = 0, cap = 0;
	uint32_t i = ino;
	int fd;

	if (tree->dir_fd >= 0 && tree->dir_ino == ino)
		return tree->dir_fd;
	for (; i != 0 && (tree->dir_fd < 0 || i != tree->dir_ino); i = tree_node(tree, i)->parent) {
		if (depth == cap) {
			uint32_t *bigger = reallocarray(chain, cap = 2 * cap + 16, sizeof(*chain));

			if (!bigger)
				return -ENOMEM;
			chain = bigger;
		}
		chain[depth++] = i;
	}
	fd = openat(i ? tree->dir_fd : tree->root_fd, ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	while (depth) {
		int next = open_name(tree, fd, tree_node(tree, chain[--depth]), O_PATH | O_DIRECTORY | O_NOFOLLOW);

		close(fd);
		if (next < 0)
			return next;
		fd = next;
	}
	if (tree->dir_fd >= 0)
		close(tree->dir_fd);
	tree->dir_fd = fd;
	tree->dir_ino = ino;
	return fd;
}

int tree_open(struct tree *tree, uint32_t ino)
{
	const struct tree_node *node = tree_node(tree, ino);
	int dir, fd;

	if (S_ISDIR(node->st.st_mode)) {
		dir = open_directory(tree, ino);
		fd = dir < 0 ? dir : openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		return dir < 0 ? dir : fd < 0 ? -errno : fd;
	}
	dir = tree->single ? tree->root_fd : open_directory(tree, node->parent);
	if (dir < 0)
		return dir;
	/* the single file may have been named through a symlink */
	return open_name(tree, dir, node, O_RDONLY | O_NONBLOCK | (tree->single ? 0 : O_NOFOLLOW));
}

const char *tree_path(const struct tree *tree, uint32_t ino, char *buf, size_t room)
{
	size_t at = room - 1;

	buf[at] = '\0';
	if (ino == 0)
		return strcpy(buf, ".");
	for (; ino != 0; ino = tree_node(tree, ino)->parent) {
		const struct tree_name *name = table_at(&tree->names, tree_node(tree, ino)->name);
		bool slash = buf[at] != '\0';

		if (name->len + slash + 4 > at) {
			at -= 3;
			memcpy(buf + at, "...", 3);
			break;
		}
		if (slash)
			buf[--at] = '/';
		at -= name->len;
		memcpy(buf + at, tree_string(tree, name->off), name->len);
	}
	return buf + at;
}

int64_t tree_lookup(const struct tree *tree, uint32_t dir, const char *name, size_t len)
{
	const struct tree_node *node = tree_node(tree, dir);
	uint64_t lo = node->first, hi = node->first + node->n_names;

	while (lo < hi) {
		uint64_t mid = lo + (hi - lo) / 2;
		const struct tree_name *entry = table_at(&tree->names, mid);
		int c = memcmp(tree_string(tree, entry->off), name, entry->len < len ? entry->len : len);

		if (c == 0)
			c = entry->len < len ? -1 : entry->len > len;
		if (c == 0)
			return entry->ino;
		if (c < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	return -1;
}
