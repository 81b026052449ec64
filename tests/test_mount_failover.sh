#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A worker that dies loses nobody: it is killed again and again under readers that check every byte.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=tests/lib_mount.sh
. "$(dirname "$0")/lib_mount.sh"
requires fuse root jq
mnt=$T/mnt
kills=$(long_or 1000 100)

mkdir "$T/src"
head -c 6M /dev/urandom >"$T/src/file"
seq 1 3000000 | head -c 12M >>"$T/src/file"
truncate -s 32M "$T/src/file"
seq 1 2000000 | head -c 8M >>"$T/src/file"
for i in $(seq 1 50); do echo "$i" >"$T/src/small-$i"; done
must "$thawfs" pack -q -o "$T/i.thaw" "$T/src"
mount_image "$T/i.thaw" "$mnt"
[ "$(status "$mnt" .kernel.resend)" = true ] || skip "needs a kernel that sends requests again (6.9)"

"$bin/tool_mount_reader" "$T/src/file" "$mnt/file" 6 500 >"$T/readers" 2>&1 &
readers=$!
on_exit kill -9 "$readers"
# a handle that is open all the time, and a mapping of the page cache
exec 9<"$mnt/file"

succeeded() {
	local next
	next=$(status "$mnt" .worker_pid) || fail "status.json could not be read after a kill"
	[ "$next" != "$1" ]
}
for i in $(seq 1 "$kills"); do
	pid=$(status "$mnt" .worker_pid) || fail "status.json could not be read before kill $i"
	find "/proc/$pid/fd" -lname /dev/fuse 2>/dev/null | grep -q . || fail "process $pid does not serve /dev/fuse"
	kill -9 "$pid" || fail "kill $i"
	sleep 0.0$((RANDOM % 9 + 1))
	# a process with much memory takes a moment to die, and may have answered before
	wait_until 5 succeeded "$pid" || fail "process $pid was not succeeded by another"
	wait_until 5 gone "$pid" || fail "process $pid did not die"
done
gone "$readers" && {
	cat "$T/readers"
	fail "the readers ended early"
}
kill -TERM "$readers"
wait "$readers"
rc=$?
cat "$T/readers"
[ $rc = 0 ] || fail "readers were lost, deceived or kept waiting"
cmp "$T/src/file" - <&9 || fail "the handle opened before the kills"
exec 9<&-
[ "$(status "$mnt" .workers.takeovers)" -ge "$kills" ] || fail "takeovers are not counted"
must diff -r "$T/src" "$mnt"
unmount "$mnt" "$daemon"
