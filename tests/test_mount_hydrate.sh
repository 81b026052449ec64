#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# -o hydrate_dir: the same bytes before, during and after, without decoding again; quota; damage; a killed worker.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=tests/lib_mount.sh
. "$(dirname "$0")/lib_mount.sh"
requires fuse root jq
mnt=$T/mnt
mkdir "$T/dir" "$T/tmpfs" "$T/src"
must mount -t tmpfs none "$T/tmpfs"
on_exit umount -l "$T/tmpfs"
# what it is compared with has tmpfs's idea of blocks
must mount -t tmpfs none "$T/src"
on_exit umount -l "$T/src"

for f in a b; do
	head -c 2M /dev/urandom >"$T/src/$f"
	truncate -s 5M "$T/src/$f"
	head -c 1234567 /dev/urandom >>"$T/src/$f"
done
must "$thawfs" pack -q -o "$T/i.thaw" "$T/src"
ready() { [ "$(status "$mnt" .hydrate.files)" = "$1" ]; }
failed() { [ "$(status "$mnt" .hydrate.failed)" -ge "$1" ]; }
passed() { status "$mnt" .hydrate.opens; }
io() { must "$bin/tool_mount_io" "$T/src/$1" "$mnt/$1"; }

"$thawfs" mount -o hydrate_dir="$T/none" "$T/i.thaw" "$T/dir" 2>"$T/err" && fail "a hydrate_dir that is missing was taken"
grep -qF "option 'hydrate_dir': '$T/none' is not possible: No such file or directory" "$T/err" || fail "$(cat "$T/err")"

mount_image -o "hydrate_dir=$T/tmpfs,hydrate_max=4M" "$T/i.thaw" "$mnt"
if [ "$(status "$mnt" .kernel.passthrough)" != true ]; then
	[ "$(status "$mnt" .hydrate.state)" = "no passthrough" ] || fail "what is missing is not shown"
	grep -q "cannot hydrate files: this kernel has no FUSE passthrough" "$T/log" || fail "what is missing is not said"
	io a
	unmount "$mnt" "$daemon"
	skip "this kernel has no FUSE passthrough"
fi
# an open by way of the page cache holds the file there, and both kinds do not meet
exec 7<"$mnt/a"
wait_until 10 ready 1 || fail "not hydrated: $(status "$mnt" .hydrate)"
must cmp "$T/src/a" "$mnt/a"
must cmp "$T/src/a" - <&7
[ "$(passed)" = 0 ] || fail "passed through while it was open by way of the page cache"
exec 7<&-
passes() { cmp -s "$T/src/a" "$mnt/a" && [ "$(passed)" -ge 1 ]; }
wait_until 5 passes || fail "not passed through though closed: $(status "$mnt" .hydrate)"
decoded=$(status "$mnt" .cache.decoded_chunks)
must cmp "$T/src/a" "$mnt/a"
# before mmap, which makes tmpfs keep pages for the holes it reads
[ "$(df --output=used -B1 "$T/tmpfs" | tail -1)" -le 3350000 ] || fail "the file in hydrate_dir is not sparse"
io a
[ "$(passed)" -ge 2 ] || fail "not passed through"
[ "$(status "$mnt" .cache.decoded_chunks)" = "$decoded" ] || fail "a hydrated file was decoded again"
used=$(status "$mnt" .hydrate.used)
if [ "$used" -lt 3331719 ] || [ "$used" -gt 3350000 ]; then fail "$used bytes used: holes are not holes"; fi
[ -z "$(ls -A "$T/tmpfs")" ] || fail "hydrate_dir has names"

# handles that are passed through live on without the worker, and its successor hands the file out again
exec 7<"$mnt/a"
if [ "$(status "$mnt" .kernel.resend)" = true ]; then
	worker=$(status "$mnt" .worker_pid)
	kill -9 "$worker"
	must cmp "$T/src/a" - <&7
	wait_until 5 gone "$worker"
	before=$(passed)
	must cmp "$T/src/a" "$mnt/a"
	[ "$(passed)" -gt "$before" ] || fail "the successor does not pass through"
	[ "$(status "$mnt" .cache.decoded_chunks)" = "$decoded" ] || fail "the successor decoded again"
	ready 1 || fail "the successor does not know the file"
