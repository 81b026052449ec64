/* SPDX-License-Identifier: Apache-2.0 */
#include "imgfmt/table.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define PER_SEGMENT 4096 /* entries */

void table_init(struct table *t, size_t entry_size)
{
	*t = (struct table){ .entry_size = entry_size };
}

void table_release(struct table *t)
{
	for (size_t i = 0; i < t->n_segments; i++)
		free(t->segments[i]);
	free(t->segments);
	table_init(t, t->entry_size);
}

static int add_segment(struct table *t)
{
	uint8_t *segment;

	if (t->n_segments == t->cap_segments) {
		size_t cap = t->cap_segments ? 2 * t->cap_segments : 16;
		uint8_t **list = reallocarray(t->segments, cap, sizeof(*list));

		if (!list)
			return -1;
		t->segments = list;
		t->cap_segments = cap;
	}
	segment = calloc(PER_SEGMENT, t->entry_size);
	if (!segment)
		return -1;
	t->segments[t->n_segments++] = segment;
	return 0;
}

void *table_push(struct table *t)
{
	if (t->n == t->n_segments * PER_SEGMENT && add_segment(t))
		return NULL;
	t->n++;
	return table_at(t, t->n - 1);
}

void *table_at(const struct table *t, size_t i)
{
	assert(i < t->n);
	return t->segments[i / PER_SEGMENT] + i % PER_SEGMENT * t->entry_size;
}
