/* SPDX-License-Identifier: Apache-2.0 */
/* thawfs series: what the images of a store are; imgfmt/series.c looks. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "cli/cli.h"
#include "common/json.h"
#include "common/log.h"
#include "imgfmt/job.h"
#include "imgfmt/series.h"

enum { OPT_VERIFY = CLI_OPT_OWN };

static const struct option longs[] = {
	{ "verify", no_argument, NULL, OPT_VERIFY },
	CLI_LONG_BYTES,
	CLI_LONG_JSON,
	CLI_LONG_END,
};

static uint64_t unique_bytes(const struct series_file *f)
{
	return f->file_bytes - (f->shared_bytes < f->file_bytes ? f->shared_bytes : f->file_bytes);
}

static void print_notes(const struct series_file *f)
{
	if (f->latest)
		printf(", latest");
	if (f->busy)
		printf(", being written");
	if (f->n_bases)
		printf(", needs %u other%s", f->n_bases, cli_plural(f->n_bases));
	if (f->n_users)
		printf(", needed by %u", f->n_users);
	if (f->why && !f->busy)
		printf(": %s", f->why);
}

static void print_line(const struct cli *cli, const struct series_file *f)
{
	char a[SIZE_TEXT_EXACT], b[SIZE_TEXT_EXACT], c[SIZE_TEXT_EXACT], d[SIZE_TEXT_EXACT];

	printf("%10s %10s %10s %10s  ", cli_size_text(cli, f->logical_bytes, a), cli_size_text(cli, f->file_bytes, b),
	       cli_size_text(cli, f->shared_bytes, c), cli_size_text(cli, unique_bytes(f), d));
	cli_print_name(stdout, f->file, strlen(f->file));
	printf("  %s", series_state_text(f->state));
	print_notes(f);
	putchar('\n');
}

/* the image that a rank of a manifest has, if it is complete and the one that is meant */
static bool is_there(const struct series_list *list, const struct job_image *image)
{
	for (size_t i = 0; i < list->n; i++) {
		const struct series_file *f = &list->files[i];

		if (!strcmp(f->file, image->file) && !memcmp(f->id, image->id, 16))
			return f->state == SERIES_COMPLETE;
	}
	return false;
}

static unsigned count_there(const struct series_list *list, const struct job_manifest *m)
{
	unsigned n = 0;

	for (unsigned i = 0; i < m->n_ranks; i++)
		n += is_there(list, &m->images[i]);
	return n;
}

static void print_jobs(const struct series_list *list, const struct job_list *jobs)
{
	for (size_t i = 0; i < jobs->n; i++) {
		const struct job_manifest *m = &jobs->manifests[i];
		unsigned n = count_there(list, m);

		cli_print_name(stdout, m->file, strlen(m->file));
		printf("  %s: %u of %u ranks", n == m->n_ranks ? "complete" : "damaged", n, m->n_ranks);
		if (m->step)
			printf(", step "), cli_print_name(stdout, m->step, strlen(m->step));
		putchar('\n');
	}
}

static void print_text(const struct cli *cli, const struct series_list *list, const struct job_list *jobs)
{
	printf("%10s %10s %10s %10s  %s\n", "LOGICAL", "IMAGE", "SHARED", "UNIQUE", "FILE AND STATE");
	for (size_t i = 0; i < list->n; i++)
		print_line(cli, &list->files[i]);
	print_jobs(list, jobs);
}

static void json_file(struct json *js, const struct series_file *f)
{
	char id[33];

	json_object(js, NULL);
	json_string(js, "file", f->file);
	if (f->name)
		json_u64(js, "sequence", f->sequence);
	json_string(js, "state", series_state_text(f->state));
	if (f->why)
		json_string(js, "why", f->why);
	json_bool(js, "latest", f->latest);
	json_bool(js, "temporary", f->temporary);
	json_bool(js, "busy", f->busy);
	json_u64(js, "file_bytes", f->file_bytes);
	json_u64(js, "shared_bytes", f->shared_bytes);
	json_u64(js, "unique_bytes", unique_bytes(f));
	if (f->state == SERIES_COMPLETE || f->state == SERIES_BASE_MISSING) {
		image_id_text(f->id, id);
		json_string(js, "id", id);
		json_u64(js, "logical_bytes", f->logical_bytes);
		json_u64(js, "hole_bytes", f->hole_bytes);
		json_u64(js, "base_bytes", f->base_bytes);
	}
	json_u64(js, "n_users", f->n_users);
	json_array_line(js, "bases");
	for (unsigned k = 0; k < f->n_bases; k++) {
		image_id_text(f->bases[k], id);
		json_string(js, NULL, id);
	}
	json_close(js);
	json_close(js);
}

