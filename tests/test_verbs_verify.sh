#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# thawfs verify: every damaged chunk is listed, with all that uses it, and nothing else.
. "$(dirname "$0")/lib.sh"
requires jq python3

cd "$T" || exit 1
mkdir tree
must "$bin/tool_genimage" dmtcp tree/ckpt.dmtcp --size=6M --areas=4 --tiny=30 --pid=42 --misaligned >/dev/null
must "$bin/tool_genimage" mem tree/data --size=3M --kind=heap >/dev/null
cp tree/data tree/copy
for i in $(seq 20); do echo "small $i" >"tree/small$i"; done
ln tree/small1 tree/second
must "$thawfs" pack -q -o i.thaw tree
equal() { [ "$1" = "$2" ] || fail "$3: $1, not $2"; }

n=$("$thawfs" info --json i.thaw | jq .n_chunks)
files=$("$thawfs" info --json i.thaw | jq .n_files)
bytes=$("$thawfs" info --json i.thaw | jq .chunk_bytes)
equal "$("$thawfs" verify -b i.thaw)" "i.thaw: good: $files files, $n chunks, $bytes" "a good image"
equal "$("$thawfs" verify --index-only i.thaw)" "i.thaw: the index is good; $n chunks not read" "the index only"
equal "$("$thawfs" verify -q i.thaw)" "" "-q"

