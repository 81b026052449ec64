/* SPDX-License-Identifier: Apache-2.0 */
#include "imgfmt/job.h"
#include "common/clock.h"
#include "common/stop.h"

#include <cjson/cJSON.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/bytes.h"
#include "common/cleanup.h"
#include "common/io.h"
#include "common/log.h"
#include "imgfmt/image.h"
#include "imgfmt/series.h"

#define SUFFIX       ".job"
#define DEFAULT_WAIT 300 /* s */
#define POLL_MS      20  /* at first, then slower */
#define POLL_MAX_MS  500
#define LOCK_TRIES   25
#define MAX_TEXT     (64u << 20) /* of a manifest: 65536 ranks with long names */

struct job {
	char *store;
	struct job_opts opts;
	const volatile int *stop;
	int dir, member;
	uint64_t token;
};

char *job_series_name(const struct job_opts *opts)
{
	char *name;

	return asprintf(&name, "%s.r%u", opts->id, opts->rank) < 0 ? NULL : name;
}

static void sleep_ms(unsigned ms)
{
	const struct timespec ts = { .tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000 };

	nanosleep(&ts, NULL);
}

static int fail(const struct job *job, const char *what, int r)
{
	log_error("cannot %s job '%s' in '%s': %s", what, job->opts.id, job->store, strerror(-r));
	return r;
}

/* -- text ------------------------------------------------------------------------------------- */

static int read_text(int dir, const char *name, char **ret)
{
	_cleanup_close_ int fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	_cleanup_free_ char *text = NULL;
	struct stat st;
	int r;

	if (fd < 0 || fstat(fd, &st))
		return -errno;
	if (!S_ISREG(st.st_mode) || st.st_size > MAX_TEXT)
		return -EBADMSG;
	text = calloc(1, (size_t)st.st_size + 1);
	if (!text)
		return -ENOMEM;
	r = io_read_at(fd, text, (size_t)st.st_size, 0);
	if (!r)
		*ret = steal_ptr(&text);
	return r;
}

static bool parse_hex(const char *text, void *ret, size_t len)
{
	uint8_t *out = ret;

	if (!text || strlen(text) != 2 * len)
		return false;
	for (size_t i = 0; i < len; i++) {
		unsigned v;
		char pair[3] = { text[2 * i], text[2 * i + 1], '\0' };

		if (strspn(pair, "0123456789abcdef") != 2 || sscanf(pair, "%x", &v) != 1)
			return false;
		out[i] = (uint8_t)v;
	}
	return true;
}

static const char *string_of(const cJSON *json, const char *key)
{
	return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, key));
}

static int64_t number_of(const cJSON *json, const char *key)
{
	const cJSON *n = cJSON_GetObjectItemCaseSensitive(json, key);

	return cJSON_IsNumber(n) && n->valuedouble >= 0 && n->valuedouble < 1e15 ? (int64_t)n->valuedouble : -1;
}

static cJSON *image_json(const char *file, const uint8_t id[16], uint64_t token)
{
	cJSON *json = cJSON_CreateObject();
	char text[33];

	image_id_text(id, text);
	cJSON_AddStringToObject(json, "file", file);
	cJSON_AddStringToObject(json, "id", text);
	snprintf(text, sizeof(text), "%016" PRIx64, token);
	cJSON_AddStringToObject(json, "token", text);
	return json;
}

static bool parse_image(const cJSON *json, struct job_image *ret)
{
	const char *file = string_of(json, "file");
	uint8_t token[8];

	/* the name is opened and removed: nothing outside of the store */
	if (!file || !*file || strchr(file, '/') || !parse_hex(string_of(json, "id"), ret->id, 16) ||
	    !parse_hex(string_of(json, "token"), token, 8))
		return false;
	ret->token = 0;
	for (int i = 0; i < 8; i++)
		ret->token = ret->token << 8 | token[i];
	ret->file = strdup(file);
	return ret->file != NULL;
}

