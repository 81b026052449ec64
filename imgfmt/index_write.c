/* SPDX-License-Identifier: Apache-2.0 */
#include "imgfmt/index_write.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>

#include "common/bytes.h"
#include "common/cleanup.h"
#include "common/log.h"
#include "imgfmt/section_write.h"

struct builder {
	const struct index_input *in;
	struct footer_info footer;
	struct section_out section;
	struct thaw_summary summary;
	uint64_t layout_strings, base_strings; /* where in STRINGS these begin */
	uint64_t data_end;
};

/* -- the entries of each section -------------------------------------------------------------- */

static int emit_summary(struct builder *b, struct section_out *s)
{
	return section_out_put(s, &b->summary, sizeof(b->summary));
}

static int emit_chunks(struct builder *b, struct section_out *s)
{
	const struct table *chunks = writer_chunks(b->in->writer);
	int r = 0;

	for (size_t i = 0; i < chunks->n && !r; i++)
		r = section_out_put(s, table_at(chunks, i), sizeof(struct thaw_chunk));
	return r;
}

static uint64_t entry_first(const struct tree_node *node, const struct writer_file *file)
{
	if (S_ISREG(node->st.st_mode))
		return file->count ? file->first : 0;
	if (S_ISDIR(node->st.st_mode))
		return node->n_names ? node->first : 0;
	return S_ISLNK(node->st.st_mode) ? node->target_off : 0;
}

static uint64_t entry_size(const struct tree_node *node)
{
	if (S_ISREG(node->st.st_mode))
		return (uint64_t)node->st.st_size;
	return S_ISLNK(node->st.st_mode) ? node->target_len : 0;
}

static int emit_inodes(struct builder *b, struct section_out *s)
{
	const struct tree *tree = b->in->tree;
	int r = 0;

	for (uint32_t i = 0; i < tree->nodes.n && !r; i++) {
		const struct tree_node *node = tree_node(tree, i);
		const struct writer_file file = writer_file(b->in->writer, i);
		bool is_file = S_ISREG(node->st.st_mode), is_dir = S_ISDIR(node->st.st_mode);
		bool is_dev = S_ISCHR(node->st.st_mode) || S_ISBLK(node->st.st_mode);
		const struct thaw_inode e = {
			.mode = le32_make(node->st.st_mode),
			.nlink = le32_make(node->nlink),
			.uid = le32_make(node->st.st_uid),
			.gid = le32_make(node->st.st_gid),
			.size = le64_make(entry_size(node)),
			.mtime_sec = le64_make((uint64_t)node->st.st_mtim.tv_sec),
			.mtime_nsec = le32_make((uint32_t)node->st.st_mtim.tv_nsec),
			.rdev_major = le32_make(is_dev ? major(node->st.st_rdev) : 0),
			.rdev_minor = le32_make(is_dev ? minor(node->st.st_rdev) : 0),
			.n_xattrs = le32_make(node->n_xattrs),
			.first_xattr = le64_make(node->n_xattrs ? node->first_xattr : 0),
			.first = le64_make(entry_first(node, &file)),
			.count = le64_make(is_file  ? file.count
					   : is_dir ? node->n_names
						    : 0),
			.hole_bytes = le64_make(is_file ? file.hole_bytes : 0),
			.parent = le32_make(is_dir ? node->parent : 0),
			.format = le32_make(is_file ? node->format : 0),
		};

		r = section_out_put(s, &e, sizeof(e));
	}
	return r;
}

static int emit_names(struct builder *b, struct section_out *s)
{
	const struct table *names = &b->in->tree->names;
	int r = 0;

	for (size_t i = 0; i < names->n && !r; i++) {
		const struct tree_name *n = table_at(names, i);
		const struct thaw_name e = {
			.parent = le32_make(n->parent),
			.inode = le32_make(n->ino),
			.name_off = le64_make(n->off),
			.name_len = le32_make(n->len),
		};

		r = section_out_put(s, &e, sizeof(e));
	}
	return r;
}

static int emit_extents(struct builder *b, struct section_out *s)
{
	uint64_t n = writer_n_extents(b->in->writer);
	int r = 0;

	for (uint64_t i = 0; i < n && !r; i++) {
		const struct thaw_extent e = writer_extent(b->in->writer, i);

		r = section_out_put(s, &e, sizeof(e));
	}
	return r;
}

