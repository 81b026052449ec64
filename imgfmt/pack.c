/* SPDX-License-Identifier: Apache-2.0 */
#include "imgfmt/pack.h"
#include "common/stop.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/bytes.h"
#include "common/cleanup.h"
#include "common/log.h"
#include "imgfmt/describe.h"
#include "imgfmt/footer.h"
#include "imgfmt/index_write.h"
#include "imgfmt/output_spare.h"
#include "imgfmt/packer.h"
#include "imgfmt/verify_output.h"

#define DEFAULT_LEVEL     1
#define DEFAULT_LZ4_LEVEL 3 /* as small as zstd --fast=3, decoded more than twice as fast */
#define MAX_THREADS       256

void packer_note(struct packer *p, const char *path, const char *note)
{
	char *line = NULL;
	size_t len;
	FILE *f;

	log_note("'%s': %s", path, note);
	f = p->n_notes < PACKER_MAX_NOTES ? open_memstream(&line, &len) : NULL;
	if (!f)
		return;
	/* properties are UTF-8, a path may be anything */
	describe_put_name(f, path, strlen(path));
	fprintf(f, ": %s", note);
	if (fclose(f) == 0)
		p->notes[p->n_notes++] = line;
	else
		free(line);
}

/* -- bases ------------------------------------------------------------------------------------ */

static int open_bases(struct packer *p)
{
	const struct image_opts opts = { .base_path = p->opts->base_path };
	const char *const *path = p->opts->bases;
	size_t n = 0;

	while (path && path[n])
		n++;
	p->bases = calloc(n + 1, sizeof(struct image *));
	if (!p->bases)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++) {
		int r = image_open(path[i], &opts, &p->bases[i]);

		if (r)
			return r;
		p->n_bases++;
		if (image_info(p->bases[i])->chunk_size != p->chunk_size) {
			log_error("cannot use base '%s': its chunk size is %u, not %u (see --chunk)", path[i],
				  image_info(p->bases[i])->chunk_size, p->chunk_size);
			return -EINVAL;
		}
	}
	return 0;
}

/* -- properties ------------------------------------------------------------------------------- */

static void add_notes(const struct packer *p, cJSON *json)
{
	cJSON *list = p->n_notes ? cJSON_AddArrayToObject(json, "notes") : NULL;

	for (unsigned i = 0; list && i < p->n_notes; i++)
		cJSON_AddItemToArray(list, cJSON_CreateString(p->notes[i]));
}

