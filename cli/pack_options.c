/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "cli/pack_options.h"

#define LZ4_LEVEL_MAX 12

int pack_set_level(const struct cli *cli, struct pack_opts *opts, const char *text)
{
	long level;

	if (cli_number(text, PACK_LEVEL_MIN, PACK_LEVEL_MAX, &level) || level == 0)
		return cli_usage(cli, "-z takes a level from 1 to %d, or from -1 to %d for the fast ones, not '%s'",
				 PACK_LEVEL_MAX, PACK_LEVEL_MIN, text);
	opts->level = (int)level;
	return 0;
}

int pack_set_codec(const struct cli *cli, struct pack_opts *opts, const char *text)
{
	if (!strcmp(text, "zstd"))
		opts->codec = PACK_ZSTD;
	else if (!strcmp(text, "lz4"))
		opts->codec = PACK_LZ4;
	else if (!strcmp(text, "raw"))
		opts->codec = PACK_RAW;
	else
		return cli_usage(cli, "--codec takes zstd, lz4 or raw, not '%s'", text);
	return 0;
}

/* a level of 0 was not given: -z takes none */
int pack_check_level(const struct cli *cli, const struct pack_opts *opts)
{
	if (opts->level && opts->codec == PACK_RAW)
		return cli_usage(cli, "--codec=raw has no compression level");
	if (opts->codec == PACK_LZ4 && (opts->level < 0 || opts->level > LZ4_LEVEL_MAX))
		return cli_usage(cli, "--codec=lz4 takes levels from 1 to %d", LZ4_LEVEL_MAX);
	return 0;
}

void pack_json(struct json *js, const struct pack_result *res)
{
	json_u64(js, "logical_bytes", res->logical_bytes);
	json_u64(js, "hole_bytes", res->hole_bytes);
	json_u64(js, "dup_bytes", res->dup_bytes);
	json_u64(js, "base_bytes", res->base_bytes);
	json_u64(js, "stored_bytes", res->stored_bytes);
	json_u64(js, "image_bytes", res->image_bytes);
	json_u64(js, "n_files", res->n_files);
	json_u64(js, "n_chunks", res->n_chunks);
}
