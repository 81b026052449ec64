/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/verbs.h"

#include <string.h>

#define X(name) &verb_##name,
const struct verb *const cli_verbs[] = { CLI_VERBS(X) NULL };
#undef X

const struct verb *cli_find_verb(const char *name)
{
	for (size_t i = 0; cli_verbs[i]; i++) {
		if (!strcmp(cli_verbs[i]->name, name))
			return cli_verbs[i];
	}
	return NULL;
}
