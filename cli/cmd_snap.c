/* SPDX-License-Identifier: Apache-2.0 */
/* thawfs snap: options and the line at the end; the work is imgfmt/snap.c's. */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/pack_options.h"
#include "common/cleanup.h"
#include "common/clock.h"
#include "common/json.h"
#include "common/log.h"
#include "imgfmt/series.h"
#include "imgfmt/snap.h"

/* What a snap may take to stop when its time is up, before it is killed. */
#define GRACE_MS 2000
#define LOOK_MS  50

struct snap_args {
	struct snap_opts opts;
	unsigned timeout_s; /* 0: none */
	bool has_rank, has_ranks;
};

enum {
	OPT_KEEP = CLI_OPT_OWN,
	OPT_BASE,
	OPT_NAME,
	OPT_TIMEOUT,
	OPT_JOB,
	OPT_RANK,
	OPT_RANKS,
	OPT_STEP,
	OPT_WAIT,
	OPT_RATE,
	OPT_CODEC,
	OPT_VERIFY,
	OPT_NO_FSYNC,
};

static const struct option longs[] = {
	{ "keep", required_argument, NULL, OPT_KEEP },
	{ "base", required_argument, NULL, OPT_BASE },
	{ "name", required_argument, NULL, OPT_NAME },
	{ "job", required_argument, NULL, OPT_JOB },
	{ "rank", required_argument, NULL, OPT_RANK },
	{ "ranks", required_argument, NULL, OPT_RANKS },
	{ "step", required_argument, NULL, OPT_STEP },
	{ "wait", required_argument, NULL, OPT_WAIT },
	{ "timeout", required_argument, NULL, OPT_TIMEOUT },
	{ "rate", required_argument, NULL, OPT_RATE },
	{ "level", required_argument, NULL, 'z' },
	{ "codec", required_argument, NULL, OPT_CODEC },
	{ "verify", no_argument, NULL, OPT_VERIFY },
	{ "no-fsync", no_argument, NULL, OPT_NO_FSYNC },
	CLI_LONG_THREADS,
	CLI_LONG_QUIET,
	CLI_LONG_BYTES,
	CLI_LONG_JSON,
	CLI_LONG_PROGRESS,
	CLI_LONG_END,
};

static int set_keep(const struct cli *cli, struct snap_opts *opts, const char *text)
{
	long n;

	if (cli_number(text, 1, INT_MAX, &n))
		return cli_usage(cli, "--keep takes a number from 1, not '%s'", text);
	opts->keep = (unsigned)n;
	return 0;
}

static int set_name(const struct cli *cli, struct snap_opts *opts, const char *text)
{
	if (!series_good_name(text))
		return cli_usage(cli, "a series cannot be called '%s'", text);
	opts->name = text;
	return 0;
}

static int set_timeout(const struct cli *cli, struct snap_args *args, const char *text)
{
	long n;

	if (cli_number(text, 1, INT_MAX / 1000, &n))
		return cli_usage(cli, "--timeout takes a number of seconds, not '%s'", text);
	args->timeout_s = (unsigned)n;
	return 0;
}

static int set_rate(const struct cli *cli, struct snap_opts *opts, const char *text)
{
	if (cli_size(text, &opts->pack.rate) || !opts->pack.rate)
		return cli_usage(cli, "--rate takes bytes a second, as 200M, not '%s'", text);
	return 0;
}

/* an option of the job that is a number from @min to @max */
static int set_job_number(const struct cli *cli, const char *option, long min, long max, unsigned *ret)
{
	long n;

	if (cli_number(optarg, min, max, &n))
		return cli_usage(cli, "%s takes a number from %ld to %ld, not '%s'", option, min, max, optarg);
	*ret = (unsigned)n;
	return 0;
}

static int job_option(const struct cli *cli, struct snap_args *args, int c)
{
	struct job_opts *job = &args->opts.job;

	switch (c) {
	case OPT_JOB:
		job->id = optarg;
		return series_good_name(optarg) ? 0 : cli_usage(cli, "a job cannot be called '%s'", optarg);
	case OPT_RANK:
		args->has_rank = true;
		return set_job_number(cli, "--rank", 0, JOB_RANKS_MAX - 1, &job->rank);
	case OPT_RANKS:
		args->has_ranks = true;
		return set_job_number(cli, "--ranks", 1, JOB_RANKS_MAX, &job->ranks);
	case OPT_WAIT:
		return set_job_number(cli, "--wait", 1, INT_MAX / 1000, &job->wait_s);
	default: /* OPT_STEP */
		job->step = optarg;
		return 0;
	}
}

