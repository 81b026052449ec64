/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/mountpoint.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/log.h"

#define FSTYPE "fuse.thawfs"

int mountpoint_check(const struct fs_config *cfg)
{
	_cleanup_closedir_ DIR *dir = opendir(cfg->mnt);
	struct dirent *e;
	int err;

	if (!dir) {
		err = -errno;
		if (err == -ENOTCONN)
			log_error("cannot mount on '%s': a dead mount is there ('thawfs umount -z' takes it away)",
				  cfg->mnt);
		else
			log_error("cannot mount on '%s': %s", cfg->mnt, strerror(-err));
		return err;
	}
	while (!cfg->nonempty && (e = readdir(dir)))
		if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) {
			log_error("cannot mount on '%s': the directory is not empty (-o nonempty mounts over it)",
				  cfg->mnt);
			return -ENOTEMPTY;
		}
	return 0;
}

static int mount_as_root(const struct fs_config *cfg, int *ret_fd)
{
	_cleanup_close_ int fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	char options[160];
	int err;

	if (fd < 0) {
		err = -errno;
		log_error("cannot open '/dev/fuse': %s%s", strerror(-err),
			  err == -ENOENT ? " (is the fuse module loaded, or the device passed to this container?)"
					 : "");
		return err;
	}
	snprintf(options, sizeof(options), "fd=%d,rootmode=40000,user_id=%u,group_id=%u,default_permissions%s", fd,
		 (unsigned)geteuid(), (unsigned)getegid(), cfg->allow_other ? ",allow_other" : "");
	/* an image may hold devices and set-user-id programs, from whomever it comes */
	if (mount(cfg->src, cfg->mnt, FSTYPE, MS_NOSUID | MS_NODEV, options)) {
		err = -errno;
		log_error("cannot mount on '%s': %s", cfg->mnt, strerror(-err));
		return err;
	}
	*ret_fd = steal_fd(&fd);
	return 0;
}

/* -- fusermount3 -------------------------------------------------------------------------------- */

/* a comma in a path ends an option unless escaped */
static void add_escaped(char *out, size_t room, const char *text)
{
	size_t n = strlen(out);

	for (; *text && n + 3 < room; text++) {
		if (*text == ',' || *text == '\\')
			out[n++] = '\\';
		out[n++] = *text;
	}
	out[n] = '\0';
}

static int receive_fd(int sock, int *ret_fd)
{
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} buf;
	char byte;
	struct iovec iov = { &byte, 1 };
	struct msghdr hdr = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = buf.bytes, .msg_controllen = sizeof(buf.bytes)
	};
	struct cmsghdr *c;
	ssize_t n;

	do
		n = recvmsg(sock, &hdr, MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	if (n <= 0)
		return n ? -errno : -EPERM; /* it has said why */
	c = CMSG_FIRSTHDR(&hdr);
	if (!c || c->cmsg_type != SCM_RIGHTS)
		return -EPROTO;
	memcpy(ret_fd, CMSG_DATA(c), sizeof(*ret_fd));
	return 0;
}

/* run fusermount3; @sock is what it sends a descriptor over, or -1. Return: its exit status, -errno */
static int run_fusermount(char *const argv[], int sock, bool quiet, int peer, int *ret_fd)
{
	pid_t pid = fork();
	int status, err = 0;

	if (pid < 0)
		return -errno;
	if (pid == 0) {
		char number[16];

		if (sock >= 0) {
			snprintf(number, sizeof(number), "%d", sock);
			setenv("_FUSE_COMMFD", number, 1);
			fcntl(sock, F_SETFD, 0);
		}
		if (quiet)
			dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);
		execvp(argv[0], argv);
		_exit(127);
	}
	if (sock >= 0) {
		close(sock);
		err = receive_fd(peer, ret_fd);
	}
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return -errno;
	if (err)
		return err;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

