/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The page server: fills missing memory of other processes from address spaces of an image, through their
 * userfaultfds. What is touched comes first; once pageserver_fill() allowed it, the rest follows in the background
 * in the order of addresses. Holes of the image are zero pages, given out on demand only. A page that cannot be had
 * (damaged, absent, unreadable) is poisoned, so that whoever touches it dies by SIGBUS; where the kernel has no
 * UFFDIO_POISON (before Linux 6.6) the process is killed. It never becomes zeros.
 *
 * Descriptors must be registered in MISSING mode with the events FORK, REMAP, REMOVE and UNMAP switched on, or the
 * process must not do these things. Memory: one chunk per thread, and the tables. A process that serves itself must
 * not call fork(3), which holds locks of malloc() until the event is read. If the server dies, and no copy of a
 * descriptor is kept elsewhere, missing pages are zeros: keeper.h is what prevents that, with a roster (roster.h) that
 * outlives the server.
 *
 * Functions may be called by any thread, pageserver_free() by one while no other is in a call.
 */
#ifndef THAW_RESTORE_PAGESERVER_H
#define THAW_RESTORE_PAGESERVER_H

#include <stdint.h>
#include <sys/types.h>

#include "imgfmt/image.h"

struct pageserver;
struct plain;
struct roster;

#define PAGESERVER_TASKS 4096u /* processes, with their forked children */

/*
 * pageserver_new - start the threads: @threads that fill (0: one per processor), one for demands, one for events
 * @img:     where memory comes from, or
 * @plain:   a directory that is not packed (plain.h); the other is NULL
 * @roster:  go on where the server before stopped, which must be gone with all its threads; lent. NULL: nobody will
 *           take over
 * Return: 0, -ENOMEM, -errno
 */
int pageserver_new(struct image *img, const struct plain *plain, unsigned threads, struct roster *roster,
		   struct pageserver **ret);

/* ends the threads and closes all descriptors: what is still missing reads as zeros, so wait before */
void pageserver_free(struct pageserver *ps);

/* addresses [addr, addr + len) of the process have what the space has at @src; whole pages */
struct pageserver_range {
	uint64_t addr, len, src;
	uint64_t on_demand; /* 1: not filled in the background, as it is not expected to be missing */
};

/*
 * pageserver_add - serve one more process from now on
 * @uffd:    becomes the server's, also on failure
 * @pid:     to kill it where memory cannot be poisoned; 0: not known
 * @space:   in the image
 * @ranges:  ascending, without overlap. Addresses outside of them are zero
 * Return: 0, -EINVAL (the ranges are not so), -EMFILE, -ENOENT (no such space), -errno
 */
int pageserver_add(struct pageserver *ps, int uffd, pid_t pid, uint32_t space, const struct pageserver_range *ranges,
		   size_t n_ranges);

/*
 * pageserver_ranges - one range for each region of a space, as pageserver_add() and roster_add() take them
 * What is not private anonymous memory is given out on demand only.
 * @ret:  the caller frees
 */
int pageserver_ranges(struct image *img, uint32_t space, struct pageserver_range **ret, size_t *ret_n);

/* all processes are there and run: fill in the background */
void pageserver_fill(struct pageserver *ps);

/* wait until all memory is filled (or poisoned), or its processes are gone */
void pageserver_wait(struct pageserver *ps);

struct pageserver_stats {
	uint64_t faults;         /* pages asked for */
	uint64_t demand_bytes;   /* copied because they, or their neighbours, were asked for */
	uint64_t fill_bytes;     /* copied in the background */
	uint64_t zero_pages;     /* given out on demand */
	uint64_t poisoned_bytes; /* could not be had */
	uint64_t processes;      /* with forked children */
};
void pageserver_stats(struct pageserver *ps, struct pageserver_stats *ret);

/*
 * pageserver_poison - where nobody can serve any more: poison all that is missing of all processes in @roster
 * No server may run. Memory that should have been zero is poisoned too.
 */
void pageserver_poison(struct roster *roster);

#endif
