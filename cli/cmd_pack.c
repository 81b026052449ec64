/* SPDX-License-Identifier: Apache-2.0 */
/* thawfs pack: options and the line at the end; the work is imgfmt/pack.c's. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/pack_options.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/json.h"
#include "common/log.h"
#include "imgfmt/flatten.h"
#include "imgfmt/format.h"
#include "imgfmt/pack.h"

enum {
	OPT_RAW = CLI_OPT_OWN,
	OPT_CODEC,
	OPT_FAST,
	OPT_CHUNK,
	OPT_BASE,
	OPT_FLATTEN,
	OPT_GUNZIP,
	OPT_VERIFY,
	OPT_NO_FILTER,
	OPT_NO_FSYNC,
	OPT_CREATOR,
	OPT_HOST,
	OPT_TIME,
};

static const struct option longs[] = {
	{ "output", required_argument, NULL, 'o' },
	{ "level", required_argument, NULL, 'z' },
	{ "fast", optional_argument, NULL, OPT_FAST },
	{ "raw", no_argument, NULL, OPT_RAW },
	{ "codec", required_argument, NULL, OPT_CODEC },
	{ "chunk", required_argument, NULL, OPT_CHUNK },
	{ "base", required_argument, NULL, OPT_BASE },
	CLI_LONG_BASE_PATH,
	{ "flatten", no_argument, NULL, OPT_FLATTEN },
	{ "gunzip", no_argument, NULL, OPT_GUNZIP },
	{ "verify", no_argument, NULL, OPT_VERIFY },
	{ "no-filter", no_argument, NULL, OPT_NO_FILTER },
	{ "no-fsync", no_argument, NULL, OPT_NO_FSYNC },
	{ "creator", no_argument, NULL, OPT_CREATOR },
	{ "host", no_argument, NULL, OPT_HOST },
	{ "time", no_argument, NULL, OPT_TIME },
	CLI_LONG_THREADS,
	CLI_LONG_QUIET,
	CLI_LONG_BYTES,
	CLI_LONG_JSON,
	CLI_LONG_PROGRESS,
	CLI_LONG_END,
};

struct pack_args {
	struct pack_opts opts;
	const char *bases[CLI_BASES_MAX + 1];
	size_t n_bases;
	bool flatten, raw_given, codec_given;
	bool shaped; /* an option says how the data is to be stored */
};

static int set_fast(struct cli *cli, struct pack_args *args, const char *text)
{
	long n = 1;

	if (text && cli_number(text, 1, -PACK_LEVEL_MIN, &n))
		return cli_usage(cli, "--fast takes a number from 1 to %d, not '%s'", -PACK_LEVEL_MIN, text);
	args->opts.level = (int)-n;
	return 0;
}

static int set_chunk(struct cli *cli, struct pack_args *args, const char *text)
{
	uint64_t size;

	if (cli_size(text, &size) || size < THAW_CHUNK_MIN || size > THAW_CHUNK_MAX || (size & (size - 1)))
		return cli_usage(cli, "--chunk takes a power of two from 64K to 4M, not '%s'", text);
	args->opts.chunk_size = (uint32_t)size;
	return 0;
}

/* an option with a value. Return: 0 or CLI_USAGE */
static int value_option(struct cli *cli, struct pack_args *args, int c)
{
	switch (c) {
	case 'o':
		args->opts.out = optarg;
		return 0;
	case 'z':
		return pack_set_level(cli, &args->opts, optarg);
	case OPT_FAST:
		return set_fast(cli, args, optarg);
	case OPT_CODEC:
		args->codec_given = true;
		return pack_set_codec(cli, &args->opts, optarg);
	case OPT_CHUNK:
		return set_chunk(cli, args, optarg);
	default: /* OPT_BASE */
		if (args->n_bases == CLI_BASES_MAX)
			return cli_usage(cli, "--base may be given %d times", CLI_BASES_MAX);
		args->bases[args->n_bases++] = optarg;
		args->opts.bases = args->bases;
		return 0;
	}
}

