#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Opening an image of 1 TiB (nearly all holes) with 1,000,000 chunks: as often as it takes to see the median.
. "$(dirname "$0")/lib.sh"
n=${BENCH_OPEN_CHUNKS:-1000000}

input=$D/sparse-$n
make_once "$input" "python3 -c '
import os
fd = os.open(\"$input.new\", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
for i in range($n):
    os.pwrite(fd, (i + 1).to_bytes(8, \"little\"), i << 20)
os.ftruncate(fd, 1 << 40)
'"
image=$input.thaw
[ "$image" -nt "$thawfs" ] || "$thawfs" pack -q --chunk=64K -o "$image" "$input" || die "cannot pack $input"
chunks=$("$thawfs" info --json "$image" | jq .n_chunks) || die "cannot read $image"
note "$image: $chunks chunks"
times=$D/times
: >"$times"
for ((i = 0; i <= 20; i++)); do
	seconds "$times" "$thawfs info $image"
	[ $i -gt 0 ] || : >"$times"
done
read -r min median spread < <(stats <"$times")
row "1 TiB" "info" s 20 "$min" "$median" "$spread" "$(awk -v m="$median" 'BEGIN { print 0.020 / m }')" 1 \
	"thawfs info (ratio: 20 ms / median)"
rm -f "$times"
