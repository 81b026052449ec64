/* SPDX-License-Identifier: Apache-2.0 */
/* Checking an image: the bytes of its index and the gaps between things here, then the tables, then every chunk. */
#include "imgfmt/verify.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "common/cleanup.h"
#include "imgfmt/verify_private.h"
#include "imgfmt/zero.h"

#define MAX_THREADS 64
#define BATCH       16 /* chunks that a thread takes at a time: neighbours in the file */

void check_damage(struct check *c, uint64_t off, int error, const char *what)
{
	const struct verify_damage d = { .chunk = THAW_HOLE, .stored_off = off, .error = error, .what = what };

	LOCK_GUARD(&c->lock);
	c->result->n_index_errors++;
	if (c->opts->damage)
		c->opts->damage(c->opts->ctx, &d);
}

static void on_index_damage(struct index_listener *listener, uint64_t off, int error, const char *what, bool entry)
{
	struct check *c = (struct check *)listener;

	if (entry ? c->mute_entries : c->mute_blocks)
		return;
	check_damage(c, off, error, what);
}

/* -- index blocks and gaps -------------------------------------------------------------------- */

/* bytes that must be zero; a gap is shorter than a page */
static void check_gap(struct check *c, uint64_t from, uint64_t to)
{
	uint8_t buf[THAW_PAGE];
	int r;

	if (from >= to)
		return;
	r = source_read(c->img->src, buf, (size_t)(to - from), from);
	if (r)
		check_damage(c, from, r, strerror(-r));
	else if (!is_zero(buf, (size_t)(to - from)))
		check_damage(c, from, -EBADMSG, "padding is not zero");
}

/* the image's reader knows nothing of sections of unknown type; their checksums count all the same */
static int check_unknown_section(struct check *c, const struct footer_section *s)
{
	uint64_t n = section_n_blocks(s);
	_cleanup_free_ le64 *hashes = malloc(8 * n);
	uint8_t block[THAW_INDEX_BLOCK];
	XXH128_canonical_t h;
	int r;

	if (!hashes)
		return -ENOMEM;
	r = source_read(c->img->src, hashes, 8 * n, section_hashes(s));
	if (!r)
		XXH128_canonicalFromHash(&h, XXH3_128bits(hashes, 8 * n));
	if (r || memcmp(h.digest, s->hash, sizeof(s->hash)) != 0) {
		check_damage(c, section_hashes(s), r ? r : -EBADMSG, r ? strerror(-r) : "section checksum mismatch");
		return 0;
	}
	for (uint64_t i = 0; i < n; i++) {
		uint64_t off = i * THAW_INDEX_BLOCK;
		size_t len = (size_t)min_u64(THAW_INDEX_BLOCK, s->length - off);

		r = source_read(c->img->src, block, len, s->offset + off);
		if (r)
			check_damage(c, s->offset + off, r, strerror(-r));
		else if (XXH3_64bits(block, len) != le64_get(hashes[i]))
			check_damage(c, s->offset + off, -EBADMSG, "index checksum mismatch");
	}
	return 0;
}

static int check_sections(struct check *c)
{
	const struct footer_info *f = &c->img->footer;
	uint64_t end = f->data_end;
	int r = 0;

	for (uint32_t i = 0; i < f->n_sections && !r; i++) {
		const struct footer_section *s = &f->sections[i];
		const uint8_t *p;

		check_gap(c, end, s->offset);
		check_gap(c, s->offset + s->length, section_hashes(s));
		end = section_end(s);
		if (!section_entry_size(s->type)) {
			r = check_unknown_section(c, s);
			continue;
		}
		/* the listener hears of each bad block */
		for (uint64_t off = 0; off < s->length; off += THAW_INDEX_BLOCK)
			(void)index_bytes(&c->img->index, s->type, off, min_u64(THAW_INDEX_BLOCK, s->length - off), &p);
	}
	check_gap(c, end, f->file_size - THAW_PAGE);
	return r;
}

