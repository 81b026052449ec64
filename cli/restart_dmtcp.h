/* SPDX-License-Identifier: Apache-2.0 */
/* Restarting what DMTCP saved: by the user's own dmtcp_restart, from files or from images that are mounted for it. */
#ifndef THAW_CLI_RESTART_DMTCP_H
#define THAW_CLI_RESTART_DMTCP_H

#include <stdbool.h>

#include "cli/cli.h"

/* mapped and read when touched; by size: files of RESTART_LAZY_MIN and more on a mount of thawfs */
enum restart_lazily { RESTART_BY_SIZE, RESTART_EAGERLY, RESTART_LAZILY };
#define RESTART_LAZY_MIN (64ull << 20) /* less than that is read at once as fast */

struct restart_dmtcp {
	const char *prefix;    /* where DMTCP is; NULL: in $PATH */
	const char *ckptdir;   /* for later checkpoints; NULL: the file's own directory, else the current one */
	const char *restarter; /* our mtcp_restart */
	enum restart_lazily lazily;
	bool record;
	char **options; /* for dmtcp_restart, ended by NULL */
};

enum restart_maker { MADE_BY_ITSELF, MADE_BY_DMTCP, MADE_BY_DMTCP_GZIP };

/*
 * restart_examine - what FILE, IMAGE/MEMBER or IMAGE holds
 * @ret_member:  where "/MEMBER" begins in @path; NULL if it is a file
 * @ret_all:     @path is an image: all of DMTCP's that it holds are meant
 * Return: 0; -EBADMSG, -errno; logged
 */
int restart_examine(const struct cli *cli, const char *path, const char **ret_member, bool *ret_all,
		    enum restart_maker *ret);

/* DMTCP's restore buffer and marks are in the first two pages of a file */
#define RESTART_HEAD_BYTES 8192u

/*
 * restart_dmtcp - restart processes that DMTCP saved together
 * Does not return when nothing had to be mounted; else it waits for dmtcp_restart, which becomes the first of the
 * processes if it can, and ends the mounts when the last process that uses them has ended; if dmtcp_restart ends
 * before that, in the background.
 * Return: an exit code: dmtcp_restart's own, 128 + the signal that ended it, or enum cli_exit
 */
int restart_dmtcp(const struct cli *cli, const struct restart_dmtcp *how, char **files, int n_files);

#endif
