#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# thawfs unpack as a verb: parts of an image, what is in the way, and nothing outside DEST, whatever lies in it.
. "$(dirname "$0")/lib.sh"
requires jq

cd "$T" || exit 1
mkdir -p tree/dir/sub tree/none
echo one >tree/file
echo two >tree/dir/two
echo three >tree/dir/sub/three
ln -s ../file tree/dir/up
ln -s "$T/outside" tree/dir/away
ln tree/dir/two tree/dir/hard
truncate -s 3M tree/dir/hole
echo odd >tree/dir/$'new\nline'
chmod 640 tree/dir/two
chmod 750 tree/dir/sub
touch -d '2001-02-03 04:05:06.789 UTC' tree/dir/sub/three tree/dir/sub tree/dir
must "$thawfs" pack -q -o i.thaw tree
equal() { [ "$1" = "$2" ] || fail "$3: $1, not $2"; }
# what a tree is: types, modes, times, targets, contents
tree_of() { (cd "$1" && find . -printf '%P\0%y %m %l %T@\n' | LC_ALL=C sort && find . -type f -exec cat {} + | md5sum); }

# all of it; the summary and its forms
equal "$("$thawfs" unpack i.thaw all)" "all: 5 files, 3.0 MiB" "the summary"
must cmp <(tree_of tree) <(tree_of all)
equal "$(stat -c %h all/dir/two)" 2 "links"
equal "$("$thawfs" unpack -b -f i.thaw all)" "all: 5 files, $((3145728 + 4 + 4 + 6 + 4))" "-b"
must cmp <(tree_of tree) <(tree_of all)
equal "$("$thawfs" unpack -q i.thaw quiet)" "" "-q"
mkdir empty
must "$thawfs" unpack -q i.thaw empty
must cmp <(tree_of tree) <(tree_of empty)
[ "$(du -k all/dir/hole | cut -f 1)" -le 16 ] || fail "the hole takes $(du -k all/dir/hole) KiB"

# what is there is not touched without -f
echo mine >all/file
must_fail 1 "$thawfs" unpack i.thaw all
says "it exists (-f replaces it)"
equal "$(cat all/file)" mine "a file in the way"
must "$thawfs" unpack -q -f i.thaw all
must cmp <(tree_of tree) <(tree_of all)
echo file >plain
must_fail 1 "$thawfs" unpack i.thaw plain
equal "$(cat plain)" file "DEST that is a file"
must_fail 1 "$thawfs" unpack i.thaw no/such/dir/x
[ ! -e no ] || fail "parents of DEST were made"

# -m: a file goes where cp would put it, a directory with all that is in it
must "$thawfs" unpack -q -m dir/two i.thaw two
must cmp two tree/dir/two
equal "$(stat -c '%a' two)" 640 "mode of a member"
mkdir into
must "$thawfs" unpack -q -m dir/two i.thaw into
must cmp into/two tree/dir/two
must "$thawfs" unpack -q -m dir i.thaw newdir
must cmp <(tree_of tree/dir) <(tree_of newdir)
must "$thawfs" unpack -q -m /dir/ i.thaw into
must cmp <(tree_of tree/dir) <(tree_of into/dir)
must "$thawfs" unpack -q -m dir/sub i.thaw sub
must cmp <(tree_of tree/dir/sub) <(tree_of sub)
must "$thawfs" unpack -q -m dir/up i.thaw link
equal "$(readlink link)" ../file "a symlink as member"
must "$thawfs" unpack -q -m $'dir/new\nline' i.thaw odd
must cmp odd tree/dir/$'new\nline'
must "$thawfs" unpack -q -m none i.thaw nothing
[ -d nothing ] || fail "an empty directory as member"
equal "$(ls -A nothing)" "" "an empty directory as member"
must_fail 1 "$thawfs" unpack -m dir/two i.thaw two
says "it exists (-f replaces it)"
must_fail 1 "$thawfs" unpack -m nix i.thaw x
says "nix"
must_fail 1 "$thawfs" unpack -m file/x i.thaw x
must_fail 1 "$thawfs" unpack -m ../tree i.thaw x
must_fail 1 "$thawfs" unpack -m dir/up/x i.thaw x
[ ! -e x ] || fail "something from nothing"

