#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# -o io_uring: the same bytes; shown whether it is in use; without it where libfuse or the kernel cannot, which is said.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=tests/lib_mount.sh
. "$(dirname "$0")/lib_mount.sh"
requires fuse root jq
mnt=$T/mnt

mkdir "$T/src" "$T/dir"
head -c 3M /dev/urandom >"$T/src/a"
truncate -s 9M "$T/src/a"
seq 1 200000 >>"$T/src/a"
mkdir "$T/src/sub" && seq 1 10 >"$T/src/sub/b" && ln -s a "$T/src/link"
must "$thawfs" pack -q -o "$T/i.thaw" "$T/src"
must_fail 2 "$thawfs" mount -o "io_uring,hydrate_dir=$T/dir" "$T/i.thaw" "$mnt"
says "options 'io_uring' and 'hydrate_dir' exclude each other"

mount_image "$T/i.thaw" "$mnt"
resend=$(status "$mnt" .kernel.resend)
[ "$(status "$mnt" .kernel.io_uring)" = false ] || fail "io_uring without being asked for"
unmount "$mnt" "$daemon"

mount_image -o io_uring,prefetch=all "$T/i.thaw" "$mnt"
in_use=$(status "$mnt" .kernel.io_uring)
must diff -r "$T/src" "$mnt"
must cmp "$T/src/a" "$mnt/a"
[ "$(readlink "$mnt/link")" = a ] || fail "a link"
[ "$(stat -c %s "$mnt/sub/b")" = 21 ] || fail "a size"
: 2>"$T/err" >"$mnt/new" && fail "a file was made"
read -r reads lookups <<<"$(status "$mnt" '.requests | "\(.read) \(.lookup)"')"
if [ "$reads" -lt 1 ] || [ "$lookups" -lt 3 ]; then fail "$reads reads and $lookups lookups are counted"; fi
if [ "$in_use" != true ]; then
	grep -Eq "io_uring is not used: (the kernel does not offer it|this program was built with a libfuse before 3.18)" "$T/log" ||
		fail "why it is not in use is not said: $(cat "$T/log")"
	[ "$(status "$mnt" .kernel.resend)" = "$resend" ] || fail "failover is off though io_uring is not in use"
	unmount "$mnt" "$daemon"
	exit 0
fi
[ "$(status "$mnt" .kernel.resend)" = false ] || fail "failover is shown as possible"
for _ in $(seq 20); do cmp -s "$T/src/a" "$mnt/a" || exit 1; done &
must cmp "$T/src/a" "$mnt/a"
wait $! || fail "two readers"
unmount "$mnt" "$daemon"
# no other can take over: the mount ends, and nobody waits for ever
mount_image -o io_uring "$T/i.thaw" "$mnt"
exec 7<"$mnt/a"
kill -9 "$(status "$mnt" .worker_pid)"
wait_until 10 gone "$daemon" || fail "the mount does not end with its worker"
timeout 10 cat <&7 >"$T/out" 2>"$T/err"
rc=$?
if [ $rc = 0 ] || [ $rc = 124 ]; then fail "exit $rc from reading a mount that has ended"; fi
exec 7<&-
grep -q "the worker died, and with io_uring no other can take over" "$T/log" || fail "$(cat "$T/log")"
