/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thawfs verify: every byte of images. What is damaged is the output, on standard output; that something is, is a
 * message. Damage of the index is printed as it is found, before any chunk is read; damaged chunks are collected,
 * sorted and then looked up, so memory is 24 bytes for each of them, however many places use them.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "common/cleanup.h"
#include "common/json.h"
#include "common/log.h"
#include "imgfmt/describe.h"
#include "imgfmt/format.h"
#include "imgfmt/locate.h"
#include "imgfmt/verify.h"

enum { OPT_INDEX_ONLY = CLI_OPT_OWN };

static const struct option longs[] = {
	{ "index-only", no_argument, NULL, OPT_INDEX_ONLY },
	CLI_LONG_THREADS,
	CLI_LONG_QUIET,
	CLI_LONG_BYTES,
	CLI_LONG_JSON,
	CLI_LONG_BASE_PATH,
	CLI_LONG_PROGRESS,
	CLI_LONG_END,
};

#define AT_OFFSET "at offset "
#define MAX_TEXTS 32 /* ways in which a chunk can be damaged; there are about a dozen */

struct bad_chunk {
	uint64_t off;
	uint32_t chunk, text;
};

/* a base that is not there: no use in listing each chunk that it would have */
struct missing {
	uint64_t n_chunks, bytes;
};

struct verify {
	const struct cli *cli;
	const char *path;
	struct image *img;
	struct json *js;
	bool index_only;
	struct progress progress;

	struct bad_chunk *bad;
	size_t n_bad, cap_bad;
	char *texts[MAX_TEXTS];
	uint32_t n_texts;
	struct missing missing[THAW_MAX_BASES];
	uint64_t n_missing, n_index_errors; /* chunks in missing bases; errors that are not about a missing base */
	int error;                          /* out of memory while collecting */

	/* of the places found */
	uint32_t last_ino;
	uint64_t last_space, last_region; /* first_region of the space, address */
	uint64_t n_files, n_regions;
};

static bool plain_output(const struct verify *v)
{
	return !v->cli->json && !v->cli->quiet;
}

static void put_image(const struct verify *v)
{
	cli_print_name(stdout, v->path, strlen(v->path));
	fputs(": ", stdout);
}

/* -- collecting ------------------------------------------------------------------------------- */

/* the number of a text; those past MAX_TEXTS share the last. UINT32_MAX: out of memory */
static uint32_t intern(struct verify *v, const char *text)
{
	for (uint32_t i = 0; i < v->n_texts; i++) {
		if (!strcmp(v->texts[i], text))
			return i;
	}
	if (v->n_texts == MAX_TEXTS)
		return MAX_TEXTS - 1;
	v->texts[v->n_texts] = strdup(text);
	return v->texts[v->n_texts] ? v->n_texts++ : UINT32_MAX;
}

static int add_bad_chunk(struct verify *v, const struct verify_damage *d)
{
	const char *what = d->what;
	uint64_t off = d->stored_off;
	uint32_t text;

	/* the offset that the text begins with is that in the file the chunk is in, which may be a base */
	if (!strncmp(what, AT_OFFSET, strlen(AT_OFFSET))) {
		char *end;

		off = strtoull(what + strlen(AT_OFFSET), &end, 10);
		what = strncmp(end, ": ", 2) ? end : end + 2;
	}
	text = intern(v, what);
	if (text == UINT32_MAX)
		return -ENOMEM;
	if (v->n_bad == v->cap_bad) {
		size_t cap = v->cap_bad ? v->cap_bad * 2 : 64;
		struct bad_chunk *p = reallocarray(v->bad, cap, sizeof(*p));

		if (!p)
			return -ENOMEM;
		v->bad = p;
		v->cap_bad = cap;
	}
	v->bad[v->n_bad++] = (struct bad_chunk){ .off = off, .chunk = d->chunk, .text = text };
	return 0;
}

