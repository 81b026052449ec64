#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# How a mount says that it answers, by mount(8)'s helper and to systemd; with few descriptors; again and again.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=tests/lib_mount.sh
. "$(dirname "$0")/lib_mount.sh"
requires fuse root jq python3
mnt=$T/mnt
helper=$src/../dist/mount.fuse.thawfs

mkdir "$T/src" "$mnt" "$T/bin"
seq 1 300000 >"$T/src/file"
must "$thawfs" pack -q -o "$T/i.thaw" "$T/src"
ln -s "$thawfs" "$T/bin/thawfs"

# mount(8) calls its helper like this; it returns when the mount answers
PATH=$T/bin:$PATH must "$helper" "$T/i.thaw" "$mnt" -n -o rw,nodev,cache=64M,x-systemd.automount
must cmp "$T/src/file" "$mnt/file"
[ "$(status "$mnt" .cache.limit)" = $((64 << 20)) ] || fail "the helper's options"
unmount "$mnt" "$(status "$mnt" .supervisor_pid)"

# systemd's socket
python3 -c '
import socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.bind(sys.argv[1])
s.settimeout(20)
print(s.recv(4096).decode())
' "$T/notify" >"$T/said" &
listener=$!
wait_until 10 test -S "$T/notify"
NOTIFY_SOCKET=$T/notify mount_image "$T/i.thaw" "$mnt"
wait $listener || fail "systemd was not told"
[ "$(cat "$T/said")" = "$(printf 'READY=1\nMAINPID=%d' "$daemon")" ] || fail "systemd was told: $(cat "$T/said")"
unmount "$mnt" "$daemon"

# 64 descriptors are enough (criu 601)
(ulimit -n 64 && exec "$thawfs" mount "$T/i.thaw" "$mnt") || fail "mount with 64 descriptors"
must cmp "$T/src/file" "$mnt/file"
unmount "$mnt" "$(status "$mnt" .supervisor_pid)"

# many times (nydus 1693): the right bytes each time, and no process left
for i in $(seq 1 "$(long_or 300 30)"); do
	echo "round $i" >"$T/src/round"
	must "$thawfs" pack -q -o "$T/i.thaw" "$T/src"
	must "$thawfs" mount "$T/i.thaw" "$mnt"
	pid=$(status "$mnt" .supervisor_pid)
	[ "$(cat "$mnt/round")" = "round $i" ] || fail "round $i shows old bytes"
	must cmp "$T/src/file" "$mnt/file"
	unmount "$mnt" "$pid"
done
