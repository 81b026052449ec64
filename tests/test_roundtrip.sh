#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What is packed comes back again byte for byte, holes included, whatever its size and whatever the options.
. "$(dirname "$0")/lib.sh"
mkdir "$T/w" && cd "$T/w" || exit 1
chunk=262144

# round DIR [OPTION...]: pack DIR, verify, unpack, compare every file; no zero chunk may come back as data
round() {
	local dir=$1 unit=$chunk
	shift
	[[ $* =~ --chunk[\ =]([0-9]+[KM]) ]] && unit=$(numfmt --from=iec "${BASH_REMATCH[1]}")
	rm -rf back i.thaw
	must "$thawfs" pack -q --no-fsync "$@" -o i.thaw "$dir"
	must "$thawfs" verify -q i.thaw >/dev/null
	must "$thawfs" unpack -q --no-fsync i.thaw back
	"$bin/tool_sparse" "$dir" back "$unit" || fail "packed with: $*"
}
# number NAME: a field of the image's JSON
info() { "$thawfs" info --json i.thaw | jq -r ".$1"; }

# -- sizes --------------------------------------------------------------------------------------
mkdir sizes
head -c 9000000 /dev/urandom >noise
for n in 0 1 2 4095 4096 4097 16383 16384 16385 65535 65536 65537 131071 131072 131073 \
	$((chunk - 1)) $chunk $((chunk + 1)) $((2 * chunk - 1)) $((2 * chunk)) $((2 * chunk + 1)) \
	$((17 * chunk - 1)) $((17 * chunk)) $((17 * chunk + 1)) 8999999; do
	tail -c +$((n % 977 + 1)) noise | head -c "$n" >sizes/noise-"$n"
	head -c "$n" /dev/zero >sizes/zeros-"$n"
	yes "line $n" | head -c "$n" >sizes/text-"$n"
	truncate -s "$n" sizes/hole-"$n"
	# the last byte is the only one
	[ "$n" -eq 0 ] || { truncate -s $((n - 1)) sizes/last-"$n" && printf x >>sizes/last-"$n"; }
done
round sizes
round sizes -j 7 --chunk 64K
round sizes --raw
[ "$("$thawfs" ls --json i.thaw | jq '.members[] | select(.path == "zeros-8999999").hole_bytes')" = 8999999 ] ||
	fail "zeros are not a hole"
rm -rf sizes

# -- large and sparse ---------------------------------------------------------------------------
mkdir large
for base in $((2 << 30)) $((4 << 30)); do
	for n in $((base - 1)) $base $((base + 1)); do
		truncate -s "$n" large/"$n"
		printf begin | dd of=large/"$n" conv=notrunc status=none
		printf across-the-border | dd of=large/"$n" bs=1 seek=$((n - 17)) conv=notrunc status=none
		dd if=noise of=large/"$n" bs=4096 count=100 seek=$(((n >> 13) + 3)) conv=notrunc status=none
	done
done
if truncate -s 2T large/2T 2>/dev/null; then
	printf x | dd of=large/2T bs=1M seek=1234567 conv=notrunc status=none
	printf y | dd of=large/2T bs=1 seek=$(((2 << 40) - 1)) conv=notrunc status=none
	truncate -s 2T large/2T-empty
fi
round large
[ "$(stat -c %s i.thaw)" -lt $((16 << 20)) ] || fail "holes take $(stat -c %s i.thaw) bytes"
[ "$(du -k back | tail -n 1 | cut -f 1)" -le $(($(du -k large | tail -n 1 | cut -f 1) * 2 + 10000)) ] ||
	fail "unpacked: $(du -k back)"
rm -rf large back

# -- more than 4 GiB stored, without taking that much: bytes that are not zero but all the same
# are stored once, so a large logical size is reached by repeating different chunks
mkdir dup
head -c $((3 * chunk)) noise >three
for _ in 1 2 3 4 5 6 7 8; do cat three; done >dup/a
cp dup/a dup/b
{ cat three && head -c 1000 three; } >dup/c
round dup
[ "$(info chunk_bytes)" -le $((3 * chunk + 1000)) ] || fail "chunks stored twice: $(info chunk_bytes) bytes"
# also where the output cannot be read back
"$thawfs" pack -q -o - dup >stdout.thaw || fail "pack to standard output"
must cmp i.thaw stdout.thaw
rm -rf dup

