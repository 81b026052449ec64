#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2015
# A series of images: whatever happens to a snap, the last complete checkpoint is there, and the listing says what each
# file is.
. "$(dirname "$0")/lib.sh"
requires jq
cd "$T" || exit 1

# state NAME: what the listing calls a file of the store
state() { "$thawfs" series --json "${2:-store}" | jq -r --arg f "$1" '.series[].images[] | select(.file == $f) | .state'; }
newest() { "$thawfs" series --json store | jq -r '.series[0].latest'; }
# restores IMAGE DIR: it is DIR again
restores() {
	rm -rf back
	must "$thawfs" unpack -q "$1" back
	must diff -r --no-dereference back "$2"
}
flip() { # FILE OFFSET
	local byte
	byte=$(dd if="$1" bs=1 skip="$2" count=1 status=none | od -An -tu1)
	# shellcheck disable=SC2059
	printf "\\x$(printf %x $((byte ^ 16)))" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}

mkdir state store
for i in 0 1 2 3; do must "$bin/tool_genimage" mem state/slab$i --size=2M --kind=floats --zero=none --seed=$i >/dev/null; done
truncate -s 4M state/empty
cp -r state first

# numbers, links, bases
must "$thawfs" snap -q state store
[ "$(readlink store/latest) $(readlink store/state-latest)" = "state-latest state-000001.thaw" ] || fail "links after the first snap"
restores store/latest first
dd if=/dev/urandom of=state/slab1 bs=1k count=300 seek=200 conv=notrunc status=none
must "$thawfs" snap --json state store >two.json
[ "$(jq -r '.sequence, .base' two.json | tr '\n' ' ')" = "2 store/state-000001.thaw " ] || fail "the second: $(cat two.json)"
[ "$(stat -c %s store/state-000002.thaw)" -lt $(($(stat -c %s store/state-000001.thaw) / 4)) ] || fail "the second is not incremental"
restores store/state-latest state
restores store/state-000001.thaw first
must "$thawfs" snap -q --base none state store
[ "$("$thawfs" info --json store/latest | jq '.bases | length')" = 0 ] || fail "--base none has a base"

# contents that have nothing in common: a base does not pay; and after eight bases a full one
mkdir noise other
head -c 3000000 /dev/urandom >noise/x
must "$thawfs" snap -q noise other
head -c 3000000 /dev/urandom >noise/x
must "$thawfs" snap --json noise other >noise.json
[ "$(jq .base noise.json)" = null ] || fail "a base that has nothing: $(cat noise.json)"
mkdir chain
for i in $(seq 10); do
	dd if=/dev/urandom of=noise/x bs=1k count=300 seek=$((i * 260)) conv=notrunc status=none
	must "$thawfs" snap -q noise chain
done
[ "$("$thawfs" series --json chain | jq '[.series[0].images[].bases | length] | max')" -le 8 ] || fail "a chain without an end"
[ "$("$thawfs" series --json chain | jq '[.series[0].images[].bases | length] | map(select(. == 0)) | length')" -ge 2 ] || fail "no full image after eight"
restores chain/latest noise

# a clock that goes backwards: the number decides
touch -d '2001-01-01' store/state-000003.thaw
touch -d '2030-01-01' store/state-000001.thaw
[ "$(newest)" = state-000003.thaw ] || fail "the newest is $(newest)"

# what the files are: a partial image, one that was cut short, a damaged index, damaged chunks
head -c 100000 store/state-000003.thaw >store/.state-000004.thaw.partial
head -c 200000 store/state-000003.thaw >store/state-000005.thaw
cp store/state-000003.thaw store/state-000006.thaw
flip store/state-000006.thaw $(($(stat -c %s store/state-000006.thaw) - 9000))
[ "$(state .state-000004.thaw.partial) $(state state-000005.thaw) $(state state-000006.thaw)" = "partial partial damaged" ] ||
	fail "states: $("$thawfs" series store)"
[ "$(newest)" = state-000003.thaw ] || fail "a damaged image is the newest"
must_fail 3 "$thawfs" series store
says "its end is missing"
must "$thawfs" snap -q state store
[ "$(newest) $(readlink store/state-latest)" = "state-000007.thaw state-000007.thaw" ] || fail "after a damaged one comes $(newest)"
restores store/latest state

