/* SPDX-License-Identifier: Apache-2.0 */
#include "imgfmt/series.h"
#include "common/stop.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/bytes.h"
#include "common/cleanup.h"
#include "common/io.h"
#include "common/log.h"
#include "imgfmt/footer.h"
#include "imgfmt/image.h"
#include "imgfmt/verify.h"

#define SUFFIX     ".thaw"
#define PARTIAL    ".partial"
#define JOURNAL    ".journal"
#define DIGITS     6 /* at least */
#define LATEST     "latest"
#define LOCK_TRIES 10
#define LOCK_WAIT  50000000 /* ns */

const char *series_state_text(enum series_state state)
{
	static const char *const texts[] = { "complete", "partial", "damaged", "base-missing", "failed" };

	return texts[state];
}

/* -- names ------------------------------------------------------------------------------------ */

bool series_good_name(const char *name)
{
	return *name && *name != '.' && !strchr(name, '/') && strlen(name) <= SERIES_NAME_MAX;
}

bool series_parse(const char *file, size_t *ret_name_len, uint64_t *ret_sequence)
{
	size_t len = strlen(file), end = len - strlen(SUFFIX), at = end;
	uint64_t sequence;

	if (len <= strlen(SUFFIX) || strcmp(file + end, SUFFIX) != 0 || *file == '.')
		return false;
	while (at && isdigit((unsigned char)file[at - 1]))
		at--;
	if (end - at < DIGITS || end - at > 18 || at < 2 || file[at - 1] != '-' || at - 1 > SERIES_NAME_MAX ||
	    (end - at > DIGITS && file[at] == '0'))
		return false;
	sequence = strtoull(file + at, NULL, 10);
	if (!sequence)
		return false;
	*ret_name_len = at - 1;
	*ret_sequence = sequence;
	return true;
}

char *series_format(const char *name, uint64_t sequence)
{
	char *file;

	return asprintf(&file, "%s-%0*" PRIu64 SUFFIX, name, DIGITS, sequence) < 0 ? NULL : file;
}

int series_check_store(const char *store)
{
	if (!strstr(store, "://"))
		return 0;
	log_error("cannot use the store '%s': only directories can hold a series in this version", store);
	return -EOPNOTSUPP;
}

/* the series and number of a file, hidden or not; false: neither an image nor a temporary one */
static bool name_file(struct series_file *f, const char *name)
{
	size_t len = strlen(name), name_len;

	if (*name == '.') {
		_cleanup_free_ char *inner = NULL;

		/* both endings are of one length */
		if (len <= strlen(PARTIAL) + 1 || (strcmp(name + len - strlen(PARTIAL), PARTIAL) != 0 &&
						   strcmp(name + len - strlen(JOURNAL), JOURNAL) != 0))
			return false;
		inner = strndup(name + 1, len - strlen(PARTIAL) - 1);
		f->temporary = true;
		if (!inner || !series_parse(inner, &name_len, &f->sequence))
			return false;
		f->name = strndup(inner, name_len);
	} else if (series_parse(name, &name_len, &f->sequence)) {
		f->name = strndup(name, name_len);
	} else if (len <= strlen(SUFFIX) || strcmp(name + len - strlen(SUFFIX), SUFFIX) != 0) {
		return false;
	}
	f->file = strdup(name);
	return true;
}

/* -- one file --------------------------------------------------------------------------------- */

/* a header, but no footer where it should be: the writer was interrupted, or what copied it */
static bool cut_short(int fd, uint64_t size)
{
	struct thaw_header header;
	uint8_t magic[8];
	uint32_t chunk_size;

	if (size < sizeof(header))
		return io_read_at(fd, magic, (size_t)min_u64(size, 8), 0) == 0 &&
		       !memcmp(magic, THAW_MAGIC, (size_t)min_u64(size, 8));
	if (io_read_at(fd, &header, sizeof(header), 0) || header_decode(&header, NULL, &chunk_size))
		return false;
	if (size < 2ull * THAW_PAGE)
		return true;
	return io_read_at(fd, magic, 8, size - THAW_PAGE) == 0 && memcmp(magic, THAW_FOOTER_MAGIC, 8) != 0;
}

