/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What zstd makes of a file cut into independent pieces: the size that a seekable image is measured against.
 *
 *   bench_pieces FILE LEVEL PIECE_BYTES
 *
 * Prints the sum of the frames' sizes. Frames have content size and no checksum, like an image's chunks.
 */
#include <err.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <zstd.h>

static size_t read_piece(int fd, void *buf, size_t len, uint64_t off, const char *path)
{
	size_t got = 0;

	while (got < len) {
		ssize_t n = pread(fd, (char *)buf + got, len - got, (off_t)(off + got));

		if (n < 0)
			err(1, "cannot read '%s'", path);
		if (n == 0)
			break;
		got += (size_t)n;
	}
	return got;
}

int main(int argc, char **argv)
{
	if (argc != 4)
		errx(2, "usage: bench_pieces FILE LEVEL PIECE_BYTES");
	int level = (int)strtol(argv[2], NULL, 10);
	size_t piece = strtoul(argv[3], NULL, 10), room = ZSTD_compressBound(piece);
	void *in = malloc(piece), *out = malloc(room);
	ZSTD_CCtx *ctx = ZSTD_createCCtx();
	int fd = open(argv[1], O_RDONLY | O_CLOEXEC);
	uint64_t sum = 0, off = 0;
	size_t len;

	if (!piece || !in || !out || !ctx)
		errx(1, "no memory");
	if (fd < 0)
		err(1, "cannot read '%s'", argv[1]);
	while ((len = read_piece(fd, in, piece, off, argv[1]))) {
		size_t n = ZSTD_compressCCtx(ctx, out, room, in, len, level);

		if (ZSTD_isError(n))
			errx(1, "zstd: %s", ZSTD_getErrorName(n));
		sum += n;
		off += len;
	}
	printf("%" PRIu64 "\n", sum);
	ZSTD_freeCCtx(ctx);
	free(in);
	free(out);
	close(fd);
	return 0;
}
