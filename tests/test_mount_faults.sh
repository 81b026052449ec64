#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A source whose reads fail, are short, or have flipped bits anywhere: right bytes, EIO or a refusal, never wrong bytes, and
# no failure is remembered.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=tests/lib_mount.sh
. "$(dirname "$0")/lib_mount.sh"
requires fuse root jq
[ -z "${THAW_SAN:-}" ] || skip "the shim and sanitizers do not go together"
mnt=$T/mnt

mkdir -p "$T/src/dir" "$mnt"
head -c 1M /dev/urandom >"$T/src/file"
seq 1 200000 >"$T/src/text"
truncate -s 3M "$T/src/hole"
echo x >>"$T/src/hole"
for i in 1 2 3; do echo "$i" >"$T/src/dir/$i"; done
must "$bin/tool_genimage" dmtcp "$T/src/ckpt.dmtcp" --size=1M --areas=20
must "$thawfs" pack -q -o "$T/i.thaw" "$T/src"


# all that can be read is right, and what cannot is an error of input and output; those are counted in $n_eio
check_all() {
	local f got=$T/got
	for f in file text hole dir/1 dir/2 dir/3 ckpt.dmtcp; do
		if cat "$mnt/$f" >"$got" 2>"$T/err"; then
			cmp -s "$got" "$T/src/$f" || fail "$1: wrong bytes or a short file: $f"
		else
			n_eio=$((n_eio + 1))
			grep -q "Input/output error" "$T/err" || fail "$1: $(cat "$T/err")"
			cmp -s "$got" <(head -c "$(stat -c %s "$got")" "$T/src/$f") || fail "$1: wrong bytes before the error: $f"
		fi
	done
}
# quick_mount WHAT: like a user does; false if it was refused, with a message
quick_mount() {
	"$thawfs" mount -o threads=4,cache=32M "$T/i.thaw" "$mnt" >"$T/out" 2>&1 && return 0
	grep -q "^thawfs: cannot " "$T/out" || fail "$1: refused without a message: $(cat "$T/out")"
	mountpoint -q "$mnt" && fail "$1: refused, but mounted"
	return 1
}
quick_unmount() {
	local pid
	pid=$(status "$mnt" .supervisor_pid)
	unmount "$mnt" "$pid"
}
on_exit umount -l "$mnt"

# every read of the image in turn, in each process for itself, once or for some time
n_runs=0 n_refused=0
for fault in "5 1" "5 3" "0 1" "5 1000000" "4 1"; do
	for ((n = 1;; n += $(long_or 1 13))); do
		what="read $n fails (error and times: $fault)"
		rm -f "$T/mark"
		n_eio=0 n_runs=$((n_runs + 1))
		if LD_PRELOAD=$bin/shim_fault.so FAULT_CALLS=pread FAULT_PATH=/i.thaw FAULT_AT=$n FAULT_ERRNO=${fault% *} \
			FAULT_FOR=${fault#* } FAULT_MARK=$T/mark quick_mount "$what"; then
			check_all "$what"
			[ "${fault#* }" != 1 ] || [ $n_eio = 0 ] || fail "$what: one failure became an error: $(cat "$T/err")"
			[ "$(status "$mnt" .images)" = 1 ] || fail "$what: status.json cannot be read"
			if [ "${fault#* }" -lt 1000000 ]; then
				n_eio=0
				check_all "$what, and then no more"
				[ $n_eio = 0 ] || fail "$what: a failure is remembered"
			fi
			quick_unmount
		else
			n_refused=$((n_refused + 1))
		fi
		[ -e "$T/mark" ] || break
	done
	[ "$n" -gt 1 ] || fail "no read was made to fail"
done
echo "$n_runs mounts with reads that fail, $n_refused of them refused"

# bits flipped anywhere, in chunks and in what finds them
cp "$T/i.thaw" "$T/good.thaw"
size=$(stat -c %s "$T/good.thaw")
n_damaged=0 n_refused=0
for n in $(seq 1 "$(long_or 300 12)"); do
	at=$(((RANDOM * 32768 + RANDOM) % size))
	# every other one where the index is
	[ $((n % 2)) = 0 ] || at=$((size - 1 - at % (size / 20)))
	what="bit flipped at $at of $size"
	cp "$T/good.thaw" "$T/i.thaw"
	byte=$(od -An -tu1 -j "$at" -N1 "$T/i.thaw")
	printf '%b' "\\x$(printf %02x $((byte ^ 1 << n % 8)))" | dd of="$T/i.thaw" bs=1 seek="$at" conv=notrunc status=none
	n_eio=0
	if quick_mount "$what"; then
		# names may be lost as well: that is an error, too
		check_all "$what"
		ls -lR "$mnt" >"$T/ls" 2>"$T/err" || grep -q "Input/output error" "$T/err" || fail "$what: ls: $(cat "$T/err")"
		[ $n_eio = 0 ] || n_damaged=$((n_damaged + 1))
		quick_unmount
	else
		n_refused=$((n_refused + 1))
	fi
done
echo "$n images with a flipped bit: $n_refused refused, $n_damaged with errors, the others not touched by what was read"
[ $((n_refused + n_damaged)) -gt 0 ] || fail "no flipped bit was noticed"
