#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The golden images in tests/data: every later reader must read them as golden.json says, and the same version of
# thawfs with the same libraries must make them again byte for byte from the same input.
#
#   golden-1.thaw    zstd: every kind of member, address spaces, holes, duplicates, shuffled chunks
#   golden-lz4.thaw  the numeric files with LZ4
#   golden-2.thaw    a later state of the same tree, with golden-1.thaw as its base
#   golden-criu.thaw a CRIU directory: pages elsewhere, a shared memory object, absent pages
#   golden.json      what readers must find: lists, maps, hashes of files; and the versions that made the images
#
# REGENERATE=1 writes them. Images of a released version are never replaced: a new one gets a new name beside them.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
requires python3 xxhsum zstd lz4 jq
data=$src/data
gen=$bin/tool_genimage

images="golden-1 golden-lz4 golden-2 golden-criu"

# what a reader finds in an image: $1 list, $2 maps, $3 hashes
describe() {
	jq -S -n --slurpfile list "$1" --slurpfile maps "$2" --rawfile sums "$3" \
		'{members: $list, spaces: $maps, sha256: ($sums | split("\n") | map(select(. != "")))}'
}
sums() { (cd "$1" && find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum); }

# -- reading -------------------------------------------------------------------------------------

for img in $images; do
	[ "${REGENERATE:-0}" = 1 ] && break
	jq -S ".\"$img\"" "$data/golden.json" >"$T/want" || fail "no golden.json"
	must "$thawfs" verify -q "$data/$img.thaw"
	"$thawfs" ls -R --json "$data/$img.thaw" | jq -cS '.members[]' >"$T/list"
	"$thawfs" maps --json "$data/$img.thaw" | jq -cS '.spaces[] | {name, kind, member, pid, regions:
		[.regions[] | {addr, len, pgoff, flags, name, perms, absent_bytes}]}' >"$T/maps"
	must "$thawfs" unpack -q --no-fsync "$data/$img.thaw" "$T/$img"
	sums "$T/$img" >"$T/sums"
	describe "$T/list" "$T/maps" "$T/sums" >"$T/got"
	diff "$T/want" "$T/got" || fail "thawfs does not read $img.thaw as it was"
	must python3 "$src/oracle.py" verify "$data/$img.thaw"
	must python3 "$src/oracle_check.py" --any-owner tree "$data/$img.thaw" "$T/$img"
	must "$thawfs" ls -R --json "$data/$img.thaw" >"$T/list"
	must python3 "$src/oracle_check.py" ls "$data/$img.thaw" <"$T/list"
done

# -- making --------------------------------------------------------------------------------------

if [ "$(id -u)" != 0 ]; then
	[ -n "${GOLDEN_AS_ROOT:-}" ] || ! unshare -r true 2>/dev/null && skip "read; making them needs root or user namespaces"
	rm -rf "$T"
	GOLDEN_AS_ROOT=1 exec unshare -r bash "$0"
fi

versions() {
	"$thawfs" --version
	zstd --version | grep -o 'v[0-9.]*'
	lz4 --version 2>&1 | grep -o 'v[0-9.]*[0-9]'
}

mkdir -p "$T/a/dir/empty" "$T/a/dir/sub" && cd "$T/a" || exit 1
seq 20000 >text
python3 -c 'import random, sys; sys.stdout.buffer.write(random.Random(1).randbytes(20000))' >noise
cp text dir/same
ln text dir/sub/link
ln -s dir/sub symlink
mkfifo fifo
: >empty
truncate -s 3M sparse
printf 'in the middle' | dd of=sparse bs=1 seek=1500000 conv=notrunc status=none
: >"$(printf 'odd\377\n\\name')"
chmod 4750 noise
for i in 1 2 3 4 5 6 7 8 9; do echo "small $i" >"dir/sub/small-$i"; done
"$gen" mem float32 --kind=floats --size=64K
"$gen" mem bfloat16 --kind=bf16 --size=64K
python3 -c 'import struct, sys; sys.stdout.buffer.write(b"".join(struct.pack("<Q", 0x7f1234560000 + (i * 2654435761 & 0x3fffff) * 16) for i in range(8192)))' >pointers
"$gen" dmtcp small.dmtcp --size=64K --areas=2 --tiny=3 --misaligned --repeat=64K --zero=mib
"$gen" core core --size=64K --tiny=2
setfattr -n user.note -v remember text 2>/dev/null || skip "read; making them needs user xattrs"
setfattr -n user.empty text
chmod -R go=rX . && chmod 4750 noise
cd "$T" || exit 1
"$gen" criu c --size=64K --shmem --lazy --repeat=64K
chmod -R go=rX c
mkdir n && cp -p a/float32 a/bfloat16 a/pointers a/noise n/
find a n c -print0 | xargs -0 touch -h -d @1700000000.123456789
cp -a a b && echo 'a line more' >>b/text && echo new >b/new && rm b/noise
find b -print0 | xargs -0 touch -h -d @1800000000

pack() { must "$thawfs" pack -q --no-fsync --chunk 64K "$@"; }
mkdir made
pack -o made/golden-1.thaw a
pack --codec lz4 -o made/golden-lz4.thaw n
pack --base made/golden-1.thaw -o made/golden-2.thaw b
pack -o made/golden-criu.thaw c

if [ "${REGENERATE:-0}" = 1 ]; then
	cp made/*.thaw "$data/" && chmod 644 "$data"/*.thaw
	# shellcheck disable=SC2094 # three files, each written once
	for img in $images; do
		python3 "$src/oracle.py" list "made/$img.thaw" | jq -cS . >list
		python3 "$src/oracle.py" maps "made/$img.thaw" | jq -cS '{name, kind, member, pid, regions: [. as $s | .regions[] | . as $r |
			{addr, len, pgoff, flags, name, perms: ((if .prot % 2 == 1 then "r" else "-" end) +
				(if .prot / 2 % 2 >= 1 then "w" else "-" end) + (if .prot / 4 % 2 >= 1 then "x" else "-" end) +
				(if .flags % 2 == 1 then "s" else "p" end)),
			absent_bytes: ([$s.segments[] | select(.kind == "absent" and .addr >= $r.addr and .addr < $r.addr + $r.len) | .len] | add // 0)}]}' >maps
		case $img in golden-1) tree=a ;; golden-2) tree=b ;; golden-criu) tree=c ;; *) tree=n ;; esac
		sums $tree >sums
		describe list maps sums | jq -S "{\"$img\": .}"
	done | jq -S -s --arg versions "$(versions)" 'add + {"made by": ($versions | split("\n"))}' >"$data/golden.json"
	echo "wrote $data/golden*"
	exit 0
fi

if [ "$(versions)" = "$(jq -r '."made by"[]' "$data/golden.json")" ]; then
	for img in $images; do
		cmp "made/$img.thaw" "$data/$img.thaw" ||
			fail "$img.thaw comes out differently: if that is meant and it was not released, REGENERATE=1 bash $0"
	done
	echo "made again, the same"
else
	# other libraries or another version may compress in another way, but it is the same tree
	for img in $images; do
		case $img in golden-1) tree=a ;; golden-2) tree=b ;; golden-criu) tree=c ;; *) tree=n ;; esac
		must python3 "$src/oracle.py" verify "made/$img.thaw"
		must python3 "$src/oracle_check.py" tree "made/$img.thaw" $tree
	done
	echo "made by other versions: $(versions | tr '\n' ' ')"
fi
