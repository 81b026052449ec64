#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Unpacking against zstd -dc, both until the disk has it; verifying against unpacking.
. "$(dirname "$0")/lib.sh"
jobs=2
out=${BENCH_OUT:-$D}

for kind in ${BENCH_KINDS:-process heap text floats bf16 tail stripes}; do
	image "$kind" -z1
	zst=$input.zst
	[ -e "$zst" ] || zstd -T$jobs -1 -q "$input" -o "$zst" || die "cannot make $zst"
	cat "$image" "$zst" >/dev/null
	clean="rm -rf $out/out.file $out/out.dir"
	unpack="$thawfs unpack -q -j$jobs $image $out/out.dir"
	compare "$kind" 1.5 "$clean" \
		"zstd -dc" "zstd -dc -q $zst >$out/out.file && sync $out/out.file" \
		"unpack" "$unpack"
	compare "$kind verify" 1.3 "$clean" "unpack" "$unpack" "verify" "$thawfs verify -q -j$jobs $image"
done
