#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Generated images of every kind: byte-exact through a pack, understood, and their zero MiBs holes. Cut and contradictory
# ones: byte-exact too, without views, and one line says why.
. "$(dirname "$0")/lib.sh"
requires jq
gen=$bin/tool_genimage

# packed NAME: $T/NAME becomes $T/NAME.thaw, comes back as it was, and its maps are in $T/maps.json
packed() {
	"$thawfs" pack -q -o "$T/$1.thaw" "$T/$1" 2>"$T/said" || fail "pack: $(cat "$T/said")"
	must "$thawfs" verify -q "$T/$1.thaw"
	rm -rf "$T/out"
	must "$thawfs" unpack -q "$T/$1.thaw" "$T/out"
	if [ -d "$T/$1" ]; then
		must diff -r --no-dereference "$T/$1" "$T/out"
	else
		must cmp "$T/$1" "$T/out/$1"
	fi
	"$thawfs" maps --json "$T/$1.thaw" >"$T/maps.json" || fail "maps"
}
# made NAME WHAT OPTION...: a generated image, packed, with nothing to remark
made() {
	local name=$1 what=$2
	shift 2
	rm -rf "${T:?}/$name"
	must "$gen" "$what" "$T/$name" "$@"
	packed "$name"
	[ ! -s "$T/said" ] || fail "$name: $(cat "$T/said")"
}
# is FILTER VALUE: what jq says about the maps
is() {
	local got
	got=$(jq -c "$1" "$T/maps.json")
	[ "$got" = "$2" ] || fail "$1 is $got, not $2"
}
holes() { "$thawfs" info --json "$1" | jq .hole_bytes; }

# DMTCP, each version: the same regions, and the same memory by two ways
for version in 4.0 3.2 3.0 2.6; do
	made a.dmtcp dmtcp --version=$version --size=8M --tiny=50
	is '[.spaces[].kind]' '["dmtcp"]'
	is '.spaces[0].regions | length' 57
	is '.spaces[0].regions[0] | [.range,.perms,.pgoff,.name]' '["555555554000-555555564000","r-xp",0,"/usr/bin/prog"]'
	is '.spaces[0].regions[-1] | [.range,.perms,.name]' '["7ffffffde000-7ffffffff000","rw-p","[stack]"]'
	is '[.spaces[0].regions[].absent_bytes] | add' 0
done
made a.dmtcp dmtcp --pid=77 --size=1M
is '.spaces[0].pid' 77

# zero MiBs by address are holes, whatever their offset in the file, written out or as headers; a misaligned payload too
for options in "" --misaligned --elide "--version=2.6" "--version=2.6 --elide" "--tiny=2100 --misaligned"; do
	# shellcheck disable=SC2086
	made a.dmtcp dmtcp --size=32M --zero=mib $options
	is '[.spaces[0].regions[].zero_bytes] | add >= 8 * 1048576' true
	[ "$(holes "$T/a.dmtcp.thaw")" -ge $((8 << 20)) ] || [[ $options = *--elide* ]] || fail "$options: $(holes "$T/a.dmtcp.thaw") bytes of holes"
done

# very many areas, 2 TiB reserved
areas=$(long_or 100000 20000)
made a.dmtcp dmtcp --areas="$areas" --size=$((areas * 4))K --reserve=2T
is '.spaces[0].regions | length' $((areas + 4))
is '[.spaces[0].regions[] | select(.len == 2199023255552) | .zero_bytes]' '[2199023255552]'

# ELF cores: 64 and 32 bit, more than 65535 segments, offsets that are not aligned
for options in "" --elf32 "--misaligned --tiny=100"; do
	# shellcheck disable=SC2086
	made a.core core --size=8M --zero=mib $options
	is '[.spaces[].kind]' '["core"]'
	is '.spaces[0].regions[0] | [.perms,.name,.absent_bytes]' '["r-xp","/usr/bin/prog",61440]'
	is '[.spaces[0].regions[].zero_bytes] | add >= 2 * 1048576' true
done
is '.spaces[0].regions[1] | [.range,.pgoff]' '["00610000-00612000",65536]'
made a.core core --xnum --size=1M
is '.spaces[0].regions | length' 66005

