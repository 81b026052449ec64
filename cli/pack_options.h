/* SPDX-License-Identifier: Apache-2.0 */
/* What the verbs that make images share: how data is stored, and what came of it. */
#ifndef THAW_CLI_PACK_OPTIONS_H
#define THAW_CLI_PACK_OPTIONS_H

#include "cli/cli.h"
#include "common/json.h"
#include "imgfmt/pack.h"

#define PACK_LEVEL_MIN (-7)
#define PACK_LEVEL_MAX 19

/* the values of -z and --codec, and whether they go together. Return: 0, or CLI_USAGE after a message */
int pack_set_level(const struct cli *cli, struct pack_opts *opts, const char *text);
int pack_set_codec(const struct cli *cli, struct pack_opts *opts, const char *text);
int pack_check_level(const struct cli *cli, const struct pack_opts *opts);

/* sizes and counts, in the object that is open */
void pack_json(struct json *js, const struct pack_result *res);

#endif