# symlinks planted in DEST lead nowhere: neither directories nor files are written through them, -f or not
mkdir outside
echo precious >outside/file
for force in "" -f; do
	rm -rf dest && mkdir dest
	ln -s ../outside dest/dir          # where a directory goes
	ln -s ../outside/file dest/file    # where a file goes
	ln -s ../outside/made dest/none    # dangling, where a directory goes
	# shellcheck disable=SC2086
	"$thawfs" unpack -q $force i.thaw dest >out 2>&1
	rc=$?
	[ -n "$force" ] || [ $rc -eq 1 ] || fail "a planted symlink: exit $rc"
	equal "$(ls -A outside)" file "what is outside ($force)"
	equal "$(cat outside/file)" precious "the file outside ($force)"
	[ -z "$force" ] || [ $rc -ne 0 ] || must cmp <(tree_of tree) <(tree_of dest)
done
# the same for members, and for a symlink that is in the image itself
rm -rf dest && mkdir dest && ln -s ../outside dest/dir
"$thawfs" unpack -q -f -m dir i.thaw dest >/dev/null 2>&1
equal "$(ls -A outside)" file "what is outside (-m)"
ln -s outside/made planted
"$thawfs" unpack -q -f -m file i.thaw planted >/dev/null 2>&1
equal "$(ls -A outside)" file "what is outside (a symlink as DEST)"
equal "$(readlink all/dir/away)" "$T/outside" "a symlink that leads away"
must "$thawfs" unpack -q -f i.thaw all # dir/away is there now and leads outside
equal "$(ls -A outside)" file "what is outside (the image's own symlink)"
# DEST itself may be a symlink to a directory: that is what the user named
mkdir real && ln -s real named
must "$thawfs" unpack -q i.thaw named
must cmp <(tree_of tree) <(tree_of real)

# -f replaces neither the image that is read nor a base of it, by whatever name
mkdir self && head -c 100000 /dev/urandom >self/f
must "$thawfs" pack -q -o own.thaw self
cp own.thaw own.copy
must_fail 1 "$thawfs" unpack -f -m f own.thaw own.thaw
says "cannot create 'own.thaw': the image, or a base of it, is in its place"
mkdir over && ln -s base.thaw over/link && ln over/link over/second && ln self/f over/base.thaw && ln self/f over/other
must "$thawfs" pack -q --base own.thaw -o more.thaw over
mkdir place && ln own.thaw place/base.thaw
must_fail 1 "$thawfs" unpack -f more.thaw place
says "cannot create 'base.thaw': the image, or a base of it, is in its place"
must cmp own.thaw own.copy
must cmp own.thaw place/base.thaw
rm place/base.thaw
must "$thawfs" unpack -q -f more.thaw place
# what fails before anything is there has no summary
must_fail 1 "$thawfs" unpack own.thaw self
says "cannot create 'f': it exists (-f replaces it)"
equal "$(wc -l <"$T/out")" 1 "lines of output"

# damage: the file is left out and named, the others are there
mkdir mixed
for i in 1 2 3; do head -c 300000 /dev/urandom >mixed/$i; done
must "$thawfs" pack -q -o m.thaw mixed
printf 'damage' | dd of=m.thaw bs=1 seek=5000 conv=notrunc status=none
must_fail 3 "$thawfs" unpack m.thaw m
says "cannot unpack '1': offset 0: chunk 0: at offset 4096: "
equal "$(cd m && echo *)" "2 3" "the files that are good"
must cmp m/2 mixed/2
must cmp m/3 mixed/3
must_fail 3 "$thawfs" unpack -m 1 m.thaw m1
[ ! -e m1 ] || fail "a damaged member was left behind"
must "$thawfs" unpack -q -m 2 m.thaw m2
must cmp m2 mixed/2
exit 0
