#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Processes whose memory a page server brings: they see every byte as it was, whether the server lives or is killed over
# and over, they can be checkpointed before it is all there, and they die of damage instead of going on without it.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=tests/lib_mount.sh
. "$(dirname "$0")/lib_mount.sh"
# shellcheck source=tests/lib_restart.sh
. "$(dirname "$0")/lib_restart.sh"
requires root
[ "${THAW_SAN:-}" != tsan ] || skip "ThreadSanitizer does not know processes made by clone"
commands='count 1;verify;fork;write;verify;zero;verify;count 1'
good='restarted;count 3;verified;child verified;written;verified;zeroed;verified;count 4;'
export THAW_TEST=$T # by which this test knows its servers

# helpers NAME: processes of this test with that name
helpers() {
	local p
	for p in $(pgrep -x "$1"); do
		if tr '\0' '\n' <"/proc/$p/environ" 2>/dev/null | grep -qx "THAW_TEST=$T"; then echo "$p"; fi
	done
}
none_left() { [ -z "$(helpers thawfs-pages)$(helpers thawfs-keeper)$(helpers thawfs-hold)" ]; }
# profile KEY: a number from what the page server said at its end
profile() {
	wait_until 20 grep -q 'profile: all memory' "$T/err" || fail "the page server did not come to its end: $(cat "$T/err")"
	sed -n "s/.*profile: all memory.*[ :]\([0-9]*\) $1.*/\1/p" "$T/err"
}

make_checkpoint "$T/c.dmtcp" -m 96 -t 4 -a 200
must "$thawfs" pack -q -o "$T/c.thaw" "$T/c.dmtcp"
"$thawfs" restart --mode=uffd --dry-run "$T/c.thaw/c.dmtcp" >/dev/null || fail "no plan"
echo exit 0 | "$thawfs" restart --mode=uffd "$T/c.thaw/c.dmtcp" >"$T/out" 2>&1
grep -q "userfaultfd: " "$T/out" && skip "needs userfaultfd with its events"

for ((i = 0; i < $(long_or 50 2); i++)); do
	drive "$good" "$commands" "$thawfs" restart --mode=uffd "$T/c.thaw/c.dmtcp"
done
make_checkpoint "$T/areas.dmtcp" -m 1 -a 3000
must "$thawfs" pack -q -o "$T/areas.thaw" "$T/areas.dmtcp"
drive "$good" "$commands" "$thawfs" restart --mode=uffd -j 1 "$T/areas.thaw/areas.dmtcp"

# most of the memory is served, not read; zeros are not; auto chooses this
for mode in uffd auto; do
	drive 'restarted;verified;' 'verify' "$thawfs" restart --profile --mode=$mode "$T/c.thaw/c.dmtcp"
	[ "$(sed -n 's/.* served_bytes=\([0-9]*\)$/\1/p' "$T/err")" -gt $((64 << 20)) ] || fail "$mode: $(cat "$T/err")"
	[ "$(sed -n 's/.* read_bytes=\([0-9]*\) .*/\1/p' "$T/err")" -lt $((16 << 20)) ] || fail "$mode: $(cat "$T/err")"
	total=$(($(profile 'bytes on demand') + $(profile 'bytes filled')))
	if [ "$total" -lt $((64 << 20)) ] || [ "$total" -gt $((80 << 20)) ]; then fail "$mode: $(cat "$T/err")"; fi
	[ "$(profile 'bytes poisoned')" = 0 ] || fail "$mode: $(cat "$T/err")"
done
"$thawfs" restart --dry-run --json "$T/c.thaw/c.dmtcp" >"$T/plan.json"
grep -q '"mode": "uffd"' "$T/plan.json" || fail "auto is not uffd: $(head -n 3 "$T/plan.json")"
"$thawfs" restart --dry-run --json "$T/areas.thaw/areas.dmtcp" >"$T/plan.json"
grep -q '"mode": "eager"' "$T/plan.json" || fail "auto is not eager: $(head -n 3 "$T/plan.json")"

# a second checkpoint at once: it waits for what is missing
drive 'restarted;saved;verified;' "save $T/second.dmtcp;verify" "$thawfs" restart --mode=uffd "$T/c.thaw/c.dmtcp"
drive 'restarted;verified;' verify "$thawfs" restart "$T/second.dmtcp"
must "$thawfs" pack -q -o "$T/second.thaw" "$T/second.dmtcp"
drive 'restarted;verified;' verify "$thawfs" restart --mode=uffd "$T/second.thaw/second.dmtcp"
wait_until 20 none_left || fail "helpers are left behind"

