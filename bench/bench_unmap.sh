#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Letting go of shared memory whose names are gone: thaw_unmap() against munmap(). The programs time themselves.
. "$(dirname "$0")/lib.sh"
mib=${BENCH_UNMAP_MIB:-8192}
dir=${BENCH_TMPFS:-/dev/shm}
threads=$(nproc)

# pairs CASE BAR FILES METHOD_A METHOD_B: the ratio of each pair, as compare has it, of times that the program prints
pairs() {
	local a=$D/times.a b=$D/times.b i ratio min median spread
	rm -f "$a" "$b"
	for ((i = 0; i < BENCH_RUNS; i++)); do
		"$bin/bench/bench_unmap" "$dir" "$4" "$threads" "$3" $((mib / $3)) unlink >>"$a" || die "bench_unmap"
		"$bin/bench/bench_unmap" "$dir" "$5" "$threads" "$3" $((mib / $3)) unlink >>"$b" || die "bench_unmap"
	done
	read -r _ ratio _ < <(paste "$a" "$b" | awk '{ print $1 / $2 }' | stats)
	read -r min median spread < <(stats <"$a")
	row "$1" "$4" s "$BENCH_RUNS" "$min" "$median" "$spread" 1 - "bench_unmap $dir $4 $threads $3 $((mib / $3)) unlink"
	read -r min median spread < <(stats <"$b")
	row "$1" "$5, $threads threads" s "$BENCH_RUNS" "$min" "$median" "$spread" "$ratio" "$2" \
		"bench_unmap $dir $5 $threads $3 $((mib / $3)) unlink"
	rm -f "$a" "$b"
}

pairs "$mib MiB unlinked, 8 files" 1.6 8 munmap thaw
pairs "$mib MiB unlinked, one file" - 1 munmap thaw
pairs "$mib MiB unlinked, 8 files, holes punched first" - 8 munmap punch
pairs "$mib MiB unlinked, 8 files, what the caller waits for" - 8 munmap caller