static int copy_bases(struct series_file *f, struct image *img)
{
	uint64_t n = image_info(img)->n_bases;

	f->bases = calloc(n + 1, sizeof(*f->bases));
	if (!f->bases)
		return -ENOMEM;
	for (uint32_t i = 0; i < n; i++) {
		struct image_base base;
		int r = image_base(img, i, &base);

		if (r)
			return r;
		memcpy(f->bases[f->n_bases++], base.id, 16);
	}
	return 0;
}

static void say(struct series_file *f, enum series_state state, const char *why)
{
	f->state = state;
	f->why = why;
}

static void judge(struct series_file *f, int r)
{
	if (r == -EBADMSG)
		say(f, SERIES_DAMAGED, "header, footer or index is damaged");
	else if (r == -EPROTONOSUPPORT)
		say(f, SERIES_FAILED, "made by a newer version");
	else
		say(f, SERIES_FAILED, "it cannot be read");
}

struct verdict {
	bool missing, damaged; /* a base, anything else */
};

static void note_damage(void *ctx, const struct verify_damage *damage)
{
	struct verdict *v = ctx;

	if (damage->error == -ENOENT)
		v->missing = true;
	else
		v->damaged = true;
}

static int check_index(struct series_file *f, struct image *img)
{
	struct verdict verdict = { 0 };
	const struct verify_opts opts = { .index_only = true, .damage = note_damage, .ctx = &verdict };
	struct verify_result res;
	int r = image_check(img, &opts, &res);

	if (!r && verdict.damaged)
		say(f, SERIES_DAMAGED, "its index is damaged");
	return r;
}

/* what the file is, but for its bases */
static int look_into(struct series_file *f, const char *path, bool closely)
{
	const struct image_opts quiet = { .quiet = true };
	_cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	const struct image_info *info;
	struct image *img;
	struct stat st;
	int r;

	if (fd < 0 || fstat(fd, &st)) {
		say(f, SERIES_FAILED, strerror(errno));
		return 0;
	}
	f->file_bytes = (uint64_t)st.st_size;
	if (f->temporary) {
		say(f, SERIES_PARTIAL, "it was not finished");
		return 0;
	}
	r = image_open(path, &quiet, &img);
	if (r) {
		if (r == -EBADMSG && cut_short(fd, f->file_bytes))
			say(f, SERIES_PARTIAL, "its end is missing");
		else
			judge(f, r);
		return r == -ENOMEM ? r : 0;
	}
	info = image_info(img);
	memcpy(f->id, info->id, sizeof(f->id));
	f->logical_bytes = info->logical_bytes;
	f->hole_bytes = info->hole_bytes;
	f->base_bytes = info->base_bytes;
	r = copy_bases(f, img);
	if (!r && closely)
		r = check_index(f, img);
	image_close(img);
	if (r && r != -ENOMEM)
		judge(f, r);
	return r == -ENOMEM ? r : 0;
}

static char *path_of(const struct series_list *list, const char *file)
{
	char *path;

	return asprintf(&path, "%s/%s", list->store, file) < 0 ? NULL : path;
}

static bool is_journal(const struct series_file *f)
{
	size_t len = f->file ? strlen(f->file) : 0;

	return f->temporary && len && !strcmp(f->file + len - strlen(JOURNAL), JOURNAL);
}

/* a journal without what it is about is all that is left; else it is not listed for itself */
static bool has_partial(const char *journal)
{
	_cleanup_free_ char *path = strdup(journal);

	return path && strcpy(path + strlen(path) - strlen(JOURNAL), PARTIAL) && access(path, F_OK) == 0;
}

/* is it to be looked at closely? @name NULL: everything is */
static bool is_of(const struct series_file *f, const char *name)
{
	return !name || (f->name && !strcmp(f->name, name));
}

static int add_file(struct series_list *list, const char *name, const char *series)
{
	struct series_file f = { 0 }, *p;
	_cleanup_free_ char *path = path_of(list, name);
	struct stat st;
	int r;

	/* links to images, as NAME-latest, and what is no file are not listed */
	if (!path || lstat(path, &st))
		return path ? 0 : -ENOMEM;
	if (!S_ISREG(st.st_mode) || !name_file(&f, name)) {
		free(f.name);
		return 0;
	}
	if (is_journal(&f) && has_partial(path)) {
		free(f.file);
		free(f.name);
		return 0;
	}
	p = realloc(list->files, (list->n + 1) * sizeof(*p));
	if (p)
		list->files = p;
	if (!p || !f.file || (f.sequence && !f.name)) {
		free(f.file);
		free(f.name);
		return -ENOMEM;
	}
	r = look_into(&f, path, is_of(&f, series));
	list->files[list->n++] = f;
	return r;
}

