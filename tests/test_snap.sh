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

# a full store: the message, exit code 7, nothing left, the checkpoint of before as it was
if [ "$(id -u)" = 0 ] && mkdir full && mount -t tmpfs -o size=12m none full 2>/dev/null; then
	on_exit umount "$T/full"
	must "$thawfs" snap -q state full
	must_fail 7 "$thawfs" snap --base none state full
	says "No space left on device"
	[ "$(ls -A full)" = "$(printf '.state.lock\nlatest\nstate-000001.thaw\nstate-latest')" ] || fail "left in the full store: $(ls -A full)"
	restores full/latest state
fi

# stopped: what is stored is used again, and the image is the same as without the stop
mkdir slow straight
must "$thawfs" snap -q state straight
must_fail 4 "$thawfs" snap --timeout 1 --rate 2M state slow
says "kept for the next run"
[ "$(state .state-000001.thaw.partial slow)" = partial ] || fail "after a stop: $("$thawfs" series slow)"
[ ! -e slow/latest ] || fail "a link to nothing"
must "$thawfs" snap --json state slow >slow.json 2>/dev/null
[ "$(jq .resumed_bytes slow.json)" -ge 1000000 ] || fail "nothing was used again: $(cat slow.json)"
must cmp slow/state-000001.thaw straight/state-000001.thaw
[ -z "$(find slow -name '.*.journal')" ] || fail "the journal is still there"
# by a signal
"$thawfs" snap -q --base none --rate 2M state slow 2>out &
snap=$!
sleep 1
kill -TERM $snap
wait $snap
[ $? -eq 4 ] || fail "SIGTERM: $(cat out)"
# what is left has been damaged, cut, or lies about itself; the source has changed; still the image is right
cp slow/.state-000002.thaw.partial kept.partial
cp slow/.state-000002.thaw.journal kept.journal
spoil() { # COMMAND: what to do to the files p and j
	local p=slow/.state-000002.thaw.partial j=slow/.state-000002.thaw.journal
	rm -f slow/state-000002.thaw
	cp kept.partial $p
	cp kept.journal $j
	eval "$1"
	must "$thawfs" snap -q --base none state slow 2>/dev/null
	must "$thawfs" verify -q slow/state-000002.thaw
	restores slow/state-000002.thaw state
}
# shellcheck disable=SC2016
for how in 'flip $p 5000' 'flip $p 100' 'truncate -s 500000 $p' 'truncate -s 0 $p' 'rm $p' 'flip $j 60' 'truncate -s 100 $j' \
	'head -c 5000 /dev/urandom >$j' 'dd if=/dev/zero of=$p bs=1k seek=100 count=200 conv=notrunc status=none' \
	'mv state/slab2 state/slab0; echo new >state/slab2' 'cat $p >>$p.2; cat $p.2 >>$p; rm $p.2'; do
	spoil "$how"
done

# killed at any moment: the newest is there and whole, and at the end one run does it
mkdir killed
cp -r state before
must "$thawfs" snap -q state killed
for i in $(seq "$(long_or 100 8)"); do
	dd if=/dev/urandom of=state/slab3 bs=1k count=500 seek=$((i * 3 % 1000)) conv=notrunc status=none
	"$thawfs" snap -q --keep 3 --rate 6M state killed 2>/dev/null &
	snap=$!
	sleep 0.0$((RANDOM % 10))$((RANDOM % 10))
	kill -9 $snap 2>/dev/null
	wait $snap 2>/dev/null
	latest=killed/$("$thawfs" series --json killed | jq -r '.series[0].latest')
	must "$thawfs" verify -q "$latest"
	rm -rf back
	must "$thawfs" unpack -q "$latest" back
	diff -rq back before >/dev/null || diff -rq back state >/dev/null || fail "killed $i: $latest is neither the state of before nor this one"
	# the state that a complete image holds is the next one's "before"
	diff -rq back state >/dev/null && rm -rf before && cp -r state before
done
must "$thawfs" snap -q --base none state killed 2>/dev/null
restores killed/latest state
must "$thawfs" clean -q killed
[ -z "$(find killed -name '.*.partial' -o -name '.*.journal')" ] || fail "clean left $(ls -A killed)"

# a store that fails for a while, one that fails for longer, one that hangs
shim=$bin/shim_fault.so
if [ -z "${THAW_SAN:-}" ]; then
	mkdir flaky
	LD_PRELOAD=$shim FAULT_CALLS=write FAULT_AT=5 FAULT_ERRNO=5 FAULT_PATH=.partial must "$thawfs" snap -q state flaky 2>out
	grep -q "trying again" out || fail "no retry: $(cat out)"
	restores flaky/latest state
	LD_PRELOAD=$shim FAULT_CALLS=write FAULT_AT=9 FAULT_FOR=1000 FAULT_ERRNO=5 FAULT_PATH=.partial \
		must_fail 1 "$thawfs" snap -q --base none state flaky
	says "Input/output error"
	must "$thawfs" snap --json --base none state flaky >flaky.json 2>/dev/null
	[ "$(jq .resumed_bytes flaky.json)" -gt 0 ] || fail "after an error: $(cat flaky.json)"
	restores flaky/latest state
	# what fsync reports may be lost although it can be read: not to be used again
	LD_PRELOAD=$shim FAULT_CALLS=fsync FAULT_AT=1 FAULT_ERRNO=5 FAULT_PATH=.partial must_fail 1 "$thawfs" snap -q --base none state flaky
	[ -z "$(find flaky -name '.*.partial' -o -name '.*.journal')" ] || fail "kept after a failed fsync: $(ls -A flaky)"
	for call in write fsync rename; do
		LD_PRELOAD=$shim FAULT_CALLS=$call FAULT_AT=1 FAULT_ERRNO=stall FAULT_PATH=partial \
			must_fail 4 timeout 60 "$thawfs" snap -q --timeout 1 --base none state flaky
		[ "$(readlink flaky/state-latest)" = state-000002.thaw ] || fail "published by a store that hangs in $call"
		restores flaky/latest state
	done
fi

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