# -- the same image whatever the number of threads, and from run to run -------------------------
mkdir mixed
must "$bin/tool_genimage" mem mixed/heap --size=5M --kind=heap
must "$bin/tool_genimage" mem mixed/mix --size=9M --kind=process
must "$bin/tool_genimage" mem mixed/floats --size=4M --kind=floats
must "$bin/tool_genimage" mem mixed/noise --size=2M --kind=random
must "$bin/tool_genimage" dmtcp mixed/ckpt.dmtcp --size=4M --areas=500 --misaligned
cat mixed/heap mixed/noise mixed/heap >mixed/twice
for i in $(seq 300); do head -c $((i * 37)) mixed/heap >mixed/small-"$i"; done
ln mixed/heap mixed/link
for options in "" "-z 5" "--fast=3" "--codec=lz4" "--raw" "--chunk=64K" "--no-filter"; do
	# shellcheck disable=SC2086 # options are words
	round mixed $options -j 1
	mv i.thaw first
	for j in 2 3 16; do
		# shellcheck disable=SC2086
		must "$thawfs" pack -q --no-fsync $options -j $j -o i.thaw mixed
		cmp first i.thaw || fail "-j $j makes another image (options: $options)"
	done
	# shellcheck disable=SC2086
	"$thawfs" pack -q $options -o - mixed | cmp - first || fail "a pipe gets another image (options: $options)"
done

# -- every chunk size, level and codec ----------------------------------------------------------
for c in 64K 128K 256K 512K 1M 2M 4M; do round mixed --chunk $c -j 3; done
mkdir little
cp mixed/small-1?? mixed/ckpt.dmtcp little
head -c 1500000 mixed/mix >little/mix
for z in $(long_or "$(echo -7 -6 -5 -4 -3 -2 -1 {1..19})" "-7 -3 -1 1 3 6 9 12 16 19"); do round little -z "$z"; done
for z in 1 3 9 12; do round little --codec lz4 -z "$z"; done
round little --fast
round little --fast=5 --verify

# -- numbers: lanes of bytes compress better apart ----------------------------------------------
for kind in floats bf16; do
	rm -rf numbers && mkdir numbers
	must "$bin/tool_genimage" mem numbers/w --size=16M --kind=$kind
	round numbers
	with=$(info file_size)
	[ "$(info n_chunks_shuffled)" -gt 0 ] || fail "no chunk of $kind is shuffled"
	round numbers --no-filter
	[ "$(info n_chunks_shuffled)" -eq 0 ] || fail "--no-filter shuffles"
	[ $((with * 100)) -lt $(($(info file_size) * 92)) ] || fail "$kind: $with bytes, without filter $(info file_size)"
done

# -- a base -------------------------------------------------------------------------------------
rm -rf next && cp -a mixed next && mkdir store moved
must "$thawfs" pack -q -o store/base.thaw mixed
tail -c 1000000 noise | dd of=next/heap bs=4096 seek=170 conv=notrunc status=none # 1 MB of 5 changes
must "$thawfs" pack -q --base store/base.thaw -o store/next.thaw next
must cmp <("$thawfs" info --json store/next.thaw | jq -r '.bases[0].id') <("$thawfs" info --json store/base.thaw | jq -r .id)
[ "$(stat -c %s store/next.thaw)" -lt 2800000 ] || fail "an increment of 1 MB takes $(stat -c %s store/next.thaw)"
rm -rf back && must "$thawfs" unpack -q store/next.thaw back
must diff -r next back
# the same input as the base: nothing but the small things again
must "$thawfs" pack -q --base store/base.thaw -o store/same.thaw mixed
[ "$("$thawfs" info --json store/same.thaw | jq .chunk_bytes)" -eq 0 ] || fail "unchanged data is stored again"
# a second step whose base has a base: what is in the first is found through the second
cp -a next third && printf changed >>third/small-7
must "$thawfs" pack -q --base store/next.thaw -o store/third.thaw third
rm -rf back && must "$thawfs" unpack -q store/third.thaw back
must diff -r third back
# moved, away, back, another one under its name
mv store/base.thaw moved/renamed.thaw
must_fail 1 "$thawfs" unpack -q store/next.thaw half
says "cannot read 'store/next.thaw': its base "
says "('base.thaw') is not there; name its directory with --base-path"
says "cannot unpack 'heap': offset 0: chunk "
[ ! -e half/heap ] || fail "a file was left half unpacked"
rm -rf back && must "$thawfs" unpack -q --base-path moved store/next.thaw back
must diff -r next back
rm -rf back && must "$thawfs" unpack -q --base-path moved store/third.thaw back
must diff -r third back
cp store/same.thaw store/base.thaw
rm -rf half
must_fail 1 "$thawfs" unpack -q store/next.thaw half # the name is the right one, but not the image
says "is not there; name its directory with --base-path"
# a base of another chunk size, or none at all
must_fail 1 "$thawfs" pack -q --chunk 64K --base moved/renamed.thaw -o x.thaw next
says "cannot use base 'moved/renamed.thaw': its chunk size is 262144, not 65536 (see --chunk)"
must_fail 1 "$thawfs" pack -q --base nowhere.thaw -o x.thaw next
says "cannot open 'nowhere.thaw': No such file or directory"
must_fail 3 "$thawfs" pack -q --base noise -o x.thaw next
[ ! -e x.thaw ] || fail "an image in spite of a bad base"