static void put_index_error(struct verify *v, const struct verify_damage *d)
{
	if (v->cli->json) {
		json_object_line(v->js, NULL);
		json_u64(v->js, "offset", d->stored_off);
		json_string(v->js, "what", d->what);
		json_close(v->js);
	} else if (plain_output(v)) {
		put_image(v);
		printf("index at offset %" PRIu64 ": %s\n", d->stored_off, d->what);
	}
}

static void add_missing(struct verify *v, const struct verify_damage *d)
{
	struct image_chunk chunk;

	/* the index names the base too; its chunks say what it is needed for */
	if (d->chunk == THAW_HOLE || image_chunk(v->img, d->chunk, &chunk) || !chunk.base)
		return;
	v->n_missing++;
	v->missing[chunk.base - 1].n_chunks++;
	v->missing[chunk.base - 1].bytes += chunk.logical_len;
}

static void on_damage(void *ctx, const struct verify_damage *d)
{
	struct verify *v = ctx;

	if (d->error == -ENOENT) {
		add_missing(v, d);
	} else if (d->chunk == THAW_HOLE) {
		v->n_index_errors++;
		put_index_error(v, d);
	} else if (!v->error) {
		v->error = add_bad_chunk(v, d);
	}
}

static void on_progress(void *ctx, uint64_t done, uint64_t total)
{
	struct verify *v = ctx;

	progress_update(&v->progress, done, total);
}

static int by_chunk(const void *a, const void *b)
{
	const struct bad_chunk *x = a, *y = b;

	return x->chunk < y->chunk ? -1 : x->chunk > y->chunk;
}

/* -- damaged chunks, and what they are part of ------------------------------------------------ */

static void put_bad_chunk(struct verify *v, const struct bad_chunk *b)
{
	struct image_chunk chunk = { 0 };
	struct image_base base;
	bool in_base =
		!image_chunk(v->img, b->chunk, &chunk) && chunk.base && !image_base(v->img, chunk.base - 1u, &base);

	if (v->cli->json) {
		json_object_line(v->js, NULL);
		json_u64(v->js, "chunk", b->chunk);
		json_u64(v->js, "offset", b->off);
		if (in_base)
			json_bytes(v->js, "base", base.name, base.name_len);
		json_string(v->js, "what", v->texts[b->text]);
		json_close(v->js);
		return;
	}
	put_image(v);
	printf("chunk %" PRIu32, b->chunk);
	if (in_base) {
		fputs(" in base '", stdout);
		cli_print_name(stdout, base.name, base.name_len);
		fputs("'", stdout);
	}
	if (b->off)
		printf(" at offset %" PRIu64, b->off);
	printf(": %s\n", v->texts[b->text]);
}

static void put_region_json(struct json *js, const struct image_region *g)
{
	if (!g)
		return;
	json_format(js, "region", "%08" PRIx64 "-%08" PRIx64, g->addr, g->addr + g->len);
	json_bytes(js, "region_name", g->name_len ? g->name : "", g->name_len);
}

static void put_place_json(struct verify *v, const struct locate_hit *hit)
{
	struct json *js = v->js;

	json_object_line(js, NULL);
	json_u64(js, "chunk", hit->chunk);
	if (hit->space) {
		json_bytes(js, "space", hit->space->name, hit->space->name_len);
		json_u64(js, "addr", hit->off);
	} else {
		json_string(js, "member", hit->path);
		json_u64(js, "offset", hit->off);
	}
	json_u64(js, "len", hit->len);
	if (hit->space)
		put_region_json(js, hit->region);
	json_close(js);
}

static void put_place_text(struct verify *v, const struct locate_hit *hit)
{
	const struct image_region *g = hit->region;

	put_image(v);
	if (!hit->space) {
		fputs("in '", stdout);
		cli_print_name(stdout, hit->path, strlen(hit->path));
		printf("': %" PRIu64 " bytes at offset %" PRIu64, hit->len, hit->off);
	} else {
		fputs("in address space '", stdout);
		cli_print_name(stdout, hit->space->name, hit->space->name_len);
		printf("': %08" PRIx64 "-%08" PRIx64, hit->off, hit->off + hit->len);
		if (g)
			printf(" of region %08" PRIx64 "-%08" PRIx64, g->addr, g->addr + g->len);
		if (g && g->name_len) {
			putchar(' ');
			cli_print_name(stdout, g->name, g->name_len);
		}
	}
	printf(" (chunk %" PRIu32 ")\n", hit->chunk);
}

