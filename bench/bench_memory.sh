#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Peak memory of packing, unpacking and verifying 16 GiB (half of it holes) in 100,000 regions. The limit is
# 96 MiB + 8 MiB per thread + 64 bytes per stored chunk.
. "$(dirname "$0")/lib.sh"
jobs=2
size=${BENCH_MEMORY_MIB:-16384}
areas=${BENCH_MEMORY_AREAS:-100000}

input=$D/areas-$size-$areas
make_once "$input" \
	"$bin/tests/tool_genimage dmtcp $input.new --size=${size}M --areas=$areas --zero=stripes --sparse"
image=$input.thaw
peak="/usr/bin/time -f %M -o $D/peak"
"$thawfs" pack -q -j$jobs -o "$image" "$input" || die "cannot pack $input"
chunks=$("$thawfs" info --json "$image" | jq .n_chunks) || die "cannot read $image"
limit=$((96 * 1024 + 8 * 1024 * jobs + chunks * 64 / 1024))
note "$chunks chunks, $("$thawfs" info --json "$image" | jq .n_regions) regions: at most $limit KiB"
measure "$size MiB" KiB $limit "pack" "$peak $thawfs pack -q -j$jobs -o $image $input && cat $D/peak"
measure "$size MiB" KiB $limit "verify" "$peak $thawfs verify -q -j$jobs $image && cat $D/peak"
measure "$size MiB" KiB $limit "unpack" \
	"rm -rf $D/out.dir && $peak $thawfs unpack -q -j$jobs $image $D/out.dir && cat $D/peak"
measure "$size MiB" KiB $limit "info" "$peak $thawfs info $image >/dev/null && cat $D/peak"
rm -rf "$D/out.dir" "$D/peak"
