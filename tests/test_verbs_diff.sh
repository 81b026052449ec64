#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# thawfs diff: one change at a time is found, named and measured; the bytes are those that cmp finds.
. "$(dirname "$0")/lib.sh"
requires jq cmp

cd "$T" || exit 1
mkdir -p a/sub
must "$bin/tool_genimage" mem a/data --size=2M --kind=heap >/dev/null
must "$bin/tool_genimage" mem a/zeros --size=2M --kind=zero --sparse >/dev/null
for i in 1 2 3 4 5; do echo "small $i" >a/sub/small$i; done
ln -s data a/link
ln a/sub/small1 a/hard
must "$thawfs" pack -q -o a.thaw a

# fresh_b: a copy to change
fresh_b() { rm -rf b && cp -a a b; }
# differs CODE LINE...: diff of a.thaw with b packed now prints these lines and a summary, in this order
differs() {
	local want=$1
	shift
	must "$thawfs" pack -q -o b.thaw b
	"$thawfs" diff -b "${opts[@]}" a.thaw b.thaw >out 2>err
	local rc=$?
	[ $rc -eq "$want" ] || fail "diff: exit $rc: $(cat out err)"
	[ ! -s err ] || fail "diff said: $(cat err)"
	[ "$(sed '$d' out)" = "$(printf '%s\n' "$@")" ] || fail "diff printed: $(cat out)"
}
opts=()

fresh_b
differs 0
[ "$(cat out)" = "same: 11 members" ] || fail "of the same: $(cat out)"
touch -d '2001-01-01' b/data
differs 0 # not unless asked for
opts=(--times)
differs 1 "differs    data: time"
opts=()
fresh_b && chmod 751 b/data && differs 1 "differs    data: mode"
fresh_b && ln -sf sub b/link && differs 1 "differs    link: target"
fresh_b && rm b/link && mkfifo b/link && differs 1 "differs    link: type"
fresh_b && rm b/hard && differs 1 "only in A  hard" "differs    sub/small1: links"
fresh_b && rm b/hard && cp -a a/hard b/hard && ln b/sub/small2 b/x && differs 1 "differs    hard: links" \
	"differs    sub/small1: links" "differs    sub/small2: links" "only in B  x"
fresh_b && rm -r b/sub && differs 1 "differs    hard: links" "only in A  sub" "only in A  sub/small1" \
	"only in A  sub/small2" "only in A  sub/small3" "only in A  sub/small4" "only in A  sub/small5"
fresh_b && mkdir b/s b/sub.d && differs 1 "only in B  s" "only in B  sub.d" # neighbours in the order of a walk
fresh_b && echo "small 6" >b/sub/small3 && differs 1 "differs    sub/small3: data (8)"
fresh_b && echo more >>b/sub/small5 && differs 1 "differs    sub/small5: size, data (5)"
fresh_b && truncate -s 3M b/zeros && differs 1 "differs    zeros: size, data (1048576)"
fresh_b && printf x | dd of=b/zeros bs=1 seek=1000000 conv=notrunc status=none && differs 1 "differs    zeros: data (262144)"
if [ "$(id -u)" = 0 ]; then
	fresh_b && chown 1:2 b/data && differs 1 "differs    data: owner"
fi
if setfattr -n user.test -v 1 a/sub/small4 2>/dev/null; then
	must "$thawfs" pack -q -o a.thaw a
	fresh_b && setfattr -n user.test -v 2 b/sub/small4 && differs 1 "differs    sub/small4: xattrs"
	fresh_b && setfattr -x user.test b/sub/small4 && differs 1 "differs    sub/small4: xattrs"
fi

# ranges: by chunks, by pages, and where the cuts differ by pages in any case; --pages are exactly those of cmp
fresh_b
for off in 5000 300000 300100 1500000; do
	printf '\377\000\377' | dd of=b/data bs=1 seek=$off conv=notrunc status=none
done
opts=(-r)
differs 1 "           data at offset 0: 524288 bytes" "           data at offset 1310720: 262144 bytes" \
	"differs    data: data (786432)"
opts=(-r --pages)
differs 1 "           data at offset 4096: 4096 bytes" "           data at offset 299008: 4096 bytes" \
	"           data at offset 1499136: 4096 bytes" "differs    data: data (12288)"
[ "$(cmp -l a/data b/data | awk '{print int(($1 - 1) / 4096) * 4096}' | uniq | tr '\n' ' ')" = "4096 299008 1499136 " ] ||
	fail "cmp finds other pages"