static int on_place(void *ctx, const struct locate_hit *hit)
{
	struct verify *v = ctx;

	if (!hit->space) {
		v->n_files += v->n_files == 0 || hit->ino != v->last_ino;
		v->last_ino = hit->ino;
	} else if (hit->region) {
		v->n_regions += !v->n_regions || v->last_space != hit->space->first_region ||
				v->last_region != hit->region->addr;
		v->last_space = hit->space->first_region;
		v->last_region = hit->region->addr;
	}
	if (v->cli->json)
		put_place_json(v, hit);
	else if (plain_output(v))
		put_place_text(v, hit);
	return 0;
}

/* what the index says wrong was listed already */
static void drop_message(enum log_level level, const char *line, void *ctx)
{
	(void)level, (void)line, (void)ctx;
}

static int put_places(struct verify *v)
{
	_cleanup_free_ uint32_t *chunks = calloc(v->n_bad + 1, sizeof(*chunks));
	int err;

	if (!chunks)
		return -ENOMEM;
	for (size_t i = 0; i < v->n_bad; i++)
		chunks[i] = v->bad[i].chunk;
	log_set_sink(drop_message, NULL);
	err = v->n_bad ? locate_chunks(v->img, chunks, v->n_bad, on_place, v) : 0;
	log_set_sink(NULL, NULL);
	return err == -EBADMSG ? 0 : err;
}

static int put_damage(struct verify *v)
{
	int err;

	if (v->n_bad)
		qsort(v->bad, v->n_bad, sizeof(*v->bad), by_chunk);
	if (v->cli->json)
		json_array(v->js, "damaged_chunks");
	for (size_t i = 0; i < v->n_bad && (v->cli->json || plain_output(v)); i++)
		put_bad_chunk(v, &v->bad[i]);
	if (v->cli->json) {
		json_close(v->js);
		json_array(v->js, "places");
	}
	err = put_places(v);
	if (v->cli->json)
		json_close(v->js);
	return err;
}

/* -- the end of each image -------------------------------------------------------------------- */

static void put_missing_base(struct verify *v, const struct image_base *base, const struct missing *missing)
{
	char id[33], text[SIZE_TEXT_EXACT];

	image_id_text(base->id, id);
	if (v->cli->json) {
		json_object_line(v->js, NULL);
		json_bytes(v->js, "base", base->name, base->name_len);
		json_string(v->js, "id", id);
		json_u64(v->js, "n_chunks", missing->n_chunks);
		json_u64(v->js, "bytes", missing->bytes);
		json_close(v->js);
		return;
	}
	put_image(v);
	fputs("base '", stdout);
	cli_print_name(stdout, base->name, base->name_len);
	printf("' (%s) is missing: ", id);
	if (missing->n_chunks)
		printf("%" PRIu64 " chunk%s (%s) could not be checked\n", missing->n_chunks,
		       cli_plural(missing->n_chunks), cli_size_text(v->cli, missing->bytes, text));
	else
		puts("address spaces lead into its files");
}

/* Return: how many there are */
static unsigned put_missing_bases(struct verify *v)
{
	unsigned n = 0;

	if (v->cli->json)
		json_array(v->js, "missing_bases");
	for (uint32_t i = 0; i < image_info(v->img)->n_bases && i < THAW_MAX_BASES; i++) {
		struct image_base base;
		struct image *img;

		if (image_base(v->img, i, &base) || image_base_open(v->img, i, &img) != -ENOENT)
			continue;
		n++;
		if (v->cli->json || plain_output(v))
			put_missing_base(v, &base, &v->missing[i]);
	}
	if (v->cli->json)
		json_close(v->js);
	return n;
}

