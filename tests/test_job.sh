#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2015
# The images of the ranks of a job are a checkpoint together or not at all, whoever is killed when.
. "$(dirname "$0")/lib.sh"
requires jq
cd "$T" || exit 1
ranks=4

# each rank's state says which round it is of
states() { # ROUND
	for r in $(seq 0 $((ranks - 1))); do
		mkdir -p "state$r"
		{
			echo "round $1 rank $r"
			head -c 300000 /dev/urandom
		} >"state$r/data"
	done
}
# one RANK OPTION...: that rank's snap; start: in the background, its process is in $!
one() {
	start "$@"
	wait $!
}
start() {
	local r=$1
	shift
	"$thawfs" snap -q --no-fsync --job sim --rank "$r" --ranks $ranks "$@" "state$r" store 2>"err$r" &
}
newest() { readlink store/sim-latest.job; }
# consistent ROUND: the newest manifest is of that round, all of it
consistent() {
	local r file
	for r in $(seq 0 $((ranks - 1))); do
		file=$(jq -r ".images[$r].file" store/sim-latest.job)
		rm -rf back
		must "$thawfs" unpack -q "store/$file" back
		[ "$(head -n 1 back/data)" = "round $1 rank $r" ] || fail "rank $r of $(newest) has '$(head -n 1 back/data)' instead of round $1"
	done
}

mkdir store
states 1
for r in 0 1 2 3; do start $r; done
for _ in 0 1 2 3; do
	wait -n || fail "a rank failed: $(cat err?)"
done
[ "$(newest)" = sim-000001.job ] || fail "manifest: $(newest)"
consistent 1
[ "$("$thawfs" series --json store | jq -c '.jobs | map([.job, .sequence, .state, (.images | length)])')" = '[["sim",1,"complete",4]]' ] ||
	fail "jobs: $("$thawfs" series store)"

# one does not come: no checkpoint, and the others say so
states 2
for r in 0 1 2; do start $r --wait 1; done
for _ in 0 1 2; do
	wait -n
	[ $? -eq 4 ] || fail "a rank without the others: $(cat err?)"
done
grep -q "of 4 ranks came in time" err0 || fail "no message: $(cat err0)"
[ "$(newest)" = sim-000001.job ] || fail "a manifest without rank 3"
# it comes later, alone: not with what the others left
one 3 --wait 1 && fail "rank 3 alone is a checkpoint"
[ "$(newest)" = sim-000001.job ] || fail "a manifest of dead ranks"
# the others are killed while they wait
for r in 0 1 2; do
	start $r
	waiting[r]=$!
done
sleep 1
kill -9 "${waiting[@]}"
wait
states 3
one 3 --wait 1 && fail "rank 3 with dead ones is a checkpoint"
[ "$(newest)" = sim-000001.job ] || fail "a manifest of killed ranks"
# what is older than the last complete checkpoint may go; that may not, even if each rank has newer images
must "$thawfs" prune -q --keep 1 store
consistent 1
for r in 0 1 2 3; do start $r; done
wait
consistent 3

# killed at random. Who ends with 0 has a checkpoint; a checkpoint is of one round; it never goes back
last=3
for round in $(seq 4 "$(long_or 60 9)"); do
	states "$round"
	for r in 0 1 2 3; do
		start $r --wait 2 --keep 2
		pid[r]=$!
	done
	for r in 0 1 2 3; do
		[ $((RANDOM % 4)) -eq 0 ] || continue
		sleep 0.0$((RANDOM % 10))
		kill -9 "${pid[r]}" 2>/dev/null
	done
	good=0
	for r in 0 1 2 3; do
		wait "${pid[r]}" && good=$((good + 1))
	done
	sequence=$(jq .sequence store/sim-latest.job)
	[ "$good" -eq 0 ] || [ "$(jq -r '.images[0].file' store/sim-latest.job)" != "${before:-}" ] || fail "round $round: $good ranks are content, but no manifest came"
	if [ "$(jq -r '.images[0].file' store/sim-latest.job)" != "${before:-}" ] && [ "$sequence" != "${before_sequence:-2}" ]; then
		last=$round
	fi
	consistent "$last"
	before=$(jq -r '.images[0].file' store/sim-latest.job)
	before_sequence=$sequence
done
states last
for r in 0 1 2 3; do start $r --keep 1; done
wait
consistent last
must "$thawfs" prune -q --keep 1 store
"$thawfs" series --json store | jq -e '.jobs | length == 1 and .[0].state == "complete"' >/dev/null || fail "after prune: $("$thawfs" series store)"
consistent last

# labels: nobody waits, and what does not belong together does not come together
rm -rf store && mkdir store
states a
for r in 0 1 2; do one $r --step a || fail "a rank with a label: $(cat err$r)"; done
[ ! -e store/sim-latest.job ] || fail "a manifest without rank 3"
states b
one 3 --step b || fail "another label: $(cat err3)"
[ ! -e store/sim-latest.job ] || fail "labels are mixed"
for r in 0 1 2; do one $r --step b; done
consistent b
[ "$(jq -r .step store/sim-latest.job)" = b ] || fail "the label: $(cat store/sim-latest.job)"
# a manifest that is none is not taken for one
echo '{"job": "sim", "sequence": 2, "ranks": 4, "images": []}' >store/sim-000002.job
must_fail 3 "$thawfs" series store
says "it is no manifest"
must_fail 3 "$thawfs" prune --keep 1 store
rm store/sim-000002.job
echo '{"job": "sim", "sequence": 2, "ranks": 1, "images": [{"file": "../state0", "id": "00000000000000000000000000000000", "token": "0000000000000000"}]}' >store/sim-000002.job
must_fail 3 "$thawfs" series store

must_fail 2 "$thawfs" snap --job sim state0 store
must_fail 2 "$thawfs" snap --job sim --rank 4 --ranks 4 state0 store
must_fail 2 "$thawfs" snap --job sim/a --rank 0 --ranks 4 state0 store
must_fail 2 "$thawfs" snap --rank 0 state0 store
exit 0
