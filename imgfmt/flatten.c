/* SPDX-License-Identifier: Apache-2.0 */
#include "imgfmt/flatten.h"
#include "common/stop.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/cleanup.h"
#include "common/log.h"
#include "imgfmt/chunk.h"
#include "imgfmt/image_private.h"
#include "imgfmt/output_spare.h"
#include "imgfmt/section_write.h"
#include "imgfmt/table.h"
#include "imgfmt/verify.h"
#include "imgfmt/verify_output.h"

struct flatten {
	struct image *img;
	const struct flatten_opts *opts;
	struct output out;
	struct chunk_ctx *ctx;
	uint8_t *decoded;
	struct table chunks; /* struct thaw_chunk of the copy */
	struct thaw_summary summary;
	struct footer_info footer;
	struct section_out section;
};

static int fail(const struct flatten *f, int r, const char *what)
{
	log_error("cannot flatten '%s': %s", f->img->path, what);
	return r;
}

/* -- before anything is written --------------------------------------------------------------- */

/* the first that is wrong with the index; a missing base is said by the one that needs it */
struct first_damage {
	const struct flatten *f;
	int error;
};

static void on_damage(void *ctx, const struct verify_damage *d)
{
	struct first_damage *first = ctx;

	if (first->error || d->error == -ENOENT)
		return;
	first->error = d->error;
	log_error("cannot flatten '%s': index at offset %llu: %s", first->f->img->path,
		  (unsigned long long)d->stored_off, d->what);
}

/* what is copied as it is must be good as it is: the copy's checksums would be right whatever it says */
static int check_index(const struct flatten *f)
{
	struct first_damage first = { .f = f };
	const struct verify_opts opts = { .damage = on_damage, .ctx = &first, .index_only = true };
	struct verify_result result;
	int r = image_check(f->img, &opts, &result);

	return r ? fail(f, r, strerror(-r)) : first.error;
}

static int check_spaces(struct flatten *f)
{
	for (uint64_t i = 0; i < f->img->info.n_spaces; i++) {
		struct image_space space;
		int r = image_space(f->img, (uint32_t)i, &space);

		for (uint32_t k = 0; k < space.n_segments && !r; k++) {
			struct image_segment seg;
			struct image_base base;

			r = image_segment(f->img, &space, k, &seg);
			if (r || !seg.base)
				continue;
			r = image_base(f->img, seg.base - 1u, &base);
			if (r)
				break;
			log_error("cannot flatten '%s': address space '%.*s' leads into files of '%.*s', its parent",
				  f->img->path, (int)space.name_len, space.name, (int)base.name_len, base.name);
			return -EINVAL;
		}
		if (r)
			return r;
	}
	return 0;
}

/* -- chunks ----------------------------------------------------------------------------------- */

static void count_chunk(struct thaw_summary *s, const struct image_chunk *c)
{
	le64 *codecs[] = { &s->n_chunks_raw, &s->n_chunks_zstd, &s->n_chunks_lz4 };

	s->chunk_bytes = le64_make(le64_get(s->chunk_bytes) + c->logical_len);
	s->stored_bytes = le64_make(le64_get(s->stored_bytes) + c->stored_len);
	*codecs[c->codec] = le64_make(le64_get(*codecs[c->codec]) + 1);
	s->n_chunks_shuffled = le64_make(le64_get(s->n_chunks_shuffled) + (c->shuffle != 0));
}

/* the stored form of a chunk, found to be what it should be. @ret: in the context's buffer */
static int load_chunk(struct flatten *f, struct image *from, uint32_t number, const struct image_chunk *c,
		      const uint8_t **ret)
{
	uint8_t *stored = chunk_ctx_room(f->ctx, c->stored_len);
	int r;

	if (!stored)
		return fail(f, -ENOMEM, "out of memory");
	r = source_read(from->src, stored, c->stored_len, c->stored_off);
	if (r)
		chunk_ctx_fail(f->ctx, r, "at offset %llu: %s", (unsigned long long)c->stored_off, strerror(-r));
	/* by the copy's chunk size, which bounds what a reader of it must accept */
	if (!r)
		r = chunk_decode(f->ctx, c, f->img->info.chunk_size, stored, f->decoded);
	if (r)
		log_error("cannot read '%s': chunk %u %s", from->path, number, chunk_ctx_error(f->ctx));
	*ret = stored;
	return r;
}

