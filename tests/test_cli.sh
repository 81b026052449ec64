#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The command line as such: verbs, options, operands, exit codes and the exact messages.
. "$(dirname "$0")/lib.sh"

# every verb says what it does, in both forms
for v in $("$thawfs" --help | sed -n 's/^  \([a-z-]*\)  .*/\1/p'); do
	[ "$v" = help ] && continue
	"$thawfs" help "$v" >"$T/help" || fail "help $v"
	for o in -h --help; do
		"$thawfs" "$v" $o >"$T/said" 2>&1 || fail "exit $? from $v $o"
		cmp -s "$T/help" "$T/said" || fail "$v $o: $(cat "$T/said")"
	done
done

cd "$T" || exit 1
mkdir src
echo hello >src/file
must "$thawfs" pack -q -o i.thaw src

# message CODE TEXT ARGUMENTS...: standard error is exactly that line, standard output is empty
message() {
	local want=$1 text=$2 rc
	shift 2
	"$thawfs" "$@" >out 2>err
	rc=$?
	[ $rc -eq "$want" ] || fail "exit $rc instead of $want from: thawfs $*"
	[ "$(cat err)" = "thawfs: $text" ] || fail "thawfs $* said: $(cat err)"
	[ ! -s out ] || fail "thawfs $* printed: $(cat out)"
}

# verbs
must_fail 2 "$thawfs"
says "Usage: thawfs VERB"
message 2 "unknown verb 'unpak'; did you mean 'unpack'? ('thawfs help' lists all)" unpak
message 2 "unknown verb 'frobnicate' ('thawfs help' lists all)" frobnicate
message 2 "unknown verb '' ('thawfs help' lists all)" ''
message 2 "unknown verb 'a\\x0ab' ('thawfs help' lists all)" $'a\nb'
message 2 "unknown verb 'pakc'; did you mean 'pack'? ('thawfs help' lists all)" help pakc
[ "$("$thawfs" --version)" = "$("$thawfs" -V)" ] || fail "-V is not --version"
"$thawfs" --version | grep -qE '^thawfs [0-9]+\.[0-9]+\.[0-9]+$' || fail "--version: $("$thawfs" --version)"
must cmp <("$thawfs" --help) <("$thawfs" help)

# every verb: its help in three ways, an unknown option of each kind, --help after other things
verbs=$("$thawfs" --help | sed -n 's/^  \([a-z-]*\)  .*/\1/p')
for v in pack unpack ls du info maps diff verify mount umount; do
	grep -qx "$v" <<<"$verbs" || fail "no verb $v"
done
for v in $verbs; do
	[ "$v" = help ] && continue
	"$thawfs" help "$v" >help.txt || fail "help $v: exit $?"
	grep -q "^Usage: thawfs $v " help.txt || fail "help $v says: $(cat help.txt)"
	must cmp help.txt <("$thawfs" "$v" --help)
	message 2 "unknown option '--frob' (try 'thawfs help $v')" "$v" --frob
	message 2 "unknown option '-Y' (try 'thawfs help $v')" "$v" -Y
	awk 'length > 110' help.txt | grep . && fail "help $v has long lines"
done
# every option that a help text shows is taken: the complaint is about something else
for v in pack unpack ls du info maps diff verify; do
	for o in $("$thawfs" help "$v" | grep -E '^ +-' | grep -oE -- '--[a-z-]+' | sort -u); do
		"$thawfs" "$v" "$o" >out 2>&1
		! grep -q "unknown option" out || fail "$v does not know $o, which its help shows"
	done
done

# operands
message 2 "too few arguments: usage is 'thawfs info IMAGE' (try 'thawfs help info')" info
message 2 "too few arguments: usage is 'thawfs unpack [OPTION…] IMAGE DEST' (try 'thawfs help unpack')" unpack i.thaw
message 2 "unexpected argument 'y' (try 'thawfs help ls')" ls i.thaw x y
message 2 "too few arguments: usage is 'thawfs verify [OPTION…] IMAGE…' (try 'thawfs help verify')" verify -q

