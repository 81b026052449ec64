/* SPDX-License-Identifier: Apache-2.0 */
/*
 * LD_PRELOAD: let one system call of a program fail.
 *
 * FAULT_CALLS  names, separated by commas, of the calls that count (see the list below); unset: none fails
 * FAULT_AT     the how manieth of them fails, from 1
 * FAULT_ERRNO  number of the error; 0: nothing fails, but a read or write transfers half of what it was asked to;
 *              "flip": a write stores one bit wrong; "stall": the call never returns, whatever signal comes
 * FAULT_PATH   only calls on a descriptor or name whose path holds this text count
 * FAULT_FOR    how many calls fail in a row (default 1)
 * FAULT_MARK   file that is made when the call has failed: without it, the program has made fewer calls
 */
/* so that both names of such calls can be taken, the plain one and that with 64 */
#undef _FILE_OFFSET_BITS
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/xattr.h>
#include <unistd.h>

/* the parameters have names that the macros know */
/* NOLINTBEGIN(readability-inconsistent-declaration-parameter-name) */

#define FLIP (-2)

static atomic_long calls;

/* is @name one of the words in @list? */
static bool listed(const char *list, const char *name)
{
	size_t len = strlen(name);

	for (const char *p = list; (p = strstr(p, name)); p += len)
		if ((p == list || p[-1] == ',') && (p[len] == ',' || p[len] == '\0'))
			return true;
	return false;
}

/* the file that a call is about, as far as it can be told: by descriptor, name, or both */
static bool path_counts(int fd, const char *name)
{
	const char *want = getenv("FAULT_PATH");
	char link[64], path[PATH_MAX];
	ssize_t n;

	if (!want || (name && strstr(name, want)))
		return true;
	if (fd < 0)
		return false;
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof(path) - 1);
	if (n < 0)
		return false;
	path[n] = '\0';
	return strstr(path, want) != NULL;
}

static void mark(void)
{
	const char *path = getenv("FAULT_MARK");
	long fd = path ? syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT, 0600) : -1;

	if (fd >= 0)
		syscall(SYS_close, fd);
}

/* the error that this call is to end with: -1 it is to be done, 0 only half of it, FLIP wrongly */
static int fault(const char *call, int fd, const char *name)
{
	const char *list = getenv("FAULT_CALLS"), *at = getenv("FAULT_AT"), *err = getenv("FAULT_ERRNO"),
		   *more = getenv("FAULT_FOR");
	int saved = errno;
	long n, first;
	bool now;

	if (!list || !at || !listed(list, call) || !path_counts(fd, name)) {
		errno = saved;
		return -1;
	}
	n = atomic_fetch_add(&calls, 1) + 1;
	first = atol(at);
	now = n >= first && n < first + (more ? atol(more) : 1);
	if (now)
		mark();
	errno = saved;
	while (now && err && !strcmp(err, "stall"))
		pause();
	if (now && err && !strcmp(err, "flip"))
		return FLIP;
	return now ? (err ? atoi(err) : EIO) : -1;
}

/* the function behind ours; looked up each time, tests can afford it */
static void *real(const char *name)
{
	void *fn = dlsym(RTLD_NEXT, name);

	if (!fn) {
		fprintf(stderr, "shim_fault: there is no %s\n", name);
		abort();
	}
	return fn;
}

