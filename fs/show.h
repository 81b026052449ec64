/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the mount shows: which names stand where, which nodes they lead to, and the nodes' attributes. Knows
 * nothing of libfuse and keeps nothing: each answer is computed from slots and images.
 *
 * Any thread may call anything. Errors are those that the kernel is to see, but -EBADMSG and the like, which ops.c
 * turns into EIO.
 */
#ifndef THAW_FS_SHOW_H
#define THAW_FS_SHOW_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "fs/control.h"
#include "fs/fs.h"
#include "fs/inode.h"
#include "fs/view.h"

/* an id as the kernel has it, and back; here the root of a single image gets its place. Return: 0, -ESTALE */
int show_node(const struct fs *fs, uint64_t id, struct node *ret);
uint64_t show_id(const struct fs *fs, const struct node *node);

/* Return: 0, -ENOENT, -ENOTDIR, -ESTALE, -errno */
int show_lookup(struct fs *fs, const struct node *dir, const char *name, struct node *ret);
/* @ret_timeout_s: how long the kernel may keep them */
int show_attr(struct fs *fs, const struct node *node, struct stat *ret, double *ret_timeout_s);

struct show_entry {
	char name[NAME_MAX + 1];
	struct node node;
	bool is_dot;   /* "." or "..": the node is not looked up by it */
	bool costly;   /* attributes take long to make: leave them to a lookup */
	uint32_t mode; /* at least the type */
};

/*
 * show_next - the entry of a directory at @cursor, which is 0 at first and then what this sets; it stays valid
 * whatever comes and goes
 * Return: 0, -ENOENT past the end, -errno
 */
int show_next(struct fs *fs, const struct node *dir, uint64_t *cursor, struct show_entry *ret);

/* seconds for which the kernel may trust a name in @dir */
double show_name_timeout(const struct fs *fs, const struct node *dir, bool found);

/* the directory's entries never change */
bool show_is_fixed(const struct fs *fs, const struct node *dir);

/* where a link of the mount's own leads. Return: 0, -EINVAL if the node is none, -ESTALE */
int show_link(struct fs *fs, const struct node *node, char ret[CONTROL_NAME_MAX]);

/* the text of info.json or a maps file, for text_put() */
int show_text(struct fs *fs, const struct node *node, struct text **ret);

#endif
