/* SPDX-License-Identifier: Apache-2.0 */
#include "imgfmt/snap.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "common/bytes.h"
#include "common/cleanup.h"
#include "common/io.h"
#include "common/log.h"
#include "imgfmt/image.h"
#include "imgfmt/series.h"

/*
 * An image that leaves chunks to so many others is followed by one that stands alone: otherwise the oldest could never
 * go, and one bad file would take ever more images with it.
 */
#define MAX_BASES  8
/* Chunks of the source that are compared with the newest image to see whether it is worth being a base. */
#define SAMPLES    64
/* An image that depends on others is worth it if at least one in so many samples is found in them. */
#define PAYS_SHARE 8

/* Over three seconds of trouble with the store are waited out. */
#define RETRIES    5

struct snapping {
	const struct snap_opts *opts;
	const char *name;
	struct series_list list;
	struct snap_result *res;
	struct job *job;
};

/* -- does a base pay? ------------------------------------------------------------------------- */

struct sampling {
	struct image *img;
	int src;
	uint8_t *buf;
	uint64_t step, next, seen; /* bytes of whole chunks between samples, to the next, so far */
	unsigned n, n_same;
};

/* is the chunk at @off of the file the same in the source? */
static void sample(struct sampling *s, const struct image_run *run, int fd, uint64_t off)
{
	struct image_chunk c;

	s->n++;
	if (image_chunk(s->img, run->chunk, &c) || c.logical_len != run->len || fd < 0 ||
	    io_read_at(fd, s->buf, c.logical_len, off))
		return;
	s->n_same += XXH3_64bits(s->buf, c.logical_len) == c.hash;
}