/* a function named @fn that counts as @call; @fd and @name (or -1, NULL) say what it is about */
#define SHIM(call, fn, type, fd, name, params, args)    \
	type fn params;                                 \
	type fn params                                  \
	{                                               \
		int err_ = fault(call, fd, name);       \
                                                        \
		if (err_ > 0) {                         \
			errno = err_;                   \
			return (type)-1;                \
		}                                       \
		return ((type(*) params)real(#fn))args; \
	}

/* the same for what transfers @len bytes */
#define SHIM_TRANSFER(call, fn, fd, params, args)          \
	ssize_t fn params;                                 \
	ssize_t fn params                                  \
	{                                                  \
		int err_ = fault(call, fd, NULL);          \
                                                           \
		if (err_ > 0) {                            \
			errno = err_;                      \
			return -1;                         \
		}                                          \
		if (err_ == 0 && len > 1)                  \
			len /= 2;                          \
		return ((ssize_t(*) params)real(#fn))args; \
	}

SHIM_TRANSFER("read", read, fd, (int fd, void *buf, size_t len), (fd, buf, len))
SHIM_TRANSFER("pread", pread, fd, (int fd, void *buf, size_t len, off_t off), (fd, buf, len, off))
SHIM_TRANSFER("pread", pread64, fd, (int fd, void *buf, size_t len, off_t off), (fd, buf, len, off))
ssize_t write(int fd, const void *buf, size_t len)
{
	ssize_t (*next)(int, const void *, size_t) = (ssize_t(*)(int, const void *, size_t))real("write");
	int err = fault("write", fd, NULL);
	uint8_t *copy;
	ssize_t n;

	if (err > 0) {
		errno = err;
		return -1;
	}
	if (err != FLIP || !len)
		return next(fd, buf, err == 0 && len > 1 ? len / 2 : len);
	copy = malloc(len);
	if (!copy)
		abort();
	memcpy(copy, buf, len);
	copy[len / 2] ^= 0x10;
	n = next(fd, copy, len);
	free(copy);
	return n;
}

SHIM_TRANSFER("pwrite", pwrite, fd, (int fd, const void *buf, size_t len, off_t off), (fd, buf, len, off))
SHIM_TRANSFER("pwrite", pwrite64, fd, (int fd, const void *buf, size_t len, off_t off), (fd, buf, len, off))
SHIM_TRANSFER("copy_file_range", copy_file_range, fd,
	      (int fd, off_t *off, int to, off_t *to_off, size_t len, unsigned flags),
	      (fd, off, to, to_off, len, flags))

SHIM("fsync", fsync, int, fd, NULL, (int fd), (fd))
SHIM("fsync", fdatasync, int, fd, NULL, (int fd), (fd))
SHIM("fsync", syncfs, int, fd, NULL, (int fd), (fd))
SHIM("close", close, int, fd, NULL, (int fd), (fd))
SHIM("lseek", lseek, off_t, fd, NULL, (int fd, off_t off, int whence), (fd, off, whence))
SHIM("lseek", lseek64, off_t, fd, NULL, (int fd, off_t off, int whence), (fd, off, whence))
SHIM("truncate", ftruncate, int, fd, NULL, (int fd, off_t len), (fd, len))
SHIM("truncate", ftruncate64, int, fd, NULL, (int fd, off_t len), (fd, len))
SHIM("flock", flock, int, fd, NULL, (int fd, int op), (fd, op))

SHIM("stat", fstat, int, fd, NULL, (int fd, struct stat *st), (fd, st))
SHIM("stat", fstat64, int, fd, NULL, (int fd, struct stat64 *st), (fd, st))
SHIM("stat", stat, int, -1, path, (const char *path, struct stat *st), (path, st))
SHIM("stat", stat64, int, -1, path, (const char *path, struct stat64 *st), (path, st))
SHIM("stat", lstat, int, -1, path, (const char *path, struct stat *st), (path, st))
SHIM("stat", lstat64, int, -1, path, (const char *path, struct stat64 *st), (path, st))
SHIM("stat", fstatat, int, fd, path, (int fd, const char *path, struct stat *st, int flags), (fd, path, st, flags))
SHIM("stat", fstatat64, int, fd, path, (int fd, const char *path, struct stat64 *st, int flags), (fd, path, st, flags))
SHIM("readlink", readlinkat, ssize_t, fd, path, (int fd, const char *path, char *buf, size_t len), (fd, path, buf, len))

SHIM("rename", rename, int, -1, from, (const char *from, const char *to), (from, to))
SHIM("rename", renameat, int, fd, from, (int fd, const char *from, int to_fd, const char *to), (fd, from, to_fd, to))
SHIM("unlink", unlink, int, -1, path, (const char *path), (path))
SHIM("unlink", unlinkat, int, fd, path, (int fd, const char *path, int flags), (fd, path, flags))
SHIM("make", mkdir, int, -1, path, (const char *path, mode_t mode), (path, mode))
SHIM("make", mkdirat, int, fd, path, (int fd, const char *path, mode_t mode), (fd, path, mode))
SHIM("make", symlinkat, int, fd, path, (const char *target, int fd, const char *path), (target, fd, path))
SHIM("make", mknodat, int, fd, path, (int fd, const char *path, mode_t mode, dev_t dev), (fd, path, mode, dev))
SHIM("make", linkat, int, fd, path, (int from_fd, const char *from, int fd, const char *path, int flags),
     (from_fd, from, fd, path, flags))

SHIM("mode", fchmod, int, fd, NULL, (int fd, mode_t mode), (fd, mode))
SHIM("mode", fchmodat, int, fd, path, (int fd, const char *path, mode_t mode, int flags), (fd, path, mode, flags))
SHIM("owner", fchown, int, fd, NULL, (int fd, uid_t uid, gid_t gid), (fd, uid, gid))
SHIM("owner", fchownat, int, fd, path, (int fd, const char *path, uid_t uid, gid_t gid, int flags),
     (fd, path, uid, gid, flags))
SHIM("time", futimens, int, fd, NULL, (int fd, const struct timespec ts[2]), (fd, ts))
SHIM("time", utimensat, int, fd, path, (int fd, const char *path, const struct timespec ts[2], int flags),
     (fd, path, ts, flags))
SHIM("setxattr", fsetxattr, int, fd, NULL, (int fd, const char *name, const void *value, size_t len, int flags),
     (fd, name, value, len, flags))
SHIM("setxattr", lsetxattr, int, -1, path,
     (const char *path, const char *name, const void *value, size_t len, int flags), (path, name, value, len, flags))
SHIM("getxattr", lgetxattr, ssize_t, -1, path, (const char *path, const char *name, void *value, size_t len),
     (path, name, value, len))
SHIM("getxattr", llistxattr, ssize_t, -1, path, (const char *path, char *list, size_t len), (path, list, len))

struct dirent *readdir(DIR *d)
{
	int err = fault("readdir", dirfd(d), NULL);

	if (err > 0) {
		errno = err;
		return NULL;
	}
	return ((struct dirent * (*)(DIR *)) real("readdir"))(d);
}

struct dirent64 *readdir64(DIR *d)
{
	int err = fault("readdir", dirfd(d), NULL);

	if (err > 0) {
		errno = err;
		return NULL;
	}
	return ((struct dirent64 * (*)(DIR *)) real("readdir64"))(d);
}

/* the mode is there or not: always passed on, ignored where it does not matter */
#define SHIM_OPEN(fn)                                                                      \
	int fn(const char *path, int flags, ...)                                           \
	{                                                                                  \
		int err_ = fault("open", -1, path);                                        \
                                                                                           \
		if (err_ > 0) {                                                            \
			errno = err_;                                                      \
			return -1;                                                         \
		}                                                                          \
		return ((int (*)(const char *, int, mode_t))real(#fn))(path, flags, 0600); \
	}
#define SHIM_OPENAT(fn)                                                                             \
	int fn(int fd, const char *path, int flags, ...)                                            \
	{                                                                                           \
		int err_ = fault("open", fd, path);                                                 \
                                                                                                    \
		if (err_ > 0) {                                                                     \
			errno = err_;                                                               \
			return -1;                                                                  \
		}                                                                                   \
		return ((int (*)(int, const char *, int, mode_t))real(#fn))(fd, path, flags, 0600); \
	}

SHIM_OPEN(open)
SHIM_OPEN(open64)
SHIM_OPENAT(openat)
SHIM_OPENAT(openat64)

/* NOLINTEND(readability-inconsistent-declaration-parameter-name) */
