/* SPDX-License-Identifier: Apache-2.0 */
#include "common/io.h"

#include <errno.h>
#include <unistd.h>

int io_read_at(int fd, void *buf, size_t len, uint64_t off)
{
	for (size_t at = 0; at < len;) {
		ssize_t n = pread(fd, (char *)buf + at, len - at, (off_t)(off + at));

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -EIO;
		at += (size_t)n;
	}
	return 0;
}

int io_write_at(int fd, const void *buf, size_t len, uint64_t off)
{
	for (size_t at = 0; at < len;) {
		ssize_t n = pwrite(fd, (const char *)buf + at, len - at, (off_t)(off + at));

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -EIO;
		at += (size_t)n;
	}
	return 0;
}

int io_write(int fd, const void *buf, size_t len)
{
	for (size_t at = 0; at < len;) {
		ssize_t n = write(fd, (const char *)buf + at, len - at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -EIO;
		at += (size_t)n;
	}
	return 0;
}
