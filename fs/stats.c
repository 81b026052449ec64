/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/stats.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "common/bytes.h"
#include "common/cleanup.h"

static const char *const op_names[STATS_OPS] = { "lookup",  "getattr", "readlink", "open",  "read",   "release",
						 "readdir", "statfs",  "xattr",    "lseek", "refused" };
static const char *const error_names[STATS_ERRORS] = {
	"damaged", "source", "absent", "base_missing", "stale", "memory"
};
static const char *const prefetch_names[] = { "off", "ws", "all" };
static const char *const phase_names[] = { "idle", "waits", "ws", "whole", "done", "failed" };

#define PREFETCH_SHOWN 64 /* files in status.json */

int stats_new(int *ret_fd, struct stats **ret)
{
	_cleanup_close_ int fd = memfd_create("thawfs-stats", MFD_CLOEXEC);
	struct stats *st = NULL;
	struct timespec now;
	int err;

	if (fd < 0 || ftruncate(fd, sizeof(*st)))
		return -errno;
	err = stats_map(fd, &st);
	if (err || !st)
		return err;
	clock_gettime(CLOCK_REALTIME, &now);
	st->start_s = (uint64_t)now.tv_sec;
	*ret = st;
	*ret_fd = steal_fd(&fd);
	return 0;
}

