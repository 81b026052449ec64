#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Who may use a mount: one's own without being root, another's only with allow_other, and why not is said.
# In a mount namespace of its own, where everybody may open /dev/fuse, as is usual, though not everywhere
if [ -z "${THAW_NAMESPACE:-}" ] && unshare -m true 2>/dev/null; then
	THAW_NAMESPACE=1 exec unshare -m --propagation private bash "$0"
fi
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=tests/lib_mount.sh
. "$(dirname "$0")/lib_mount.sh"
requires fuse root jq runuser fusermount3 pgrep
mnt=$T/mnt
if [ "${THAW_NAMESPACE:-}" ] && mknod -m 666 "$T/fuse" c 10 229; then
	mount --bind "$T/fuse" /dev/fuse
fi

mkdir "$T/src" "$T/bin" "$mnt"
head -c 1M /dev/urandom >"$T/src/open"
echo secret >"$T/src/secret"
chmod 644 "$T/src/open"
chmod 600 "$T/src/secret"
must "$thawfs" pack -q -o "$T/i.thaw" "$T/src"
# where the build is may not be for everybody
cp "$thawfs" "$T/bin/thawfs"
chmod -R a+rX "$T"
as_nobody() { runuser -u nobody -- "$@"; }
denied() {
	must_fail 1 "$@"
	says "Permission denied"
}

# root's: for root alone, then for all as modes allow
mount_image "$T/i.thaw" "$mnt"
must cat "$mnt/secret" >/dev/null
denied as_nobody cat "$mnt/open"
unmount "$mnt" "$daemon"
mount_image -o allow_other "$T/i.thaw" "$mnt"
as_nobody cat "$mnt/open" | cmp - "$T/src/open" || fail "allow_other does not let others in"
denied as_nobody cat "$mnt/secret"
must_fail 1 as_nobody "$T/bin/thawfs" umount "$mnt"
must cat "$mnt/secret" >/dev/null
unmount "$mnt" "$daemon"

# a user's own, by way of fusermount3
chown nobody "$mnt"
# uid and gid: the files are root's, and their modes count
as_nobody "$T/bin/thawfs" mount -o "uid=$(id -u nobody)" "$T/i.thaw" "$mnt" >"$T/out" 2>&1 || {
	grep -q "fusermount3" "$T/out" || fail "mounting as a user: $(cat "$T/out")"
	skip "a user may not mount here: $(head -n 1 "$T/out")"
}
on_exit umount -l "$mnt"
says "only this user may use '$mnt': others, and root, get 'Permission denied' (-o allow_other lets them in)"
as_nobody cat "$mnt/open" | cmp - "$T/src/open" || fail "a user's own mount"
[ "$(as_nobody cat "$mnt/secret")" = secret ] || fail "uid= does not give the files to the user"
denied cat "$mnt/open"
must_fail 2 ls "$mnt"
nobodys() { as_nobody jq -r "$1" "$mnt/.thawfs/status.json"; }
daemon=$(nobodys .supervisor_pid)
[ "$(stat -c %U "/proc/$daemon")" = nobody ] || fail "the daemon is not the user's"
[ "$(nobodys .kernel.passthrough)" = false ] || fail "passthrough is for root"
if [ "$(nobodys .kernel.resend)" = true ]; then
	worker=$(nobodys .worker_pid)
	kill -KILL "$worker"
	as_nobody cat "$mnt/open" | cmp - "$T/src/open" || fail "after a worker was killed"
	[ "$(nobodys .worker_pid)" != "$worker" ] || fail "the worker was not replaced"
fi
must as_nobody "$T/bin/thawfs" umount "$mnt"
wait_until 10 gone "$daemon" || fail "the daemon stays after umount"
# refused by fusermount3, unless the machine's owner allows it
if ! grep -qs '^user_allow_other' /etc/fuse.conf; then
	must_fail 1 as_nobody "$T/bin/thawfs" mount -o allow_other "$T/i.thaw" "$mnt"
	says "user_allow_other"
	says "cannot mount on '$mnt'"
fi
# what belongs to somebody else cannot be mounted on
chown root "$mnt"
must_fail 1 as_nobody "$T/bin/thawfs" mount "$T/i.thaw" "$mnt"
says "cannot mount on '$mnt'"