static int mount_by_helper(const struct fs_config *cfg, int *ret_fd)
{
	_cleanup_close_ int peer = -1;
	char options[PATH_MAX * 2 + 128] = "nosuid,nodev,default_permissions,subtype=thawfs,fsname=";
	char *argv[] = { "fusermount3", "-o", options, "--", (char *)(uintptr_t)cfg->mnt, NULL };
	int pair[2], fd = -1, rc;

	add_escaped(options, sizeof(options) - 16, cfg->src);
	if (cfg->allow_other)
		strcat(options, ",allow_other");
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair))
		return -errno;
	peer = pair[1];
	rc = run_fusermount(argv, pair[0], false, peer, &fd);
	if (rc == 0 && fd >= 0) {
		*ret_fd = fd;
		return 0;
	}
	if (fd >= 0)
		close(fd);
	log_error("cannot mount on '%s': %s", cfg->mnt,
		  rc == 127 ? "fusermount3 is missing (package fuse3)" : "fusermount3 refused");
	return rc < 0 ? rc : -EPERM;
}

int mountpoint_mount(const struct fs_config *cfg, int *ret_fd)
{
	return geteuid() == 0 ? mount_as_root(cfg, ret_fd) : mount_by_helper(cfg, ret_fd);
}

int mountpoint_unmount(const char *path, bool lazy)
{
	char *argv[] = { "fusermount3", "-u", "-q", "--", (char *)(uintptr_t)path, NULL };
	char *argv_lazy[] = { "fusermount3", "-u", "-q", "-z", "--", (char *)(uintptr_t)path, NULL };
	int rc;

	if (umount2(path, UMOUNT_NOFOLLOW | (lazy ? MNT_DETACH : 0)) == 0)
		return 0;
	if (errno != EPERM || geteuid() == 0)
		return -errno;
	rc = run_fusermount(lazy ? argv_lazy : argv, -1, true, -1, NULL);
	if (rc == 0)
		return 0;
	/* it does not say why in its status; busy is what it mostly is */
	return rc < 0 ? rc : rc == 127 ? -EPERM : -EBUSY;
}

/* -- /proc -------------------------------------------------------------------------------------- */

/* undo the octal escapes of mountinfo, in place */
static void unescape(char *text)
{
	char *w = text;

	for (const char *r = text; *r; w++) {
		if (r[0] == '\\' && r[1] >= '0' && r[1] <= '3' && r[2] >= '0' && r[2] <= '7' && r[3] >= '0' &&
		    r[3] <= '7') {
			*w = (char)((r[1] - '0') << 6 | (r[2] - '0') << 3 | (r[3] - '0'));
			r += 4;
		} else {
			*w = *r++;
		}
	}
	*w = '\0';
}

/* "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue" */
static bool parse_line(char *line, const char *path, struct mountpoint *ret)
{
	char *save, *word = strtok_r(line, " \n", &save);
	struct mountpoint m = { 0 };
	int field = 1;

	for (; word && field < 6; word = strtok_r(NULL, " \n", &save), field++) {
		if (field == 1)
			m.id = (unsigned)strtoul(word, NULL, 10);
		if (field == 3) {
			char *colon;

			m.major = (unsigned)strtoul(word, &colon, 10);
			m.minor = *colon ? (unsigned)strtoul(colon + 1, NULL, 10) : 0;
		}
		if (field == 5) {
			unescape(word);
			if (strcmp(word, path) != 0)
				return false;
		}
	}
	while (word && strcmp(word, "-") != 0)
		word = strtok_r(NULL, " \n", &save);
	word = word ? strtok_r(NULL, " \n", &save) : NULL;
	if (!word)
		return false;
	m.is_thawfs = !strcmp(word, FSTYPE);
	word = strtok_r(NULL, " \n", &save);
	if (word) {
		unescape(word);
		snprintf(m.source, sizeof(m.source), "%s", word);
	}
	*ret = m;
	return true;
}

int mountpoint_find(const char *path, struct mountpoint *ret)
{
	_cleanup_fclose_ FILE *f = fopen("/proc/self/mountinfo", "re");
	_cleanup_free_ char *line = NULL;
	size_t room = 0;
	int err = -ENOENT;

	if (!f)
		return -errno;
	/* the last one is on top */
	while (getline(&line, &room, f) > 0)
		if (parse_line(line, path, ret))
			err = 0;
	return err;
}

