#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Processes restarted in every mode from files, pipes, mounts and images, and again from checkpoints of those: every byte
# of their memory is compared with what it was, by themselves.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=tests/lib_mount.sh
. "$(dirname "$0")/lib_mount.sh"
# shellcheck source=tests/lib_restart.sh
. "$(dirname "$0")/lib_restart.sh"
commands='count 1;verify;fork;write;verify;zero;verify;count 1'
good='restarted;count 3;verified;child verified;written;verified;zeroed;verified;count 4;'

try_all() {
	local file=$1 thaw=$T/${1##*/}.thaw
	drive "$good" "$commands" raw "$file"
	drive "$good" "$commands" raw_pipe "$file"
	for n in 1 2 7; do DMTCP_RESTART_READERS=$n drive "$good" "$commands" raw "$file"; done
	THAWFS_RESTART_MODE=lazy drive "$good" "$commands" raw "$file"
	for mode in eager lazy; do
		drive "$good" "$commands" "$thawfs" restart --mode=$mode "$file"
	done
	must "$thawfs" pack -q -o "$thaw" "$file"
	drive "$good" "$commands" "$thawfs" restart "$thaw/${file##*/}"
}

make_checkpoint "$T/threads.dmtcp" -m 32 -t 4
try_all "$T/threads.dmtcp"
make_checkpoint "$T/areas.dmtcp" -m 1 -a "$(long_or 10000 3000)"
try_all "$T/areas.dmtcp"
make_checkpoint "$T/large.dmtcp" -m "$(long_or 2048 256)" -t 1
try_all "$T/large.dmtcp"

drive 'restarted;' 'exit 0' "$thawfs" restart -j 3 --profile --mode=eager "$T/large.dmtcp.thaw/large.dmtcp"
grep -qE ' areas=[0-9]+ readers=3 read_bytes=[0-9]{8,} mapped_bytes=0 hole_bytes=[0-9]+$' "$T/err" || fail "no profile"

# a checkpoint of a restarted process, restarted, and so on
file=$T/threads.dmtcp
for i in 1 2 3 4; do
	mode=lazy
	[ $((i % 2)) = 0 ] && mode=eager
	drive "restarted;count $((i + 2));written;saved;verified;" "count 1;write;save $T/chain-$i.dmtcp;verify" \
		"$thawfs" restart --mode=$mode "$file"
	file=$T/chain-$i.dmtcp
done
drive 'restarted;verified;count 7;' 'verify;count 1' "$thawfs" restart "$file"

for ((i = 0; i < $(long_or 300 20); i++)); do
	drive 'restarted;verified;' verify "$thawfs" restart "$T/threads.dmtcp"
done

requires fuse root
mnt=$T/mnt
mkdir "$T/store"
mv "$T"/*.thaw "$T/store"
mount_image "$T/store" "$mnt"
for name in threads areas large; do
	for mode in eager lazy; do
		drive "$good" "$commands" "$thawfs" restart --mode=$mode "$mnt/$name.dmtcp/$name.dmtcp"
	done
done
# lazily means: most of the memory is mapped, from the name that stays
drive 'restarted;verified;' 'verify' "$thawfs" restart --profile --mode=lazy "$mnt/large.dmtcp/large.dmtcp"
read_bytes=$(sed -n 's/.* read_bytes=\([0-9]*\) .*/\1/p' "$T/err")
mapped=$(sed -n 's/.* mapped_bytes=\([0-9]*\) .*/\1/p' "$T/err")
[ "$mapped" -gt $((10 * read_bytes)) ] || fail "mapped $mapped bytes, read $read_bytes"
# a second checkpoint while nothing of the large block has been touched
drive 'restarted;saved;verified;' "save $T/second.dmtcp;verify" "$thawfs" restart --mode=lazy \
	"$mnt/large.dmtcp/large.dmtcp"
drive 'restarted;verified;' verify "$thawfs" restart "$T/second.dmtcp"
unmount "$mnt" "$daemon"
