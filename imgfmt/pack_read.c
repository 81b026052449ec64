/* SPDX-License-Identifier: Apache-2.0 */
/* The stage of pack() that cuts files into pieces and hands them to the writer. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "common/bytes.h"
#include "common/cleanup.h"
#include "common/log.h"
#include "imgfmt/packer.h"

/* Small pieces come in crowds (area headers): read ahead, twice as far each time it pays. */
#define WINDOW_MIN (16u << 10)
#define WINDOW_MAX (256u << 10)

struct reading {
	struct packer *p;
	struct writer_input *input;
	/* what lseek said last: data in [data_from, data_to), nothing but hole before it */
	uint64_t data_from, data_to;
	bool no_holes; /* the file system cannot tell */
	/* the window for small pieces */
	uint8_t *window;
	uint64_t window_off, window_len, window_next;
};

bool packer_changed(const struct tree_node *node, int fd)
{
	struct stat st;

	if (node->spool_fd >= 0)
		return false;
	return fstat(fd, &st) || st.st_dev != node->st.st_dev || st.st_ino != node->st.st_ino ||
	       st.st_size != node->st.st_size || st.st_mtim.tv_sec != node->st.st_mtim.tv_sec ||
	       st.st_mtim.tv_nsec != node->st.st_mtim.tv_nsec;
}

int packer_input_done(void *ctx, struct writer_input *input)
{
	struct packer *p = ctx;
	int r = packer_changed(tree_node(&p->tree, input->ino), input->fd) ? -EAGAIN : 0;

	if (r)
		log_error("cannot pack '%s': it changed while it was read", input->name);
	close(input->fd);
	free((char *)input->name);
	free(input);
	return r;
}

int packer_reopen(void *ctx, uint32_t ino)
{
	struct packer *p = ctx;
	const struct tree_node *node = tree_node(&p->tree, ino);
	int fd;

	if (node->spool_fd < 0)
		return tree_open(&p->tree, ino);
	fd = fcntl(node->spool_fd, F_DUPFD_CLOEXEC, 3);
	return fd < 0 ? -errno : fd;
}

static int open_input(struct packer *p, uint32_t ino, struct writer_input **ret)
{
	struct writer_input *input = calloc(1, sizeof(*input));
	char buf[4096];

	if (!input)
		return -ENOMEM;
	input->ino = ino;
	input->name = strdup(tree_path(&p->tree, ino, buf, sizeof(buf)));
	input->fd = packer_reopen(p, ino);
	input->size = (uint64_t)tree_node(&p->tree, ino)->st.st_size;
	if (input->fd >= 0 && input->name) {
		*ret = input;
		return 0;
	}
	log_error("cannot open '%s': %s", tree_path(&p->tree, ino, buf, sizeof(buf)),
		  strerror(input->fd < 0 ? -input->fd : ENOMEM));
	int r = input->fd < 0 ? input->fd : -ENOMEM;

	if (input->fd >= 0)
		close(input->fd);
	free((char *)input->name);
	free(input);
	return r;
}

/* ask the file system where the next data is. What it says is a hint: only whole holes are believed. */
static void look_for_data(struct reading *rd, uint64_t off)
{
	off_t data = lseek(rd->input->fd, (off_t)off, SEEK_DATA), hole;

	if (data < 0 && errno != ENXIO) {
		rd->no_holes = true;
		return;
	}
	/* no data at all, and yet space is taken: what was written may not be known there yet */
	if (data < 0 && off == 0 && tree_node(&rd->p->tree, rd->input->ino)->st.st_blocks) {
		rd->no_holes = true;
		return;
	}
	if (data < 0) {
		rd->data_from = rd->data_to = UINT64_MAX;
		return;
	}
	hole = lseek(rd->input->fd, data, SEEK_HOLE);
	rd->data_from = (uint64_t)data;
	rd->data_to = hole > data ? (uint64_t)hole : rd->input->size;
}

/* how many bytes from @off on are a hole of the source */
static uint64_t hole_at(struct reading *rd, uint64_t off)
{
	if (rd->no_holes)
		return 0;
	if (off >= rd->data_to)
		look_for_data(rd, off);
	return rd->no_holes || off >= rd->data_from ? 0 : rd->data_from - off;
}

