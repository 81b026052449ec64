#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# pack --flatten: what was packed with a base becomes, byte for byte, what it would have been without.
. "$(dirname "$0")/lib.sh"
requires jq

cd "$T" || exit 1
mkdir tree
must "$bin/tool_genimage" mem tree/heap --size=3M --kind=heap >/dev/null
must "$bin/tool_genimage" mem tree/floats --size=2M --kind=floats >/dev/null
must "$bin/tool_genimage" mem tree/random --size=1M --kind=random >/dev/null
must "$bin/tool_genimage" mem tree/zeros --size=4M --kind=zero --sparse >/dev/null
ln -s heap tree/link
ln tree/random tree/second
mkdir tree/empty
for i in $(seq 50); do echo "small file $i" >"tree/small$i"; done
cp -a tree tree2
head -c 300000 /dev/urandom | dd of=tree2/heap bs=4096 seek=100 conv=notrunc status=none
echo new >tree2/new
cp -a tree2 tree3
head -c 5000 /dev/urandom >tree3/third

# packed with a base, and with a base that has one, in every codec
for codec in "-z 3" "--codec lz4" "--raw"; do
	rm -rf store && mkdir store
	# shellcheck disable=SC2086
	{
		must "$thawfs" pack -q $codec -o store/1.thaw tree
		must "$thawfs" pack -q $codec --base store/1.thaw -o store/2.thaw tree2
		must "$thawfs" pack -q $codec --base store/2.thaw -o store/3.thaw tree3
		must "$thawfs" pack -q $codec -o plain2.thaw tree2
		must "$thawfs" pack -q $codec -o plain3.thaw tree3
	}
	[ "$("$thawfs" info --json store/3.thaw | jq '.n_chunks_base > 10 and (.bases | length) == 2')" = true ] ||
		fail "$codec: the third image does not lean on the others"
	must "$thawfs" pack -q --flatten --verify -o flat2.thaw store/2.thaw
	must cmp flat2.thaw plain2.thaw
	must "$thawfs" pack --flatten --json -o flat3.thaw store/3.thaw >flat.json
	must cmp flat3.thaw plain3.thaw
	[ "$(jq -r .id flat.json)" = "$("$thawfs" info --json flat3.thaw | jq -r .id)" ] || fail "the id in --json"
	[ "$(jq .image_bytes flat.json)" -eq "$(stat -c %s flat3.thaw)" ] || fail "image_bytes in --json"
	must "$thawfs" verify -q flat3.thaw
	must "$thawfs" diff -q flat3.thaw store/3.thaw
	must cmp <("$thawfs" pack -q --flatten -o - store/3.thaw) flat3.thaw
	[ "$(stat -c %a flat3.thaw)" = 600 ] || fail "mode $(stat -c %a flat3.thaw)"
done

# in place; what has no base is copied as it is
must "$thawfs" pack -q --flatten -o store/3.thaw store/3.thaw
must cmp store/3.thaw flat3.thaw
must "$thawfs" pack -q --flatten -o again.thaw flat3.thaw
must cmp again.thaw flat3.thaw

# but not of what SRC needs, nor by way of it
must_fail 1 "$thawfs" pack --flatten -o store/1.thaw store/2.thaw
says "cannot use base 'store/1.thaw': the image would take its place"
must cmp <("$thawfs" pack -q --flatten -o - store/2.thaw) plain2.thaw
cp flat3.thaw .x.thaw.partial
must_fail 1 "$thawfs" pack --flatten -o x.thaw .x.thaw.partial
says "cannot write 'x.thaw': that would go by way of '.x.thaw.partial', which is to be read"
must cmp flat3.thaw .x.thaw.partial
rm .x.thaw.partial

# a base elsewhere, and nowhere
mkdir away
must "$thawfs" pack -q --raw --base store/1.thaw -o away/2.thaw tree2
must_fail 1 "$thawfs" pack --flatten -o x.thaw away/2.thaw
says "its base $("$thawfs" info --json store/1.thaw | jq -r .id) ('1.thaw') is not there"
[ ! -e x.thaw ] || fail "an image in spite of a missing base"
must "$thawfs" pack -q --flatten --base-path store -o x.thaw away/2.thaw
must cmp plain2.thaw x.thaw

# a damaged chunk, of the base and of the image itself: an error, and the old image stays
cp x.thaw old.thaw
off=$("$thawfs" info --json store/1.thaw | jq '.file_size - .index_bytes - 4096 - 100000')
printf 'damage' | dd of=store/1.thaw bs=1 seek="$off" conv=notrunc status=none
must_fail 3 "$thawfs" pack --flatten --base-path store -o x.thaw away/2.thaw
says "cannot read 'store/1.thaw': chunk "
must cmp x.thaw old.thaw
printf 'damage' | dd of=flat2.thaw bs=1 seek=5000 conv=notrunc status=none
must_fail 3 "$thawfs" pack --flatten -o x.thaw flat2.thaw
says "cannot read 'flat2.thaw': chunk 0 at offset 4096: "
must cmp x.thaw old.thaw
[ -z "$(find . -name '*.partial')" ] || fail "litter: $(find . -name '*.partial')"

# memory that is in the files of a CRIU parent cannot be taken in
must "$bin/tool_genimage" criu criu --size=2M --parents=1 >/dev/null
must "$thawfs" pack -q -o store/0.thaw criu/0
must "$thawfs" pack -q -o store/1.thaw criu/1
if "$thawfs" info --json store/1.thaw | jq -e '.properties.source == "criu"' >/dev/null; then
	must_fail 1 "$thawfs" pack --flatten -o x.thaw store/1.thaw
	says "cannot flatten 'store/1.thaw': address space '1234' leads into files of '0.thaw', its parent"
	must cmp x.thaw old.thaw
	cp store/0.thaw old0.thaw
	must_fail 1 "$thawfs" pack -o store/0.thaw criu/1
	says "cannot use base 'store/0.thaw': the image would take its place"
	must cmp store/0.thaw old0.thaw
	mv store/0.thaw gone.thaw
	must_fail 1 "$thawfs" verify store/1.thaw
	says "is missing: address spaces lead into its files"
	mv gone.thaw store/0.thaw
	must "$thawfs" verify -q store/1.thaw
fi

# not an image, and options that say how to store
must_fail 3 "$thawfs" pack --flatten -o x.thaw tree/small1
must_fail 1 "$thawfs" pack --flatten -o x.thaw tree
for o in "-z 3" --raw "--codec lz4" "--chunk 64K" --gunzip --no-filter --host; do
	# shellcheck disable=SC2086
	must_fail 2 "$thawfs" pack --flatten $o -o x.thaw old.thaw
	says "--flatten copies what is stored as it is"
done
must_fail 2 "$thawfs" pack --flatten old.thaw
says "--flatten needs -o"
must cmp x.thaw old.thaw
exit 0
