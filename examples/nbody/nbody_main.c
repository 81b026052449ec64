/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small simulation that keeps all of its state as files: each step maps the state that there is and writes a new one.
 * Every few steps the state is snapped into a series; a run begins from the newest image of the series, wherever the
 * one before was killed. Results do not depend on that: to the bit they are those of a run that was left alone.
 *
 *     nbody STORE WORK_DIR STEPS [BODIES]
 *
 * WORK_DIR, best on a tmpfs, gets "state" and, while a step runs, "new". THAWFS names the program, if it is not
 * "thawfs".
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/thaw.h"

#define SERIES     "nbody"
#define SNAP_EVERY 3
#define DT         1e-3
#define SOFTENING  1e-2

/* the files of a state: positions, velocities, and how many steps made them */
enum file { POS, VEL, STEP, N_FILES };
static const char *const names[N_FILES] = { "pos", "vel", "step" };

struct state {
	struct thaw_map file[N_FILES];
};

static size_t n_bodies = 2000;
static const char *store, *work;

static void die(const char *what)
{
	fprintf(stderr, "nbody: %s: %s\n", what, strerror(errno));
	exit(1);
}

/* -- state as files --------------------------------------------------------------------------- */

static void path_of(char ret[4096], const char *dir, const char *file)
{
	snprintf(ret, 4096, "%s/%s%s%s", work, dir, file ? "/" : "", file ? file : "");
}

static void map_file(const char *dir, enum file i, size_t len, struct thaw_map *ret)
{
	char path[4096];
	struct stat st;
	int fd;

	path_of(path, dir, names[i]);
	fd = open(path, len ? O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC : O_RDONLY | O_CLOEXEC, 0600);
	if (fd < 0 || (len && ftruncate(fd, (off_t)len)) || fstat(fd, &st))
		die(path);
	*ret = (struct thaw_map){ .len = (size_t)st.st_size };
	ret->addr = mmap(NULL, ret->len, len ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
	if (ret->addr == MAP_FAILED)
		die("mmap");
	close(fd);
}

static void new_state(struct state *s)
{
	const size_t len[N_FILES] = { n_bodies * 3 * sizeof(double), n_bodies * 3 * sizeof(double), sizeof(long) };
	char path[4096];

	path_of(path, "new", NULL);
	if (mkdir(path, 0700) && errno != EEXIST)
		die(path);
	*s = (struct state){ 0 };
	for (int i = 0; i < N_FILES; i++)
		map_file("new", i, len[i], &s->file[i]);
}

static void release(struct state *s)
{
	for (int i = 0; i < N_FILES; i++)
		thaw_release(&s->file[i]);
}

static void remove_dir(const char *dir)
{
	char path[4096];

	for (int i = 0; i < N_FILES; i++) {
		path_of(path, dir, names[i]);
		unlink(path);
	}
	path_of(path, dir, NULL);
	rmdir(path);
}

/* the new state becomes the state */
static void publish(void)
{
	char from[4096], to[4096];

	remove_dir("state");
	path_of(from, "new", NULL);
	path_of(to, "state", NULL);
	if (rename(from, to))
		die(to);
}

/* -- physics: in one order only, so that the bits are always the same -------------------------- */

static void init(struct state *s)
{
	double *pos = s->file[POS].addr, *vel = s->file[VEL].addr;
	unsigned long long x = 88172645463325252ull;

	for (size_t i = 0; i < 3 * n_bodies; i++) {
		x ^= x << 13, x ^= x >> 7, x ^= x << 17;
		pos[i] = (double)(x >> 11) * 0x1p-53;
		vel[i] = 0;
	}
	*(long *)s->file[STEP].addr = 0;
}

static void step(const struct state *in, struct state *out)
{
	const double *p = in->file[POS].addr, *v = in->file[VEL].addr;
	double *q = out->file[POS].addr, *w = out->file[VEL].addr;

	for (size_t i = 0; i < n_bodies; i++) {
		double a[3] = { 0 };

		for (size_t j = 0; j < n_bodies; j++) {
			double d[3], r2 = SOFTENING, f;

			for (int k = 0; k < 3; k++) {
				d[k] = p[3 * j + k] - p[3 * i + k];
				r2 += d[k] * d[k];
			}
			f = 1 / (r2 * sqrt(r2) * (double)n_bodies);
			for (int k = 0; k < 3; k++)
				a[k] += f * d[k];
		}
		for (int k = 0; k < 3; k++) {
			w[3 * i + k] = v[3 * i + k] + DT * a[k];
			q[3 * i + k] = p[3 * i + k] + DT * w[3 * i + k];
		}
	}
	*(long *)out->file[STEP].addr = *(const long *)in->file[STEP].addr + 1;
}

/* -- checkpoints ------------------------------------------------------------------------------ */

static void snap(void)
{
	const char *thawfs = getenv("THAWFS");
	char src[4096];
	pid_t pid = fork();
	int status;

	if (pid < 0)
		die("fork");
	if (!thawfs)
		thawfs = "thawfs";
	if (pid == 0) {
		path_of(src, "state", NULL);
		execlp(thawfs, thawfs, "snap", "-q", "--name", SERIES, "--keep", "3", src, store, (char *)NULL);
		die(thawfs);
	}
	if (waitpid(pid, &status, 0) < 0 || status)
		fprintf(stderr, "nbody: no checkpoint this time\n");
}

/* the newest checkpoint's files, mapped as they are; 0 if there is none */
static int resume(struct state *s)
{
	struct thaw_state *st;
	int r = thaw_open(store, SERIES, 0, &st);

	if (r == -ENOENT)
		return 0;
	*s = (struct state){ 0 };
	for (int i = 0; i < N_FILES && !r; i++)
		r = thaw_map(st, names[i], THAW_MAP_READONLY, &s->file[i]);
	if (r) {
		errno = -r;
		die(store);
	}
	fprintf(stderr, "nbody: from step %ld, image %llu\n", *(long *)s->file[STEP].addr,
		(unsigned long long)thaw_sequence(st));
	thaw_close(st);
	n_bodies = s->file[POS].len / (3 * sizeof(double));
	return 1;
}

int main(int argc, char **argv)
{
	struct state now, next;
	long steps;

	if (argc < 4 || argc > 5) {
		fprintf(stderr, "usage: nbody STORE WORK_DIR STEPS [BODIES]\n");
		return 2;
	}
	store = argv[1];
	work = argv[2];
	steps = atol(argv[3]);
	if (argc > 4)
		n_bodies = (size_t)atol(argv[4]);
	if (!resume(&now)) {
		new_state(&now);
		init(&now);
		publish();
	}
	while (*(long *)now.file[STEP].addr < steps) {
		new_state(&next);
		step(&now, &next);
		publish();
		release(&now);
		now = next;
		if (*(long *)now.file[STEP].addr % SNAP_EVERY == 0 || *(long *)now.file[STEP].addr == steps)
			snap();
	}
	printf("step %ld\n", *(long *)now.file[STEP].addr);
	return 0;
}
