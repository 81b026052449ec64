/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a page server must not forget when it dies: memory that it shares with its keeper and its successor, and that
 * leads to the same open descriptors in all of them (they are made by clone(CLONE_FILES), see keeper.h).
 *
 * It holds the processes that were added, a log of what they did to their memory since (read from userfaultfd straight
 * into it, because reading completes an event: what only a dead reader knew is lost), a snapshot of all tables from
 * time to time so that the log may go round, and how far each process is filled. A successor takes the snapshot and
 * repeats the log behind it.
 *
 * One process serves at a time, and in it one thread writes the log; the keeper adds processes.
 */
#ifndef THAW_RESTORE_ROSTER_H
#define THAW_RESTORE_ROSTER_H

#include <linux/userfaultfd.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "restore/pageserver.h"

#define ROSTER_TASKS PAGESERVER_TASKS
#define ROSTER_SLOTS 4096u
#define ROSTER_ADDED 1 /* event of a slot: beside those of userfaultfd */

struct roster_counts {
	_Atomic uint64_t faults, demand_bytes, fill_bytes, zero_pages, poisoned_bytes, processes;
};

/* a process as it was added */
struct roster_task {
	int32_t uffd;
	pid_t pid;
	uint32_t space;
	int32_t ranges_fd; /* memory with its ranges */
	uint64_t n_ranges;
};

struct roster_slot {
	uint64_t seq;   /* which turn of the log this is; good if event is not 0 either */
	int32_t uffd;   /* whose */
	uint32_t added; /* ROSTER_ADDED: index of the task */
	struct uffd_msg msg;
};

/* pages of the process with this descriptor are placed below this address */
struct roster_mark {
	_Atomic int32_t uffd; /* 0: none, as 0 is never a userfaultfd here */
	_Atomic uint64_t below;
};

struct roster_snapshot {
	int32_t fd;   /* 0: none */
	uint64_t seq; /* the log goes on from here */
};

struct roster {
	int32_t poke; /* eventfd: there is something new */
	_Atomic uint32_t n_added;
	_Atomic uint32_t filling;  /* pageserver_fill() was called */
	_Atomic uint32_t complete; /* all is filled, or gone */
	_Atomic uint32_t current;  /* which snapshot is good */
	_Atomic pid_t server_pid, keeper_pid;
	struct roster_snapshot snapshots[2];
	struct roster_counts counts;
	struct roster_task added[ROSTER_TASKS];
	struct roster_mark marks[ROSTER_TASKS];
	struct roster_slot log[ROSTER_SLOTS];
};

/* Return: NULL with errno set */
struct roster *roster_new(void);
/* the processes' descriptors stay open: that is for whoever knows that nothing is missing any more */
void roster_free(struct roster *roster);

/*
 * roster_add - one more process, for the server that is or will be
 * @uffd:  becomes the roster's, also on failure
 * Return: 0, -EMFILE (too many), -errno
 */
int roster_add(struct roster *roster, int uffd, pid_t pid, uint32_t space, const struct pageserver_range *ranges,
	       size_t n_ranges);

/* the ranges of an added process. @ret: the caller frees */
int roster_ranges(const struct roster_task *task, struct pageserver_range **ret);

/* wake the server's thread that reads events */
void roster_poke(struct roster *roster);

/* the slot with number @seq, prepared: its event is 0 until something is written to msg */
struct roster_slot *roster_prepare(struct roster *roster, uint64_t seq, int uffd);
/* the slot with number @seq if it was written; else NULL: the log ends there */
const struct roster_slot *roster_at(const struct roster *roster, uint64_t seq);

/* a descriptor for a new snapshot, -errno; then make it the one that counts, which closes the one before */
int roster_snapshot_begin(void);
void roster_snapshot_publish(struct roster *roster, int fd, uint64_t seq);

/* by the @index-th task of the server */
void roster_mark(struct roster *roster, size_t index, int uffd, uint64_t below);
/* 0 if nothing is known */
uint64_t roster_marked(const struct roster *roster, int uffd);

#endif
