/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Serving the memory of processes in a way that outlives a crash: a page server (pageserver.h) in a process of its own,
 * this process, which starts another one when it dies, and a third, which holds the descriptors and takes this one's
 * place when it dies. All three share one table of descriptors, so no process is ever left with zeros for what it
 * misses: it waits until somebody serves again.
 *
 * The calling process must have one thread, and only what it needs open: the others have that too, until the end.
 */
#ifndef THAW_RESTORE_KEEPER_H
#define THAW_RESTORE_KEEPER_H

#include <poll.h>
#include <stddef.h>

#include "restore/roster.h"

#define KEEPER_FDS 128

/* where processes to be served come from. @ctx is memory shared with forked processes: whoever takes over goes on with
 * it */
struct keeper_events {
	/* fill in at most KEEPER_FDS descriptors to wait for. Return: how many */
	size_t (*watch)(void *ctx, struct pollfd *ret_fds);
	/* some of them are ready: roster_add(), keeper_fill(). Return: 0; -errno (logged): stop, no process was begun
	 */
	int (*ready)(void *ctx, struct roster *roster, const struct pollfd *fds, size_t n_fds);
};

/* all processes were added, and run: fill in the background */
void keeper_fill(struct roster *roster);

/*
 * keeper_run - serve until the memory of all processes is there
 * @img, @plain:  as pageserver_new()
 * @threads:  that fill; 0: one per processor
 * @roster:   of roster_new(); lent
 * A signal that asks to end (SIGINT, SIGTERM, SIGHUP) only begins the filling: to end with something missing would
 * be to end the processes. When server after server dies without placing anything, what is missing is poisoned.
 * Return: 0; -ECANCELED (asked to end, and there was no process yet); -EIO (given up, logged); what ready() returned;
 * -errno (logged)
 */
int keeper_run(struct image *img, const struct plain *plain, unsigned threads, struct roster *roster,
	       const struct keeper_events *events, void *ctx);

#endif
