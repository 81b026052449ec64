/* SPDX-License-Identifier: Apache-2.0 */
/* Node ids: every node has one id and every id at most one node. */
#include <errno.h>

#include "common/bytes.h"
#include "fs/inode.h"
#include "tests/test.h"

static void check_round_trip(struct node node)
{
	uint64_t id = node_encode(&node);
	struct node back;

	CHECK(id != 0);
	CHECK_EQ(node_decode(id, &back), 0);
	CHECK_EQ(back.slot, node.slot);
	CHECK_EQ(back.kind, node.kind);
	CHECK_EQ(back.by_id, node.by_id);
	CHECK_EQ(back.number, node.number);
}

static void test_all_kinds(void)
{
	static const uint32_t slots[] = { 0, 1, 65535, 65536, NODE_MAX_SLOTS - 1 };
	static const uint32_t numbers[] = { 0, 1, 0x7fffffff, 0xfffffffe, 0xffffffff };

	for (size_t s = 0; s < ARRAY_SIZE(slots); s++)
		for (size_t n = 0; n < ARRAY_SIZE(numbers); n++)
			for (int by_id = 0; by_id < 2; by_id++) {
				check_round_trip((struct node){ slots[s], NODE_MEMBER, by_id, numbers[n] });
				check_round_trip((struct node){ slots[s], NODE_MEM, by_id, numbers[n] });
				check_round_trip((struct node){ slots[s], NODE_MAPS, by_id, numbers[n] });
			}
	for (uint32_t n = META_ROOT; n < META_NUMBERS; n++)
		check_round_trip((struct node){ 0, NODE_META, false, n });
	for (uint32_t n = 0; n < THAW_NUMBERS; n++)
		check_round_trip((struct node){ 7, NODE_THAW, false, n });
	for (uint32_t n = 0; n < LINK_NUMBERS; n++)
		check_round_trip((struct node){ 7, NODE_LINK, false, n });
}

static void test_root_is_one(void)
{
	struct node root = { .kind = NODE_META, .number = META_ROOT };

	CHECK_EQ(node_encode(&root), 1); /* FUSE_ROOT_ID */
}

static void test_strangers(void)
{
	static const uint64_t ids[] = {
		0,                         /* the kernel's "none" */
		META_NUMBERS,              /* no such hidden file */
		1ull << 36 | META_STATUS,  /* hidden files belong to no slot */
		1ull << 35 | META_ROOT,    /* … and are no image's */
		5ull << 32 | LINK_NUMBERS, /* no such link */
		1ull << 35 | 5ull << 32,   /* links are not below by-id */
		6ull << 32 | 1,            /* no such kind */
		7ull << 32,                /* … */
		2ull << 32 | THAW_NUMBERS, /* no such file in .thaw */
		~0ull,
	};
	struct node node;

	for (size_t i = 0; i < ARRAY_SIZE(ids); i++)
		CHECK_EQ(node_decode(ids[i], &node), -ESTALE);
}

int main(void)
{
	test_all_kinds();
	test_root_is_one();
	test_strangers();
	return 0;
}
