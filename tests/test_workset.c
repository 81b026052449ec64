/* SPDX-License-Identifier: Apache-2.0 */
/* The file of a recorded working set: what was saved is loaded, and nothing else is. */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "imgfmt/workset.h"
#include "tests/test.h"

static const uint8_t id[16] = { 0xaa, 1, 2, 3 };
static const uint32_t saved[] = { 7, 0, 99, 3 };
static char path[] = "/tmp/thaw-test-ws.XXXXXX";

static void change_byte(off_t at)
{
	int fd = open(path, O_RDWR);
	uint8_t b;

	CHECK(fd >= 0 && pread(fd, &b, 1, at) == 1);
	b ^= 1;
	CHECK(pwrite(fd, &b, 1, at) == 1);
	close(fd);
}

int main(void)
{
	static const uint32_t twice[] = { 1, 1 };
	const uint8_t other[16] = { 1 };
	uint32_t *list, n;

	CHECK(close(mkstemp(path)) == 0);
	CHECK_EQ(workset_load(path, id, 100, &list, &n), -EBADMSG); /* empty */
	CHECK_EQ(workset_save(path, id, saved, 4), 0);
	CHECK_EQ(workset_load(path, id, 100, &list, &n), 0);
	CHECK_EQ(n, 4);
	CHECK(memcmp(list, saved, sizeof(saved)) == 0);
	free(list);
	CHECK_EQ(workset_load(path, other, 100, &list, &n), -ESTALE);
	CHECK_EQ(workset_load(path, id, 99, &list, &n), -EBADMSG); /* chunk 99 of 99 */
	for (off_t at = 0; at < 32 + 4 * 4 + 8; at++) {
		change_byte(at);
		CHECK_EQ(workset_load(path, id, 100, &list, &n), -EBADMSG);
		change_byte(at);
	}
	CHECK(truncate(path, 40) == 0);
	CHECK_EQ(workset_load(path, id, 100, &list, &n), -EBADMSG);
	CHECK_EQ(workset_save(path, id, twice, 2), 0);
	CHECK_EQ(workset_load(path, id, 100, &list, &n), -EBADMSG);
	CHECK(unlink(path) == 0);
	CHECK_EQ(workset_load(path, id, 100, &list, &n), -ENOENT);
	CHECK_EQ(workset_save("/nonexistent/x.ws", id, saved, 4), -ENOENT);
	return 0;
}
