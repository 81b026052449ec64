#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Images that real tools make of real processes: criu of a C program and of python3, gcore of python3. Packed,
# verified and unpacked they are the same to the byte; what thawfs says about their memory is what crit, readelf
# and a decoder of our own say; and each zero MiB of the process is a hole, wherever it lies in the file.
. "$(dirname "$0")/lib.sh"
requires root gcore readelf python3 jq
helper=$src/real_inputs.py

# start COMMAND...: run it detached, as a process that criu can take; its pid is in $pid
start() {
	setsid "$@" </dev/null >"$T/started" 2>&1 &
	pid=$!
	on_exit kill -9 "$pid"
}
# until_ready COMMAND...: it has to succeed within 20 seconds
until_ready() {
	local i
	for ((i = 0; i < 200; i++)); do
		"$@" && return
		kill -0 "$pid" || fail "the process to dump died: $(cat "$T/started")"
		sleep 0.1
	done
	fail "not ready: $*"
}
start_python() {
	start python3 -c "
import random, sys, time
table = {i: str(i) for i in range(200000)}
zeros = bytearray(24 << 20)
zeros[:] = bytes(24 << 20)
noise = random.Random(1).randbytes(8 << 20)
open(sys.argv[1], 'w').close()
while True:
    time.sleep(0.05)
" "$T/ready"
	until_ready test -e "$T/ready"
	rm "$T/ready"
}

# round_trip NAME: $T/NAME, a file or directory, becomes $T/NAME.thaw and $T/NAME.out/, which must be the same
round_trip() {
	must "$thawfs" pack -o "$T/$1.thaw" "$T/$1"
	must "$thawfs" verify "$T/$1.thaw"
	must "$thawfs" unpack "$T/$1.thaw" "$T/$1.out"
	if [ -d "$T/$1" ]; then
		must diff -r "$T/$1" "$T/$1.out"
	else
		must cmp "$T/$1" "$T/$1.out/$1"
	fi
}
same_regions() {
	must diff "$T/want" "$T/got" >"$T/diff" || {
		head -n 20 "$T/diff"
		fail "$1: regions differ from the image's own"
	}
	[ "$(wc -l <"$T/want")" -ge 10 ] || fail "$1: only $(wc -l <"$T/want") regions: the comparison is worth nothing"
}

# dump NAME: a criu dump of $pid into $T/NAME, everything about it checked
check_criu() {
	mkdir "$T/$1"
	must "$criu" dump -t "$pid" -D "$T/$1" -v1 -o dump.log
	round_trip "$1"
	"$thawfs" maps --json "$T/$1.thaw" >"$T/maps.json" || fail "maps: exit $?"

	must python3 "$helper" criu-regions "$T/$1" "$pid" >"$T/want"
	must python3 "$helper" maps-regions "$pid" -p <"$T/maps.json" >"$T/got"
	same_regions "$1"
	if [ -n "$crit" ]; then
		"$crit" show "$T/$1/mm-$pid.img" | jq -r '.entries[0].vmas[] | "\(.start[2:])-\(.end[2:])"' >"$T/want"
		cut -d' ' -f1 "$T/got" >"$T/got.addresses" && mv "$T/got.addresses" "$T/got"
		same_regions "$1 (crit)"
	fi

	must python3 "$helper" criu-zeros "$T/$1" "$pid" >"$T/zeros"
	must python3 "$helper" holes "$T/$1.out" <"$T/zeros"
	rm -rf "${T:?}/$1" "$T/$1.out" "$T/$1.thaw"
}

check_core() {
	start_python
	gcore -o "$T/core" "$pid" >"$T/out" 2>&1 || fail "gcore: $(cat "$T/out")"
	mv "$T/core.$pid" "$T/core"
	round_trip core
	"$thawfs" maps --json "$T/core.thaw" >"$T/maps.json" || fail "maps: exit $?"
	must python3 "$helper" core-regions "$T/core" >"$T/want"
	must python3 "$helper" maps-regions core <"$T/maps.json" >"$T/got"
	same_regions core
	must python3 "$helper" core-zeros "$T/core" >"$T/zeros"
	must python3 "$helper" holes "$T/core.out" <"$T/zeros"
	rm -rf "$T"/core*
}

check_core
requires criu
start "$bin/tool_target" "$T/status"
until_ready test -s "$T/status"
check_criu target
start_python
check_criu python
