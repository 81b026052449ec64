/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The source of a pack: a file or directory tree as it was found, numbered as the image will number it. Names in
 * a directory are sorted by bytes; directories are visited breadth first, so the entries of one directory have
 * consecutive inode numbers and a directory comes before what it holds. Not thread-safe.
 */
#ifndef THAW_IMGFMT_TREE_H
#define THAW_IMGFMT_TREE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "imgfmt/table.h"

struct tree_node {
	struct stat st;      /* as lstat saw it; st_size changes when the file is replaced by a spool */
	uint64_t target_off; /* symlink: in tree.strings */
	uint64_t first;      /* directory: first of its names */
	uint64_t n_names;
	uint64_t first_xattr;
	uint32_t n_xattrs;
	uint32_t target_len;
	uint32_t parent, name; /* where it is reachable: directory, and index in tree.names (root: 0, 0) */
	uint32_t nlink;
	uint32_t format; /* enum thaw_file_format, set by the packer */
	int spool_fd;    /* ≥ 0: its bytes come from here instead */
};

struct tree_name {
	uint64_t off; /* in tree.strings */
	uint32_t len, parent, ino;
};

struct tree_xattr {
	uint64_t name_off, value_off;
	uint32_t name_len, value_len;
};

struct tree {
	int root_fd;       /* the directory, or the directory that holds the single file */
	bool single;       /* one file was given: node 0 is made up, node 1 is the file */
	char *single_name; /* its name in root_fd */
	struct table nodes, names, xattrs;
	char *strings;
	uint64_t strings_len, strings_cap;
	uint64_t total_bytes; /* sizes of all files */
	/* for opening files: the directory used last */
	int dir_fd;
	uint32_t dir_ino;
	void *links; /* hard links seen: (device, inode) -> ours */
	size_t n_links, cap_links;
};

/* a name in the directory (dev, ino) that is not to be packed: the image being written, or the one it replaces */
struct tree_exclude {
	dev_t dev;
	ino_t ino;
	const char *name;
};

/*
 * tree_scan - read the tree below @src
 * @stop:  set by a signal handler: give up with -EINTR; may be NULL
 * Names everything that cannot be read. Return: 0, -errno. The tree is to be released in any case.
 */
int tree_scan(struct tree *tree, const char *src, const struct tree_exclude *exclude, unsigned n_exclude,
	      const volatile int *stop);
void tree_release(struct tree *tree);

static inline struct tree_node *tree_node(const struct tree *tree, uint32_t ino)
{
	return table_at(&tree->nodes, ino);
}

/* open file @ino for reading; the caller closes. Return: descriptor or -errno (not logged) */
int tree_open(struct tree *tree, uint32_t ino);

/* relative path of a node in @buf ("." for the root), cut off with "..." if it does not fit; for messages and names */
const char *tree_path(const struct tree *tree, uint32_t ino, char *buf, size_t room);

/* find a name in a directory; -1: not there */
int64_t tree_lookup(const struct tree *tree, uint32_t dir, const char *name, size_t len);

static inline const char *tree_string(const struct tree *tree, uint64_t off)
{
	return tree->strings + off;
}

/* append bytes to the strings; Return: 0 or -ENOMEM */
int tree_add_string(struct tree *tree, const void *bytes, size_t len, uint64_t *ret_off);

#endif