static int put_chunk(struct flatten *f, const struct image_chunk *c, const uint8_t *stored)
{
	struct thaw_chunk *e = table_push(&f->chunks);
	int r = c->codec == THAW_RAW ? output_align(&f->out, THAW_PAGE) : 0;

	if (!e)
		return fail(f, -ENOMEM, "out of memory");
	if (r)
		return r;
	*e = (struct thaw_chunk){
		.stored_off = le64_make(f->out.pos),
		.hash = le64_make(c->hash),
		.stored_len = le32_make(c->stored_len),
		.logical_len = le32_make(c->logical_len),
		.codec = c->codec,
		.shuffle = c->shuffle,
	};
	count_chunk(&f->summary, c);
	return output_write(&f->out, stored, c->stored_len);
}

static int copy_chunk(struct flatten *f, uint32_t number)
{
	const uint8_t *stored;
	struct image_chunk c;
	struct image *from;
	uint32_t there;
	int r = image_chunk_resolve(f->img, number, &from, &there);

	if (!r)
		r = image_chunk(from, there, &c);
	if (r)
		return r;
	if (c.stored_len > 2 * f->img->info.chunk_size)
		return fail(f, -EBADMSG, "a chunk of a base is too large for it");
	r = load_chunk(f, from, there, &c, &stored);
	return r ? r : put_chunk(f, &c, stored);
}

static int copy_chunks(struct flatten *f)
{
	const struct image_info *info = &f->img->info;
	uint64_t done = 0, total = info->chunk_bytes + info->base_bytes;
	int r = 0;

	for (uint64_t i = 0; i < info->n_chunks && !r; i++) {
		r = copy_chunk(f, (uint32_t)i);
		done = le64_get(f->summary.chunk_bytes);
		if (!r && f->opts->progress)
			f->opts->progress(f->opts->progress_ctx, min_u64(done, total), total);
		if (!r && stop_asked(f->opts->stop))
			r = -EINTR;
	}
	f->footer.data_end = f->out.pos;
	return r;
}

/* -- the index -------------------------------------------------------------------------------- */

static uint64_t end_of(le64 off, le32 len)
{
	return le32_get(len) ? le64_get(off) + le32_get(len) : 0;
}

/* where the string of entry @i of a section ends, 0 if it has none */
static int string_end(struct flatten *f, uint32_t type, uint64_t i, uint64_t *ret)
{
	const void *e;
	int r = index_entry(&f->img->index, type, i, &e);

	if (r)
		return r;
	if (type == THAW_NAMES) {
		*ret = end_of(((const struct thaw_name *)e)->name_off, ((const struct thaw_name *)e)->name_len);
	} else if (type == THAW_SPACES) {
		*ret = end_of(((const struct thaw_space *)e)->name_off, ((const struct thaw_space *)e)->name_len);
	} else if (type == THAW_REGIONS) {
		*ret = end_of(((const struct thaw_region *)e)->name_off, ((const struct thaw_region *)e)->name_len);
	} else if (type == THAW_INODES) {
		const struct thaw_inode *inode = e;

		*ret = S_ISLNK(le32_get(inode->mode)) ? le64_get(inode->first) + le64_get(inode->size) : 0;
	} else {
		const struct thaw_xattr *x = e;

		*ret = max_u64(end_of(x->name_off, x->name_len), end_of(x->value_off, x->value_len));
	}
	return 0;
}

/* how much of STRINGS is still needed: the names of the bases are its end */
static int strings_needed(struct flatten *f, uint64_t *ret)
{
	static const uint32_t types[] = { THAW_NAMES, THAW_SPACES, THAW_REGIONS, THAW_INODES, THAW_XATTRS };
	uint64_t needed = 0;

	for (size_t t = 0; t < ARRAY_SIZE(types); t++) {
		for (uint64_t i = 0; i < index_count(&f->img->index, types[t]); i++) {
			uint64_t end = 0;
			int r = string_end(f, types[t], i, &end);

			if (r)
				return r;
			needed = max_u64(needed, end);
		}
	}
	*ret = min_u64(needed, index_count(&f->img->index, THAW_STRINGS));
	return 0;
}

/* the first @len bytes of a section as they are */
static int copy_section(struct flatten *f, const struct footer_section *s, uint64_t len)
{
	uint8_t block[THAW_INDEX_BLOCK];
	int r = section_out_begin(&f->section, &f->out);

	for (uint64_t off = 0; off < len && !r; off += sizeof(block)) {
		size_t part = (size_t)min_u64(len - off, sizeof(block));
		const uint8_t *data = block;

		/* what this version does not know is not in the index; its hashes are made anew */
		if (section_entry_size(s->type))
			r = index_bytes(&f->img->index, s->type, off, part, &data);
		else
			r = source_read(f->img->src, block, part, s->offset + off);
		if (!r)
			r = section_out_put(&f->section, data, part);
	}
	return r ? r : section_out_end(&f->section, s->type, s->entry_size, &f->footer);
}

