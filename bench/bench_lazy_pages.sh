#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Lazy restores by criu, served by thawfs from a zstd image against criu's own server from the raw files, in turns, both
# warm. Two times: until criu restore returns, which is when the process runs, and until the process has read all of its
# memory.
. "$(dirname "$0")/lib.sh"
criu=$(tests/get_criu.sh 2>/dev/null)
[ -n "$criu" ] || {
	note "lazy_pages: needs root and a criu that works"
	exit 0
}
status=$D/lazy.status
dir=$D/lazy.criu
work=$D/lazy.work
image=$D/lazy.thaw

ids_free() { [ -z "$(ps -e -o pid=,pgid=,sid= | awk -v p="$pid" '$1 == p || $2 == p || $3 == p')" ]; }
# until COMMAND...: within a minute
until_true() {
	local end=$((SECONDS + 60))
	until "$@"; do
		[ $SECONDS -lt $end ] || die "waited in vain: $*"
		sleep 0.002
	done
}
counts() { [ "$(cut -d' ' -f1 "$status" | sed 's/^0*//')" -gt "$1" ] 2>/dev/null; }
end_target() {
	kill -9 "$pid" 2>/dev/null
	until_true ids_free
}

rm -rf "$dir" "$work" "$image" "$status"
mkdir "$dir" "$work"
(setsid "$bin/tests/tool_target" "$status" "$BENCH_MIB" </dev/null >/dev/null 2>&1 & echo $! >"$D/lazy.pid")
pid=$(cat "$D/lazy.pid")
until_true counts 1
"$criu" dump -t "$pid" -D "$dir" -v1 -o dump.log >/dev/null 2>&1 || die "cannot dump: $(tail -n 3 "$dir/dump.log")"
until_true ids_free
cp "$status" "$status.dumped"
"$thawfs" pack -q -z1 -o "$image" "$dir" || die "cannot pack"
last=$(cut -d' ' -f1 "$status.dumped" | sed 's/^0*//')

# once SIDE SERVER...: append both times to $D/lazy.SIDE.first and .all; a server ends by itself
once() {
	local side=$1 server start first
	shift
	cp "$status.dumped" "$status.new" && cat "$status.new" >"$status"
	rm -f "$work"/*
	cat "$dir"/* "$image" >/dev/null
	"$@" >"$D/lazy.$side.log" 2>&1 &
	server=$!
	until_true test -S "$work/lazy-pages.socket"
	start=$EPOCHREALTIME
	"$criu" restore -d --lazy-pages -D "$dir" -W "$work" -v1 -o restore.log >/dev/null 2>&1 ||
		die "cannot restore: $(tail -n 3 "$work/restore.log")"
	first=$EPOCHREALTIME
	# the count at hand may be one that needed part of the memory only
	until_true counts "$((last + 1))"
	awk -v a="$start" -v b="$first" -v c="$EPOCHREALTIME" -v f="$D/lazy.$side" \
		'BEGIN { printf "%.4f\n", b - a >>(f ".first"); printf "%.4f\n", c - a >>(f ".all") }'
	[ "$(cut -d' ' -f2 "$status")" = "$(cut -d' ' -f2 "$status.dumped")" ] || die "$side: the memory is another"
	wait "$server" || die "$side: exit $?: $(tail -n 3 "$D/lazy.$side.log")"
	end_target
}
# report WHAT CASE BAR
report() {
	local side ratio min median spread
	read -r _ ratio _ < <(paste "$D/lazy.criu.$1" "$D/lazy.thawfs.$1" | awk '{ print $1 / $2 }' | stats)
	for side in criu thawfs; do
		read -r min median spread < <(stats <"$D/lazy.$side.$1")
		if [ $side = criu ]; then
			row "$2" "criu lazy-pages, raw" s "$BENCH_RUNS" "$min" "$median" "$spread" 1 - "criu lazy-pages -D $dir -W $work"
		else
			row "$2" "thawfs lazy-pages, image" s "$BENCH_RUNS" "$min" "$median" "$spread" "$ratio" "$3" \
				"thawfs lazy-pages -D $image -W $work"
		fi
	done
}

for ((i = 0; i <= BENCH_RUNS; i++)); do
	once criu "$criu" lazy-pages -D "$dir" -W "$work" -v1 -o lazy.log
	once thawfs "$thawfs" lazy-pages -q -D "$image" -W "$work"
	[ $i -gt 0 ] || rm -f "$D"/lazy.*.first "$D"/lazy.*.all
done
report first "$BENCH_MIB MiB restore returns" 1
report all "$BENCH_MIB MiB all memory read" 1.67
rm -rf "$dir" "$work" "$image" "$status" "$status".* "$D"/lazy.*
