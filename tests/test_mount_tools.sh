#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Programs that were not made for it, on a mount: a debugger on a core, a virtual machine's monitor on a memory file,
# and what copies sparse files.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=tests/lib_mount.sh
. "$(dirname "$0")/lib_mount.sh"
requires fuse root jq
mnt=$T/mnt

mkdir "$T/src"
cd "$T/src" || exit 1
# memory of a guest: data, zeros in every fourth MiB, and more at the end
must "$bin/tool_genimage" mem guest --size=12M --kind=process --zero-every=4 --sparse
truncate -s 16M guest
printf 'a,b' >'comma, and space'
printf 'c' >"$(printf 'new\nline \377')"
ln guest 'guest again'
# a core of a process with much in it, made by the debugger
has_core=
if command -v gdb >/dev/null && command -v gcore >/dev/null && [ -z "${THAW_SAN:-}" ]; then
	"$bin/tool_target" "$T/status" 4 &
	target=$!
	on_exit kill -KILL "$target"
	wait_until 10 test -s "$T/status"
	if gcore -o core "$target" >"$T/out" 2>&1; then
		mv "core.$target" core
		has_core=1
	else
		echo "no core: $(tail -n 1 "$T/out")"
	fi
	kill -KILL "$target"
fi
cd / || exit 1
must "$thawfs" pack -q -o "$T/i.thaw" "$T/src"
[ "$(stat -c %s "$T/i.thaw")" -lt $((16 << 20)) ] || fail "not compressed"
mount_image -o cache=32M "$T/i.thaw" "$mnt"

# the debugger says the same of both: where all threads are, what their registers hold, and what is in memory
debug() {
	gdb -batch -nx -ex 'set width 0' -ex 'info threads' -ex 'thread apply all bt' -ex 'info registers' \
		-ex "x/2000xg \$sp" -ex 'info proc mappings' -ex 'maintenance info sections' "$bin/tool_target" "$1" 2>&1 |
		sed "s|$1|CORE|g"
}
if [ $has_core ]; then
	debug "$T/src/core" >"$T/want"
	debug "$mnt/core" >"$T/got"
	[ "$(grep -c '^0x' "$T/want")" -gt 100 ] || fail "gdb did not read memory: $(head -n 20 "$T/want")"
	cmp "$T/want" "$T/got" || fail "gdb: $(diff "$T/want" "$T/got" | head -n 5)"
fi

# the monitor: on the file, twice at once, and again when its pages have gone from the page cache
must "$bin/tool_vmm" "$T/src/guest" "$mnt/guest" 2000
must dd if="$mnt/guest" iflag=nocache count=0 status=none
"$bin/tool_vmm" "$T/src/guest" "$mnt/guest" 2000 &
must "$bin/tool_vmm" "$T/src/guest" "$mnt/guest again" 2000
wait $! || fail "two monitors on one file"

# copies are the same, and as sparse as the mount says
same() {
	diff -r --no-dereference "$T/src" "$1" || fail "$2: the copy differs"
	local kib
	kib=$(du -k "$1/guest" | cut -f1)
	[ "$kib" -le $(($(du -k "$mnt/guest" | cut -f1) + 64)) ] || fail "$2: the copy takes $kib KiB"
	rm -rf "$1"
}
[ "$(du -k --apparent-size "$mnt/guest" | cut -f1)" = 16384 ] || fail "apparent size"
[ "$(du -k "$mnt/guest" | cut -f1)" -le 9216 ] || fail "du: $(du -k "$mnt/guest")"
must cp -r --preserve=all "$mnt" "$T/copy"
same "$T/copy" cp
must cp -r --sparse=always "$mnt" "$T/copy"
same "$T/copy" "cp --sparse=always"
mkdir "$T/copy"
tar -C "$mnt" -S -c . | tar -C "$T/copy" -x || fail "tar -S"
same "$T/copy" "tar -S"
if command -v rsync >/dev/null; then
	must rsync -aHS --exclude=core "$mnt/" "$T/copy"
	# nothing more is to be done: sizes, times and links are as they were
	[ -z "$(rsync -aHSi --exclude=core "$mnt/" "$T/copy")" ] || fail "rsync finds changes in what it has copied"
	[ "$(stat -c %h "$T/copy/guest")" = 2 ] || fail "rsync: a hard link was lost"
	[ ! -e "$T/src/core" ] || must cp -p "$T/src/core" "$T/copy"
	same "$T/copy" rsync
else
	echo "no rsync here"
fi
unmount "$mnt" "$daemon"
