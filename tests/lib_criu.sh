# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# shellcheck disable=SC2154 # what lib.sh sets
# For tests that dump and restore by criu: source this after lib.sh and lib_mount.sh. A target's processes write files
# of one line, a counter and a hash of their memory; $statuses are their names, separated by blanks.

counter() { cut -d' ' -f1 "$1"; }
hash_of() { cut -d' ' -f2 "$1"; }
counts_past() { [ "$(counter "$1" 2>/dev/null || echo 0)" -gt "$2" ] 2>/dev/null; }
# no process has the pid, group or session: criu makes them again
ids_free() { [ -z "$(ps -e -o pid=,pgid=,sid= | awk -v p="$1" '$1 == p || $2 == p || $3 == p')" ]; }
kill_target() {
	local p
	for p in $(ps -e -o pid=,sid= | awk -v s="$pid" '$2 == s { print $1 }'); do kill -9 "$p" 2>/dev/null; done
	wait_until 10 ids_free "$pid" || fail "process $pid does not go away"
}

# dump NAME COMMAND...: start it, take it into $T/NAME; its state is in the statuses, and beside each in STATUS.dumped
dump() {
	local name=$1 s
	shift
	# from a child that ends, so that init reaps it
	(setsid "$@" </dev/null >"$T/started" 2>&1 & echo $! >"$T/pid")
	pid=$(cat "$T/pid")
	on_exit kill_target
	for s in $statuses; do
		wait_until 20 counts_past "$s" 1 || fail "$name did not start: $(cat "$T/started")"
	done
	mkdir "$T/$name"
	"$criu" dump -t "$pid" -D "$T/$name" -v1 -o "$T/dump.log" >"$T/out" 2>&1 || fail "dump: $(cat "$T/out" "$T/dump.log")"
	wait_until 10 ids_free "$pid" || fail "process $pid is there after the dump"
	for s in $statuses; do cp "$s" "$s.dumped"; done
}
# goes_on WHAT: every process of the target counts on from where it was, over the same memory
goes_on() {
	local s
	for s in $statuses; do
		wait_until 20 counts_past "$s" "$(($(counter "$s.dumped" | sed 's/^0*//') + 2))" ||
			fail "$1: $s does not go on: $(cat "$s") after $(cat "$s.dumped")"
		[ "$(hash_of "$s")" = "$(hash_of "$s.dumped")" ] || fail "$1: the memory is another: $(cat "$s")"
	done
}
set_back() {
	local s
	kill_target
	for s in $statuses; do cp "$s.dumped" "$s.new" && cat "$s.new" >"$s"; done
}
# restore DIR [OPTION...]: by criu, its messages in $T/restore.log
restore() {
	local dir=$1
	shift
	"$criu" restore -d -D "$dir" -W "$T/work" -v1 -o restore.log "$@" >"$T/out" 2>&1 9>&-
}