# options that all share
message 2 "-j takes a number from 1 to 1024, not '0' (try 'thawfs help pack')" pack -j 0 src
message 2 "-j takes a number from 1 to 1024, not '1x' (try 'thawfs help pack')" pack -j1x src
message 2 "-j takes a number from 1 to 1024, not '99999999999999999999' (try 'thawfs help unpack')" \
	unpack --threads=99999999999999999999 i.thaw d
message 2 "--progress takes auto, none or bar, not 'much' (try 'thawfs help verify')" verify --progress=much i.thaw
message 2 "option '--threads' needs an argument (try 'thawfs help verify')" verify i.thaw --threads
message 2 "option '-j' needs an argument (try 'thawfs help verify')" verify i.thaw -j
message 2 "option '--json' takes no argument (try 'thawfs help ls')" ls --json=yes i.thaw
message 2 "option '--bas' is ambiguous (try 'thawfs help pack')" pack --bas src
must "$thawfs" verify --progr=none i.thaw >/dev/null # what is not ambiguous may be shortened
must "$thawfs" ls i.thaw --json >/dev/null           # options after operands
cp i.thaw ./-x
must "$thawfs" info -- -x >/dev/null
must_fail 2 "$thawfs" info -x

# pack's
message 2 "-z takes a level from 1 to 19, or from -1 to -7 for the fast ones, not '20' (try 'thawfs help pack')" \
	pack -z 20 src
message 2 "-z takes a level from 1 to 19, or from -1 to -7 for the fast ones, not '0' (try 'thawfs help pack')" \
	pack -z0 src
message 2 "-z takes a level from 1 to 19, or from -1 to -7 for the fast ones, not '-8' (try 'thawfs help pack')" \
	pack -z -8 src
message 2 "--fast takes a number from 1 to 7, not '8' (try 'thawfs help pack')" pack --fast=8 src
message 2 "--codec takes zstd, lz4 or raw, not 'gzip' (try 'thawfs help pack')" pack --codec gzip src
for size in 32K 8M 100000 64k1 -1 99999999999999999999 '' K; do
	message 2 "--chunk takes a power of two from 64K to 4M, not '$size' (try 'thawfs help pack')" \
		pack --chunk "$size" src
done
message 2 "--codec=raw has no compression level (try 'thawfs help pack')" pack --raw -z 3 src
message 2 "--codec=lz4 takes levels from 1 to 12 (try 'thawfs help pack')" pack --codec=lz4 -z 13 src
message 2 "--flatten and --base exclude each other (try 'thawfs help pack')" pack --flatten --base i.thaw i.thaw
message 2 "what goes to standard output cannot be verified: leave out --verify, or -o - (try 'thawfs help pack')" \
	pack --verify -o - src
message 2 "'/' has no name to call the image by: give -o (try 'thawfs help pack')" pack /

# an image is not for a terminal
if command -v script >/dev/null; then
	script -qec "$thawfs pack -o - src" /dev/null </dev/null >out 2>&1 && fail "an image went to a terminal"
	grep -q "an image is not for a terminal" out || fail "a terminal got: $(head -c 300 out)"
fi

# things that are not there, or not images
for v in ls du info maps verify; do
	message 1 "cannot open 'none.thaw': No such file or directory" "$v" none.thaw
	message 1 "cannot open 'src': it is a directory, and not one of an image on a mount" "$v" src
	message 3 "cannot read 'src/file': not a thawfs image: shorter than a header" "$v" src/file
	: >empty
	message 3 "cannot read 'empty': not a thawfs image: shorter than a header" "$v" empty
	head -c 8192 /dev/urandom >noise
	must_fail 3 "$thawfs" "$v" noise
	says "cannot read 'noise': "
	head -c -4096 i.thaw >short
	must_fail 3 "$thawfs" "$v" short
	says "incomplete image: the writer was interrupted"
