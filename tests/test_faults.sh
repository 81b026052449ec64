#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Every system call of pack and unpack fails once, one run after the other: the old image or none, whole files or
# none, a message, exit code 1, no litter. A run that says it was good must be.
[ -d /dev/shm ] && [ -w /dev/shm ] && export TMPDIR=/dev/shm # many fsyncs
. "$(dirname "$0")/lib.sh"
[ -z "${THAW_SAN:-}" ] || skip "the shim and sanitizers do not go together"
shim=$bin/shim_fault.so
mkdir "$T/w" && cd "$T/w" || exit 1

# a small tree that takes every path: chunks, pools, holes, duplicates, links, attributes, an address space, a base
mkdir -p src/sub/deeper src/empty
head -c 700000 /dev/urandom >src/noise
head -c 300000 src/noise >src/sub/twice
yes text | head -c 400000 >src/text
truncate -s 3M src/hole
printf tail >>src/hole
must "$bin/tool_genimage" dmtcp src/ckpt.dmtcp --size=1M --areas=5
for i in 1 2 3; do echo "small $i" >src/sub/deeper/$i; done
ln src/sub/deeper/1 src/link
ln -s sub/twice src/symlink
mkfifo src/fifo
setfattr -n user.key -v value src/text 2>/dev/null
touch -d '2001-02-03 04:05:06.789' src/sub/twice src/sub
mkdir basesrc && head -c 600000 src/noise >basesrc/n
must "$thawfs" pack -q -o base.thaw basesrc
must "$thawfs" pack -q -o old.thaw basesrc
pack=("$thawfs" pack -q -j 1 --base base.thaw -o place/i.thaw src)
mkdir place
must "${pack[@]}"
mv place/i.thaw good.thaw

# with_fault CALL N ERRNO [FOR] COMMAND...: run it so; $T/mark tells whether the call came to fail
with_fault() {
	local call=$1 n=$2 error=$3
	shift 3
	rm -f "$T/mark"
	LD_PRELOAD=$shim FAULT_CALLS=$call FAULT_AT=$n FAULT_ERRNO=$error FAULT_MARK=$T/mark "$@" >"$T/out" 2>&1
}
trouble() {
	cat "$T/out"
	fail "$*"
}

# after a run of pack: what stands there. $1 exit code, $2 what failed, $3 whether there was an image before
check_pack() {
	local rc=$1 what=$2 before=$3 left
	[ "$rc" -le 1 ] || trouble "$what: exit $rc"
	if [ "$rc" -eq 0 ]; then
		# what is wrong with a base only costs space: its chunks are stored again
		cmp -s place/i.thaw good.thaw || { "$thawfs" verify -q --base-path . place/i.thaw && "$thawfs" diff --base-path . place/i.thaw good.thaw; } ||
			trouble "$what: exit 0 with a wrong image"
	else
		grep -q "^thawfs: cannot " "$T/out" || trouble "$what: exit 1 without a message"
		# a failure after the rename, of the directory's fsync: the new one may stand there already, whole
		if [ "$before" = old ]; then
			cmp -s place/i.thaw old.thaw || cmp -s place/i.thaw good.thaw || trouble "$what: a bad image"
		else
			[ ! -e place/i.thaw ] || cmp -s place/i.thaw good.thaw || trouble "$what: a half image"
		fi
	fi
	left=$(find place -mindepth 1 ! -name i.thaw -printf '%f ')
	# the name can only stay when it was removing it that failed, or it was not known whether another one has it
	case $left in "" | ".i.thaw.partial ") ;; *) trouble "$what: litter: $left" ;; esac
	[ -z "$left" ] || [[ $call =~ ^(unlink|flock|stat)$ ]] || trouble "$what: left $left"
	[ -z "$left" ] || must "${pack[@]}"
	[ ! -e place/.i.thaw.partial ] || trouble "$what: the next run leaves the temporary name"
}

# pack_faults CALL ERRNO: every n-th one until all went through
pack_faults() {
	local call=$1 error=$2 n=1 before rc
	while :; do
		rm -rf place && mkdir place
		before=none
		[ $((n % 2)) -eq 0 ] && cp old.thaw place/i.thaw && before=old
		with_fault "$call" $n "$error" "${pack[@]}"
		rc=$?
		check_pack $rc "pack, $call $n, error $error" $before
		[ "$error" -eq 0 ] && [ $rc -ne 0 ] && trouble "pack: short $call $n is no error"
		[ "$error" -eq 4 ] && [ $rc -ne 0 ] && trouble "pack: interrupted $call $n is no error"
		[ -e "$T/mark" ] || break
		n=$((n + 1))
	done
	echo "pack $call $error: $((n - 1))"
	[ $n -gt 1 ] || [ "$call" = read ] || fail "pack never called $call"
}

