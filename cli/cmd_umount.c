/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/verbs.h"
#include "common/log.h"
#include "fs/mountpoint.h"

#define MAX_HOLDERS 20

/*
 * The mount point as mountinfo has it. Not by realpath() of the whole, which would ask the daemon: only of the
 * directory that it is in.
 */
static int absolute(const char *path, char ret[PATH_MAX])
{
	char copy[PATH_MAX], dir[PATH_MAX];
	size_t n = strlen(path);
	char *slash, *last;

	while (n > 1 && path[n - 1] == '/')
		n--;
	if (n == 0 || n >= sizeof(copy))
		return -ENOENT;
	memcpy(copy, path, n);
	copy[n] = '\0';
	slash = strrchr(copy, '/');
	last = slash ? slash + 1 : copy;
	if (!*last || !strcmp(last, ".") || !strcmp(last, ".."))
		return realpath(copy, ret) ? 0 : -errno;
	if (slash)
		*slash = '\0';
	if (!realpath(!slash ? "." : slash == copy ? "/" : copy, dir))
		return -errno;
	n = (size_t)snprintf(ret, PATH_MAX, "%s/%s", strcmp(dir, "/") != 0 ? dir : "", last);
	return n < PATH_MAX ? 0 : -ENAMETOOLONG;
}

static int unmount(const char *path, bool lazy)
{
	struct mountpoint m;
	char where[PATH_MAX];
	int err = absolute(path, where);

	if (!err)
		err = mountpoint_find(where, &m);
	/* perhaps the last part is a link */
	if (err == -ENOENT && realpath(path, where))
		err = mountpoint_find(where, &m);
	if (err || !m.is_thawfs) {
		log_error("cannot unmount '%s': %s", path,
			  err && err != -ENOENT ? strerror(-err) : "no thawfs is mounted there");
		return CLI_FAILED;
	}
	err = mountpoint_unmount(where, lazy);
	if (!err)
		return CLI_GOOD;
	log_error("cannot unmount '%s': %s", path, strerror(-err));
	if (err == -EBUSY) {
		unsigned n = mountpoint_holders(where, MAX_HOLDERS, stderr);

		if (n > MAX_HOLDERS)
			fprintf(stderr, "  and %u more\n", n - MAX_HOLDERS);
		fprintf(stderr, "  (thawfs umount -z detaches it now and ends it when the last of them is gone)\n");
	}
	return CLI_FAILED;
}

static int run(const struct verb *verb, int argc, char **argv)
{
	static const struct option longs[] = { { "lazy", no_argument, NULL, 'z' }, CLI_LONG_END };
	struct cli cli = { .verb = verb };
	bool lazy = false;
	int opt, code;

	while ((opt = cli_getopt(&cli, argc, argv, "z", longs)) >= 0) {
		if (opt == '?')
			return cli_stop_code(&cli);
		lazy |= opt == 'z';
	}
	code = cli_operands(&cli, argc, argv, 1, 1);
	return code ? code : unmount(argv[optind], lazy);
}

const struct verb verb_umount = {
	.name = "umount",
	.synopsis = "[-z] DIRECTORY",
	.summary = "End a mount",
	.help = "Says who holds it when it is in use.\n"
		"\n"
		"  -z, --lazy   detach it now; it ends when its last user is gone\n",
	.run = run,
};
