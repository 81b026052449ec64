#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# An unmodified criu restores processes lazily, and thawfs serves their memory from an image: their hashes are those of
# before, also when servers are killed over and over; damage is death and a message, never zeros.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=tests/lib_mount.sh
. "$(dirname "$0")/lib_mount.sh"
# shellcheck source=tests/lib_criu.sh
. "$(dirname "$0")/lib_criu.sh"
requires root python3
[ "${THAW_SAN:-}" != tsan ] || skip "ThreadSanitizer does not know processes made by clone"

# serve IMAGES OPTION...: in the background, as $lazy, messages in $T/lazy.out
serve() {
	local images=$1
	shift
	rm -rf "$T/work"
	mkdir "$T/work"
	"$thawfs" lazy-pages -D "$images" -W "$T/work" "$@" >"$T/lazy.out" 2>&1 &
	lazy=$!
	on_exit kill "$lazy"
	wait_until 10 test -S "$T/work/lazy-pages.socket" || fail "lazy-pages: $(cat "$T/lazy.out")"
}
# served WHAT: it ended well, and left nothing behind
served() {
	wait_until 60 gone "$lazy" || fail "$1: lazy-pages does not end: $(cat "$T/lazy.out")"
	wait "$lazy" || fail "$1: lazy-pages: exit $?: $(cat "$T/lazy.out")"
	[ ! -e "$T/work/lazy-pages.socket" ] || fail "$1: the socket is still there"
	[ -z "$(pgrep -P "$lazy")" ] || fail "$1: processes are left behind"
}
# kill_servers: several times, whoever serves
kill_servers() {
	local i
	for ((i = 0; i < 12; i++)); do
		sleep 0.0$((RANDOM % 6))
		pkill -9 -P "$lazy" -x thawfs-pages && echo >>"$T/killed"
	done
}
# lazily WHAT CRIU_DIR IMAGES [OPTION...]: restored, goes on, and was served from IMAGES
lazily() {
	local what=$1 dir=$2 images=$3
	shift 3
	serve "$images" "$@"
	restore "$dir" --lazy-pages || fail "$what: $(cat "$T/out" "$T/work/restore.log" "$T/lazy.out")"
	goes_on "$what"
	served "$what"
	grep -qE "^[0-9]+ process(es)?: .* on demand \([0-9]+ faults?, [0-9]+ zero pages?\), .* in the background$" "$T/lazy.out" ||
		fail "$what: no summary: $(cat "$T/lazy.out")"
}

# without a restore
must_fail 2 "$thawfs" lazy-pages -D "$T"
says "-D and -W are needed"
must_fail 1 "$thawfs" lazy-pages -D "$T/none" -W "$T"
says "cannot serve from '$T/none': No such file or directory"
mkdir "$T/tree" "$T/work"
must "$thawfs" pack -q -o "$T/tree.thaw" "$T/tree"
must_fail 1 "$thawfs" lazy-pages -D "$T/tree" -W "$T"
says "it is neither an image, nor on a mount, nor a directory of CRIU's"
must_fail 1 "$thawfs" lazy-pages -D "$T/tree.thaw" -W "$T/none"
says "cannot open work directory '$T/none'"
serve "$T/tree.thaw" --pidfile "$T/pidfile"
[ "$(cat "$T/pidfile")" = "$lazy" ] || fail "pidfile: $(cat "$T/pidfile"), not $lazy"
must_fail 1 "$thawfs" lazy-pages -D "$T/tree.thaw" -W "$T/work"
says "Address already in use"
kill "$lazy"
wait "$lazy"
rc=$?
[ $rc = 1 ] || fail "asked to end before a restore: exit $rc"
# client PID...: stays until nobody serves; 0: goes away
client() {
	python3 - "$T/work/lazy-pages.socket" "$@" <<'PY'
import os, socket, struct, sys
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
for pid in sys.argv[2:]:
    if pid == "0":
        sys.exit(0)
    s.sendall(struct.pack("i", int(pid)))
    if int(pid) > 0:
        socket.send_fds(s, [b"x"], [os.open("/dev/null", os.O_RDONLY)])
# what criu does at the end, and finds out here that nobody serves
while s.recv(1):
    pass
PY
}
serve "$T/tree.thaw"
client -7 4242
wait "$lazy"
rc=$?
[ $rc = 1 ] || fail "a process that is not there: exit $rc: $(cat "$T/lazy.out")"
grep -q "cannot serve process 4242: '$T/tree.thaw' has no memory of '4242'" "$T/lazy.out" || fail "$(cat "$T/lazy.out")"
serve "$T/tree.thaw"
client 0 # nothing: it goes on listening
client -7 0
wait "$lazy"
rc=$?
[ $rc = 1 ] || fail "a restore that ended early: exit $rc"
grep -q "the restore ended before its processes ran" "$T/lazy.out" || fail "$(cat "$T/lazy.out")"

