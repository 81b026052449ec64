# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# For benchmarks: source this first. Inputs made once, paired runs, one line of results per side.
set -u
BUILD=${BUILD:-build}
BENCH_DIR=${BENCH_DIR:-$BUILD/bench}
BENCH_MIB=${BENCH_MIB:-2048}
BENCH_RUNS=${BENCH_RUNS:-5}
mkdir -p "$BENCH_DIR"
thawfs=$(realpath "$BUILD/thawfs")
bin=$(realpath "$BUILD")
D=$(realpath "$BENCH_DIR")
export thawfs bin D
commit=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
[ -z "$(git status --porcelain -uno 2>/dev/null)" ] || commit=$commit+changes

die() {
	echo "bench: $*" >&2
	exit 1
}
note() { echo "# $*"; }
have() { command -v "$1" >/dev/null; }

# make_once FILE COMMAND: unless FILE is there, run COMMAND, which makes FILE.new
make_once() {
	[ -e "$1" ] && return
	{ bash -c "$2" && sync "$1.new" && mv "$1.new" "$1"; } || die "cannot make $1"
}

# input KIND: set $input to a file of $BENCH_MIB MiB, made by tests/tool_genimage if it is not there.
# process, heap, floats, bf16, text: raw memory of that kind without zeros; dups: memory whose second half equals the first;
# tail, stripes: a DMTCP image of a process with zeros in the last quarter, in every other 64 MiB
input() {
	local size=${BENCH_MIB}M what options
	case $1 in
	process | heap | floats | bf16 | text) what=mem options="--kind=$1 --zero=none" ;;
	dups) what=mem options="--kind=heap --repeat=$((BENCH_MIB / 2))M" ;;
	tail | stripes) what=dmtcp options="--kind=process --zero=$1 --misaligned" ;;
	*) die "no input called $1" ;;
	esac
	input=$D/$1-$BENCH_MIB
	make_once "$input" "$bin/tests/tool_genimage $what $input.new --size=$size $options"
}

# image KIND [PACK OPTION...]: set $image to that input packed
image() {
	local kind=$1
	shift
	input "$kind"
	image=$input$(printf '%s' "$@").thaw
	[ "$image" -nt "$thawfs" ] && return
	"$thawfs" pack -q "$@" -o "$image" "$input" || die "cannot pack $input"
}

# row CASE SIDE UNIT N MIN MEDIAN SPREAD_PERCENT RATIO BAR COMMAND: a result. RATIO to the first side of the case,
# how many times better this side is; BAR what it should be ("-": nothing was promised)
row() {
	local verdict=-
	[ "$9" = - ] || verdict=$(awk -v r="$8" -v b="$9" 'BEGIN { print (r + 0 >= b + 0 ? "met" : "MISSED") }')
	printf '%s\t' "${bench:-?}" "$1" "$2" "$3" "$4" "$5" "$6" "$7" "$8" "$9" "$verdict" "$commit"
	printf '%s\n' "${10}"
}

# median, min and spread (max - min, in percent of the median) of numbers on stdin
stats() {
	sort -n | awk '{ v[NR] = $1 } END {
		m = NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2
		printf "%.4f %.4f %.1f\n", v[1], m, m ? (v[NR] - v[1]) * 100 / m : 0 }'
}

seconds() { # seconds FILE COMMAND: run it and add how long it took to FILE
	local start=$EPOCHREALTIME rc
	bash -c "$2" >"$D/out" 2>&1
	rc=$?
	local end=$EPOCHREALTIME
	[ $rc -eq 0 ] || die "exit $rc from: $2: $(tail -n 3 "$D/out")"
	awk -v a="$start" -v b="$end" 'BEGIN { printf "%.4f\n", b - a }' >>"$1"
}

# compare CASE BAR CLEAN A_NAME A_COMMAND B_NAME B_COMMAND: time both in turns, BENCH_RUNS times after one run of each
# that does not count, CLEAN and sync before each. The ratio is the median of each pair's A / B, so that what the
# machine does meanwhile hits both; BAR is what B should reach. Commands may use $thawfs, $bin and $D.
compare() {
	local case=$1 bar=$2 clean=$3 a=$D/times.a b=$D/times.b i ratio min median spread
	rm -f "$a" "$b"
	for ((i = 0; i <= BENCH_RUNS; i++)); do
		bash -c "$clean" && sync
		seconds "$a" "$5"
		bash -c "$clean" && sync
		seconds "$b" "$7"
		[ $i -gt 0 ] || rm "$a" "$b"
	done
	bash -c "$clean"
	read -r _ ratio _ < <(paste "$a" "$b" | awk '{ print $1 / $2 }' | stats)
	read -r min median spread < <(stats <"$a")
	row "$case" "$4" s "$BENCH_RUNS" "$min" "$median" "$spread" 1 - "$5"
	read -r min median spread < <(stats <"$b")
	row "$case" "$6" s "$BENCH_RUNS" "$min" "$median" "$spread" "$ratio" "$bar" "$7"
	rm -f "$a" "$b" "$D/out"
}

# measure CASE UNIT LIMIT SIDE COMMAND: a number that COMMAND prints, once; at most LIMIT is good
measure() {
	local value
	value=$(bash -c "$5") || die "exit $? from: $5"
	row "$1" "$4" "$2" 1 "$value" "$value" 0 "$(awk -v l="$3" -v v="$value" 'BEGIN { print l / v }')" 1 "$5"
}
