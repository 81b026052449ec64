#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Pack is killed at random moments, asked to stop, run twice at a time, and given sources that change under it.
[ -d /dev/shm ] && [ -w /dev/shm ] && export TMPDIR=/dev/shm
. "$(dirname "$0")/lib.sh"
mkdir "$T/w" && cd "$T/w" || exit 1
mkdir src oldsrc place
must "$bin/tool_genimage" mem src/heap --size=24M --kind=heap
must "$bin/tool_genimage" dmtcp src/ckpt.dmtcp --size=8M --areas=50
for i in $(seq 100); do head -c $((i * 91)) src/heap >src/small-"$i"; done
echo old >oldsrc/file
must "$thawfs" pack -q -o old.thaw oldsrc
start=$(date +%s%N)
must "$thawfs" pack -q -o good.thaw src
took=$((($(date +%s%N) - start) / 1000)) # microseconds

# a random moment of a run, in seconds
moment() {
	local us=$(((RANDOM << 15 | RANDOM) % (took + took / 5)))
	printf '%d.%06d' $((us / 1000000)) $((us % 1000000))
}
# one of the two images and nothing else, but perhaps the temporary name
whole_or_old() {
	local left
	cmp -s place/i.thaw old.thaw || cmp -s place/i.thaw good.thaw || fail "$1: a half image"
	left=$(find place -mindepth 1 ! -name i.thaw -printf '%f ')
	case $left in "" | ".i.thaw.partial ") ;; *) fail "$1: litter: $left" ;; esac
}

# -- SIGKILL ------------------------------------------------------------------------------------
cut_short=0
for i in $(seq "$(long_or 200 40)"); do
	cp old.thaw place/i.thaw
	"$thawfs" pack -q -o place/i.thaw src &
	pid=$!
	sleep "$(moment)"
	kill -KILL $pid 2>/dev/null
	wait $pid 2>/dev/null
	[ $? -eq 137 ] && cut_short=$((cut_short + 1))
	whole_or_old "kill $i"
done
[ $cut_short -gt 5 ] || fail "only $cut_short runs were killed in time"
# a name that did not exist
rm place/i.thaw
for i in 1 2 3 4 5; do
	timeout -s KILL "$(moment)" "$thawfs" pack -q -o place/i.thaw src 2>/dev/null
	[ ! -e place/i.thaw ] || cmp -s place/i.thaw good.thaw || fail "kill without an old image: a half one"
	rm -f place/i.thaw
done
: >place/.i.thaw.partial # whatever is left there
head -c 50000000 /dev/zero >>place/.i.thaw.partial
must "$thawfs" pack -q -o place/i.thaw src
must cmp place/i.thaw good.thaw
[ "$(ls -A place)" = i.thaw ] || fail "the next run leaves: $(ls -A place)"

# -- SIGTERM, SIGINT, SIGHUP: no litter at all --------------------------------------------------
stopped=0
for i in $(seq "$(long_or 60 15)"); do
	cp old.thaw place/i.thaw
	sig=$(case $((i % 3)) in 0) echo TERM ;; 1) echo INT ;; 2) echo HUP ;; esac)
	# the shell makes background jobs ignore SIGINT; env does not
	env --default-signal="$sig" "$thawfs" pack -q -o place/i.thaw src 2>"$T/out" &
	pid=$!
	sleep "$(moment)"
	kill -"$sig" $pid 2>/dev/null
	wait $pid 2>/dev/null
	rc=$?
	whole_or_old "SIG$sig"
	case $rc in
	0) cmp -s place/i.thaw good.thaw || fail "SIG$sig: exit 0 without the image" ;;
	1)
		stopped=$((stopped + 1))
		must cmp place/i.thaw old.thaw
		says "interrupted"
		;;
	129 | 130 | 143) must cmp place/i.thaw old.thaw ;; # before there was a handler
	*) fail "SIG$sig: exit $rc" ;;
	esac
	[ "$(ls -A place)" = i.thaw ] || fail "SIG$sig: left $(ls -A place)"
done
[ $stopped -gt 2 ] || fail "only $stopped runs were stopped in time"

