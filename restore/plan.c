/* SPDX-License-Identifier: Apache-2.0 */
#include "restore/plan.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "common/bytes.h"

#define LAZY_MIN (64u << 10) /* as in restore/mtcp/mtcp.h */

static int add_item(struct plan *plan, const struct plan_item *item)
{
	struct plan_item *last = plan->n_items ? &plan->items[plan->n_items - 1] : NULL;

	plan->bytes[item->action] += item->len;
	if (last && last->action == item->action && last->region == item->region &&
	    last->addr + last->len == item->addr) {
		last->len += item->len;
		return 0;
	}
	if (plan->n_items == plan->room) {
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
	item = (struct plan_item){ segment.addr, segment.len, PLAN_ANONYMOUS, region };
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
	static const char *const names[PLAN_N_ACTIONS] = { "anonymous", "read", "map" };

	return names[action];
}
