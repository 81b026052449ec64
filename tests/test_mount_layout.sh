#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2012,SC2015,SC2086 # ls is what is tested; words that are meant to be several
# What stands where on a mount: the tree as it was packed, and the hidden files beside it.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=tests/lib_mount.sh
. "$(dirname "$0")/lib_mount.sh"
requires fuse root jq setfattr
mnt=$T/mnt src=$T/src

mkdir -p "$src/dir/deep" "$src/with space, comma:%" "$src/empty"
seq 1 100000 >"$src/file"
seq 1 1000 >"$src/dir/deep/f"
ln "$src/file" "$src/dir/hard"
ln -s deep/f "$src/dir/link"
ln -s "$(printf 'x%.0s' $(seq 4000))" "$src/long-link"
mkfifo "$src/fifo"
echo odd >"$src/$(printf 'new\nline \377 non-utf8')"
echo long >"$src/$(printf 'n%.0s' $(seq 255))"
chmod 0640 "$src/file"
chmod 0711 "$src/dir"
chown 12:34 "$src/dir/deep/f"
touch -d '2001-02-03 04:05:06.123456789' "$src/dir/deep/f"
setfattr -n user.small -v v "$src/file" 2>/dev/null && has_xattr=1 && setfattr -n user.big -v "$(head -c 3000 /dev/zero | tr '\0' b)" "$src/file"
for i in $(seq 1 3000); do : >"$src/empty/$i"; done
must "$thawfs" pack -q -o "$T/i.thaw" "$src"
mount_image "$T/i.thaw" "$mnt"

show() { (cd "$1" && find . ! -type d -printf '%P %y %m %U %G %s %T@ %l %n\0' | LC_ALL=C sort -z); }
show_dirs() { (cd "$1" && find . -type d -printf '%P %m %U %G %T@\n' | LC_ALL=C sort); }
cmp <(show "$src") <(show "$mnt") || fail "the tree differs: $(diff -a <(show "$src" | tr '\0' '\n') <(show "$mnt" | tr '\0' '\n') | head -5)"
cmp <(show_dirs "$src") <(show_dirs "$mnt") || fail "directories differ"
must cmp "$src/file" "$mnt/dir/hard"
[ "$(stat -c %i "$mnt/file")" = "$(stat -c %i "$mnt/dir/hard")" ] || fail "hard links have different inodes"
[ "$(ls -U "$mnt/empty" | wc -l)" = 3000 ] || fail "a large directory"
[ "$(ls -U "$mnt/empty" | sort -u | wc -l)" = 3000 ] || fail "a large directory: names twice"
if [ "${has_xattr:-}" ]; then
	[ "$(getfattr --only-values -n user.small "$mnt/file" 2>/dev/null)" = v ] || fail "xattr"
	cmp <(cd "$src" && getfattr -d -m - file) <(cd "$mnt" && getfattr -d -m - file) || fail "xattrs"
	must_fail 1 getfattr -n user.none "$mnt/file"
	says "No such attribute"
fi
stored=$(getfattr --only-values -n user.thaw.stored "$mnt/file") || fail "user.thaw.stored"
[ "$stored" -gt 0 ] && [ "$stored" -lt "$(stat -c %s "$src/file")" ] || fail "user.thaw.stored is $stored"

# hidden: there, but not listed
[ -z "$(find "$mnt" -name '.thaw*')" ] || fail "hidden directories are listed"
must jq -e '.id and .chunk_size and .properties' "$mnt/.thaw/info.json" >/dev/null
cmp <("$thawfs" info --json "$T/i.thaw" | jq -S .) <(jq -S . "$mnt/.thaw/info.json") || fail "info.json is not what thawfs info prints"
[ "$(ls "$mnt/.thaw")" = "$(printf 'info.json\nmaps\nmem')" ] || fail "ls .thaw: $(ls "$mnt/.thaw")"
[ "$(ls "$mnt/.thawfs" | sort | tr '\n' ' ')" = "by-id metrics status.json version " ] || fail "ls .thawfs"
id=$(jq -r .id "$mnt/.thaw/info.json")
[ "$(ls "$mnt/.thawfs/by-id")" = "$id" ] || fail "ls by-id"
must diff -r --no-dereference --exclude=fifo "$src" "$mnt/.thawfs/by-id/$id"
must cmp "$mnt/.thaw/info.json" "$mnt/.thawfs/by-id/$id/.thaw/info.json"
[ "$(stat -c %i "$mnt/file")" = "$(stat -c %i "$mnt/.thawfs/by-id/$id/file")" ] || fail "by-id shows other files"
must_fail 1 stat "$mnt/.thawfs/by-id/00000000000000000000000000000000"
must_fail 1 stat "$mnt/.thawfs/by-id/nonsense"
grep -q "^thawfs [0-9]" "$mnt/.thawfs/version" || fail "version"
for key in worker_pid supervisor_pid images open_files cache.limit cache.used cache.hits cache.misses prefetch \
	kernel.passthrough kernel.io_uring kernel.resend; do
	[ "$(status "$mnt" ".$key | type")" != null ] || fail "status.json has no $key"
done
[ "$(status "$mnt" .images)" = 1 ] || fail "images"
[ "$(status "$mnt" .supervisor_pid)" = "$daemon" ] || fail "supervisor_pid"
grep -q '^thawfs_request_seconds_bucket{op="read",le="+Inf"} [1-9]' "$mnt/.thawfs/metrics" || fail "metrics: requests"
for m in read_bytes_total decode_seconds_total cache_hits_total cache_misses_total prefetch_bytes_total; do
	grep -q "^thawfs_$m [0-9]" "$mnt/.thawfs/metrics" || fail "metrics: $m"
done
grep -q '^thawfs_errors_total{kind="damaged"} 0' "$mnt/.thawfs/metrics" || fail "metrics: errors"

# a file that is open counts; the kernel releases one a moment after it was closed
open_files() { [ "$(status "$mnt" .open_files)" = "$1" ]; }
wait_until 5 open_files 0 || fail "open_files is not 0"
exec 9<"$mnt/file"
wait_until 5 open_files 1 || fail "open_files is not 1"
exec 9<&-
wait_until 5 open_files 0 || fail "open_files is not 0 again"

# nothing can be written, and the log says why
: >"$T/log"
for c in "touch $mnt/new" "mkdir $mnt/new" "rm $mnt/file" "mv $mnt/file $mnt/f" "ln $mnt/file $mnt/f" \
	"ln -s x $mnt/f" "chmod 600 $mnt/file" "setfattr -n user.a -v b $mnt/file" "truncate -s 1 $mnt/file" \
	"rmdir $mnt/empty" "fallocate -p -o 0 -l 4096 $mnt/file" "dd if=/dev/null of=$mnt/file"; do
	must_fail 1 $c
	says "Read-only file system"
done
grep -q "refused to .*criu restore: without --auto-dedup" "$T/log" || fail "no hint in the log"
[ "$(grep -c refused "$T/log")" -le 2 ] || fail "the log is flooded"
unmount "$mnt" "$daemon"

# owners as told; a file that was packed alone
mount_image -o uid=1234,gid=99 "$T/i.thaw" "$mnt"
[ "$(stat -c %u:%g "$mnt/dir/deep/f")" = 1234:99 ] || fail "uid= and gid="
unmount "$mnt" "$daemon"
must "$thawfs" pack -q -o "$T/one.thaw" "$src/file"
mount_image "$T/one.thaw" "$mnt"
[ "$(ls "$mnt")" = file ] || fail "a single file"
must cmp "$src/file" "$mnt/file"
unmount "$mnt" "$daemon"