static void release_manifest(struct job_manifest *m)
{
	for (unsigned i = 0; m->images && i < m->n_ranks; i++)
		free(m->images[i].file);
	free(m->images);
	free(m->file);
	free(m->id);
	free(m->step);
}

static bool parse_manifest(const cJSON *json, struct job_manifest *m)
{
	const cJSON *images = cJSON_GetObjectItemCaseSensitive(json, "images"), *one;
	const char *id = string_of(json, "job"), *step = string_of(json, "step");
	int64_t ranks = number_of(json, "ranks");
	unsigned rank = 0;

	if (!id || ranks < 1 || ranks > JOB_RANKS_MAX || cJSON_GetArraySize(images) != ranks ||
	    number_of(json, "sequence") != (int64_t)m->sequence)
		return false;
	m->n_ranks = (unsigned)ranks;
	m->images = calloc(m->n_ranks, sizeof(*m->images));
	m->id = strdup(id);
	m->step = step ? strdup(step) : NULL;
	if (!m->images || !m->id || (step && !m->step))
		return false;
	cJSON_ArrayForEach(one, images) if (!parse_image(one, &m->images[rank++])) return false;
	return true;
}

/* is it ID-<sequence>.job? The same rule as for images. */
static bool manifest_name(const char *file, size_t *ret_id_len, uint64_t *ret_sequence)
{
	size_t len = strlen(file), stem = len - strlen(SUFFIX);
	char as_image[NAME_MAX + 8];

	if (len <= strlen(SUFFIX) || len > NAME_MAX || strcmp(file + stem, SUFFIX) != 0)
		return false;
	snprintf(as_image, sizeof(as_image), "%.*s.thaw", (int)stem, file);
	return series_parse(as_image, ret_id_len, ret_sequence);
}

static int read_manifest(int dir, const char *file, uint64_t sequence, struct job_manifest *ret)
{
	struct job_manifest m = { .sequence = sequence };
	_cleanup_free_ char *text = NULL;
	cJSON *json = NULL;
	bool good;
	int r = read_text(dir, file, &text);

	if (r)
		return r;
	json = cJSON_Parse(text);
	good = json && parse_manifest(json, &m);
	cJSON_Delete(json);
	m.file = strdup(file);
	if (!good || !m.file) {
		release_manifest(&m);
		return -EBADMSG;
	}
	*ret = m;
	return 0;
}

/* -- listing ---------------------------------------------------------------------------------- */

static int compare_manifests(const void *a, const void *b)
{
	const struct job_manifest *x = a, *y = b;
	int r = strcmp(x->id, y->id);

	return r ? r : (x->sequence > y->sequence) - (x->sequence < y->sequence);
}

static int add_manifest(struct job_list *list, const char *store, int dir, const char *file, uint64_t sequence)
{
	struct job_manifest m, *p;
	int r = read_manifest(dir, file, sequence, &m);

	if (r == -ENOENT) /* pruned meanwhile */
		return 0;
	if (r) {
		log_error("cannot read '%s/%s': %s", store, file, r == -EBADMSG ? "it is no manifest" : strerror(-r));
		return r;
	}
	p = realloc(list->manifests, (list->n + 1) * sizeof(*p));
	if (!p) {
		release_manifest(&m);
		return -ENOMEM;
	}
	list->manifests = p;
	p[list->n++] = m;
	return 0;
}

int job_scan(const char *store, const char *id, struct job_list *ret)
{
	_cleanup_closedir_ DIR *dir = opendir(store);
	struct dirent *e;
	int r = 0;

	*ret = (struct job_list){ 0 };
	if (!dir) {
		r = -errno;
		log_error("cannot read the store '%s': %s", store, strerror(-r));
		return r;
	}
	while (!r && (e = readdir(dir))) {
		uint64_t sequence;
		size_t len;

		if (manifest_name(e->d_name, &len, &sequence) &&
		    (!id || (strlen(id) == len && !memcmp(id, e->d_name, len))))
			r = add_manifest(ret, store, dirfd(dir), e->d_name, sequence);
	}
	if (ret->n)
		qsort(ret->manifests, ret->n, sizeof(*ret->manifests), compare_manifests);
	return r;
}

