/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The server's side of 'criu restore --lazy-pages': a socket to which CRIU sends the processes whose memory it leaves
 * out, and a keeper (keeper.h) that serves them.
 */
#ifndef THAW_RESTORE_CRIU_LAZY_H
#define THAW_RESTORE_CRIU_LAZY_H

#include "restore/roster.h"

struct criu_lazy_opts {
	struct image *img;
	const char *dir;           /* images directory inside the image; "" for its root */
	const struct plain *plain; /* or, in place of both, a directory that is not packed */
	const char *work;          /* the socket is made there */
	unsigned threads;          /* that fill; 0: one per processor */
	/* called once when the socket is there */
	void (*listening)(void *ctx);
	void *ctx;
};

#define CRIU_LAZY_SOCKET "lazy-pages.socket"

/*
 * criu_lazy_run - serve one restore, until all memory is there
 * The calling process must have one thread. Only a restore of a process that the image knows succeeds: else the
 * connection is closed before it ends, on which CRIU gives up.
 * @ret_counts: what was served, also on failure
 * Return: 0, -ECANCELED (asked to end before a restore began), -EADDRINUSE (somebody serves there), -errno; all logged
 */
int criu_lazy_run(const struct criu_lazy_opts *opts, struct pageserver_stats *ret_counts);

#endif
