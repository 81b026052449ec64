/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "cli/dmtcp_tree.h"
#include "common/cleanup.h"
#include "common/log.h"

#define RESTART "dmtcp_restart"

__attribute__((format(printf, 2, 3))) static int path_of(char ret[PATH_MAX], const char *fmt, ...)
{
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(ret, PATH_MAX, fmt, ap);
	va_end(ap);
	return n >= 0 && n < PATH_MAX ? 0 : -ENAMETOOLONG;
}

/* -- where DMTCP is ---------------------------------------------------------------------------- */

/* the prefix of an executable PREFIX/bin/dmtcp_restart, links followed */
static int prefix_of(const char *program, char ret[PATH_MAX])
{
	char *slash;

	if (access(program, X_OK) != 0 || !realpath(program, ret))
		return -errno;
	for (int i = 0; i < 2; i++) {
		slash = strrchr(ret, '/');
		if (!slash || slash == ret)
			return -ENOENT;
		if (i == 1 && strcmp(slash, "/bin") != 0)
			return -ENOENT;
		*slash = '\0';
	}
	return 0;
}

static int find_in_path(char ret[PATH_MAX])
{
	const char *given = getenv("PATH");
	_cleanup_free_ char *path = strdup(given ? given : "/usr/local/bin:/usr/bin:/bin");
	char *save = NULL, program[PATH_MAX];

	if (!path)
		return -ENOMEM;
	for (char *dir = strtok_r(path, ":", &save); dir; dir = strtok_r(NULL, ":", &save))
		if (path_of(program, "%s/" RESTART, dir) == 0 && prefix_of(program, ret) == 0)
			return 0;
	log_error("cannot find DMTCP: there is no " RESTART " in $PATH; --dmtcp DIR says where it is");
	return -ENOENT;
}

static int find_prefix(const char *where, char ret[PATH_MAX])
{
	char program[PATH_MAX];

	if (!where)
		return find_in_path(ret);
	if (path_of(program, "%s/bin/" RESTART, where) == 0 && prefix_of(program, ret) == 0)
		return 0;
	if (path_of(program, "%s/" RESTART, where) == 0 && prefix_of(program, ret) == 0)
		return 0;
	log_error("cannot find DMTCP: '%s' has no bin/" RESTART, where);
	return -ENOENT;
}

/* -- where the tree is ------------------------------------------------------------------------- */

/* a directory that only we can write to, made if need be */
static int own_directory(const char *path)
{
	struct stat st;

	if (mkdir(path, 0700) != 0 && errno != EEXIST)
		return -errno;
	if (stat(path, &st) != 0)
		return -errno;
	if (!S_ISDIR(st.st_mode))
		return -ENOTDIR;
	return st.st_uid == geteuid() && !(st.st_mode & (S_IWGRP | S_IWOTH)) ? 0 : -EPERM;
}

/* $XDG_CACHE_HOME/thawfs, else ~/.cache/thawfs */
static int cache_directory(char ret[PATH_MAX])
{
	const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
	int err = -ENOENT;

	*ret = '\0';
	if (cache && *cache == '/')
		err = path_of(ret, "%s", cache);
	else if (home && *home == '/')
		err = path_of(ret, "%s/.cache", home);
	if (!err && mkdir(ret, 0700) != 0 && errno != EEXIST)
		err = -errno;
	if (!err && strlen(ret) + strlen("/thawfs") < PATH_MAX)
		err = own_directory(strcat(ret, "/thawfs"));
	if (!*ret)
		log_error("cannot keep a tree for DMTCP: neither $XDG_CACHE_HOME nor $HOME names a directory");
	else if (err)
		log_error("cannot keep a tree for DMTCP in '%s': %s", ret,
			  err == -EPERM ? "others can write to it" : strerror(-err));
	return err;
}

/* names the tree: another one for each DMTCP, restarter and version of them */
static int identify(const char *prefix, const char *program, const char *restarter, uint64_t *ret)
{
	const char *const files[] = { program, restarter };
	uint64_t id = XXH3_64bits(prefix, strlen(prefix));

	for (size_t i = 0; i < 2; i++) {
		struct stat st;
		uint64_t what[5];

		if (stat(files[i], &st) != 0) {
			log_error("cannot find '%s': %s", files[i], strerror(errno));
			return -errno;
		}
		what[0] = st.st_dev;
		what[1] = st.st_ino;
		what[2] = (uint64_t)st.st_size;
		what[3] = (uint64_t)st.st_mtim.tv_sec;
		what[4] = (uint64_t)st.st_mtim.tv_nsec;
		id = XXH3_64bits_withSeed(what, sizeof(what), id);
	}
	*ret = id;
	return 0;
}

/* -- making it --------------------------------------------------------------------------------- */

