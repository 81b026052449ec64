/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What parsers of foreign images find out: address spaces with regions and segments (FORMAT.md section 6),
 * and cuts, which tell the writer at which addresses the bytes of a file belong, so that it cuts them into
 * chunks on address multiples.
 *
 * A parser fills a layout through the add functions in any order and then calls layout_end_space(), which
 * sorts and checks. Anything contradictory is an error there, and the caller rolls back to where the
 * space began: a file is never packed differently than byte-exact because of a parser, it only loses its views.
 * Not thread-safe. Memory: about 100 bytes per region or segment, 32 per cut.
 */
#ifndef THAW_IMGFMT_LAYOUT_H
#define THAW_IMGFMT_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "imgfmt/format.h"

struct layout_region {
	uint64_t addr, len, pgoff;
	uint32_t prot, flags;
	uint32_t name_off, name_len; /* in layout.strings */
};

struct layout_segment {
	uint64_t addr, len, off;
	uint32_t ino;
	uint16_t base; /* 0: this image; k: the k-th image handed to the parser as a parent elsewhere */
	uint8_t kind;  /* enum thaw_segment_kind */
};

struct layout_space {
	uint32_t name_off, name_len;
	uint32_t kind, ino, pid;
	uint64_t first_region, first_segment;
	uint32_t n_regions, n_segments;
};

/* bytes [off, off + len) of file @ino are memory at @addr */
struct layout_cut {
	uint64_t off, len, addr;
	uint32_t ino;
};

struct layout {
	struct layout_space *spaces;
	struct layout_region *regions;
	struct layout_segment *segments;
	struct layout_cut *cuts;
	char *strings;
	size_t n_spaces, n_regions, n_segments, n_cuts, strings_len;
	size_t cap_spaces, cap_regions, cap_segments, cap_cuts, cap_strings;
	uint32_t last_name_off, last_name_len; /* a name given twice in a row is stored once */
	char error[256];                       /* what layout_end_space() or a parser found wrong, for its message */
};

void layout_init(struct layout *lay);
void layout_release(struct layout *lay);

/* a point to roll back to */
struct layout_mark {
	size_t n_spaces, n_regions, n_segments, n_cuts, strings_len;
};
struct layout_mark layout_mark(const struct layout *lay);
void layout_rollback(struct layout *lay, struct layout_mark mark);

/* All return 0, -ENOMEM, or -EOVERFLOW past a limit of the format. */
int layout_begin_space(struct layout *lay, const char *name, size_t name_len, uint32_t kind, uint32_t ino,
		       uint32_t pid);
int layout_region(struct layout *lay, uint64_t addr, uint64_t len, uint64_t pgoff, uint32_t prot, uint32_t flags,
		  const char *name, size_t name_len);
/* a segment that continues the one added last in address, kind, file and offset extends it */
int layout_segment(struct layout *lay, uint64_t addr, uint64_t len, uint8_t kind, uint32_t ino, uint16_t base,
		   uint64_t off);
int layout_cut(struct layout *lay, uint32_t ino, uint64_t off, uint64_t len, uint64_t addr);

/*
 * layout_end_space - sort and check the space that was begun last
 * Segments that reach over a region border are split there. A segment outside all regions is an error.
 * Return: 0; -EBADMSG with lay->error set: overlapping regions or segments, zero or overflowing lengths; -ENOMEM
 */
int layout_end_space(struct layout *lay);

/*
 * layout_finish - after all parsers: sort cuts by (ino, off), dropping the parts of a cut that one before it
 * covers already and joining those that continue each other, and sort spaces by name, their regions and
 * segments with them; two spaces of one name: the later is dropped with a message.
 * Return: 0, -ENOMEM
 */
int layout_finish(struct layout *lay);

#endif
