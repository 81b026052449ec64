/* SPDX-License-Identifier: Apache-2.0 */
/* tool_libthaw STORE NAME SEQUENCE FILE: a file of a state, mapped through libthaw, to standard output */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/thaw.h"

static int fail(const char *what, int r)
{
	fprintf(stderr, "tool_libthaw: %s: %s\n", what, strerror(-r));
	return 1;
}

int main(int argc, char **argv)
{
	struct thaw_state *st;
	struct thaw_map map;
	int r;

	if (argc != 5)
		return 2;
	r = thaw_open(argv[1], argv[2], strtoull(argv[3], NULL, 10), &st);
	if (r)
		return fail("open", r);
	r = thaw_map(st, argv[4], THAW_MAP_READONLY, &map);
	if (!r && map.len)
		r = thaw_prefetch(&map, 1, map.len - 1, 3);
	if (r) {
		thaw_close(st);
		return fail("map", r);
	}
	/* the mapping does not need the state */
	thaw_close(st);
	if (fwrite(map.addr, 1, map.len, stdout) != map.len || fflush(stdout))
		return fail("write", -5);
	thaw_release(&map);
	return 0;
}
