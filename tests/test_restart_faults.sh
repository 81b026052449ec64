#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What happens to lazily restarted processes when the daemon is killed, and when the image is damaged: they go on with
# the right bytes, or are told; they never see zeros.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=tests/lib_mount.sh
. "$(dirname "$0")/lib_mount.sh"
# shellcheck source=tests/lib_restart.sh
. "$(dirname "$0")/lib_restart.sh"
requires fuse root jq

make_checkpoint "$T/c.dmtcp" -m 192 -t 2
must "$thawfs" pack -q -o "$T/c.thaw" "$T/c.dmtcp"
mkdir "$T/store"
mv "$T/c.thaw" "$T/store"

# killed again and again while the memory comes
mount_image "$T/store" "$T/mnt"
[ "$(status "$T/mnt" .kernel.resend)" = true ] || skip "needs a kernel that sends requests again (6.9)"
{
	for _ in 1 2 3 4 5 6; do
		kill -9 "$(status "$T/mnt" .worker_pid)"
		sleep 0.1
	done
} &
killer=$!
drive 'restarted;verified;child verified;verified;' 'wait 0.1;verify;fork;verify' "$thawfs" restart --mode=lazy \
	"$T/mnt/c/c.dmtcp"
wait "$killer"
[ "$(status "$T/mnt" .workers.takeovers)" -ge 5 ] || fail "the daemon was not killed"

# the image's name goes away, the process stays
{
	echo 'save /dev/null/none'
	sleep 0.5
	echo verify
} | "$thawfs" restart --mode=lazy "$T/mnt/c/c.dmtcp" >"$T/out" 2>&1 &
restarted=$!
wait_until 5 grep -q 'cannot save' "$T/out" || fail "it did not start"
mv "$T/store/c.thaw" "$T/gone.thaw"
wait "$restarted" || fail "exit $?"
says verified
unmount "$T/mnt" "$daemon"

# a damaged chunk in the middle of the large block
printf '\xff\xff\xff\xff\xff\xff' |
	dd of="$T/gone.thaw" bs=1 seek=$(($(stat -c %s "$T/gone.thaw") / 2)) conv=notrunc status=none
must_fail 3 "$thawfs" verify -q "$T/gone.thaw"
mount_image "$T/gone.thaw" "$T/mnt2"
echo verify | "$thawfs" restart --mode=lazy "$T/mnt2/c.dmtcp" >"$T/out" 2>&1
rc=$?
[ $rc = 135 ] || {
	cat "$T/out"
	fail "exit $rc, not that of SIGBUS"
}
if grep -qE 'WRONG|verified' "$T/out"; then fail "it read something: $(cat "$T/out")"; fi
grep -q "checksum mismatch\|cannot decode" "$T/log" || fail "the daemon did not say what was damaged"
must_fail 3 "$thawfs" restart --mode=eager "$T/mnt2/c.dmtcp"
says "are damaged or not to be had"
unmount "$T/mnt2" "$daemon"
