#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Opening an image of 1 TiB (nearly all holes) with 1,000,000 chunks: as often as it takes to see the median.
. "$(dirname "$0")/lib.sh"
mib=${BENCH_OPEN_MIB:-1048576}

input sparse "$mib"
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
