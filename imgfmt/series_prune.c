/* SPDX-License-Identifier: Apache-2.0 */
/* Removing what a series no longer needs. Everything is decided before the first file goes. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/io.h"
#include "common/log.h"
#include "common/stop.h"
#include "imgfmt/image.h"
#include "imgfmt/job.h"
#include "imgfmt/series.h"
#include "imgfmt/verify.h"

#define ID_TEXT 33

struct prune {
	const struct series_prune_opts *opts;
	const char *name;
	struct series_list list;
	struct job_list jobs;
	bool *keep; /* for each file of the list */
};

static bool is_ours(const struct prune *p, size_t i)
{
	const struct series_file *f = &p->list.files[i];

	return f->name && !strcmp(f->name, p->name);
}

/* -- what was verified ------------------------------------------------------------------------ */

/* .NAME.verified holds the id of an image of which every chunk was good when it was looked at */
static char *note_path(const struct prune *p)
{
	char *path;

	return asprintf(&path, "%s/.%s.verified", p->list.store, p->name) < 0 ? NULL : path;
}

static bool was_verified(const struct prune *p, const struct series_file *f)
{
	_cleanup_free_ char *path = note_path(p);
	_cleanup_close_ int fd = path ? open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK) : -1;
	char want[ID_TEXT], have[ID_TEXT] = { 0 };

	image_id_text(f->id, want);
	return fd >= 0 && io_read_at(fd, have, ID_TEXT - 1, 0) == 0 && !strcmp(have, want);
}

/* only saves work: what goes wrong here is no error */
static void remember_verified(const struct prune *p, const struct series_file *f)
{
	_cleanup_free_ char *path = note_path(p);
	_cleanup_close_ int fd = path ? open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600) : -1;
	char id[ID_TEXT];

	image_id_text(f->id, id);
	id[ID_TEXT - 1] = '\n';
	if (fd >= 0)
		(void)io_write(fd, id, ID_TEXT);
}

/* 1: every chunk of it and of what it needs is good; 0: not so; -errno */
static int verify(const struct prune *p, const struct series_file *f)
{
	const struct verify_opts opts = { .threads = p->opts->threads };
	_cleanup_free_ char *path = NULL;
	struct verify_result res;
	struct image *img;
	int r;

	if (asprintf(&path, "%s/%s", p->list.store, f->file) < 0) {
		path = NULL;
		return -ENOMEM;
	}
	r = image_open(path, NULL, &img);
	if (r)
		return r == -ENOMEM ? r : 0;
	r = image_check(img, &opts, &res);
	image_close(img);
	if (r)
		return r;
	if (res.n_damaged || res.n_index_errors) {
		log_warn("'%s' is damaged: see 'thawfs verify'", path);
		return 0;
	}
	return 1;
}

/* -- deciding --------------------------------------------------------------------------------- */

static void keep_newest(struct prune *p)
{
	unsigned left = p->opts->keep;

	for (size_t i = p->list.n; i-- > 0;) {
		if (!is_ours(p, i) || p->list.files[i].state != SERIES_COMPLETE)
			continue;
		if (!left)
			return;
		p->keep[i] = true;
		left--;
	}
}

/* keep one of which everything was verified; the newest that is good, be it older than what is kept already */
static int keep_verified(struct prune *p)
{
	for (size_t i = p->list.n; i-- > 0 && p->opts->trust;)
		if (p->keep[i] && was_verified(p, &p->list.files[i]))
			return 0;
	for (size_t i = p->list.n; i-- > 0;) {
		const struct series_file *f = &p->list.files[i];
		int good;

		if (!is_ours(p, i) || f->state != SERIES_COMPLETE)
			continue;
		if (stop_asked(p->opts->stop))
			return -EINTR;
		good = verify(p, f);
		if (good < 0)
			return good;
		if (!good)
			continue;
		p->keep[i] = true;
		remember_verified(p, f);
		return 0;
	}
	log_error("cannot prune series '%s' in '%s': no image of it can be verified, so none is removed", p->name,
		  p->list.store);
	return -EBADMSG;
}

/* is manifest @i one of the newest of its job, so many as images are to stay? */
static bool is_new_manifest(const struct prune *p, size_t i)
{
	const struct job_list *jobs = &p->jobs;

	return i + p->opts->keep >= jobs->n ||
	       strcmp(jobs->manifests[i].id, jobs->manifests[i + p->opts->keep].id) != 0;
}

static bool is_named(const struct job_manifest *m, const struct series_file *f)
{
	for (unsigned k = 0; k < m->n_ranks; k++)
		if (!strcmp(m->images[k].file, f->file) && !memcmp(m->images[k].id, f->id, 16))
			return true;
	return false;
}

