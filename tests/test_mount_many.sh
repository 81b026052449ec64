#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Many readers at once of more than the cache holds: every byte right, no call fails, and memory stays bounded.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=tests/lib_mount.sh
. "$(dirname "$0")/lib_mount.sh"
requires fuse root jq
mnt=$T/mnt

mkdir "$T/src"
head -c 40M /dev/urandom >"$T/src/file"
truncate -s 60M "$T/src/file"
seq 1 9999999 | head -c 40M >>"$T/src/file"
for i in 1 2 3; do echo "$i" >"$T/src/small-$i"; done
must "$thawfs" pack -q -o "$T/i.thaw" "$T/src"
# as few descriptors as a process may be left with
printf '#!/bin/sh\nulimit -n 64\nexec "%s" "$@"\n' "$thawfs" >"$T/few"
chmod +x "$T/few"
thawfs=$T/few
mount_image -o cache=32M,threads=16 "$T/i.thaw" "$mnt"
worker=$(status "$mnt" .worker_pid)

# how long a call takes is not what is tested
"$bin/tool_mount_reader" "$T/src/file" "$mnt/file" 64 600000 >"$T/readers" 2>&1 &
readers=$!
on_exit kill -9 "$readers"
sleep "$(long_or 60 6)"
gone "$readers" && {
	tail -n 20 "$T/readers"
	fail "the readers ended early"
}
kill -TERM "$readers"
wait "$readers" || {
	tail -n 20 "$T/readers"
	fail "a call failed, or bytes were wrong"
}
cat "$T/readers"
[ "$(status "$mnt" .worker_pid)" = "$worker" ] || fail "the worker was replaced: $(cat "$T/log")"
[ "$(status "$mnt" .cache.evictions)" -gt 0 ] || fail "nothing was evicted: $(status "$mnt" .cache)"
[ "$(status "$mnt" .cache.used)" -le $((32 << 20)) ] || fail "the cache is larger than it may be: $(status "$mnt" .cache)"
[ "$(status "$mnt" '.errors | add')" = 0 ] || fail "errors were counted: $(status "$mnt" .errors)"
# a sanitizer's shadow is not ours
if [ -z "${THAW_SAN:-}" ]; then
	peak=$(awk '/^VmHWM/ { print $2 }' "/proc/$worker/status")
	[ "$peak" -le $((64 << 10)) ] || fail "the worker took $peak KiB, more than its cache and 32 MiB"
fi
must cmp "$T/src/file" "$mnt/file"
unmount "$mnt" "$daemon"