static int one_option(struct cli *cli, struct pack_args *args, int c)
{
	args->shaped |= c != 'o' && c != OPT_FLATTEN && c != OPT_VERIFY && c != OPT_NO_FSYNC && c != OPT_BASE;
	switch (c) {
	case OPT_RAW:
		args->raw_given = true;
		return 0;
	case OPT_FLATTEN:
		args->flatten = true;
		return 0;
	case OPT_GUNZIP:
		args->opts.gunzip = true;
		return 0;
	case OPT_VERIFY:
		args->opts.verify = true;
		return 0;
	case OPT_NO_FILTER:
		args->opts.no_filter = true;
		return 0;
	case OPT_NO_FSYNC:
		args->opts.no_fsync = true;
		return 0;
	case OPT_CREATOR:
		args->opts.add_creator = true;
		return 0;
	case OPT_HOST:
		args->opts.add_host = true;
		return 0;
	case OPT_TIME:
		args->opts.add_time = true;
		return 0;
	default:
		return value_option(cli, args, c);
	}
}

/* what SRC is called, with .thaw, in the current directory. @ret: the caller frees. Return: enum cli_exit */
static int default_output(const struct cli *cli, const char *src, char **ret)
{
	_cleanup_free_ char *real = realpath(src, NULL);
	const char *base;

	if (!real) {
		log_error("cannot read '%s': %s", src, strerror(errno));
		return CLI_FAILED;
	}
	base = strrchr(real, '/') + 1;
	if (!*base) {
		cli_usage(cli, "'%s' has no name to call the image by: give -o", src);
		return CLI_USAGE;
	}
	*ret = malloc(strlen(base) + sizeof(".thaw"));
	if (!*ret)
		return CLI_FAILED;
	strcpy(stpcpy(*ret, base), ".thaw");
	return CLI_GOOD;
}

static void print_summary(const struct cli *cli, const struct pack_args *args, const struct pack_result *res,
			  double seconds)
{
	uint64_t data = res->logical_bytes - res->hole_bytes;
	char a[SIZE_TEXT_EXACT], b[SIZE_TEXT_EXACT], c[SIZE_TEXT_EXACT], d[SIZE_TEXT_EXACT], e[SIZE_TEXT_EXACT];
	FILE *out = strcmp(args->opts.out, "-") ? stdout : stderr;

	fprintf(out, "%s: %s, %s of it holes", args->opts.out, cli_size_text(cli, res->logical_bytes, a),
		cli_size_text(cli, res->hole_bytes, b));
	if (res->dup_bytes)
		fprintf(out, ", %s shared", cli_size_text(cli, res->dup_bytes, c));
	if (res->base_bytes)
		fprintf(out, ", %s in bases", cli_size_text(cli, res->base_bytes, d));
	fprintf(out, "; image %s", cli_size_text(cli, res->image_bytes, e));
	if (data)
		fprintf(out, ", ratio %.2f without holes", (double)data / (double)res->image_bytes);
	fprintf(out, "; %.2f s\n", seconds);
}

static void print_json(const struct pack_args *args, const struct pack_result *res, double seconds)
{
	char id[33];
	struct json js;

	image_id_text(res->id, id);
	json_begin(&js, strcmp(args->opts.out, "-") ? stdout : stderr);
	json_object(&js, NULL);
	json_string(&js, "image", args->opts.out);
	json_string(&js, "id", id);
	pack_json(&js, res);
	json_double(&js, "seconds", seconds, 3);
	json_close(&js);
	json_end(&js);
}

static int flatten(const struct cli *cli, const struct pack_opts *o, struct pack_result *ret)
{
	const struct flatten_opts opts = {
		.out = o->out,
		.threads = o->threads,
		.verify = o->verify,
		.no_fsync = o->no_fsync,
		.progress = o->progress,
		.progress_ctx = o->progress_ctx,
		.stop = o->stop,
	};
	struct image *img;
	int err = cli_open_image(cli, o->src, &img);

	if (err)
		return err;
	err = image_flatten(img, &opts, ret);
	image_close(img);
	return err;
}

static int do_pack(const struct cli *cli, const struct pack_args *args)
{
	struct pack_opts opts = args->opts;
	struct pack_result res;
	struct progress progress;
	double start = clock_seconds();
	int err;

	cli_catch_signals();
	progress_start(&progress, cli->quiet ? PROGRESS_NONE : cli->progress, args->flatten ? "flattening" : "packing");
	opts.threads = cli->threads;
	opts.base_path = cli->n_base_path ? cli->base_path : NULL;
	opts.progress = progress_update;
	opts.progress_ctx = &progress;
	opts.stop = &cli_stop;
	err = args->flatten ? flatten(cli, &opts, &res) : pack(&opts, &res);
	progress_end(&progress, err == 0);
	if (err == -EINTR)
		log_error("cannot pack '%s': interrupted", args->opts.src);
	if (err)
		return cli_exit_code(err);
	if (cli->json)
		print_json(args, &res, clock_seconds() - start);
	else if (!cli->quiet)
		print_summary(cli, args, &res, clock_seconds() - start);
	return CLI_GOOD;
}

