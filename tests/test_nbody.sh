#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A simulation that is killed at random, with the snap that it may be in, and resumed from its series: the result is that of
# a run that was left alone, to the bit. Its state through libthaw, from the store and from a mount of it.
. "$(dirname "$0")/lib.sh"
requires jq setsid
cd "$T" || exit 1
nbody=$(realpath "$src/../$BUILD/examples/nbody" 2>/dev/null || realpath "$BUILD/examples/nbody")
[ -x "$nbody" ] || fail "no nbody"
export THAWFS=$thawfs
bodies=400

mkdir store
for i in $(seq "$(long_or 50 10)"); do
	rm -rf work && mkdir work
	setsid "$nbody" store work 1000000 $bodies 2>>log >&2 &
	run=$!
	sleep "0.$((RANDOM % 10))$((RANDOM % 10))"
	kill -9 -- -$run 2>/dev/null
	wait $run 2>/dev/null
	# the process may have gone just before its group was there
	kill -9 -- -$run 2>/dev/null
done
resumed=$(grep -c "from step" log)
newest=$("$thawfs" series --json store | jq -r '.series[0].latest // empty')
steps=6
if [ -n "$newest" ]; then
	must "$thawfs" verify -q "store/$newest"
	rm -rf now && must "$thawfs" unpack -q "store/$newest" now
	steps=$(($(od -An -tu8 now/step) + 4))
fi
rm -rf work && mkdir work
must "$nbody" store work $steps $bodies >out 2>>log
[ "$(cat out)" = "step $steps" ] || fail "the last run: $(cat out)"
must "$thawfs" unpack -q store/nbody-latest end
echo "killed $i times, resumed $resumed times, $steps steps"

mkdir straight alone
must "$nbody" straight alone $steps $bodies >out 2>>log
must diff -r alone/state end

# libthaw: the same bytes, also of an older image; errors
for f in pos vel step; do
	must "$bin/tool_libthaw" store nbody 0 $f >out
	must cmp out "alone/state/$f"
done
must_fail 1 "$bin/tool_libthaw" store nbody 999999 pos
says "No such file"
must_fail 1 "$bin/tool_libthaw" store nobody 0 pos
must_fail 1 "$bin/tool_libthaw" store nbody 0 none
must_fail 1 "$bin/tool_libthaw" store nbody 0 ""
says "Is a directory"
mkdir big bigstore
must "$bin/tool_genimage" mem big/slab --size=20M --kind=floats --zero=stripes >/dev/null
truncate -s 33M big/slab
: >big/empty
head -c 5001 /dev/urandom >big/small
must "$thawfs" snap -q big bigstore
must "$thawfs" snap -q big bigstore
for f in slab empty small; do
	must "$bin/tool_libthaw" bigstore big 0 $f >out
	must cmp out big/$f
done
must "$bin/tool_libthaw" bigstore big 1 slab >out
must cmp out big/slab
cp -r bigstore bad
printf 'damage' | dd of=bad/big-000001.thaw bs=1 seek=500000 conv=notrunc status=none
must_fail 1 "$bin/tool_libthaw" bad big 1 slab
says "checksum"
if [ -w /dev/fuse ] && [ "$(id -u)" = 0 ]; then
	# shellcheck source=tests/lib_mount.sh
	. "$src/lib_mount.sh"
	mount_image bigstore "$T/mnt"
	[ "$(readlink mnt/big-latest) $(readlink mnt/latest)" = "big-000002 big-000002" ] || fail "links on the mount: $(ls -l mnt)"
	must diff -r big mnt/latest
	for f in slab empty small; do
		must "$bin/tool_libthaw" mnt big 0 $f >out
		must cmp out big/$f
	done
	must "$bin/tool_libthaw" mnt big 1 slab >out
	must cmp out big/slab
	must_fail 1 "$bin/tool_libthaw" mnt none 0 slab
	# the links follow, and end where they would be ambiguous
	echo more >big/more
	must "$thawfs" snap -q big bigstore
	wait_until 10 test -e mnt/big-latest/more || fail "the link does not follow: $(ls -l mnt)"
	must "$thawfs" snap -q --name other big bigstore
	wait_until 10 test -e mnt/other-latest/more || fail "no link for the second series: $(ls -l mnt)"
	[ ! -e mnt/latest ] || fail "latest, though there are two series"
	[ "$(find mnt -maxdepth 1 -type l | wc -l)" = 2 ] || fail "links: $(ls -l mnt)"
fi
exit 0
