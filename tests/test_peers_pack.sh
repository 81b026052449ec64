#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Faults that users of other checkpoint tools, image formats and file systems met, as inputs of pack and unpack. The
# numbers are those of the list of public reports that the tests are planned by.
[ -d /dev/shm ] && [ -w /dev/shm ] && export TMPDIR=/dev/shm
. "$(dirname "$0")/lib.sh"
mkdir "$T/w" && cd "$T/w" || exit 1
chunk=262144
gen=$bin/tool_genimage
if [ -z "${THAW_SAN:-}" ]; then shims=1; else shims=; fi # they do not go together with sanitizers

case_is() { echo "$SECONDS s: case $1: $2"; }
pack() { must "$thawfs" pack -q --no-fsync "$@"; }
unpack() { rm -rf back && must "$thawfs" unpack -q --no-fsync "$@"; }
# round DIR [OPTION...]: packed, verified, unpacked, compared; the image stays as i.thaw
round() {
	local dir=$1
	shift
	pack "$@" -o i.thaw "$dir"
	must "$thawfs" verify -q i.thaw
	unpack i.thaw back
	must "$bin/tool_sparse" "$dir" back $chunk
	must diff <(cd "$dir" && find . -printf '%P %y %s\n' | grep -v ' d ' | sort) \
		<(cd back && find . -printf '%P %y %s\n' | grep -v ' d ' | sort)
}
# under SHIM VAR=VALUE... COMMAND...
# shellcheck disable=SC2317 # must calls it
under() {
	local shim=$bin/$1.so
	shift
	env "LD_PRELOAD=$shim" "$@"
}

case_is 5 "a hole at the end was cut off, and block counts did not show holes"
mkdir s && truncate -s 3M s/all && truncate -s 5M s/first s/last
printf x | dd of=s/first bs=1 seek=$((5 * 1048576 - 1)) conv=notrunc status=none
printf x | dd of=s/last bs=1 conv=notrunc status=none
round s
[ "$(stat -c %b back/all)" -eq 0 ] || fail "a file of nothing but hole takes blocks"
for f in first last; do
	[ "$(stat -c %s back/$f)" -eq $((5 << 20)) ] || fail "$f has another size"
	n=$(stat -c %b back/$f)
	((n > 0 && n <= 512)) || fail "$f takes $n blocks"
done
rm -rf s

case_is "7, 36" "file systems whose map of holes is coarse, missing, or not up to date"
mkdir s && must "$gen" mem s/stripes --size=9M --zero=mib --zero-every=2 --sparse
truncate -s 7000000 s/hole && printf 'end' >>s/hole
printf x | dd of=s/hole bs=1 seek=3000001 conv=notrunc status=none
must "$gen" dmtcp s/c.dmtcp --size=4M --zero=mib --sparse --misaligned
cp --sparse=never -a s full
round s
mv i.thaw first.thaw
if [ -n "$shims" ]; then
	for how in none coarse failing empty; do
		must under shim_holes HOLES=$how "$thawfs" pack -q -o i.thaw s
		cmp i.thaw first.thaw || fail "another image when holes are: $how"
	done
