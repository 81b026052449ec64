/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What zstd makes of a file cut into independent pieces: the size that a seekable image is measured against.
 *
 *   bench_pieces FILE LEVEL PIECE_BYTES [DECODERS]
 *
 * Prints the sum of the frames' sizes. Frames have content size and no checksum, like an image's chunks.
 * With DECODERS: how many seconds that many threads take to decode all frames from memory, each into one buffer of its
 * own, which is as fast as restoring can be; pieces of zeros are left out.
 */
#include <err.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <zstd.h>

struct frame {
	void *bytes;
	size_t len;
};

static struct frame *frames;
static size_t n_frames, piece;
static atomic_size_t next_frame;

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

static void keep_frame(const void *bytes, size_t len)
{
	struct frame *more = realloc(frames, (n_frames + 1) * sizeof(*frames));

	if (!more)
		errx(1, "no memory");
	frames = more;
	frames[n_frames].bytes = malloc(len);
	frames[n_frames].len = len;
	if (!frames[n_frames].bytes)
		errx(1, "no memory");
	memcpy(frames[n_frames++].bytes, bytes, len);
}

static void *decode_frames(void *arg)
{
	ZSTD_DCtx *ctx = ZSTD_createDCtx();
	void *out = malloc(piece);
	size_t i;

	(void)arg;
	if (!ctx || !out)
		errx(1, "no memory");
	memset(out, 0, piece);
	while ((i = next_frame++) < n_frames)
		if (ZSTD_isError(ZSTD_decompressDCtx(ctx, out, piece, frames[i].bytes, frames[i].len)))
			errx(1, "frame %zu cannot be decoded", i);
	ZSTD_freeDCtx(ctx);
	free(out);
	return NULL;
}

static double decode(unsigned n)
{
	struct timespec start, end;
	pthread_t threads[64];

	if (n < 1 || n > 64)
		errx(2, "decoders: 1 to 64");
	clock_gettime(CLOCK_MONOTONIC, &start);
	for (unsigned i = 0; i < n; i++)
		if (pthread_create(&threads[i], NULL, decode_frames, NULL))
			errx(1, "cannot start a thread");
	for (unsigned i = 0; i < n; i++)
		pthread_join(threads[i], NULL);
	clock_gettime(CLOCK_MONOTONIC, &end);
	return (double)(end.tv_sec - start.tv_sec) + (double)(end.tv_nsec - start.tv_nsec) / 1e9;
}

int main(int argc, char **argv)
{
	if (argc != 4 && argc != 5)
		errx(2, "usage: bench_pieces FILE LEVEL PIECE_BYTES [DECODERS]");
	int level = (int)strtol(argv[2], NULL, 10);

	piece = strtoul(argv[3], NULL, 10);
	size_t room = ZSTD_compressBound(piece);
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
		if (argc == 5 && (*(char *)in || memcmp(in, (char *)in + 1, len - 1) != 0))
			keep_frame(out, n);
	}
	if (argc == 5)
		printf("%.6f\n", decode((unsigned)strtoul(argv[4], NULL, 10)));
	else
		printf("%" PRIu64 "\n", sum);
	for (size_t i = 0; i < n_frames; i++)
		free(frames[i].bytes);
	free(frames);
	ZSTD_freeCCtx(ctx);
	free(in);
	free(out);
	close(fd);
	return 0;
}
