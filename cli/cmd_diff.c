/* SPDX-License-Identifier: Apache-2.0 */
/* thawfs diff: what two images do not have in common. The comparing is imgfmt/diff.c's. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/cli.h"
#include "common/bytes.h"
#include "common/json.h"
#include "common/log.h"
#include "imgfmt/describe.h"
#include "imgfmt/diff.h"

enum { OPT_TIMES = CLI_OPT_OWN, OPT_PAGES };

static const struct option longs[] = {
	{ "ranges", no_argument, NULL, 'r' },
	{ "pages", no_argument, NULL, OPT_PAGES },
	{ "times", no_argument, NULL, OPT_TIMES },
	CLI_LONG_QUIET,
	CLI_LONG_BYTES,
	CLI_LONG_JSON,
	CLI_LONG_BASE_PATH,
	CLI_LONG_PROGRESS,
	CLI_LONG_END,
};

/* what each flag is called, and in which list of the JSON it can be */
static const struct {
	unsigned flag;
	const char *name;
} flag_names[] = {
	{ DIFF_TYPE, "type" },   { DIFF_MODE, "mode" },     { DIFF_OWNER, "owner" },        { DIFF_TIME, "time" },
	{ DIFF_LINKS, "links" }, { DIFF_TARGET, "target" }, { DIFF_DEVICE, "device" },      { DIFF_XATTRS, "xattrs" },
	{ DIFF_SIZE, "size" },   { DIFF_PROT, "prot" },     { DIFF_MAP_FLAGS, "flags" },    { DIFF_PGOFF, "pgoff" },
	{ DIFF_NAME, "name" },   { DIFF_DATA, "data" },     { DIFF_UNKNOWN, "unreadable" },
};

/* where the JSON is: the lists of members and of regions, one after the other */
enum list { LIST_MEMBERS, LIST_REGIONS };

struct diff_cli {
	const struct cli *cli;
	const char *paths[2];
	struct image *img[2];
	struct json js;
	struct progress progress;
	enum list list;
	bool ranges;
	bool in_ranges; /* an entry of the JSON is open, and its list of ranges */
};

/* -- text ------------------------------------------------------------------------------------- */

static const char *verdict(unsigned flags)
{
	return flags & DIFF_ONLY_A ? "only in A  " : flags & DIFF_ONLY_B ? "only in B  " : "differs    ";
}

static void put_flags(const struct cli *cli, unsigned flags, uint64_t bytes, uint64_t unknown)
{
	const char *separator = ": ";
	char text[SIZE_TEXT_EXACT];

	for (size_t i = 0; i < ARRAY_SIZE(flag_names); i++) {
		if (!(flags & flag_names[i].flag))
			continue;
		printf("%s%s", separator, flag_names[i].name);
		if (flag_names[i].flag == DIFF_DATA)
			printf(" (%s)", cli_size_text(cli, bytes, text));
		if (flag_names[i].flag == DIFF_UNKNOWN)
			printf(" (%s)", cli_size_text(cli, unknown, text));
		separator = ", ";
	}
	putchar('\n');
}

static void put_member_text(const struct diff_cli *d, const struct diff_member *m)
{
	fputs(verdict(m->flags), stdout);
	cli_print_name(stdout, *m->path ? m->path : "/", *m->path ? strlen(m->path) : 1);
	put_flags(d->cli, m->flags, m->bytes, m->unknown_bytes);
}

static void put_region_text(const struct diff_cli *d, const struct diff_region *g)
{
	const struct image_region *one = g->a ? g->a : g->b;
	char text[5];

	fputs(verdict(g->flags), stdout);
	cli_print_name(stdout, g->space, g->space_len);
	printf(" %08" PRIx64 "-%08" PRIx64 " %s", g->addr, g->addr + g->len, describe_perms(one, text));
	if (one->name_len) {
		putchar(' ');
		cli_print_name(stdout, one->name, one->name_len);
	}
	put_flags(d->cli, g->flags, g->bytes, g->unknown_bytes);
}

/* -- JSON ------------------------------------------------------------------------------------- */

static void open_entry(struct diff_cli *d, const struct diff_member *m, const struct diff_region *g)
{
	struct json *js = &d->js;

	if (g && d->list == LIST_MEMBERS) {
		json_close(js);
		json_array(js, "regions");
		d->list = LIST_REGIONS;
	}
	json_object_line(js, NULL);
	if (!g) {
		json_string(js, "path", m ? m->path : "");
		return;
	}
	json_bytes(js, "space", g->space, g->space_len);
	json_u64(js, "addr", g->addr);
	json_u64(js, "len", g->len);
	json_format(js, "range", "%08" PRIx64 "-%08" PRIx64, g->addr, g->addr + g->len);
}

