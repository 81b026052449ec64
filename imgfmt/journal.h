/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an unfinished image holds already: beside .OUT.partial stands .OUT.journal with a record for each chunk that was
 * stored, so that a later run can use them again. An image without its end has no index; this is what stands in for it.
 *
 * Each record carries a hash of itself and one of the chunk as stored, so records and chunks that did not reach the
 * disk before a crash are recognized. What the chunks decode to is compared with the source again when they are used.
 * For one thread, under the lock of the output.
 */
#ifndef THAW_IMGFMT_JOURNAL_H
#define THAW_IMGFMT_JOURNAL_H

#include <stdint.h>

#include "imgfmt/format.h"
#include "imgfmt/output.h"
#include "imgfmt/table.h"

struct journal {
	int fd;
	char *path;
	uint64_t n; /* records written */
};

/*
 * journal_open - take up what an earlier run left of @out, or begin anew
 * @out:     just opened; its position is set behind the last good chunk, what follows is cut off
 * @chunks:  gets the struct thaw_chunk of the good ones, in file order
 * Return: 1 if @out begins with a header and these chunks; 0 if it is empty now; -errno, logged.
 * journal_close() is to be called in any case.
 */
int journal_open(struct journal *j, struct output *out, uint32_t chunk_size, struct table *chunks);

/* a chunk that was stored, of which @data are the bytes as stored. Return: 0 or -errno, logged */
int journal_add(struct journal *j, const struct thaw_chunk *c, const void *data);

/* @remove: it is not needed any more */
void journal_close(struct journal *j, bool remove);

#endif