# an image never takes the place of one that it needs: its base, by any way there, a base of its base, what waits to
# be written over; another name of the base is free, and so is a link to it
rm -rf store moved && mkdir store store/links
head -c 600000 noise >one && { cat one && echo two; } >two && { cat two && head -c 300000 mixed/heap; } >three
must "$thawfs" pack -q -o store/1.thaw one
must "$thawfs" pack -q --base store/1.thaw -o store/2.thaw two
cp store/1.thaw store/.x.thaw.partial
cp store/1.thaw two.thaw
ln -s ../1.thaw store/links/1.thaw
ln -s store/links/1.thaw to-base
sha256sum store/* store/.x.thaw.partial two.thaw >sums 2>/dev/null
refused() { # BASE OPTION...
	local base=$1
	shift
	must_fail 1 "$thawfs" pack -q "$@"
	says "cannot use base '$base': the image would take its place"
	must sha256sum --quiet -c sums
	[ "$(readlink to-base)" = store/links/1.thaw ] || fail "a link was replaced"
}
for v in --no-filter --verify; do
	refused store/1.thaw $v --base store/1.thaw -o store/1.thaw two
	refused store/1.thaw $v --base store/1.thaw -o "$PWD/store/../store/1.thaw" two
done
refused to-base --base to-base -o store/1.thaw two
refused to-base --base to-base -o to-base two
refused store/1.thaw --base store/2.thaw -o store/1.thaw three
refused store/.x.thaw.partial --base store/.x.thaw.partial -o store/x.thaw two
refused two.thaw --base two.thaw two # the name that is taken without -o
ln store/1.thaw another.thaw
must "$thawfs" pack -q --base store/1.thaw -o another.thaw three
must "$thawfs" pack -q --base store/1.thaw -o to-base two
must sha256sum --quiet -c sums
must "$thawfs" verify -q store/2.thaw
must "$thawfs" verify -q --base-path store another.thaw
rm -rf store next third mixed one two three two.thaw another.thaw to-base sums

# -- places: names that look like ours, the image inside its source, our own output -------------
mkdir -p s/.thaw/mem s/sub
echo one >s/.thaw/mem/1
echo two >s/.thawfs
echo three >s/sub/x.thaw
ln -s .thaw s/link
round s
must diff -r s back
before=$("$thawfs" ls -R --json i.thaw | jq -c .)
(cd s && must "$thawfs" pack -q -o inside.thaw .) || exit 1
must "$thawfs" verify -q s/inside.thaw
"$thawfs" ls -R s/inside.thaw | grep -q inside && fail "the image holds itself"
# again: what it replaces is no part of it either
(cd s && must "$thawfs" pack -q -o inside.thaw .) || exit 1
"$thawfs" ls -R s/inside.thaw | grep -q inside && fail "the image holds the one it replaced"
rm -rf back && must "$thawfs" unpack -q s/inside.thaw back
must diff -r --exclude inside.thaw s back
rm s/inside.thaw
[ "$(find s -name '*.partial' | wc -l)" -eq 0 ] || fail "litter"
[ -n "$before" ] || fail "nothing listed"
# only that name is left out: another one of the same file is a member
mkdir names names/sub
echo data >names/sub/keep.thaw
ln names/sub/keep.thaw out.thaw
ln names/sub/keep.thaw names/in.thaw
must "$thawfs" pack -q -o out.thaw names
[ "$("$thawfs" ls -R out.thaw | tr '\n' ' ')" = "in.thaw sub sub/keep.thaw " ] || fail "members: $("$thawfs" ls -R out.thaw)"
must "$thawfs" pack -q -o names/in.thaw names
[ "$("$thawfs" ls -R names/in.thaw | tr '\n' ' ')" = "sub sub/keep.thaw " ] || fail "members: $("$thawfs" ls -R names/in.thaw)"
[ "$(cat names/sub/keep.thaw)" = data ] || fail "another name of what was replaced"
# a directory of images is a source like any other
must "$thawfs" pack -q -o s/a.thaw back
round s
must cmp s/a.thaw back/a.thaw
# one file, by itself, through a link, and its own name
must "$thawfs" pack -q -o one.thaw s/.thawfs
rm -rf back && must "$thawfs" unpack -q one.thaw back
must diff -r back/.thawfs s/.thawfs
[ "$(find back -mindepth 1 | wc -l)" -eq 1 ] || fail "more than the file"
if setfattr -n user.key -v value s/.thawfs 2>/dev/null; then
	ln -s s/.thawfs through
	must "$thawfs" pack -q -o one.thaw through
	rm -rf back && must "$thawfs" unpack -q one.thaw back
	must diff back/through s/.thawfs
	[ "$(getfattr --only-values -n user.key back/through)" = value ] || fail "the attribute of a file named by a link"
fi
cp s/.thawfs self
must_fail 1 "$thawfs" pack -q -o self self
says "cannot pack 'self': the image would take its place"
must diff self s/.thawfs
cp self .other.partial
must_fail 1 "$thawfs" pack -q -o other .other.partial
says "cannot pack '.other.partial': the image would take its place"
must diff self .other.partial
ln self second
must "$thawfs" pack -q -o second self
must diff self s/.thawfs
rm -rf back && must "$thawfs" unpack -q second back
must diff back/self self
exit 0
