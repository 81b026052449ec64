/* SPDX-License-Identifier: Apache-2.0 */
#include "imgfmt/output.h"
#include "common/clock.h"
#include "common/stop.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/bytes.h"
#include "common/cleanup.h"
#include "common/io.h"
#include "common/log.h"

/* Write-out is started every so many bytes, so that the final fsync finds little left to do. */
#define FLUSH_STEP     (8u << 20)
#define WAIT_STEP_NS   50000000u
#define FIRST_RETRY_NS 100000000u /* twice as long each time */

static int fail(const struct output *out, const char *what, int r)
{
	log_error("cannot %s '%s': %s", what, out->name, strerror(-r));
	return r;
}

static const char *last_part(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

static int make_names(struct output *out, const char *path)
{
	const char *slash = strrchr(path, '/'), *base = last_part(path);

	out->path = strdup(path);
	out->dir = slash ? strndup(path, (size_t)(slash - path) + (slash == path)) : strdup(".");
	if (!out->path || !out->dir || asprintf(&out->tmp, "%s/.%s.partial", out->dir, base) < 0) {
		out->tmp = NULL;
		return -ENOMEM;
	}
	return *base ? 0 : -EISDIR;
}

/* what stands under the final name may be replaced only if it is an ordinary file */
static int check_target(const struct output *out)
{
	struct stat st;

	if (lstat(out->path, &st))
		return errno == ENOENT ? 0 : -errno;
	if (S_ISDIR(st.st_mode))
		return -EISDIR;
	return S_ISREG(st.st_mode) || S_ISLNK(st.st_mode) ? 0 : -EINVAL;
}

/*
 * The lock is on the temporary file itself. The winner of the lock may find that the file was published or
 * removed by its previous owner between open and lock: then the name is another file, and it tries again.
 */
static int lock_temporary(struct output *out)
{
	for (int tries = 0; tries < 100; tries++) {
		struct stat mine, named;

		out->fd = open(out->tmp, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
		if (out->fd < 0)
			return -errno;
		if (flock(out->fd, LOCK_EX | LOCK_NB))
			return errno == EWOULDBLOCK ? -EBUSY : -errno;
		if (fstat(out->fd, &mine))
			return -errno;
		if (!S_ISREG(mine.st_mode))
			return -EINVAL;
		if (!stat(out->tmp, &named) && mine.st_dev == named.st_dev && mine.st_ino == named.st_ino)
			return 0;
		close(steal_fd(&out->fd));
	}
	return -EBUSY;
}

/* only the holder of the lock may remove the temporary name: until then, forget it */
static void forget_temporary(struct output *out)
{
	free(out->tmp);
	out->tmp = NULL;
}

static int identify_directory(struct output *out)
{
	struct stat st;

	if (stat(out->dir, &st))
		return -errno;
	out->dir_dev = st.st_dev;
	out->dir_ino = st.st_ino;
	return 0;
}

int output_open(struct output *out, const char *path)
{
	int r;

	*out = (struct output){ .fd = -1, .name = path };
	if (!strcmp(path, "-")) {
		out->name = "standard output";
		if (isatty(STDOUT_FILENO)) {
			log_error("not writing an image to a terminal");
			return -EINVAL;
		}
		out->fd = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
		return out->fd < 0 ? fail(out, "open", -errno) : 0;
	}
	out->seekable = true;
	r = make_names(out, path);
	if (!r)
		r = check_target(out);
	if (r) {
		forget_temporary(out);
		if (r != -EINVAL)
			return fail(out, "write", r);
		log_error("cannot write '%s': what is there is no regular file", out->name);
		return r;
	}
	r = identify_directory(out);
	if (!r)
		r = lock_temporary(out);
	if (r == -ELOOP || r == -EISDIR || r == -EINVAL || r == -ENXIO) {
		log_error("cannot write '%s': '%s' is in the way, which is no regular file", out->name, out->tmp);
		forget_temporary(out);
		return r;
	}
	if (r) {
		forget_temporary(out);
		if (r != -EBUSY)
			return fail(out, "create", r);
		log_error("cannot write '%s': another process is writing it", out->name);
		return r;
	}
	return 0;
}

/* -- what would be lost ------------------------------------------------------------------------ */

const char *output_base_name(const struct output *out)
{
	return last_part(out->path);
}

const char *output_temporary_name(const struct output *out)
{
	return last_part(out->tmp);
}

/* is @path the name @name in our directory? */
static bool same_name(const struct output *out, const char *path, const char *name)
{
	const char *last = last_part(path);
	_cleanup_free_ char *dir = last == path ? strdup(".") : strndup(path, (size_t)(last - path));
	struct stat st;

	return dir && !strcmp(last, name) && !stat(dir, &st) && st.st_dev == out->dir_dev && st.st_ino == out->dir_ino;
}

/* does the name @ours, @name in our directory, hold what @path leads to? */
static bool would_lose(const struct output *out, const char *ours, const char *name, const char *path,
		       const struct stat *st)
{
	char real[PATH_MAX];
	struct stat there;

	if (lstat(ours, &there))
		return false;
	/* also when it is a link to what is elsewhere: then it is the way there that would be lost */
	if (same_name(out, path, name))
		return true;
	if (there.st_dev != st->st_dev || there.st_ino != st->st_ino)
		return false;
	return there.st_nlink == 1 || (realpath(path, real) && same_name(out, real, name));
}

enum output_place output_place(struct output *out, const char *path, const struct stat *st)
{
	if (!out->seekable)
		return OUTPUT_ELSEWHERE;
	if (would_lose(out, out->path, output_base_name(out), path, st))
		return OUTPUT_FINAL;
	if (!would_lose(out, out->tmp, output_temporary_name(out), path, st))
		return OUTPUT_ELSEWHERE;
	out->keep_tmp = true;
	return OUTPUT_TEMPORARY;
}

int output_continue_at(struct output *out, uint64_t pos)
{
	if (fchmod(out->fd, 0600) || ftruncate(out->fd, (off_t)pos) || lseek(out->fd, (off_t)pos, SEEK_SET) < 0)
		return fail(out, "write", -errno);
	out->pos = out->flushed = pos;
	return 0;
}

/* -- writing ---------------------------------------------------------------------------------- */

static bool stopped(const struct output *out)
{
	return stop_asked(out->stop);
}

/* in steps, so that stopping does not take long */
static int wait_until(const struct output *out, uint64_t due_ns)
{
	for (uint64_t now = clock_ns(); now < due_ns; now = clock_ns()) {
		struct timespec ts = { .tv_nsec = (long)min_u64(due_ns - now, WAIT_STEP_NS) };

		if (stopped(out))
			return -EINTR;
		nanosleep(&ts, NULL);
	}
	return 0;
}

/* hold back until as many bytes as there are now may be there */
static int keep_rate(struct output *out)
{
	uint64_t n;

	if (!out->rate)
		return 0;
	if (!out->start_ns) {
		out->start_ns = clock_ns();
		out->start_pos = out->pos;
		return 0;
	}
	n = out->pos - out->start_pos;
	return wait_until(out, out->start_ns + (uint64_t)((double)n / (double)out->rate * 1e9));
}

/* what a file system over a network may say for a while */
static bool may_pass(int r)
{
	switch (r) {
	case -EIO:
	case -ETIMEDOUT:
	case -ESTALE:
	case -EHOSTDOWN:
	case -EHOSTUNREACH:
	case -ENETDOWN:
	case -ENETUNREACH:
	case -ECONNRESET:
		return true;
	default:
		return false;
	}
}

/* all of it, from where it has to be, again and again if need be */
static int write_chunk(struct output *out, const void *buf, size_t len)
{
	int r = io_write(out->fd, buf, len);

	for (unsigned i = 0; i < out->retries && out->seekable && may_pass(r); i++) {
		log_warn("cannot write '%s' at offset %llu: %s; trying again", out->name, (unsigned long long)out->pos,
			 strerror(-r));
		if (wait_until(out, clock_ns() + ((uint64_t)FIRST_RETRY_NS << i)))
			return -EINTR;
		r = lseek(out->fd, (off_t)out->pos, SEEK_SET) < 0 ? -errno : io_write(out->fd, buf, len);
	}
	return r;
}

int output_write(struct output *out, const void *buf, size_t len)
{
	int r = 0;

	/* what a pack that was killed left */
	if (out->seekable && !out->pos && (ftruncate(out->fd, 0) || fchmod(out->fd, 0600)))
		r = -errno;
	if (!r)
		r = write_chunk(out, buf, len);
	if (r)
		return r == -EINTR ? r : fail(out, "write", r);
	out->pos += len;
	if (out->seekable && out->pos - out->flushed >= FLUSH_STEP) {
		/* a hint; where it does not work the fsync at the end does all */
		(void)sync_file_range(out->fd, (off_t)out->flushed, (off_t)(out->pos - out->flushed),
				      SYNC_FILE_RANGE_WRITE);
		out->flushed = out->pos;
	}
	return keep_rate(out);
}

int output_align(struct output *out, uint64_t align)
{
	static const uint8_t zeros[4096];
	uint64_t n = align_up(out->pos, align) - out->pos;

	while (n) {
		size_t part = (size_t)min_u64(n, sizeof(zeros));
		int r = output_write(out, zeros, part);

		if (r)
			return r;
		n -= part;
	}
	return 0;
}

int output_read_back(const struct output *out, void *buf, size_t len, uint64_t off)
{
	return io_read_at(out->fd, buf, len, off);
}

int output_publish(struct output *out, bool sync)
{
	_cleanup_close_ int dir = -1;

	if (!out->seekable) {
		/* an error that only closing reports, as on NFS, must not be lost */
		if (close(steal_fd(&out->fd)))
			return fail(out, "write", -errno);
		return 0;
	}
	if (sync && fsync(out->fd)) {
		/* what the disk did not take may still be in the cache, and look as if it were there */
		out->suspect = true;
		return fail(out, "write", -errno);
	}
	dir = open(out->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0)
		return fail(out, "publish", -errno);
	if (rename(out->tmp, out->path))
		return fail(out, "publish", -errno);
	forget_temporary(out);
	if (sync && fsync(dir))
		return fail(out, "publish", -errno);
	return 0;
}

void output_close(struct output *out)
{
	if (out->tmp && !out->keep_tmp && (!out->keep || out->suspect))
		unlink(out->tmp);
	forget_temporary(out);
	if (out->fd >= 0)
		close(out->fd);
	out->fd = -1;
	free(out->path);
	free(out->dir);
	out->path = out->dir = NULL;
}
