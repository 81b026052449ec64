/* SPDX-License-Identifier: Apache-2.0 */
#include "imgfmt/workset.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "common/bytes.h"
#include "common/cleanup.h"
#include "common/io.h"

#define VERSION 1u

static const uint8_t magic[8] = { 0x89, 'T', 'H', 'A', 'W', 'W', 'S', 0x0a };

struct head {
	uint8_t magic[8];
	le32 version, n;
	uint8_t id[16];
};
_Static_assert(sizeof(struct head) == 32, "head of a working-set file");

static size_t file_bytes(uint32_t n)
{
	return sizeof(struct head) + (size_t)n * sizeof(le32) + sizeof(le64);
}

/* each number is below @n_chunks and there once */
static int check_list(const uint32_t *list, uint32_t n, uint64_t n_chunks)
{
	_cleanup_free_ uint8_t *seen = calloc(1, n_chunks / 8 + 1);

	if (!seen)
		return -ENOMEM;
	for (uint32_t i = 0; i < n; i++) {
		if (list[i] >= n_chunks || seen[list[i] / 8] & 1 << list[i] % 8)
			return -EBADMSG;
		seen[list[i] / 8] |= (uint8_t)(1 << list[i] % 8);
	}
	return 0;
}

int workset_load(const char *path, const uint8_t id[16], uint64_t n_chunks, uint32_t **ret_list, uint32_t *ret_n)
{
	_cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	_cleanup_free_ uint8_t *buf = NULL;
	_cleanup_free_ uint32_t *list = NULL;
	struct head head;
	struct stat st;
	uint32_t n;
	int err;

	if (fd < 0 || fstat(fd, &st))
		return -errno;
	if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size < file_bytes(0) ||
	    (uint64_t)st.st_size > file_bytes(0) + n_chunks * sizeof(le32))
		return -EBADMSG;
	buf = malloc((size_t)st.st_size);
	if (!buf)
		return -ENOMEM;
	err = io_read_at(fd, buf, (size_t)st.st_size, 0);
	if (err)
		return err;
	memcpy(&head, buf, sizeof(head));
	n = le32_get(head.n);
	if (memcmp(head.magic, magic, sizeof(magic)) != 0 || le32_get(head.version) != VERSION ||
	    file_bytes(n) != (size_t)st.st_size)
		return -EBADMSG;
	if (XXH3_64bits(buf, file_bytes(n) - sizeof(le64)) != load_le64(buf + file_bytes(n) - sizeof(le64)))
		return -EBADMSG;
	if (memcmp(head.id, id, 16) != 0)
		return -ESTALE;
	list = malloc(((size_t)n + 1) * sizeof(*list));
	if (!list)
		return -ENOMEM;
	for (uint32_t i = 0; i < n; i++)
		list[i] = load_le32(buf + sizeof(head) + (size_t)i * sizeof(le32));
	err = check_list(list, n, n_chunks);
	if (err)
		return err;
	*ret_list = steal_ptr(&list);
	*ret_n = n;
	return 0;
}

static int publish(const char *path, const uint8_t *buf, size_t len)
{
	char tmp[PATH_MAX + 16];
	int fd, err;

	snprintf(tmp, sizeof(tmp), "%s.XXXXXX", path);
	fd = mkostemp(tmp, O_CLOEXEC);
	if (fd < 0)
		return -errno;
	err = io_write(fd, buf, len);
	if (close(fd) && !err)
		err = -errno;
	if (!err && rename(tmp, path))
		err = -errno;
	if (err)
		unlink(tmp);
	return err;
}

int workset_save(const char *path, const uint8_t id[16], const uint32_t *list, uint32_t n)
{
	struct head head = { .version = le32_make(VERSION), .n = le32_make(n) };
	_cleanup_free_ uint8_t *buf = malloc(file_bytes(n));
	le64 hash;

	if (!buf)
		return -ENOMEM;
	if (strlen(path) >= PATH_MAX)
		return -ENAMETOOLONG;
	memcpy(head.magic, magic, sizeof(magic));
	memcpy(head.id, id, 16);
	memcpy(buf, &head, sizeof(head));
	for (uint32_t i = 0; i < n; i++) {
		le32 v = le32_make(list[i]);

		memcpy(buf + sizeof(head) + (size_t)i * sizeof(v), &v, sizeof(v));
	}
	hash = le64_make(XXH3_64bits(buf, file_bytes(n) - sizeof(hash)));
	memcpy(buf + file_bytes(n) - sizeof(hash), &hash, sizeof(hash));
	return publish(path, buf, file_bytes(n));
}
