/* SPDX-License-Identifier: Apache-2.0 */
/* The verbs, in the order of the help. */
#ifndef THAW_CLI_VERBS_H
#define THAW_CLI_VERBS_H

#include "cli/cli.h"

#define CLI_VERBS(X) \
	X(pack)      \
	X(unpack)    \
	X(ls)        \
	X(du)        \
	X(info)      \
	X(maps)      \
	X(diff)      \
	X(verify)    \
	X(mount)     \
	X(umount)    \
	X(snap)      \
	X(series)    \
	X(prune)     \
	X(clean)     \
	X(restart)   \
	X(gpu)       \
	X(lazypages) \
	X(help)

#define X(name) extern const struct verb verb_##name;
CLI_VERBS(X)
#undef X

#endif
