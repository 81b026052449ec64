#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# -o record: what was read, and only that, is in the file beside the image, also when the worker is killed meanwhile.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=tests/lib_mount.sh
. "$(dirname "$0")/lib_mount.sh"
requires fuse root jq
mnt=$T/mnt

mkdir "$T/src"
head -c 4M /dev/urandom >"$T/src/a"
head -c 4M /dev/urandom >"$T/src/b"
must "$thawfs" pack -q --raw -o "$T/i.thaw" "$T/src"
# chunks in the working set: its length is 40 bytes and 4 for each
n_saved() { echo $((($(stat -c %s "$T/i.thaw.ws" 2>/dev/null || echo 40) - 40) / 4)); }
saved() { [ "$(n_saved)" = "$1" ]; }

mount_image -o record "$T/i.thaw" "$mnt"
must cmp "$T/src/a" "$mnt/a"
wait_until 5 saved 16 || fail "$(n_saved) chunks of 16 after reading one file"
[ "$(stat -c %a "$T/i.thaw.ws")" = 600 ] || fail "the working set may be read by others"
if [ "$(status "$mnt" .kernel.resend)" = true ]; then
	worker=$(status "$mnt" .worker_pid)
	kill -9 "$worker"
	wait_until 5 gone "$worker"
fi
must cmp "$T/src/b" "$mnt/b"
wait_until 5 saved 32 || fail "$(n_saved) chunks of 32 after reading both, with another worker"
unmount "$mnt" "$daemon"
# a new mount begins anew, and saves at its end
mount_image -o record "$T/i.thaw" "$mnt"
head -c 4096 "$mnt/a" >/dev/null
unmount "$mnt" "$daemon"
n=$(n_saved)
if [ "$n" -lt 1 ] || [ "$n" -gt 2 ]; then fail "$n chunks after reading a page"; fi
[ "$(find "$T" -name 'i.thaw.ws*' | wc -l)" = 1 ] || fail "temporary files are left"