fi
for f in s/*; do touch -r "$f" "full/${f#s/}"; done
touch -r s full
pack -o i.thaw full
cmp i.thaw first.thaw || fail "another image of a copy without holes"
rm -rf full s

case_is 8 "the packer died of SIGBUS when the source could not be read"
mkdir s && head -c 3000000 /dev/urandom >s/bad && echo good >s/good
if [ -n "$shims" ]; then
	for n in 1 2 5 9; do
		must_fail 1 under shim_fault FAULT_CALLS=pread FAULT_PATH=s/bad FAULT_AT=$n FAULT_ERRNO=5 \
			"$thawfs" pack -q -o none.thaw s
		says "cannot read 'bad'"
		says "Input/output error"
		[ -z "$(find . -name '*none.thaw*')" ] || fail "an image of what could not be read"
	done
fi
rm -rf s

case_is 9 "inode numbers are equal on two devices: not hard links"
mkdir -p s/a s/b
if [ "$(id -u)" = 0 ] && mount -t tmpfs none s/a 2>/dev/null && on_exit umount "$PWD/s/a" &&
	mount -t tmpfs none s/b && on_exit umount "$PWD/s/b"; then
	for d in a b; do
		echo "one of $d" >s/$d/1
		ln s/$d/1 s/$d/2
		echo "other of $d" >s/$d/3
	done
	[ "$(stat -c %i s/a/1)" = "$(stat -c %i s/b/1)" ] || echo "(inode numbers differ here)"
	round s
	must diff -r --no-dereference s back
	[[ back/a/1 -ef back/a/2 && back/b/1 -ef back/b/2 ]] || fail "links are lost"
	! [ back/a/1 -ef back/b/1 ] || fail "files of two devices became one"
	umount s/a s/b
fi
rm -rf s

case_is 10 "characters in paths that have a meaning somewhere else"
# shellcheck disable=SC2016 # nothing is to be expanded
for name in 'a,b' 'a b' 'a:b' 'a%sb' $'a\nb' $'a\xff\xfeb' '-z' 'a=b' "a'b\"c" 'a\b' 'ä€' '.partial' '*' '$(x)'; do
	mkdir "./$name.d" && echo content >"./$name.d/$name"
	pack -o "./$name.thaw" "./$name.d"
	must "$thawfs" verify -q "./$name.thaw"
	must "$thawfs" unpack -q "./$name.thaw" "./$name.back"
	must diff -r "./$name.d" "./$name.back"
	must "$thawfs" unpack -q -m "$name" -f "./$name.thaw" "./$name.back/one"
	must cmp "./$name.d/$name" "./$name.back/one"
	"$thawfs" ls --json "./$name.thaw" | jq -e '.members | length == 1' >/dev/null || fail "ls --json of $name"
	rm -rf "./$name.d" "./$name.back" "./$name.thaw"
done

case_is 11 "progress went over 100 %"
mkdir s && must "$gen" mem s/m --size=40M --kind=process && truncate -s 1G s/hole && cp s/m s/same
must "$gen" dmtcp s/c.dmtcp --size=4M --tiny=300 --gzip
for options in "" "--gunzip" "-j 1 -z 6"; do
	# shellcheck disable=SC2086 # options are words
	must "$thawfs" pack --progress=bar $options -o i.thaw s >"$T/out" 2>bar
	must "$thawfs" unpack --progress=bar -f i.thaw back >"$T/out" 2>>bar
	tr '\r' '\n' <bar | sed -n 's/^\([a-z]*ing\) *\([0-9]*\) %.*/\1 \2/p' >percents
	awk '$1 != verb { verb = $1; last = 0; ends++ } $2 < last || $2 > 100 { exit 1 } { last = $2 }
		END { exit !(ends == 2 && last == 100) }' percents || fail "progress was: $(tr '\n' ' ' <percents)"
done
rm -rf s back

case_is "12, 17" "garbage, cut and altered images: an error in time, never other bytes"
mkdir s && must "$gen" mem s/m --size=1M && echo small >s/small
pack -o good.thaw s
size=$(stat -c %s good.thaw)
for i in $(seq "$(long_or 300 60)"); do
	cp good.thaw bad.thaw
	at=$(((RANDOM << 15 | RANDOM) % size))
	printf '%b' "\\x$(printf %02x $((RANDOM % 256)))" | dd of=bad.thaw bs=1 seek=$at conv=notrunc status=none
	[ $((i % 3)) -ne 0 ] || truncate -s $at bad.thaw
	cmp -s bad.thaw good.thaw && continue
	rm -rf back
	timeout 20 "$thawfs" unpack -q bad.thaw back >"$T/out" 2>&1
	rc=$?
	# a gap between sections is no data, but verify has to find it
	[ $rc -eq 3 ] || { [ $rc -eq 0 ] && diff -r s back >/dev/null; } || fail "exit $rc after a change at $at"
	for f in m small; do
		[ ! -e back/$f ] || cmp -s s/$f back/$f || fail "a wrong byte in $f after a change at $at"
	done
	timeout 20 "$thawfs" verify -q bad.thaw >"$T/out" 2>&1
	[ $? -eq 3 ] || fail "verify finds nothing wrong after a change at $at"
done
for n in 1 4095 4096 4097 8192 100000; do
	head -c "$n" /dev/urandom >bad.thaw
	must_fail 3 timeout 20 "$thawfs" verify -q bad.thaw
	must_fail 3 timeout 20 "$thawfs" unpack -q bad.thaw none
done
# the last chunk of an image, and of a file: of one byte, full, and one over
for n in 1 $((chunk - 1)) $chunk $((chunk + 1)) $((5 * chunk)) $((5 * chunk + 1)); do
	rm -rf s && mkdir s && head -c "$n" /dev/urandom >s/only && round s
done
rm -rf s

case_is 13 "long names and attributes"
mkdir s
name=$(printf 'n%.0s' $(seq 255))
echo long >"s/$name" && mkdir "s/$(printf 'd%.0s' $(seq 255))" && ln -s "$name" s/link
ln -s "$(printf 't%.0s' $(seq 4095))" s/longlink
python3 - s/small <<-'END'
	import os, sys
	open(sys.argv[1], "w").close()
	for space in ("user.", "trusted."):
	    for size in (0, 255, 256, 3000, 65536):
	        try:
	            os.setxattr(sys.argv[1], space + "x" * 200 + str(size), os.urandom(size))
	        except OSError:
	            pass  # the file system's limits are its own
