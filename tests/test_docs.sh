#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Manual pages: every verb has one, with the options that its help shows and no others, and they format cleanly.
# Completion: offers what the program knows.
. "$(dirname "$0")/lib.sh"

man=$src/../man
status=0
wrong() {
	echo "$*"
	status=1
}

# options named at the start of an item of a page, or of a line of a help text
page_options() {
	sed -n 's/^\.It Fl /-/p' "$1" | sed 's/Ns Op.*//; s/Cm.*//; s/Ar.*//' | tr ',' '\n' |
		sed 's/^ *//; s/ *$//; s/^-*\(.\)$/-\1/; s/^-*\([a-z].*[a-z]\)$/--\1/' | grep . | sort -u
}
help_options() {
	"$thawfs" help "$1" | grep -E '^ +-' | sed 's/^ *//' | sed 's/  .*//; s/--creator, --host, --time.*/--creator, --host, --time/' |
		grep -oE -- '--?[a-zA-Z][a-z-]*' | sort -u
}
for v in $("$thawfs" --help | sed -n 's/^  \([a-z-]*\)  .*/\1/p'); do
	[ "$v" = help ] && continue
	page=$man/thawfs-$v.1
	[ -f "$page" ] || {
		wrong "$v has no manual page"
		continue
	}
	grep -q "^.Nm thawfs $v" "$page" || [ "$(head -c 3 "$page")" = .so ] || wrong "$page is not about $v"
	grep -q "thawfs-$v 1\|Cm mount , umount" "$man/thawfs.1" || wrong "thawfs(1) does not name $v"
	[ "$v" = mount ] || [ "$v" = umount ] && continue # one page for both
	page_options "$page" >"$T/page"
	help_options "$v" >"$T/help"
	[ -s "$T/page" ] || wrong "no options in $page"
	diff "$T/help" "$T/page" >"$T/diff" || wrong "options of $v, help against page: $(grep '^[<>]' "$T/diff" | tr '\n' ' ')"
done
for o in $(help_options mount; help_options umount); do
	grep -q -- "^.It Fl \(. , \)*-*${o#-}\|^.It Fl ${o#-} \|^.It Fl . , -${o#--}" "$man/thawfs-mount.1" || wrong "mount's page has no $o"
done
for o in $("$thawfs" help mount | sed -n 's/^ *-o \([a-z_]*\).*/\1/p'); do
	grep -q "^.It Fl o Cm $o" "$man/thawfs-mount.1" || wrong "mount's page has no -o $o"
done

if command -v groff >/dev/null; then
	for page in "$man"/*.[15]; do
		if [ "$(head -c 3 "$page")" = .so ]; then
			[ -f "$man/$(sed 's,^.so man1/,,' "$page")" ] || wrong "$page leads nowhere"
			continue
		fi
		groff -mandoc -Tutf8 -ww -z "$page" >"$T/out" 2>&1 || wrong "$page does not format"
		[ ! -s "$T/out" ] || wrong "$page: $(cat "$T/out")"
	done
fi
[ $status = 0 ] || fail "the manual and the program disagree"

# completion, as bash calls it
cd "$T" || exit 1
PATH=$(dirname "$thawfs"):$PATH
mkdir -p tree/dir
echo x >tree/dir/file
echo y >tree/other
must "$thawfs" pack -q -o image.thaw tree
# shellcheck disable=SC1091
. "$src/../dist/thawfs.bash"
compopt() { :; } # there is no completion going on
completes() { # WANT WORD...: the last word is at the cursor
	local want=$1 got
	shift
	COMP_WORDS=("$@")
	COMP_CWORD=$(($# - 1))
	_thawfs
	got=$(printf '%s\n' "${COMPREPLY[@]}" | LC_ALL=C sort | tr '\n' ' ')
	[ "$got" = "$want " ] || fail "completion of '$*' is '$got', not '$want '"
}
completes "pack" thawfs pa
completes "umount unpack" thawfs u
completes "verify" thawfs help v
completes "--progress" thawfs verify --p
completes "--base --base-path" thawfs pack --ba
completes "auto" thawfs pack --progress a
completes "lz4" thawfs pack --codec l
completes "image.thaw" thawfs info im
completes "dir/ other" thawfs ls image.thaw ""
completes "tree" thawfs snap tr
completes "--keep" thawfs snap --k
completes "dir/file" thawfs du -a image.thaw dir/
exit 0