static uint64_t missing_bytes(const struct verify *v)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < THAW_MAX_BASES; i++)
		sum += v->missing[i].bytes;
	return sum;
}

static void put_counts(struct verify *v, const struct verify_result *res, const char *state)
{
	const struct image_info *in = image_info(v->img);

	json_string(v->js, "state", state);
	json_u64(v->js, "n_index_errors", v->n_index_errors);
	json_u64(v->js, "n_chunks", res->n_chunks);
	json_u64(v->js, "n_damaged_chunks", v->n_bad);
	json_u64(v->js, "n_missing_chunks", v->n_missing);
	json_u64(v->js, "good_bytes", res->good_bytes);
	json_u64(v->js, "damaged_bytes", res->damaged_bytes - missing_bytes(v));
	json_u64(v->js, "n_files", in->n_files);
	json_u64(v->js, "n_damaged_files", v->n_files);
	json_u64(v->js, "n_regions", in->n_regions);
	json_u64(v->js, "n_damaged_regions", v->n_regions);
}

static void put_good(struct verify *v, const struct verify_result *res)
{
	char text[SIZE_TEXT_EXACT];

	put_image(v);
	if (v->index_only)
		printf("the index is good; %" PRIu64 " chunks not read\n", image_info(v->img)->n_chunks);
	else
		printf("good: %" PRIu64 " file%s, %" PRIu64 " chunk%s, %s\n", image_info(v->img)->n_files,
		       cli_plural(image_info(v->img)->n_files), res->n_chunks, cli_plural(res->n_chunks),
		       cli_size_text(v->cli, res->good_bytes, text));
}

static void put_still_good(struct verify *v, const struct verify_result *res)
{
	const struct image_info *in = image_info(v->img);
	char text[SIZE_TEXT_EXACT];

	put_image(v);
	printf("still good: %" PRIu64 " of %" PRIu64 " chunks (%s)", res->n_chunks - res->n_damaged, res->n_chunks,
	       cli_size_text(v->cli, res->good_bytes, text));
	if (v->n_index_errors || v->n_missing) {
		printf("; what the %s is not known\n",
		       v->n_index_errors ? "damaged index hides" : "missing base affects");
		return;
	}
	printf(", %" PRIu64 " of %" PRIu64 " files", in->n_files - v->n_files, in->n_files);
	if (in->n_regions)
		printf(", %" PRIu64 " of %" PRIu64 " regions", in->n_regions - v->n_regions, in->n_regions);
	putchar('\n');
}

static void log_damage(const struct verify *v, const struct verify_result *res)
{
	char chunks[64] = "", errors[64] = "";

	if (v->n_bad)
		snprintf(chunks, sizeof(chunks), "%zu of %" PRIu64 " chunks", v->n_bad, res->n_chunks);
	if (v->n_index_errors)
		snprintf(errors, sizeof(errors), "%s%" PRIu64 " error%s in the index", *chunks ? " and " : "",
			 v->n_index_errors, cli_plural(v->n_index_errors));
	log_error("'%s' is damaged: %s%s", v->path, chunks, errors);
}

/* Return: enum cli_exit */
static int put_result(struct verify *v, const struct verify_result *res)
{
	bool missing = put_missing_bases(v) > 0, damaged = v->n_bad || v->n_index_errors;

	if (v->cli->json)
		put_counts(v, res, damaged ? "damaged" : missing ? "base-missing" : "good");
	else if (!missing && !damaged && !v->cli->quiet)
		put_good(v, res);
	else if (plain_output(v) && !v->index_only)
		put_still_good(v, res);
	fflush(stdout); /* before messages, where both go to the same place */
	if (damaged)
		log_damage(v, res);
	else if (missing)
		log_error("cannot verify all of '%s': a base is missing", v->path);
	return damaged ? CLI_DAMAGED : missing ? CLI_FAILED : CLI_GOOD;
}

