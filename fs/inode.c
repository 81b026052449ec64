/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/inode.h"

#include <assert.h>
#include <errno.h>

#define KIND_SHIFT  32
#define BY_ID_SHIFT 35
#define SLOT_SHIFT  36

uint64_t node_encode(const struct node *node)
{
	assert(node->slot < NODE_MAX_SLOTS && node->kind < NODE_KINDS);
	return (uint64_t)node->slot << SLOT_SHIFT | (uint64_t)node->by_id << BY_ID_SHIFT |
	       (uint64_t)node->kind << KIND_SHIFT | node->number;
}

int node_decode(uint64_t id, struct node *ret)
{
	struct node node = {
		.slot = (uint32_t)(id >> SLOT_SHIFT),
		.kind = (enum node_kind)(id >> KIND_SHIFT & 7),
		.by_id = id >> BY_ID_SHIFT & 1,
		.number = (uint32_t)id,
	};

	if (node.kind >= NODE_KINDS)
		return -ESTALE;
	if (node.kind == NODE_META &&
	    (node.slot || node.by_id || node.number < META_ROOT || node.number >= META_NUMBERS))
		return -ESTALE;
	if (node.kind == NODE_THAW && node.number >= THAW_NUMBERS)
		return -ESTALE;
	if (node.kind == NODE_LINK && (node.by_id || node.number >= LINK_NUMBERS))
		return -ESTALE;
	*ret = node;
	return 0;
}