requires criu fuse jq
statuses=$T/c.status
dump c "$bin/tool_target" "$T/c.status" 64
must "$thawfs" pack -q -o "$T/c.thaw" "$T/c"
for ((i = 0; i < $(long_or 100 1); i++)); do
	lazily c "$T/c" "$T/c.thaw"
	set_back
done
lazily "not packed" "$T/c" "$T/c" -b
[ "$(sed -n 's/.*), \([0-9]*\) in the background$/\1/p' "$T/lazy.out")" -gt $((32 << 20)) ] || fail "$(cat "$T/lazy.out")"
set_back

# what is damaged kills whoever needs it
cp "$T/c.thaw" "$T/bad.thaw"
printf '\xff\xff\xff\xff\xff\xff' |
	dd of="$T/bad.thaw" bs=1 seek=$(($(stat -c %s "$T/bad.thaw") / 2)) conv=notrunc status=none
serve "$T/bad.thaw" -j 1
restore "$T/c" --lazy-pages || fail "$(cat "$T/out" "$T/work/restore.log" "$T/lazy.out")"
wait_until 20 ids_free "$pid" || fail "a process goes on without its memory: $(cat "$T/lazy.out")"
wait "$lazy"
rc=$?
[ $rc = 3 ] || fail "damage: exit $rc: $(cat "$T/lazy.out")"
grep -qE "cannot read '$T/bad.thaw': memory view '$pid' at address 0x[0-9a-f]+: .* bytes are poisoned" "$T/lazy.out" ||
	fail "it does not say what is damaged: $(cat "$T/lazy.out")"
# it may have been beyond the damage when it was dumped, and come round once more
[ "$(hash_of "$T/c.status")" = "$(hash_of "$T/c.status.dumped")" ] || fail "it went on over damaged memory"
rm -rf "$T/c" "$T/bad.thaw"

# from a mount, while the process changes its memory, and servers are killed
statuses=$T/x.status
dump x "$bin/tool_changing" "$T/x.status" 24
must "$thawfs" pack -q -o "$T/x.thaw" "$T/x"
rm -rf "$T/x"
mount_image "$T/x.thaw" "$T/mnt"
for ((i = 0; i < $(long_or 10 2); i++)); do
	serve "$T/mnt" -j 1
	[ $i = 0 ] || kill_servers &
	killer=$!
	restore "$T/mnt" --lazy-pages || fail "changing: $(cat "$T/out" "$T/work/restore.log" "$T/lazy.out")"
	goes_on "changing, round $i"
	wait "$killer"
	served "changing, round $i"
	set_back
done
[ "$(wc -l <"$T/killed")" -ge 2 ] || fail "nothing was killed"
unmount "$T/mnt" "$daemon"

# a tree of processes with shared memory, from a directory inside an image, in the background
statuses="$T/t.status $T/t.status.1 $T/t.status.2"
dump t python3 "$src/criu_target.py" tree "$T/t.status"
mkdir "$T/tree/sub"
mv "$T/t" "$T/tree/sub/dir"
must "$thawfs" pack -q -o "$T/t.thaw" "$T/tree"
lazily tree "$T/tree/sub/dir" "$T/t.thaw/sub/dir"
grep -q '^3 processes: ' "$T/lazy.out" || fail "$(cat "$T/lazy.out")"
set_back
must "$thawfs" lazy-pages -D "$T/t.thaw/sub/dir" -W "$T/work" --daemon --pidfile "$T/pidfile"
lazy=$(cat "$T/pidfile")
restore "$T/tree/sub/dir" --lazy-pages || fail "daemon: $(cat "$T/out" "$T/work/restore.log")"
goes_on "tree, served by a daemon"
wait_until 20 gone "$lazy" || fail "the daemon does not end"
set_back