END
round s
must cmp <(getfattr -d -m - -e hex s/small) <(cd back && getfattr -d -m - -e hex small | sed 's,^# file: ,# file: s/,')
[ "$(readlink back/longlink)" = "$(readlink s/longlink)" ] || fail "a link of 4095 bytes"
must_fail 1 "$thawfs" unpack -q -m "${name}x" i.thaw none
rm -rf s

case_is 14 "recursion in deep trees, links in circles, sizes that lie"
mkdir s
python3 - <<-'END'
	import os
	fd = os.open("s", os.O_RDONLY)
	for _ in range(3000):
	    os.mkdir("d", dir_fd=fd)
	    below = os.open("d", os.O_RDONLY, dir_fd=fd)
	    os.close(fd)
	    fd = below
	os.write(os.open("file", os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=fd), b"deep")
END
ln -s . s/self && ln -s ../s s/up && ln -s b s/a && ln -s a s/b
(ulimit -s 256 && must "$thawfs" pack -q -o i.thaw s && must "$thawfs" verify -q i.thaw &&
	rm -rf back && must "$thawfs" unpack -q i.thaw back && must "$thawfs" ls -R i.thaw >"$T/out") || exit 1
[ "$(cd back && find . -name file -printf '%d\n')" = 3001 ] || fail "the deep file is not there"
[ "$(readlink back/a back/b back/self back/up | tr '\n' ' ')" = "b a . ../s " ] || fail "links in circles"
# the kernel's links say that they have no length
if pack -o i.thaw /proc/self/ns; then
	unpack i.thaw back
	[[ $(readlink back/mnt) = mnt:* ]] || fail "a link whose size is said to be 0"
fi
rm -rf s back

case_is 15 "threads × levels × chunk sizes: one of the combinations crashed"
mkdir s && must "$gen" mem s/m --size=5M --kind=process && must "$gen" mem s/f --size=1M --kind=floats
for j in 1 3 16; do
	for z in -7 1 9; do
		for c in 64K 256K 4M; do
			pack -j $j -z $z --chunk $c -o i.thaw s
			unpack -j $((17 - j)) i.thaw back
			must diff -r --no-dereference s back
		done
	done
done

case_is 16 "an image was made, exit code 0, and could not be read"
if [ -n "$shims" ]; then
	for n in 1 2 3 5 8; do # the header, chunks, sections, the footer
		rm -f "$T/mark"
		must_fail 1 under shim_fault FAULT_CALLS=write FAULT_PATH=.partial FAULT_AT=$n FAULT_ERRNO=flip FAULT_MARK="$T/mark" \
			"$thawfs" pack -q --verify -o none.thaw s
		[ -e "$T/mark" ] || fail "less than $n writes"
		says "cannot write 'none.thaw': what was written does not read back"
		[ -z "$(find . -name '*none.thaw*')" ] || fail "an unreadable image was published"
	done
fi
pack --verify -o none.thaw s && rm none.thaw
rm -rf s

case_is 18 "offsets of 32 bits in a table"
mkdir s && truncate -s 9G s/big
for at in 4194303 4194304 4194305 8388609; do
	head -c 1500 /dev/urandom | dd of=s/big bs=1K seek=$at conv=notrunc status=none
done
round s
if [ "$(long_or 1 0)" = 1 ]; then # more than 4 GiB stored
	must "$gen" mem s/noise --size=4400M --kind=random
	round s --raw
	[ "$(stat -c %s i.thaw)" -gt $((1 << 32)) ] || fail "less than 4 GiB stored"
fi
rm -rf s back i.thaw

case_is 19 "2 GiB of shared memory: a negative size"
for n in $((2047 * 1048576 + 1044480)) 2048M 2049M 4096M 4097M; do
	must "$gen" criu s --shmem --kind=zero --sparse --size=$n
	round s
	rm -rf s
	must "$gen" dmtcp one.dmtcp --kind=zero --sparse --size=$n
	pack -o i.thaw one.dmtcp
	unpack i.thaw back
	must "$bin/tool_sparse" one.dmtcp back/one.dmtcp
done

case_is 22 "chains of parents: relative, absolute, missing, three deep, and a page that none has"
must "$gen" criu s --size=8M --parents=3
round s
must diff -r --no-dereference s back
"$thawfs" info --json i.thaw | jq -e '.spaces | length >= 4' >/dev/null || fail "a chain of 4 has no 4 spaces"
rm s/2/parent && ln -s "$PWD/s/1" s/2/parent # absolute, into the source
round s
must diff -r --no-dereference s back
rm -rf s/0 # missing below three others
round s
must diff -r --no-dereference s back
rm s/1/parent && ln -s ../3 s/1/parent # a circle
round s
must diff -r --no-dereference s back
rm -rf s

