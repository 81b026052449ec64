#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# thawfs gpu at the command line, with the double of the driver or (THAW_GPU=real) that of this machine.
. "$(dirname "$0")/lib.sh"
requires jq

cd "$T" || exit 1
if [ "${THAW_GPU:-}" = real ]; then
	"$thawfs" gpu devices || skip "needs a GPU"
else
	export THAWFS_LIBCUDA=$bin/double/libcuda.so.1 THAW_DOUBLE_REPORT=$T/report
fi
head -c 3000000 /dev/urandom >random
: >empty
truncate -s 9000000 zeros
head -c 700000 /dev/zero | tr '\0' 'x' >cache
head -c 2000000 "$thawfs" >program
must_fail 2 "$thawfs" gpu save -q -o x.thaw random # it has no such option

# there and back, by an image and by a directory
must "$thawfs" gpu save -o a.thaw --verify --discard cache random empty zeros cache program
must "$thawfs" verify -q a.thaw
must "$thawfs" gpu load --read-back --profile a.thaw
must "$thawfs" unpack -q a.thaw d
for f in random empty zeros program; do must cmp $f d/gpu/$f; done
must cmp -n 700000 d/gpu/cache /dev/zero
[ "$(stat -c %s d/gpu/cache)" = 700000 ] || fail "the discarded buffer has not its size"
[ "$(stat -c %b d/gpu/cache)" = 0 ] || fail "the discarded buffer is not a hole"
must "$thawfs" gpu load --read-back d
must "$thawfs" pack -q -o again.thaw d
must "$thawfs" gpu load --read-back again.thaw
must "$thawfs" gpu save --raw --plain -o - random >piped.thaw
must "$thawfs" gpu load --read-back piped.thaw
[ "$(stat -c %s piped.thaw)" -gt 3000000 ] || fail "--raw did compress"
# the same once more is the same image
must "$thawfs" gpu save --plain --raw -o piped2.thaw random
[ "$("$thawfs" info --json piped.thaw | jq -r .id)" = "$("$thawfs" info --json piped2.thaw | jq -r .id)" ] ||
	[ "${THAW_GPU:-}" = real ] || fail "the same bytes make another image"

# what is wrong
must_fail 2 "$thawfs" gpu
must_fail 2 "$thawfs" gpu freeze
must_fail 2 "$thawfs" gpu save random
says "where to?"
must_fail 2 "$thawfs" gpu load --discard x a.thaw
says "'load' has no such option"
must_fail 2 "$thawfs" gpu load --map x=y a.thaw
must_fail 1 "$thawfs" gpu save --gpu 7 -o b.thaw random
must_fail 1 "$thawfs" gpu save -o b.thaw nothing
must_fail 1 "$thawfs" gpu load none.thaw
must "$thawfs" pack -q -o plain.thaw random
must_fail 1 "$thawfs" gpu load plain.thaw
says "it has no device buffers"
cp piped.thaw bad.thaw
printf 'damage' | dd of=bad.thaw bs=1 seek=5000 conv=notrunc status=none
must_fail 3 "$thawfs" gpu load bad.thaw
says "'random' at offset 0"
sed 's/"random"/"..\/random"/' d/gpu/manifest.json >m && cp m d/gpu/manifest.json
must_fail 3 "$thawfs" gpu load d
says "buffer 0: 'id' is not 1 to 200"
[ ! -e b.thaw ] || fail "a save that failed left an image"
if [ "${THAW_GPU:-}" = real ]; then exit 0; fi

THAWFS_LIBCUDA=/nonexistent/libcuda.so.1 must_fail 1 "$thawfs" gpu devices
says "thawfs: no usable GPU: /nonexistent/libcuda.so.1 not found"
[ -e /usr/lib/x86_64-linux-gnu/libcuda.so.1 ] || {
	THAWFS_LIBCUDA='' must_fail 1 "$thawfs" gpu devices
	says "thawfs: no usable GPU: libcuda.so.1 not found"
}
THAW_DOUBLE_VERSION=10010 must_fail 1 "$thawfs" gpu devices
says "too old"
THAW_DOUBLE_CAPACITY=4194304 must_fail 1 "$thawfs" gpu load a.thaw
says "are needed"
THAW_DOUBLE_REFUSE=1 must_fail 1 "$thawfs" gpu load a.thaw
says "is taken"
THAW_DOUBLE_CHIP=1 must_fail 1 "$thawfs" gpu load a.thaw
THAW_DOUBLE_CHIP=1 must "$thawfs" gpu load --any-chip a.thaw
THAW_DOUBLE_ASYNC_AT=2 THAW_DOUBLE_ASYNC_CODE=214 must_fail 1 "$thawfs" gpu load a.thaw
says "could not be corrected (CUDA 214)"
# copies that come late, and a watch on what they copy from
THAW_DOUBLE_DELAY_US=2000 THAW_DOUBLE_CHECK=1 must "$thawfs" gpu load --read-back a.thaw
# the same cards in another order
THAW_DOUBLE_DEVICES=2 must "$thawfs" gpu save --gpu 1 -o two.thaw random
uuid=$(THAW_DOUBLE_DEVICES=2 "$thawfs" gpu devices --json | jq -r '.gpus[].uuid' | tr '\n' ' ')
# shellcheck disable=SC2086
set -- $uuid
[ "$(THAW_DOUBLE_DEVICES=2 THAW_DOUBLE_ROTATE=1 "$thawfs" gpu load --json two.thaw | jq '.buffers[0].gpu')" = 0 ] ||
	fail "not loaded on the card it is of"
THAW_DOUBLE_DEVICES=1 must_fail 1 "$thawfs" gpu load two.thaw
says "there is no $2 here"
[ "$(THAW_DOUBLE_DEVICES=1 "$thawfs" gpu load --json --map "$2=$1" two.thaw | jq '.buffers[0].gpu')" = 0 ] || fail "--map"

grep -qv '^clean' report && fail "the driver was not used well: $(grep -v '^clean' report)"
[ "$(grep -c '^clean' report)" -gt 15 ] || fail "the double did not report"
exit 0