static int copy_program(const char *from, const char *to)
{
	_cleanup_close_ int in = open(from, O_RDONLY | O_CLOEXEC), out = -1;
	char buf[65536];
	ssize_t n;

	if (in < 0)
		return -errno;
	out = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0700);
	if (out < 0)
		return -errno;
	while ((n = read(in, buf, sizeof(buf))) > 0)
		for (ssize_t done = 0; done < n;) {
			ssize_t w = write(out, buf + done, (size_t)(n - done));

			if (w < 0)
				return -errno;
			done += w;
		}
	return n < 0 ? -errno : 0;
}

/* links to DMTCP's other programs */
static int link_programs(const char *prefix, const char *tree)
{
	char from[PATH_MAX], to[PATH_MAX];
	_cleanup_closedir_ DIR *dir = NULL;
	const struct dirent *d;
	int err = path_of(from, "%s/bin", prefix);

	dir = err ? NULL : opendir(from);
	if (!dir)
		return err ? err : -errno;
	while (!err && (d = readdir(dir))) {
		if (strncmp(d->d_name, "dmtcp", 5) != 0 && strncmp(d->d_name, "mtcp", 4) != 0)
			continue;
		if (!strcmp(d->d_name, RESTART) || !strcmp(d->d_name, "mtcp_restart"))
			continue;
		err = path_of(from, "%s/bin/%s", prefix, d->d_name);
		if (!err)
			err = path_of(to, "%s/bin/%s", tree, d->d_name);
		if (!err && symlink(from, to) != 0)
			err = -errno;
	}
	return err;
}

static int link_libraries(const char *prefix, const char *tree)
{
	static const char *const dirs[] = { "lib", "lib64" };

	for (size_t i = 0; i < 2; i++) {
		char from[PATH_MAX], to[PATH_MAX];
		int err = path_of(from, "%s/%s/dmtcp", prefix, dirs[i]);

		if (err)
			return err;
		if (access(from, F_OK) != 0)
			continue;
		err = path_of(to, "%s/%s", tree, dirs[i]);
		if (!err && mkdir(to, 0700) != 0)
			err = -errno;
		if (!err)
			err = path_of(to, "%s/%s/dmtcp", tree, dirs[i]);
		if (!err && symlink(from, to) != 0)
			err = -errno;
		if (err)
			return err;
	}
	return 0;
}

static int fill_tree(const char *prefix, const char *restarter, const char *tree)
{
	char from[PATH_MAX], to[PATH_MAX];
	int err = path_of(to, "%s/bin", tree);

	if (!err && mkdir(to, 0700) != 0)
		err = -errno;
	if (!err)
		err = path_of(from, "%s/bin/" RESTART, prefix);
	if (!err)
		err = path_of(to, "%s/bin/" RESTART, tree);
	if (!err)
		err = copy_program(from, to);
	if (!err)
		err = path_of(to, "%s/bin/mtcp_restart", tree);
	if (!err)
		err = copy_program(restarter, to);
	if (!err)
		err = link_programs(prefix, tree);
	return err ? err : link_libraries(prefix, tree);
}

static void remove_directory(const char *path)
{
	_cleanup_closedir_ DIR *dir = opendir(path);
	const struct dirent *d;

	while (dir && (d = readdir(dir))) {
		char name[PATH_MAX];
		struct stat st;

		if (!strcmp(d->d_name, ".") || !strcmp(d->d_name, "..") || path_of(name, "%s/%s", path, d->d_name))
			continue;
		if (lstat(name, &st) == 0 && S_ISDIR(st.st_mode))
			remove_directory(name); /* three levels, of our own making */
		else
			unlink(name);
	}
	rmdir(path);
}

/* complete or not at all; who makes the same one at the same time may win */
static int make_tree(const char *prefix, const char *restarter, const char *cache, const char *tree)
{
	char temporary[PATH_MAX];
	int err = path_of(temporary, "%s/.dmtcp-XXXXXX", cache);

	if (!err && !mkdtemp(temporary))
		err = -errno;
	if (err)
		return err;
	err = fill_tree(prefix, restarter, temporary);
	if (!err && rename(temporary, tree) != 0)
		err = -errno;
	if (err)
		remove_directory(temporary);
	return err == -EEXIST || err == -ENOTEMPTY ? 0 : err;
}

int dmtcp_tree(const char *prefix, const char *restarter, char ret_path[PATH_MAX])
{
	char found[PATH_MAX], program[PATH_MAX], cache[PATH_MAX], tree[PATH_MAX];
	uint64_t id = 0;
	int err = find_prefix(prefix, found);

	if (!err)
		err = path_of(program, "%s/bin/" RESTART, found);
	if (!err)
		err = identify(found, program, restarter, &id);
	if (!err)
		err = cache_directory(cache);
	if (err)
		return err;
	err = path_of(tree, "%s/dmtcp-%016" PRIx64, cache, id);
	if (!err)
		err = path_of(ret_path, "%s/bin/" RESTART, tree);
	if (!err && access(ret_path, X_OK) != 0)
		err = make_tree(found, restarter, cache, tree);
	if (err)
		log_error("cannot make a tree for DMTCP in '%s': %s", cache, strerror(-err));
	return err;
}