static int read_window(struct reading *rd, uint64_t off, uint32_t len)
{
	uint64_t want = off == rd->window_next ? min_u64(2 * rd->window_len, WINDOW_MAX) : WINDOW_MIN;
	uint64_t got = 0;

	want = min_u64(max_u64(want, len), rd->input->size - off);
	while (got < want) {
		ssize_t n = pread(rd->input->fd, rd->window + got, want - got, (off_t)(off + got));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0) {
			log_error("cannot read '%s' at offset %llu: %s", rd->input->name, (unsigned long long)off,
				  strerror(errno));
			return -errno;
		}
		if (n == 0)
			break;
		got += (uint64_t)n;
	}
	if (got < len) {
		log_error("cannot pack '%s': it became shorter while it was read", rd->input->name);
		return -EAGAIN;
	}
	rd->window_off = off;
	rd->window_len = got;
	rd->window_next = off + got;
	return 0;
}

static int read_small(struct reading *rd, uint64_t off, uint32_t len)
{
	if (off < rd->window_off || off + len > rd->window_off + rd->window_len) {
		int r = read_window(rd, off, len);

		if (r)
			return r;
	}
	return writer_small(rd->p->writer, rd->input->ino, off, rd->window + (off - rd->window_off), len);
}

/* file bytes [off, off + len) that belong at address @addr: cut on multiples of the chunk size there */
static int read_run(struct reading *rd, uint64_t off, uint64_t len, uint64_t addr)
{
	uint32_t c = rd->p->chunk_size;

	while (len) {
		uint64_t piece = min_u64(len, c - (addr & (c - 1))), hole = hole_at(rd, off);
		int r;

		if (hole >= piece) {
			piece = hole >= len ? len : align_down(addr + hole, c) - addr;
			r = writer_hole(rd->p->writer, rd->input->ino, off, piece);
		} else if (piece < c / 2) {
			r = read_small(rd, off, (uint32_t)piece);
		} else {
			r = writer_chunk(rd->p->writer, rd->input, off, (uint32_t)piece);
		}
		if (r)
			return r;
		off += piece;
		addr += piece;
		len -= piece;
		rd->p->done_bytes += piece;
		if (rd->p->opts->progress)
			rd->p->opts->progress(rd->p->opts->progress_ctx, rd->p->done_bytes,
					      max_u64(rd->p->tree.total_bytes, rd->p->done_bytes));
	}
	return 0;
}

/* the first cut of file @ino */
static size_t first_cut(const struct layout *lay, uint32_t ino)
{
	size_t lo = 0, hi = lay->n_cuts;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (lay->cuts[mid].ino < ino)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

static int read_pieces(struct reading *rd)
{
	const struct layout *lay = &rd->p->layout;
	uint64_t off = 0, size = rd->input->size;
	int r = 0;

	for (size_t i = first_cut(lay, rd->input->ino); i < lay->n_cuts && lay->cuts[i].ino == rd->input->ino; i++) {
		const struct layout_cut *cut = &lay->cuts[i];

		if (cut->off < off || !range_inside(cut->off, cut->len, size))
			continue;
		/* what is between belongs to no memory: headers */
		r = read_run(rd, off, cut->off - off, off);
		if (!r)
			r = read_run(rd, cut->off, cut->len, cut->addr);
		if (r)
			return r;
		off = cut->off + cut->len;
	}
	return read_run(rd, off, size - off, off);
}

static int read_file(struct reading *rd, uint32_t ino)
{
	int r = open_input(rd->p, ino, &rd->input), r2;

	if (r)
		return r;
	r = writer_input_begin(rd->p->writer, rd->input);
	if (!r && packer_changed(tree_node(&rd->p->tree, ino), rd->input->fd)) {
		log_error("cannot pack '%s': it changed while the tree was read", rd->input->name);
		r = -EAGAIN;
	}
	rd->data_from = rd->data_to = 0;
	rd->no_holes = false;
	rd->window_off = rd->window_len = rd->window_next = 0;
	if (!r)
		r = read_pieces(rd);
	r2 = writer_input_end(rd->p->writer, rd->input);
	return r ? r : r2;
}

int packer_read(struct packer *p)
{
	struct reading rd = { .p = p, .window = malloc(max_u64(WINDOW_MAX, p->chunk_size)) };
	int r = rd.window ? 0 : -ENOMEM, r2;

	for (uint32_t ino = 0; ino < p->tree.nodes.n && !r; ino++) {
		const struct tree_node *node = tree_node(&p->tree, ino);

		if (S_ISREG(node->st.st_mode) && node->st.st_size)
			r = read_file(&rd, ino);
	}
	free(rd.window);
	r2 = writer_drain(p->writer);
	return r ? r : r2;
}