/* -- the store -------------------------------------------------------------------------------- */

static int compare_files(const void *a, const void *b)
{
	const struct series_file *x = a, *y = b;
	int r;

	if (!x->name || !y->name) {
		if (x->name || y->name)
			return x->name ? -1 : 1;
		return strcmp(x->file, y->file);
	}
	r = strcmp(x->name, y->name);
	if (r)
		return r;
	if (x->sequence != y->sequence)
		return x->sequence < y->sequence ? -1 : 1;
	return (int)x->temporary - (int)y->temporary;
}

static struct series_file *find_id(const struct series_list *list, const uint8_t id[16])
{
	struct series_file *damaged = NULL;

	for (size_t i = 0; i < list->n; i++) {
		struct series_file *f = &list->files[i];

		if (memcmp(f->id, id, 16) != 0)
			continue;
		/* the same bytes may be there twice: a good one will do */
		if (f->state == SERIES_COMPLETE || f->state == SERIES_BASE_MISSING)
			return f;
		if (f->state == SERIES_DAMAGED)
			damaged = f;
	}
	return damaged;
}

const struct series_file *series_by_id(const struct series_list *list, const uint8_t id[16])
{
	return find_id(list, id);
}

/* a base that is not in the store may be elsewhere, if the image's own search finds it */
static bool base_elsewhere(const struct series_list *list, const struct series_file *f, unsigned index)
{
	const struct image_opts quiet = { .quiet = true };
	_cleanup_free_ char *path = path_of(list, f->file);
	struct image *img, *base;
	bool found;

	if (!path || image_open(path, &quiet, &img))
		return false;
	found = image_base_open(img, index, &base) == 0;
	image_close(img);
	return found;
}

static void find_bases(const struct series_list *list)
{
	for (size_t i = 0; i < list->n; i++) {
		struct series_file *f = &list->files[i];

		for (unsigned k = 0; k < f->n_bases; k++) {
			struct series_file *base = find_id(list, f->bases[k]);

			if (base)
				base->n_users++;
			if (base && base->state == SERIES_DAMAGED)
				say(f, SERIES_BASE_MISSING, "an image that it leaves chunks to is damaged");
			else if (!base && !base_elsewhere(list, f, k))
				say(f, SERIES_BASE_MISSING, "an image that it leaves chunks to is not there");
		}
	}
}

static void mark_latest(const struct series_list *list)
{
	struct series_file *last = NULL;

	for (size_t i = 0; i < list->n && list->files[i].name; i++) {
		struct series_file *f = &list->files[i];

		if (last && strcmp(last->name, f->name) != 0)
			last = NULL;
		if (f->state != SERIES_COMPLETE)
			continue;
		if (last)
			last->latest = false;
		f->latest = true;
		last = f;
	}
}

/* which chunks of @base the image @user refers to */
static int mark_used(const struct series_list *list, const struct series_file *base, const struct series_file *user,
		     uint8_t *used, uint64_t n_used)
{
	const struct image_opts quiet = { .quiet = true };
	_cleanup_free_ char *path = path_of(list, user->file);
	struct image *img;
	int r = path ? image_open(path, &quiet, &img) : -ENOMEM;

	if (r)
		return r;
	for (uint32_t i = 0; i < image_info(img)->n_chunks && !r; i++) {
		struct image_chunk c;

		r = image_chunk(img, i, &c);
		if (!r && c.base && c.base <= user->n_bases && !memcmp(user->bases[c.base - 1], base->id, 16) &&
		    c.stored_off < n_used)
			used[c.stored_off / 8] |= (uint8_t)(1u << (c.stored_off % 8));
	}
	image_close(img);
	return r;
}

static bool needs(const struct series_file *user, const struct series_file *base)
{
	for (unsigned k = 0; k < user->n_bases; k++)
		if (!memcmp(user->bases[k], base->id, 16))
			return true;
	return false;
}