static int one_option(const struct cli *cli, struct snap_args *args, int c)
{
	struct snap_opts *opts = &args->opts;

	switch (c) {
	case OPT_JOB:
	case OPT_RANK:
	case OPT_RANKS:
	case OPT_STEP:
	case OPT_WAIT:
		return job_option(cli, args, c);
	case OPT_TIMEOUT:
		return set_timeout(cli, args, optarg);
	case OPT_RATE:
		return set_rate(cli, opts, optarg);
	case OPT_KEEP:
		return set_keep(cli, opts, optarg);
	case OPT_BASE:
		opts->base = optarg;
		return 0;
	case OPT_NAME:
		return set_name(cli, opts, optarg);
	case 'z':
		return pack_set_level(cli, &opts->pack, optarg);
	case OPT_CODEC:
		return pack_set_codec(cli, &opts->pack, optarg);
	case OPT_VERIFY:
		opts->pack.verify = true;
		return 0;
	default: /* OPT_NO_FSYNC */
		opts->pack.no_fsync = true;
		return 0;
	}
}

static int check_job(const struct cli *cli, const struct snap_args *args)
{
	const struct job_opts *job = &args->opts.job;

	if (!job->id && (args->has_rank || args->has_ranks || job->step || job->wait_s))
		return cli_usage(cli, "--rank, --ranks, --step and --wait go with --job");
	if (!job->id)
		return 0;
	if (!args->has_rank || !args->has_ranks)
		return cli_usage(cli, "--job needs --rank and --ranks");
	if (job->rank >= job->ranks)
		return cli_usage(cli, "--rank is from 0 to %u, not %u", job->ranks - 1, job->rank);
	if (args->opts.name)
		return cli_usage(cli, "--job names the series: no --name");
	return 0;
}

static int check_options(const struct cli *cli, const struct snap_args *args)
{
	int rc = pack_check_level(cli, &args->opts.pack);

	return rc ? rc : check_job(cli, args);
}

static void print_summary(const struct cli *cli, const struct snap_result *res, double seconds)
{
	const struct pack_result *p = &res->pack;
	char a[SIZE_TEXT_EXACT], b[SIZE_TEXT_EXACT], c[SIZE_TEXT_EXACT], d[SIZE_TEXT_EXACT], e[SIZE_TEXT_EXACT];

	printf("%s: %s, %s of it holes", res->path, cli_size_text(cli, p->logical_bytes, a),
	       cli_size_text(cli, p->hole_bytes, b));
	if (p->base_bytes)
		printf(", %s in bases", cli_size_text(cli, p->base_bytes, c));
	if (p->resumed_bytes)
		printf(", %s stored before", cli_size_text(cli, p->resumed_bytes, e));
	printf("; image %s", cli_size_text(cli, p->image_bytes, d));
	if (res->n_pruned)
		printf("; %u older one%s removed", res->n_pruned, cli_plural(res->n_pruned));
	if (res->job_sequence)
		printf("; checkpoint %" PRIu64 " of the job is complete", res->job_sequence);
	printf("; %.2f s\n", seconds);
}

static void print_json(const struct snap_result *res, double seconds)
{
	const struct pack_result *p = &res->pack;
	char id[33];
	struct json js;

	image_id_text(p->id, id);
	json_begin(&js, stdout);
	json_object(&js, NULL);
	json_string(&js, "image", res->path);
	json_string(&js, "id", id);
	json_u64(&js, "sequence", res->sequence);
	if (res->base)
		json_string(&js, "base", res->base);
	if (res->job_sequence)
		json_u64(&js, "job_sequence", res->job_sequence);
	pack_json(&js, p);
	json_u64(&js, "resumed_bytes", p->resumed_bytes);
	json_u64(&js, "n_pruned", res->n_pruned);
	json_double(&js, "seconds", seconds, 3);
	json_close(&js);
	json_end(&js);
}

static int do_snap(const struct cli *cli, const struct snap_opts *given)
{
	struct snap_opts opts = *given;
	struct snap_result res;
	struct progress progress;
	double start = clock_seconds();
	int err;

	cli_catch_signals();
	progress_start(&progress, cli->quiet ? PROGRESS_NONE : cli->progress, "packing");
	opts.pack.threads = cli->threads;
	opts.pack.progress = progress_update;
	opts.pack.progress_ctx = &progress;
	opts.pack.stop = &cli_stop;
	err = snap(&opts, &res);
	progress_end(&progress, err == 0);
	if (err == -EINTR)
		log_error("cannot snap '%s': stopped; what is stored is kept for the next run", opts.src);
	else if (!err && cli->json)
		print_json(&res, clock_seconds() - start);
	else if (!err && !cli->quiet)
		print_summary(cli, &res, clock_seconds() - start);
	free(res.path);
	free(res.base);
	return cli_series_exit_code(err);
}