/* the images of the newest checkpoints of jobs, which may be older than others of this rank */
static void keep_jobs(struct prune *p)
{
	for (size_t m = 0; m < p->jobs.n; m++)
		for (size_t i = 0; i < p->list.n && is_new_manifest(p, m); i++)
			if (!p->keep[i] && is_named(&p->jobs.manifests[m], &p->list.files[i]))
				p->keep[i] = true;
}

/* a checkpoint of which an image is to go is none from then on: first it is no longer called one */
static int remove_manifests(const struct prune *p, const struct series_file *f)
{
	for (size_t m = 0; m < p->jobs.n; m++) {
		_cleanup_free_ char *path = NULL;

		if (is_new_manifest(p, m) || !is_named(&p->jobs.manifests[m], f))
			continue;
		if (asprintf(&path, "%s/%s", p->list.store, p->jobs.manifests[m].file) < 0) {
			path = NULL;
			return -ENOMEM;
		}
		if (unlink(path) && errno != ENOENT) {
			int r = -errno;

			log_error("cannot remove '%s': %s", path, strerror(-r));
			return r;
		}
	}
	return 0;
}

/* chunks lie in the images that are named, never behind those, so one step is enough; but names are cheap */
static void keep_bases(struct prune *p)
{
	bool more = true;

	while (more) {
		more = false;
		for (size_t i = 0; i < p->list.n; i++)
			for (unsigned k = 0; p->keep[i] && k < p->list.files[i].n_bases; k++) {
				const struct series_file *base = series_by_id(&p->list, p->list.files[i].bases[k]);
				size_t at = base ? (size_t)(base - p->list.files) : 0;

				if (base && !p->keep[at])
					more = p->keep[at] = true;
			}
	}
}

static int decide(struct prune *p)
{
	size_t n = 0;
	int r;

	/* other series, images of none, and what is not complete are not ours to remove */
	for (size_t i = 0; i < p->list.n; i++) {
		bool complete = p->list.files[i].state == SERIES_COMPLETE;

		p->keep[i] = !is_ours(p, i) || !complete;
		n += is_ours(p, i) && complete;
	}
	if (n <= p->opts->keep)
		return 1;
	keep_newest(p);
	keep_jobs(p);
	r = keep_verified(p);
	keep_bases(p);
	return r;
}

/* -- doing ------------------------------------------------------------------------------------ */

static int remove_file(const struct series_list *list, const struct series_file *f)
{
	_cleanup_free_ char *path = NULL;

	if (asprintf(&path, "%s/%s", list->store, f->file) < 0) {
		path = NULL;
		return -ENOMEM;
	}
	if (unlink(path) && errno != ENOENT) {
		int r = -errno;

		log_error("cannot remove '%s': %s", path, strerror(-r));
		return r;
	}
	if (f->temporary) {
		/* a journal is of no use without it; what is there may be one that is alone */
		strcpy(path + strlen(path) - strlen("partial"), "journal");
		unlink(path);
	}
	return 0;
}

/* those that need others go before those, which are older: what is interrupted leaves nothing without its base */
static int remove_rest(struct prune *p)
{
	int r = 0;

	for (size_t i = p->list.n; i-- > 0 && !r;) {
		const struct series_file *f = &p->list.files[i];

		if (p->keep[i])
			continue;
		if (!p->opts->dry_run)
			r = remove_manifests(p, f);
		if (!r && !p->opts->dry_run)
			r = remove_file(&p->list, f);
		if (!r && p->opts->removed)
			p->opts->removed(p->opts->ctx, f);
	}
	return r;
}

int series_prune(const char *store, const char *name, const struct series_prune_opts *opts)
{
	struct prune p = { .opts = opts, .name = name };
	int r = series_scan(store, name, 0, opts->stop, &p.list);

	if (!r)
		r = job_scan(store, NULL, &p.jobs);
	if (!r) {
		p.keep = calloc(p.list.n + 1, sizeof(*p.keep));
		r = p.keep ? decide(&p) : -ENOMEM;
	}
	if (!r)
		r = remove_rest(&p);
	series_release(&p.list);
	job_list_release(&p.jobs);
	free(p.keep);
	return r < 0 ? r : 0;
}

int series_clean(const char *store, const char *name, bool damaged, bool dry_run,
		 void (*removed)(void *ctx, const struct series_file *file), void *ctx)
{
	struct series_list list;
	int r = series_scan(store, name, SERIES_ONLY | (damaged ? SERIES_VERIFY : 0), NULL, &list);

	for (size_t i = 0; i < list.n && !r; i++) {
		const struct series_file *f = &list.files[i];

		/* what others need may be good where they need it */
		if (f->state != SERIES_PARTIAL && !(damaged && f->state == SERIES_DAMAGED && !f->n_users))
			continue;
		if (!dry_run)
			r = remove_file(&list, f);
		if (!r && removed)
			removed(ctx, f);
	}
	series_release(&list);
	return r;
}
