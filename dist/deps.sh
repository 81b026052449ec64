#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Install what building and testing thawfs needs: on Debian and its kin with apt, when root. Only what is missing
# is installed, and the network is not touched when nothing is. Not root, or no apt: says what is missing and how to
# get it, and exits 1.
#
#   dist/deps.sh           what 'make', 'make check' and 'make lint' need
#   dist/deps.sh --peers   also what 'make bench' compares with
set -eu

peers=no
case ${1-} in
'') ;;
--peers) peers=yes ;;
*)
	echo "usage: deps.sh [--peers]" >&2
	exit 2
	;;
esac

# Things are looked for by what they do, not by package, so a self-built library counts as well.
has_command() { command -v "$1" >/dev/null 2>&1; }
has_module() { has_command pkg-config && pkg-config --exists "$1" 2>/dev/null; }
# the runtime of 'make fuzz' is a package of its own beside clang
has_fuzzer() {
	has_command clang || return 1
	printf 'int LLVMFuzzerTestOneInput(const char *p, long n) { return p && n < 0; }\n' |
		clang -x c -fsanitize=fuzzer,address,undefined -o /dev/null - >/dev/null 2>&1
}

missing=
# need PACKAGE CHECK...: note the Debian package when the check fails
need() {
	package=$1
	shift
	"$@" || missing="$missing $package"
}

need gcc has_command gcc
need libc6-dev test -e /usr/include/stdio.h
need make has_command make
need pkg-config has_command pkg-config
need libfuse3-dev has_module fuse3
need libzstd-dev has_module libzstd
need libxxhash-dev has_module libxxhash
need liblz4-dev has_module liblz4
need zlib1g-dev has_module zlib
need libcjson-dev has_module libcjson
# for the tests
need fuse3 has_command fusermount3
need xxhash has_command xxhsum
need zstd has_command zstd
need lz4 has_command lz4
need python3 has_command python3
need attr has_command setfattr
need jq has_command jq
need gdb has_command gcore
need time test -x /usr/bin/time
need procps has_command pgrep
need util-linux has_command flock
need file has_command file
# for 'make lint' and 'make fuzz'
need clang has_command clang
need libclang-rt-dev has_fuzzer
need clang-format has_command clang-format
need clang-tidy has_command clang-tidy
need shellcheck has_command shellcheck
if [ $peers = yes ]; then
	need squashfs-tools has_command mksquashfs
	need squashfuse has_command squashfuse
	need erofs-utils has_command mkfs.erofs
fi

if [ -z "$missing" ]; then
	echo "deps: nothing is missing"
	exit 0
fi
if ! has_command apt-get; then
	echo "deps: missing, by their Debian names:$missing" >&2
	echo "deps: there is no apt-get here; install them the way your system does" >&2
	exit 1
fi
if [ "$(id -u)" != 0 ]; then
	echo "deps: missing:$missing" >&2
	echo "deps: not root; run: sudo apt-get install$missing" >&2
	exit 1
fi

echo "deps: installing$missing"
export DEBIAN_FRONTEND=noninteractive
# package lists may be absent or old: fetch them only when they do not do as they are
# shellcheck disable=SC2086
apt_install() {
	apt-get install -qq -y --no-install-recommends $missing </dev/null
}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! apt_install >"$log" 2>&1; then
	if ! { apt-get update -qq && apt_install; } >"$log" 2>&1; then
		cat "$log" >&2
		echo "deps: apt-get could not install$missing" >&2
		exit 1
	fi
fi
echo "deps: done"
