#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Images that are cut short, damaged or contradictory: a message and a status, at once, and never a process.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=tests/lib_restart.sh
. "$(dirname "$0")/lib_restart.sh"

good=$T/good.dmtcp
bad=$T/bad.dmtcp
make_checkpoint "$good" -m 8
size=$(stat -c %s "$good")

# patch OFFSET HEX: a bad image is the good one with these bytes
patch() {
	local escaped='' i
	for ((i = 0; i < ${#2}; i += 2)); do escaped+="\\x${2:i:2}"; done
	cp "$good" "$bad"
	printf '%b' "$escaped" | dd of="$bad" bs=1 seek="$1" conv=notrunc status=none
}
# flip OFFSET: the same with another page number; addresses are random, so a fixed one could be the right one
flip() {
	patch "$1" "$(printf %02x $(($(od -An -tu1 -j "$1" -N 1 "$good") ^ 16)))"
}
# refused CODE TEXT: by the restarter, as a file or as a pipe
refused() {
	must_fail "$1" raw "$bad" "$good"
	says "$2"
}
refused_pipe() {
	must_fail "$1" raw_pipe "$bad" "$good"
	says "$2"
}

# cut anywhere: the two headers, an area's header, its bytes, before the end mark
for n in 0 4096 5000 8191; do
	head -c $n "$good" >"$bad"
	refused 3 "the image is cut short at offset"
	refused_pipe 3 "the image is cut short at offset"
done
for n in 8192 9000 $((size / 3)) $((size / 2)) $((size - 4097)) $((size - 4096)) $((size - 1)); do
	head -c "$n" "$good" >"$bad"
	refused 3 "the image is cut short"
	refused_pipe 3 "the image is cut short"
done

# the header at 4096
patch 4096 00
refused 3 "this is not a DMTCP v4.0 image"
patch $((4096 + 132)) 00
refused 1 "cannot restart here: the image is of another architecture"
flip $((4096 + 169))
refused 3 "the restore buffer is not the one in the image's header"
patch $((4096 + 187)) ffffffffff
refused 3 "the image's header has impossible addresses"
flip $((4096 + 193))
refused 1 "cannot restart here: the image is of another kernel"
patch $((4096 + 248)) 0010000000000000
refused 3 "the image has no memory at 1000, where it is to go on"
refused_pipe 3 "the image has no memory at 1000, where it is to go on"

# the first area's header at 8192
for f in refused refused_pipe; do
	patch 8192 01
	$f 3 "the area at offset 8192 has impossible addresses"
	patch $((8192 + 16)) 0000000000000000
	$f 3 "the area at offset 8192 has impossible addresses"
	patch $((8192 + 8)) 00000000000000f0
	$f 3 "the area at offset 8192 has impossible addresses"
	patch $((8192 + 80)) 08
	$f 3 "the area at offset 8192 has unknown properties"
	patch $((8192 + 80)) 04
	$f 3 "the area at offset 8192 is part of an area that it is not inside of"
	patch $((8192 + 72)) ffffffffffff0000
	$f 3 "the area at offset 8192 has more bytes than addresses"
done

# arguments
must_fail 2 "$restarter" --fd
says "option '--fd' needs a number"
must_fail 2 "$restarter" --fd 3x
says "option '--fd': not a number"
must_fail 2 "$restarter" --what 3
says "unknown option '--what'"
must_fail 2 "$restarter" --fd 3
says "are needed, in whole pages"
must_fail 2 "$restarter" --fd 77 --restore-buffer-addr 0x10000000 --restore-buffer-len 0x5a00000
says "--fd 77: not an open file"

# through thawfs restart
must_fail 1 "$thawfs" restart "$T/none.dmtcp"
says "cannot open '$T/none.dmtcp': No such file or directory"
must_fail 2 "$thawfs" restart --mode=fast "$good"
says "'fast' is not a mode"
echo no >"$bad"
must_fail 3 "$thawfs" restart "$bad"
says "it is not a DMTCP v4.0 image"
patch $((4096 + 2304)) 00
must_fail 1 "$thawfs" restart --dmtcp "$T" "$bad"
says "has no bin/dmtcp_restart"

# a damaged chunk of an image: nothing starts
must "$thawfs" pack -q -o "$T/i.thaw" "$good"
printf '\xff\xff\xff\xff' | dd of="$T/i.thaw" bs=1 seek=$(($(stat -c %s "$T/i.thaw") / 3)) conv=notrunc status=none
must_fail 3 "$thawfs" restart "$T/i.thaw/good.dmtcp"
says "cannot read '$T/i.thaw'"
if grep -q restarted "$T/out"; then fail "it started"; fi
must_fail 1 "$thawfs" restart "$T/i.thaw/other.dmtcp"
says "cannot find 'other.dmtcp'"