# CRIU: zeros that no MiB of the file shows, since the file is shifted by 12 KiB
made dump criu --size=32M --zero=mib --shift=12288
is '[.spaces[].name]' '["1234"]'
is '.spaces[0].regions[] | select(.range == "7f0000000000-7f0002100000") | .zero_bytes >= 9 * 1048576' true
is '.spaces[0].regions[0] | [.name,.absent_bytes]' '["/usr/bin/prog",65536]'
[ "$(holes "$T/dump.thaw")" -ge $((8 << 20)) ] || fail "zeros of a CRIU dump are stored"
made dump criu --size=4M --old-fields --shmem --procs=3
is '[.spaces[] | [.name, .kind]]' '[["1234","criu"],["1235","criu"],["1236","criu"],["shmem-77","criu-shmem"]]'
# 7 MiB of the object from 1 MiB on, of which 1 MiB is in no page
is '.spaces[0].regions[] | select(.flags == 33) | [.len, .absent_bytes, .zero_bytes >= 1048576]' '[7340032,0,true]'
made dump criu --size=4M --no-mm --entry-pages=7
is '.spaces[0].regions | length' 3

# parents, three deep: found in the tree, or the pages that only they have are absent
made dump criu --size=4M --parents=3
is '[.spaces[].name]' '["0/1234","1/1234","2/1234","3/1234"]'
is '[.spaces[3].regions[] | select(.name == null or .name == "") | .absent_bytes] | add' 0
cp -r "$T/dump/3" "$T/alone"
"$thawfs" pack -q -o "$T/alone.thaw" "$T/alone" 2>"$T/said" || fail "pack without the parent"
packed alone
is '[.spaces[0].regions[] | select(.name == null or .name == "") | .absent_bytes] | add > 1048576' true

# kept, and said to be: pages of a kind that nobody here can read, a GPU's files
rm -rf "$T/dump"
must "$gen" criu "$T/dump" --size=2M --compressed --amdgpu
packed dump
grep -q "pagemap-1234.img: no memory view.*compressed pages are kept as they are" "$T/said" || fail "said: $(cat "$T/said")"
is '.spaces' '[]'

# gzip: kept with a word on what it costs, or taken apart
must "$gen" dmtcp "$T/g.dmtcp" --size=8M --gzip
packed g.dmtcp
grep -q "gzip" "$T/said" || fail "nothing was said about gzip: $(cat "$T/said")"
is '.spaces' '[]'
must "$thawfs" pack -q --gunzip -o "$T/g.thaw" "$T/g.dmtcp"
rm -rf "$T/out"
must "$thawfs" unpack -q "$T/g.thaw" "$T/out"
gzip -dc <"$T/g.dmtcp" | cmp - "$T/out/g.dmtcp" || fail "--gunzip changed bytes"
[ "$("$thawfs" maps --json "$T/g.thaw" | jq -r '.spaces[0].kind')" = dmtcp ] || fail "--gunzip: no view"
# in two parts it is still gzip; with anything else behind it, or cut, it stays as it is
gzip -dc <"$T/g.dmtcp" >"$T/plain"
{ head -c 5000000 "$T/plain" | gzip -1 && tail -c +5000001 "$T/plain" | gzip -1; } >"$T/h.dmtcp"
must "$thawfs" pack -q --gunzip -o "$T/g.thaw" "$T/h.dmtcp"
rm -rf "$T/out"
must "$thawfs" unpack -q "$T/g.thaw" "$T/out"
must cmp "$T/plain" "$T/out/h.dmtcp"
not_whole() { # TEXT
	"$thawfs" pack -q --gunzip -o "$T/g.thaw" "$T/h.dmtcp" 2>"$T/said" || fail "pack: $(cat "$T/said")"
	grep -q "gzip inside, but $1: kept as it is" "$T/said" || fail "said: $(cat "$T/said")"
	[ "$(wc -l <"$T/said")" = 1 ] || fail "said: $(cat "$T/said")"
	rm -rf "$T/out"
	must "$thawfs" unpack -q "$T/g.thaw" "$T/out"
	must cmp "$T/h.dmtcp" "$T/out/h.dmtcp"
}
for junk in 'what follows' '\037' '\037\213 no header' '\000\000\000\000'; do
	# shellcheck disable=SC2059
	{ cat "$T/g.dmtcp" && printf "$junk"; } >"$T/h.dmtcp"
	not_whole "\(something else behind it\|damaged or cut short\)"