static int measure_shared(const struct series_list *list, struct series_file *base)
{
	const struct image_opts quiet = { .quiet = true };
	_cleanup_free_ char *path = path_of(list, base->file);
	_cleanup_free_ uint8_t *used = NULL;
	struct image *img;
	uint64_t n;
	int r = path ? image_open(path, &quiet, &img) : -ENOMEM;

	if (r)
		return r;
	n = image_info(img)->n_chunks;
	used = calloc(1, n / 8 + 1);
	if (!used)
		r = -ENOMEM;
	for (size_t i = 0; i < list->n && !r; i++)
		if (needs(&list->files[i], base))
			r = mark_used(list, base, &list->files[i], used, n);
	for (uint32_t i = 0; i < n && !r; i++) {
		struct image_chunk c;

		if (!(used[i / 8] & 1u << (i % 8)))
			continue;
		r = image_chunk(img, i, &c);
		if (!r)
			base->shared_bytes += c.stored_len;
	}
	image_close(img);
	return r;
}

static int verify_file(const struct series_list *list, struct series_file *f, unsigned threads)
{
	const struct image_opts quiet = { .quiet = true };
	_cleanup_free_ char *path = path_of(list, f->file);
	struct verdict verdict = { 0 };
	const struct verify_opts opts = { .threads = threads, .damage = note_damage, .ctx = &verdict };
	struct verify_result res;
	struct image *img;
	int r = path ? image_open(path, &quiet, &img) : -ENOMEM;

	if (r)
		return r;
	r = image_check(img, &opts, &res);
	image_close(img);
	if (!r && verdict.damaged)
		say(f, SERIES_DAMAGED, "chunks are damaged, here or in an image that it needs");
	else if (!r && verdict.missing)
		say(f, SERIES_BASE_MISSING, "an image that it leaves chunks to is not there");
	return r;
}

/* leave only series @name in the list */
static void narrow(struct series_list *list, const char *name)
{
	size_t kept = 0;

	for (size_t i = 0; i < list->n; i++) {
		struct series_file *f = &list->files[i];

		if (is_of(f, name)) {
			list->files[kept++] = *f;
			continue;
		}
		free(f->file);
		free(f->name);
		free(f->bases);
	}
	list->n = kept;
}

static bool is_locked(const char *store, const char *name)
{
	_cleanup_free_ char *path = NULL;
	_cleanup_close_ int fd = -1;

	if (asprintf(&path, "%s/.%s.lock", store, name) < 0) {
		path = NULL;
		return false;
	}
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	return fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) && errno == EWOULDBLOCK;
}

static int read_store(struct series_list *list, const char *name)
{
	_cleanup_closedir_ DIR *dir = opendir(list->store);
	struct dirent *e;
	int r = 0;

	if (!dir) {
		r = -errno;
		log_error("cannot read the store '%s': %s", list->store, strerror(-r));
		return r;
	}
	errno = 0;
	while (!r && (e = readdir(dir))) {
		r = add_file(list, e->d_name, name);
		errno = 0;
	}
	if (!r && errno) {
		r = -errno;
		log_error("cannot read the store '%s': %s", list->store, strerror(-r));
	}
	return r;
}

static int look_closer(struct series_list *list, const char *name, unsigned flags, const volatile int *stop)
{
	int r = 0;

	for (size_t i = 0; i < list->n && !r; i++) {
		struct series_file *f = &list->files[i];

		if (stop_asked(stop))
			return -EINTR;
		if (!is_of(f, name))
			continue;
		if (f->temporary)
			f->busy = is_locked(list->store, f->name);
		if ((flags & SERIES_SIZES) && f->n_users)
			r = measure_shared(list, f);
		if (!r && (flags & SERIES_VERIFY) && f->state == SERIES_COMPLETE)
			r = verify_file(list, f, 0);
		if (r && r != -ENOMEM) {
			judge(f, r);
			r = 0;
		}
	}
	return r;
}

int series_scan(const char *store, const char *name, unsigned flags, const volatile int *stop, struct series_list *ret)
{
	int r = series_check_store(store);

	*ret = (struct series_list){ 0 };
	if (r)
		return r;
	ret->store = strdup(store);
	r = ret->store ? read_store(ret, name) : -ENOMEM;
	if (r)
		return r;
	if (ret->n)
		qsort(ret->files, ret->n, sizeof(*ret->files), compare_files);
	find_bases(ret);
	r = look_closer(ret, name, flags, stop);
	mark_latest(ret);
	if (name && (flags & SERIES_ONLY))
		narrow(ret, name);
	return r;
}