static int emit_spaces(struct builder *b, struct section_out *s)
{
	const struct layout *lay = b->in->layout;
	uint64_t region = 0, segment = 0;
	int r = 0;

	/* spaces were sorted by name, so their ranges are laid out anew here and in the two below */
	for (size_t i = 0; i < lay->n_spaces && !r; i++) {
		const struct layout_space *sp = &lay->spaces[i];
		const struct thaw_space e = {
			.name_off = le64_make(b->layout_strings + sp->name_off),
			.name_len = le32_make(sp->name_len),
			.kind = le32_make(sp->kind),
			.inode = le32_make(sp->ino),
			.pid = le32_make(sp->pid),
			.first_region = le64_make(sp->n_regions ? region : 0),
			.first_segment = le64_make(sp->n_segments ? segment : 0),
			.n_regions = le32_make(sp->n_regions),
			.n_segments = le32_make(sp->n_segments),
		};

		region += sp->n_regions;
		segment += sp->n_segments;
		r = section_out_put(s, &e, sizeof(e));
	}
	return r;
}

static int emit_region(struct builder *b, struct section_out *s, const struct layout_region *g)
{
	const struct thaw_region e = {
		.addr = le64_make(g->addr),
		.len = le64_make(g->len),
		.pgoff = le64_make(g->pgoff),
		.prot = le32_make(g->prot),
		.flags = le32_make(g->flags),
		.name_off = le64_make(g->name_len ? b->layout_strings + g->name_off : 0),
		.name_len = le32_make(g->name_len),
	};

	return section_out_put(s, &e, sizeof(e));
}

static int emit_regions(struct builder *b, struct section_out *s)
{
	const struct layout *lay = b->in->layout;
	int r = 0;

	for (size_t i = 0; i < lay->n_spaces; i++)
		for (uint32_t k = 0; k < lay->spaces[i].n_regions && !r; k++)
			r = emit_region(b, s, &lay->regions[lay->spaces[i].first_region + k]);
	return r;
}

static int emit_segment(struct builder *b, struct section_out *s, const struct layout_segment *g)
{
	bool data = g->kind == THAW_SEG_DATA;
	int base = data && g->base ? writer_use_base(b->in->writer, b->in->parents[g->base - 1]) : 0;
	const struct thaw_segment e = {
		.addr = le64_make(g->addr),
		.len = le64_make(g->len),
		.off = le64_make(data ? g->off : 0),
		.inode = le32_make(data ? g->ino : 0),
		.kind = g->kind,
		.base = le16_make((uint16_t)base),
	};

	return base < 0 ? base : section_out_put(s, &e, sizeof(e));
}

static int emit_segments(struct builder *b, struct section_out *s)
{
	const struct layout *lay = b->in->layout;
	int r = 0;

	for (size_t i = 0; i < lay->n_spaces; i++)
		for (uint32_t k = 0; k < lay->spaces[i].n_segments && !r; k++)
			r = emit_segment(b, s, &lay->segments[lay->spaces[i].first_segment + k]);
	return r;
}

/* A file's xattrs were found when its name was, so the table is in inode order already. */
static int emit_xattrs(struct builder *b, struct section_out *s)
{
	const struct table *xattrs = &b->in->tree->xattrs;
	int r = 0;

	for (size_t i = 0; i < xattrs->n && !r; i++) {
		const struct tree_xattr *x = table_at(xattrs, i);
		const struct thaw_xattr e = {
			.name_off = le64_make(x->name_off),
			.value_off = le64_make(x->value_len ? x->value_off : 0),
			.name_len = le32_make(x->name_len),
			.value_len = le32_make(x->value_len),
		};

		r = section_out_put(s, &e, sizeof(e));
	}
	return r;
}

