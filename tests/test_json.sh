#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# docs/JSON.md is what --json prints: every key printed is documented, every key documented is printed by some run
# below, and the examples are of that form too.
. "$(dirname "$0")/lib.sh"
requires jq python3

doc=$src/../docs/JSON.md
cd "$T" || exit 1

# the keys in a JSON text, as the document writes them
keys() {
	jq -r '[paths(scalars) | map(if type == "number" then "[]" else . end) | join(".") | gsub("\\.\\[\\]"; "[]")
		| sub("\\.xattrs\\..*"; ".xattrs.*") | sub("^properties\\..*"; "properties.*")] | unique[]'
}
# shellcheck disable=SC2016 # backticks of Markdown
documented() { sed -n "/^## thawfs $1 --json/,/^## /p" "$doc" | sed -n 's/^| `\([^`]*\)` |.*/\1/p' | sort -u; }
# shellcheck disable=SC2016
example() { sed -n "/^## thawfs $1 --json/,/^## /p" "$doc" | sed -n '/^```json$/,/^```$/p' | grep -v '^```'; }

# a tree with a file of each kind, a process with regions, and a name that is not UTF-8
mkdir tree
must "$bin/tool_genimage" dmtcp tree/ckpt.dmtcp --size=1M --areas=3 --tiny=1 --pid=42 --zero=tail >/dev/null
printf 'x' >"tree/"$'not\xffutf8\n'
ln -s ckpt.dmtcp tree/link
mkfifo tree/fifo
mkdir tree/dir
setfattr -n user.test -v "$(printf 'a"b')" tree/ckpt.dmtcp 2>/dev/null && has_xattr=1
mknod tree/dev c 1 3 2>/dev/null && has_device=1
cp -a tree tree2
printf 'difference' | dd of=tree2/ckpt.dmtcp bs=1 seek=500000 conv=notrunc status=none
rm tree2/fifo
echo new >tree2/new
# another process under the same name: other regions
cp -a tree tree3
must "$bin/tool_genimage" dmtcp tree3/ckpt.dmtcp --size=1M --areas=1 --pid=42 >/dev/null

run() { # VERB NAME COMMAND...: keep what it prints in VERB.NAME.json, whatever its exit code is
	local verb=$1 name=$2
	shift 2
	"$@" >"$verb.$name.json" 2>err
	jq . "$verb.$name.json" >/dev/null || fail "$*: not JSON: $(head -c 500 "$verb.$name.json")"
	python3 -c 'import json, sys; json.loads(open(sys.argv[1], "rb").read().decode("utf-8"))' "$verb.$name.json" ||
		fail "$*: not UTF-8"
}
run pack 1 "$thawfs" pack --json -o a.thaw tree
mkdir elsewhere
run pack 2 "$thawfs" pack --json -o elsewhere/b.thaw --base a.thaw tree2
must "$thawfs" pack -q -o c.thaw tree3
run ls 1 "$thawfs" ls --json -R a.thaw
run du 1 "$thawfs" du --json -a a.thaw
run info 1 "$thawfs" info --json elsewhere/b.thaw
run maps 1 "$thawfs" maps --json a.thaw
run unpack 1 "$thawfs" unpack --json a.thaw dest
run diff 1 "$thawfs" diff --json --base-path . a.thaw elsewhere/b.thaw
[ "$(jq '.same, .complete, .n_members_differ, .n_only_a, .n_only_b' diff.1.json | tr '\n' ' ')" = "false true 1 1 1 " ] ||
	fail "diff: $(cat diff.1.json)"
run diff 2 "$thawfs" diff --json a.thaw c.thaw
run diff 3 "$thawfs" diff --json a.thaw a.thaw
[ "$(jq .same diff.3.json)" = true ] || fail "an image differs from itself"

# damage: a chunk, the index, a base that is not there, a base that is damaged
cp a.thaw chunk.thaw
printf 'damage' | dd of=chunk.thaw bs=1 seek=5000 conv=notrunc status=none
cp a.thaw index.thaw
off=$("$thawfs" info --json a.thaw | jq '.file_size - .index_bytes - 4096')
printf 'damage' | dd of=index.thaw bs=1 seek=$((off + 8192)) conv=notrunc status=none
run verify 1 "$thawfs" verify --json a.thaw chunk.thaw index.thaw elsewhere/b.thaw none.thaw
[ "$(jq -c '[.images[].state]' verify.1.json)" = '["good","damaged","damaged","base-missing","failed"]' ] ||
	fail "states: $(jq -c '[.images[].state]' verify.1.json)"
