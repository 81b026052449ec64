#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Images that lie, with every checksum right (tests/test_damage.c makes them), through the command line and a mount:
# exit code 3 and a message with file and offset, nothing outside DEST, nothing that takes long or much memory.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=tests/lib_mount.sh
. "$(dirname "$0")/lib_mount.sh"

mkdir -p "$T/lies" "$T/deep/er"
must "$bin/test_damage" --write "$T/lies"
cd "$T/lies" || exit 1
n=$(find . -name 'damaged-*' | wc -l)
[ "$n" -gt 150 ] || fail "only $n images that lie"

# what a run may take; sanitizers reserve much more
[ -n "${THAW_SAN:-}" ] || ulimit -v 4000000

# thaw VERB…: at most 20 s; the exit code in $rc
thaw() {
	timeout -s KILL 20 "$thawfs" "$@" >"$T/stdout" 2>"$T/stderr" </dev/null
	rc=$?
	case $rc in
	0 | 1 | 2 | 3) ;;
	*) fail "exit $rc from: thawfs $*: $(tail -n 3 "$T/stderr")" ;;
	esac
}
# an exit code of 3 comes with a message that names the image, or the member that could not be unpacked, and an offset
explains() {
	grep -qF -e "$1" -e "cannot unpack '" "$T/stderr" || fail "$2 does not name '$1': $(cat "$T/stderr")"
	cat "$T/stdout" "$T/stderr" | grep -qE 'offset|inode [0-9]+|0x[0-9a-f]+|not a thawfs image|incomplete' ||
		fail "$2 $1 does not say where: $(cat "$T/stdout" "$T/stderr")"
}

for img in *.thaw; do
	thaw verify -q "$img"
	case $img in
	good-*) want=0 ;;
	damaged-*) want=3 ;;
	*) want=1 ;;
	esac
	[ $rc = $want ] || fail "verify $img: exit $rc instead of $want: $(cat "$T/stderr")"
	thaw verify "$img"
	[ $rc = $want ] || fail "verify $img: exit $rc instead of $want"
	[ $want != 3 ] || explains "$img" verify
	for verb in "ls -lR" "ls -R --json" "info" "info --json" "maps" "maps --json" "du"; do
		# shellcheck disable=SC2086
		thaw $verb "$img"
		case $img:$rc in
		*:0 | new-*:1) ;;
		damaged-*:3) explains "$img" "$verb" ;;
		*) fail "$verb $img: exit $rc: $(cat "$T/stderr")" ;;
		esac
		case "$verb:$rc" in
		*json:0) jq empty <"$T/stdout" 2>"$T/out" || fail "$verb $img is not JSON: $(cat "$T/out")" ;;
		esac
	done
	# flattening copies the index, so what is wrong with it must not get new checksums
	thaw pack -q --flatten --no-fsync -o "$T/flat" "$img"
	case $img:$rc in
	good-*:0 | new-*:1 | base-*:1) ;;
	damaged-*:3) explains "$img" "pack --flatten" ;;
	*) fail "pack --flatten $img: exit $rc: $(cat "$T/stderr")" ;;
	esac
	[ $rc = 0 ] || [ ! -e "$T/flat" ] || fail "pack --flatten $img: an image in spite of exit $rc"
	rm -f "$T/flat"
	thaw unpack -q --no-fsync "$img" "$T/deep/er/dest"
	case $img:$rc in
	*:0 | new-*:1) ;;
	damaged-*:3) explains "$img" unpack ;;
	damaged-inode_size_enormous.thaw:1) grep -qF 'File too large' "$T/stderr" || fail "unpack $img: $(cat "$T/stderr")" ;;
	*) fail "unpack $img: exit $rc: $(cat "$T/stderr")" ;;
	esac
	case $img:$rc in good-*:[^0]*) fail "unpack $img: exit $rc" ;; esac
	# what the index hides is missed, and what it shows is there all the same
	case $img in
	*name_nobodys* | *inode_nobodys* | *name_under_link*)
		[ $rc = 3 ] || fail "unpack $img: exit $rc though a name or inode is hidden"
		[ -f "$T/deep/er/dest/d/mix" ] || [ -f "$T/deep/er/dest/big" ] || fail "unpack $img: nothing there"
		for verb in "ls -R" du; do
			# shellcheck disable=SC2086
			thaw $verb "$img"
			[ $rc = 3 ] || fail "$verb $img: exit $rc though a name or inode is hidden"
		done
		rc=3
		;;
	esac
	found=$(find "$T/deep" -mindepth 1 -maxdepth 2 | sort | tr '\n' ' ')
	[ "$found" = "$T/deep/er $T/deep/er/dest " ] || [ "$found" = "$T/deep/er " ] || fail "unpack $img leaves $found"
	chmod -R u+rwx "$T/deep"
	rm -rf "$T/deep/er/dest"
	thaw unpack -q --no-fsync -m d/mix "$img" "$T/deep/er/mix"
	case $img:$rc in
	good-*:0 | damaged-*:[013] | base-*:[01] | new-*:1) ;;
	*) fail "unpack -m d/mix $img: exit $rc: $(cat "$T/stderr")" ;;
	esac
	[ $rc != 0 ] || [ -f "$T/deep/er/mix" ] || fail "unpack -m d/mix $img: nothing there"
	rm -rf "$T/deep/er/mix"
done
[ -z "$(find / -maxdepth 1 -name 'evil*')" ] || fail "something is outside"
echo "$n images that lie: each is seen"

# a region that ends where addresses end
"$thawfs" maps good-plain.thaw >"$T/out"
says ffffffffff600000-10000000000000000

# and the reader that knows only the document agrees on each
if command -v python3 >/dev/null && command -v xxhsum >/dev/null && command -v zstd >/dev/null && command -v lz4 >/dev/null; then
	must python3 "$src/oracle_check.py" lies "$T/lies"
fi

# all of them in one mount, which must still be there when everything has been read
[ -w /dev/fuse ] || exit 0
ulimit -v unlimited 2>/dev/null
mkdir "$T/mnt"
mount_image "$T/lies" "$T/mnt"
timeout -s KILL 120 find "$T/mnt" -type f -size -1M -exec cat {} + >/dev/null 2>&1
[ $? -lt 124 ] || fail "reading through the mount hangs"
timeout -s KILL 60 find "$T"/mnt/*/.thaw -type f -size -1M -exec cat {} + >/dev/null 2>&1
[ $? -lt 124 ] || fail "reading .thaw through the mount hangs"
ls -f "$T/mnt" >"$T/out" || fail "the mount is gone"
good=$(grep '^good-plain' "$T/out") || fail "no good image: $(cat "$T/out")"
must cmp "$T/mnt/$good/big" "$T/mnt/$good/d/big"
must "$thawfs" unpack -q --no-fsync good-plain.thaw "$T/plain"
must cmp "$T/plain/d/mix" "$T/mnt/$good/d/mix"
grep -iE 'sanitizer|assert|segmentation|worker.*(died|killed|signal)' "$T/log" && fail "the daemon had an accident"
unmount "$T/mnt" "$daemon"