case_is 24 "the source was written anew while it was packed"
mkdir s && must "$gen" mem s/a --size=30M && cp s/a s/z
"$thawfs" pack -q -j 1 -o none.thaw s 2>"$T/out" &
pid=$!
for _ in $(seq 2000); do [ -s .none.thaw.partial ] && break; done
kill -STOP $pid
if [ -s .none.thaw.partial ]; then
	must "$gen" mem s/z --size=30M --seed=9
	kill -CONT $pid
	wait $pid
	[ $? -eq 1 ] || fail "a source that was written anew is no error"
	says "cannot pack 'z': it changed while"
	[ -z "$(find . -name '*none.thaw*')" ] || fail "an image of two states"
else
	kill -CONT $pid
	wait $pid
	rm -f none.thaw
fi
rm -rf s

case_is 26 "lengths in the headers of an image and the file's own disagree"
must "$gen" dmtcp whole.dmtcp --size=2M --areas=20
mkdir s
for n in 63 64 4095 4096 5000 100001 1500000; do
	head -c $n whole.dmtcp >s/cut-$n
done
cp whole.dmtcp s/longer && head -c 100000 /dev/urandom >>s/longer
{ head -c 300000 whole.dmtcp && head -c 5000 /dev/urandom && tail -c +300001 whole.dmtcp; } >s/shifted
round s 2>"$T/out"
must diff -r --no-dereference s back
grep -q "'cut-1500000': stored as plain bytes, without memory views" "$T/out" || fail "a cut image: $(cat "$T/out")"
rm -rf s

case_is 27 "reservations of terabytes in a process, and little memory to pack it with"
must "$gen" dmtcp big.dmtcp --size=4M --reserve=2T --sparse
# sanitizers reserve terabytes themselves
limit=2000000
[ -z "${THAW_SAN:-}" ] || limit=unlimited
(ulimit -v $limit && must "$thawfs" pack -q -j 2 -o i.thaw big.dmtcp &&
	must "$thawfs" verify -q i.thaw && rm -rf back && must "$thawfs" unpack -q i.thaw back) || exit 1
must cmp big.dmtcp back/big.dmtcp
"$thawfs" maps --json i.thaw | jq -e '[.. | .len? // 0 | numbers] | max >= 2199023255552' >/dev/null ||
	fail "the reservation is not in the maps"

case_is 29 "zeros written over data: with a base they are zeros, not what the base has"
mkdir s && must "$gen" mem s/m --size=4M --kind=random && pack -o base.thaw s
dd if=/dev/zero of=s/m bs=$chunk seek=3 count=2 conv=notrunc status=none    # whole chunks
dd if=/dev/zero of=s/m bs=4096 seek=600 count=7 conv=notrunc status=none    # a part of one
fallocate -p -o $((10 * chunk)) -l $((2 * chunk)) s/m 2>/dev/null           # a hole
truncate -s -100000 s/m && truncate -s +300000 s/m                          # and the end
pack --base base.thaw -o i.thaw s
unpack i.thaw back
must cmp s/m back/m
must "$thawfs" verify -q i.thaw
[ "$("$thawfs" info --json i.thaw | jq .base_bytes)" -gt 1000000 ] || fail "the base is not used"
rm -rf s

case_is 35 "exit code 0 when writing had failed"
mkdir s && must "$gen" mem s/m --size=3M --kind=random
if [ -n "$shims" ]; then
	for n in 1 2 4 7 11; do
		must_fail 1 under shim_fault FAULT_CALLS=write FAULT_PATH=.partial FAULT_AT=$n FAULT_ERRNO=28 "$thawfs" pack -q -o none.thaw s
		must cmp "$T/out" - <<<"thawfs: cannot write 'none.thaw': No space left on device"
		[ -z "$(find . -name '*none.thaw*')" ] || fail "an image in spite of ENOSPC"
		# a short count, then no space
		must_fail 1 under shim_fault FAULT_CALLS=write FAULT_PATH=.partial FAULT_AT=$n FAULT_FOR=100000 FAULT_ERRNO=28 \
			"$thawfs" pack -q -o none.thaw s
		[ -z "$(find . -name '*none.thaw*')" ] || fail "an image in spite of ENOSPC"
	done
	must under shim_fault FAULT_CALLS=write,pread FAULT_AT=1 FAULT_FOR=60 FAULT_ERRNO=0 "$thawfs" pack -q -o i.thaw s
	must cmp i.thaw <("$thawfs" pack -q -o - s)
fi
exit 0
