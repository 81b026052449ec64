/* SPDX-License-Identifier: Apache-2.0 */
/* thawfs unpack: options only; the work is imgfmt/unpack.c's. */
#include <errno.h>
#include <inttypes.h>

#include "cli/cli.h"
#include "common/json.h"
#include "common/log.h"
#include "imgfmt/unpack.h"

enum { OPT_NO_FSYNC = CLI_OPT_OWN };

static const struct option longs[] = {
	{ "member", required_argument, NULL, 'm' },
	{ "force", no_argument, NULL, 'f' },
	{ "no-fsync", no_argument, NULL, OPT_NO_FSYNC },
	CLI_LONG_THREADS,
	CLI_LONG_QUIET,
	CLI_LONG_BYTES,
	CLI_LONG_JSON,
	CLI_LONG_BASE_PATH,
	CLI_LONG_PROGRESS,
	CLI_LONG_END,
};

static void print_result(const struct cli *cli, const char *dest, const struct unpack_result *res)
{
	char text[SIZE_TEXT_EXACT];
	struct json js;

	if (!cli->json) {
		printf("%s: %" PRIu64 " file%s, %s", dest, res->n_files, cli_plural(res->n_files),
		       cli_size_text(cli, res->n_bytes, text));
		if (res->n_failed)
			printf("; %" PRIu64 " could not be unpacked", res->n_failed);
		putchar('\n');
		return;
	}
	json_begin(&js, stdout);
	json_object(&js, NULL);
	json_string(&js, "dest", dest);
	json_u64(&js, "n_files", res->n_files);
	json_u64(&js, "logical_bytes", res->n_bytes);
	json_u64(&js, "n_failed", res->n_failed);
	json_close(&js);
	json_end(&js);
}

static int do_unpack(const struct cli *cli, const char *path, const char *dest, struct unpack_opts *opts)
{
	struct unpack_result res;
	struct progress progress;
	struct image *img;
	int err = cli_open_image(cli, path, &img);

	if (err)
		return cli_exit_code(err);
	cli_catch_signals();
	progress_start(&progress, cli->quiet ? PROGRESS_NONE : cli->progress, "unpacking");
	opts->threads = cli->threads;
	opts->progress = progress_update;
	opts->ctx = &progress;
	opts->stop = &cli_stop;
	err = image_unpack(img, dest, opts, &res);
	progress_end(&progress, err == 0);
	image_close(img);
	if (err == -EINTR)
		log_error("cannot unpack '%s': interrupted", path);
	/* what failed before anything was made has been said */
	else if (cli->json || (!cli->quiet && (!err || res.n_files || res.n_failed)))
		print_result(cli, dest, &res);
	return cli_exit_code(err);
}

static int run_unpack(const struct verb *verb, int argc, char **argv)
{
	struct cli cli = { .verb = verb };
	struct unpack_opts opts = { 0 };
	int c, rc;

	while ((c = cli_getopt(&cli, argc, argv, "m:fj:qb", longs)) != -1) {
		if (c == 'm')
			opts.member = optarg;
		else if (c == 'f')
			opts.force = true;
		else if (c == OPT_NO_FSYNC)
			opts.no_fsync = true;
		else
			return cli_stop_code(&cli);
	}
	rc = cli_operands(&cli, argc, argv, 2, 2);
	return rc ? rc : do_unpack(&cli, argv[optind], argv[optind + 1], &opts);
}

const struct verb verb_unpack = {
	.name = "unpack",
	.synopsis = "[OPTION…] IMAGE DEST",
	.summary = "Take an image apart again",
	.help = "DEST becomes the image's root directory and is made if missing. Files are sparse where the\n"
		"image has holes. A file with a damaged chunk is left out and named; the others are unpacked.\n\n"
		"  -m, --member PATH    only this file or directory, to where cp would put it\n"
		"  -f, --force          replace files that are there\n"
		"  -j, --threads N      threads that decode and write (default: as many as processors)\n"
		"      --base-path DIR  look for base images there too; may be repeated\n"
		"  -q, --quiet          no progress, no summary\n"
		"  -b, --bytes          exact sizes in the summary\n"
		"      --json           the summary as JSON\n"
		"      --progress MODE  auto, none or bar\n"
		"      --no-fsync       do not wait for the disk: for tests and benchmarks\n",
	.run = run_unpack,
};
