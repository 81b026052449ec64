#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# thawfs ls: what find and stat say of the tree; one line for each name whatever is in it.
. "$(dirname "$0")/lib.sh"
requires jq

cd "$T" || exit 1
mkdir -p tree/sub/deep tree/none
echo one >tree/a
echo two >tree/sub/b
ln tree/a tree/sub/hard
ln -s '../a' tree/sub/soft
ln -s $'new\nline' tree/odd
mkfifo tree/pipe
truncate -s 5G tree/sparse
chmod 6751 tree/a
chmod 1777 tree/none
chmod 2640 tree/sub/b
touch -d '1969-07-20 20:17:40.5 UTC' tree/a
touch -d '2100-01-01 00:00 UTC' tree/sub/b
names=($'new\nline' $'tab\there' $'esc\e[31mred' 'back\slash' $'latin\xe9' 'ünïcödé' $'c1\xc2\x9b31m' $'del\x7f' ' ' '-l' '日本' "q'\"uote" '.hidden')
for n in "${names[@]}"; do : >"tree/deep$n"; done
must "$thawfs" pack -q -o i.thaw tree

# every name is one line, sorted by bytes, and printf %b makes the name again
(cd tree && find . -mindepth 1 -maxdepth 1 -printf '%P\0') | LC_ALL=C sort -z >want
"$thawfs" ls i.thaw >lines || fail "ls: exit $?"
while IFS= read -r line; do printf '%b\0' "${line//\\/\\0}"; done <lines >got
must cmp want got
[ "$(wc -l <lines)" -eq "$(tr -cd '\0' <want | wc -c)" ] || fail "a name is more than one line"
grep -qxF 'deepnew\012line' lines || fail "no escaped newline"
grep -qxF 'deeplatin\351' lines || fail "a byte that is not UTF-8 is not escaped"
grep -qxF 'deepc1\302\23331m' lines || fail "a C1 control character reaches the terminal"
grep -qxF 'deepback\134slash' lines || fail "a backslash is not escaped"
grep -qxF 'deepünïcödé' lines || fail "UTF-8 is escaped"
LC_ALL=C grep -q "[$(printf '\001')-$(printf '\037')$(printf '\177')]" lines && fail "control characters in the list"

# all levels: paths in the order of a walk, a directory before what is in it
(cd tree && find . -mindepth 1 -printf '%P\0') | LC_ALL=C sort -z >want
"$thawfs" ls -R i.thaw | while IFS= read -r line; do printf '%b\0' "${line//\\/\\0}"; done | LC_ALL=C sort -z >got
must cmp want got

# a part of it: a directory's content, a file, a symlink itself
[ "$("$thawfs" ls i.thaw sub | tr '\n' ' ')" = "b deep hard soft " ] || fail "ls sub: $("$thawfs" ls i.thaw sub)"
[ "$("$thawfs" ls i.thaw /sub/)" = "$("$thawfs" ls i.thaw sub)" ] || fail "slashes matter"
[ "$("$thawfs" ls i.thaw sub/soft)" = sub/soft ] || fail "ls of a symlink: $("$thawfs" ls i.thaw sub/soft)"
[ -z "$("$thawfs" ls i.thaw none)" ] || fail "an empty directory has entries"
must_fail 1 "$thawfs" ls i.thaw sub/none
must_fail 1 "$thawfs" ls i.thaw ../i.thaw
must_fail 1 "$thawfs" ls i.thaw sub/soft/x

# the long form, against ls -l
export TZ=UTC
"$thawfs" ls -l -b i.thaw sub >long
(cd tree/sub && stat -c '%A %h %u %g %s' -- b deep hard soft) >want
awk '{print $1, $2, $3, $4, $5}' long >got
# an image counts one link for each directory, a file system does not
must cmp <(sed 's/^\(d[^ ]*\) [0-9]* \(.*\) [0-9]*$/\1 N \2 N/' want) <(sed 's/^\(d[^ ]*\) [0-9]* \(.*\) [0-9]*$/\1 N \2 N/' got)
grep -q -- '-> \.\./a$' long || fail "no target: $(cat long)"
grep -q '2100-01-01 00:00 b$' long || fail "no time: $(cat long)"
"$thawfs" ls -l i.thaw a | grep -q '^-rwsr-s--x .* 1969-07-20 20:17 a$' || fail "ls -l a: $("$thawfs" ls -l i.thaw a)"
"$thawfs" ls -l i.thaw | grep -q '^drwxrwxrwt .* none$' || fail "no sticky bit"
"$thawfs" ls -l i.thaw | grep -qF -- 'odd -> new\012line' || fail "a target is more than one line"
"$thawfs" ls -l i.thaw | grep -q ' 5\.0 GiB .* sparse$' || fail "no human size"
"$thawfs" ls -lb i.thaw | grep -q ' 5368709120 .* sparse$' || fail "no exact size"

# JSON: types and details; hard links have one inode
"$thawfs" ls --json -R i.thaw >json || fail "ls --json: exit $?"
[ "$(jq -c '[.members[] | .type] | unique' json)" = '["directory","fifo","file","symlink"]' ] || fail "types"
jq -e '.complete and .image == "i.thaw" and .path == ""' json >/dev/null || fail "the frame"
jq -e '[.members[] | select(.path == "a" or .path == "sub/hard")] | length == 2 and .[0].inode == .[1].inode
	and .[0].nlink == 2 and .[0].mode == "6751" and .[0].mtime_sec == -14182940 and .[0].mtime_nsec == 500000000' json \
	>/dev/null || fail "the hard link: $(jq -c '.members[] | select(.path == "a")' json)"
jq -e '.members[] | select(.path == "sparse") | .size == 5368709120 and .hole_bytes == .size' json >/dev/null ||
	fail "the sparse file"
jq -e '.members[] | select(.path == "odd") | .target == "new\nline"' json >/dev/null || fail "the target"
exit 0
