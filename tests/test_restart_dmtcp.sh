#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# thawfs restart of what DMTCP saved: finding DMTCP, the tree in which our restarter is used, arguments, mounts and
# their end, signals and exit codes. DMTCP is a stand-in that does what the real one does to its mtcp_restart: it runs
# the one beside itself, with the image as descriptor 3. Images are selfckpt's without its mark.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=tests/lib_mount.sh
. "$(dirname "$0")/lib_mount.sh"
# shellcheck source=tests/lib_restart.sh
. "$(dirname "$0")/lib_restart.sh"
export XDG_CACHE_HOME=$T/cache XDG_RUNTIME_DIR=$T/run
mkdir "$T/run" "$T/work"
cd "$T/work" || exit 1

# -- a DMTCP --------------------------------------------------------------------------------------
dmtcp=$T/dmtcp
mkdir -p "$dmtcp/bin" "$dmtcp/lib/dmtcp"
touch "$dmtcp/lib/dmtcp/libdmtcp.so"
cat >"$dmtcp/bin/dmtcp_restart" <<'END'
#!/bin/bash
printf '%s\n' "$@" >"$DMTCP_ARGUMENTS"
echo "$0" >"$DMTCP_ARGUMENTS.program"
[ -z "${DMTCP_EXIT:-}" ] || exit "$DMTCP_EXIT"
for file; do :; done # the last argument
read -r -a n < <(od -An -v -t u8 -j 168 -N 16 "$file")
exec 3<"$file"
head -c 4096 <&3 >/dev/null
exec "$(dirname "$0")/mtcp_restart" --stderr-fd 2 --restore-buffer-addr "$(printf 0x%x "${n[0]}")" \
	--restore-buffer-len "$(printf 0x%x $((n[1] - n[0])))" --fd 3
END
chmod +x "$dmtcp/bin/dmtcp_restart"
printf '#!/bin/sh\necho the wrong mtcp_restart\nexit 9\n' >"$dmtcp/bin/mtcp_restart"
chmod +x "$dmtcp/bin/mtcp_restart"
touch "$dmtcp/bin/dmtcp_coordinator" "$dmtcp/bin/other"
export DMTCP_ARGUMENTS=$T/arguments

make_checkpoint "$T/work/self.dmtcp" -m 8
[ "$(dd if=self.dmtcp bs=1 skip=6400 count=8 2>/dev/null)" = selfckpt ] || fail "no mark in the header"
cp self.dmtcp a.dmtcp
for at in 2304 6400; do dd if=/dev/zero of=a.dmtcp bs=1 seek=$at count=8 conv=notrunc 2>/dev/null; done
must "$thawfs" pack -q -o a.thaw a.dmtcp

good='restarted;count 3;verified;'
commands='count 1;verify'

# -- no DMTCP -------------------------------------------------------------------------------------
must_fail 1 env PATH="$T/nowhere" "$thawfs" restart a.dmtcp
says 'cannot find DMTCP'
must_fail 1 "$thawfs" restart --dmtcp "$T/nowhere" a.dmtcp
says "'$T/nowhere' has no bin/dmtcp_restart"
must_fail 1 "$thawfs" restart --dmtcp "$dmtcp/lib" a.dmtcp

# -- files ----------------------------------------------------------------------------------------
for mode in eager lazy; do
	drive "$good" "$commands" "$thawfs" restart --mode=$mode --dmtcp "$dmtcp" a.dmtcp
