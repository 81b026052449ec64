#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The main job: processes are dumped, packed, mounted, and restored from the mount by an unmodified criu, at once and
# lazily; their counters go on and their memory is what it was. A damaged image fails the restore, cleanly.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=tests/lib_mount.sh
. "$(dirname "$0")/lib_mount.sh"
requires fuse root python3 jq criu
mnt=$T/mnt

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

# dump NAME N-STATUS COMMAND...: start it, take it into $T/NAME, pack that to $T/NAME.thaw; its state is in $T/NAME.status*
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
	must "$thawfs" pack -q -o "$T/$name.thaw" "$T/$name"
	rm -rf "${T:?}/$name"
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
restore_both_ways() {
	local name=$1 lazy
	rm -rf "$T/work"
	mkdir "$T/work"
	mount_image "$T/$name.thaw" "$mnt"
	restore "$mnt" || fail "$name: restore: $(cat "$T/out" "$T/work/restore.log")"
	goes_on "$name, restored at once"
	set_back

	"$criu" lazy-pages -D "$mnt" -W "$T/work" -v1 -o lazy.log >"$T/lazy.out" 2>&1 &
	lazy=$!
	on_exit kill "$lazy"
	wait_until 10 test -S "$T/work/lazy-pages.socket" || fail "lazy-pages: $(cat "$T/lazy.out" "$T/work/lazy.log")"
	restore "$mnt" --lazy-pages || fail "$name: lazy restore: $(cat "$T/out" "$T/work/restore.log")"
	goes_on "$name, restored lazily"
	wait_until 20 gone "$lazy" || fail "$name: lazy-pages does not end"
	wait "$lazy" || fail "$name: lazy-pages: exit $?: $(cat "$T/work/lazy.log")"
	set_back
	unmount "$mnt" "$daemon"
}

statuses=$T/c.status
dump c "$bin/tool_target" "$T/c.status" 32
restore_both_ways c

# no -W: criu would write its log beside the images, cannot, says so, and nothing is left running
mount_image "$T/c.thaw" "$mnt"
"$criu" restore -d -D "$mnt" -v1 -o restore.log >"$T/out" 2>&1 && fail "restore without -W into a read-only directory succeeded"
ids_free "$pid" || fail "a failed restore left a process behind"
# --auto-dedup wants to punch holes into the images (criu 3145)
restore "$mnt" --auto-dedup && fail "restore --auto-dedup on a read-only mount succeeded"
wait_until 10 ids_free "$pid" || fail "a failed restore left a process behind"
grep -q "refused to .*without --auto-dedup" "$T/log" || fail "no hint about --auto-dedup: $(cat "$T/log")"
# another user may not look into root's mount, and so into the memory of a process
if id nobody >/dev/null 2>&1 && command -v setpriv >/dev/null; then
	chmod 755 "$T"
	must_fail 2 setpriv --reuid=nobody --clear-groups ls "$mnt"
	says "Permission denied"
fi
unmount "$mnt" "$daemon"

# one bit of the memory is wrong
cp "$T/c.thaw" "$T/bad.thaw"
at=$(($(stat -c %s "$T/bad.thaw") / 2))
byte=$(od -An -tu1 -j $at -N1 "$T/bad.thaw")
printf '%b' "\\x$(printf %x $((byte ^ 1)))" | dd of="$T/bad.thaw" bs=1 seek=$at conv=notrunc status=none
: >"$T/log"
mount_image "$T/bad.thaw" "$mnt"
restore "$mnt" && fail "a damaged image was restored"
wait_until 10 ids_free "$pid" || fail "the failed restore of a damaged image left a process behind"
grep -Eq "cannot read '.*/bad.thaw': member 'pages-[0-9]+.img' at offset [0-9]+: chunk [0-9]+: .*(checksum mismatch|zstd data is damaged|not exactly one zstd frame)" "$T/log" ||
	fail "the log does not say what is damaged: $(cat "$T/log")"
[ "$(status "$mnt" .errors.damaged)" -gt 0 ] || fail "damage is not counted"
unmount "$mnt" "$daemon"

statuses=$T/p.status
dump python python3 "$src/criu_target.py" python "$T/p.status"
restore_both_ways python

statuses="$T/t.status $T/t.status.1 $T/t.status.2"
dump tree python3 "$src/criu_target.py" tree "$T/t.status"
restore_both_ways tree
