#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Images that are damaged, cut, removed or replaced while they are mounted: right bytes or EIO, never zeros, never an early
# end, and a line in the log that says what is wrong.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=tests/lib_mount.sh
. "$(dirname "$0")/lib_mount.sh"
requires fuse root jq
mnt=$T/mnt

mkdir "$T/src" "$T/store"
head -c 4M /dev/urandom >"$T/src/file"
seq 1 400000 >"$T/src/text"
must "$thawfs" pack -q -o "$T/i.thaw" "$T/src"
flip() {
	local byte
	byte=$(od -An -tu1 -j "$2" -N1 "$1")
	printf '%b' "\\x$(printf %02x $((byte ^ 1)))" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}
# whole or EIO: 0 if it is all right, 1 if reading failed with EIO; anything else ends the test
read_file() {
	dd if="$1" of="$T/got" bs=64K 2>"$T/err" && {
		cmp -s "$T/got" "$2" || fail "$1: wrong bytes or a short file"
		return 0
	}
	grep -q "Input/output error" "$T/err" || fail "$1: $(cat "$T/err")"
	cmp -s "$T/got" <(head -c "$(stat -c %s "$T/got")" "$2") || fail "$1: wrong bytes before the error"
	return 1
}
logged() { grep -Eq "$1" "$T/log" || fail "not in the log: $1: $(cat "$T/log")"; }

# one bit flipped in the middle of random data: that chunk fails, the others do not
cp "$T/i.thaw" "$T/x.thaw"
mount_image "$T/x.thaw" "$mnt"
flip "$T/x.thaw" $((4096 + 2 * 1048576 + 100))
read_file "$mnt/file" "$T/src/file" && fail "damage was not noticed"
logged "cannot read '.*/x.thaw': member '/?file' at offset [0-9]+: chunk [0-9]+: .*checksum mismatch"
cmp <(tail -c 1M "$T/src/file") <(tail -c 1M "$mnt/file") || fail "what is not damaged cannot be read"
must cmp "$T/src/text" "$mnt/text"
[ "$(status "$mnt" .errors.damaged)" -ge 1 ] || fail "damage is not counted"
# a failure is not remembered: the bit is put right, and so is the file
flip "$T/x.thaw" $((4096 + 2 * 1048576 + 100))
read_file "$mnt/file" "$T/src/file" || fail "an error was remembered"
# cut in two: an error, not the end of the file (criu 2899: restore loops for ever there)
unmount "$mnt" "$daemon"
mount_image "$T/x.thaw" "$mnt"
head -c 1 "$mnt/file" >/dev/null
truncate -s 2M "$T/x.thaw"
read_file "$mnt/file" "$T/src/file" && fail "a truncated image was read to the end"
[ "$(stat -c %s "$mnt/file")" = $((4 << 20)) ] || fail "the size changed"
unmount "$mnt" "$daemon"

# a store: removed and replaced under readers
cp "$T/i.thaw" "$T/store/a.thaw"
mount_image "$T/store" "$mnt"
must cmp "$T/src/file" "$mnt/a/file"
id=$(jq -r .id "$mnt/a/.thaw/info.json")
exec 9<"$mnt/a/file"
echo other >"$T/src/text"
must "$thawfs" pack -q -o "$T/new.thaw" "$T/src"
mv "$T/new.thaw" "$T/store/a.thaw"
is_other() { [ "$(cat "$mnt/a/text" 2>/dev/null)" = other ]; }
wait_until 10 is_other || fail "a replaced image is not shown"
must cmp "$T/src/file" - <&9
[ "$(wc -l <"$mnt/.thawfs/by-id/$id/text")" = 400000 ] || fail "by-id does not show what was replaced"
rm "$T/store/a.thaw"
is_gone() { [ ! -e "$mnt/a" ]; }
wait_until 10 is_gone || fail "a removed image is still shown"
[ "$(wc -l <"$mnt/.thawfs/by-id/$id/text")" = 400000 ] || fail "by-id does not show what was removed"
exec 9<&-
cp "$T/i.thaw" "$T/store/$(printf 'b,c :%%\n\377').thaw"
must cp "$T/i.thaw" "$T/store/.hidden.thaw"
has_one() { [ "$(find "$mnt" -mindepth 1 -maxdepth 1 | tr -c '\n' x | wc -l)" -ge 1 ]; }
wait_until 10 has_one || fail "an image with an odd name is not shown"
must cmp "$mnt/$(printf 'b,c :%%\n\377')/file" "$T/src/file"
echo nothing >"$T/store/bad.thaw"
sleep 0.3
[ ! -e "$mnt/bad" ] || fail "what is no image is shown"
unmount "$mnt" "$daemon"

# held: umount says by whom; -z ends it when they are gone
mount_image "$T/i.thaw" "$mnt"
sleep 60 9<"$mnt/file" &
holder=$!
on_exit kill "$holder"
wait_until 5 test -e "/proc/$holder/fd/9"
must_fail 1 "$thawfs" umount "$mnt"
says "process $holder (sleep)"
must "$thawfs" umount -z "$mnt"
kill "$holder"
wait_until 10 gone "$daemon" || fail "the daemon stays after the last user"

# SIGTERM unmounts
mount_image "$T/i.thaw" "$mnt"
kill -TERM "$daemon"
wait_until 10 gone "$daemon" || fail "SIGTERM does not end the mount"
mountpoint -q "$mnt" && fail "still mounted after SIGTERM"

# errors that name what is wrong
must_fail 2 "$thawfs" mount -o threads=4,nonsense "$T/i.thaw" "$mnt"
says "unknown mount option 'nonsense'"
: >"$mnt/there"
must_fail 1 "$thawfs" mount "$T/i.thaw" "$mnt"
says "not empty"
