/* SPDX-License-Identifier: Apache-2.0 */
#include "imgfmt/unpack_out.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/log.h"

#define TEMP_TRIES 100

bool out_name_good(const char *name, size_t len)
{
	if (len == 0 || len > THAW_NAME_MAX || memchr(name, '/', len) || memchr(name, '\0', len))
		return false;
	return !(name[0] == '.' && (len == 1 || (len == 2 && name[1] == '.')));
}

static void temp_name(char ret[OUT_TEMP_MAX])
{
	uint64_t n = 0;

	if (getrandom(&n, sizeof(n), 0) != (ssize_t)sizeof(n))
		n = (uint64_t)getpid();
	snprintf(ret, OUT_TEMP_MAX, ".thawfs-%016llx", (unsigned long long)n);
}

/* -EEXIST may be cured by replacing, unless a directory is in the way */
static int may_replace(int dir, const char *name, bool force)
{
	struct stat st;

	if (!force)
		return -EEXIST;
	if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode))
		return -EISDIR;
	return 0;
}

static int create_at(int dir, const char *name)
{
	int fd = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);

	return fd < 0 ? -errno : fd;
}

int out_create(int dir, const char *name, bool force, char ret_temp[OUT_TEMP_MAX])
{
	int fd = create_at(dir, name), err;

	ret_temp[0] = '\0';
	if (fd != -EEXIST)
		return fd;
	err = may_replace(dir, name, force);
	if (err)
		return err;
	for (int i = 0; fd == -EEXIST && i < TEMP_TRIES; i++) {
		temp_name(ret_temp);
		fd = create_at(dir, ret_temp);
	}
	return fd;
}

int out_publish(int dir, const char *temp, const char *name)
{
	if (!temp[0])
		return 0;
	return renameat(dir, temp, dir, name) ? -errno : 0;
}

/* -- entries that come into being in one call -------------------------------------------------- */

struct maker {
	struct image *img;
	const struct image_inode *inode; /* NULL: a hard link */
	int from_dir;
	const char *from;
};

static int make_symlink(const struct maker *m, int dir, const char *name)
{
	char text[THAW_TARGET_MAX + 1];
	const char *target;
	size_t len;
	int err = image_readlink(m->img, m->inode->ino, &target, &len);

	if (err)
		return err;
	if (len == 0 || len > THAW_TARGET_MAX || memchr(target, '\0', len))
		return -EBADMSG;
	memcpy(text, target, len);
	text[len] = '\0';
	return symlinkat(text, dir, name) ? -errno : 0;
}

static int make_entry(const struct maker *m, int dir, const char *name)
{
	if (!m->inode)
		return linkat(m->from_dir, m->from, dir, name, 0) ? -errno : 0;
	if (S_ISLNK(m->inode->mode))
		return make_symlink(m, dir, name);
	/* modes are set last: until then it is nobody else's */
	return mknodat(dir, name, (m->inode->mode & S_IFMT) | 0600, makedev(m->inode->rdev_major, m->inode->rdev_minor))
		       ? -errno
		       : 0;
}

static int special_metadata(const struct maker *m, int dir, const char *name, const char *path,
			    struct out_notes *notes);

static int make_and_dress(const struct maker *m, int dir, const char *name, const char *path, struct out_notes *notes)
{
	int err = make_entry(m, dir, name);

	if (err || !m->inode)
		return err;
	err = special_metadata(m, dir, name, path, notes);
	if (err)
		unlinkat(dir, name, 0);
	return err;
}

static int make_or_replace(const struct maker *m, int dir, const char *name, bool force, const char *path,
			   struct out_notes *notes)
{
	char temp[OUT_TEMP_MAX];
	int err = make_and_dress(m, dir, name, path, notes);

	if (err != -EEXIST)
		return err;
	err = may_replace(dir, name, force);
	if (err)
		return err;
	err = -EEXIST;
	for (int i = 0; err == -EEXIST && i < TEMP_TRIES; i++) {
		temp_name(temp);
		err = make_and_dress(m, dir, temp, path, notes);
	}
	if (err)
		return err;
	err = out_publish(dir, temp, name);
	/* rename(2) does nothing when both are links to one file already, so the temporary name may still be there */
	unlinkat(dir, temp, 0);
	return err;
}

int out_special(struct image *img, const struct image_inode *inode, int dir, const char *name, bool force,
		const char *path, struct out_notes *notes)
{
	struct maker m = { .img = img, .inode = inode };
	int err = make_or_replace(&m, dir, name, force, path, notes);

	if (err == -EPERM && (S_ISCHR(inode->mode) || S_ISBLK(inode->mode))) {
		if (!atomic_exchange(&notes->device, true))
			log_note("cannot make device '%s' (and others, if there are): only root can", path);
		return 0;
	}
	return err;
}

int out_link(int from_dir, const char *from, int dir, const char *name, bool force)
{
	struct maker m = { .from_dir = from_dir, .from = from };

	return make_or_replace(&m, dir, name, force, NULL, NULL);
}

