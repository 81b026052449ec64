/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/plan.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/bytes.h"

#define LAZY_MIN (64u << 10) /* as in restore/mtcp/mtcp.h */
#define HOLE_MIN (1u << 20)  /* shorter holes are served with what is around them: each costs a mapping */

static int add_item(struct plan *plan, const struct plan_item *item)
{
	struct plan_item *last = plan->n_items ? &plan->items[plan->n_items - 1] : NULL;

	plan->bytes[item->action] += item->len;
	if (last && last->action == item->action && last->region == item->region &&
	    last->addr + last->len == item->addr) {
		last->len += item->len;
		return 0;
	}
	if (!plan->items || plan->n_items == plan->room) {
		size_t room = plan->room ? plan->room * 2 : 256;
		struct plan_item *p = realloc(plan->items, room * sizeof(*p));

		if (!p)
			return -ENOMEM;
		plan->items = p;
		plan->room = room;
	}
	plan->items[plan->n_items++] = *item;
	return 0;
}

/* memory that the restarter makes anonymous; what maps a file is mapped so again, and then read over */
static bool is_anonymous(const struct image_region *region)
{
	return region->flags & (MAP_ANONYMOUS | MAP_SHARED) || !region->name_len || region->name[0] != '/';
}

static int add_part(struct plan *plan, const struct image_segment *segment, uint32_t region, uint64_t start,
		    uint64_t end, enum plan_action action)
{
	struct plan_item item = { start, end - start, action, region, segment->off + (start - segment->addr) };

	return start < end ? add_item(plan, &item) : 0;
}

static int add_bytes(struct plan *plan, const struct image_segment *segment, uint32_t region, uint64_t start,
		     uint64_t end)
{
	return add_part(plan, segment, region, start, end, end - start >= LAZY_MIN ? PLAN_SERVE : PLAN_READ);
}

/* a segment for a page server: long runs with bytes are its, the rest is read at once, and long holes are left */
static int plan_served(struct image *img, const struct image_space *space, const struct image_segment *segment,
		       uint32_t index, struct plan *plan)
{
	/* [start, stop) has bytes, and short holes */
	uint64_t addr = segment->addr, end = segment->addr + segment->len, start = addr, stop = addr;
	int err = 0;

	while (!err && addr < end) {
		struct image_run run;
		uint64_t len;

		err = image_map_view(img, space, addr, &run);
		if (err)
			break;
		len = min_u64(run.len, end - addr);
		if (run.kind != RUN_HOLE) {
			uint64_t from = align_down(addr, THAW_PAGE);

			if (from > stop && from - stop >= HOLE_MIN) {
				err = add_bytes(plan, segment, index, start, stop);
				if (!err)
					err = add_part(plan, segment, index, stop, from, PLAN_ANONYMOUS);
				start = from;
			}
			stop = min_u64(align_up(addr + len, THAW_PAGE), end);
		}
		addr += len;
	}
	if (!err)
		err = add_bytes(plan, segment, index, start, stop);
	return err ? err : add_part(plan, segment, index, stop, end, PLAN_ANONYMOUS);
}

static bool is_stack(const struct image_region *region)
{
	return region->name_len == 7 && memcmp(region->name, "[stack]", 7) == 0;
}

/* one segment with bytes: zeros in anonymous memory are left out */
static int plan_data(struct image *img, const struct image_space *space, enum plan_mode mode,
		     const struct image_segment *segment, uint32_t index, struct plan *plan)
{
	uint64_t addr = segment->addr, end = segment->addr + segment->len;
	struct image_region region;
	bool anonymous, map;
	int err = image_region(img, space, index, &region);

	if (err)
		return err;
	anonymous = is_anonymous(&region);
	if (mode == PLAN_UFFD && anonymous && !is_stack(&region) && segment->len % THAW_PAGE == 0)
		return plan_served(img, space, segment, index, plan);
	map = mode == PLAN_LAZY && anonymous && segment->len >= LAZY_MIN && segment->len % THAW_PAGE == 0;
	while (!err && addr < end) {
		struct plan_item item = { .addr = addr, .region = index };
		struct image_run run;

		err = image_map_view(img, space, addr, &run);
		if (err)
			break;
		item.len = min_u64(run.len, end - addr);
		item.action = run.kind != RUN_DATA && anonymous ? PLAN_ANONYMOUS : map ? PLAN_MAP : PLAN_READ;
		err = add_item(plan, &item);
		addr += item.len;
	}
	return err;
}

static int plan_segment(struct image *img, const struct image_space *space, enum plan_mode mode, uint32_t index,
			struct plan *plan)
{
	struct image_segment segment;
	struct plan_item item;
	uint32_t region;
	int err = image_segment(img, space, index, &segment);

	if (!err)
		err = image_region_at(img, space, segment.addr, &region);
	if (err)
		return err;
	if (region == space->n_regions)
		return -EBADMSG;
	if (segment.kind == THAW_SEG_DATA)
		return plan_data(img, space, mode, &segment, region, plan);
	item = (struct plan_item){ segment.addr, segment.len, PLAN_ANONYMOUS, region, 0 };
	return add_item(plan, &item);
}

int plan_make(struct image *img, const struct image_space *space, enum plan_mode mode, struct plan *ret)
{
	struct plan plan = { 0 };
	int err = 0;

	for (uint32_t i = 0; !err && i < space->n_segments; i++)
		err = plan_segment(img, space, mode, i, &plan);
	if (err)
		plan_release(&plan);
	else
		*ret = plan;
	return err;
}

void plan_release(struct plan *plan)
{
	free(plan->items);
	*plan = (struct plan){ 0 };
}

const char *plan_action_name(enum plan_action action)
{
	static const char *const names[PLAN_N_ACTIONS] = { "anonymous", "read", "map", "serve" };

	return names[action];
}
