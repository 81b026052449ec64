# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# For shell tests: source this first. Gives a scratch directory $T that goes away at exit, and small checks.
set -u
BUILD=${BUILD:-build}
thawfs=$(realpath "$BUILD/thawfs")
bin=$(realpath "$BUILD/tests")
src=$(realpath "$(dirname "${BASH_SOURCE[0]}")")
export thawfs bin src
T=$(mktemp -d "${TMPDIR:-/tmp}/thaw-test.XXXXXX")
cleanup_list=()

# on_exit COMMAND...: run it when the test ends, however it ends; the last given runs first
on_exit() {
	cleanup_list=("$(printf '%q ' "$@")" "${cleanup_list[@]}")
}
run_cleanup() {
	local rc=$? c
	for c in "${cleanup_list[@]}"; do eval "$c" >/dev/null 2>&1; done
	chmod -R u+rwx "$T" 2>/dev/null
	rm -rf "$T"
	exit $rc
}
trap run_cleanup EXIT
trap 'exit 130' INT TERM

fail() {
	echo "FAILED: $*"
	exit 1
}
skip() {
	echo "$*"
	exit 77
}
# requires NAME...: skip without them. fuse and root are special; criu is one that works here, set as $criu (and
# $crit beside it, empty if there is none); anything else is a command
requires() {
	local r
	for r in "$@"; do
		case $r in
		fuse) [ -w /dev/fuse ] || skip "needs /dev/fuse" ;;
		root) [ "$(id -u)" = 0 ] || skip "needs root" ;;
		criu)
			criu=$("$src/get_criu.sh" 2>"$T/out") || skip "needs criu: $(tail -n 1 "$T/out")"
			crit=$(dirname "$criu")/crit
			[ -x "$crit" ] || crit=$(command -v crit) || crit=
			export criu crit
			;;
		*) command -v "$r" >/dev/null || skip "needs $r" ;;
		esac
	done
}
# must COMMAND...: fail the test if it fails
must() {
	"$@" || fail "exit $? from: $*"
}
# must_fail CODE COMMAND...: it must exit with exactly CODE; its output is left in $T/out
must_fail() {
	local want=$1 rc
	shift
	"$@" >"$T/out" 2>&1
	rc=$?
	[ $rc -eq "$want" ] || {
		cat "$T/out"
		fail "exit $rc instead of $want from: $*"
	}
}
# says TEXT: the last must_fail printed it
says() {
	grep -qF -- "$1" "$T/out" || {
		cat "$T/out"
		fail "did not say: $1"
	}
}
# THAW_LONG=1: the loops of check-long
long_or() { if [ "${THAW_LONG:-0}" = 1 ]; then echo "$1"; else echo "$2"; fi; }