/* what the two have in common for members and regions; the entry may have been opened for its ranges */
static void begin_entry(struct diff_cli *d, const struct diff_member *m, const struct diff_region *g, unsigned flags)
{
	struct json *js = &d->js;

	if (d->in_ranges)
		json_close(js);
	else
		open_entry(d, m, g);
	d->in_ranges = false;
	json_string(js, "in", flags & DIFF_ONLY_A ? "a" : flags & DIFF_ONLY_B ? "b" : "both");
	json_array_line(js, "differs");
	for (size_t i = 0; i < ARRAY_SIZE(flag_names); i++) {
		if (flags & flag_names[i].flag)
			json_string(js, NULL, flag_names[i].name);
	}
	json_close(js);
}

static void end_entry(struct diff_cli *d, uint64_t bytes, uint64_t unknown)
{
	json_u64(&d->js, "bytes", bytes);
	json_u64(&d->js, "unreadable_bytes", unknown);
	json_close(&d->js);
}

static void put_side(struct json *js, const char *key, const struct image_region *g)
{
	char text[5];

	if (!g)
		return;
	json_object_line(js, key);
	json_u64(js, "addr", g->addr);
	json_u64(js, "len", g->len);
	json_string(js, "perms", describe_perms(g, text));
	json_u64(js, "flags", g->flags);
	json_u64(js, "pgoff", g->pgoff);
	json_bytes(js, "name", g->name_len ? g->name : "", g->name_len);
	json_close(js);
}

/* -- what the comparison reports -------------------------------------------------------------- */

static int on_member(void *ctx, const struct diff_member *m)
{
	struct diff_cli *d = ctx;

	if (d->cli->json) {
		begin_entry(d, m, NULL, m->flags);
		if (m->a && S_ISREG(m->a->mode))
			json_u64(&d->js, "size_a", m->a->size);
		if (m->b && S_ISREG(m->b->mode))
			json_u64(&d->js, "size_b", m->b->size);
		end_entry(d, m->bytes, m->unknown_bytes);
	} else if (!d->cli->quiet) {
		put_member_text(d, m);
	}
	return 0;
}

static int on_region(void *ctx, const struct diff_region *g)
{
	struct diff_cli *d = ctx;

	if (d->cli->json) {
		begin_entry(d, NULL, g, g->flags);
		put_side(&d->js, "a", g->a);
		put_side(&d->js, "b", g->b);
		end_entry(d, g->bytes, g->unknown_bytes);
	} else if (!d->cli->quiet) {
		put_region_text(d, g);
	}
	return 0;
}

static int on_range(void *ctx, const struct diff_member *m, const struct diff_region *g, uint64_t off, uint64_t len,
		    bool unknown)
{
	struct diff_cli *d = ctx;

	if (d->cli->json) {
		if (!d->in_ranges) {
			open_entry(d, m, g);
			json_array_line(&d->js, "ranges");
			d->in_ranges = true;
		}
		json_object_line(&d->js, NULL);
		json_u64(&d->js, m ? "offset" : "addr", off);
		json_u64(&d->js, "len", len);
		if (unknown)
			json_bool(&d->js, "unreadable", true);
		json_close(&d->js);
		return 0;
	}
	fputs("           ", stdout);
	if (m)
		cli_print_name(stdout, m->path, strlen(m->path));
	else
		cli_print_name(stdout, g->space, g->space_len);
	if (m)
		printf(" at offset %" PRIu64 ": %" PRIu64 " bytes%s\n", off, len, unknown ? ", unreadable" : "");
	else
		printf(" at %08" PRIx64 ": %" PRIu64 " bytes%s\n", off, len, unknown ? ", unreadable" : "");
	return 0;
}

static void on_progress(void *ctx, uint64_t done, uint64_t total)
{
	struct diff_cli *d = ctx;

	progress_update(&d->progress, done, total);
}

/* -- begin and end ---------------------------------------------------------------------------- */

static void begin_json(struct diff_cli *d)
{
	char id[33];

	json_begin(&d->js, stdout);
	json_object(&d->js, NULL);
	json_string(&d->js, "a", d->paths[0]);
	json_string(&d->js, "b", d->paths[1]);
	image_id_text(image_info(d->img[0])->id, id);
	json_string(&d->js, "id_a", id);
	image_id_text(image_info(d->img[1])->id, id);
	json_string(&d->js, "id_b", id);
	json_array(&d->js, "members");
}

static void end_json(struct diff_cli *d, const struct diff_result *res, int err)
{
	struct json *js = &d->js;

	json_close(js);
	if (d->list == LIST_MEMBERS) {
		json_array(js, "regions");
		json_close(js);
	}
	json_u64(js, "n_members", res->n_members);
	json_u64(js, "n_members_differ", res->n_members_differ);
	json_u64(js, "n_only_a", res->n_only_a);
	json_u64(js, "n_only_b", res->n_only_b);
	json_u64(js, "n_regions_differ", res->n_regions_differ);
	json_u64(js, "n_regions_only_a", res->n_regions_only_a);
	json_u64(js, "n_regions_only_b", res->n_regions_only_b);
	json_u64(js, "member_bytes", res->member_bytes);
	json_u64(js, "region_bytes", res->region_bytes);
	json_u64(js, "unreadable_bytes", res->unknown_bytes);
	json_u64(js, "decoded_bytes", res->decoded_bytes);
	json_bool(js, "same", !err && diff_same(res));
	json_bool(js, "complete", !err);
	json_close(js);
	json_end(js);
}

