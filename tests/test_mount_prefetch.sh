#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# -o prefetch: what is resident and in which order, when it stops, its bound of bandwidth, a killed worker, damage.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=tests/lib_mount.sh
. "$(dirname "$0")/lib_mount.sh"
requires fuse root jq
mnt=$T/mnt
resident() { "$bin/tool_resident" "$@" || fail "tool_resident $*"; }
prefetch() { status "$mnt" ".prefetch.$1"; }
idle() { [ "$(prefetch running)" = 0 ]; }
# pages may be evicted as soon as they are there: most is as good as all, and order is told by halves
most() { [ "$1" -le "$2" ] && [ "$1" -ge $(($2 * 9 / 10)) ]; }
has_pushed() { [ "$(prefetch bytes)" -ge "$1" ]; }

# islands in holes, an end inside a page, and a DMTCP image whose payloads are not aligned
mkdir "$T/src" "$T/dir"
head -c 6M /dev/urandom >"$T/src/a"
truncate -s 20M "$T/src/a"
seq 1 500000 >>"$T/src/a"
must "$bin/tool_genimage" dmtcp "$T/src/c.dmtcp" --size=8M --areas=40 --tiny=20 --misaligned --pid=42 >/dev/null
must "$thawfs" pack -q -o "$T/i.thaw" "$T/src"
ws=$T/i.thaw.ws

# options
for bad in prefetch=some prefetch_rate=0; do
	must_fail 2 "$thawfs" mount -o $bad "$T/i.thaw" "$T/dir"
	says "option '${bad%=*}': '${bad#*=}' is not possible"
done
must_fail 2 "$thawfs" mount -o record,prefetch=ws "$T/i.thaw" "$T/dir"
says "options 'record' and 'prefetch' exclude each other"

# everything with data is resident a while after an open, nothing else is, and no reader decodes again
mount_image -o prefetch=all "$T/i.thaw" "$mnt"
for f in a c.dmtcp .thaw/mem/c.dmtcp; do
	exec 7<"$mnt/$f"
	wait_until 20 idle || fail "$f: prefetch does not end: $(prefetch files)"
	[ "$(prefetch 'files[0].phase')" = "done" ] || fail "$f: $(prefetch files)"
	read -r data in_data in_holes <<<"$(resident "$mnt/$f")"
	[ "$data" -gt 500 ] || fail "$f: $data pages with data?"
	most "$in_data" "$data" || fail "$f: $in_data of $data pages with data are resident: $(prefetch files)"
	[ "$in_holes" = 0 ] || fail "$f: $in_holes pages of holes are resident"
	[ $f != a ] || cp "$mnt/.thawfs/status.json" "$T/status.json"
	exec 7<&-
done
# docs/JSON.md names the keys of status.json
jq -r '[paths(type != "object" and type != "array") | map(if type == "number" then "[]" else . end) | join(".") | gsub("\\.\\[\\]"; "[]")
	| sub("^(?<k>requests|errors)\\..*"; .k + ".*")] | unique[]' "$T/status.json" | sort >"$T/got"
# shellcheck disable=SC2016 # backticks of Markdown
sed -n '/^## status.json/,/^## /p' "$src/../docs/JSON.md" | sed -n 's/^| `\([^`]*\)` |.*/\1/p' | grep -v '^hydrate.error$' | sort >"$T/want"
diff "$T/want" "$T/got" || fail "docs/JSON.md and status.json disagree"
bytes=$(prefetch bytes)
for f in a c.dmtcp; do must cmp "$T/src/$f" "$mnt/$f"; done
[ "$bytes" -ge 20000000 ] || fail "$bytes bytes by prefetch"
grep -q "^thawfs_prefetch_bytes_total [1-9]" "$mnt/.thawfs/metrics" || fail "metrics say nothing of bytes by prefetch"
grep -q "^thawfs_read_bytes_total [1-9]" "$mnt/.thawfs/metrics" || fail "metrics say nothing of bytes by demand"
unmount "$mnt" "$daemon"
mount_image -o prefetch=all "$T/i.thaw" "$mnt"
exec 7<"$mnt/a"
wait_until 20 idle
must cmp "$T/src/a" "$mnt/a"
[ "$(status "$mnt" .cache.misses)" = 0 ] || fail "a reader had to decode what was prefetched"
bytes=$(prefetch bytes)
exec 7<&-
# once resident, another open does nothing; evicted and read again, the open after that does
exec 7<"$mnt/a" 7<&-
idle || fail "prefetched again though resident"
[ "$(prefetch bytes)" = "$bytes" ] || fail "pushed again though resident"
dd if="$mnt/a" of=/dev/null iflag=nocache count=0 status=none
dd if="$mnt/a" of=/dev/null bs=4k count=1 status=none
exec 7<"$mnt/a"
wait_until 20 has_pushed $((bytes + 5000000)) || fail "evicted and not prefetched again"
exec 7<&-
unmount "$mnt" "$daemon"

