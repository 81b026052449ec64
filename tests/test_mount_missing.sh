#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Bytes that an image does not have: those of a base that is not there, and memory that nobody saved. They are errors, at
# exactly their places, never zeros; and a base that comes back is used.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=tests/lib_mount.sh
. "$(dirname "$0")/lib_mount.sh"
requires fuse root jq python3
mnt=$T/mnt

# is_eio FILE OFFSET LEN: reading there fails so
is_eio() {
	dd if="$1" of="$T/got" bs=4096 iflag=skip_bytes,count_bytes skip="$2" count="$3" 2>"$T/err" &&
		fail "$1 at $2: no error"
	grep -q "Input/output error" "$T/err" || fail "$1 at $2: $(cat "$T/err")"
	[ ! -s "$T/got" ] || fail "$1 at $2: bytes before the error"
}
logged() { grep -Eq "$1" "$T/log" || fail "not in the log: $1: $(cat "$T/log")"; }

# a base that is gone: what the image has itself can be read, before and after what it has not
mkdir "$T/base" "$T/src"
head -c 2M /dev/urandom >"$T/base/b"
{ head -c 1M /dev/urandom && cat "$T/base/b" && head -c 1M /dev/urandom; } >"$T/src/file"
cp "$T/base/b" "$T/src/all"
echo own >"$T/src/own"
must "$thawfs" pack -q -o "$T/base.thaw" "$T/base"
must "$thawfs" pack -q --base "$T/base.thaw" -o "$T/i.thaw" "$T/src"
[ "$(stat -c %s "$T/i.thaw")" -lt $((3 << 20)) ] || fail "the base was not used"
mv "$T/base.thaw" "$T/away"
mount_image "$T/i.thaw" "$mnt"
must cmp "$T/src/own" "$mnt/own"
cmp <(head -c 1M "$mnt/file") <(head -c 1M "$T/src/file") || fail "before what is in the base"
cmp <(tail -c 1M "$mnt/file") <(tail -c 1M "$T/src/file") || fail "after what is in the base"
is_eio "$mnt/file" $((1 << 20)) 4096
is_eio "$mnt/file" $(((2 << 20) + 12288)) 4096
is_eio "$mnt/file" $(((3 << 20) - 4096)) 4096
is_eio "$mnt/all" 0 $((2 << 20))
logged "member '/?all' at offset 0: chunk [0-9]+: its base image is missing"
[ "$(status "$mnt" .errors.base_missing)" -gt 0 ] || fail "not counted: $(status "$mnt" .errors)"
[ "$(stat -c %s "$mnt/all")" = $((2 << 20)) ] || fail "the size of what is missing"
unmount "$mnt" "$daemon"
mv "$T/away" "$T/base.thaw"
mount_image "$T/i.thaw" "$mnt"
must diff -r "$T/src" "$mnt"
unmount "$mnt" "$daemon"

# memory that only the parent has, which was not packed: the view has it as absent, between what is there
must "$bin/tool_genimage" criu "$T/dump" --size=4M --parents=3
must "$thawfs" pack -q -o "$T/alone.thaw" "$T/dump/3" 2>"$T/said"
mount_image "$T/alone.thaw" "$mnt"
must diff -r --exclude=parent "$T/dump/3" "$mnt"
view=$(find "$mnt/.thaw/mem" -type f | head -n 1)
[ -n "$view" ] || fail "no view"
"$thawfs" maps --json "$T/alone.thaw" >"$T/maps.json" || fail "maps"
# page by page: as many errors in a region as maps says it lacks
python3 - "$T/maps.json" "$view" <<'EOP' || fail "what is absent is not what is an error"
import errno, json, os, sys

fd = os.open(sys.argv[2], os.O_RDONLY)
total = 0
for r in json.load(open(sys.argv[1]))["spaces"][0]["regions"]:
    # what lies above is the kernel's
    if r["addr"] >= 1 << 47:
        continue
    eio = 0
    for at in range(r["addr"], r["addr"] + r["len"], 4096):
        try:
            if len(os.pread(fd, 4096, at)) != 4096:
                sys.exit("short read at %#x" % at)
        except OSError as e:
            if e.errno != errno.EIO:
                sys.exit("at %#x: %s" % (at, e))
            eio += 4096
    if eio != r["absent_bytes"]:
        sys.exit("%s: %d bytes are errors, %d absent" % (r["range"], eio, r["absent_bytes"]))
    total += eio
print(total, "bytes are absent, and errors")
if not total:
    sys.exit("nothing is absent")
EOP
[ "$(status "$mnt" .errors.absent)" -gt 0 ] || fail "not counted: $(status "$mnt" .errors)"
logged "memory of '.*' at address 0x[0-9a-f]+: the image does not have these bytes"
unmount "$mnt" "$daemon"
