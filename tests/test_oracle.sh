#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Images of every kind, read by the reader that knows docs/FORMAT.md only: it must find the packed bytes, see what
# thawfs ls and maps see, and find no rule of the document broken.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
requires python3 xxhsum zstd
size=$(long_or 64M 4M)
gen=$bin/tool_genimage

oracle() { python3 "$src/oracle.py" "$@"; }
check() { python3 "$src/oracle_check.py" "$@"; }

# same IMAGE DIR: the image is DIR's tree, to the oracle and to thawfs
same() {
	local img=$1 dir=$2
	must oracle --base-path "$T/bases" verify "$img"
	must check --base-path "$T/bases" tree "$img" "$dir"
	"$thawfs" ls -R --json "$img" >"$T/ls.json" || fail "ls $img"
	must check --base-path "$T/bases" ls "$img" <"$T/ls.json"
	"$thawfs" maps --json --base-path "$T/bases" "$img" >"$T/maps.json" || fail "maps $img"
	must check --base-path "$T/bases" maps "$img" <"$T/maps.json"
	must "$thawfs" verify -q --base-path "$T/bases" "$img"
	rm -rf "$T/un"
	must "$thawfs" unpack -q --no-fsync --base-path "$T/bases" "$img" "$T/un"
	must check --base-path "$T/bases" tree "$img" "$T/un"
	rm -rf "$T/un"
}
# packed DIR OPTION...: pack it and compare
packed() {
	local dir=$1
	shift
	echo "pack $* $(basename "$dir")"
	must "$thawfs" pack -q --no-fsync "$@" -o "$T/x.thaw" "$dir"
	same "$T/x.thaw" "$dir"
	rm -f "$T/x.thaw"
}

mkdir -p "$T/bases" "$T/tree/d/empty" "$T/tree/d/d/d" "$T/mem" "$T/dmtcp" "$T/core" "$T/floats" "$T/none"
cd "$T/tree" || exit 1
head -c 3000000 /dev/urandom >random
cp random d/same
(head -c 70000 random && cat random) >d/shifted
ln random d/d/link
ln -s ../random d/symlink
ln -s nowhere dangling
ln -s "$(printf 'x%.0s' {1..4000})" long
mkfifo fifo
: >empty
truncate -s 20M hole
printf 'middle' | dd of=hole bs=1 seek=9000000 conv=notrunc status=none
truncate -s 1T huge
printf 'end' | dd of=huge bs=1 seek=$(((1 << 40) - 3)) conv=notrunc status=none
truncate -s 1 one && truncate -s 65536 zeros
for i in {1..300}; do echo "small file $i" >"d/d/small-$i"; done
seq 400000 >text
touch -d '1960-01-02 03:04:05.678' d/old
chmod 4711 one
chmod 0000 dangling d/d/small-9 2>/dev/null
: >"$(printf 'n\377 \n\\ name')"
: >"$(printf 'n%.0s' {1..255})"
[ "$(id -u)" = 0 ] && mknod null c 1 3 && mknod blk b 700 70000 && chown 4000000000:65537 one
setfattr -n user.one -v 1 text 2>/dev/null && setfattr -n user.empty text && setfattr -n user.two -v "$(head -c 200 /dev/zero | tr '\0' 2)" text
[ "$(id -u)" = 0 ] || chmod 0600 d/d/small-9
cd - >/dev/null || exit 1

for opt in "" "-z 1 --chunk 64K" "-z 19 --chunk 4M" "--fast=5 -j 1" "--raw --chunk 1M" "--no-filter --creator --host --time"; do
	# shellcheck disable=SC2086
	packed "$T/tree" $opt
done
# the bytes that only some files have: another way to the same end must give the same image
must "$thawfs" pack -q --no-fsync -j 1 -o "$T/1.thaw" "$T/tree"
must "$thawfs" pack -q --no-fsync -j 7 -o "$T/7.thaw" "$T/tree"
must cmp "$T/1.thaw" "$T/7.thaw"
packed "$T/none"

lz4=()
if command -v lz4 >/dev/null; then
	lz4=("--codec lz4 --chunk 64K" "--codec lz4 -z 9 --chunk 4M")
	packed "$T/tree" --codec lz4
fi

"$gen" mem "$T/mem/mem" --kind=stripes --size="$size" --sparse
"$gen" dmtcp "$T/dmtcp/a.dmtcp" --size="$size" --areas=9 --tiny=200 --misaligned --zero=mib
"$gen" dmtcp "$T/dmtcp/b.dmtcp" --size="$size" --version=3.2 --elide --zero-every=3
"$gen" dmtcp "$T/dmtcp/c.dmtcp" --size=3M --gzip
"$gen" criu "$T/criu" --size="$size" --parents=2 --shmem --procs=2 --lazy
"$gen" core "$T/core/core" --size="$size" --tiny=50
"$gen" core "$T/core/core32" --size=2M --elf32
"$gen" mem "$T/floats/f" --kind=floats --size=4M
"$gen" mem "$T/floats/b" --kind=bf16 --size=4M
"$gen" mem "$T/floats/d" --kind=doubles --size=4M
python3 -c 'import struct,sys; sys.stdout.buffer.write(b"".join(struct.pack("<Q", 0x7f1234560000 + (i * 2654435761 & 0x3fffff) * 16) for i in range(300000)))' >"$T/floats/pointers"
options=("" "-z 3 --chunk 4M" "${lz4[@]:0:1}")
[ "$(long_or 1 0)" = 0 ] || options=("" "--chunk 64K" "-z 3 --chunk 4M" "${lz4[@]}")
for what in mem dmtcp criu core floats; do
	for opt in "${options[@]}"; do
		# shellcheck disable=SC2086
		packed "$T/$what" $opt
	done