/* the files from @from on that belong to the same series (or to none). Return: one past the last */
static size_t json_one(struct json *js, const struct series_list *list, size_t from)
{
	const char *name = list->files[from].name;
	const struct series_file *newest = name ? series_newest(list, name) : NULL;
	size_t i;

	json_object(js, NULL);
	if (name)
		json_string(js, "name", name);
	if (newest)
		json_string(js, "latest", newest->file);
	json_array(js, "images");
	for (i = from; i < list->n; i++) {
		const char *other = list->files[i].name;

		if (!other != !name || (name && strcmp(other, name) != 0))
			break;
		json_file(js, &list->files[i]);
	}
	json_close(js);
	json_close(js);
	return i;
}

static void json_jobs(struct json *js, const struct series_list *list, const struct job_list *jobs)
{
	for (size_t i = 0; i < jobs->n; i++) {
		const struct job_manifest *m = &jobs->manifests[i];
		char id[33];

		json_object(js, NULL);
		json_string(js, "job", m->id);
		json_string(js, "file", m->file);
		json_u64(js, "sequence", m->sequence);
		json_string(js, "state", count_there(list, m) == m->n_ranks ? "complete" : "damaged");
		if (m->step)
			json_string(js, "step", m->step);
		json_array(js, "images");
		for (unsigned k = 0; k < m->n_ranks; k++) {
			image_id_text(m->images[k].id, id);
			json_object_line(js, NULL);
			json_u64(js, "rank", k);
			json_string(js, "file", m->images[k].file);
			json_string(js, "id", id);
			json_bool(js, "complete", is_there(list, &m->images[k]));
			json_close(js);
		}
		json_close(js);
		json_close(js);
	}
}

static void print_json(const struct series_list *list, const struct job_list *jobs)
{
	struct json js;

	json_begin(&js, stdout);
	json_object(&js, NULL);
	json_string(&js, "store", list->store);
	json_array(&js, "series");
	for (size_t i = 0; i < list->n;)
		i = json_one(&js, list, i);
	json_close(&js);
	json_array(&js, "jobs");
	json_jobs(&js, list, jobs);
	json_close(&js);
	json_close(&js);
	json_end(&js);
}

static int do_series(const struct cli *cli, const char *store, const char *name, unsigned flags)
{
	struct job_list jobs = { 0 };
	struct series_list list;
	int err, rc = CLI_GOOD;

	cli_catch_signals();
	err = series_scan(store, name, flags | SERIES_ONLY, &cli_stop, &list);
	if (!err && name && !list.n) {
		log_error("cannot find a series '%s' in '%s'", name, store);
		err = -ENOENT;
	}
	/* a job's images are in several series */
	if (!err && !name)
		err = job_scan(store, NULL, &jobs);
	if (err == -EINTR)
		log_error("cannot list '%s': interrupted", store);
	if (!err && cli->json)
		print_json(&list, &jobs);
	else if (!err)
		print_text(cli, &list, &jobs);
	for (size_t i = 0; i < list.n; i++)
		if (list.files[i].state == SERIES_DAMAGED)
			rc = CLI_DAMAGED;
	series_release(&list);
	job_list_release(&jobs);
	return err ? cli_exit_code(err) : rc;
}

static int run_series(const struct verb *verb, int argc, char **argv)
{
	struct cli cli = { .verb = verb };
	unsigned flags = SERIES_SIZES;
	int c, rc;

	while ((c = cli_getopt(&cli, argc, argv, "b", longs)) != -1) {
		if (c == '?')
			return cli_stop_code(&cli);
		flags |= SERIES_VERIFY;
	}
	rc = cli_operands(&cli, argc, argv, 1, 2);
	if (rc)
		return rc;
	return do_series(&cli, argv[optind], argc - optind > 1 ? argv[optind + 1] : NULL, flags);
}

const struct verb verb_series = {
	.name = "series",
	.synopsis = "[--verify] STORE [NAME]",
	.summary = "List the images of a store: complete, partial, damaged",
	.help = "LOGICAL: size as files. IMAGE: size of the image. SHARED: bytes of it that other images refer to. "
		"UNIQUE: what\n"
		"is this image's alone. The state is complete, partial, damaged, base-missing or failed.\n\n"
		"      --verify         check every chunk, not only that header, index and footer hold together\n"
		"  -b, --bytes          exact sizes\n"
		"      --json           as JSON\n"
		"\nExit code 3 when an image is damaged.\n",
	.run = run_series,
};