# tables of the image, by FORMAT.md: "TYPE OFFSET LENGTH" of each section; "NUMBER OFFSET LENGTH" of each chunk
cat >tables.py <<'PY'
import struct, sys
d = open(sys.argv[2], "rb").read()
foot = d[-4096:]
for i in range(struct.unpack_from("<I", foot, 40)[0]):
    type, _, off, length = struct.unpack_from("<IIQQ", foot, 64 + 64 * i)
    if sys.argv[1] == "sections":
        print(type, off, length)
    elif type == 2:
        for k in range(length // 32):
            stored, _, stored_len = struct.unpack_from("<QQI", d, off + 32 * k)
            print(k, stored, stored_len)
PY
must python3 tables.py chunks i.thaw >table
equal "$(wc -l <table)" "$n" "chunks in the table"

# damage in every third chunk: each is listed with its offset, no other
cp i.thaw bad.thaw
awk '$1 % 3 == 1' table | while read -r _ off len; do
	printf '\252' | dd of=bad.thaw bs=1 seek=$((off + len / 2)) conv=notrunc status=none
	cmp -s <(tail -c +$((off + len / 2 + 1)) i.thaw | head -c 1) <(printf '\252') &&
		printf '\253' | dd of=bad.thaw bs=1 seek=$((off + len / 2)) conv=notrunc status=none
done
must_fail 3 "$thawfs" verify bad.thaw
cp out text
damaged=$(awk '$1 % 3 == 1' table | wc -l)
grep -E '^bad.thaw: chunk [0-9]+ at offset [0-9]+: ' text | awk '{print $3, $6}' | tr -d : >got
must cmp <(awk '$1 % 3 == 1 {print $1, $2}' table) got
says "thawfs: 'bad.thaw' is damaged: $damaged of $n chunks"
says "bad.thaw: still good: $((n - damaged)) of $n chunks "
# the same whatever the number of threads, but for the times
for j in 1 3 16; do
	"$thawfs" verify -j$j bad.thaw >out 2>/dev/null
	must cmp out <(grep -v '^thawfs:' text)
done
must_fail 3 "$thawfs" verify -q bad.thaw
equal "$(cat "$T/out")" "thawfs: 'bad.thaw' is damaged: $damaged of $n chunks" "-q"

# the places: what the good image says about where these chunks are is what cannot be read of the bad one
"$thawfs" verify --json bad.thaw >json 2>/dev/null
jq -r '.images[0].places[] | select(.member) | "\(.member) \(.offset) \(.len)"' json >places
[ -s places ] || fail "no places"
must "$thawfs" unpack -q i.thaw good
must_fail 3 "$thawfs" unpack -q bad.thaw left
(cd good && find . -type f -printf '%P\n') | sort | while read -r f; do
	if [ -e "left/$f" ]; then
		must cmp "good/$f" "left/$f"
	# names of one file share what happens to it
	elif ! grep -q "^$f " places; then
		[ "$f" = second ] || [ "$f" = small1 ] || fail "$f was left out, but verify does not name it"
	fi
done || exit 1
cut -d ' ' -f 1 places | sort -u | while read -r f; do
	[ ! -e "left/$f" ] || fail "verify names $f, but it was unpacked"
done || exit 1
equal "$(jq '.images[0].n_damaged_files' json)" "$(cut -d ' ' -f 1 places | sort -u | wc -l)" "damaged files"
grep -q '^copy ' places || fail "only one of two files with the same chunk is named"
grep -q '^data ' places || fail "only one of two files with the same chunk is named"
# regions: inside those that maps has, and the chunk is one of the damaged
jq -r '.images[0].places[] | select(.space) | "\(.chunk) \(.region)"' json | sort -u >regions
[ -s regions ] || fail "no regions"
"$thawfs" maps --json i.thaw | jq -r '.spaces[].regions[].range' | sort >ranges
cut -d ' ' -f 2 regions | sort -u | comm -23 - ranges | grep . && fail "a region that is not there"
equal "$(jq '.images[0].n_damaged_regions' json)" "$(cut -d ' ' -f 2 regions | sort -u | wc -l)" "damaged regions"

# bytes outside chunks: header, padding, index, footer; each is damage, with its place
printf 'x' >x
size=$(stat -c %s i.thaw)
index=$("$thawfs" info --json i.thaw | jq '.file_size - .index_bytes - 4096')
check_byte() { # OFFSET TEXT
	cp i.thaw bad.thaw
	dd if=x of=bad.thaw bs=1 seek="$1" conv=notrunc status=none
	must_fail 3 "$thawfs" verify bad.thaw
	says "$2"
}
check_byte 100 "cannot read 'bad.thaw': at offset 0: header checksum mismatch"
check_byte $((size - 100)) "cannot read 'bad.thaw': at offset $((size - 4096)): footer checksum mismatch"
check_byte $((index + 200)) "padding is not zero"
check_byte $((index + 5)) "cannot read 'bad.thaw': at offset $index: index checksum mismatch"
regions=$(python3 tables.py sections i.thaw | awk '$1 == 7 {print $2}')
check_byte $((regions + 5)) "bad.thaw: index at offset $regions: index checksum mismatch"
says "bad.thaw: still good: $n of $n chunks"
says "; what the damaged index hides is not known"
must_fail 3 "$thawfs" verify --index-only bad.thaw
says "in the index"

# several images: all are looked at, damage goes before failure
cp i.thaw bad.thaw
printf 'damage' | dd of=bad.thaw bs=1 seek=5000 conv=notrunc status=none
must_fail 3 "$thawfs" verify bad.thaw none.thaw i.thaw
says "i.thaw: good: "
says "cannot open 'none.thaw': No such file or directory"
must_fail 1 "$thawfs" verify none.thaw i.thaw
says "i.thaw: good: "

# a base: missing (not damage), damaged, found elsewhere
mkdir away
cp -a tree tree2
echo new >tree2/new
must "$thawfs" pack -q --base i.thaw -o away/j.thaw tree2
must_fail 1 "$thawfs" verify away/j.thaw
says "away/j.thaw: base 'i.thaw' ($("$thawfs" info --json i.thaw | jq -r .id)) is missing: "
says "thawfs: cannot verify all of 'away/j.thaw': a base is missing"
must "$thawfs" verify -q --base-path . away/j.thaw
mkdir store
cp bad.thaw store/i.thaw
must_fail 3 "$thawfs" verify --base-path store away/j.thaw
says "chunk 0 in base 'i.thaw' at offset 4096: "

# names are one line each
mkdir odd
head -c 100000 /dev/urandom >odd/$'new\nline'
must "$thawfs" pack -q -o $'o\ndd.thaw' odd
printf 'damage' | dd of=$'o\ndd.thaw' bs=1 seek=5000 conv=notrunc status=none
must_fail 3 "$thawfs" verify $'o\ndd.thaw'
says "o\\012dd.thaw: in 'new\\012line': 100000 bytes at offset 0 (chunk 0)"
says "thawfs: 'o\\x0add.thaw' is damaged: 1 of 1 chunks"
exit 0
