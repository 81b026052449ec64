/* SPDX-License-Identifier: Apache-2.0 */
/* tool_lazymem FILE READY: has FILE as private memory, of which nothing was touched, makes READY, and waits. */
#include <fcntl.h>
#include <sys/stat.h>

#include "tests/test.h"

int main(int argc, char **argv)
{
	struct stat st;
	int fd;

	CHECK_EQ(argc, 3);
	fd = open(argv[1], O_RDONLY | O_CLOEXEC);
	CHECK(fd >= 0 && !fstat(fd, &st));
	CHECK(mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0) != MAP_FAILED);
	fd = open(argv[2], O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	CHECK(fd >= 0);
	for (;;)
		pause();
}
