/* SPDX-License-Identifier: Apache-2.0 */
/* thawfs prune and thawfs clean: options only; imgfmt/series_prune.c decides and removes. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "common/json.h"
#include "common/log.h"
#include "imgfmt/series.h"

enum { OPT_KEEP = CLI_OPT_OWN, OPT_DAMAGED };

static const struct option prune_longs[] = {
	{ "keep", required_argument, NULL, OPT_KEEP },
	{ "dry-run", no_argument, NULL, 'n' },
	CLI_LONG_THREADS,
	CLI_LONG_QUIET,
	CLI_LONG_JSON,
	CLI_LONG_END,
};

static const struct option clean_longs[] = {
	{ "damaged", no_argument, NULL, OPT_DAMAGED },
	{ "dry-run", no_argument, NULL, 'n' },
	CLI_LONG_QUIET,
	CLI_LONG_JSON,
	CLI_LONG_END,
};

struct tidy {
	struct cli cli;
	struct json js;
	bool dry_run, damaged;
	unsigned keep; /* 0: this is clean */
	const char *store;
	int err;
};

static void print_removed(void *ctx, const struct series_file *f)
{
	struct tidy *t = ctx;

	if (t->cli.json) {
		json_object_line(&t->js, NULL);
		json_string(&t->js, "file", f->file);
		json_string(&t->js, "state", series_state_text(f->state));
		json_u64(&t->js, "file_bytes", f->file_bytes);
		json_close(&t->js);
	} else if (!t->cli.quiet) {
		printf("%s ", t->dry_run ? "would remove" : "removed");
		cli_print_name(stdout, f->file, strlen(f->file));
		putchar('\n');
	}
}

static int tidy_locked(struct tidy *t, const char *name)
{
	const struct series_prune_opts prune = {
		.keep = t->keep,
		.dry_run = t->dry_run,
		.threads = t->cli.threads,
		.removed = print_removed,
		.ctx = t,
		.stop = &cli_stop,
	};
	struct series_list list;
	int err;

	if (t->keep)
		err = series_prune(t->store, name, &prune);
	else
		err = series_clean(t->store, name, t->damaged, t->dry_run, print_removed, t);
	if (t->dry_run || series_scan(t->store, name, 0, NULL, &list))
		return err;
	/* a snap that was killed at its very end has not come to this */
	series_update_latest(&list, name);
	series_release(&list);
	return err;
}

static void tidy_one(struct tidy *t, const char *name)
{
	int lock = series_lock(t->store, name), err = lock;

	if (lock >= 0) {
		err = tidy_locked(t, name);
		close(lock);
	}
	if (err == -EINTR)
		log_error("cannot go on with series '%s': interrupted", name);
	if (err < 0 && !t->err)
		t->err = err;
}

static int tidy_all(struct tidy *t, const char *name)
{
	struct series_list list;
	const char *last = NULL;
	/* only to know which there are: "" is none to look at closely */
	int err = series_scan(t->store, name ? name : "", name ? SERIES_ONLY : 0, &cli_stop, &list);

	if (!err && name && !list.n) {
		log_error("cannot find a series '%s' in '%s'", name, t->store);
		err = -ENOENT;
	}
	for (size_t i = 0; i < list.n && !err; i++) {
		const char *own = list.files[i].name;

		if (!own || (last && !strcmp(own, last)))
			continue;
		tidy_one(t, own);
		last = own;
		if (cli_stop)
			break;
	}
	series_release(&list);
	return err ? err : t->err;
}

static int run(struct tidy *t, int argc, char **argv)
{
	int err, rc = cli_operands(&t->cli, argc, argv, 1, 2);

	if (rc)
		return rc;
	t->store = argv[optind];
	cli_catch_signals();
	if (t->cli.json) {
		json_begin(&t->js, stdout);
		json_object(&t->js, NULL);
		json_string(&t->js, "store", t->store);
		json_bool(&t->js, "dry_run", t->dry_run);
		json_array(&t->js, "removed");
	}
	err = tidy_all(t, argc - optind > 1 ? argv[optind + 1] : NULL);
	if (t->cli.json) {
		json_close(&t->js);
		json_bool(&t->js, "complete", err == 0);
		json_close(&t->js);
		json_end(&t->js);
	}
	return cli_series_exit_code(err);
}

static int run_prune(const struct verb *verb, int argc, char **argv)
{
	struct tidy t = { .cli = { .verb = verb } };
	long n;
	int c;

	while ((c = cli_getopt(&t.cli, argc, argv, "j:qn", prune_longs)) != -1) {
		if (c == '?')
			return cli_stop_code(&t.cli);
		if (c == 'n')
			t.dry_run = true;
		else if (cli_number(optarg, 1, INT_MAX, &n))
			return cli_usage(&t.cli, "--keep takes a number from 1, not '%s'", optarg);
		else
			t.keep = (unsigned)n;
	}
	if (!t.keep)
		return cli_usage(&t.cli, "say how many images are to stay: --keep N");
	return run(&t, argc, argv);
}

static int run_clean(const struct verb *verb, int argc, char **argv)
{
	struct tidy t = { .cli = { .verb = verb } };
	int c;

	while ((c = cli_getopt(&t.cli, argc, argv, "qn", clean_longs)) != -1) {
		if (c == '?')
			return cli_stop_code(&t.cli);
		if (c == 'n')
			t.dry_run = true;
		else
			t.damaged = true;
	}
	return run(&t, argc, argv);
}

const struct verb verb_prune = {
	.name = "prune",
	.synopsis = "--keep N [-n] STORE [NAME]",
	.summary = "Remove the older images of one or all series of a store",
	.help = "      --keep N         complete images of each series that stay; more stay if none of these can be\n"
		"                       verified, or if others need them as bases\n"
		"  -n, --dry-run        only say what would be removed\n"
		"  -j, --threads N      threads that verify (default: as many as processors)\n"
		"  -q, --quiet          nothing on standard output\n"
		"      --json           as JSON\n",
	.run = run_prune,
};

const struct verb verb_clean = {
	.name = "clean",
	.synopsis = "[--damaged] [-n] STORE [NAME]",
	.summary = "Remove partial images that were left behind in a store",
	.help = "      --damaged        damaged images too, but not those that others need; checks every chunk\n"
		"  -n, --dry-run        only say what would be removed\n"
		"  -q, --quiet          nothing on standard output\n"
		"      --json           as JSON\n",
	.run = run_clean,
};