void job_list_release(struct job_list *list)
{
	for (size_t i = 0; i < list->n; i++)
		release_manifest(&list->manifests[i]);
	free(list->manifests);
	*list = (struct job_list){ 0 };
}

/* -- being a rank ----------------------------------------------------------------------------- */

static void member_name(const struct job_opts *opts, unsigned rank, char ret[NAME_MAX + 1])
{
	snprintf(ret, NAME_MAX + 1, ".%s.job.r%u", opts->id, rank);
}

/* the lock under which manifests are made, and ranks come and go. Return: descriptor or -errno */
static int lock_job(const struct job *job)
{
	_cleanup_close_ int fd = -1;
	char name[NAME_MAX + 1];

	snprintf(name, sizeof(name), ".%s.job.lock", job->opts.id);
	fd = openat(job->dir, name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
	if (fd < 0)
		return -errno;
	while (flock(fd, LOCK_EX | LOCK_NB)) {
		if (errno != EWOULDBLOCK && errno != EINTR)
			return -errno;
		sleep_ms(1);
	}
	return steal_fd(&fd);
}

static int lock_member(struct job *job)
{
	char name[NAME_MAX + 1];

	member_name(&job->opts, job->opts.rank, name);
	job->member = openat(job->dir, name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
	if (job->member < 0)
		return fail(job, "join", -errno);
	/* whoever looks whether this rank is there holds the lock for a moment */
	for (int i = 0; flock(job->member, LOCK_EX | LOCK_NB); i++) {
		if (errno == EINTR)
			continue;
		if (errno != EWOULDBLOCK)
			return fail(job, "join", -errno);
		if (i >= LOCK_TRIES) {
			log_error("cannot join job '%s' in '%s': another process is rank %u", job->opts.id, job->store,
				  job->opts.rank);
			return -EBUSY;
		}
		sleep_ms(POLL_MS);
	}
	return ftruncate(job->member, 0) ? fail(job, "join", -errno) : 0;
}

int job_join(const char *store, const struct job_opts *opts, const volatile int *stop, struct job **ret)
{
	struct job *job = calloc(1, sizeof(*job));
	int r = 0, lock = -1;

	if (!job)
		return -ENOMEM;
	job->opts = *opts;
	job->stop = stop;
	job->member = job->dir = -1;
	job->store = strdup(store);
	if (!job->store)
		r = -ENOMEM;
	if (!r && (job->dir = open(store, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0)
		r = fail(job, "join", -errno);
	if (!r && getrandom(&job->token, sizeof(job->token), 0) != sizeof(job->token))
		r = fail(job, "join", -errno);
	/* what the rank's last process announced must not be seen as this one's */
	if (!r && (lock = lock_job(job)) < 0)
		r = fail(job, "join", lock);
	if (!r)
		r = lock_member(job);
	if (lock >= 0)
		close(lock);
	if (r) {
		job_leave(job);
		return r;
	}
	*ret = job;
	return 0;
}

void job_leave(struct job *job)
{
	if (!job)
		return;
	if (job->member >= 0)
		close(job->member);
	if (job->dir >= 0)
		close(job->dir);
	free(job->store);
	free(job);
}

/* say that the image is there */
static int announce(const struct job *job, const char *file, const uint8_t id[16])
{
	cJSON *json = image_json(file, id, job->token);
	_cleanup_free_ char *text = NULL;
	int r;

	cJSON_AddNumberToObject(json, "ranks", job->opts.ranks);
	if (job->opts.step)
		cJSON_AddStringToObject(json, "step", job->opts.step);
	text = cJSON_PrintUnformatted(json);
	cJSON_Delete(json);
	if (!text)
		return -ENOMEM;
	r = ftruncate(job->member, 0) ? -errno : io_write_at(job->member, text, strlen(text), 0);
	if (!r && fsync(job->member))
		r = -errno;
	return r ? fail(job, "join", r) : 0;
}

/* -- the manifest ----------------------------------------------------------------------------- */

/* is the process that is this rank alive? */
static bool is_alive(int dir, const char *name)
{
	_cleanup_close_ int fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);

	return fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) && errno == EWOULDBLOCK;
}

/* the image that rank @rank has for the manifest to come. Return: whether it has one */
static bool look_at_rank(const struct job *job, const struct job_manifest *last, unsigned rank, struct job_image *ret)
{
	_cleanup_free_ char *text = NULL;
	struct job_image image = { 0 };
	char name[NAME_MAX + 1];
	const char *step;
	cJSON *json;
	bool good;

	member_name(&job->opts, rank, name);
	if (!job->opts.step && rank != job->opts.rank && !is_alive(job->dir, name))
		return false;
	if (read_text(job->dir, name, &text))
		return false;
	json = cJSON_Parse(text);
	step = string_of(json, "step");
	good = json && number_of(json, "ranks") == (int64_t)job->opts.ranks && !step == !job->opts.step &&
	       (!step || !strcmp(step, job->opts.step)) && parse_image(json, &image);
	cJSON_Delete(json);
	/* it has not heard yet that it is in the last one */
	if (good && last && rank < last->n_ranks && last->images[rank].token == image.token)
		good = false;
	if (good)
		*ret = image;
	else
		free(image.file);
	return good;
}

static int put_file(const struct job *job, const char *name, const char *text)
{
	_cleanup_free_ char *tmp = NULL;
	_cleanup_close_ int fd = -1;
	int r;

	if (asprintf(&tmp, ".%s.partial", name) < 0) {
		tmp = NULL;
		return -ENOMEM;
	}
	fd = openat(job->dir, tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return -errno;
	r = io_write(fd, text, strlen(text));
	if (!r && (fsync(fd) || renameat(job->dir, tmp, job->dir, name) || fsync(job->dir)))
		r = -errno;
	if (r)
		unlinkat(job->dir, tmp, 0);
	return r;
}

/* only a convenience: the highest number is the newest, whatever the link says */
static void lead_link(const struct job *job, const char *name)
{
	_cleanup_free_ char *link = NULL, *tmp = NULL;

	if (asprintf(&link, "%s-latest" SUFFIX, job->opts.id) < 0)
		link = NULL;
	if (asprintf(&tmp, ".%s-latest" SUFFIX ".link", job->opts.id) < 0)
		tmp = NULL;
	if (!link || !tmp)
		return;
	unlinkat(job->dir, tmp, 0);
	if (symlinkat(name, job->dir, tmp) || renameat(job->dir, tmp, job->dir, link))
		log_warn("cannot lead '%s/%s' to the newest manifest: %s", job->store, link, strerror(errno));
}

/* who made the newest manifest may have been killed before it led the link there */
static void repair_link(const struct job *job, const char *newest)
{
	char link[NAME_MAX + 1], target[NAME_MAX + 1];
	ssize_t n;

	snprintf(link, sizeof(link), "%s-latest" SUFFIX, job->opts.id);
	n = readlinkat(job->dir, link, target, sizeof(target));
	if (n != (ssize_t)strlen(newest) || memcmp(target, newest, (size_t)n) != 0)
		lead_link(job, newest);
}

static int write_manifest(const struct job *job, uint64_t sequence, const struct job_image *images)
{
	cJSON *json = cJSON_CreateObject(), *list;
	_cleanup_free_ char *text = NULL, *name = NULL;
	int r;

	cJSON_AddStringToObject(json, "job", job->opts.id);
	cJSON_AddNumberToObject(json, "sequence", (double)sequence);
	cJSON_AddNumberToObject(json, "ranks", job->opts.ranks);
	if (job->opts.step)
		cJSON_AddStringToObject(json, "step", job->opts.step);
	list = cJSON_AddArrayToObject(json, "images");
	for (unsigned i = 0; i < job->opts.ranks; i++)
		cJSON_AddItemToArray(list, image_json(images[i].file, images[i].id, images[i].token));
	text = cJSON_Print(json);
	cJSON_Delete(json);
	if (!text || asprintf(&name, "%s-%06" PRIu64 SUFFIX, job->opts.id, sequence) < 0) {
		name = NULL;
		return -ENOMEM;
	}
	r = put_file(job, name, text);
	if (!r)
		lead_link(job, name);
	return r;
}

/* are all there? Then the manifest is made. Return: how many are there, or -errno */
static int try_to_complete(const struct job *job, const struct job_manifest *last)
{
	struct job_image *images = calloc(job->opts.ranks, sizeof(*images));
	unsigned n = 0;
	int r;

	if (!images)
		return -ENOMEM;
	for (unsigned i = 0; i < job->opts.ranks; i++)
		n += look_at_rank(job, last, i, &images[i]);
	r = n == job->opts.ranks ? write_manifest(job, last ? last->sequence + 1 : 1, images) : 0;
	for (unsigned i = 0; i < job->opts.ranks; i++)
		free(images[i].file);
	free(images);
	return r ? r : (int)n;
}

/* the newest manifest of @list if this process' image is in it */
static uint64_t is_in(const struct job *job, const struct job_list *list)
{
	for (size_t i = list->n; i-- > 0;) {
		const struct job_manifest *m = &list->manifests[i];

		if (job->opts.rank < m->n_ranks && m->images[job->opts.rank].token == job->token)
			return m->sequence;
	}
	return 0;
}

/* under the job's lock; @give_up: what is not in a manifest now will never be. Return: as try_to_complete() */
static int look_and_complete(const struct job *job, bool give_up, uint64_t *ret_sequence)
{
	struct job_list list;
	int r = job_scan(job->store, job->opts.id, &list), n = (int)job->opts.ranks;

	*ret_sequence = r ? 0 : is_in(job, &list);
	if (*ret_sequence)
		repair_link(job, list.manifests[list.n - 1].file);
	if (!r && !*ret_sequence) {
		const struct job_manifest *last = list.n ? &list.manifests[list.n - 1] : NULL;

		n = try_to_complete(job, last);
		if (n == (int)job->opts.ranks)
			*ret_sequence = last ? last->sequence + 1 : 1;
		else if (give_up && n >= 0 && ftruncate(job->member, 0))
			n = -errno;
	}
	job_list_release(&list);
	return r ? r : n;
}

int job_commit(struct job *job, const char *file, const uint8_t id[16], uint64_t *ret_sequence)
{
	uint64_t due = clock_ms() + 1000ull * (job->opts.wait_s ? job->opts.wait_s : DEFAULT_WAIT);
	unsigned pause = POLL_MS;
	int r = announce(job, file, id);

	while (!r) {
		bool stop = stop_asked(job->stop), late = clock_ms() >= due;
		int lock = lock_job(job), n;

		if (lock < 0)
			return fail(job, "complete", lock);
		n = look_and_complete(job, stop || late, ret_sequence);
		close(lock);
		if (n < 0)
			return n == -EBADMSG ? n : fail(job, "complete", n);
		if (*ret_sequence || job->opts.step)
			return 0;
		if (stop || late) {
			log_error("cannot complete job '%s': %d of %u ranks came%s", job->opts.id, n, job->opts.ranks,
				  stop ? " before it was stopped" : " in time");
			return stop ? -EINTR : -ETIME;
		}
		sleep_ms(pause);
		pause = pause * 2 < POLL_MAX_MS ? pause * 2 : POLL_MAX_MS;
	}
	return r;
}
