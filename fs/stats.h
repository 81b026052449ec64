/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counters of a mount, in memory that the supervisor makes and every worker maps: they go on when a worker is
 * replaced. Any thread may count; each counter is right by itself, several read together may be a moment apart.
 */
#ifndef THAW_FS_STATS_H
#define THAW_FS_STATS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "fs/config.h"

enum stats_op {
	STATS_LOOKUP,
	STATS_GETATTR,
	STATS_READLINK,
	STATS_OPEN,
	STATS_READ,
	STATS_RELEASE,
	STATS_READDIR,
	STATS_STATFS,
	STATS_XATTR,
	STATS_LSEEK,
	STATS_REFUSED, /* everything that would write */
	STATS_OPS,
};

/* why a read failed */
enum stats_error {
	STATS_ERR_DAMAGED,
	STATS_ERR_SOURCE,
	STATS_ERR_ABSENT,
	STATS_ERR_BASE,
	STATS_ERR_STALE,
	STATS_ERR_MEMORY,
	STATS_ERRORS,
};

#define STATS_BUCKETS 24 /* of a latency histogram: below 1 << k microseconds; the last takes the rest */
#define STATS_SLOTS   65536

typedef _Atomic uint64_t stats_counter;

/* hydrate.h: what must outlive a worker */
enum hydrate_state { HYDRATE_NONE, HYDRATE_WANTED, HYDRATE_RUNNING, HYDRATE_READY, HYDRATE_FAILED };
#define HYDRATE_FILES 1024

struct hydrate_file {
	uint64_t node, bytes, used_ns;
	uint32_t cached, passed; /* open handles by kind */
	uint32_t id;             /* of the backing file, in the connection */
	_Atomic uint32_t state;  /* enum hydrate_state */
};

struct stats_hydrate {
	stats_counter used, ready, failed, evictions, opens;
	_Atomic int32_t last_error; /* the first errno of those that failed */
	_Atomic uint32_t refused;   /* the kernel does not permit it */
	uint32_t overflow, n;
	struct hydrate_file files[HYDRATE_FILES];
};

/* prefetch.h: what must outlive a worker */
enum prefetch_phase { PREFETCH_IDLE, PREFETCH_WAITS, PREFETCH_WS, PREFETCH_WHOLE, PREFETCH_DONE, PREFETCH_FAILED };
#define PREFETCH_FILES 1024

struct prefetch_file {
	uint64_t node, used_ns;
	uint64_t low;              /* all before is done: a unit of the plan (WS), or an offset (WHOLE) */
	stats_counter done, total; /* bytes */
	_Atomic uint32_t opens;
	_Atomic uint32_t phase;  /* enum prefetch_phase */
	_Atomic uint32_t missed; /* data was asked for after DONE */
	uint32_t failed;         /* which was said */
};

struct stats_prefetch {
	struct prefetch_file files[PREFETCH_FILES];
};

struct stats {
	stats_counter requests[STATS_OPS], latency_ns[STATS_OPS], latency[STATS_OPS][STATS_BUCKETS];
	stats_counter errors[STATS_ERRORS];
	stats_counter read_bytes; /* replied to read requests */
	stats_counter decoded_chunks, decoded_bytes, decode_ns, source_retries;
	stats_counter cache_hits, cache_misses, cache_waits, cache_evictions, cache_used;
	stats_counter pushed_bytes, push_dropped;
	stats_counter prefetch_bytes, prefetch_errors, prefetch_throttled;
	stats_counter recorded;
	stats_counter open_files, images;
	stats_counter workers_started, takeovers, takeover_ns_max;
	stats_counter start_s; /* CLOCK_REALTIME */
	_Atomic int32_t worker_pid, supervisor_pid;
	_Atomic uint32_t has_resend, has_passthrough, has_io_uring, readahead_kb;
	/* files and directories open, by slot; slots beyond are never retired */
	_Atomic uint32_t opens[STATS_SLOTS];
	struct stats_hydrate hydrate;
	struct stats_prefetch prefetch;
};

/* @ret_fd: shared memory to hand to workers. Return: 0, -errno */
int stats_new(int *ret_fd, struct stats **ret);
int stats_map(int fd, struct stats **ret);

static inline void stats_add(stats_counter *c, uint64_t n)
{
	atomic_fetch_add_explicit(c, n, memory_order_relaxed);
}
static inline void stats_sub(stats_counter *c, uint64_t n)
{
	atomic_fetch_sub_explicit(c, n, memory_order_relaxed);
}
static inline uint64_t stats_get(const stats_counter *c)
{
	return atomic_load_explicit(c, memory_order_relaxed);
}

uint64_t stats_now_ns(void); /* CLOCK_MONOTONIC */

/* a request of kind @op that began at @start_ns was answered */
void stats_request(struct stats *st, enum stats_op op, uint64_t start_ns);

/*
 * stats_json, stats_metrics - the texts of status.json and metrics, padded with blanks to a multiple of 4096
 * bytes, so that a reader whose worker was replaced between two reads finds the same end
 * @ret:  allocated, the caller frees. Return: 0, -ENOMEM
 */
int stats_json(const struct stats *st, const struct fs_config *cfg, char **ret, size_t *ret_len);
int stats_metrics(const struct stats *st, const struct fs_config *cfg, char **ret, size_t *ret_len);

#endif