static void add_identity(const struct packer *p, cJSON *json)
{
	char host[256], when[32];
	time_t now = time(NULL);
	struct tm tm;

	if (p->opts->add_creator)
		cJSON_AddStringToObject(json, "creator", "thawfs");
	if (p->opts->add_host && !gethostname(host, sizeof(host) - 1)) {
		host[sizeof(host) - 1] = '\0';
		cJSON_AddStringToObject(json, "host", host);
	}
	if (p->opts->add_time && gmtime_r(&now, &tm) && strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%SZ", &tm))
		cJSON_AddStringToObject(json, "created", when);
}

static char *make_properties(const struct packer *p)
{
	const char *source = p->has_criu ? "criu" : p->has_dmtcp ? "dmtcp" : p->has_core ? "core" : "files";
	cJSON *json = cJSON_CreateObject();
	char *text;

	cJSON_AddStringToObject(json, "source", source);
	if (p->tree.single)
		cJSON_AddBoolToObject(json, "single", true);
	add_notes(p, json);
	add_identity(p, json);
	text = cJSON_PrintUnformatted(json);
	cJSON_Delete(json);
	return text;
}

/* -- stages ----------------------------------------------------------------------------------- */

static unsigned count_processors(void)
{
	cpu_set_t set;

	if (sched_getaffinity(0, sizeof(set), &set))
		return 1;
	return (unsigned)CPU_COUNT(&set);
}

static int check_options(struct packer *p)
{
	const struct pack_opts *o = p->opts;

	p->chunk_size = o->chunk_size ? o->chunk_size : THAW_CHUNK_DEFAULT;
	p->threads = o->threads ? o->threads : count_processors();
	if (p->threads > MAX_THREADS)
		p->threads = MAX_THREADS;
	if (p->chunk_size < THAW_CHUNK_MIN || p->chunk_size > THAW_CHUNK_MAX || (p->chunk_size & (p->chunk_size - 1))) {
		log_error("chunk size %u is not a power of two between 64K and 4M", p->chunk_size);
		return -EINVAL;
	}
	if (o->verify && !strcmp(o->out, "-")) {
		log_error("cannot verify what goes to standard output");
		return -EINVAL;
	}
	return 0;
}

static int write_header(struct packer *p)
{
	struct thaw_header header;

	if (p->resumed)
		return 0;
	header_encode(p->chunk_size, &header);
	return output_write(&p->out, &header, sizeof(header));
}

/* the image must not take the place of anything that it is made from, or will be read from */
static int check_place(struct packer *p)
{
	const char *src = p->opts->src;
	struct stat st;
	int r = 0;

	if (!stat(src, &st) && S_ISREG(st.st_mode) && output_place(&p->out, src, &st)) {
		log_error("cannot pack '%s': the image would take its place", src);
		return -EINVAL;
	}
	for (unsigned i = 0; i < p->n_bases && !r; i++)
		r = output_spare(&p->out, p->bases[i], false);
	return r;
}

/* scan the source, leaving out what is being written and what that will replace */
static int scan(struct packer *p)
{
	struct tree_exclude exclude[2];
	unsigned n = 0;

	if (p->out.seekable) {
		exclude[n++] = (struct tree_exclude){ p->out.dir_dev, p->out.dir_ino, output_base_name(&p->out) };
		exclude[n++] = (struct tree_exclude){ p->out.dir_dev, p->out.dir_ino, output_temporary_name(&p->out) };
	}
	return tree_scan(&p->tree, p->opts->src, exclude, n, p->opts->stop);
}

static int open_output(struct packer *p)
{
	int r = output_open(&p->out, p->opts->out);

	/* before anything is written there */
	if (!r)
		r = check_place(p);
	p->out.rate = p->opts->rate;
	p->out.retries = p->opts->retries;
	p->out.stop = p->opts->stop;
	if (r || !p->opts->resume)
		return r;
	r = journal_open(&p->journal, &p->out, p->chunk_size, &p->held);
	if (r < 0)
		return r;
	p->resumed = r;
	if (p->held.n)
		log_note("going on with '%s': %zu chunks are there", p->opts->out, p->held.n);
	return 0;
}

static int note_stored(void *ctx, const struct thaw_chunk *c, const void *data)
{
	struct packer *p = ctx;

	return journal_add(&p->journal, c, data);
}

static int start_writer(struct packer *p)
{
	static const uint8_t codecs[] = { [PACK_ZSTD] = THAW_ZSTD, [PACK_LZ4] = THAW_LZ4, [PACK_RAW] = THAW_RAW };
	const struct writer_opts opts = {
		.out = &p->out,
		.encoder = {
			.codec = codecs[p->opts->codec],
			.level = p->opts->level                 ? p->opts->level
				 : p->opts->codec == PACK_LZ4 ? DEFAULT_LZ4_LEVEL
							      : DEFAULT_LEVEL,
			.filter = !p->opts->no_filter,
			.chunk_size = p->chunk_size,
		},
		.threads = p->threads,
		.n_inodes = (uint32_t)p->tree.nodes.n,
		.bases = p->bases,
		.n_bases = p->n_bases,
		.input_done = packer_input_done,
		.reopen = packer_reopen,
		.stored = p->opts->resume ? note_stored : NULL,
		.held = &p->held,
		.ctx = p,
		.stop = p->opts->stop,
	};
	int r = writer_new(&opts, &p->writer);

	if (r)
		log_error("cannot start packing: %s", strerror(-r));
	return r;
}

/* directories where the bases of the new image are, so that it can be read back before it has its place */
static char **base_directories(const struct packer *p)
{
	size_t n = writer_n_used_bases(p->writer), k = 0;
	char **list = calloc(n + 1, sizeof(*list));

	for (size_t i = 0; list && i < n; i++) {
		const struct image *img = writer_used_base(p->writer, (unsigned)i);
		const char *path = image_path(img), *slash = strrchr(path, '/');

		list[k] = slash ? strndup(path, (size_t)(slash - path) + (slash == path)) : strdup(".");
		if (list[k])
			k++;
	}
	return list;
}

static int read_again(struct packer *p)
{
	char **dirs = base_directories(p);
	int r = dirs ? verify_output(&p->out, (const char *const *)dirs, p->threads) : -ENOMEM;

	for (char **d = dirs; d && *d; d++)
		free(*d);
	free(dirs);
	return r;
}

static int finish(struct packer *p, struct pack_result *ret)
{
	_cleanup_free_ char *properties = make_properties(p);
	const struct index_input in = {
		.out = &p->out,
		.writer = p->writer,
		.tree = &p->tree,
		.layout = &p->layout,
		.parents = p->parents,
		.properties = properties,
		.chunk_size = p->chunk_size,
	};
	const struct writer_counts *counts = writer_counts(p->writer);
	struct index_totals totals;
	int r = index_write(&in, ret->id, &totals);

	if (!r && p->opts->verify) {
		r = read_again(p);
		p->out.suspect = r != 0;
	}
	if (!r && stop_asked(p->opts->stop))
		r = -EINTR;
	if (r)
		return r;
	ret->logical_bytes = totals.logical_bytes;
	ret->hole_bytes = totals.hole_bytes;
	ret->dup_bytes = totals.dup_bytes;
	ret->base_bytes = counts->base_bytes;
	ret->stored_bytes = counts->stored_bytes;
	ret->image_bytes = p->out.pos;
	ret->n_files = totals.n_files;
	ret->n_chunks = writer_chunks(p->writer)->n;
	ret->resumed_bytes = counts->held_bytes;
	return output_publish(&p->out, !p->opts->no_fsync);
}

static int run(struct packer *p, struct pack_result *ret)
{
	int r = check_options(p);

	if (!r)
		r = open_bases(p);
	if (!r)
		r = open_output(p);
	if (!r)
		r = scan(p);
	if (!r)
		r = packer_parse(p);
	if (!r)
		r = write_header(p);
	if (!r)
		r = start_writer(p);
	if (!r)
		r = packer_read(p);
	return r ? r : finish(p, ret);
}

/* is what there is of the image of use to a later run? Not where the disk is full: there it would be in the way */
static bool worth_keeping(const struct packer *p, int r)
{
	return p->opts->resume && !p->out.suspect &&
	       (r == -EINTR || r == -EAGAIN || r == -EIO || r == -ETIMEDOUT || r == -ESTALE);
}

static void release(struct packer *p, int r)
{
	bool keep = worth_keeping(p, r);

	writer_free(p->writer);
	p->out.keep = keep;
	/* an output that another process is writing has its journal too: then it was not opened here */
	journal_close(&p->journal, !keep);
	table_release(&p->held);
	layout_release(&p->layout);
	tree_release(&p->tree);
	output_close(&p->out);
	for (unsigned i = 0; i < p->n_bases; i++)
		image_close(p->bases[i]);
	for (unsigned i = 0; i < p->n_parents; i++)
		image_close(p->parents[i]);
	for (unsigned i = 0; i < p->n_notes; i++)
		free(p->notes[i]);
	free(p->bases);
	free(p->parents);
}

int pack(const struct pack_opts *opts, struct pack_result *ret)
{
	struct packer *p = calloc(1, sizeof(*p));
	struct pack_result result = { 0 };
	int r;

	if (!p)
		return -ENOMEM;
	p->opts = opts;
	p->out.fd = p->tree.root_fd = p->tree.dir_fd = -1;
	p->journal.fd = -1;
	table_init(&p->held, sizeof(struct thaw_chunk));
	layout_init(&p->layout);
	r = run(p, &result);
	release(p, r);
	free(p);
	if (!r && ret)
		*ret = result;
	return r;
}