done
drive "$good" "$commands" "$thawfs" restart --dmtcp "$dmtcp/bin" a.dmtcp
drive "$good" "$commands" env PATH="$dmtcp/bin:$PATH" "$thawfs" restart a.dmtcp
[ "$(cat "$DMTCP_ARGUMENTS")" = "$(printf '%s\n' --ckptdir "$T/work" "$T/work/a.dmtcp")" ] || fail "arguments: $(cat "$DMTCP_ARGUMENTS")"
tree=$(dirname "$(dirname "$(cat "$DMTCP_ARGUMENTS.program")")")
[[ $tree == "$T"/cache/thawfs/dmtcp-* ]] || fail "the tree is $tree"
[ "$(find "$T/cache/thawfs" -mindepth 1 -maxdepth 1 | wc -l)" = 1 ] || fail "more than one tree: $(ls -A "$T/cache/thawfs")"
cmp "$tree/bin/mtcp_restart" "$restarter" || fail "another restarter is in the tree"
[[ -L $tree/bin/dmtcp_coordinator && -e $tree/lib/dmtcp/libdmtcp.so ]] || fail "links are missing"
[ ! -e "$tree/bin/other" ] || fail "programs of others are linked"
grep -q wrong "$dmtcp/bin/mtcp_restart" || fail "the installation was changed"
# a new version gets a new tree, an old one stays for who uses it
sleep 0.01
echo '# newer' >>"$dmtcp/bin/dmtcp_restart"
drive "$good" "$commands" "$thawfs" restart --dmtcp "$dmtcp" a.dmtcp
[ "$(find "$T/cache/thawfs" -mindepth 1 -maxdepth 1 | wc -l)" = 2 ] || fail "no new tree for a new DMTCP"

# several at once, with none there before
rm -rf "$T/cache"
for i in 1 2 3 4 5 6; do
	echo verify | "$thawfs" restart --dmtcp "$dmtcp" a.dmtcp >"$T/many.$i" 2>&1 &
done
wait
for i in 1 2 3 4 5 6; do
	grep -qx verified "$T/many.$i" || fail "restart $i of many: $(cat "$T/many.$i")"
done
[ -z "$(find "$T/cache" -name '.dmtcp-*')" ] || fail "litter in the cache"
# where others could put in programs
chmod 777 "$T/cache/thawfs"
must_fail 1 "$thawfs" restart --dmtcp "$dmtcp" a.dmtcp
says 'others can write to it'
chmod 700 "$T/cache/thawfs"

# -- options --------------------------------------------------------------------------------------
mkdir ckpt
DMTCP_EXIT=5 must_fail 5 "$thawfs" restart --dmtcp "$dmtcp" --ckptdir ckpt a.dmtcp a.dmtcp -- --new-coordinator -p 0
[ "$(tr '\n' ' ' <"$DMTCP_ARGUMENTS")" = "--ckptdir $T/work/ckpt --new-coordinator -p 0 $T/work/a.dmtcp $T/work/a.dmtcp " ] ||
	fail "arguments: $(cat "$DMTCP_ARGUMENTS")"
must_fail 1 "$thawfs" restart --dmtcp "$dmtcp" --ckptdir "$T/nowhere" a.dmtcp
says "cannot keep checkpoints in '$T/nowhere'"
must_fail 1 "$thawfs" restart --dmtcp "$dmtcp" --mode=uffd a.dmtcp
says "cannot restart 'a.dmtcp' by a page server"
must_fail 1 "$thawfs" restart --dmtcp "$dmtcp" a.dmtcp self.dmtcp
says "cannot restart 'self.dmtcp' with others"
gzip -c a.dmtcp >z.dmtcp
must_fail 1 "$thawfs" restart --dmtcp "$dmtcp" --mode=lazy z.dmtcp
says "thawfs pack --gunzip"
head -c 9000 /dev/zero >zeros.dmtcp
must_fail 3 "$thawfs" restart --dmtcp "$dmtcp" zeros.dmtcp
says "'zeros.dmtcp': it is not a DMTCP v4.0 image"
head -c 6000 a.dmtcp >short.dmtcp
must_fail 3 "$thawfs" restart --dmtcp "$dmtcp" short.dmtcp