static int write_summary(struct flatten *f)
{
	int r = section_out_begin(&f->section, &f->out);

	if (!r)
		r = section_out_put(&f->section, &f->summary, sizeof(f->summary));
	return r ? r : section_out_end(&f->section, THAW_SUMMARY, sizeof(f->summary), &f->footer);
}

static int write_chunks(struct flatten *f)
{
	int r = section_out_begin(&f->section, &f->out);

	for (size_t i = 0; i < f->chunks.n && !r; i++)
		r = section_out_put(&f->section, table_at(&f->chunks, i), sizeof(struct thaw_chunk));
	return r ? r : section_out_end(&f->section, THAW_CHUNKS, sizeof(struct thaw_chunk), &f->footer);
}

static int write_section(struct flatten *f, const struct footer_section *s)
{
	uint64_t len = s->length;
	int r = 0;

	switch (s->type) {
	case THAW_SUMMARY:
		return write_summary(f);
	case THAW_CHUNKS:
		return write_chunks(f);
	case THAW_BASES:
		return 0;
	case THAW_STRINGS:
		r = strings_needed(f, &len);
		break;
	default:
		break;
	}
	return r ? r : copy_section(f, s, len);
}

static int write_footer(struct flatten *f, uint8_t ret_id[16])
{
	struct thaw_footer raw;
	int r = output_align(&f->out, THAW_PAGE);

	if (r)
		return r;
	f->footer.chunk_size = f->img->info.chunk_size;
	f->footer.compat = f->img->info.compat;
	f->footer.incompat = (le64_get(f->summary.n_chunks_lz4) ? THAW_INCOMPAT_LZ4 : 0) |
			     (le64_get(f->summary.n_chunks_shuffled) ? THAW_INCOMPAT_SHUFFLE : 0);
	f->footer.file_size = f->out.pos + sizeof(raw);
	footer_encode(&f->footer, &raw);
	memcpy(ret_id, raw.image_id, 16);
	return output_write(&f->out, &raw, sizeof(raw));
}

static int write_index(struct flatten *f, uint8_t ret_id[16])
{
	const struct footer_info *from = &f->img->footer;
	int r = 0;

	for (uint32_t i = 0; i < from->n_sections && !r; i++)
		r = write_section(f, &from->sections[i]);
	return r ? r : write_footer(f, ret_id);
}

/* -- the whole -------------------------------------------------------------------------------- */

/* all that chunks do not change */
static int begin_summary(struct flatten *f)
{
	const struct thaw_summary *s;
	int r = index_entry(&f->img->index, THAW_SUMMARY, 0, (const void **)&s);

	if (r)
		return r;
	f->summary = (struct thaw_summary){
		.logical_bytes = s->logical_bytes,
		.hole_bytes = s->hole_bytes,
		.dup_bytes = s->dup_bytes,
		.n_files = s->n_files,
		.n_dirs = s->n_dirs,
	};
	return 0;
}

static int run(struct flatten *f, struct pack_result *ret)
{
	struct thaw_header header;
	int r = check_index(f);

	if (!r)
		r = check_spaces(f);
	if (!r)
		r = begin_summary(f);
	if (!r)
		r = output_open(&f->out, f->opts->out);
	if (!r)
		r = output_spare(&f->out, f->img, true);
	if (r)
		return r;
	header_encode(f->img->info.chunk_size, &header);
	r = output_write(&f->out, &header, sizeof(header));
	if (!r)
		r = copy_chunks(f);
	if (!r)
		r = write_index(f, ret->id);
	if (!r && f->opts->verify)
		r = verify_output(&f->out, NULL, f->opts->threads);
	if (!r && stop_asked(f->opts->stop))
		r = -EINTR;
	if (r)
		return r;
	ret->logical_bytes = f->img->info.logical_bytes;
	ret->hole_bytes = f->img->info.hole_bytes;
	ret->dup_bytes = f->img->info.dup_bytes;
	ret->stored_bytes = le64_get(f->summary.stored_bytes);
	ret->image_bytes = f->out.pos;
	ret->n_files = f->img->info.n_files;
	ret->n_chunks = f->chunks.n;
	return output_publish(&f->out, !f->opts->no_fsync);
}

int image_flatten(struct image *img, const struct flatten_opts *opts, struct pack_result *ret)
{
	struct flatten f = { .img = img, .opts = opts, .out.fd = -1 };
	struct pack_result result = { 0 };
	int r = -ENOMEM;

	table_init(&f.chunks, sizeof(struct thaw_chunk));
	f.ctx = chunk_ctx_new();
	f.decoded = malloc(img->info.chunk_size);
	if (f.ctx && f.decoded)
		r = run(&f, &result);
	output_close(&f.out);
	section_out_release(&f.section);
	table_release(&f.chunks);
	chunk_ctx_free(f.ctx);
	free(f.decoded);
	if (!r)
		*ret = result;
	return r;
}