done
{ cat "$T/g.dmtcp" && printf 'what follows'; } >"$T/h.dmtcp"
not_whole "something else behind it"
head -c -5 "$T/g.dmtcp" >"$T/h.dmtcp"
not_whole "damaged or cut short"
rm "$T/plain" "$T/h.dmtcp"

# cut anywhere, and contradictory: as plain bytes, with one line
without_view() { # NAME TEXT
	packed "$1"
	is '.spaces' '[]'
	[ "$(wc -l <"$T/said")" = 1 ] || fail "$1: not one line: $(cat "$T/said")"
	grep -q "$2" "$T/said" || fail "$1: did not say '$2': $(cat "$T/said")"
}
must "$gen" dmtcp "$T/whole" --size=1M
size=$(stat -c %s "$T/whole")
for at in 5000 8200 12288 100000 $((size - 4096)) $((size - 1)); do
	head -c "$at" "$T/whole" >"$T/cut.dmtcp"
	without_view cut.dmtcp "cut short"
done
cp "$T/whole" "$T/odd.dmtcp"
printf '\377' | dd of="$T/odd.dmtcp" bs=1 seek=$((8192 + 9)) conv=notrunc status=none
without_view odd.dmtcp "offset 8192: an area whose"
sed 's/IMAGE_v4.0/IMAGE_v9.0/' "$T/whole" >"$T/new.dmtcp"
without_view new.dmtcp "not known"
must "$gen" core "$T/whole.core" --size=1M
head -c 200 "$T/whole.core" >"$T/cut.core"
without_view cut.core "ELF core, offset 64: program headers reach past the end"
# headers without end, in a hole: 4 KiB on the disk that would take hours
{
	printf '\177ELF\2\1\1\0\0\0\0\0\0\0\0\0\4\0\76\0\1\0\0\0\0\0\0\0\0\0\0\0'
	printf '\200\0\0\0\0\0\0\0\100\0\0\0\0\0\0\0\0\0\0\0\100\0\70\0\377\377\100\0\1\0\0\0'
	head -c 44 /dev/zero && printf '\377\377\377\377' && head -c 80 /dev/zero
} >"$T/endless.core"
if truncate -s 240518168784 "$T/endless.core" 2>"$T/said"; then
	timeout 60 "$thawfs" pack -q -o "$T/endless.thaw" "$T/endless.core" 2>"$T/said" || fail "pack: exit $?: $(cat "$T/said")"
	grep -q "without memory views: ELF core, offset 64: more than 4194304 program headers" "$T/said" || fail "said: $(cat "$T/said")"
	"$thawfs" info --json "$T/endless.thaw" | jq -e '.logical_bytes == 240518168784' >/dev/null || fail "a large core is not kept"
	rm "$T/endless.core"
fi
# a core that a limit cut short is still a core: what is missing is absent
head -c 600000 "$T/whole.core" >"$T/short.core"
packed short.core
grep -q "cut short: .* bytes of memory are missing" "$T/said" || fail "said: $(cat "$T/said")"
is '[.spaces[0].regions[].absent_bytes] | add > 400000' true
must "$gen" criu "$T/odd" --size=1M
truncate -s -4096 "$T/odd/pages-1.img"
packed odd
grep -q "pagemap-1234.img: no memory view: .*'pages-1.img' ends at offset" "$T/said" || fail "said: $(cat "$T/said")"
# messages without end in a hole, which are empty, or all zeros, or just too many
for size in 500M 1T; do
	cp "$T/odd/files.img" "$T/files.img"
	truncate -s $size "$T/odd/files.img" || continue
	timeout 60 "$thawfs" pack -q -o "$T/odd.thaw" "$T/odd" 2>"$T/said" || fail "pack: exit $?: $(cat "$T/said")"
	grep -q "files.img, offset [0-9]*: \(an empty message\|larger than 1 GiB\)" "$T/said" || fail "said: $(cat "$T/said")"
	mv "$T/files.img" "$T/odd/files.img"
done
rm "$T/odd/pages-1.img"
packed odd
grep -q "its 'pages-1.img' is not there" "$T/said" || fail "said: $(cat "$T/said")"
exit 0
