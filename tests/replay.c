/* SPDX-License-Identifier: Apache-2.0 */
/* Feed every file of the given directories to a fuzz target once: the corpus without libFuzzer. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cleanup.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replay_file(const char *path)
{
	_cleanup_fclose_ FILE *f = fopen(path, "rb");
	uint8_t *data;
	long size;

	if (!f || fseek(f, 0, SEEK_END) || (size = ftell(f)) < 0)
		return -1;
	rewind(f);
	/* exactly as large as the input, so that a sanitizer sees the first byte too many */
	data = malloc((size_t)size ? (size_t)size : 1);
	if (!data || fread(data, 1, (size_t)size, f) != (size_t)size) {
		free(data);
		return -1;
	}
	LLVMFuzzerTestOneInput(data, (size_t)size);
	free(data);
	return 0;
}

int main(int argc, char **argv)
{
	unsigned n = 0;

	for (int i = 1; i < argc; i++) {
		_cleanup_closedir_ DIR *d = opendir(argv[i]);
		struct dirent *e;

		if (!d) {
			perror(argv[i]);
			return 1;
		}
		while ((e = readdir(d))) {
			char path[4096];

			if (e->d_name[0] == '.')
				continue;
			snprintf(path, sizeof(path), "%s/%s", argv[i], e->d_name);
			printf("%s\n", path);
			fflush(stdout);
			if (replay_file(path)) {
				perror(path);
				return 1;
			}
			n++;
		}
	}
	printf("%u inputs\n", n);
	return n ? 0 : 1;
}