/* wait for @pid to end: 1, its status is in @ret; 0 after @ms, or some time after a signal that was for both */
static int wait_ms(pid_t pid, int pidfd, long ms, int *ret)
{
	struct pollfd p = { .fd = pidfd, .events = POLLIN };
	long end = clock_ms() + ms;
	bool told = false;

	for (;;) {
		long left = end - clock_ms();

		if (waitpid(pid, ret, WNOHANG) == pid)
			return 1;
		if (left <= 0)
			return 0;
		if (cli_stop && !told) {
			kill(pid, cli_stop);
			told = true;
			if (left > GRACE_MS)
				end = clock_ms() + GRACE_MS;
			continue;
		}
		/* without a descriptor (before Linux 5.3) look now and then */
		poll(&p, 1, (int)(pidfd < 0 && left > LOOK_MS ? LOOK_MS : left));
	}
}

/*
 * A process of its own does the work: one that hangs in a write to a store that does not answer hears no signal, and
 * perhaps not even SIGKILL before the store answers. Who waits for us need not wait for that.
 */
static int watch(const struct snap_args *args, pid_t pid)
{
	_cleanup_close_ int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	int status = 0;

	cli_catch_signals();
	if (wait_ms(pid, pidfd, 1000l * args->timeout_s, &status))
		return WIFEXITED(status) ? WEXITSTATUS(status) : CLI_FAILED;
	if (!cli_stop)
		log_error("cannot snap '%s' in %u s: what is stored is kept for the next run", args->opts.src,
			  args->timeout_s);
	kill(pid, SIGTERM);
	if (wait_ms(pid, pidfd, GRACE_MS, &status))
		/* it may have been done at that moment */
		return WIFEXITED(status) && WEXITSTATUS(status) == CLI_GOOD ? CLI_GOOD : CLI_STOPPED;
	kill(pid, SIGKILL);
	if (!wait_ms(pid, pidfd, GRACE_MS / 4, &status))
		log_warn("process %ld hangs in the store '%s'", (long)pid, args->opts.store);
	return CLI_STOPPED;
}

static int snap_in_time(const struct cli *cli, const struct snap_args *args)
{
	pid_t pid;

	fflush(NULL);
	pid = fork();
	if (pid < 0) {
		log_error("cannot start a process: %s", strerror(errno));
		return CLI_FAILED;
	}
	if (pid > 0)
		return watch(args, pid);
	/* nobody would end it in time any more */
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	exit(do_snap(cli, &args->opts));
}

static int run_snap(const struct verb *verb, int argc, char **argv)
{
	struct cli cli = { .verb = verb };
	struct snap_args args = { 0 };
	int c, rc;

	while ((c = cli_getopt(&cli, argc, argv, "z:j:qb", longs)) != -1) {
		if (c == '?')
			return cli_stop_code(&cli);
		rc = one_option(&cli, &args, c);
		if (rc)
			return rc;
	}
	rc = cli_operands(&cli, argc, argv, 2, 2);
	if (!rc)
		rc = check_options(&cli, &args);
	if (rc)
		return rc;
	args.opts.src = argv[optind];
	args.opts.store = argv[optind + 1];
	return args.timeout_s ? snap_in_time(&cli, &args) : do_snap(&cli, &args.opts);
}

const struct verb verb_snap = {
	.name = "snap",
	.synopsis = "[OPTION…] SRC_DIR STORE",
	.summary = "Pack a state directory as the next image of a series",
	.help = "      --keep N         remove older images, but the N newest, a verified one, and what these need\n"
		"      --base BASE      auto: do not store what the newest image has, if that pays; none; or an image\n"
		"                       (default auto)\n"
		"      --name NAME      of the series (default: what SRC_DIR is called)\n"
		"      --job ID --rank R --ranks N   the image is one of the N of a checkpoint of job ID: all or none\n"
		"      --wait S         for the other ranks (default 300 seconds)\n"
		"      --step LABEL     do not wait for them: images with the same label belong together\n"
		"      --timeout S      end after S seconds, whatever the store does; running it again goes on\n"
		"      --rate BYTES     write at most so many bytes a second\n"
		"  -z, --level LEVEL    zstd level 1 to 19, or -1 to -7 for the fast ones (default 1)\n"
		"      --codec CODEC    zstd, raw, or lz4 (levels 1 to 12, default 3)\n"
		"      --verify         read the image again and compare before it gets its name\n"
		"  -j, --threads N      threads that compress (default: as many as processors)\n"
		"  -q, --quiet          no progress, no summary\n"
		"  -b, --bytes          exact sizes in the summary\n"
		"      --json           the summary as JSON\n"
		"      --progress MODE  auto, none or bar\n"
		"      --no-fsync       do not wait for the disk: for tests and benchmarks\n"
		"\nThe image becomes STORE/NAME-<sequence>.thaw, complete or not at all; NAME-latest leads to it. "
		"Nothing\n"
		"may write to SRC_DIR meanwhile. Exit codes besides the usual ones: 4 stopped, 5 the series is in "
		"use,\n"
		"6 SRC_DIR changed, 7 no space in the store.\n",
	.run = run_snap,
};