/* options that contradict each other. Return: 0 or CLI_USAGE */
static int check_options(const struct cli *cli, const struct pack_args *args)
{
	if (args->opts.out && !*args->opts.out)
		return cli_usage(cli, "-o takes the name of the image, or -");
	if (pack_check_level(cli, &args->opts))
		return CLI_USAGE;
	if (args->opts.verify && !strcmp(args->opts.out ? args->opts.out : "", "-"))
		return cli_usage(cli, "what goes to standard output cannot be verified: leave out --verify, or -o -");
	if (args->flatten && args->n_bases)
		return cli_usage(cli, "--flatten and --base exclude each other");
	if (args->flatten && args->shaped)
		return cli_usage(cli, "--flatten copies what is stored as it is: no options that say how to store");
	if (args->flatten && !args->opts.out)
		return cli_usage(cli, "--flatten needs -o: the image to make, which may be SRC itself");
	return 0;
}

static int run_pack(const struct verb *verb, int argc, char **argv)
{
	struct cli cli = { .verb = verb };
	struct pack_args args = { 0 };
	_cleanup_free_ char *out = NULL;
	int c, rc;

	while ((c = cli_getopt(&cli, argc, argv, "o:z:j:qb", longs)) != -1) {
		if (c == '?')
			return cli_stop_code(&cli);
		rc = one_option(&cli, &args, c);
		if (rc)
			return rc;
	}
	rc = cli_operands(&cli, argc, argv, 1, 1);
	if (!rc && args.raw_given) {
		if (args.codec_given && args.opts.codec != PACK_RAW)
			return cli_usage(&cli, "--raw and another --codec exclude each other");
		args.opts.codec = PACK_RAW;
	}
	if (!rc)
		rc = check_options(&cli, &args);
	if (rc)
		return rc;
	args.opts.src = argv[optind];
	if (!args.opts.out) {
		rc = default_output(&cli, args.opts.src, &out);
		if (rc)
			return rc;
		args.opts.out = out;
	}
	if (!strcmp(args.opts.out, "-") && isatty(STDOUT_FILENO))
		return cli_usage(&cli, "an image is not for a terminal: give -o, or send the output elsewhere");
	return do_pack(&cli, &args);
}

const struct verb verb_pack = {
	.name = "pack",
	.synopsis = "[OPTION…] SRC",
	.summary = "Pack a file or directory into an image",
	.help = "  -o, --output OUT     the image; '-' is standard output (default: SRC's name with .thaw, here)\n"
		"  -z, --level LEVEL    zstd level 1 to 19, or -1 to -7 for the fast ones (default 1)\n"
		"      --fast[=N]       the same as -z -N (default 1)\n"
		"      --raw            store everything uncompressed\n"
		"      --codec CODEC    zstd, raw, or lz4: larger, decodes twice as fast (levels 1 to 12, default 3)\n"
		"      --no-filter      never shuffle the bytes of numeric data\n"
		"      --chunk SIZE     unit of compression, 64K to 4M (default 256K)\n"
		"      --base IMAGE     do not store what IMAGE has; it is then needed to read; may be repeated\n"
		"      --base-path DIR  look for bases of bases there too; may be repeated\n"
		"      --flatten        SRC is an image: make OUT from it, as it is but with what is in its bases\n"
		"      --gunzip         store gzip DMTCP images uncompressed, so that they get views and holes\n"
		"      --verify         read the image again and compare before it gets its name\n"
		"      --creator, --host, --time   note program, host name, time of packing in the image\n"
		"  -j, --threads N      threads that compress (default: as many as processors)\n"
		"  -q, --quiet          no progress, no summary\n"
		"  -b, --bytes          exact sizes in the summary\n"
		"      --json           the summary as JSON\n"
		"      --progress MODE  auto, none or bar\n"
		"      --no-fsync       do not wait for the disk: for tests and benchmarks\n"
		"\nThe source must not change meanwhile: a file whose size or time changes fails the pack, stores\n"
		"through a shared mapping are not noticed.\n",
	.run = run_pack,
};
