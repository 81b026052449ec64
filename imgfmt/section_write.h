/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One index section on its way out (FORMAT.md section 3): bytes go in, blocks are written and hashed as they fill,
 * their hashes follow, and the section gets its entry in the footer. One thread.
 *
 *     section_out_begin(&s, out);
 *     section_out_put(&s, …);
 *     section_out_end(&s, THAW_NAMES, sizeof(struct thaw_name), &footer);
 *
 * One struct may serve one section after the other; section_out_release() at the end.
 */
#ifndef THAW_IMGFMT_SECTION_WRITE_H
#define THAW_IMGFMT_SECTION_WRITE_H

#include <stddef.h>
#include <stdint.h>

#include "imgfmt/footer.h"
#include "imgfmt/output.h"

struct section_out {
	struct output *out;
	uint8_t block[THAW_INDEX_BLOCK];
	size_t fill;
	le64 *hashes;
	size_t n_hashes, cap_hashes;
	uint64_t start, length;
};

/* all return 0, -ENOMEM, or an error of the output, which was logged */
int section_out_begin(struct section_out *s, struct output *out);
int section_out_put(struct section_out *s, const void *data, size_t len);
/* a section that nothing was put into leaves no trace */
int section_out_end(struct section_out *s, uint32_t type, uint32_t entry_size, struct footer_info *footer);

void section_out_release(struct section_out *s);

#endif