int stats_map(int fd, struct stats **ret)
{
	void *p = mmap(NULL, sizeof(struct stats), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (p == MAP_FAILED)
		return -errno;
	*ret = p;
	return 0;
}

uint64_t stats_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void stats_request(struct stats *st, enum stats_op op, uint64_t start_ns)
{
	uint64_t ns = stats_now_ns() - start_ns, us = ns / 1000;
	unsigned bucket = us ? 64 - (unsigned)__builtin_clzll(us) : 0;

	stats_add(&st->requests[op], 1);
	stats_add(&st->latency_ns[op], ns);
	stats_add(&st->latency[op][bucket < STATS_BUCKETS ? bucket : STATS_BUCKETS - 1], 1);
}

/* cJSON keeps numbers as doubles; counters stay exact below 2^53, which is far enough */
static void put(cJSON *to, const char *name, uint64_t value)
{
	cJSON_AddNumberToObject(to, name, (double)value);
}

/* node ids are larger than that */
static void put_exact(cJSON *to, const char *name, uint64_t value)
{
	char text[24];

	snprintf(text, sizeof(text), "%llu", (unsigned long long)value);
	cJSON_AddRawToObject(to, name, text);
}

static void put_counters(cJSON *to, const stats_counter *c, const char *const *names, size_t n)
{
	for (size_t i = 0; to && i < n; i++)
		put(to, names[i], stats_get(&c[i]));
}

static void put_cache(cJSON *root, const struct stats *st, const struct fs_config *cfg)
{
	cJSON *o = cJSON_AddObjectToObject(root, "cache");

	put(o, "limit", cfg->cache_bytes);
	put(o, "used", stats_get(&st->cache_used));
	put(o, "hits", stats_get(&st->cache_hits));
	put(o, "misses", stats_get(&st->cache_misses));
	put(o, "waits", stats_get(&st->cache_waits));
	put(o, "evictions", stats_get(&st->cache_evictions));
	put(o, "decoded_chunks", stats_get(&st->decoded_chunks));
	put(o, "decoded_bytes", stats_get(&st->decoded_bytes));
	put(o, "decode_ns", stats_get(&st->decode_ns));
}

static bool is_prefetched(const struct prefetch_file *f)
{
	return f->opens && f->phase >= PREFETCH_WAITS && f->phase <= PREFETCH_WHOLE;
}

static uint64_t prefetch_running(const struct stats *st)
{
	uint64_t n = 0;

	for (size_t i = 0; i < PREFETCH_FILES; i++)
		n += is_prefetched(&st->prefetch.files[i]);
	return n;
}

/* files that are open: how far they are */
static void put_prefetch_files(cJSON *to, const struct stats *st)
{
	for (size_t i = 0, n = 0; to && i < PREFETCH_FILES && n < PREFETCH_SHOWN; i++) {
		const struct prefetch_file *f = &st->prefetch.files[i];
		uint32_t phase = f->phase;
		cJSON *o;

		if (!f->opens || phase >= ARRAY_SIZE(phase_names) || !(o = cJSON_CreateObject()))
			continue;
		put_exact(o, "inode", f->node);
		put(o, "opens", f->opens);
		cJSON_AddStringToObject(o, "phase", phase_names[phase]);
		/* what was under way at a stop was done twice */
		put(o, "done", min_u64(stats_get(&f->done), stats_get(&f->total)));
		put(o, "total", stats_get(&f->total));
		cJSON_AddItemToArray(to, o);
		n++;
	}
}

static void put_prefetch(cJSON *root, const struct stats *st, const struct fs_config *cfg)
{
	cJSON *o = cJSON_AddObjectToObject(root, "prefetch");

	cJSON_AddStringToObject(o, "mode", prefetch_names[cfg->prefetch]);
	cJSON_AddBoolToObject(o, "record", cfg->record);
	put(o, "rate", cfg->prefetch_rate);
	put(o, "running", prefetch_running(st));
	put(o, "bytes", stats_get(&st->prefetch_bytes));
	put(o, "throttled", stats_get(&st->prefetch_throttled));
	put(o, "errors", stats_get(&st->prefetch_errors));
	put(o, "pushed_bytes", stats_get(&st->pushed_bytes));
	put(o, "push_dropped", stats_get(&st->push_dropped));
	put(o, "recorded", stats_get(&st->recorded));
	put_prefetch_files(cJSON_AddArrayToObject(o, "files"), st);
}

static void put_kernel(cJSON *root, const struct stats *st)
{
	cJSON *o = cJSON_AddObjectToObject(root, "kernel");

	cJSON_AddBoolToObject(o, "passthrough", st->has_passthrough != 0);
	cJSON_AddBoolToObject(o, "io_uring", st->has_io_uring != 0);
	cJSON_AddBoolToObject(o, "resend", st->has_resend != 0);
	put(o, "readahead_kb", st->readahead_kb);
}

static void put_hydrate(cJSON *root, const struct stats *st, const struct fs_config *cfg)
{
	const struct stats_hydrate *h = &st->hydrate;
	cJSON *o = cJSON_AddObjectToObject(root, "hydrate");
	const char *state = "on";

	if (!cfg->hydrate_dir[0])
		state = "off";
	else if (!st->has_passthrough)
		state = "no passthrough";
	else if (h->refused)
		state = "not permitted";
	cJSON_AddStringToObject(o, "state", state);
	put(o, "limit", cfg->hydrate_bytes);
	put(o, "used", stats_get(&h->used));
	put(o, "files", stats_get(&h->ready));
	put(o, "opens", stats_get(&h->opens));
	put(o, "failed", stats_get(&h->failed));
	put(o, "evictions", stats_get(&h->evictions));
	if (h->last_error)
		cJSON_AddStringToObject(o, "error", strerror(h->last_error));
}

static void put_workers(cJSON *root, const struct stats *st)
{
	cJSON *o = cJSON_AddObjectToObject(root, "workers");

	put(o, "started", stats_get(&st->workers_started));
	put(o, "takeovers", stats_get(&st->takeovers));
	cJSON_AddNumberToObject(o, "longest_takeover_ms", (double)stats_get(&st->takeover_ns_max) / 1e6);
}

/* end the text with blanks and a line end at a multiple of 4096 bytes; @text is freed */
static int pad(char *text, size_t len, char **ret, size_t *ret_len)
{
	size_t room = align_up(len + 1, 4096);
	char *out = text ? realloc(text, room) : NULL;

	if (!out) {
		free(text);
		return -ENOMEM;
	}
	memset(out + len, ' ', room - len - 1);
	out[room - 1] = '\n';
	*ret = out;
	*ret_len = room;
	return 0;
}

int stats_json(const struct stats *st, const struct fs_config *cfg, char **ret, size_t *ret_len)
{
	cJSON *root = cJSON_CreateObject();
	char *text;

	put(root, "worker_pid", (uint64_t)st->worker_pid);
	put(root, "supervisor_pid", (uint64_t)st->supervisor_pid);
	cJSON_AddStringToObject(root, "source", cfg->src);
	put(root, "start", stats_get(&st->start_s));
	put(root, "images", stats_get(&st->images));
	put(root, "open_files", stats_get(&st->open_files));
	put(root, "read_bytes", stats_get(&st->read_bytes));
	put_cache(root, st, cfg);
	put_prefetch(root, st, cfg);
	put_kernel(root, st);
	put_hydrate(root, st, cfg);
	put_workers(root, st);
	put(root, "source_retries", stats_get(&st->source_retries));
	put_counters(cJSON_AddObjectToObject(root, "requests"), st->requests, op_names, STATS_OPS);
	put_counters(cJSON_AddObjectToObject(root, "errors"), st->errors, error_names, STATS_ERRORS);
	text = cJSON_Print(root);
	cJSON_Delete(root);
	return pad(text, text ? strlen(text) : 0, ret, ret_len);
}

static void metric(FILE *f, const char *name, const char *type, const char *help, uint64_t value)
{
	fprintf(f, "# HELP thawfs_%s %s\n# TYPE thawfs_%s %s\nthawfs_%s %llu\n", name, help, name, type, name,
		(unsigned long long)value);
}

static void metric_requests(FILE *f, const struct stats *st)
{
	fprintf(f, "# HELP thawfs_request_seconds Time from reading a request to having answered it.\n"
		   "# TYPE thawfs_request_seconds histogram\n");
	for (int op = 0; op < STATS_OPS; op++) {
		uint64_t sum = 0;

		for (int b = 0; b < STATS_BUCKETS; b++) {
			sum += stats_get(&st->latency[op][b]);
			if (b < STATS_BUCKETS - 1)
				fprintf(f, "thawfs_request_seconds_bucket{op=\"%s\",le=\"%g\"} %llu\n", op_names[op],
					(double)(1u << b) / 1e6, (unsigned long long)sum);
		}
		fprintf(f, "thawfs_request_seconds_bucket{op=\"%s\",le=\"+Inf\"} %llu\n", op_names[op],
			(unsigned long long)sum);
		fprintf(f, "thawfs_request_seconds_sum{op=\"%s\"} %.9f\n", op_names[op],
			(double)stats_get(&st->latency_ns[op]) / 1e9);
		fprintf(f, "thawfs_request_seconds_count{op=\"%s\"} %llu\n", op_names[op], (unsigned long long)sum);
	}
}

static void metric_errors(FILE *f, const struct stats *st)
{
	fprintf(f, "# HELP thawfs_errors_total Requests that failed, by cause.\n# TYPE thawfs_errors_total counter\n");
	for (int e = 0; e < STATS_ERRORS; e++)
		fprintf(f, "thawfs_errors_total{kind=\"%s\"} %llu\n", error_names[e],
			(unsigned long long)stats_get(&st->errors[e]));
}

static void metric_reads(FILE *f, const struct stats *st, const struct fs_config *cfg)
{
	metric(f, "read_bytes_total", "counter", "Bytes answered to read requests.", stats_get(&st->read_bytes));
	metric(f, "decoded_chunks_total", "counter", "Chunks decoded.", stats_get(&st->decoded_chunks));
	metric(f, "decoded_bytes_total", "counter", "Bytes decoded.", stats_get(&st->decoded_bytes));
	fprintf(f,
		"# HELP thawfs_decode_seconds_total Time spent reading and decoding chunks.\n"
		"# TYPE thawfs_decode_seconds_total counter\nthawfs_decode_seconds_total %.9f\n",
		(double)stats_get(&st->decode_ns) / 1e9);
	metric(f, "source_retries_total", "counter", "Reads of an image that were tried again.",
	       stats_get(&st->source_retries));
	metric(f, "cache_hits_total", "counter", "Chunks found decoded.", stats_get(&st->cache_hits));
	metric(f, "cache_misses_total", "counter", "Chunks that had to be decoded.", stats_get(&st->cache_misses));
	metric(f, "cache_waits_total", "counter", "Chunks waited for while another reader decoded them.",
	       stats_get(&st->cache_waits));
	metric(f, "cache_bytes", "gauge", "Memory of decoded chunks.", stats_get(&st->cache_used));
	metric(f, "cache_limit_bytes", "gauge", "Its bound.", cfg->cache_bytes);
	metric(f, "prefetch_bytes_total", "counter", "Bytes made resident before they were asked for.",
	       stats_get(&st->prefetch_bytes));
	metric(f, "prefetch_running", "gauge", "Open files that are being made resident.", prefetch_running(st));
	metric(f, "prefetch_throttled_total", "counter", "Waits for the bound of prefetch_rate.",
	       stats_get(&st->prefetch_throttled));
	metric(f, "prefetch_errors_total", "counter", "Chunks that prefetch could not have.",
	       stats_get(&st->prefetch_errors));
	metric(f, "pushed_bytes_total", "counter", "Bytes pushed into the page cache beside a read.",
	       stats_get(&st->pushed_bytes));
}

static void metric_hydrate(FILE *f, const struct stats *st, const struct fs_config *cfg)
{
	const struct stats_hydrate *h = &st->hydrate;

	metric(f, "hydrate_bytes", "gauge", "Room that hydrated files take.", stats_get(&h->used));
	metric(f, "hydrate_limit_bytes", "gauge", "Its bound.", cfg->hydrate_dir[0] ? cfg->hydrate_bytes : 0);
	metric(f, "hydrate_files", "gauge", "Files that are hydrated.", stats_get(&h->ready));
	metric(f, "hydrate_opens_total", "counter", "Opens that were passed through.", stats_get(&h->opens));
	metric(f, "hydrate_failed_total", "counter", "Files that could not be hydrated.", stats_get(&h->failed));
	metric(f, "hydrate_evictions_total", "counter", "Hydrated files that were given up.", stats_get(&h->evictions));
}

int stats_metrics(const struct stats *st, const struct fs_config *cfg, char **ret, size_t *ret_len)
{
	char *text = NULL;
	size_t len = 0;
	FILE *f = open_memstream(&text, &len);

	if (!f)
		return -ENOMEM;
	metric_requests(f, st);
	metric_errors(f, st);
	metric_reads(f, st, cfg);
	metric_hydrate(f, st, cfg);
	metric(f, "images", "gauge", "Images shown.", stats_get(&st->images));
	metric(f, "open_files", "gauge", "Files and directories open.", stats_get(&st->open_files));
	metric(f, "worker_takeovers_total", "counter", "Workers that were replaced.", stats_get(&st->takeovers));
	if (fclose(f)) {
		free(text);
		return -ENOMEM;
	}
	return pad(text, len, ret, ret_len);
}