cp elsewhere/b.thaw elsewhere/own.thaw # the chunks that b does not leave to its base are those that differ
printf 'damage' | dd of=elsewhere/own.thaw bs=1 seek=5000 conv=notrunc status=none
run diff 4 "$thawfs" diff --json --pages --base-path . a.thaw elsewhere/own.thaw
[ "$(jq '.unreadable_bytes > 0 and (.same | not) and .complete' diff.4.json)" = true ] || fail "diff: $(cat diff.4.json)"
mkdir store
cp chunk.thaw store/a.thaw
run verify 2 "$thawfs" verify --json --base-path store elsewhere/b.thaw
[ "$(jq -r '.images[0].damaged_chunks[0].base' verify.2.json)" = a.thaw ] || fail "$(cat verify.2.json)"
run unpack 2 "$thawfs" unpack --json chunk.thaw dest2
[ "$(jq .n_failed unpack.2.json)" -ge 1 ] || fail "unpack: $(cat unpack.2.json)"

# a series with images of each kind, and one that belongs to none
mkdir serial
head -c 2000000 /dev/urandom >serial/data
for i in 1 2 3; do run snap $i "$thawfs" snap --json serial store; done
head -c 300000 store/serial-000001.thaw >store/serial-000004.thaw
head -c 300000 store/serial-000001.thaw >store/.serial-000005.thaw.partial
run series 1 "$thawfs" series --json store
[ "$(jq -c '[.series[].images[].state]' series.1.json)" = '["complete","complete","complete","partial","partial","complete"]' ] ||
	fail "states: $(jq -c '[.series[].images[].state]' series.1.json)"
run snap 4 "$thawfs" snap --json --job sim --rank 0 --ranks 1 --step x serial store
run series 3 "$thawfs" series --json store
rm store/sim*
exec 9>store/.serial.lock
flock 9
run series 2 "$thawfs" series --json store serial # as if another snap were running
exec 9>&-
[ "$(jq -c '[.series[].images[].busy]' series.2.json)" = '[false,false,false,false,true]' ] || fail "busy: $(cat series.2.json)"
run prune 1 "$thawfs" prune --json -n --keep 1 store serial
run prune 2 "$thawfs" prune --json --keep 1 store serial
run clean 1 "$thawfs" clean --json -n store
run clean 2 "$thawfs" clean --json store

# device buffers, with the double of the driver
export THAWFS_LIBCUDA=$bin/double/libcuda.so.1
run gpu 1 "$thawfs" gpu devices --json
run gpu 2 "$thawfs" gpu save --json -o gpu.thaw tree/ckpt.dmtcp
run gpu 3 "$thawfs" gpu load --json --read-back gpu.thaw

# names: the bytes come back
python3 - ls.1.json <<'PY' || fail "the name did not come back"
import json, os, sys
paths = [os.fsencode(m["path"]) for m in json.load(open(sys.argv[1]))["members"]]
sys.exit(0 if b"not\xffutf8\n" in paths else 1)
PY

status=0
for verb in pack unpack ls du info maps diff verify snap series prune clean gpu; do
	documented $verb >want
	[ -s want ] || fail "JSON.md says nothing about $verb"
	cat "$verb".*.json | jq -c . | while read -r line; do keys <<<"$line"; done | sort -u >got
	example $verb | keys >example.keys || fail "the example of $verb is not JSON"
	if comm -13 want got | grep . >extra; then
		echo "$verb prints keys that JSON.md does not have:" && cat extra && status=1
	fi
	if comm -13 want example.keys | grep . >extra; then
		echo "the example of $verb has keys that its table does not:" && cat extra && status=1
	fi
	comm -23 want got >missing
	[ "${has_device:-0}" = 1 ] || sed -i '/rdev/d' missing
	[ "${has_xattr:-0}" = 1 ] || sed -i '/xattrs/d' missing
	# keys that need an image this test does not make
	if grep . missing >extra; then
		echo "JSON.md has keys that $verb did not print:" && cat extra && status=1
	fi
done
[ $status = 0 ] || fail "docs/JSON.md and --json disagree"
exit 0