int mountpoint_set_readahead(const char *path, uint32_t kb, uint32_t *ret_kb)
{
	char file[96], text[16];
	struct mountpoint m;
	int err = mountpoint_find(path, &m);
	ssize_t n;

	if (err)
		return err;
	snprintf(file, sizeof(file), "/sys/class/bdi/%u:%u/read_ahead_kb", m.major, m.minor);
	{
		_cleanup_close_ int fd = open(file, O_WRONLY | O_CLOEXEC);

		n = snprintf(text, sizeof(text), "%u", kb);
		if (fd < 0 || write(fd, text, (size_t)n) < 0)
			err = -errno;
	}
	_cleanup_close_ int fd = open(file, O_RDONLY | O_CLOEXEC);
	n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
	if (n > 0) {
		text[n] = '\0';
		*ret_kb = (uint32_t)strtoul(text, NULL, 10);
	}
	return err;
}

static bool inside(const char *link, const char *path)
{
	size_t n = strlen(path);

	return !strncmp(link, path, n) && (link[n] == '\0' || link[n] == '/' || link[n] == ' ');
}

static bool link_inside(const char *link, const char *path)
{
	char target[PATH_MAX];
	ssize_t n = readlink(link, target, sizeof(target) - 1);

	if (n < 0)
		return false;
	target[n] = '\0';
	return inside(target, path);
}

/* an open file tells its mount's number, so that nothing has to be looked at through the mount */
static bool has_open(unsigned long pid, unsigned mnt_id)
{
	char dir_path[64], file[360], line[128];
	_cleanup_closedir_ DIR *dir = NULL;
	struct dirent *e;

	snprintf(dir_path, sizeof(dir_path), "/proc/%lu/fdinfo", pid);
	dir = opendir(dir_path);
	while (dir && (e = readdir(dir))) {
		snprintf(file, sizeof(file), "%s/%s", dir_path, e->d_name);
		_cleanup_fclose_ FILE *f = e->d_name[0] == '.' ? NULL : fopen(file, "re");
		while (f && fgets(line, sizeof(line), f))
			if (!strncmp(line, "mnt_id:", 7) && strtoul(line + 7, NULL, 10) == mnt_id)
				return true;
	}
	return false;
}

static bool has_mapped(unsigned long pid, const struct mountpoint *m)
{
	char path[64], dev[32];
	_cleanup_free_ char *line = NULL;
	size_t room = 0;

	snprintf(path, sizeof(path), "/proc/%lu/maps", pid);
	snprintf(dev, sizeof(dev), " %02x:%02x ", m->major, m->minor);
	_cleanup_fclose_ FILE *f = fopen(path, "re");
	while (f && getline(&line, &room, f) > 0)
		if (strstr(line, dev))
			return true;
	return false;
}

static const char *how_held(unsigned long pid, const char *path, const struct mountpoint *m)
{
	char link[64];

	snprintf(link, sizeof(link), "/proc/%lu/cwd", pid);
	if (link_inside(link, path))
		return "working directory";
	snprintf(link, sizeof(link), "/proc/%lu/root", pid);
	if (link_inside(link, path))
		return "root directory";
	if (has_open(pid, m->id))
		return "open file";
	return has_mapped(pid, m) ? "mapped memory" : NULL;
}

unsigned mountpoint_holders(const char *path, unsigned max, FILE *out)
{
	_cleanup_closedir_ DIR *proc = opendir("/proc");
	struct mountpoint m = { 0 };
	struct dirent *e;
	unsigned n = 0;

	if (!proc || mountpoint_find(path, &m))
		return 0;
	while ((e = readdir(proc))) {
		unsigned long pid = strtoul(e->d_name, NULL, 10);
		char comm_path[64], comm[64] = "?";
		const char *how;

		if (!isdigit((unsigned char)e->d_name[0]) || !(how = how_held(pid, path, &m)))
			continue;
		snprintf(comm_path, sizeof(comm_path), "/proc/%lu/comm", pid);
		_cleanup_fclose_ FILE *f = fopen(comm_path, "re");
		if (f && fgets(comm, sizeof(comm), f))
			comm[strcspn(comm, "\n")] = '\0';
		if (n++ < max)
			fprintf(out, "  process %lu (%s): %s\n", pid, comm, how);
	}
	return n;
}
