#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Packing against zstd with as many threads, both until the disk has it; sizes against zstd, whole and in pieces.
. "$(dirname "$0")/lib.sh"
jobs=2

size_of() { stat -c %s "$1"; }

for kind in ${BENCH_KINDS:-process heap text floats bf16 dups tail stripes}; do
	input "$kind"
	cat "$input" >/dev/null
	bar=1.0
	case $kind in tail | stripes) bar=1.5 ;; esac
	compare "$kind" $bar "rm -f $D/out.zst $D/out.thaw" \
		"zstd -T$jobs -1" "zstd -T$jobs -1 -q -f $input -o $D/out.zst && sync $D/out.zst" \
		"pack -z1" "$thawfs pack -q -j$jobs -z1 -o $D/out.thaw $input"

	"$thawfs" pack -q -z1 -o "$D/out.thaw" "$input" || die "cannot pack $input"
	ours=$(size_of "$D/out.thaw")
	pieces=$("$bin/bench/bench_pieces" "$input" 1 262144)
	whole=$(zstd -1 -q -c "$input" | wc -c)
	row "$kind size" "zstd -1, 256 KiB pieces" bytes 1 "$pieces" "$pieces" 0 1 - "bench_pieces $kind 1 262144"
	row "$kind size" "pack -z1" bytes 1 "$ours" "$ours" 0 \
		"$(awk -v a="$pieces" -v b="$ours" 'BEGIN { print a / b }')" 1 "thawfs pack -z1 (against the pieces)"
	bar=0.926
	case $kind in floats | bf16 | dups) bar=1 ;; esac
	row "$kind size" "zstd -1, whole" bytes 1 "$whole" "$whole" 0 1 - "zstd -1"
	row "$kind size" "pack -z1" bytes 1 "$ours" "$ours" 0 \
		"$(awk -v a="$whole" -v b="$ours" 'BEGIN { print a / b }')" $bar "thawfs pack -z1 (against the whole)"
	rm -f "$D/out.thaw"
done
