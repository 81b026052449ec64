#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Tools that make compressed read-only images, as far as they are installed: time and size, both on disk.
. "$(dirname "$0")/lib.sh"
jobs=2

# peer NAME KIND OUT COMMAND: against pack -z1 of the same input
peer() {
	compare "$2" - "rm -rf $D/out.thaw $3" "$1" "$4 && sync $3" \
		"pack -z1" "$thawfs pack -q -j$jobs -z1 -o $D/out.thaw $D/tree"
	bash -c "$4" >/dev/null 2>&1
	"$thawfs" pack -q -z1 -o "$D/out.thaw" "$D/tree"
	a=$(stat -c %s "$3") b=$(stat -c %s "$D/out.thaw")
	row "$2 size" "$1" bytes 1 "$a" "$a" 0 1 - "$4"
	row "$2 size" "pack -z1" bytes 1 "$b" "$b" 0 "$(awk -v a="$a" -v b="$b" 'BEGIN { print a / b }')" - "thawfs pack -z1"
	rm -f "$3" "$D/out.thaw"
}

for kind in process tail; do
	input "$kind"
	rm -rf "$D/tree" && mkdir "$D/tree" && ln "$input" "$D/tree/memory"
	if have mksquashfs; then
		peer "mksquashfs zstd 1, 256K" $kind "$D/out.sqfs" \
			"mksquashfs $D/tree $D/out.sqfs -quiet -no-progress -noappend -processors $jobs -comp zstd -Xcompression-level 1 -b 256K"
	fi
	if have mkfs.erofs; then
		peer "mkfs.erofs lz4, 64K" $kind "$D/out.erofs" "mkfs.erofs --quiet -zlz4 -C65536 $D/out.erofs $D/tree"
	fi
	if have mkdwarfs; then
		peer "mkdwarfs zstd 1" $kind "$D/out.dwarfs" \
			"mkdwarfs -i $D/tree -o $D/out.dwarfs --force --log-level=error -N $jobs -C zstd:level=1 -S 18 -B 1"
	fi
	rm -rf "$D/tree"
done
