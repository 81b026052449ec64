# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# shellcheck disable=SC2154 # what lib.sh sets
# For tests that mount: source this after lib.sh. Mounts are under $T and go away at exit.

# mount_image [-o OPTS] SRC MNT: in the background, messages in $T/log; the supervisor's pid in $daemon
mount_image() {
	local opts=()
	if [ "$1" = -o ]; then
		opts=(-o "$2")
		shift 2
	fi
	mkdir -p "$2"
	"$thawfs" mount -f "${opts[@]}" -o notify_fd=8 "$1" "$2" 8>"$T/ready" >>"$T/log" 2>&1 &
	daemon=$!
	on_exit end_mount "$2" "$daemon"
	wait_until 10 test -s "$T/ready" || {
		cat "$T/log"
		fail "the mount of $1 did not answer"
	}
	rm -f "$T/ready"
}
# end_mount MNT PID: whatever state it is in
end_mount() {
	umount -l "$1" 2>/dev/null
	kill "$2" 2>/dev/null
	wait_until 5 gone "$2" || kill -9 "$2" 2>/dev/null
}
# wait_until SECONDS COMMAND...: false if it does not come true
wait_until() {
	local end=$((SECONDS + $1))
	shift
	until "$@"; do
		[ $SECONDS -lt $end ] || return 1
		sleep 0.02
	done
}
# ended, though an init that is slow may not have reaped it yet
gone() { ! kill -0 "$1" 2>/dev/null || grep -q '^State:.Z' "/proc/$1/status" 2>/dev/null; }
# status MNT FILTER: from status.json, by jq
status() { jq -r "$2" "$1/.thawfs/status.json"; }
# n_fds PID, n_threads PID, rss_kib PID
n_fds() { find "/proc/$1/fd" -mindepth 1 2>/dev/null | wc -l; }
n_threads() { find "/proc/$1/task" -mindepth 1 -maxdepth 1 2>/dev/null | wc -l; }
rss_kib() { awk '/^VmRSS/ { print $2 }' "/proc/$1/status"; }
# unmount MNT PID: as a user does, and see that the daemon ends, and that no sanitizer found something in it
unmount() {
	must "$thawfs" umount "$1"
	wait_until 10 gone "$2" || fail "the daemon $2 did not end after umount"
	if grep -q 'Sanitizer' "$T/log" 2>/dev/null; then
		cat "$T/log"
		fail "a sanitizer found something"
	fi
}
