/* SPDX-License-Identifier: Apache-2.0 */
#include "imgfmt/compose.h"
#include "common/stop.h"

#include <assert.h>
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/bytes.h"
#include "common/log.h"
#include "imgfmt/footer.h"
#include "imgfmt/index_write.h"
#include "imgfmt/layout.h"
#include "imgfmt/output.h"
#include "imgfmt/tree.h"
#include "imgfmt/verify_output.h"
#include "imgfmt/writer.h"

#define ROOT      0u
#define DIRECTORY 1u
#define FIRST     2u /* inode of the first file */

struct compose {
	struct compose_opts opts;
	uint32_t chunk_size;
	unsigned threads;
	struct output out;
	struct tree tree;
	struct layout layout;
	struct writer *writer;
	size_t file; /* that is being written */
	uint64_t off;
};

/* -- the tree --------------------------------------------------------------------------------------- */

static int add_node(struct compose *c, mode_t mode, uint32_t parent, uint64_t size)
{
	struct tree_node *node = table_push(&c->tree.nodes);

	if (!node)
		return -ENOMEM;
	node->st.st_mode = mode;
	node->st.st_uid = geteuid();
	node->st.st_gid = getegid();
	node->st.st_size = (off_t)size;
	node->nlink = parent == ROOT && c->tree.nodes.n == 1 ? 0 : 1;
	node->parent = parent;
	node->spool_fd = -1;
	return 0;
}

static int add_name(struct compose *c, const char *text, uint32_t parent, uint32_t ino)
{
	struct tree_node *dir = tree_node(&c->tree, parent), *node = tree_node(&c->tree, ino);
	struct tree_name *name = table_push(&c->tree.names);

	if (!name)
		return -ENOMEM;
	if (!dir->n_names++)
		dir->first = c->tree.names.n - 1;
	node->name = (uint32_t)c->tree.names.n - 1;
	name->len = (uint32_t)strlen(text);
	name->parent = parent;
	name->ino = ino;
	return tree_add_string(&c->tree, text, name->len, &name->off);
}

static const char *file_name(const struct compose *c, size_t i)
{
	return i < c->opts.n_files ? c->opts.files[i].name : c->opts.last_name;
}

static int by_name(const void *a, const void *b, void *c)
{
	return strcmp(file_name(c, *(const size_t *)a), file_name(c, *(const size_t *)b));
}

/* names are sorted, inode numbers go by the order in which bytes come */
static int add_files(struct compose *c)
{
	size_t n = c->opts.n_files + 1;
	size_t *order = calloc(n, sizeof(*order));
	int r = order ? 0 : -ENOMEM;

	for (size_t i = 0; i < n && !r; i++) {
		order[i] = i;
		r = add_node(c, S_IFREG | 0600, DIRECTORY, i < c->opts.n_files ? c->opts.files[i].size : 0);
	}
	if (!r)
		qsort_r(order, n, sizeof(*order), by_name, c);
	for (size_t i = 0; i < n && !r; i++) {
		const char *name = file_name(c, order[i]);
		size_t len = strlen(name);

		if (!len || len > 255 || strchr(name, '/') || !strcmp(name, ".") || !strcmp(name, "..") ||
		    (i && !strcmp(name, file_name(c, order[i - 1])))) {
			log_error("cannot write '%s': '%s' cannot be a file's name, or is one twice", c->opts.out,
				  name);
			r = -EINVAL;
		} else {
			r = add_name(c, name, DIRECTORY, FIRST + (uint32_t)order[i]);
		}
	}
	free(order);
	return r;
}

static int make_tree(struct compose *c)
{
	int r = add_node(c, S_IFDIR | 0700, ROOT, 0);

	if (!r)
		r = add_node(c, S_IFDIR | 0700, ROOT, 0);
	if (!r)
		r = add_name(c, c->opts.directory, ROOT, DIRECTORY);
	return r ? r : add_files(c);
}

/* -- beginning -------------------------------------------------------------------------------------- */

/* there are no inputs, and without a place to read from again nothing is compared that way */
static int no_input(void *ctx, struct writer_input *input)
{
	(void)ctx;
	(void)input;
	return -EINVAL;
}

static int no_reopen(void *ctx, uint32_t ino)
{
	(void)ctx;
	(void)ino;
	return -ENOENT;
}

static int start_writer(struct compose *c)
{
	static const uint8_t codecs[] = { [PACK_ZSTD] = THAW_ZSTD, [PACK_LZ4] = THAW_LZ4, [PACK_RAW] = THAW_RAW };
	const struct writer_opts opts = {
		.out = &c->out,
		.encoder = {
			.codec = codecs[c->opts.codec],
			.level = c->opts.level ? c->opts.level : c->opts.codec == PACK_LZ4 ? 3 : 1,
			.filter = true,
			.chunk_size = c->chunk_size,
		},
		.threads = c->threads,
		.n_inodes = (uint32_t)c->tree.nodes.n,
		.input_done = no_input,
		.reopen = no_reopen,
		.ctx = c,
		.stop = c->opts.stop,
	};

	return writer_new(&opts, &c->writer);
}