int out_enter(int dir, const char *name, bool force)
{
	int fd;

	if (mkdirat(dir, name, 0700) && errno != EEXIST)
		return -errno;
	fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd >= 0)
		return fd;
	if (errno != ENOTDIR && errno != ELOOP)
		return -errno;
	if (!force)
		return -EEXIST;
	if (unlinkat(dir, name, 0) || mkdirat(dir, name, 0700))
		return -errno;
	fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

/* -- metadata ---------------------------------------------------------------------------------- */

/* an entry by descriptor or, for what cannot be opened, by directory and name */
struct target {
	int fd, dir;
	const char *name; /* NULL: fd is open; else it is what is called so in dir */
	const char *path; /* in the image, for messages */
	struct out_notes *notes;
};

/* Return: whether the owner is now the one that was packed */
static bool set_owner(const struct target *t, const struct image_inode *inode)
{
	int rc;

	if (geteuid() != 0)
		return inode->uid == geteuid() && inode->gid == getegid();
	rc = t->name ? fchownat(t->dir, t->name, inode->uid, inode->gid, AT_SYMLINK_NOFOLLOW)
		     : fchown(t->fd, inode->uid, inode->gid);
	if (rc && !atomic_exchange(&t->notes->owner, true))
		log_note("cannot give '%s' its owner %u:%u (and others, if there are): %s", t->path, inode->uid,
			 inode->gid, strerror(errno));
	return rc == 0;
}

static int put_xattr(const struct target *t, const char *name, const struct image_xattr *x)
{
	char proc[64 + THAW_NAME_MAX];

	if (!t->name)
		return fsetxattr(t->fd, name, x->value, x->value_len, 0) ? -errno : 0;
	snprintf(proc, sizeof(proc), "/proc/self/fd/%d/%s", t->dir, t->name);
	return lsetxattr(proc, name, x->value, x->value_len, 0) ? -errno : 0;
}

/* file systems and privileges differ: an attribute that cannot be set is said, but is no reason to give up a file */
static int set_xattrs(struct image *img, const struct target *t, const struct image_inode *inode)
{
	char name[THAW_NAME_MAX + 1];

	for (uint32_t i = 0; i < inode->n_xattrs; i++) {
		struct image_xattr x;
		int err = image_xattr(img, inode, i, &x);

		if (err)
			return err;
		if (x.name_len > THAW_NAME_MAX)
			return -EBADMSG;
		memcpy(name, x.name, x.name_len);
		name[x.name_len] = '\0';
		err = put_xattr(t, name, &x);
		if (err == -EPERM || err == -EACCES || err == -EOPNOTSUPP) {
			if (!atomic_exchange(&t->notes->xattr, true))
				log_note("cannot set attribute '%s' of '%s' (and others, if there are): %s", name,
					 t->path, strerror(-err));
		} else if (err) {
			log_warn("cannot set attribute '%s' of '%s': %s", name, t->path, strerror(-err));
		}
	}
	return 0;
}

static void set_mode(const struct target *t, const struct image_inode *inode, bool owner_set)
{
	/* set-id bits are for the owner they were given by, not for who unpacks */
	mode_t mode = (mode_t)inode->mode & (owner_set ? 07777 : 01777);
	int rc;

	if (S_ISLNK(inode->mode))
		return;
	rc = t->name ? fchmodat(t->dir, t->name, mode, AT_SYMLINK_NOFOLLOW) : fchmod(t->fd, mode);
	if (rc && !atomic_exchange(&t->notes->mode, true))
		log_note("cannot give '%s' its mode %04o (and others, if there are): %s", t->path, (unsigned)mode,
			 strerror(errno));
}

static int set_all(struct image *img, const struct target *t, const struct image_inode *inode)
{
	struct timespec ts[2] = { { .tv_nsec = UTIME_OMIT },
				  { .tv_sec = inode->mtime_sec, .tv_nsec = inode->mtime_nsec } };
	bool owner_set = set_owner(t, inode);
	int err, rc;

	/* changing the owner drops capabilities; a mode without write permission forbids user attributes */
	err = set_xattrs(img, t, inode);
	if (err)
		return err;
	set_mode(t, inode, owner_set);
	rc = t->name ? utimensat(t->dir, t->name, ts, AT_SYMLINK_NOFOLLOW) : futimens(t->fd, ts);
	return rc ? -errno : 0;
}

int out_metadata(struct image *img, const struct image_inode *inode, int fd, const char *path, struct out_notes *notes)
{
	struct target t = { .fd = fd, .dir = -1, .path = path, .notes = notes };

	return set_all(img, &t, inode);
}

static int special_metadata(const struct maker *m, int dir, const char *name, const char *path, struct out_notes *notes)
{
	struct target t = { .fd = -1, .dir = dir, .name = name, .path = path, .notes = notes };

	return set_all(m->img, &t, m->inode);
}
