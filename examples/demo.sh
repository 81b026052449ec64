#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A checkpoint of a running process, packed, looked into, checked, taken out again, mounted, and restored from the mount. 'make demo'.
# Takes what this machine has: criu, else gdb's gcore, else a made-up image. Leaves nothing behind.
set -eu
BUILD=${BUILD:-build}
here=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/thaw-demo.XXXXXX")
target=
mounted=
restored=
leave() {
	[ -z "$restored" ] || kill -9 "$restored" 2>/dev/null || true
	[ -z "$mounted" ] || umount -l "$mounted" 2>/dev/null || fusermount3 -uz "$mounted" 2>/dev/null || true
	[ -z "$target" ] || kill -9 "$target" 2>/dev/null || true
	rm -rf "$work"
}
trap leave EXIT
trap 'exit 130' INT TERM
mkdir "$work/bin"
ln -s "$(realpath "$BUILD/thawfs")" "$work/bin/thawfs"
PATH=$work/bin:$PATH

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
# show COMMAND...: print it as one would type it, run it, say how long it took
show() {
	printf '$ %s\n' "$*"
	local start=$EPOCHREALTIME
	"$@" || { echo "demo: exit $? from: $*" >&2 && exit 1; }
	awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { printf "  (%.2f s)\n", b - a }'
}
# shown FIRST-LINES COMMAND...: the same, with only so many lines of its output
shown() {
	local lines=$1
	shift
	show "$@" >"$work/shown"
	head -n "$((lines + 1))" "$work/shown"
	local rest=$(($(wc -l <"$work/shown") - lines - 2))
	[ $rest -le 0 ] || echo "  … and $rest lines more"
}

start_target() {
	setsid "$BUILD/tests/tool_target" "$work/status" 96 </dev/null >/dev/null 2>&1 &
	target=$!
	local i
	for ((i = 0; i < 100; i++)); do
		[ ! -s "$work/status" ] || return 0
		sleep 0.1
	done
	echo "demo: the example process did not start" >&2
	exit 1
}

# each makes $work/checkpoint, a directory, and returns 1 if this machine cannot
by_criu() {
	[ "$(id -u)" = 0 ] && criu=$("$here/tests/get_criu.sh" 2>/dev/null) || return 1
	start_target
	say "A process with 100 MiB of memory (pid $target) is frozen by criu $("$criu" --version | sed -n 's/^Version: //p')"
	echo "its counter and the hash of its memory: $(cat "$work/status")"
	mkdir "$work/checkpoint"
	pid=$target
	if "$criu" dump -t "$target" -D "$work/checkpoint" -v1 -o "$work/dump.log"; then
		before=$(cat "$work/status")
		return 0
	fi
	rm -rf "$work/checkpoint"
	return 1
}
by_gcore() {
	command -v gcore >/dev/null || return 1
	say "There is no criu that works here, so gdb's gcore takes the memory of a python3"
	python3 -c 'import time
table = {i: str(i) for i in range(300000)}
zeros = bytearray(32 << 20)
time.sleep(600)' </dev/null >/dev/null 2>&1 &
	target=$!
	sleep 1
	mkdir "$work/checkpoint"
	gcore -o "$work/checkpoint/core" "$target" >/dev/null 2>&1 && return 0
	rm -rf "$work/checkpoint"
	return 1
}
by_generator() {
	say "There is neither criu nor gcore here, so the image is a made-up one of DMTCP's kind"
	mkdir "$work/checkpoint"
	"$BUILD/tests/tool_genimage" dmtcp "$work/checkpoint/ckpt_demo.dmtcp"
}

by_criu || by_gcore || by_generator
[ -z "$target" ] || { kill -9 "$target" 2>/dev/null && target=; } || target=
cd "$work"
show du -sh --apparent-size checkpoint

say "Packed: compressed, zeros left out, every byte under a checksum"
show thawfs pack checkpoint
show ls -l checkpoint.thaw

say "Looked into, without unpacking"
shown 12 thawfs info checkpoint.thaw
shown 8 thawfs ls -l checkpoint.thaw
shown 8 thawfs du checkpoint.thaw
shown 12 thawfs maps checkpoint.thaw

say "Checked, and taken out again"
show thawfs verify checkpoint.thaw
show thawfs unpack checkpoint.thaw again
show diff -r checkpoint again
echo "the same, byte for byte; on disk $(du -sk checkpoint | cut -f1) KiB before," \
	"$(du -sk again | cut -f1) KiB after (zeros are holes), $(du -k checkpoint.thaw | cut -f1) KiB packed"

# the process again, from the mount; needs that criu made the checkpoint ($pid is set)
restore_from_mount() {
	local i
	say "The process is gone ($(ps -p "$pid" >/dev/null 2>&1 && echo "but its number is still taken" || echo "no process has the number $pid")); criu restores it from the mount"
	for ((i = 0; i < 100; i++)); do
		ps -e -o pid=,pgid=,sid= | awk -v p="$pid" '$1 == p || $2 == p || $3 == p { found = 1 } END { exit !found }' || break
		sleep 0.1
	done
	mkdir criu-work
	show "$criu" restore -d -D mnt -W criu-work -v1 -o restore.log
	restored=$pid
	sleep 1
	after=$(cat status)
	echo "before: counter ${before% *}, hash of its memory ${before#* }"
	echo "after:  counter ${after% *}, hash of its memory ${after#* }"
	if [ "${before#* }" != "${after#* }" ] || [ ! "${after% *}" \> "${before% *}" ]; then
		echo "demo: that is not the same process" >&2
		exit 1
	fi
	echo "it counts on, over the same memory"
}

say "Mounted: the files that were packed, and the memory, as files"
if [ -w /dev/fuse ]; then
	mkdir mnt
	show thawfs mount checkpoint.thaw mnt
	mounted=$work/mnt
	shown 8 ls -ls mnt
	show du -sh mnt
	shown 8 ls -ls mnt/.thaw/mem
	maps=$(find mnt/.thaw/maps -type f | head -n 1)
	shown 8 cat "$maps"
	if [ -n "${before:-}" ]; then
		restore_from_mount
		kill -9 "$restored" && restored=
	else
		echo "there is no criu that works here, so nothing is restored from the mount"
	fi
	show thawfs umount mnt
	mounted=
else
	echo "there is no /dev/fuse that may be used here, so nothing is mounted"
fi
