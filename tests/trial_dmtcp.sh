#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A trial with the real DMTCP, which has to be in $PATH; not part of the suite. For each of four programs and each mode:
# checkpoint, pack, restart from the image, a second checkpoint of what was restarted, pack, restart. The programs check
# their memory themselves. Usage: tests/trial_dmtcp.sh [MODE...]
set -u
modes=("${@:-eager}")
[ $# -gt 0 ] || modes=(eager lazy)
thawfs=$(realpath "${BUILD:-build}/thawfs")
for p in dmtcp_launch dmtcp_command dmtcp_restart; do
	command -v $p >/dev/null || {
		echo "needs DMTCP: there is no $p in \$PATH"
		exit 1
	}
done
T=$(mktemp -d "${TMPDIR:-/tmp}/thaw-dmtcp.XXXXXX")
export XDG_CACHE_HOME=$T/cache
mkdir "$T/cache"
port=$((20000 + RANDOM % 20000))
trap 'dmtcp_command -q -p $port --quit >/dev/null 2>&1; sleep 1; rm -rf "$T"' EXIT
failed=0
cd "$T" || exit 1

cat >prog.c <<'END'
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static volatile long ticks;

static uint64_t value(size_t i, int zero)
{
	uint64_t x = i >> 2;

	x = (x ^ x >> 33) * 0xff51afd7ed558ccdull;
	return zero ? 0 : x ^ x >> 29;
}

static void *tick(void *arg)
{
	for (;; usleep(1000))
		ticks++;
	return arg;
}

int main(int argc, char **argv)
{
	int n_threads = atoi(argv[1]), zero = argc > 3;
	size_t n = (size_t)atol(argv[2]) << 17;
	uint64_t *mem = malloc(n * sizeof(*mem));
	FILE *out = fopen("out", "a");
	pthread_t t;

	for (size_t i = 0; i < n; i++)
		mem[i] = value(i, zero);
	for (int i = 1; i < n_threads; i++)
		pthread_create(&t, NULL, tick, NULL);
	for (long count = 0;; count++, usleep(200000)) {
		size_t bad = 0;

		for (size_t i = 0; count % 5 == 4 && i < n; i++)
			bad += mem[i] != value(i, zero);
		fprintf(out, "count=%ld bad=%zu ticks=%ld\n", count, bad, ticks);
		fflush(out);
	}
}
END
cat >prog.py <<'END'
import hashlib, os, time

digest = lambda i: hashlib.sha256(str(i).encode()).digest()
data = {i: digest(i) for i in range(300000)}
blob = bytearray(os.urandom(1 << 20)) * 64
want = hashlib.sha256(blob).digest()
out, count = open("out", "a"), 0
while True:
    bad = 0
    if count % 3 == 2:
        bad = sum(data[i] != digest(i) for i in data) + (hashlib.sha256(blob).digest() != want)
    print("count=%d bad=%d" % (count, bad), file=out, flush=True)
    count += 1
    time.sleep(0.2)
END
gcc -O2 -pthread -o prog prog.c || exit 1

lines() { wc -l 2>/dev/null <out || echo 0; }
# progress N WHAT: wait for N more lines
progress() {
	local want=$(($(lines) + $1))
	for _ in $(seq 300); do
		[ "$(lines)" -lt $want ] || return 0
		sleep 0.2
	done
	failed=1
	echo "  $2: NO PROGRESS"
	return 1
}
say() {
	grep -q 'bad=[1-9]' out && failed=1 && echo "  WRONG MEMORY"
	echo "  $1: $(sed -n "$(($2 + 1))p" out) … $(tail -n 1 out)"
}
# checkpoint DIR: what runs at $port, then end it
checkpoint() {
	mkdir -p "$1"
	dmtcp_command -q -p $port -bc >/dev/null || failed=1
	dmtcp_command -q -p $port --quit >/dev/null
	sleep 0.5
	file=$(basename "$1"/*.dmtcp)
	"$thawfs" pack -q -o "$1.thaw" "$1" || failed=1
}
# restart MODE IMAGE DIR WHAT
restart() {
	local before
	before=$(lines)
	port=$((port + 1))
	mkdir -p "$3"
	"$thawfs" restart --profile --mode="$1" --ckptdir "$3" "$2" -- --new-coordinator -p $port -q -q >log 2>&1 &
	progress 6 "$4" || cat log
	say "$4" "$before"
	grep -o 'profile: .*' log | sed 's/^/    /'
}
trial() {
	local name=$1 mode
	shift
	mkdir "$T/$name"
	cd "$T/$name" || exit 1
	port=$((port + 1))
	mkdir first
	dmtcp_launch --new-coordinator -p $port --no-gzip --ckptdir first -q -q "$@" >log 2>&1 &
	progress 3 launch || return
	checkpoint first
	echo "$name: $(stat -c %s first/"$file") bytes, packed $(stat -c %s first.thaw), saved at $(tail -n 1 out)"
	for mode in "${modes[@]}"; do
		restart "$mode" "first.thaw/$(basename first/*.dmtcp)" "second.$mode" "$mode"
		checkpoint "second.$mode"
		restart "$mode" "second.$mode.thaw/$file" "third.$mode" "$mode, from its second checkpoint"
		dmtcp_command -q -p $port --quit >/dev/null
		sleep 0.5
	done
}
trial threads-1 "$T/prog" 1 256
trial threads-4 "$T/prog" 4 256
LANG=C.UTF-8 trial python "$(command -v python3)" "$T/prog.py"
trial zeros "$T/prog" 1 512 zero
cd "$T" || exit 1
for _ in $(seq 50); do
	grep -q thawfs-restart- /proc/self/mountinfo || break
	sleep 0.2
done
grep thawfs-restart- /proc/self/mountinfo && failed=1 && echo "  MOUNTS LEFT"
[ $failed -eq 0 ] && echo "all good"
exit $failed
