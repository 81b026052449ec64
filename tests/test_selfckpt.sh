#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The program that checkpoints itself: thawfs understands what it writes, down to the byte.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=tests/lib_restart.sh
. "$(dirname "$0")/lib_restart.sh"
requires jq

make_checkpoint "$T/c.dmtcp" -m 32 -a 300 -t 4
must "$thawfs" pack -q -o "$T/c.thaw" "$T/c.dmtcp"
must "$thawfs" verify -q "$T/c.thaw"
must "$thawfs" unpack -q --no-fsync "$T/c.thaw" "$T/out.d"
must cmp "$T/c.dmtcp" "$T/out.d/c.dmtcp"

"$thawfs" maps --json "$T/c.thaw" >"$T/maps.json" || fail "no maps"
must_fail 0 jq -e '.spaces[0] | .kind == "dmtcp" and (.regions | length) > 300' "$T/maps.json"
must_fail 0 jq -e '[.spaces[0].regions[] | .name] | index("[stack]") and index("[heap]")' "$T/maps.json"
# a quarter of the large block was never touched
must_fail 0 jq -e '[.spaces[0].regions[] | select(.len >= 32 * 1048576) | .zero_bytes] | max >= 8 * 1048576' "$T/maps.json"
# what the restarter makes itself is not in it
must_fail 1 jq -e '[.spaces[0].regions[] | .name] | index("[vdso]") or index("[vvar]")' "$T/maps.json"

# what cannot be written leaves nothing behind
printf 'save %s\nverify\n' "$T/none/c.dmtcp" | "$selfckpt" -t 2 >"$T/out"
says "cannot save to '$T/none/c.dmtcp': No such file or directory"
says verified
