#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Every byte of every member, by every way of reading, from files whose holes lie where it is difficult.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=tests/lib_mount.sh
. "$(dirname "$0")/lib_mount.sh"
requires fuse root
[ -d /dev/shm ] || skip "needs /dev/shm, to compare holes with tmpfs"
src=$(mktemp -d /dev/shm/thaw-test.XXXXXX)
on_exit rm -rf "$src"
mnt=$T/mnt

piece() { head -c "$1" /dev/urandom; }
text() { seq 1 9999999 | head -c "$1"; }
: >"$src/empty"
for n in 1 4095 4096 4097 262143 262144 262145 3000000; do piece $n >"$src/random-$n"; done
text 5000001 >"$src/text"
truncate -s 3M "$src/all-hole"
truncate -s $((256 * 1024 + 1)) "$src/hole-and-a-byte"
{ head -c 1M /dev/zero && text 1M; } >"$T/dense" && cp --sparse=always "$T/dense" "$src/hole-first"
{ text 1M && head -c 1M /dev/zero; } >"$T/dense" && cp --sparse=always "$T/dense" "$src/hole-last"
for i in 1 3 4 9; do text 256K | dd of="$src/islands" bs=256K seek=$i conv=notrunc status=none; done
truncate -s 4M "$src/islands"
# larger than the largest read
text 1M | dd of="$src/large" bs=1M seek=2046 conv=notrunc status=none
piece 5M | dd of="$src/large" bs=1M seek=2047 conv=notrunc status=none
truncate -s 2200M "$src/large"

must "$thawfs" pack -q -o "$T/i.thaw" "$src"
for opts in threads=8 threads=1,cache=32M,readahead=1M; do
	mount_image -o "$opts" "$T/i.thaw" "$mnt"
	for f in "$src"/*; do
		"$bin/tool_mount_io" "$f" "$mnt/${f##*/}" || fail "$opts: ${f##*/}"
	done
	# twice at once, and the same file by two readers of which one is slow (criu 2924)
	cmp "$src/text" "$mnt/text" & cmp "$src/text" "$mnt/text" || fail "two readers"
	wait $! || fail "two readers"
	# mmap, readdir with attributes, mmap again (bindfs 159)
	must diff -r "$src" "$mnt"
	ls -lR "$mnt" >"$T/ls" || fail "ls -lR"
	must cmp "$src/random-3000000" "$mnt/random-3000000"
	unmount "$mnt" "$daemon"
done

# tools that copy sparse files
mount_image "$T/i.thaw" "$mnt"
must cp -a "$mnt" "$T/copy"
must diff -r "$src" "$T/copy"
[ "$(du -k --apparent-size "$mnt/large" | cut -f1)" = $((2200 * 1024)) ] || fail "apparent size"
[ "$(du -k "$mnt/large" | cut -f1)" = "$(du -k "$src/large" | cut -f1)" ] || fail "du of a sparse file"
[ "$(du -k "$T/copy/large" | cut -f1)" -le 8000 ] || fail "cp filled the holes"
must tar -C "$mnt" -S -cf "$T/t.tar" .
[ "$(stat -c %s "$T/t.tar")" -lt $((40 << 20)) ] || fail "tar -S stored the holes"
mkdir "$T/tar" && must tar -C "$T/tar" -xf "$T/t.tar"
must diff -r "$src" "$T/tar"
# an image of our own mount is the same image (casync 116)
must "$thawfs" pack -q -o "$T/again.thaw" "$mnt"
must cmp "$T/i.thaw" "$T/again.thaw"
unmount "$mnt" "$daemon"