static const char *base_name(const struct image *img)
{
	const char *path = image_path(img), *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

static int emit_bases(struct builder *b, struct section_out *s)
{
	uint64_t at = b->base_strings;
	int r = 0;

	for (unsigned i = 0; i < writer_n_used_bases(b->in->writer) && !r; i++) {
		const struct image *img = writer_used_base(b->in->writer, i);
		struct thaw_base e = {
			.name_off = le64_make(at),
			.name_len = le32_make((uint32_t)strlen(base_name(img))),
		};

		memcpy(e.image_id, image_info(img)->id, sizeof(e.image_id));
		at += strlen(base_name(img));
		r = section_out_put(s, &e, sizeof(e));
	}
	return r;
}

static int emit_strings(struct builder *b, struct section_out *s)
{
	int r = section_out_put(s, b->in->tree->strings, b->in->tree->strings_len);

	if (!r)
		r = section_out_put(s, b->in->layout->strings, b->in->layout->strings_len);
	for (unsigned i = 0; i < writer_n_used_bases(b->in->writer) && !r; i++) {
		const char *name = base_name(writer_used_base(b->in->writer, i));

		r = section_out_put(s, name, strlen(name));
	}
	return r;
}

static int emit_properties(struct builder *b, struct section_out *s)
{
	return b->in->properties ? section_out_put(s, b->in->properties, strlen(b->in->properties)) : 0;
}

/* -- the whole -------------------------------------------------------------------------------- */

static const struct section_kind {
	uint32_t type, entry_size;
	int (*emit)(struct builder *b, struct section_out *s);
} kinds[] = {
	{ THAW_SUMMARY, sizeof(struct thaw_summary), emit_summary },
	{ THAW_CHUNKS, sizeof(struct thaw_chunk), emit_chunks },
	{ THAW_INODES, sizeof(struct thaw_inode), emit_inodes },
	{ THAW_NAMES, sizeof(struct thaw_name), emit_names },
	{ THAW_EXTENTS, sizeof(struct thaw_extent), emit_extents },
	{ THAW_SPACES, sizeof(struct thaw_space), emit_spaces },
	{ THAW_REGIONS, sizeof(struct thaw_region), emit_regions },
	{ THAW_SEGMENTS, sizeof(struct thaw_segment), emit_segments },
	{ THAW_XATTRS, sizeof(struct thaw_xattr), emit_xattrs },
	{ THAW_BASES, sizeof(struct thaw_base), emit_bases },
	{ THAW_STRINGS, 1, emit_strings },
	{ THAW_PROPERTIES, 1, emit_properties },
};

static int write_section(struct builder *b, const struct section_kind *kind)
{
	int r = section_out_begin(&b->section, b->in->out);

	if (!r)
		r = kind->emit(b, &b->section);
	return r ? r : section_out_end(&b->section, kind->type, kind->entry_size, &b->footer);
}

static void sum_up(struct builder *b, struct index_totals *t)
{
	const struct tree *tree = b->in->tree;
	const struct writer_counts *c = writer_counts(b->in->writer);
	uint64_t accounted;

	*t = (struct index_totals){ 0 };
	for (uint32_t i = 0; i < tree->nodes.n; i++) {
		const struct tree_node *node = tree_node(tree, i);

		t->n_dirs += S_ISDIR(node->st.st_mode);
		if (!S_ISREG(node->st.st_mode))
			continue;
		t->n_files++;
		t->logical_bytes += (uint64_t)node->st.st_size;
		t->hole_bytes += writer_file(b->in->writer, i).hole_bytes;
	}
	accounted = t->hole_bytes + c->chunk_bytes + c->base_bytes;
	t->dup_bytes = t->logical_bytes > accounted ? t->logical_bytes - accounted : 0;
	b->summary = (struct thaw_summary){
		.logical_bytes = le64_make(t->logical_bytes),
		.hole_bytes = le64_make(t->hole_bytes),
		.chunk_bytes = le64_make(c->chunk_bytes),
		.stored_bytes = le64_make(c->stored_bytes),
		.base_bytes = le64_make(c->base_bytes),
		.dup_bytes = le64_make(t->dup_bytes),
		.n_chunks_raw = le64_make(c->n_raw),
		.n_chunks_zstd = le64_make(c->n_zstd),
		.n_chunks_lz4 = le64_make(c->n_lz4),
		.n_chunks_shuffled = le64_make(c->n_shuffled),
		.n_chunks_base = le64_make(c->n_base),
		.n_files = le64_make(t->n_files),
		.n_dirs = le64_make(t->n_dirs),
	};
}

static int write_footer(struct builder *b, uint8_t ret_id[16])
{
	const struct writer_counts *c = writer_counts(b->in->writer);
	struct thaw_footer raw;
	int r = output_align(b->in->out, THAW_PAGE);

	if (r)
		return r;
	b->footer.chunk_size = b->in->chunk_size;
	b->footer.incompat = (c->n_lz4 ? THAW_INCOMPAT_LZ4 : 0) | (c->n_shuffled ? THAW_INCOMPAT_SHUFFLE : 0) |
			     (writer_n_used_bases(b->in->writer) ? THAW_INCOMPAT_BASE : 0);
	b->footer.data_end = b->data_end;
	b->footer.file_size = b->in->out->pos + sizeof(raw);
	footer_encode(&b->footer, &raw);
	memcpy(ret_id, raw.image_id, 16);
	return output_write(b->in->out, &raw, sizeof(raw));
}

int index_write(const struct index_input *in, uint8_t ret_id[16], struct index_totals *ret_totals)
{
	struct builder *b = calloc(1, sizeof(*b));
	int r = 0;

	if (!b)
		return -ENOMEM;
	b->in = in;
	b->data_end = in->out->pos;
	b->layout_strings = in->tree->strings_len;
	b->base_strings = b->layout_strings + in->layout->strings_len;
	sum_up(b, ret_totals);
	for (size_t i = 0; i < ARRAY_SIZE(kinds) && !r; i++)
		r = write_section(b, &kinds[i]);
	if (!r)
		r = write_footer(b, ret_id);
	if (r == -ENOMEM)
		log_error("cannot write '%s': out of memory", in->out->name);
	section_out_release(&b->section);
	free(b);
	return r;
}
