#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What --dry-run says: complete, in order, and what a lazy restart from the mount then does.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=tests/lib_mount.sh
. "$(dirname "$0")/lib_mount.sh"
# shellcheck source=tests/lib_restart.sh
. "$(dirname "$0")/lib_restart.sh"
requires jq

make_checkpoint "$T/c.dmtcp" -m 64 -a 100 -t 2
must "$thawfs" pack -q -o "$T/c.thaw" "$T/c.dmtcp"
for mode in eager lazy; do
	"$thawfs" restart --dry-run --json --mode=$mode "$T/c.thaw/c.dmtcp" >"$T/$mode.json" || fail "no plan"
	# shellcheck disable=SC2016
	# ascending, without overlap, and the sums are those of the list
	must_fail 0 jq -e '.items as $i | all(range(1; $i | length); $i[. - 1].addr + $i[. - 1].len <= $i[.].addr)' \
		"$T/$mode.json"
	for a in anonymous read map; do
		must_fail 0 jq -e "([.items[] | select(.action == \"$a\") | .len] | add // 0) == .${a}_bytes" "$T/$mode.json"
	done
done
must_fail 0 jq -e '.map_bytes == 0 and .anonymous_bytes >= 16 * 1048576' "$T/eager.json"
must_fail 0 jq -e '.map_bytes >= 48 * 1048576 and .read_bytes < 8 * 1048576' "$T/lazy.json"
total='.anonymous_bytes + .read_bytes + .map_bytes'
[ "$(jq "$total" "$T/eager.json")" = "$(jq "$total" "$T/lazy.json")" ] || fail "the modes differ in sum"
must_fail 0 "$thawfs" restart --dry-run "$T/c.thaw/c.dmtcp"
says "read: "
must_fail 1 "$thawfs" restart --dry-run "$T/c.dmtcp"
says "it is not a member of an image"
must_fail 1 "$thawfs" restart --dry-run "$T/c.thaw/d.dmtcp"
says "cannot find the memory of 'd.dmtcp'"

requires fuse root
mount_image "$T/c.thaw" "$T/mnt"
drive 'restarted;verified;' verify "$thawfs" restart --profile --mode=lazy "$T/mnt/c.dmtcp"
mapped=$(sed -n 's/.* mapped_bytes=\([0-9]*\) .*/\1/p' "$T/err")
[ "$mapped" = "$(jq .map_bytes "$T/lazy.json")" ] || fail "mapped $mapped, planned $(jq .map_bytes "$T/lazy.json")"
unmount "$T/mnt" "$daemon"
