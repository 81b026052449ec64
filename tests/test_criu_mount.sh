#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The main job: processes are dumped, packed, mounted, and restored from the mount by an unmodified criu, at once and
# lazily; their counters go on and their memory is what it was. A damaged image fails the restore, cleanly.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=tests/lib_mount.sh
. "$(dirname "$0")/lib_mount.sh"
# shellcheck source=tests/lib_criu.sh
. "$(dirname "$0")/lib_criu.sh"
requires fuse root python3 jq criu
mnt=$T/mnt

# dump_packed NAME COMMAND...: dump, as the image $T/NAME.thaw only
dump_packed() {
	dump "$@"
	must "$thawfs" pack -q -o "$T/$1.thaw" "$T/$1"
	rm -rf "${T:?}/$1"
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
dump_packed c "$bin/tool_target" "$T/c.status" 32
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
dump_packed python python3 "$src/criu_target.py" python "$T/p.status"
restore_both_ways python

statuses="$T/t.status $T/t.status.1 $T/t.status.2"
dump_packed tree python3 "$src/criu_target.py" tree "$T/t.status"
restore_both_ways tree