must "$thawfs" pack -q --chunk 64K -z 5 -o b64.thaw b
"$thawfs" diff -b -r a.thaw b64.thaw | sed '$d' >got
must cmp <(sed '$d' out) got
[ "$("$thawfs" diff --json a.thaw b64.thaw | jq '.decoded_bytes > 0')" = true ] || fail "nothing was decoded"
[ "$("$thawfs" diff --json a.thaw a.thaw | jq .decoded_bytes)" = 0 ] || fail "the same image was decoded"
must "$thawfs" pack -q --chunk 64K --codec lz4 -o a64.thaw a
must "$thawfs" diff -q a.thaw a64.thaw
"$thawfs" diff -q a.thaw b.thaw >out 2>&1
[ $? -eq 1 ] || fail "-q: not 1"
[ ! -s out ] || fail "-q printed: $(cat out)"
# with a base nothing is read from it, and it need not be there
mkdir away
must "$thawfs" pack -q --base a.thaw -o away/b.thaw b
"$thawfs" diff a.thaw away/b.thaw >out 2>err
[ $? -eq 1 ] || fail "with a missing base"
grep -q '^differs    data: data (768.0 KiB)$' out || fail "with a missing base: $(cat out err)"

# a random tree of changes against cmp, at several sizes and chunk sizes
seed=$(long_or "$RANDOM" 7)
RANDOM=$seed
for round in $(seq "$(long_or 40 6)"); do
	rm -rf r s && mkdir r
	for f in 1 2 3; do head -c $((RANDOM * 20)) /dev/urandom >r/$f; done
	cp -a r s
	for f in 1 2 3; do
		size=$(stat -c %s s/$f)
		for _ in 1 2 3; do
			printf 'x' | dd of=s/$f bs=1 seek=$((size ? RANDOM * 20 % size : 0)) conv=notrunc status=none
		done
	done
	must "$thawfs" pack -q -o r.thaw r
	must "$thawfs" pack -q --chunk "$((64 << RANDOM % 3))K" -o s.thaw s
	"$thawfs" diff --pages --json r.thaw s.thaw |
		jq -r '.members[] | .path as $p | .ranges[] | "\($p) \(.offset) \(.len)"' |
		while read -r p off len; do seq -f "$p %.0f" "$off" 4096 $((off + len - 1)); done | sort >got
	for f in 1 2 3; do
		cmp -l r/$f s/$f 2>/dev/null | awk -v f=$f '{print f, int(($1 - 1) / 4096) * 4096}'
	done | sort -u >want
	# ranges begin at the start of a page, for a file's offset is what pages are counted from
	cmp -s want got || fail "seed $seed, round $round: $(diff want got | head -n 5)"
done

# address spaces: one that only one has, a region that grew, one that changed its protection
mkdir p q
must "$bin/tool_genimage" dmtcp p/ckpt.dmtcp --size=1M --areas=3 --pid=42 >/dev/null
must "$bin/tool_genimage" dmtcp q/ckpt.dmtcp --size=2M --areas=3 --pid=42 >/dev/null
must "$bin/tool_genimage" dmtcp q/other.dmtcp --size=1M --areas=1 --pid=43 >/dev/null
must "$thawfs" pack -q -o p.thaw p
must "$thawfs" pack -q -o q.thaw q
"$thawfs" diff --json p.thaw q.thaw >json
[ $? -eq 1 ] || fail "processes that differ"
"$thawfs" maps --json p.thaw >p.json
"$thawfs" maps --json q.thaw >q.json
# the pieces of A are the regions of A, and those of B of B: nothing is left out but what is the same, or twice
python3 - json p.json q.json <<'PY' || fail "the pieces are wrong"
import json, sys
diff, *maps = [json.load(open(f)) for f in sys.argv[1:]]
for side, image in zip("ab", maps):
    for space in image["spaces"]:
        pieces = [r for r in diff["regions"] if r["space"] == space["name"] and side in r]
        for region in space["regions"]:
            own = [p for p in pieces if p[side]["addr"] == region["addr"]]
            assert all(region["addr"] <= p["addr"] and p["addr"] + p["len"] <= region["addr"] + region["len"] for p in own)
            assert sum(p["len"] for p in own) <= region["len"]
            for p in own:
                assert all(p[side][k] == region[k] for k in ("len", "perms", "flags", "pgoff", "name"))
        if not any(s["name"] == space["name"] for s in (maps[1] if side == "a" else maps[0])["spaces"]):
            assert sum(p["len"] for p in pieces) == sum(r["len"] for r in space["regions"])
            assert all(p["in"] == side for p in pieces) and pieces
starts = {r["addr"] for s in maps[0]["spaces"] for r in s["regions"]}
grown = [r for r in diff["regions"] if r["in"] == "b" and r["b"]["addr"] in starts and r["addr"] > r["b"]["addr"]]
assert grown, "no region grew"
PY
must "$thawfs" diff -q p.thaw p.thaw

# damage: what can be read is compared, the rest is named, exit 3
fresh_b
printf 'x' | dd of=b/data bs=1 seek=10 conv=notrunc status=none
must "$thawfs" pack -q -o b.thaw b
cp b.thaw bad.thaw
printf 'damage' | dd of=bad.thaw bs=1 seek=5000 conv=notrunc status=none
must_fail 3 "$thawfs" diff --pages -b a.thaw bad.thaw
says "cannot read 'bad.thaw': chunk 0 at offset 4096: "
says "differs    data: unreadable (262144)"
says "cannot compare all of 'a.thaw' and 'bad.thaw': 262144 bytes cannot be read"
# checksums alone need no data
must_fail 1 "$thawfs" diff a.thaw bad.thaw
exit 0
