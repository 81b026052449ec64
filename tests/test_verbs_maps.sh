#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# thawfs maps and info: the regions of a process, in the form of /proc/PID/maps, and the image as a whole.
. "$(dirname "$0")/lib.sh"
requires jq

cd "$T" || exit 1
mkdir tree
must "$bin/tool_genimage" dmtcp tree/ckpt_a.dmtcp --size=4M --areas=5 --tiny=20 --pid=77 --zero=tail --misaligned >/dev/null
must "$bin/tool_genimage" core tree/core.77 --size=2M --tiny=3 --pid=78 >/dev/null
must "$thawfs" pack -q -o i.thaw tree
equal() { [ "$1" = "$2" ] || fail "$3: $1, not $2"; }

"$thawfs" maps --json i.thaw >maps.json || fail "maps: exit $?"
equal "$(jq -c '[.spaces[] | [.name, .kind, .member]]' maps.json)" \
	'[["ckpt_a.dmtcp","dmtcp","ckpt_a.dmtcp"],["core.77","core","core.77"]]' "spaces"
equal "$(jq '.spaces[0].pid' maps.json)" 77 "pid"
[ "$(jq '.spaces[0].regions | length' maps.json)" -ge 25 ] || fail "regions: $(jq '.spaces[0].regions | length' maps.json)"
# sorted, apart, and range says what addr and len say
jq -e 'all(.spaces[].regions; . == sort_by(.addr))' maps.json >/dev/null || fail "regions are not sorted"
jq -e 'all(.spaces[].regions; . as $r | all(range(1; length); $r[.].addr >= $r[. - 1].addr + $r[. - 1].len))' maps.json \
	>/dev/null || fail "regions overlap"
jq -r '.spaces[].regions[] | select(.addr < 9007199254740992) | "\(.addr) \(.len) \(.range)"' maps.json |
	while read -r addr len range; do
		equal "$range" "$(printf '%08x-%08x' "$addr" $((addr + len)))" "range"
	done || exit 1
# what a region holds is all of it or less, and the stored parts are no more than the image has
jq -e 'all(.spaces[].regions[]; .zero_bytes + .absent_bytes + .base_bytes <= .len)' maps.json >/dev/null || fail "too many bytes"
stored=$("$thawfs" info --json i.thaw | jq .stored_bytes)
[ "$(jq '[.spaces[].regions[].stored_bytes] | add' maps.json)" -le "$stored" ] || fail "regions take more than is stored"

# text: the left half is a line of /proc/PID/maps
"$thawfs" maps i.thaw ckpt_a.dmtcp >text
equal "$(head -n 1 text)" "# ckpt_a.dmtcp (dmtcp, pid 77, $(jq '.spaces[0].regions | length' maps.json) regions, in ckpt_a.dmtcp)" \
	"the head"
sed 1d text | cut -f 1 | grep -vE '^[0-9a-f]{8,}-[0-9a-f]{8,} [r-][w-][x-][sp] [0-9a-f]{8,} 00:00 0 ( *[^ ].*)?$' &&
	fail "not a line of maps"
equal "$(sed 1d text | awk '{print $1, $2}')" "$(jq -r '.spaces[0].regions[] | "\(.range) \(.perms)"' maps.json)" "text and JSON"
"$thawfs" maps -b i.thaw ckpt_a.dmtcp | sed 1d | cut -f 2 >text
equal "$(cat text)" "$(jq -r '.spaces[0].regions[] |
	"stored=\(.stored_bytes) zero=\(.zero_bytes) absent=\(.absent_bytes) shared=\(.shared_bytes)"' maps.json)" "bytes"
equal "$("$thawfs" maps i.thaw | grep -c '^# ')" 2 "all spaces"
# zeros are found in memory, wherever the file has them
[ "$(jq '[.spaces[0].regions[].zero_bytes] | add' maps.json)" -ge 524288 ] || fail "no zeros found"

# a mount shows the same
if [ -w /dev/fuse ]; then
	mkdir mnt
	on_exit "$thawfs" umount "$T/mnt"
	must "$thawfs" mount i.thaw mnt
	equal "$(cut -f 1 mnt/.thaw/maps/ckpt_a.dmtcp)" "$("$thawfs" maps i.thaw ckpt_a.dmtcp | sed 1d | cut -f 1)" "the mount"
	# the directory on the mount stands for the image
	must cmp <("$thawfs" maps --json mnt | jq 'del(.image)') <(jq 'del(.image)' maps.json)
	must cmp <("$thawfs" ls -lR mnt) <("$thawfs" ls -lR i.thaw)
	must "$thawfs" verify -q mnt
	must "$thawfs" diff -q mnt i.thaw
	# another image under the name that was mounted is not taken for it
	cp -a tree other
	echo more >other/more
	must "$thawfs" pack -q -o i2.thaw other
	mv i.thaw kept.thaw && mv i2.thaw i.thaw
	must_fail 1 "$thawfs" ls mnt
	says "cannot open 'mnt': another image is in '$T/i.thaw' now"
	mv kept.thaw i.thaw
	must "$thawfs" umount mnt
fi

# info: text and JSON of the same image
"$thawfs" info -b i.thaw >text
"$thawfs" info --json i.thaw >info.json
value() { sed -n "s/^$1: *\([^ ]*\).*/\1/p" text | head -n 1; }
equal "$(value id)" "$(jq -r .id info.json)" id
equal "$(value logical)" "$(jq .logical_bytes info.json)" logical
equal "$(value holes)" "$(jq .hole_bytes info.json)" holes
equal "$(value stored)" "$(jq .stored_bytes info.json)" stored
equal "$(value image)" "$(stat -c %s i.thaw)" image
equal "$(value index)" "$(jq .index_bytes info.json)" index
equal "$(value chunks)" "$(jq .n_chunks info.json)" chunks
equal "$(jq '.n_chunks_raw + .n_chunks_zstd + .n_chunks_lz4 + .n_chunks_base' info.json)" "$(jq .n_chunks info.json)" "kinds of chunks"
equal "$(jq '.logical_bytes - .hole_bytes - .chunk_bytes - .base_bytes' info.json)" "$(jq .dup_bytes info.json)" "dup_bytes"
equal "$(value source)" dmtcp source
equal "$(grep -c '^space:' text)" 2 "spaces"
[ "$(tail -c 1 text | od -An -tx1)" = " 0a" ] || fail "the text does not end with a newline"
must "$thawfs" pack -q --creator --host --time -o id.thaw tree/core.77
jq -e '.properties.creator == "thawfs" and .properties.single and (.properties.created | test("^[0-9T:-]*Z$"))
	and (.properties.host | length > 0)' <("$thawfs" info --json id.thaw) >/dev/null || fail "who and when"
equal "$("$thawfs" info --json i.thaw | jq -c '.properties | has("host") or has("created")')" false "who and when unasked"
exit 0