static int begin(struct compose *c)
{
	struct thaw_header header;
	cpu_set_t set;
	int r;

	c->chunk_size = c->opts.chunk_size ? c->opts.chunk_size : THAW_CHUNK_DEFAULT;
	c->threads = c->opts.threads;
	if (!c->threads)
		c->threads = sched_getaffinity(0, sizeof(set), &set) ? 1 : (unsigned)CPU_COUNT(&set);
	if (c->chunk_size < THAW_CHUNK_MIN || c->chunk_size > THAW_CHUNK_MAX || (c->chunk_size & (c->chunk_size - 1)) ||
	    c->opts.n_files > THAW_MAX_ENTRIES - 8) {
		log_error("cannot write '%s': chunk size %u or %zu files are not possible", c->opts.out, c->chunk_size,
			  c->opts.n_files);
		return -EINVAL;
	}
	r = output_open(&c->out, c->opts.out);
	if (r)
		return r;
	header_encode(c->chunk_size, &header);
	r = output_write(&c->out, &header, sizeof(header));
	if (!r)
		r = make_tree(c);
	return r ? r : start_writer(c);
}

int compose_open(const struct compose_opts *opts, struct compose **ret)
{
	struct compose *c = calloc(1, sizeof(*c));
	int r;

	if (!c)
		return -ENOMEM;
	c->opts = *opts;
	c->out.fd = -1;
	c->tree = (struct tree){ .root_fd = -1, .dir_fd = -1 };
	table_init(&c->tree.nodes, sizeof(struct tree_node));
	table_init(&c->tree.names, sizeof(struct tree_name));
	table_init(&c->tree.xattrs, sizeof(struct tree_xattr));
	layout_init(&c->layout);
	r = begin(c);
	if (r) {
		if (r == -ENOMEM)
			log_error("cannot write '%s': out of memory", opts->out);
		compose_close(c);
		return r;
	}
	*ret = c;
	return 0;
}

/* -- bytes ------------------------------------------------------------------------------------------ */

/* @len more bytes of a file are about to come: is it their turn? */
static void take_turn(struct compose *c, size_t index, uint64_t len)
{
	if (index != c->file) {
		assert(index > c->file);
		c->file = index;
		c->off = 0;
	}
	assert(range_inside(c->off, len, (uint64_t)tree_node(&c->tree, FIRST + (uint32_t)index)->st.st_size));
}

int compose_hole(struct compose *c, size_t index, uint64_t len)
{
	int r;

	take_turn(c, index, len);
	if (!len)
		return 0;
	r = writer_hole(c->writer, FIRST + (uint32_t)index, c->off, len);
	c->off += len;
	return r;
}

int compose_data(struct compose *c, size_t index, const void *bytes, size_t len)
{
	uint32_t ino = FIRST + (uint32_t)index;
	const uint8_t *p = bytes;

	take_turn(c, index, len);
	while (len) {
		uint32_t piece = (uint32_t)min_u64(len, c->chunk_size - (c->off & (c->chunk_size - 1)));
		int r = piece < c->chunk_size / 2 ? writer_small(c->writer, ino, c->off, p, piece)
						  : writer_bytes(c->writer, ino, c->off, p, piece);

		if (r)
			return r;
		p += piece;
		c->off += piece;
		len -= piece;
	}
	return 0;
}

int compose_finish(struct compose *c, const void *last, size_t last_len, struct pack_result *ret)
{
	char properties[128];
	const struct index_input in = {
		.out = &c->out,
		.writer = c->writer,
		.tree = &c->tree,
		.layout = &c->layout,
		.properties = properties,
		.chunk_size = c->chunk_size,
	};
	const struct writer_counts *counts = writer_counts(c->writer);
	struct pack_result result = { 0 };
	struct index_totals totals;
	int r;

	tree_node(&c->tree, FIRST + (uint32_t)c->opts.n_files)->st.st_size = (off_t)last_len;
	snprintf(properties, sizeof(properties), "{\"source\":\"%s\"}", c->opts.source);
	r = compose_data(c, c->opts.n_files, last, last_len);
	if (!r)
		r = writer_drain(c->writer);
	if (!r)
		r = index_write(&in, result.id, &totals);
	if (!r && c->opts.verify)
		r = verify_output(&c->out, NULL, c->threads);
	if (!r && stop_asked(c->opts.stop))
		r = -EINTR;
	if (r)
		return r;
	result.logical_bytes = totals.logical_bytes;
	result.hole_bytes = totals.hole_bytes;
	result.dup_bytes = totals.dup_bytes;
	result.stored_bytes = counts->stored_bytes;
	result.image_bytes = c->out.pos;
	result.n_files = totals.n_files;
	result.n_chunks = writer_chunks(c->writer)->n;
	r = output_publish(&c->out, !c->opts.no_fsync);
	if (!r && ret)
		*ret = result;
	return r;
}

void compose_close(struct compose *c)
{
	if (!c)
		return;
	writer_free(c->writer);
	layout_release(&c->layout);
	tree_release(&c->tree);
	output_close(&c->out);
	free(c);
}