# servers killed while the memory comes; once the keeper too
for ((i = 0; i < $(long_or 10 2); i++)); do
	{
		for ((k = 0; k < 25; k++)); do
			for p in $(helpers thawfs-pages); do kill -9 "$p" 2>/dev/null && echo "$p" >>"$T/killed"; done
			if [ "$k" = 8 ]; then for p in $(helpers thawfs-keeper); do kill -9 "$p"; done; fi
			sleep 0.00$((RANDOM % 10))
		done
	} 2>/dev/null &
	killer=$!
	drive 'restarted;child verified;verified;written;verified;' 'fork;verify;write;verify' "$thawfs" restart -j 1 \
		--mode=uffd "$T/c.thaw/c.dmtcp"
	wait "$killer"
done
[ "$(wc -l <"$T/killed")" -ge 3 ] || fail "nothing was killed"
wait_until 30 none_left || fail "helpers are left behind"

# a damaged chunk in the middle of the large block
cp "$T/c.thaw" "$T/bad.thaw"
printf '\xff\xff\xff\xff\xff\xff' |
	dd of="$T/bad.thaw" bs=1 seek=$(($(stat -c %s "$T/bad.thaw") / 2)) conv=notrunc status=none
must_fail 3 "$thawfs" verify -q "$T/bad.thaw"
{ echo verify | "$thawfs" restart --mode=uffd "$T/bad.thaw/c.dmtcp" >"$T/out" 2>"$T/err"; } 2>/dev/null
rc=$?
[ $rc = 135 ] || fail "exit $rc, not that of SIGBUS: $(cat "$T/out" "$T/err")"
if grep -qE 'WRONG|verified' "$T/out"; then fail "it read something: $(cat "$T/out")"; fi
grep -qE "cannot read '$T/bad.thaw': memory view 'c.dmtcp' at address 0x[0-9a-f]+: .* bytes are poisoned" "$T/err" ||
	fail "the page server did not say what is damaged: $(cat "$T/err")"

# what it cannot be used for
must_fail 1 "$thawfs" restart --mode=uffd "$T/c.dmtcp"
says "that takes IMAGE/MEMBER, or a file on a mount"
drive 'restarted;verified;' verify "$thawfs" restart --mode=auto "$T/c.dmtcp"
must_fail 2 env THAWFS_RESTART_MODE=uffd bash -c ". '$src/lib_restart.sh'; raw '$T/c.dmtcp'"
says "is for thawfs restart alone"
# where it is not allowed, auto does without
chmod 755 "$T"
chmod 644 "$T/c.thaw"
if command -v setpriv >/dev/null && [ "$(cat /proc/sys/vm/unprivileged_userfaultfd)" = 0 ] &&
	setpriv --reuid=65534 --clear-groups "$thawfs" --version >/dev/null 2>&1; then
	must_fail 1 setpriv --reuid=65534 --clear-groups "$thawfs" restart --mode=uffd "$T/c.thaw/c.dmtcp"
	says "cannot restart '$T/c.thaw/c.dmtcp' by a page server: userfaultfd: Operation not permitted"
	must_fail 0 setpriv --reuid=65534 --clear-groups "$thawfs" restart --dry-run --json "$T/c.thaw/c.dmtcp"
	says '"mode": "eager"'
fi

requires fuse jq
mkdir "$T/store"
mv "$T/c.thaw" "$T/store"
mount_image "$T/store" "$T/mnt"
for mode in uffd auto; do
	drive "$good" "$commands" "$thawfs" restart --mode=$mode "$T/mnt/c/c.dmtcp"
done
# not by way of the mount
drive 'restarted;verified;' 'verify' "$thawfs" restart --profile --mode=uffd "$T/mnt/c/c.dmtcp"
[ "$(sed -n 's/.* mapped_bytes=\([0-9]*\) .*/\1/p' "$T/err")" = 0 ] || fail "$(cat "$T/err")"
unmount "$T/mnt" "$daemon"
wait_until 20 none_left || fail "helpers are left behind"
