#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Processes that checkpointed themselves (examples/selfckpt), brought back from a zstd image, against the same restarter
# with one reader on the raw file, which is what DMTCP's own does. A quarter of the memory is zero. Files are evicted from
# the page cache before each run.
. "$(dirname "$0")/lib.sh"
[ -x "$bin/examples/selfckpt" ] || {
	note "restart: needs x86-64"
	exit 0
}
sizes=${BENCH_RESTART_MIB:-256 $BENCH_MIB}

# checkpoint MIB: $raw and $image
checkpoint() {
	raw=$D/selfckpt-$1.dmtcp
	make_once "$raw" "printf 'save %s\n' $raw.new | $bin/examples/selfckpt -m $1 -t 4 >/dev/null"
	image=$raw.thaw
	[ "$image" -nt "$thawfs" ] || "$thawfs" pack -q -z1 -o "$image" "$raw" || die "cannot pack $raw"
	member=$image/${raw##*/}
	evict="dd of=$raw oflag=nocache conv=notrunc count=0 status=none; dd of=$image oflag=nocache conv=notrunc count=0 status=none"
}
# restart MODE FILE COMMANDS LINE [OPTION]: the command that does it, ends with the process, and sees LINE
restart() { echo "printf '$3' | $thawfs restart ${5:-} --mode=$1 $2 | grep -q '$4'"; }

# first FILE: the least of BENCH_RUNS times until the process answers, in ms
first() {
	local i times=$D/times.first
	rm -f "$times"
	for ((i = 0; i < BENCH_RUNS; i++)); do
		bash -c "$evict"
		seconds "$times" "$(restart uffd "$1" 'exit 0\n' restarted)"
	done
	stats <"$times" | awk '{ print $1 * 1000 }'
	rm -f "$times"
}

checkpoint 30
least=$(first "$member")
for mib in $sizes; do
	checkpoint "$mib"
	one=$(restart eager "$raw" 'exit 0\n' restarted -j1)
	compare "$mib MiB first progress, cold" - "$evict" "raw, one reader" "$one" \
		"image, uffd" "$(restart uffd "$member" 'exit 0\n' restarted)"
	ms=$(first "$member")
	measure "$mib MiB first progress, cold, over 30 MiB's" ms 60 "image, uffd" \
		"awk 'BEGIN { d = $ms - $least; print (d > 0.1 ? d : 0.1) }'"
	one=$(restart eager "$raw" 'verify\n' verified -j1)
	for mode in uffd eager; do
		compare "$mib MiB all memory read, cold" 1.5 "$evict" "raw, one reader" "$one" \
			"image, $mode" "$(restart $mode "$member" 'verify\n' verified)"
	done
	cat "$raw" "$image" >/dev/null
	one=$(restart eager "$raw" 'verify\nwrite\n' written -j1)
	for mode in uffd eager; do
		compare "$mib MiB all memory written, warm" 0.77 true "raw, one reader" "$one" \
			"image, $mode" "$(restart $mode "$member" 'verify\nwrite\n' written)"
	done
done
