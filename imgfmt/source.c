/* SPDX-License-Identifier: Apache-2.0 */
#include "imgfmt/source.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <linux/fs.h>

#include "common/bytes.h"
#include "common/io.h"

struct file_source {
	struct source base;
	int fd;
};

static int file_pread(struct source *src, void *buf, size_t len, uint64_t off)
{
	return io_read_at(((const struct file_source *)src)->fd, buf, len, off);
}

static void file_close(struct source *src)
{
	struct file_source *f = (struct file_source *)src;

	close(f->fd);
	free((char *)f->base.name);
	free(f);
}

static const struct source_ops file_ops = { .pread = file_pread, .close = file_close };

static int size_of(int fd, uint64_t *ret)
{
	struct stat st;

	if (fstat(fd, &st))
		return -errno;
	if (S_ISDIR(st.st_mode))
		return -EISDIR;
	if (S_ISBLK(st.st_mode))
		return ioctl(fd, BLKGETSIZE64, ret) ? -errno : 0;
	if (!S_ISREG(st.st_mode))
		return -EINVAL;
	*ret = (uint64_t)st.st_size;
	return 0;
}

int source_open_fd(int fd, const char *name, struct source **ret)
{
	struct file_source *f = calloc(1, sizeof(*f));
	int r = f ? size_of(fd, &f->base.size) : -ENOMEM;

	if (!r) {
		f->base.ops = &file_ops;
		f->base.name = strdup(name);
		f->fd = fd;
		r = f->base.name ? 0 : -ENOMEM;
	}
	if (r) {
		close(fd);
		free(f);
		return r;
	}
	*ret = &f->base;
	return 0;
}

int source_open_file(const char *path, struct source **ret)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

	return fd < 0 ? -errno : source_open_fd(fd, path, ret);
}

struct memory_source {
	struct source base;
	const uint8_t *data;
};

static int memory_pread(struct source *src, void *buf, size_t len, uint64_t off)
{
	memcpy(buf, ((const struct memory_source *)src)->data + off, len);
	return 0;
}

static void memory_close(struct source *src)
{
	free(src);
}

static const struct source_ops memory_ops = { .pread = memory_pread, .close = memory_close };

int source_open_memory(const void *data, size_t size, const char *name, struct source **ret)
{
	struct memory_source *m = calloc(1, sizeof(*m));

	if (!m)
		return -ENOMEM;
	m->base = (struct source){ .ops = &memory_ops, .size = size, .name = name };
	m->data = data;
	*ret = &m->base;
	return 0;
}

int source_fd(const struct source *src)
{
	return src->ops == &file_ops ? ((const struct file_source *)src)->fd : -1;
}

void source_close(struct source *src)
{
	if (src)
		src->ops->close(src);
}

int source_read(struct source *src, void *buf, size_t len, uint64_t off)
{
	if (!range_inside(off, len, src->size))
		return -ENODATA;
	return len ? src->ops->pread(src, buf, len, off) : 0;
}