EIO=5 EINTR=4 ENOSPC=28 ENOMEM=12
for call in open read pread write fsync rename close lseek truncate flock stat readdir readlink getxattr; do
	pack_faults $call $EIO
done
pack_faults write $ENOSPC
pack_faults truncate $ENOSPC
pack_faults fsync $ENOSPC
pack_faults open $ENOMEM
for call in read pread write; do
	pack_faults $call $EINTR
	pack_faults $call 0
done

# -- unpack: the files that are there are whole; without an error all are there -----------------
unpack=("$thawfs" unpack -q -j 1 --base-path . good.thaw back)
check_unpack() {
	local rc=$1 what=$2 f
	[ "$rc" -le 1 ] || trouble "$what: exit $rc"
	if [ "$rc" -eq 0 ]; then
		diff -r --no-dereference src back >"$T/diff" 2>&1 || grep -q fifo "$T/diff" || trouble "$what: exit 0, but $(cat "$T/diff")"
		[ -p back/fifo ] || trouble "$what: exit 0 without the fifo"
		[ back/link -ef back/sub/deeper/1 ] || trouble "$what: exit 0 without the link"
	else
		grep -q "^thawfs: cannot " "$T/out" || trouble "$what: exit 1 without a message"
	fi
	[ -d back ] || return
	while read -r f; do
		case $f in *.thawfs-*) [ "$call" = unlink ] || trouble "$what: left $f" ;; esac
		cmp -s "src/$f" "back/$f" || [ "$call" = unlink ] || trouble "$what: '$f' is half written"
	done < <(cd back && find . -type f)
}
unpack_faults() {
	local call=$1 error=$2 n=1 rc
	while :; do
		chmod -R u+rwx back 2>/dev/null
		rm -rf back
		with_fault "$call" $n "$error" "${unpack[@]}"
		rc=$?
		check_unpack $rc "unpack, $call $n, error $error"
		[ "$error" -eq 0 ] && [ $rc -ne 0 ] && trouble "unpack: short $call $n is no error"
		[ "$error" -eq 4 ] && [ $rc -ne 0 ] && trouble "unpack: interrupted $call $n is no error"
		[ -e "$T/mark" ] || break
		n=$((n + 1))
	done
	echo "unpack $call $error: $((n - 1))"
}
for call in open read pread pwrite fsync close lseek truncate stat readdir make mode owner time setxattr unlink; do
	unpack_faults $call $EIO
done
unpack_faults pwrite $ENOSPC
unpack_faults truncate $ENOSPC
unpack_faults make $ENOSPC
for call in read pread pwrite; do
	unpack_faults $call $EINTR
	unpack_faults $call 0
done

# -- a disk that is really full -----------------------------------------------------------------
if [ "$(id -u)" = 0 ] && mkdir full && mount -t tmpfs -o size=1m none full 2>/dev/null; then
	on_exit umount "$PWD/full"
	must_fail 1 "$thawfs" pack -q -o full/i.thaw src
	must cmp "$T/out" - <<<"thawfs: cannot write 'full/i.thaw': No space left on device"
	[ -z "$(ls -A full)" ] || fail "left on the full disk: $(ls -A full)"
	cp old.thaw full/i.thaw
	must_fail 1 "$thawfs" pack -q -o full/i.thaw src
	must cmp full/i.thaw old.thaw
	[ "$(ls -A full)" = i.thaw ] || fail "left on the full disk: $(ls -A full)"
	rm full/i.thaw
	must_fail 1 "$thawfs" unpack -q --base-path . good.thaw full/back
	says "No space left on device"
	while read -r f; do
		cmp -s "src/$f" "full/back/$f" || fail "'$f' is half written on the full disk"
	done < <(cd full/back && find . -type f)
fi
# a disk that is full when the last bytes go to standard output
if [ -w /dev/full ]; then
	"$thawfs" pack -q -o - src >/dev/full 2>"$T/out"
	[ $? -eq 1 ] || fail "a full standard output is no error"
	must cmp "$T/out" - <<<"thawfs: cannot write 'standard output': No space left on device"
fi
exit 0