static void end_text(const struct diff_cli *d, const struct diff_result *res)
{
	char text[SIZE_TEXT_EXACT];

	if (diff_same(res)) {
		printf("same: %" PRIu64 " member%s\n", res->n_members, cli_plural(res->n_members));
		return;
	}
	printf("members: %" PRIu64 " differ, %" PRIu64 " only in A, %" PRIu64 " only in B; %s", res->n_members_differ,
	       res->n_only_a, res->n_only_b, cli_size_text(d->cli, res->member_bytes, text));
	if (image_info(d->img[0])->n_regions || image_info(d->img[1])->n_regions)
		printf(". regions: %" PRIu64 " differ, %" PRIu64 " only in A, %" PRIu64 " only in B; %s",
		       res->n_regions_differ, res->n_regions_only_a, res->n_regions_only_b,
		       cli_size_text(d->cli, res->region_bytes, text));
	putchar('\n');
}

/* Return: enum cli_exit */
static int do_diff(struct diff_cli *d, struct diff_opts *opts)
{
	struct diff_result res;
	bool list = d->cli->json || (!d->cli->quiet && d->ranges);
	int err;

	opts->member = on_member;
	opts->region = on_region;
	opts->range = list ? on_range : NULL;
	opts->progress = on_progress;
	opts->ctx = d;
	if (d->cli->json)
		begin_json(d);
	progress_start(&d->progress, d->cli->quiet ? PROGRESS_NONE : d->cli->progress, "comparing");
	err = image_diff(d->img[0], d->img[1], opts, &res);
	progress_end(&d->progress, err == 0);
	if (d->cli->json)
		end_json(d, &res, err);
	else if (!err && !d->cli->quiet)
		end_text(d, &res);
	fflush(stdout); /* before messages, where both go to the same place */
	if (err)
		log_error("cannot compare '%s' and '%s': %s", d->paths[0], d->paths[1],
			  err == -EBADMSG ? "an index is damaged" : strerror(-err));
	else if (res.unknown_bytes)
		log_error("cannot compare all of '%s' and '%s': %" PRIu64 " bytes cannot be read", d->paths[0],
			  d->paths[1], res.unknown_bytes);
	if (err || res.unknown_bytes)
		return cli_exit_code(err ? err : res.unknown_error);
	return diff_same(&res) ? CLI_GOOD : CLI_FAILED;
}

static int run_diff(const struct verb *verb, int argc, char **argv)
{
	struct cli cli = { .verb = verb };
	struct diff_cli d = { .cli = &cli };
	struct diff_opts opts = { 0 };
	int c, rc;

	while ((c = cli_getopt(&cli, argc, argv, "rqb", longs)) != -1) {
		if (c == 'r')
			d.ranges = true;
		else if (c == OPT_PAGES)
			opts.pages = true;
		else if (c == OPT_TIMES)
			opts.times = true;
		else
			return cli_stop_code(&cli);
	}
	rc = cli_operands(&cli, argc, argv, 2, 2);
	if (rc)
		return rc;
	for (int i = 0; i < 2 && !rc; i++) {
		d.paths[i] = argv[optind + i];
		rc = cli_exit_code(cli_open_image(&cli, d.paths[i], &d.img[i]));
	}
	if (!rc)
		rc = do_diff(&d, &opts);
	image_close(d.img[0]);
	image_close(d.img[1]);
	return rc;
}

const struct verb verb_diff = {
	.name = "diff",
	.synopsis = "[OPTION…] A B",
	.summary = "Show what differs between two images",
	.help = "Members are matched by path, address spaces by name, regions by address. Chunks are compared by\n"
		"checksum, so the bytes given are those of whole chunks where both images are cut alike. Modes,\n"
		"owners, links and xattrs are compared too, times only if asked for.\n"
		"Exit code 0: the same; 1: they differ, or it failed, which a message says; 3: damaged.\n\n"
		"  -r, --ranges         list the ranges of bytes too\n"
		"      --pages          decode chunks that differ and tell which pages of 4096 bytes do\n"
		"      --times          compare modification times too\n"
		"      --base-path DIR  look for base images there too; may be repeated\n"
		"  -q, --quiet          print nothing, only give the exit code\n"
		"  -b, --bytes          exact sizes\n"
		"      --json           as JSON, with ranges\n"
		"      --progress MODE  auto, none or bar\n",
	.run = run_diff,
};