fi
# no room while it is open, and room by eviction once it is not
must cmp "$T/src/b" "$mnt/b"
wait_until 10 failed 1 || fail "two files in room for one"
grep -q "cannot hydrate a file in '$T/tmpfs': No space left on device; it is served as before" "$T/log" || fail "$(cat "$T/log")"
must cmp "$T/src/b" "$mnt/b"
exec 7<&-
evicted() { head -c 1 "$mnt/b" >"$T/out" && [ "$(status "$mnt" .hydrate.evictions)" = 1 ]; }
wait_until 10 evicted || fail "nothing evicted: $(status "$mnt" .hydrate)"
wait_until 10 ready 1
io b
io a
[ "$(status "$mnt" .hydrate.used)" -le 4194304 ] || fail "over the quota"
unmount "$mnt" "$daemon"
unused() { [ "$(df --output=used -B1 "$T/tmpfs" | tail -1)" -eq 0 ]; }
wait_until 5 unused || fail "the room is not given back at the end"

# a memory view, whose holes are terabytes
must "$bin/tool_genimage" dmtcp "$T/c.dmtcp" --size=4M --areas=9 --tiny=3 --pid=42 >/dev/null
must "$thawfs" pack -q -o "$T/c.thaw" "$T/c.dmtcp"
view=.thaw/mem/c.dmtcp
mkdir "$T/plain"
mount_image "$T/c.thaw" "$T/plain"
plain=$daemon
mount_image -o "hydrate_dir=$T/tmpfs" "$T/c.thaw" "$mnt"
head -c 1 "$mnt/$view" >/dev/null
wait_until 10 ready 1 || fail "a view is not hydrated: $(status "$mnt" .hydrate)"
must "$bin/tool_sparse" "$T/plain/$view" "$mnt/$view"
[ "$(passed)" -ge 1 ] || fail "a view is not passed through"
used=$(status "$mnt" .hydrate.used)
data=$(($(stat -c %b "$T/plain/$view") * 512))
if [ "$used" -lt "$data" ] || [ "$used" -gt $((data + 65536)) ]; then fail "$used bytes for a view with $data"; fi
grep -q "^thawfs_hydrate_bytes $used\$" "$mnt/.thawfs/metrics" || fail "metrics do not say what hydrated files take"
grep -q '^thawfs_hydrate_opens_total [1-9]' "$mnt/.thawfs/metrics" || fail "metrics do not count what is passed through"
unmount "$mnt" "$daemon"
unmount "$T/plain" "$plain"

# the kernel offers it and then does not permit it: said once, and served as ever. In a user namespace even root may not
if unshare -Urm true 2>/dev/null; then
	cat >"$T/inside.sh" <<-'EOS'
		. "$src/lib.sh"
		. "$src/lib_mount.sh"
		mnt=$T/mnt
		mount_image -o "hydrate_dir=$T" "$1/i.thaw" "$mnt"
		refused() { [ "$(status "$mnt" .hydrate.state)" = "not permitted" ]; }
		must cmp "$1/src/a" "$mnt/a"
		wait_until 10 refused || fail "what is not permitted is not shown: $(status "$mnt" .hydrate)"
		for f in a b; do must cmp "$1/src/$f" "$mnt/$f"; done
		[ "$(status "$mnt" .hydrate.opens)" = 0 ] || fail "passed through?"
		[ "$(status "$mnt" .hydrate.failed)" = 0 ] || fail "counted as files that failed"
		unmount "$mnt" "$daemon"
		[ "$(grep -c "cannot hydrate files: the kernel does not permit passthrough here" "$T/log")" = 1 ] || fail "$(cat "$T/log")"
	EOS
	must unshare -Urm bash "$T/inside.sh" "$T"
fi

# damage: EIO as ever, the other file is served. Raw, so that a byte of the data is a byte of the file
mkdir "$T/bad"
head -c 1M /dev/zero | tr '\0' x >"$T/bad/x"
head -c 1M /dev/urandom >"$T/bad/y"
must "$thawfs" pack -q --raw -o "$T/bad.thaw" "$T/bad"
at=$(grep -obUa -m1 xxxxxxxx "$T/bad.thaw" | head -1 | cut -d: -f1)
printf y | dd of="$T/bad.thaw" bs=1 seek=$((at + 4096)) conv=notrunc status=none
mount_image -o "hydrate_dir=$T/tmpfs" "$T/bad.thaw" "$mnt"
for _ in 1 2; do
	cat "$mnt/x" >"$T/out" 2>"$T/err" && fail "damage was not noticed"
	grep -q 'Input/output error' "$T/err" || fail "$(cat "$T/err")"
	wait_until 10 failed 1 || fail "a damaged file: $(status "$mnt" .hydrate)"
done
must cmp "$T/bad/y" "$mnt/y"
wait_until 10 ready 1 || fail "the file beside is not hydrated"
[ "$(passed)" = 0 ] || fail "a damaged file is passed through"
unmount "$mnt" "$daemon"