# -- images ---------------------------------------------------------------------------------------
requires fuse root
none_mounted() { ! grep -q " $T/run/" /proc/self/mountinfo; }
ended() {
	for _ in $(seq 300); do
		if none_mounted && [ -z "$(ls -A "$T/run")" ]; then return; fi
		sleep 0.1
	done
	fail "left behind: $(ls -A "$T/run") $(grep " $T/run/" /proc/self/mountinfo)"
}
for mode in eager lazy; do
	for file in a.thaw a.thaw/a.dmtcp; do
		drive "$good" "$commands" "$thawfs" restart --mode=$mode --dmtcp "$dmtcp" $file
		ended
	done
done
drive "$good" "$commands" "$thawfs" restart --profile --dmtcp "$dmtcp" a.thaw
grep -q ' mapped_bytes=0 ' "$T/err" || fail "8 MiB are not read at once: $(cat "$T/err")"
ended
drive "$good" "$commands" "$thawfs" restart --record --mode=lazy --dmtcp "$dmtcp" a.thaw
ended
[ -s a.thaw.ws ] || fail "nothing was recorded"

make_checkpoint "$T/work/big.dmtcp" -m 80
for at in 2304 6400; do dd if=/dev/zero of=big.dmtcp bs=1 seek=$at count=8 conv=notrunc 2>/dev/null; done
must "$thawfs" pack -q -o big.thaw big.dmtcp
drive "$good" "$commands" "$thawfs" restart --profile --dmtcp "$dmtcp" big.thaw
grep -qE ' mapped_bytes=[0-9]{8,} ' "$T/err" || fail "80 MiB are not mapped: $(cat "$T/err")"
ended
drive "$good" "$commands" "$thawfs" restart --profile --dmtcp "$dmtcp" big.dmtcp
grep -q ' mapped_bytes=0 ' "$T/err" || fail "a plain file is mapped: $(cat "$T/err")"

# two of one image by one mount
mkdir two
cp a.dmtcp two/a.dmtcp
cp a.dmtcp two/b.dmtcp
must "$thawfs" pack -q -o two.thaw two
DMTCP_EXIT=0 must "$thawfs" restart --dmtcp "$dmtcp" two.thaw
[ "$(grep -c '^/.*/0/[ab].dmtcp$' "$DMTCP_ARGUMENTS")" = 2 ] || fail "arguments: $(cat "$DMTCP_ARGUMENTS")"
ended
DMTCP_EXIT=0 must "$thawfs" restart --dmtcp "$dmtcp" a.thaw two.thaw/b.dmtcp
[ "$(grep -c '^/.*/[01]/[ab].dmtcp$' "$DMTCP_ARGUMENTS")" = 2 ] || fail "arguments: $(cat "$DMTCP_ARGUMENTS")"
ended
echo text >text
must "$thawfs" pack -q -o text.thaw text
must_fail 1 "$thawfs" restart --dmtcp "$dmtcp" text.thaw
says 'it holds no DMTCP images'
must_fail 3 "$thawfs" restart --dmtcp "$dmtcp" text.thaw/text
must_fail 1 "$thawfs" restart --dmtcp "$dmtcp" two.thaw/none
ended

# a signal is passed on, and its exit code comes back
mkfifo in
"$thawfs" restart --mode=lazy --dmtcp "$dmtcp" a.thaw <in >"$T/signalled" 2>&1 &
pid=$!
exec 9>in
for _ in $(seq 300); do
	grep -q restarted "$T/signalled" && break
	sleep 0.1
done
grep -q restarted "$T/signalled" || fail "not restarted: $(cat "$T/signalled")"
none_mounted && fail "nothing is mounted under a lazy process"
kill -TERM $pid
wait $pid
rc=$?
[ $rc -eq 143 ] || fail "exit $rc after SIGTERM"
exec 9>&-
ended

# a process left to itself: the mount ends with it
cat >"$dmtcp/bin/dmtcp_restart" <<'END'
#!/bin/bash
for file; do :; done
exec 3<"$file"
sleep 1 <&3 &
exit 0
END
must "$thawfs" restart --dmtcp "$dmtcp" a.thaw
none_mounted && fail "the mount ended under a process"
ended
