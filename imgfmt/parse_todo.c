/* SPDX-License-Identifier: Apache-2.0 */
/* Parsers and checks that are not written yet: everything is plain bytes. Goes away function by function. */
#include "imgfmt/parse.h"

#include <errno.h>
#include <stdio.h>

bool parse_criu_detect(const struct parse_dir *dir)
{
	(void)dir;
	return false;
}

int parse_criu(struct layout *lay, const struct parse_dir *dir, parse_note_fn *note, void *note_ctx)
{
	(void)dir, (void)note, (void)note_ctx;
	snprintf(lay->error, sizeof(lay->error), "not understood yet");
	return -EBADMSG;
}