# a bound of bandwidth: never more than its share and the first piece; stops at the last close, goes on at an open
rate=$((2 << 20))
mount_image -o prefetch=all,prefetch_rate=$rate "$T/i.thaw" "$mnt"
start=$(date +%s%N)
exec 7<"$mnt/a" 8<"$mnt/a"
wait_until 20 has_pushed 1000000 || fail "nothing is prefetched: $(prefetch files)"
exec 7<&-
[ "$(prefetch 'files[0].opens')" = 1 ] || fail "two opens and a close: $(prefetch files)"
wait_until 20 has_pushed 2000000
bytes=$(prefetch bytes)
now=$(date +%s%N)
[ "$bytes" -le $((rate * ((now - start) / 1000000 + 1) / 1000 + 262144)) ] || fail "$bytes bytes in $((now - start)) ns at $rate a second"
[ "$(prefetch throttled)" -ge 3 ] || fail "the bound of bandwidth was not met"
exec 8<&-
wait_until 5 idle || fail "does not stop at the last close"
bytes=$(prefetch bytes)
sleep 0.4
[ "$(prefetch bytes)" -le $((bytes + 262144)) ] || fail "goes on after the last close"
bytes=$(prefetch bytes)
exec 7<"$mnt/a"
wait_until 20 has_pushed $((bytes + 1)) || fail "does not go on after another open"
# the worker is killed in the middle; its successor goes on, to the end
if [ "$(status "$mnt" .kernel.resend)" = true ]; then
	worker=$(status "$mnt" .worker_pid)
	kill -9 "$worker"
	wait_until 5 gone "$worker" || fail "the worker does not die while it prefetches"
	prefetch 'files[0].phase' | grep -Eq '^(whole|done)$' || fail "the successor does not go on: $(prefetch files)"
fi
wait_until 30 idle || fail "prefetch does not end: $(prefetch files)"
read -r data in_data _ <<<"$(resident "$mnt/a")"
most "$in_data" "$data" || fail "$in_data of $data pages are resident after stops and kills"
must cmp "$T/src/a" - <&7
exec 7<&-
unmount "$mnt" "$daemon"

# the working set in its order, and nothing else. Recorded without read-ahead: chunks 20 (a megabyte is 4), 3, 11
pick() { dd if="$mnt/a" of=/dev/null bs=4k skip="$(($1 * 64 + 5))" count=1 iflag=direct status=none; }
mount_image -o record "$T/i.thaw" "$mnt"
for c in 20 3 11; do must pick $c; done
unmount "$mnt" "$daemon"
[ "$(stat -c %s "$ws")" = $((40 + 3 * 4)) ] || fail "$(stat -c %s "$ws") bytes of working set for 3 chunks"
in_chunk() { resident "$mnt/a" $(($1 * 262144)) 262144 | cut -d' ' -f2; }
mount_image -o prefetch_rate=1M "$T/i.thaw" "$mnt"
[ "$(prefetch mode)" = ws ] || fail "ws is not what is done without the option"
exec 7<"$mnt/a"
for _ in $(seq 200); do
	# looked at from the last to the first: what was there when the one after it was is still
	last=$(in_chunk 11) && second=$(in_chunk 3) && first=$(in_chunk 20)
	[ "$second" = 0 ] || [ "$first" -ge 32 ] || fail "the second chunk came before the first: $first $second $last"
	[ "$last" = 0 ] || [ "$second" -ge 32 ] || fail "the last chunk came before the second: $first $second $last"
	[ "$last" -ge 32 ] && break
	sleep 0.01
done
wait_until 20 idle
most "$(resident "$mnt/a" | cut -d' ' -f2)" 192 || fail "resident: $(resident "$mnt/a") instead of three chunks"
exec 7<&-
# a file without a part in it
exec 7<"$mnt/c.dmtcp"
wait_until 20 idle
[ "$(resident "$mnt/c.dmtcp" | cut -d' ' -f2)" = 0 ] || fail "what was not recorded was prefetched"
exec 7<&-
unmount "$mnt" "$daemon"
# recorded first, then the rest
mount_image -o prefetch=all,prefetch_rate=8M "$T/i.thaw" "$mnt"
exec 7<"$mnt/a"
for _ in $(seq 100); do
	last=$(in_chunk 0) && first=$(in_chunk 20)
	[ "$last" = 0 ] || [ "$first" -ge 32 ] || fail "the beginning of the file came before the working set"
	[ "$last" = 0 ] || break
done
wait_until 30 idle || fail "prefetch does not end: $(prefetch files)"
read -r data in_data _ <<<"$(resident "$mnt/a")"
most "$in_data" "$data" || fail "$in_data of $data pages are resident with a working set"
[ "$(prefetch 'files[0].done')" -le $(((data + 128) * 4096)) ] || fail "the working set was pushed twice: $(prefetch files)"
exec 7<&-
unmount "$mnt" "$daemon"

