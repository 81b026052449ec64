#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Memory is bounded by threads and chunks, not by the size of the input: 96 MiB, 8 MiB for each thread and 64 bytes
# for each stored chunk, for 16 GiB with 100,000 regions as for anything else.
[ -d /dev/shm ] && [ -w /dev/shm ] && export TMPDIR=/dev/shm
. "$(dirname "$0")/lib.sh"
[ -z "${THAW_SAN:-}" ] || skip "sanitizers take memory of their own"
mkdir "$T/w" && cd "$T/w" || exit 1
gen=$bin/tool_genimage

# bounded THREADS CHUNKS COMMAND...
bounded() {
	local threads=$1 chunks=$2 limit rss
	shift 2
	limit=$((96 * 1024 + threads * 8 * 1024 + chunks * 64 / 1024))
	must "$bin/tool_rss" rss "$@"
	rss=$(cat rss)
	echo "$rss KiB of $limit: ${*##*/}"
	[ "$rss" -le "$limit" ] || fail "$rss KiB of memory, $limit are allowed: $*"
}
# all DIR THREADS [OPTION...]: pack, verify and unpack within the limit
all() {
	local dir=$1 j=$2 n
	shift 2
	rm -rf i.thaw back
	# how many chunks there are is only known afterwards
	must "$thawfs" pack -q --no-fsync "$@" -o i.thaw "$dir"
	n=$("$thawfs" info --json i.thaw | jq .n_chunks)
	bounded "$j" "$n" "$thawfs" pack -q --no-fsync -j "$j" "$@" -o i.thaw "$dir"
	bounded "$j" "$n" "$thawfs" verify -q -j "$j" i.thaw
	bounded "$j" "$n" "$thawfs" unpack -q --no-fsync -j "$j" i.thaw back
	must "$bin/tool_sparse" "$dir" back
}

mkdir large && must "$gen" dmtcp large/ckpt.dmtcp --size=16G --areas=100000 --kind=zero --sparse
[ "$(stat -c %s large/ckpt.dmtcp)" -ge $((16 << 30)) ] || fail "the input is too small"
all large 2
[ "$("$thawfs" info --json i.thaw | jq .n_regions)" -ge 100000 ] || fail "less than 100,000 regions"
rm -rf large

mkdir data && must "$gen" mem data/m --size="$(long_or 2G 256M)" --kind=process
must "$gen" mem data/noise --size=64M --kind=random
all data 1
all data 8
all data 2 --chunk 4M
rm -rf data

# many files: what a file takes is bounded too, and small
mkdir many && (cd many && seq 20000 | split -l 1 -a 4 -)
all many 2
exit 0
