#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# thawfs du: its sums are those of the files and of the image.
. "$(dirname "$0")/lib.sh"
requires jq

cd "$T" || exit 1
mkdir -p tree/x/y tree/z
must "$bin/tool_genimage" mem tree/x/one --size=2M --kind=heap >/dev/null
cp tree/x/one tree/x/y/copy # the same chunks
must "$bin/tool_genimage" mem tree/z/two --size=1M --kind=random >/dev/null
truncate -s 10M tree/z/hole
echo small >tree/x/y/small
ln tree/z/two tree/x/link # counts where it is met first
ln -s one tree/x/soft
must "$thawfs" pack -q -o i.thaw tree
"$thawfs" du --json -a i.thaw >du.json || fail "du: exit $?"
"$thawfs" info --json i.thaw >info.json || fail "info: exit $?"

bytes() { jq -r --arg p "$1" ".entries[] | select(.path == \$p) | .$2" du.json; }
equal() { [ "$1" = "$2" ] || fail "$3: $1, not $2"; }

# the root is the image
equal "$(bytes "" logical_bytes)" "$(jq .logical_bytes info.json)" "logical bytes"
equal "$(bytes "" hole_bytes)" "$(jq .hole_bytes info.json)" "hole bytes"
equal "$(bytes "" stored_bytes)" "$(jq .stored_bytes info.json)" "stored bytes"
equal "$(bytes "" base_bytes)" 0 "base bytes"
equal "$(bytes "" logical_bytes)" $((2097152 * 2 + 1048576 + 10485760 + 6)) "sum of the sizes"
# a directory is the sum of what is in it, give or take the rounding of each
for dir in x x/y z; do
	for key in logical_bytes hole_bytes shared_bytes stored_bytes; do
		sum=$(jq --arg d "$dir/" "[.entries[] | select(.type == \"file\" and (.path | startswith(\$d))) | .$key] | add" du.json)
		diff=$(($(bytes $dir $key) - sum))
		[ ${diff#-} -le 3 ] || fail "$dir: $key is $(bytes $dir $key), its files have $sum"
	done
done
# what is shared is shared evenly, and all of it is
equal "$(bytes x/one stored_bytes)" "$(bytes x/y/copy stored_bytes)" "shares of a copy"
[ "$(bytes x/one shared_bytes)" -eq 2097152 ] || fail "shared: $(bytes x/one shared_bytes)"
equal "$(bytes z/hole stored_bytes)" 0 "stored bytes of a hole"
# a hard link counts once, where a walk meets it first
equal "$(bytes x/link logical_bytes)" 1048576 "the link"
equal "$(bytes z/two logical_bytes)" "" "the link again"
equal "$(bytes x/soft logical_bytes)" "" "a symlink"

# text: the same numbers, directories only, the total only, a part, a file
"$thawfs" du -b i.thaw >text
equal "$(awk 'NR > 1 {print $6}' text | tr '\n' ' ')" "x/y x z / " "directories"
equal "$(awk '$6 == "x" {print $1, $2, $3, $4, $5}' text)" \
	"$(for k in logical hole stored shared base; do bytes x ${k}_bytes; done | tr '\n' ' ' | sed 's/ $//')" "the line of x"
equal "$("$thawfs" du -sb i.thaw | awk 'NR > 1 {print $1, $6}')" "$(jq .logical_bytes info.json) /" "the total"
equal "$("$thawfs" du -b i.thaw x/y | awk 'NR > 1 {print $1, $6}')" "2097158 x/y" "a part"
equal "$("$thawfs" du -b i.thaw z/hole | awk 'NR > 1 {print $1, $2, $6}')" "10485760 10485760 z/hole" "a file"
"$thawfs" du i.thaw z/hole | grep -q ' 10\.0 MiB  *10\.0 MiB  *0 B ' || fail "human sizes: $("$thawfs" du i.thaw z/hole)"
must_fail 1 "$thawfs" du i.thaw nix
says "cannot find 'nix' in 'i.thaw': no such member"

# with a base
mkdir tree2
cp -a tree/. tree2
echo more >tree2/new
must "$thawfs" pack -q --base i.thaw -o j.thaw tree2
"$thawfs" du --json j.thaw >du.json
equal "$(bytes "" stored_bytes)" "$("$thawfs" info --json j.thaw | jq .stored_bytes)" "stored with a base"
[ "$(bytes "" base_bytes)" -gt 5000000 ] || fail "in bases: $(bytes "" base_bytes)"
# which needs no base to be there
mv i.thaw gone
must cmp <("$thawfs" du --json j.thaw) du.json
exit 0