# the same for unpack: no file is half there, and the next run with -f makes all of them
unpacked=0
for i in $(seq "$(long_or 40 12)"); do
	rm -rf back
	sig=$(case $((i % 2)) in 0) echo TERM ;; 1) echo INT ;; esac)
	env --default-signal="$sig" "$thawfs" unpack -q good.thaw back 2>"$T/out" &
	pid=$!
	sleep "0.0$((RANDOM % 9))"
	kill -"$sig" $pid 2>/dev/null
	wait $pid 2>/dev/null
	rc=$?
	[ $rc -eq 1 ] && unpacked=$((unpacked + 1)) && says "interrupted"
	[ -d back ] || continue
	[ $rc -ge 128 ] && continue
	for f in back/*; do
		[ ! -e "$f" ] || cmp -s "$f" "src/${f#back/}" || fail "SIG$sig: unpack left $f half written"
	done
	[ -z "$(find back -name '.thawfs-*')" ] || fail "SIG$sig: unpack left litter"
done
"$thawfs" unpack -q good.thaw back 2>/dev/null # over whatever is there: fails or not
must "$thawfs" unpack -q -f good.thaw back
must diff -r src back

# -- two at a time ------------------------------------------------------------------------------
# a writer that waits for its source holds the lock for as long as we like: it is stopped in the middle
rm -f place/i.thaw
for i in 1 2 3 4 5; do
	"$thawfs" pack -q -o place/i.thaw src &
	pid=$!
	for _ in $(seq 3000); do if [ -s place/.i.thaw.partial ]; then break; fi; sleep 0.001; done
	kill -STOP $pid 2>/dev/null
	if [ -e place/.i.thaw.partial ] && [ -d /proc/$pid ]; then
		must_fail 1 "$thawfs" pack -q -o place/i.thaw oldsrc
		must cmp "$T/out" - <<<"thawfs: cannot write 'place/i.thaw': another process is writing it"
		must "$thawfs" pack -q -o place/other.thaw oldsrc # another name is free
		rm place/other.thaw
		excluded=1
	fi
	kill -CONT $pid
	must wait $pid
	must cmp place/i.thaw good.thaw
	rm place/i.thaw
done
[ "${excluded:-0}" = 1 ] || fail "no two packs met"
# many at once: each wins or is told so, and what stands there is whole
for i in $(seq "$(long_or 40 8)"); do
	pids=()
	for _ in 1 2 3 4; do
		"$thawfs" pack -q -o place/i.thaw oldsrc 2>/dev/null &
		pids+=($!)
	done
	won=0
	for pid in "${pids[@]}"; do
		wait "$pid"
		rc=$?
		[ $rc -le 1 ] || fail "several at a time: exit $rc"
		[ $rc -eq 0 ] && won=$((won + 1))
	done
	[ $won -ge 1 ] || fail "several at a time: nobody won"
	must cmp place/i.thaw old.thaw
	[ "$(ls -A place)" = i.thaw ] || fail "several at a time: left $(ls -A place)"
	rm place/i.thaw
done

# -- a source that changes while it is read -----------------------------------------------------
# changes WHAT COMMAND...: pack stops in the middle, the command changes the source, the pack must fail and say so
changes() {
	local what=$1 pid rc
	shift
	for _ in 1 2 3 4 5 6; do
		rm -rf moving && cp -a src moving && cp old.thaw place/i.thaw
		cp moving/heap moving/z-last
		"$thawfs" pack -q -j 1 -o place/i.thaw moving 2>"$T/out" &
		pid=$!
		for _ in $(seq 2000); do [ -s place/.i.thaw.partial ] && break; done
		kill -STOP $pid 2>/dev/null
		if ! [ -s place/.i.thaw.partial ]; then
			kill -CONT $pid 2>/dev/null
			wait $pid
			continue
		fi
		"$@"
		kill -CONT $pid
		wait $pid
		rc=$?
		[ $rc -eq 1 ] || fail "$what: exit $rc"
		must cmp place/i.thaw old.thaw
		[ "$(ls -A place)" = i.thaw ] || fail "$what: left $(ls -A place)"
		return 0
	done
	fail "$what: never in time"
}
changes "longer" sh -c 'echo more >>moving/z-last'
says "cannot pack 'z-last': it changed while"
changes "shorter" truncate -s 1000000 moving/z-last
says "cannot pack 'z-last': it "
changes "written in place" dd if=src/ckpt.dmtcp of=moving/z-last bs=4096 count=1 conv=notrunc status=none
says "cannot pack 'z-last': it changed while"
changes "replaced" sh -c 'cp moving/heap moving/new && mv moving/new moving/z-last'
says "cannot pack 'z-last': it changed while"
changes "removed" rm moving/z-last
says "cannot open 'z-last': No such file or directory"
exit 0