void series_release(struct series_list *list)
{
	for (size_t i = 0; i < list->n; i++) {
		free(list->files[i].file);
		free(list->files[i].name);
		free(list->files[i].bases);
	}
	free(list->files);
	free(list->store);
	*list = (struct series_list){ 0 };
}

const struct series_file *series_newest(const struct series_list *list, const char *name)
{
	for (size_t i = 0; i < list->n; i++)
		if (list->files[i].latest && !strcmp(list->files[i].name, name))
			return &list->files[i];
	return NULL;
}

/* -- lock and links --------------------------------------------------------------------------- */

int series_lock(const char *store, const char *name)
{
	static const struct timespec wait = { .tv_nsec = LOCK_WAIT };
	_cleanup_free_ char *path = NULL;
	_cleanup_close_ int fd = -1;
	int r = series_check_store(store);

	if (r)
		return r;
	if (asprintf(&path, "%s/.%s.lock", store, name) < 0) {
		path = NULL;
		return -ENOMEM;
	}
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
	if (fd < 0) {
		r = -errno;
		log_error("cannot lock series '%s' in '%s': %s", name, store, strerror(-r));
		return r;
	}
	/* those who list a store hold the lock for a moment */
	for (int i = 0; flock(fd, LOCK_EX | LOCK_NB); i++) {
		r = -errno;
		if (r == -EINTR)
			continue;
		if (r != -EWOULDBLOCK || i >= LOCK_TRIES) {
			log_error("cannot lock series '%s' in '%s': %s", name, store,
				  r == -EWOULDBLOCK ? "another snap, prune or clean of it is running" : strerror(-r));
			return r == -EWOULDBLOCK ? -EBUSY : r;
		}
		nanosleep(&wait, NULL);
	}
	return steal_fd(&fd);
}

static bool links_to(int dir, const char *link, const char *target)
{
	char now[NAME_MAX + 1];
	ssize_t n = readlinkat(dir, link, now, sizeof(now));

	return n >= 0 && (size_t)n == strlen(target) && !memcmp(now, target, (size_t)n);
}

/* replace a link in one step; what is there and no link is left alone */
static int replace_link(int dir, const char *link, const char *target)
{
	_cleanup_free_ char *tmp = NULL;
	struct stat st;

	if (links_to(dir, link, target))
		return 0;
	if (!fstatat(dir, link, &st, AT_SYMLINK_NOFOLLOW) && !S_ISLNK(st.st_mode))
		return -EEXIST;
	if (asprintf(&tmp, ".%s.%ld.link", link, (long)getpid()) < 0) {
		tmp = NULL;
		return -ENOMEM;
	}
	unlinkat(dir, tmp, 0);
	if (symlinkat(target, dir, tmp))
		return -errno;
	if (renameat(dir, tmp, dir, link)) {
		int r = -errno;

		unlinkat(dir, tmp, 0);
		return r;
	}
	return fsync(dir) ? -errno : 0;
}

/* the only series, or NULL */
static const char *only_series(const struct series_list *list)
{
	const char *name = NULL;

	for (size_t i = 0; i < list->n; i++) {
		if (!list->files[i].name || list->files[i].state != SERIES_COMPLETE)
			continue;
		if (name && strcmp(name, list->files[i].name) != 0)
			return NULL;
		name = list->files[i].name;
	}
	return name;
}

int series_update_latest(const struct series_list *list, const char *name)
{
	_cleanup_close_ int dir = open(list->store, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	const struct series_file *newest = series_newest(list, name);
	char link[NAME_MAX + 1], now[NAME_MAX + 1];
	struct stat st;
	int r = dir < 0 ? -errno : 0;

	snprintf(link, sizeof(link), "%s-" LATEST, name);
	if (!r && newest)
		r = replace_link(dir, link, newest->file);
	if (!r && only_series(list))
		r = replace_link(dir, LATEST, link);
	else if (!r && !fstatat(dir, LATEST, &st, AT_SYMLINK_NOFOLLOW) && S_ISLNK(st.st_mode)) {
		ssize_t n = readlinkat(dir, LATEST, now, sizeof(now));

		/* with several series it would say something wrong */
		if (n > 7 && !memcmp(now + n - 7, "-" LATEST, 7))
			unlinkat(dir, LATEST, 0);
	}
	if (r)
		log_error("cannot lead '%s/%s' to the newest image: %s", list->store, link, strerror(-r));
	return r;
}
