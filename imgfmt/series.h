/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A series: checkpoints of one state directory in a store, as images NAME-<sequence>.thaw. A store is a directory;
 * it may hold several series, and images that belong to none.
 *
 * The sequence number alone says what is newer; no clock is asked. A number is given out under the series' lock and is
 * above that of every file of the series that is there. The newest complete image is where the symlink NAME-latest
 * leads, and "latest" too while the store has one series only.
 *
 * What may be found under a series' name, besides complete images: a temporary file (.NAME-<sequence>.thaw.partial),
 * which a snap writes or left behind, and images that are cut short, damaged, or miss a base.
 *
 * Paths are local. Nothing here is shared between threads.
 */
#ifndef THAW_IMGFMT_SERIES_H
#define THAW_IMGFMT_SERIES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SERIES_NAME_MAX 200 /* bytes of NAME, so that every file name made from it fits */

enum series_state {
	SERIES_COMPLETE, /* header, footer, all of the index are good, and the bases are there; chunks only if asked for
			  */
	SERIES_PARTIAL,  /* a temporary file, or an image without its end */
	SERIES_DAMAGED,  /* it has an end, but does not hold together */
	SERIES_BASE_MISSING, /* good, but an image that it leaves chunks to is not there, or damaged */
	SERIES_FAILED,       /* could not be read */
};

/* "complete", "partial", "damaged", "base-missing", "failed" */
const char *series_state_text(enum series_state state);

struct series_file {
	char *file;        /* its name in the store */
	char *name;        /* of the series; NULL: an image that belongs to none */
	uint64_t sequence; /* 0 without a series */
	enum series_state state;
	bool temporary;  /* .NAME-<sequence>.thaw.partial */
	bool busy;       /* temporary, and the series is locked: somebody writes it */
	bool latest;     /* the newest complete one of its series */
	const char *why; /* what is wrong with it, or NULL */
	uint64_t file_bytes;
	/* of images that could be opened */
	uint8_t id[16];
	uint64_t logical_bytes, hole_bytes, base_bytes;
	uint8_t (*bases)[16]; /* ids of the images that it leaves chunks to */
	unsigned n_bases;
	unsigned n_users;      /* other images of the store that need it */
	uint64_t shared_bytes; /* of its stored bytes, those that other images refer to; with SERIES_SIZES */
};

struct series_list {
	char *store;
	struct series_file *files; /* by name, sequence; those without a series at the end */
	size_t n;
};

enum series_flags {
	SERIES_SIZES = 1 << 0,  /* fill shared_bytes: reads the chunk tables of images that have bases */
	SERIES_VERIFY = 1 << 1, /* decode and check every chunk of images that seem complete */
	SERIES_ONLY = 1 << 2,   /* leave out of the list what is not of series @name */
};

/*
 * series_scan - what is in a store
 * @name:  the series to look at closely; of images of others only header, footer and bases are read, and the flags do
 * not hold for them. NULL: all. Users are counted over the whole store in any case.
 * @stop:  as in pack_opts; may be NULL
 * Return: 0; -errno of the directory, logged; -EINTR; -ENOMEM. series_release() is to be called in any case.
 */
int series_scan(const char *store, const char *name, unsigned flags, const volatile int *stop, struct series_list *ret);
void series_release(struct series_list *list);

/* the newest complete image of a series; NULL if there is none */
const struct series_file *series_newest(const struct series_list *list, const char *name);

/* the file that has this id; NULL: not in the store */
const struct series_file *series_by_id(const struct series_list *list, const uint8_t id[16]);

/*
 * series_parse - take the name of an image file apart
 * @ret_name_len:  length of the series' name at the beginning of @file
 * Return: whether @file is NAME-<sequence>.thaw, in the one form that series_format() gives it
 */
bool series_parse(const char *file, size_t *ret_name_len, uint64_t *ret_sequence);

/* NAME-<sequence>.thaw; the caller frees; NULL: no memory */
char *series_format(const char *name, uint64_t sequence);

/* can a series be called so? Not empty, not hidden, no '/', at most SERIES_NAME_MAX bytes */
bool series_good_name(const char *name);

/* is @store something that this version cannot use, as a URL? Then it has said so. Return: 0 or -EOPNOTSUPP */
int series_check_store(const char *store);

/*
 * series_lock - keep every other snap, prune and clean away from a series
 * Makes .NAME.lock, which stays there. A lock that is held is tried again for half a second.
 * Return: a descriptor, closing it gives the lock back; -EBUSY (logged); -errno (logged)
 */
int series_lock(const char *store, const char *name);

/*
 * series_update_latest - lead NAME-latest, and latest where it applies, to the newest complete image
 * @list:  of the whole store, scanned under the lock. Return: 0; -errno, logged
 */
int series_update_latest(const struct series_list *list, const char *name);

struct series_prune_opts {
	unsigned keep; /* how many complete images, at least 1 */
	bool trust;    /* what an earlier prune has verified need not be verified again */
	bool dry_run;
	unsigned threads; /* for verifying; 0: as many as processors */
	/* a file that was removed, or would be */
	void (*removed)(void *ctx, const struct series_file *file);
	void *ctx;
	const volatile int *stop;
};

/*
 * series_prune - remove the older images of a series, which the caller has locked
 * Keeps the @keep newest complete ones; and of these or those before them, one whose every chunk was verified; those
 * that the @keep newest manifests of any job name (job.h); and whatever any other image of the store needs as a base. A
 * manifest of which an image goes, goes before it. Damaged and partial ones are left alone and do not count.
 * Return: 0; -EBADMSG no image can be verified, so nothing was removed; -errno. Logged.
 */
int series_prune(const char *store, const char *name, const struct series_prune_opts *opts);

/*
 * series_clean - remove the partial images of a series, which the caller has locked; with @damaged, damaged ones too
 * Return: 0, -errno, logged
 */
int series_clean(const char *store, const char *name, bool damaged, bool dry_run,
		 void (*removed)(void *ctx, const struct series_file *file), void *ctx);

#endif