done
message 1 "cannot find 'nix' in 'i.thaw': no such member" ls i.thaw nix
message 1 "cannot find 'file/x' in 'i.thaw': a part of the path is not a directory" ls i.thaw file/x
message 1 "cannot find address space '42' in 'i.thaw': 'thawfs info' lists those there are" maps i.thaw 42
must_fail 1 "$thawfs" pack -o x.thaw none
says "none"
[ ! -e x.thaw ] || fail "an image of nothing"

# pack's default name, in the current directory; the summary; -q; -o - and a file are the same bytes
mkdir there
(cd there && must "$thawfs" pack ../src >../out) || exit 1
must cmp there/src.thaw i.thaw
grep -qE '^src.thaw: 6 B, 0 B of it holes; image .* KiB, ratio 0\.[0-9]+ without holes; [0-9.]+ s$' out ||
	fail "pack said: $(cat out)"
must "$thawfs" pack -q -o - src >stdout.thaw
must cmp stdout.thaw i.thaw
"$thawfs" pack -o - src 2>err | cat >stdout.thaw
must cmp stdout.thaw i.thaw
grep -q '^-: 6 B' err || fail "the summary of -o - was: $(cat err)"
[ "$(stat -c %a i.thaw)" = 600 ] || fail "mode $(stat -c %a i.thaw)"

# what cannot be written is an error, for a summary as for a list
if [ -w /dev/full ]; then
	for v in ls du info verify; do
		"$thawfs" "$v" i.thaw >/dev/full 2>err
		[ $? -eq 1 ] || fail "$v to a full disk did not fail"
		[ "$(cat err)" = "thawfs: cannot write to standard output: No space left on device" ] ||
			fail "$v to a full disk said: $(cat err)"
	done
fi
"$thawfs" ls i.thaw >&- 2>err && fail "ls to a closed descriptor did not fail"

# progress: nothing without a terminal within a second; a bar on request, which ends at 100 %
must "$thawfs" verify i.thaw 2>err >/dev/null
[ ! -s err ] || fail "progress without a terminal: $(cat err)"
must "$thawfs" verify --progress=bar i.thaw 2>err >/dev/null
tr '\r' '\n' <err | tail -n 1 | grep -q '^verifying 100 % \[#*\]' || fail "the bar was: $(cat -v err)"
must "$thawfs" verify --progress=none i.thaw 2>err >/dev/null
[ ! -s err ] || fail "progress with none: $(cat err)"
must "$thawfs" pack --progress=bar -q -o q.thaw src 2>err
[ ! -s err ] || fail "progress with -q: $(cat -v err)"

# what cannot be an image, or stands where one is to be, is named
mkdir -p "$T/odd/src" && cd "$T/odd" || exit 1
head -c 20000000 /dev/urandom >src/file
must_fail 1 "$thawfs" ls /dev/null
says "cannot open '/dev/null': not a regular file"
must_fail 2 "$thawfs" pack -o '' src
says "-o takes the name of the image"
must_fail 2 "$thawfs" pack --raw --codec lz4 -o x.thaw src
says "--raw and another --codec exclude each other"
must_fail 2 "$thawfs" pack --codec zstd --raw -o x.thaw src
mkfifo fifo
for out in fifo /dev/null; do
	must_fail 1 "$thawfs" pack -o $out src
	says "cannot write '$out': what is there is no regular file"
done
ln -s src/file .x.thaw.partial
must_fail 1 "$thawfs" pack -o x.thaw src
says "cannot write 'x.thaw': './.x.thaw.partial' is in the way, which is no regular file"
rm .x.thaw.partial && mkdir .x.thaw.partial
must_fail 1 "$thawfs" pack -o x.thaw src
says "cannot write 'x.thaw': './.x.thaw.partial' is in the way, which is no regular file"
rmdir .x.thaw.partial
# a limit of file sizes is an error like others
(ulimit -f 5000 && must_fail 1 "$thawfs" pack -o x.thaw src && says "cannot write 'x.thaw': File too large") || exit 1
must rm -r src fifo
[ -z "$(ls -A)" ] || fail "litter: $(ls -A)"
must_fail 1 "$thawfs" verify --base-path nowhere x.thaw
says "cannot look for bases in 'nowhere': No such file or directory"
exit 0
