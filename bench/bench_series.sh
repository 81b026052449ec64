#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# shellcheck disable=SC2015
# A state directory of floats and zeros on a tmpfs: snap against cp -r, to a disk and to the tmpfs; a second snap with a
# tenth changed; back into the tmpfs.
. "$(dirname "$0")/lib.sh"
mib=${BENCH_SERIES_MIB:-4096}
R=$(mktemp -d "${BENCH_TMPFS:-/dev/shm}/thaw-bench.XXXXXX") || die "no tmpfs"
trap 'rm -rf "$R" "$D/copy" "$D/store"' EXIT
export R
slabs=16
mkdir -p "$R/state"
# three quarters floats, a quarter zeros that were written
each=$((mib / slabs))
for ((i = 0; i < slabs; i++)); do
	"$bin/tests/tool_genimage" mem "$R/state/slab$i" --size="$((each * 3 / 4))M" --kind=floats --zero=none --seed="$i" >/dev/null &&
		head -c "$((each / 4))M" /dev/zero >>"$R/state/slab$i" || die "cannot make the state"
done

snap="$thawfs snap -q --base none"
compare "to disk" 1.0 "rm -rf $D/copy $D/store; mkdir $D/store" \
	"cp -r and sync" "cp -r $R/state $D/copy && sync -f $D/copy" "snap" "$snap $R/state $D/store"
compare "to tmpfs" 1.5 "rm -rf $R/copy $R/store; mkdir $R/store" \
	"cp -r" "cp -r $R/state $R/copy" "snap" "$snap $R/state $R/store"

# size
mkdir -p "$D/store" && $snap "$R/state" "$D/store" || die "cannot snap"
ours=$(stat -c %s "$D/store/state-000001.thaw")
theirs=$(du -sb "$R/state" | cut -f1)
row "size" "cp -r" bytes 1 "$theirs" "$theirs" 0 1 - "du -sb"
row "size" "snap" bytes 1 "$ours" "$ours" 0 "$(awk -v a="$theirs" -v b="$ours" 'BEGIN { print a / b }')" 1 "$snap"

# a tenth changed, spread over all slabs: the first snap each time stands alone, the second has it as base
changed=$((each * 1024 / 10))
for ((i = 0; i < slabs; i++)); do
	"$bin/tests/tool_genimage" mem "$R/new" --size="${changed}K" --kind=floats --zero=none --seed=$((100 + i)) >/dev/null &&
		dd if="$R/new" of="$R/state/slab$i" bs=1M seek=$((each / 5)) conv=notrunc status=none || die "cannot change the state"
done
compare "a tenth changed" 4 "rm -f $D/store/*-00000[2-9].thaw" \
	"the first" "$snap $R/state $D/store" "the second" "$thawfs snap -q --base $D/store/state-000001.thaw $R/state $D/store"

# back; both from a disk whose files are in the page cache
cp -r "$R/state" "$D/copy" && sync -f "$D/copy" && rm -rf "$R/state" || die "cannot copy"
image=$D/store/state-000001.thaw
compare "back into tmpfs" 1.5 "rm -rf $R/back" "cp -r" "cp -r $D/copy $R/back" "unpack" "$thawfs unpack -q $image $R/back"
