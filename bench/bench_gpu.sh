#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Device buffers: what our side costs, with the double of the driver, whose copies cost nothing or take the time that a
# link of a given speed would. With THAW_GPU=real: what the card of this machine takes. See README.md.
. "$(dirname "$0")/lib.sh"
bench=gpu
have jq || die "needs jq"
threads=$(nproc)
lib=$bin/tests/double/libcuda.so.1
[ "${THAW_GPU:-}" = real ] && lib=

# load IMAGE [OPTION...]: seconds of the transfer itself; VARIABLE=VALUE may stand in the environment
load() {
	local image=$1
	shift
	THAWFS_LIBCUDA=$lib THAW_DOUBLE_CAPACITY=$((64 << 30)) \
		"$thawfs" gpu load --json --anywhere -j "$threads" "$@" "$image" | jq -er .to_gpu.wall_s || die "cannot load $image"
}
# saved NAME FILE [OPTION...]: set $image to the file saved as a buffer
saved() {
	image=$D/gpu-$1-$BENCH_MIB.thaw
	[ "$image" -nt "$thawfs" ] && return
	THAWFS_LIBCUDA=$lib THAW_DOUBLE_CAPACITY=$((64 << 30)) \
		"$thawfs" gpu save -o "$image" "${@:3}" "$2" >/dev/null || die "cannot save $2"
}
# pair CASE BAR A_NAME A_COMMAND B_NAME B_COMMAND: both print seconds; in turns, the ratio is A / B
pair() {
	local a=$D/gpu.a b=$D/gpu.b i ratio min median spread
	rm -f "$a" "$b"
	for ((i = 0; i <= BENCH_RUNS; i++)); do
		eval "$4" >>"$a"
		eval "$6" >>"$b"
		[ $i -gt 0 ] || rm "$a" "$b"
	done
	read -r _ ratio _ < <(paste "$a" "$b" | awk '{ print $1 / $2 }' | stats)
	read -r min median spread < <(stats <"$a")
	row "$1" "$3" s "$BENCH_RUNS" "$min" "$median" "$spread" 1 - "$4"
	read -r min median spread < <(stats <"$b")
	row "$1" "$5" s "$BENCH_RUNS" "$min" "$median" "$spread" "$ratio" "$2" "$6"
	rm -f "$a" "$b"
}
timed() { # seconds of a command
	local start=$EPOCHREALTIME end
	"$@" >/dev/null || die "exit $? from: $*"
	end=$EPOCHREALTIME
	awk -v a="$start" -v b="$end" 'BEGIN { printf "%.4f\n", b - a }'
}

input process
saved process "$input"
process=$image
saved raw "$input" --raw
raw=$image
make_once "$D/gpu-zeros-$BENCH_MIB" "truncate -s ${BENCH_MIB}M $D/gpu-zeros-$BENCH_MIB.new"
saved zeros "$D/gpu-zeros-$BENCH_MIB"
zeros=$image

if [ "${THAW_GPU:-}" = real ]; then
	# pinned memory that is filled by nothing: slots of zeros would be cleared, so raw chunks that are cached come closest
	pair "load, compressed" - "raw chunks" "load $raw" "zstd chunks" "load $process"
	pair "read back" - "to the device" "load $raw" "and back" "load $raw --read-back"
	exit 0
fi

export THAW_DOUBLE_NOCOPY=1
pair "decode into slots" 0.9 "verify (decode alone)" "timed $thawfs verify -q -j $threads $process" "load" "load $process"
pair "raw chunks" 0.8 "memcpy" "$bin/bench/bench_memcpy $BENCH_MIB $threads" "load" "load $raw"
pair "holes" 100 "the same bytes as data" "load $raw" "holes" "load $zeros"

# a link about as fast as decoding is: the faster of the two should be hidden, but for a seventh of the slower
decode=$(load "$process" --streams 1)
mbps=$(awk -v m="$BENCH_MIB" -v s="$decode" 'BEGIN { printf "%d", m * 1.048576 / s + 1 }')
longer() { # the slower stage alone: decoding, or the link, whose time is known
	load "$process" --streams 1 | awk -v m="$BENCH_MIB" -v r="$mbps" '{ l = m * 1.048576 / r; printf "%.6f\n", ($1 > l ? $1 : l) }'
}
pair "copies and decoding" 0.87 "the slower alone" "longer" "link of $mbps MB/s" \
	"THAW_DOUBLE_MBPS=$mbps load $process --streams 1"

# restoring the CPU's side meanwhile: unpack keeps a processor busy, the load waits for a slow link
out=${BENCH_TMPFS:-/dev/shm}/thaw-bench-gpu.$$
trap 'rm -rf "$out"' EXIT
unpack() { rm -rf "$out" && mkdir "$out" && "$thawfs" unpack -q -j 1 "$process" "$out/x"; }
cpu=$(timed unpack)
mbps=$(awk -v m="$BENCH_MIB" -v s="$cpu" 'BEGIN { printf "%d", m * 1.048576 / s + 1 }')
slow() { THAW_DOUBLE_MBPS=$mbps load "$raw" --streams 1 -j 1; }
both() {
	slow >/dev/null &
	unpack
	wait
}
in_turn() { slow >/dev/null && unpack; }
longest() { # of the two, each alone
	local a b
	a=$(timed unpack)
	b=$(timed slow)
	awk -v a="$a" -v b="$b" 'BEGIN { printf "%.4f\n", (a > b ? a : b) }'
}
pair "beside a restore of the CPU" 0.87 "the longer alone" "longest" "both at once" "timed both"
pair "beside a restore, in turn" 1.52 "one after the other" "timed in_turn" "both at once" "timed both"
