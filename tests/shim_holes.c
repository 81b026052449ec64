/* SPDX-License-Identifier: Apache-2.0 */
/*
 * LD_PRELOAD: file systems that know less about holes, or something wrong. HOLES is
 * none    there are no holes: all is data up to the end, as on NFS
 * coarse  holes are known in units of 1 MiB only
 * failing lseek knows neither SEEK_DATA nor SEEK_HOLE
 * empty   no file has data, as when what was written has not reached the disk yet
 */
/* so that both names can be taken, the plain one and that with 64 */
#undef _FILE_OFFSET_BITS
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define UNIT ((off_t)1 << 20)

static off_t plain(int fd, off_t off, int whence)
{
	off_t (*next)(int, off_t, int) = (off_t(*)(int, off_t, int))dlsym(RTLD_NEXT, "lseek");

	return next(fd, off, whence);
}

/* the end of file, or -1 with ENXIO if @off is not before it */
static off_t end_of(int fd, off_t off)
{
	struct stat st;

	if (fstat(fd, &st) == 0 && off < st.st_size)
		return st.st_size;
	errno = ENXIO;
	return -1;
}

static off_t coarse(int fd, off_t off, int whence)
{
	off_t end = end_of(fd, off), unit = off / UNIT * UNIT;

	for (; end >= 0 && unit < end; unit += UNIT) {
		off_t data = plain(fd, unit, SEEK_DATA), at = unit > off ? unit : off;
		int is_data = data >= 0 && data < unit + UNIT;

		if (is_data == (whence == SEEK_DATA))
			return at;
	}
	if (end >= 0 && whence == SEEK_DATA)
		errno = ENXIO;
	return whence == SEEK_DATA ? -1 : end;
}

static off_t seek(int fd, off_t off, int whence)
{
	const char *how = getenv("HOLES");
	off_t end;

	if (!how || (whence != SEEK_DATA && whence != SEEK_HOLE))
		return plain(fd, off, whence);
	if (!strcmp(how, "coarse"))
		return coarse(fd, off, whence);
	if (!strcmp(how, "failing")) {
		errno = EINVAL;
		return -1;
	}
	end = end_of(fd, off);
	if (end < 0)
		return end;
	if (!strcmp(how, "none"))
		return whence == SEEK_DATA ? off : end;
	if (whence == SEEK_HOLE)
		return off;
	errno = ENXIO;
	return -1;
}

off_t lseek(int fd, off_t offset, int whence)
{
	return seek(fd, offset, whence);
}

off64_t lseek64(int fd, off64_t offset, int whence)
{
	return seek(fd, offset, whence);
}
