/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/gpu_source.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/bytes.h"
#include "common/cleanup.h"
#include "common/io.h"
#include "gpu/manifest.h"
#include "imgfmt/image.h"

/* one thread's decoder, and the last chunk that did not fit where it was wanted */
struct decoder {
	struct chunk_ctx *ctx;
	uint8_t *buf;
	size_t room;
	struct image *img;
	uint32_t chunk, len;
};

struct file {
	char *name;
	int fd;       /* directory */
	uint32_t ino; /* image */
	uint64_t size;
};

struct gpu_source {
	char *name;
	struct image *img;  /* NULL: files of a directory */
	uint32_t image_dir; /* inode of gpu/ */
	int dir;            /* gpu/, or AT_FDCWD for files by their paths */
	struct file *files;
	size_t n_files;
	struct decoder *decoders;
	unsigned n_decoders;
};

static int complain(const struct gpu_source *s, int r, const char *file)
{
	return gpu_fail(r, "cannot read '%s': '%s': %s", s->name, file, strerror(-r));
}

/* -- opening ------------------------------------------------------------------------------------------ */

static int open_directory(struct gpu_source *s, const char *path)
{
	int top = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int r = 0;

	if (top < 0)
		return gpu_fail(-errno, "cannot open '%s': %s", path, strerror(errno));
	s->dir = openat(top, GPU_MANIFEST_DIR, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (s->dir < 0)
		r = gpu_fail(-errno, "cannot load from '%s': it has no device buffers: '%s': %s", path,
			     GPU_MANIFEST_DIR, strerror(errno));
	close(top);
	return r;
}

static int open_image(struct gpu_source *s, const char *path, const char *const *base_path)
{
	const struct image_opts opts = { .base_path = base_path };
	int r = image_open(path, &opts, &s->img);

	if (r) {
		gpu_keep_error("the image cannot be opened");
		return r;
	}
	r = image_walk(s->img, GPU_MANIFEST_DIR, &s->image_dir);
	if (r == -ENOENT)
		return gpu_fail(r, "cannot load from '%s': it has no device buffers", path);
	return r ? complain(s, r, GPU_MANIFEST_DIR) : 0;
}

static int make_source(const char *name, unsigned threads, struct gpu_source **ret)
{
	struct gpu_source *s = calloc(1, sizeof(*s));

	if (!s)
		return gpu_fail(-ENOMEM, "out of memory");
	s->dir = -1;
	s->name = strdup(name);
	s->n_decoders = threads ? threads : 1;
	s->decoders = calloc(s->n_decoders, sizeof(*s->decoders));
	for (unsigned i = 0; s->decoders && i < s->n_decoders; i++)
		s->decoders[i].ctx = chunk_ctx_new();
	if (!s->name || !s->decoders || !s->decoders[s->n_decoders - 1].ctx) {
		gpu_source_close(s);
		return gpu_fail(-ENOMEM, "out of memory");
	}
	*ret = s;
	return 0;
}

int gpu_source_open(const char *path, const char *const *base_path, unsigned threads, struct gpu_source **ret)
{
	struct gpu_source *s = NULL;
	struct stat st;
	int r;

	if (stat(path, &st))
		return gpu_fail(-errno, "cannot open '%s': %s", path, strerror(errno));
	r = make_source(path, threads, &s);
	if (r)
		return r;
	r = S_ISDIR(st.st_mode) ? open_directory(s, path) : open_image(s, path, base_path);
	if (r) {
		gpu_source_close(s);
		return r;
	}
	*ret = s;
	return 0;
}

int gpu_source_open_files(unsigned threads, struct gpu_source **ret)
{
	struct gpu_source *s = NULL;
	int r = make_source(".", threads, &s);

	if (r)
		return r;
	assert(s);
	s->dir = AT_FDCWD;
	*ret = s;
	return 0;
}

void gpu_source_close(struct gpu_source *s)
{
	if (!s)
		return;
	for (size_t i = 0; i < s->n_files; i++) {
		free(s->files[i].name);
		if (s->files[i].fd >= 0)
			close(s->files[i].fd);
	}
	for (unsigned i = 0; s->decoders && i < s->n_decoders; i++) {
		chunk_ctx_free(s->decoders[i].ctx);
		free(s->decoders[i].buf);
	}
	if (s->dir >= 0)
		close(s->dir);
	image_close(s->img);
	free(s->decoders);
	free(s->files);
	free(s->name);
	free(s);
}

int gpu_source_rename(struct gpu_source *s, const char *name)
{
	char *copy = strdup(name);

	if (!copy)
		return gpu_fail(-ENOMEM, "out of memory");
	free(s->name);
	s->name = copy;
	return 0;
}

/* -- files -------------------------------------------------------------------------------------------- */

static int find_in_image(struct gpu_source *s, struct file *f)
{
	struct image_inode inode;
	int r = image_lookup(s->img, s->image_dir, f->name, strlen(f->name), &f->ino);

	if (!r)
		r = image_inode(s->img, f->ino, &inode);
	if (!r && !S_ISREG(inode.mode))
		r = -EINVAL;
	if (r)
		return complain(s, r, f->name);
	f->size = inode.size;
	return 0;
}

static int find_in_directory(struct gpu_source *s, struct file *f)
{
	struct stat st;

	f->fd = openat(s->dir, f->name, O_RDONLY | O_CLOEXEC);
	if (f->fd < 0 || fstat(f->fd, &st))
		return complain(s, -errno, f->name);
	if (!S_ISREG(st.st_mode))
		return complain(s, -EINVAL, f->name);
	f->size = (uint64_t)st.st_size;
	return 0;
}

int gpu_source_find(struct gpu_source *s, const char *file, uint32_t *ret_number, uint64_t *ret_size)
{
	struct file *bigger, *f;
	int r;

	/* buffers that share a file follow each other */
	for (size_t i = s->n_files; i-- > 0 && i + 8 >= s->n_files;) {
		if (!strcmp(s->files[i].name, file)) {
			*ret_number = (uint32_t)i;
			*ret_size = s->files[i].size;
			return 0;
		}
	}
	bigger = reallocarray(s->files, s->n_files + 1, sizeof(*bigger));
	if (!bigger)
		return gpu_fail(-ENOMEM, "out of memory");
	s->files = bigger;
	f = &bigger[s->n_files];
	*f = (struct file){ .name = strdup(file), .fd = -1 };
	if (!f->name)
		return gpu_fail(-ENOMEM, "out of memory");
	r = s->img ? find_in_image(s, f) : find_in_directory(s, f);
	if (r) {
		free(f->name);
		if (f->fd >= 0)
			close(f->fd);
		return r;
	}
	*ret_number = (uint32_t)s->n_files++;
	*ret_size = f->size;
	return 0;
}

int gpu_source_manifest(struct gpu_source *s, char **ret, size_t *ret_len)
{
	uint32_t number = 0;
	uint64_t size = 0;
	int r = gpu_source_find(s, GPU_MANIFEST_NAME, &number, &size);
	_cleanup_free_ char *text = NULL;

	if (r)
		return r;
	if (size > GPU_MANIFEST_MAX)
		return gpu_fail(-EBADMSG, "cannot use '%s': the manifest has %llu bytes", s->name,
				(unsigned long long)size);
	text = malloc(size + 1);
	if (!text)
		return gpu_fail(-ENOMEM, "out of memory");
	r = gpu_source_read(s, 0, number, 0, text, size, size);
	if (r)
		return r;
	text[size] = '\0';
	*ret = steal_ptr(&text);
	*ret_len = size;
	return 0;
}

/* -- bytes -------------------------------------------------------------------------------------------- */

static int run_of_file(const struct file *f, uint64_t off, uint64_t len, uint64_t *ret_len, bool *ret_zero)
{
	off_t data = lseek(f->fd, (off_t)off, SEEK_DATA), hole;

	*ret_zero = false;
	*ret_len = len;
	/* nothing but hole behind; or it cannot tell, then all is data */
	if (data < 0) {
		*ret_zero = errno == ENXIO;
		return 0;
	}
	if ((uint64_t)data > off) {
		*ret_zero = true;
		*ret_len = min_u64(len, (uint64_t)data - off);
		return 0;
	}
	hole = lseek(f->fd, (off_t)off, SEEK_HOLE);
	if (hole > (off_t)off)
		*ret_len = min_u64(len, (uint64_t)hole - off);
	return 0;
}

static int run_of_image(struct gpu_source *s, const struct file *f, uint64_t off, uint64_t len, uint64_t *ret_len,
			bool *ret_zero)
{
	uint64_t done = 0;

	while (done < len) {
		struct image_run run;
		int r = image_map(s->img, f->ino, off + done, &run);
		bool zero;

		if (!r && run.kind == RUN_ABSENT)
			r = -ENODATA;
		if (r)
			return complain(s, r, f->name);
		zero = run.kind == RUN_HOLE;
		if (done && zero != *ret_zero)
			break;
		*ret_zero = zero;
		done += min_u64(run.len, len - done);
	}
	*ret_len = done;
	return 0;
}

int gpu_source_run(struct gpu_source *s, uint32_t number, uint64_t off, uint64_t len, uint64_t *ret_len, bool *ret_zero)
{
	const struct file *f = &s->files[number];

	if (!range_inside(off, len, f->size))
		return complain(s, -ENODATA, f->name);
	return s->img ? run_of_image(s, f, off, len, ret_len, ret_zero) : run_of_file(f, off, len, ret_len, ret_zero);
}

static int decode(struct gpu_source *s, struct decoder *d, const struct file *f, const struct image_run *run, void *buf,
		  uint32_t *ret_len)
{
	int r = image_chunk_read(run->img, d->ctx, run->chunk, buf, ret_len);

	if (r)
		return gpu_fail(r, "cannot read '%s': '%s' at offset %llu: %s", s->name, f->name,
				(unsigned long long)run->off, chunk_ctx_error(d->ctx));
	return 0;
}

/* a chunk that does not go straight to its place: parts of it are wanted, or there is no room for all of it */
static int read_part(struct gpu_source *s, struct decoder *d, const struct file *f, const struct image_run *run,
		     uint8_t *to, uint64_t len)
{
	size_t want = image_info(run->img)->chunk_size;

	if (d->room < want) {
		free(d->buf);
		d->img = NULL;
		d->room = 0;
		d->buf = malloc(want);
		if (!d->buf)
			return gpu_fail(-ENOMEM, "out of memory");
		d->room = want;
	}
	if (d->img != run->img || d->chunk != run->chunk) {
		int r;

		d->img = NULL;
		r = decode(s, d, f, run, d->buf, &d->len);
		if (r)
			return r;
		d->img = run->img;
		d->chunk = run->chunk;
	}
	if (!range_inside(run->chunk_off, len, d->len))
		return complain(s, -EBADMSG, f->name);
	memcpy(to, d->buf + run->chunk_off, len);
	return 0;
}

static int read_run(struct gpu_source *s, struct decoder *d, const struct file *f, const struct image_run *run,
		    uint8_t *to, uint64_t len, uint64_t room)
{
	struct image_chunk chunk;
	uint32_t got;
	int r;

	if (run->kind == RUN_HOLE) {
		memset(to, 0, len);
		return 0;
	}
	if (run->kind == RUN_ABSENT)
		return complain(s, -ENODATA, f->name);
	r = image_chunk(run->img, run->chunk, &chunk);
	if (r)
		return complain(s, r, f->name);
	if (run->chunk_off || chunk.logical_len != len || room < image_info(run->img)->chunk_size)
		return read_part(s, d, f, run, to, len);
	return decode(s, d, f, run, to, &got);
}

int gpu_source_read(struct gpu_source *s, unsigned thread, uint32_t number, uint64_t off, void *buf, size_t len,
		    size_t room)
{
	const struct file *f = &s->files[number];
	uint8_t *to = buf;
	int r = 0;

	if (!s->img) {
		r = io_read_at(f->fd, buf, len, off);
		return r ? complain(s, r, f->name) : 0;
	}
	while (len) {
		struct image_run run;
		uint64_t part;

		r = image_map(s->img, f->ino, off, &run);
		if (r)
			return complain(s, r, f->name);
		part = min_u64(run.len, len);
		r = read_run(s, &s->decoders[thread], f, &run, to, part, room);
		if (r)
			return r;
		to += part;
		off += part;
		len -= part;
		room -= part;
	}
	return 0;
}