# of another image, or damaged: said, and not used
for why in "it belongs to another image" "it is damaged"; do
	if [ "$why" = "it is damaged" ]; then
		must cp "$T/i.thaw" "$T/other.thaw" && cp "$ws" "$T/other.thaw.ws" && echo x >>"$T/other.thaw.ws"
	else
		must "$thawfs" pack -q -o "$T/other.thaw" "$T/src/a" && cp "$ws" "$T/other.thaw.ws"
	fi
	mount_image "$T/other.thaw" "$mnt"
	for _ in 1 2; do
		exec 7<"$mnt/a"
		wait_until 20 idle
		[ "$(resident "$mnt/a" | cut -d' ' -f2)" = 0 ] || fail "a working set was used though $why"
		exec 7<&-
	done
	unmount "$mnt" "$daemon"
	[ "$(grep -c "cannot use the working set '$T/other.thaw.ws': $why" "$T/log")" = 1 ] || fail "$why: $(cat "$T/log")"
done
rm "$ws"

# beside a read: the second small one of a chunk brings the rest of it in, the first does not; never with prefetch=off
page() { dd if="$mnt/a" of=/dev/null bs=4k skip="$1" count=1 status=none; }
beside() { prefetch pushed_bytes; }
for mode in off ws; do
	mount_image -o prefetch=$mode,readahead=4K "$T/i.thaw" "$mnt"
	if [ "$(status "$mnt" .kernel.readahead_kb)" = 4 ]; then
		exec 7<"$mnt/a"
		page 5
		page $((64 * 9 + 5))
		[ "$(beside)" = 0 ] || fail "pushed after the first read of a chunk"
		page 40
		has_beside() { [ "$(beside)" -ge 262144 ]; }
		if [ $mode = ws ]; then
			wait_until 10 has_beside || fail "nothing is pushed beside a second read: $(prefetch pushed_bytes)"
			[ "$(in_chunk 0)" -ge 32 ] || fail "pushed, but not resident: $(in_chunk 0)"
			exec 7<&-
			for f in a c.dmtcp; do must cmp "$T/src/$f" "$mnt/$f"; done
			[ "$(beside)" -ge 2000000 ] || fail "$(beside) bytes pushed while all is read in pages"
		else
			exec 7<&-
			[ "$(beside)" = 0 ] || fail "pushed though prefetch=off"
		fi
	fi
	unmount "$mnt" "$daemon"
done

# damage: the rest is resident, the log says what is wrong, and only who asks for it gets an error
mkdir "$T/bad"
head -c 3M /dev/zero | tr '\0' x >"$T/bad/x"
head -c 1M /dev/urandom >>"$T/bad/x"
must "$thawfs" pack -q --raw -o "$T/bad.thaw" "$T/bad"
at=$(grep -obUa -m1 xxxxxxxx "$T/bad.thaw" | head -1 | cut -d: -f1)
printf y | dd of="$T/bad.thaw" bs=1 seek=$((at + 4096)) conv=notrunc status=none
mount_image -o prefetch=all "$T/bad.thaw" "$mnt"
exec 7<"$mnt/x"
wait_until 20 idle
[ "$(prefetch errors)" -ge 1 ] || fail "damage was not noticed: $(prefetch files)"
[ "$(status "$mnt" .errors.damaged)" = 0 ] || fail "counted as a request that failed, but there was none"
read -r data in_data _ <<<"$(resident "$mnt/x")"
[ "$data" = 1024 ] || fail "$data pages of data"
most "$in_data" 256 || fail "$in_data of $data pages are resident beside the damage"
cat "$mnt/x" >"$T/out" 2>"$T/err" && fail "damaged data was read"
grep -q 'Input/output error' "$T/err" || fail "$(cat "$T/err")"
cmp -s "$T/out" <(head -c "$(stat -c %s "$T/out")" "$T/bad/x") || fail "wrong bytes before the error"
[ "$(status "$mnt" .errors.damaged)" -ge 1 ] || fail "a request failed and is not counted"
must cmp <(tail -c 1M "$T/bad/x") <(tail -c 1M "$mnt/x")
exec 7<&-
unmount "$mnt" "$daemon"

# readers of all kinds, a cache that is too small, and workers killed while they push
mount_image -o prefetch=all,cache=32M "$T/i.thaw" "$mnt"
if [ "$(status "$mnt" .kernel.resend)" = true ]; then
	"$bin/tool_mount_reader" "$T/src/a" "$mnt/a" 6 2000 >"$T/readers" 2>&1 &
	readers=$!
	on_exit kill -9 "$readers"
	for _ in $(seq "$(long_or 300 10)"); do
		worker=$(status "$mnt" .worker_pid)
		kill -9 "$worker"
		sleep 0.0$((RANDOM % 9 + 1))
		wait_until 5 gone "$worker" || fail "process $worker did not die"
	done
	kill -TERM "$readers"
	wait "$readers" || {
		cat "$T/readers"
		fail "readers were lost, deceived or kept waiting"
	}
fi
must cmp "$T/src/a" "$mnt/a"
unmount "$mnt" "$daemon"
