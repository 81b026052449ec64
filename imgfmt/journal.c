/* SPDX-License-Identifier: Apache-2.0 */
#include "imgfmt/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "common/cleanup.h"
#include "common/io.h"
#include "common/log.h"
#include "imgfmt/chunk.h"
#include "imgfmt/footer.h"
#include "imgfmt/image.h"

#define MAGIC "THAWJRN1"

/* private to one version of thawfs on one kind of machine, but written as the image is, little-endian */
struct head {
	uint8_t magic[8];
	le32 chunk_size;
	le32 reserved;
	le64 hash;
};

struct record {
	struct thaw_chunk chunk;
	le64 stored_hash;
	le64 hash; /* of what stands before, with the record's number as seed */
};

_Static_assert(sizeof(struct record) == 48, "record");

static int fail(const struct journal *j, const char *what, int r)
{
	log_error("cannot %s '%s': %s", what, j->path, strerror(-r));
	return r;
}

static void make_head(uint32_t chunk_size, struct head *h)
{
	memset(h, 0, sizeof(*h));
	memcpy(h->magic, MAGIC, sizeof(h->magic));
	h->chunk_size = le32_make(chunk_size);
	h->hash = le64_make(XXH3_64bits(h, offsetof(struct head, hash)));
}

static uint64_t record_hash(const struct record *rec, uint64_t number)
{
	return XXH3_64bits_withSeed(rec, offsetof(struct record, hash), number);
}

/* is the chunk where it should be, and its bytes what they were? 1, 0, -errno */
static int is_there(const struct output *out, const struct record *rec, uint32_t chunk_size, uint64_t end,
		    uint64_t size, void *buf)
{
	const struct image_chunk c = {
		.stored_off = le64_get(rec->chunk.stored_off),
		.hash = le64_get(rec->chunk.hash),
		.stored_len = le32_get(rec->chunk.stored_len),
		.logical_len = le32_get(rec->chunk.logical_len),
		.codec = rec->chunk.codec,
		.shuffle = rec->chunk.shuffle,
	};
	uint64_t want = c.codec == THAW_RAW ? align_up(end, THAW_PAGE) : end;
	int r;

	if (le16_get(rec->chunk.base) || le32_get(rec->chunk.reserved) || chunk_entry_error(&c, chunk_size, size) ||
	    c.stored_off != want)
		return 0;
	r = output_read_back(out, buf, c.stored_len, c.stored_off);
	if (r)
		return r;
	return XXH3_64bits(buf, c.stored_len) == le64_get(rec->stored_hash);
}

/* the good records at the beginning. Return: where the last chunk ends; 0: nothing to go on with; -errno as @ret_error
 */
static uint64_t load(struct journal *j, const struct output *out, uint64_t size, uint32_t chunk_size,
		     struct table *chunks)
{
	/* a stored chunk is at most twice its size (FORMAT.md section 4) */
	_cleanup_free_ uint8_t *buf = malloc(2 * (size_t)chunk_size);
	struct thaw_header header;
	struct head head, want;
	uint64_t end = sizeof(header);
	uint32_t c;

	make_head(chunk_size, &want);
	if (!buf || size < sizeof(header) || io_read_at(j->fd, &head, sizeof(head), 0) ||
	    memcmp(&head, &want, sizeof(head)) != 0 || output_read_back(out, &header, sizeof(header), 0) ||
	    header_decode(&header, NULL, &c) || c != chunk_size)
		return 0;
	for (;; j->n++) {
		struct thaw_chunk *slot;
		struct record rec;

		if (io_read_at(j->fd, &rec, sizeof(rec), sizeof(head) + j->n * sizeof(rec)) ||
		    le64_get(rec.hash) != record_hash(&rec, j->n) ||
		    is_there(out, &rec, chunk_size, end, size, buf) != 1)
			return end;
		slot = table_push(chunks);
		if (!slot)
			return end;
		*slot = rec.chunk;
		end = le64_get(rec.chunk.stored_off) + le32_get(rec.chunk.stored_len);
	}
}

static int begin_anew(struct journal *j, uint32_t chunk_size)
{
	struct head head;
	int r;

	make_head(chunk_size, &head);
	r = ftruncate(j->fd, 0) ? -errno : io_write_at(j->fd, &head, sizeof(head), 0);
	return r ? fail(j, "write", r) : 0;
}

int journal_open(struct journal *j, struct output *out, uint32_t chunk_size, struct table *chunks)
{
	const char *slash = strrchr(out->path, '/');
	struct stat st;
	uint64_t end;
	int r;

	*j = (struct journal){ .fd = -1 };
	if (asprintf(&j->path, "%s/.%s.journal", out->dir, slash ? slash + 1 : out->path) < 0) {
		j->path = NULL;
		return -ENOMEM;
	}
	j->fd = open(j->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (j->fd < 0 || fstat(out->fd, &st))
		return fail(j, "open", -errno);
	end = load(j, out, (uint64_t)st.st_size, chunk_size, chunks);
	/* what stands behind what is good must not be taken for a part of it later */
	if (end && ftruncate(j->fd, (off_t)(sizeof(struct head) + j->n * sizeof(struct record))))
		return fail(j, "write", -errno);
	r = end ? 0 : begin_anew(j, chunk_size);
	if (!r)
		r = output_continue_at(out, end);
	return r ? r : end != 0;
}

int journal_add(struct journal *j, const struct thaw_chunk *c, const void *data)
{
	struct record rec = { .chunk = *c };
	int r;

	rec.stored_hash = le64_make(XXH3_64bits(data, le32_get(c->stored_len)));
	rec.hash = le64_make(record_hash(&rec, j->n));
	r = io_write_at(j->fd, &rec, sizeof(rec), sizeof(struct head) + j->n * sizeof(rec));
	if (r)
		return fail(j, "write", r);
	j->n++;
	return 0;
}

void journal_close(struct journal *j, bool remove)
{
	if (remove && j->path)
		unlink(j->path);
	if (j->fd >= 0)
		close(j->fd);
	free(j->path);
	*j = (struct journal){ .fd = -1 };
}
