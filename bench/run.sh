#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Run the benchmarks whose names begin with one of the arguments, or all of them: see README.md.
# The table goes to standard output and to $BENCH_DIR/results.tsv.
set -u
BUILD=${BUILD:-build}
BENCH_DIR=${BENCH_DIR:-$BUILD/bench}
export BUILD BENCH_DIR
mkdir -p "$BENCH_DIR"
here=$(dirname "$0")

machine() {
	local cpu
	cpu=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)
	echo "# $(nproc) x ${cpu:-$(uname -m)}, $(awk '/MemTotal/ { printf "%.0f GiB", $2 / 1048576 }' /proc/meminfo)," \
		"Linux $(uname -r), $(zstd --version | grep -o 'v[0-9.]*'), $(date -u +%Y-%m-%d)"
	echo "# inputs of ${BENCH_MIB:-2048} MiB, ${BENCH_RUNS:-5} paired runs after one that does not count," \
		"page cache warm; in $(df --output=fstype "$BENCH_DIR" | tail -n 1)"
	printf '%s\t' bench case side unit runs min median spread_percent ratio bar verdict commit
	echo command
}

wanted() {
	local name=$1 t
	shift
	[ $# -eq 0 ] && return 0
	for t in "$@"; do
		case $name in "$t"*) return 0 ;; esac
	done
	return 1
}

{
	machine
	for script in "$here"/bench_*.sh; do
		name=$(basename "$script" .sh)
		name=${name#bench_}
		wanted "$name" "$@" || continue
		bench=$name bash "$script" || echo "# $name: stopped"
	done
} | tee "$BENCH_DIR/results.tsv"
! grep -q ': stopped$' "$BENCH_DIR/results.tsv"
