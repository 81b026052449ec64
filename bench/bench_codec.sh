#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Which codec restores fastest, and what it costs in size: a full decode with every checksum (verify) of one input.
# LZ4 is worth having if it decodes 1.5 times as fast as zstd --fast=3 at no less than 0.9 of its ratio.
. "$(dirname "$0")/lib.sh"
jobs=2

for kind in process heap; do
	image "$kind" --fast=3
	fast=$image
	for option in -z1 --codec=lz4 --raw; do
		image "$kind" "$option"
		cat "$image" "$fast" >/dev/null
		bar=-
		[ "$option" != --codec=lz4 ] || bar=1.5
		compare "$kind decode" $bar true \
			"--fast=3" "$thawfs verify -q -j$jobs $fast" \
			"$option" "$thawfs verify -q -j$jobs $image"
		a=$(stat -c %s "$fast")
		b=$(stat -c %s "$image")
		[ $bar = - ] || bar=0.9
		row "$kind size" "--fast=3" bytes 1 "$a" "$a" 0 1 - "thawfs pack --fast=3"
		row "$kind size" "$option" bytes 1 "$b" "$b" 0 \
			"$(awk -v a="$a" -v b="$b" 'BEGIN { print a / b }')" $bar "thawfs pack $option"
	done
done