static int check_image(struct verify *v)
{
	const struct verify_opts opts = {
		.threads = v->cli->threads,
		.damage = on_damage,
		.progress = on_progress,
		.ctx = v,
		.index_only = v->index_only,
	};
	struct verify_result res;
	int err;

	if (v->cli->json)
		json_array(v->js, "index_errors");
	progress_start(&v->progress, v->cli->quiet ? PROGRESS_NONE : v->cli->progress, "verifying");
	err = image_check(v->img, &opts, &res);
	progress_end(&v->progress, err == 0);
	if (v->cli->json)
		json_close(v->js);
	if (!err)
		err = v->error;
	if (!err)
		err = put_damage(v);
	if (!err)
		return put_result(v, &res);
	if (v->cli->json) {
		json_string(v->js, "state", "failed");
		json_string(v->js, "error", strerror(-err));
	}
	log_error("cannot verify '%s': %s", v->path, strerror(-err));
	return cli_exit_code(err);
}

static void release(struct verify *v)
{
	image_close(v->img);
	free(v->bad);
	for (uint32_t i = 0; i < v->n_texts; i++)
		free(v->texts[i]);
}

static int verify_one(const struct cli *cli, const char *path, bool index_only, struct json *js)
{
	struct verify v = { .cli = cli, .path = path, .js = js, .index_only = index_only };
	char id[33];
	int rc = cli_open_image(cli, path, &v.img);

	if (cli->json) {
		json_object(js, NULL);
		json_string(js, "image", path);
	}
	if (!rc) {
		image_id_text(image_info(v.img)->id, id);
		if (cli->json)
			json_string(js, "id", id);
		rc = check_image(&v);
	} else {
		if (cli->json) {
			json_string(js, "state", rc == -EBADMSG ? "damaged" : "failed");
			json_string(js, "error", strerror(-rc));
		}
		rc = cli_exit_code(rc);
	}
	if (cli->json)
		json_close(js);
	release(&v);
	return rc;
}

static int run_verify(const struct verb *verb, int argc, char **argv)
{
	struct cli cli = { .verb = verb };
	bool index_only = false;
	struct json js;
	int c, rc;

	while ((c = cli_getopt(&cli, argc, argv, "j:qb", longs)) != -1) {
		if (c != OPT_INDEX_ONLY)
			return cli_stop_code(&cli);
		index_only = true;
	}
	rc = cli_operands(&cli, argc, argv, 1, argc);
	if (rc)
		return rc;
	if (cli.json) {
		json_begin(&js, stdout);
		json_object(&js, NULL);
		json_array(&js, "images");
	}
	for (int i = optind; i < argc; i++) {
		int one = verify_one(&cli, argv[i], index_only, &js);

		/* damage is what a caller must hear of first */
		rc = one == CLI_DAMAGED || rc == CLI_DAMAGED ? CLI_DAMAGED : one ? one : rc;
	}
	if (cli.json) {
		json_close(&js);
		json_close(&js);
		json_end(&js);
	}
	return rc;
}

const struct verb verb_verify = {
	.name = "verify",
	.synopsis = "[OPTION…] IMAGE…",
	.summary = "Check every byte of images and list all that is damaged",
	.help = "Prints each damaged chunk with its offset in the image, then each place that uses one: member and\n"
		"offset, and address space and region; then what is still good. Exit code 3 when an image is\n"
		"damaged, 1 when one could not be checked, for want of a base for example.\n\n"
		"      --index-only     check the index, read no chunk\n"
		"  -j, --threads N      threads that decode (default: as many as processors)\n"
		"      --base-path DIR  look for base images there too; may be repeated\n"
		"  -q, --quiet          no list, no progress: only the message that an image is damaged\n"
		"  -b, --bytes          exact sizes\n"
		"      --json           as JSON\n"
		"      --progress MODE  auto, none or bar\n",
	.run = run_verify,
};
