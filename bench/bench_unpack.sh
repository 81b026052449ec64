#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Unpacking against zstd -dc, both until the disk has it; verifying against unpacking.
. "$(dirname "$0")/lib.sh"
jobs=2

for kind in process heap text floats bf16 tail stripes; do
	image "$kind" -z1
	zst=$input.zst
	[ -e "$zst" ] || zstd -T$jobs -1 -q "$input" -o "$zst" || die "cannot make $zst"
	cat "$image" "$zst" >/dev/null
	clean="rm -rf $D/out.file $D/out.dir"
	unpack="$thawfs unpack -q -j$jobs $image $D/out.dir"
	compare "$kind" 1.5 "$clean" \
		"zstd -dc" "zstd -dc -q $zst >$D/out.file && sync $D/out.file" \
		"unpack" "$unpack"
	compare "$kind verify" 1.3 "$clean" "unpack" "$unpack" "verify" "$thawfs verify -q -j$jobs $image"
done