done

# --gunzip stores what is in the gzip image
cp -a "$T/dmtcp" "$T/plain"
gunzip <"$T/dmtcp/c.dmtcp" >"$T/plain/c.dmtcp"
touch -r "$T/dmtcp/c.dmtcp" "$T/plain/c.dmtcp"
must "$thawfs" pack -q --no-fsync --gunzip -o "$T/x.thaw" "$T/dmtcp"
same "$T/x.thaw" "$T/plain"

# the floats are what the shuffle is for; the oracle undoes it another way than the reader
must "$thawfs" pack -q --no-fsync -o "$T/x.thaw" "$T/floats"
oracle sections "$T/x.thaw" | jq -e '[.chunks[].shuffle] | unique | contains([2, 4, 8])' >"$T/out" || fail "no shuffled chunks"

# a member that is not there, in either reader
oracle cat "$T/x.thaw" nothing >"$T/out" 2>&1
[ $? = 1 ] || fail "the oracle reads what is not there"

# images on bases, two levels, and with the bases in another directory
must "$thawfs" pack -q --no-fsync -o "$T/bases/one.thaw" "$T/dmtcp"
cp -a "$T/dmtcp" "$T/dmtcp2"
"$gen" dmtcp "$T/dmtcp2/a.dmtcp" --size="$size" --areas=9 --tiny=200 --misaligned --zero=mib --seed=7
must "$thawfs" pack -q --no-fsync --base "$T/bases/one.thaw" -o "$T/bases/two.thaw" "$T/dmtcp2"
same "$T/bases/two.thaw" "$T/dmtcp2"
cp -a "$T/dmtcp2" "$T/dmtcp3"
echo more >"$T/dmtcp3/more"
must "$thawfs" pack -q --no-fsync --base "$T/bases/two.thaw" -o "$T/three.thaw" "$T/dmtcp3"
same "$T/three.thaw" "$T/dmtcp3"
oracle sections "$T/three.thaw" | jq -e '[.chunks[].base] | max > 0' >"$T/out" || fail "the base is not used"
oracle verify "$T/three.thaw" >"$T/out" 2>&1
[ $? = 1 ] || fail "the oracle needs no base"
must "$thawfs" pack -q --no-fsync --flatten --base-path "$T/bases" -o "$T/flat.thaw" "$T/three.thaw"
rm -rf "$T/bases" && mkdir "$T/bases"
same "$T/flat.thaw" "$T/dmtcp3"

# a CRIU series: each directory's image on the one before; the views lead through the bases
"$gen" criu "$T/series" --size=2M --parents=2
prev=()
for i in 0 1 2; do
	[ -d "$T/series/$i" ] || fail "no $T/series/$i"
	must "$thawfs" pack -q --no-fsync "${prev[@]}" -o "$T/s$i.thaw" "$T/series/$i"
	must oracle verify "$T/s$i.thaw"
	prev=(--base "$T/s$i.thaw")
done

# damage is seen, wherever it is: one byte in each part of the file
must "$thawfs" pack -q --no-fsync -o "$T/x.thaw" "$T/core"
where=$(oracle sections "$T/x.thaw" | jq '0, 100, 4090, .chunks[0].off + 9, .data_end - 1, (.sections[] | .off, .off + .len, .hashes), .size - 4096, .size - 4000, .size - 1')
for off in $where; do
	cp "$T/x.thaw" "$T/bad.thaw"
	printf '\125' | dd of="$T/bad.thaw" bs=1 seek="$off" conv=notrunc status=none
	cmp -s "$T/x.thaw" "$T/bad.thaw" && printf '\252' | dd of="$T/bad.thaw" bs=1 seek="$off" conv=notrunc status=none
	oracle verify "$T/bad.thaw" >"$T/out" 2>&1
	rc=$?
	[ $rc = 3 ] || { [ "$off" = 0 ] && [ $rc = 1 ]; } || fail "the oracle does not see the damage at $off: $(cat "$T/out")"
	"$thawfs" verify -q "$T/bad.thaw" >"$T/out" 2>&1
	rc=$?
	[ $rc = 3 ] || { [ "$off" = 0 ] && [ $rc = 1 ]; } || fail "verify does not see the damage at $off (exit $rc): $(cat "$T/out")"
done
echo "damage at $(echo "$where" | wc -w) places seen"
