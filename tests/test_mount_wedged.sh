#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A source that does not answer, as a dead file server: here an image in another mount whose processes are stopped. Who reads
# waits, but the mount can be ended, with and without readers, and nothing is left of it.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=tests/lib_mount.sh
. "$(dirname "$0")/lib_mount.sh"
requires fuse root jq pgrep
mnt=$T/mnt

mkdir "$T/src" "$T/server"
head -c 96M /dev/urandom >"$T/src/file"
echo small >"$T/src/small"
must "$thawfs" pack -q --raw -o "$T/server/i.thaw" "$T/src"
must "$thawfs" pack -q --raw -o "$T/server.thaw" "$T/server"
mount_image "$T/server.thaw" "$T/inner"
server=$daemon
stop() {
	mapfile -t stopped < <(echo "$server" && pgrep -P "$server")
	kill -STOP "${stopped[@]}"
}
go_on() { kill -CONT "${stopped[@]}"; }
stopped=("$server")
on_exit go_on
# those that have not been waited for
kill_jobs() {
	mapfile -t readers < <(jobs -p)
	kill -KILL "${readers[@]}"
}
on_exit kill_jobs

# wedged READERS: a mount of an image whose server is stopped, with so many readers that wait. Each reads where none has
# read before, nor ahead: what is once in the page cache may stay there
next=1
wedged() {
	local i
	# out of the page cache, where the server is not needed
	must dd if="$T/inner/i.thaw" iflag=nocache count=0 status=none
	mount_image -o threads=4,cache=32M "$T/inner/i.thaw" "$mnt"
	[ "$(cat "$mnt/small")" = small ] || fail "not the right bytes before"
	mapfile -t workers < <(pgrep -P "$daemon")
	stop
	readers=()
	for ((i = 0; i < $1; i++)); do
		dd if="$mnt/file" of="$T/got.$i" bs=4096 count=1 skip=$((512 * next)) 2>"$T/err.$i" &
		readers+=($!)
		at[i]=$((512 * next))
		next=$((next + 1))
	done
	sleep 0.5
	for i in "${readers[@]}"; do gone "$i" && fail "a reader did not wait for the source: $(cat "$T"/err.*)"; done
}
# not mountpoint(1), which asks the file system
is_unmounted() { ! grep -qF " $mnt " /proc/self/mountinfo; }
# nothing of the mount is left: no process, no mount
all_gone() {
	local pid
	wait_until 20 gone "$daemon" || fail "$1: the daemon stays"
	for pid in "${workers[@]}"; do wait_until 20 gone "$pid" || fail "$1: worker $pid stays"; done
	is_unmounted || fail "$1: still mounted"
}

# nobody reads
wedged 0
must timeout 20 "$thawfs" umount "$mnt"
all_gone "nobody reads"
go_on

# more readers than threads: umount says by whom it is held, -z takes it away, and it ends with them
wedged 8
must_fail 1 timeout 20 "$thawfs" umount "$mnt"
says "process ${readers[0]} (dd)"
must timeout 20 "$thawfs" umount -z "$mnt"
is_unmounted || fail "umount -z left it mounted"
kill -KILL "${readers[@]}"
for pid in "${readers[@]}"; do wait_until 20 gone "$pid" || fail "a reader cannot be killed"; done
all_gone "umount -z, then the readers are killed"
go_on

# told to end twice: whoever reads gets an error
wedged 8
kill -TERM "$daemon"
wait_until 20 is_unmounted || fail "SIGTERM did not detach it"
gone "$daemon" && fail "SIGTERM ended it under readers"
kill -TERM "$daemon"
all_gone "told to end twice"
for pid in "${readers[@]}"; do
	wait_until 20 gone "$pid" || fail "a reader still waits for what is gone"
	wait "$pid" && fail "a reader got something from nowhere"
done
go_on

# a worker that is stuck is killed: the mount can be ended all the same
wedged 2
kill -KILL "$(pgrep -P "$daemon" | head -n 1)"
kill -KILL "${readers[@]}"
must timeout 20 "$thawfs" umount -z "$mnt"
all_gone "a stuck worker was killed"
go_on

# it answers again: so does the mount
wedged 8
go_on
for i in "${!readers[@]}"; do
	wait "${readers[i]}" || fail "reader $i: $(cat "$T/err.$i")"
	cmp "$T/got.$i" <(tail -c +$((at[i] * 4096 + 1)) "$T/src/file" | head -c 4096) || fail "reader $i: wrong bytes"
done
must cmp "$T/src/file" "$mnt/file"
unmount "$mnt" "$daemon"
unmount "$T/inner" "$server"