# prune keeps bases, damaged and partial ones; clean takes the partial ones, with --damaged the others
must "$thawfs" prune -q --keep 1 store
[ "$(ls store)" = "$(printf 'latest\nstate-000003.thaw\nstate-000005.thaw\nstate-000006.thaw\nstate-000007.thaw\nstate-latest')" ] ||
	fail "after prune: $(ls store)"
restores store/latest state
must "$thawfs" clean -n store >out
[ -e store/state-000005.thaw ] || fail "a dry run removes"
[ "$(cat out)" = "$(printf 'would remove .state-000004.thaw.partial\nwould remove state-000005.thaw')" ] || fail "dry run: $(cat out)"
must "$thawfs" clean -q store
[ ! -e store/.state-000004.thaw.partial ] && [ ! -e store/state-000005.thaw ] && [ -e store/state-000006.thaw ] || fail "clean: $(ls -A store)"
must "$thawfs" clean -q --damaged store
[ "$(ls store)" = "$(printf 'latest\nstate-000003.thaw\nstate-000007.thaw\nstate-latest')" ] || fail "clean --damaged: $(ls store)"

# a damaged newest image: prune keeps the last one that is good, the next snap does not build on what is bad
must "$thawfs" snap -q --base none state store
flip store/state-000008.thaw 300000
must "$thawfs" prune -q --keep 1 store 2>/dev/null
[ -e store/state-000007.thaw ] || fail "prune removed the last good one"
must_fail 3 "$thawfs" series --verify store
says "chunks are damaged"
must "$thawfs" snap -q state store
restores store/state-000009.thaw state
must_fail 3 "$thawfs" verify store/state-000008.thaw
# none is good: nothing goes
mkdir bad && cp store/state-000008.thaw bad/state-000001.thaw && cp store/state-000008.thaw bad/state-000002.thaw
must_fail 3 "$thawfs" prune --keep 1 bad
says "none is removed"
[ "$(find bad -name '*.thaw' | wc -l)" = 2 ] || fail "prune removed one of two bad ones"

# --keep; a base that is needed by an image of another series stays
mkdir keep
for _ in 1 2 3 4 5; do must "$thawfs" snap -q --base none --keep 2 state keep; done
[ "$(ls keep)" = "$(printf 'latest\nstate-000004.thaw\nstate-000005.thaw\nstate-latest')" ] || fail "--keep 2: $(ls keep)"
must "$thawfs" snap -q --name other --base keep/state-000004.thaw state keep
[ ! -e keep/latest ] && [ "$(readlink keep/other-latest)" = other-000001.thaw ] || fail "links of two series"
must "$thawfs" snap -q --base none --keep 1 state keep
must "$thawfs" prune -q --keep 1 keep
[ -e keep/state-000004.thaw ] && [ ! -e keep/state-000005.thaw ] || fail "prune and a base of another series: $(ls keep)"
restores keep/other-latest state

# two at once: one goes, one is told
exec 9>store/.state.lock
flock 9 || fail "lock"
must_fail 5 "$thawfs" snap -q state store
says "another snap"
must_fail 5 "$thawfs" prune --keep 1 store state
must_fail 5 "$thawfs" clean store
exec 9>&-
for _ in 1 2 3 4 5 6; do "$thawfs" snap -q --base none state store 2>/dev/null & done
wait
"$thawfs" series --json store | jq -e '[.series[0].images[].state] | all(. == "complete")' >/dev/null || fail "six at once: $("$thawfs" series store)"
[ "$(readlink store/state-latest)" = "$(newest)" ] || fail "six at once: the link leads to $(readlink store/state-latest)"
restores store/latest state

# what cannot be
must_fail 1 "$thawfs" snap state s3://bucket/prefix
says "only directories can hold a series"
must_fail 1 "$thawfs" series s3://bucket
mkdir state/store
must_fail 1 "$thawfs" snap state state/store
says "is inside 'state'"
rmdir state/store
must_fail 1 "$thawfs" snap state/slab0 store
says "not a directory"
must_fail 1 "$thawfs" snap state nowhere
must_fail 2 "$thawfs" snap --name a/b state store
must_fail 2 "$thawfs" prune store
must_fail 1 "$thawfs" prune --keep 1 store nobody
exit 0