/* -- chunks ----------------------------------------------------------------------------------- */

struct sweep {
	struct check *check;
	uint64_t n, total_bytes, done_bytes;
	_Atomic uint64_t next;
};

static void chunk_done(struct sweep *s, uint32_t chunk, int r, const char *what)
{
	struct check *c = s->check;
	struct image_chunk entry = { 0 };
	/* the length of a chunk whose entry cannot be read is not known */
	bool known = image_chunk(c->img, chunk, &entry) == 0;

	LOCK_GUARD(&c->lock);
	c->result->n_chunks++;
	if (r) {
		const struct verify_damage d = {
			.chunk = chunk,
			.stored_off = known && !entry.base ? entry.stored_off : 0,
			.error = r,
			.what = what,
		};

		c->result->n_damaged++;
		c->result->damaged_bytes += known ? entry.logical_len : 0;
		if (c->opts->damage)
			c->opts->damage(c->opts->ctx, &d);
	} else {
		c->result->good_bytes += entry.logical_len;
	}
	s->done_bytes += entry.logical_len;
	if (c->opts->progress && (chunk + 1) % BATCH == 0)
		c->opts->progress(c->opts->ctx, s->done_bytes, s->total_bytes);
}

static void *sweep_chunks(void *arg)
{
	struct sweep *s = arg;
	struct image *img = s->check->img;
	_cleanup_free_ void *buf = malloc(img->info.chunk_size);
	struct chunk_ctx *ctx = chunk_ctx_new();
	void *ret = NULL;

	if (!buf || !ctx) {
		ret = s;
	} else {
		uint64_t from;

		while ((from = atomic_fetch_add(&s->next, BATCH)) < s->n) {
			for (uint64_t i = from; i < min_u64(s->n, from + BATCH); i++) {
				int r = image_chunk_read(img, ctx, (uint32_t)i, buf, NULL);

				chunk_done(s, (uint32_t)i, r, r ? chunk_ctx_error(ctx) : NULL);
			}
		}
	}
	chunk_ctx_free(ctx);
	return ret;
}

static unsigned thread_count(unsigned wanted, uint64_t n_chunks)
{
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);
	uint64_t n = wanted ? wanted : cpus > 0 ? (uint64_t)cpus : 1;

	return (unsigned)max_u64(1, min_u64(min_u64(n, MAX_THREADS), n_chunks / BATCH));
}

/* the calling thread is one of them, so that the check goes on where no thread can be made */
static int check_chunks(struct check *c)
{
	const struct image_info *info = &c->img->info;
	struct sweep s = { .check = c, .n = info->n_chunks, .total_bytes = info->chunk_bytes + info->base_bytes };
	unsigned n = thread_count(c->opts->threads, s.n) - 1, started = 0;
	pthread_t threads[MAX_THREADS];
	void *failed;

	while (started < n && pthread_create(&threads[started], NULL, sweep_chunks, &s) == 0)
		started++;
	failed = sweep_chunks(&s);
	for (unsigned i = 0; i < started; i++)
		pthread_join(threads[i], NULL);
	/* a helper that had no memory left its share to the others; only this thread has to go through */
	return failed ? -ENOMEM : 0;
}

int image_check(struct image *img, const struct verify_opts *opts, struct verify_result *ret)
{
	struct check c = {
		.listener.damage = on_index_damage,
		.img = img,
		.opts = opts,
		.result = ret,
		.lock = PTHREAD_MUTEX_INITIALIZER,
	};
	int r;

	*ret = (struct verify_result){ 0 };
	img->index.listener = &c.listener;
	r = check_sections(&c);
	c.mute_blocks = true;
	if (!r)
		r = check_tables(&c);
	c.mute_entries = true;
	if (!r && !opts->index_only)
		r = check_chunks(&c);
	img->index.listener = NULL;
	return r;
}
