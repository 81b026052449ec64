#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# How a mount says that it answers, by mount(8)'s helper and to systemd; with few descriptors; again and again.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=tests/lib_mount.sh
. "$(dirname "$0")/lib_mount.sh"
requires fuse root jq python3 pgrep
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
s.settimeout(60)
print(s.recv(4096).decode())
' "$T/notify" >"$T/said" &
listener=$!
wait_until 60 test -S "$T/notify" || fail "nobody listens"
NOTIFY_SOCKET=$T/notify mount_image "$T/i.thaw" "$mnt"
wait $listener || fail "systemd was not told"
[ "$(cat "$T/said")" = "$(printf 'READY=1\nMAINPID=%d' "$daemon")" ] || fail "systemd was told: $(cat "$T/said")"
unmount "$mnt" "$daemon"

# 64 descriptors are enough (criu 601)
(ulimit -n 64 && exec "$thawfs" mount "$T/i.thaw" "$mnt") || fail "mount with 64 descriptors"
must cmp "$T/src/file" "$mnt/file"
unmount "$mnt" "$(status "$mnt" .supervisor_pid)"

# nothing of the caller's stays open in the daemon: not a pipe that somebody reads to its end, not a lock
mounted() { timeout 20 "$thawfs" mount "$@" "$T/i.thaw" "$mnt"; }
foreign() { # PID...: what they have open that they did not open
	local fd to
	for fd in $(printf '/proc/%s/fd/* ' "$@"); do
		to=$(readlink "$fd") || continue
		case $to in
		*:\[*\] | /dev/null | /dev/fuse | "$T/i.thaw" | /memfd:thawfs*) ;;
		*) echo "$fd -> $to" ;;
		esac
	done
}
# a worker is a moment old, and may be loading its libraries
clean() { [ -z "$(foreign "$@")" ]; }
ours() { status "$mnt" .supervisor_pid; }
workers() { pgrep -P "$1" | tr '\n' ' '; }
two_workers() { [ "$(workers "$1" | wc -w)" = 2 ] && [ "$(status "$mnt" .workers.started)" = 2 ]; }
no_lock() { flock -n "$T/lock" true; }

said=$(mounted) || fail "a mount whose output is read does not return"
[ -z "$said" ] || fail "mount printed '$said'"
unmount "$mnt" "$(ours)"
said=$(mounted -o notify_fd=1; echo end) || fail "notify_fd=1"
[ "$said" = "$(printf '\nend')" ] || fail "notify_fd=1 gave '$said'"
unmount "$mnt" "$(ours)"
mkfifo "$T/pipe"
timeout 20 cat "$T/pipe" >"$T/piped" &
reader=$!
must mounted 7>"$T/pipe" 8>"$T/eight" 19<"$T/src/file" >"$T/one" 2>"$T/two" <"$T/src/file"
wait $reader || fail "a pipe that the caller had open does not end"
sup=$(ours)
wait_until 10 two_workers "$sup" || fail "no standby"
# shellcheck disable=SC2046
set -- "$sup" $(workers "$sup")
wait_until 10 clean "$@" || fail "still open in the daemon: $(foreign "$@")"
unmount "$mnt" "$sup"
if command -v flock >/dev/null; then
	must timeout 20 flock "$T/lock" "$thawfs" mount "$T/i.thaw" "$mnt"
	must no_lock
	unmount "$mnt" "$(ours)"
fi

# in the foreground it is the caller's program, with what it was given; its workers are not
mount_image "$T/i.thaw" "$mnt" 7>"$T/seven" 9<"$T/src/file"
wait_until 10 two_workers "$daemon" || fail "no standby"
# shellcheck disable=SC2046
set -- $(workers "$daemon")
wait_until 10 clean "$@" || fail "still open in the workers: $(foreign "$@")"
foreign "$daemon" | grep -q "fd/9 -> $T/src/file" || fail "closed in the foreground"
unmount "$mnt" "$daemon"

# many times (nydus 1693): the right bytes each time, no process left, and a mount after many takes what the first took
takes() { # descriptors and threads of the mount's processes
	local worker
	# past the page cache, so that a worker that is new opens the image
	dd if="$mnt/file" of=/dev/null bs=4096 count=1 iflag=direct status=none || return
	worker=$(status "$mnt" .worker_pid)
	echo "supervisor $(n_fds "$pid") $(n_threads "$pid"), worker $(n_fds "$worker") $(n_threads "$worker")"
}
# a worker of which something is still being set up has other numbers for a moment
takes_as_first() { [ "$(takes)" = "$first" ]; }
first=
for i in $(seq 1 "$(long_or 300 30)"); do
	echo "round $i" >"$T/src/round"
	must "$thawfs" pack -q -o "$T/i.thaw" "$T/src"
	must "$thawfs" mount "$T/i.thaw" "$mnt"
	pid=$(status "$mnt" .supervisor_pid)
	[ "$(cat "$mnt/round")" = "round $i" ] || fail "round $i shows old bytes"
	must cmp "$T/src/file" "$mnt/file"
	if [ -z "$first" ]; then
		# until both workers are there, and it does not change any more
		ready_now() { [ "$(pgrep -cP "$pid")" = 2 ] && first=$(takes) && sleep 0.2 && takes_as_first; }
		wait_until 20 ready_now || fail "the numbers do not settle: $first, $(takes)"
		first_rss=$(rss_kib "$pid")
	fi
	unmount "$mnt" "$pid"
done
must "$thawfs" mount "$T/i.thaw" "$mnt"
pid=$(status "$mnt" .supervisor_pid)
must cmp "$T/src/file" "$mnt/file"
wait_until 20 takes_as_first || fail "after $i mounts: $(takes), not $first"

# and one mount of which every file is opened again and again, and whose worker is replaced
for i in $(seq 1 "$(long_or 1000 50)"); do
	must cmp "$T/src/file" "$mnt/file"
	[ "$(cat "$mnt/round")" = "$(cat "$T/src/round")" ] || fail "open number $i shows old bytes"
	must ls -l "$mnt/.thaw" >"$T/ls"
done
wait_until 20 takes_as_first || fail "after $i opens: $(takes), not $first"
if [ "$(status "$mnt" .kernel.resend)" = true ]; then
	for i in $(seq 1 "$(long_or 100 10)"); do
		worker=$(status "$mnt" .worker_pid)
		kill -KILL "$worker"
		wait_until 20 gone "$worker" || fail "a worker stays"
		must cmp "$T/src/file" "$mnt/file"
	done
	wait_until 20 takes_as_first || fail "after $i takeovers: $(takes), not $first"
fi
rss=$(rss_kib "$pid")
[ "$rss" -le $((first_rss + 1024)) ] || fail "the supervisor grew from $first_rss to $rss KiB"
unmount "$mnt" "$pid"
