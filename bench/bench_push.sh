#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Pushing what is beside a read into the page cache: the same page faults with and without it. Cold, the image in page
# cache, each run on a mount of its own; times from inside.
. "$(dirname "$0")/lib.sh"
[ "$(id -u)" = 0 ] || { note "push: left out: it needs root" && exit 0; }
[ -w /dev/fuse ] || { note "push: left out: it needs /dev/fuse" && exit 0; }
probe=$bin/bench/bench_probe
mnt=$D/push
mkdir -p "$mnt"
BENCH_MIB=${BENCH_PUSH_MIB:-96}
image process
name=$(basename "$input")
once() { # once MODE ARGUMENTS...: seconds
	"$thawfs" mount -o "prefetch=$1,cache=32M" "$image" "$mnt" || die "cannot mount"
	"$probe" "$2" "$mnt/$name" "${@:3}" || die "$*"
	"$thawfs" umount "$mnt" || die "cannot unmount"
}
# in_turns CASE ARGUMENTS...
in_turns() {
	local case=$1 a=$D/times.a b=$D/times.b i ratio min median spread
	shift
	rm -f "$a" "$b"
	for ((i = 0; i <= BENCH_RUNS; i++)); do
		once off "$@" >>"$a"
		once ws "$@" >>"$b"
		[ $i -gt 0 ] || rm "$a" "$b"
	done
	read -r _ ratio _ < <(paste "$a" "$b" | awk '{ print $1 / $2 }' | stats)
	read -r min median spread < <(stats <"$a")
	row "$case" "without" s "$BENCH_RUNS" "$min" "$median" "$spread" 1 - "$*"
	read -r min median spread < <(stats <"$b")
	row "$case" "pushing" s "$BENCH_RUNS" "$min" "$median" "$spread" "$ratio" "${bar:--}" "$*"
	rm -f "$a" "$b"
}
bar=1.3 in_turns "all pages, 1 MiB at a time" scatter 100 $((1 << 20))
in_turns "a tenth of the pages, 1 MiB at a time" scatter 10 $((1 << 20))
in_turns "a tenth of the pages, anywhere" scatter 10 $((BENCH_MIB << 20))
bar=0.9 in_turns "1 % of the pages, anywhere" scatter 1 $((BENCH_MIB << 20))
bar=0.9 in_turns "sequential read" read
bar=0.9 in_turns "sequential touch" touch
rmdir "$mnt"