static int sample_file(struct sampling *s, const struct image_inode *inode)
{
	_cleanup_free_ char *path = NULL;
	_cleanup_close_ int fd = -1;
	uint32_t chunk_size = image_info(s->img)->chunk_size;
	bool tried = false;

	for (uint64_t off = 0; off < inode->size;) {
		struct image_run run;
		int r = image_map(s->img, inode->ino, off, &run);

		if (r)
			return r;
		if (run.kind == RUN_DATA && run.chunk_off == 0 && run.len == chunk_size) {
			if (s->seen >= s->next) {
				if (!tried && !image_inode_path(s->img, inode->ino, &path))
					fd = openat(s->src, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
				tried = true;
				sample(s, &run, fd, off);
				s->next += s->step;
			}
			s->seen += run.len;
		}
		off += run.len;
	}
	return 0;
}

/* compare chunks here and there with @src */
static bool base_pays(struct image *img, const char *src)
{
	const struct image_info *info = image_info(img);
	struct sampling s = { .img = img, .src = open(src, O_RDONLY | O_DIRECTORY | O_CLOEXEC) };
	int r = 0;

	s.buf = malloc(info->chunk_size);
	s.step = (info->logical_bytes - info->hole_bytes) / SAMPLES;
	s.next = s.step / 2;
	for (uint64_t i = 0; i < info->n_inodes && !r && s.src >= 0 && s.buf; i++) {
		struct image_inode inode;

		r = image_inode(img, (uint32_t)i, &inode);
		if (!r && S_ISREG(inode.mode))
			r = sample_file(&s, &inode);
	}
	free(s.buf);
	if (s.src >= 0)
		close(s.src);
	/* nothing but small files: these are cheap in any case */
	return !r && s.n && s.n_same >= (s.n + PAYS_SHARE - 1) / PAYS_SHARE;
}

/* the newest image, unless a full one is due or better. NULL: none */
static char *choose_base(const struct snapping *s)
{
	const struct series_file *newest = series_newest(&s->list, s->name);
	const struct image_opts quiet = { .quiet = true };
	struct image *img;
	bool pays;
	char *path;

	if (!newest || newest->n_bases >= MAX_BASES || asprintf(&path, "%s/%s", s->opts->store, newest->file) < 0)
		return NULL;
	if (image_open(path, &quiet, &img)) {
		free(path);
		return NULL;
	}
	pays = image_info(img)->chunk_size ==
		       (s->opts->pack.chunk_size ? s->opts->pack.chunk_size : THAW_CHUNK_DEFAULT) &&
	       base_pays(img, s->opts->src);
	image_close(img);
	if (pays)
		return path;
	free(path);
	return NULL;
}

/* -- the image -------------------------------------------------------------------------------- */

/* above all that is there, whatever it is; but an unfinished one at the end is gone on with */
static uint64_t next_sequence(const struct snapping *s)
{
	uint64_t last = 0, unfinished = 0;

	for (size_t i = 0; i < s->list.n; i++) {
		const struct series_file *f = &s->list.files[i];

		if (!f->name || strcmp(f->name, s->name) != 0)
			continue;
		if (f->temporary)
			unfinished = max_u64(unfinished, f->sequence);
		else
			last = max_u64(last, f->sequence);
	}
	return unfinished > last ? unfinished : last + 1;
}

static int make_image(struct snapping *s)
{
	struct pack_opts opts = s->opts->pack;
	_cleanup_free_ char *file = NULL;
	const char *bases[2] = { NULL, NULL };
	const char *const base_path[] = { s->opts->store, NULL };

	s->res->sequence = next_sequence(s);
	file = series_format(s->name, s->res->sequence);
	if (!file || asprintf(&s->res->path, "%s/%s", s->opts->store, file) < 0) {
		s->res->path = NULL;
		return -ENOMEM;
	}
	if (!s->opts->base || !strcmp(s->opts->base, "auto"))
		s->res->base = choose_base(s);
	else if (strcmp(s->opts->base, "none") != 0)
		s->res->base = strdup(s->opts->base);
	bases[0] = s->res->base;
	opts.src = s->opts->src;
	opts.out = s->res->path;
	opts.bases = bases;
	opts.base_path = base_path;
	opts.resume = true;
	opts.retries = RETRIES;
	return pack(&opts, &s->res->pack);
}

static void count_removed(void *ctx, const struct series_file *file)
{
	struct snap_result *res = ctx;

	(void)file;
	res->n_pruned++;
}

/* the image is there: what goes wrong from here on is said, but does not take it back */
static void prune(struct snapping *s)
{
	const struct series_prune_opts opts = {
		.keep = s->opts->keep,
		.trust = true,
		.threads = s->opts->pack.threads,
		.removed = count_removed,
		.ctx = s->res,
		.stop = s->opts->pack.stop,
	};

	s->res->prune_failed = series_prune(s->opts->store, s->name, &opts) != 0;
}

static int snap_locked(struct snapping *s)
{
	/* read under the lock, or another snap's image would not be known */
	int r = series_scan(s->opts->store, s->name, 0, s->opts->pack.stop, &s->list);

	if (!r)
		r = make_image(s);
	if (!r) {
		series_release(&s->list);
		if (!series_scan(s->opts->store, s->name, 0, NULL, &s->list))
			series_update_latest(&s->list, s->name);
	}
	/* before anything older goes */
	if (!r && s->job)
		r = job_commit(s->job, strrchr(s->res->path, '/') + 1, s->res->pack.id, &s->res->job_sequence);
	if (!r && s->opts->keep)
		prune(s);
	series_release(&s->list);
	return r;
}

/* a rank holds its place in the job from before it begins until its image is in a manifest, or never will be */
static int snap_rank(struct snapping *s, const struct job_opts *job)
{
	int r = job_join(s->opts->store, job, s->opts->pack.stop, &s->job);

	if (!r)
		r = snap_locked(s);
	job_leave(s->job);
	return r;
}

/* -- before ----------------------------------------------------------------------------------- */

int snap_default_name(const char *src, char **ret)
{
	_cleanup_free_ char *real = realpath(src, NULL);
	const char *base;

	if (!real) {
		int r = -errno;

		log_error("cannot read '%s': %s", src, strerror(-r));
		return r;
	}
	base = strrchr(real, '/') + 1;
	if (!series_good_name(base)) {
		log_error("cannot call a series '%s': give it a name", base);
		return -EINVAL;
	}
	*ret = strdup(base);
	return *ret ? 0 : -ENOMEM;
}

static int check_directories(const struct snap_opts *opts)
{
	_cleanup_free_ char *src = realpath(opts->src, NULL);
	_cleanup_free_ char *store = NULL;
	struct stat st;
	size_t len;

	if (!src || stat(src, &st)) {
		int r = -errno;

		log_error("cannot read '%s': %s", opts->src, strerror(-r));
		return r;
	}
	if (!S_ISDIR(st.st_mode)) {
		log_error("cannot snap '%s': it is not a directory", opts->src);
		return -ENOTDIR;
	}
	store = realpath(opts->store, NULL);
	if (!store || stat(store, &st) || !S_ISDIR(st.st_mode)) {
		int r = store ? -ENOTDIR : -errno;

		log_error("cannot use the store '%s': %s", opts->store, strerror(-r));
		return r;
	}
	len = strlen(src);
	if (!strncmp(store, src, len) && (store[len] == '/' || store[len] == '\0' || len == 1)) {
		log_error("cannot use the store '%s': it is inside '%s', which is to be packed", opts->store,
			  opts->src);
		return -EINVAL;
	}
	return 0;
}

int snap(const struct snap_opts *opts, struct snap_result *ret)
{
	_cleanup_free_ char *default_name = NULL;
	struct snapping s = { .opts = opts, .name = opts->name, .res = ret };
	_cleanup_close_ int lock = -1;
	int r = series_check_store(opts->store);

	*ret = (struct snap_result){ 0 };
	if (!r)
		r = check_directories(opts);
	if (!r && opts->job.id) {
		default_name = job_series_name(&opts->job);
		s.name = default_name;
		r = default_name ? 0 : -ENOMEM;
	} else if (!r && !s.name) {
		r = snap_default_name(opts->src, &default_name);
		s.name = default_name;
	}
	if (r)
		return r;
	lock = series_lock(opts->store, s.name);
	if (lock < 0)
		return lock;
	return opts->job.id ? snap_rank(&s, &opts->job) : snap_locked(&s);
}
