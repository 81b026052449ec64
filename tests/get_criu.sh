#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Print the path of a criu that works on this machine; exit 1 with the reason if there is none to be had. As root.
#
# The one on the PATH is taken if it passes its own check. Many distributions' is older than their kernel, so else
# the newest of Debian's is unpacked, with the libraries it was built for, into a folder of its own (CRIU_CACHE, by
# default build/criu) and started through its own dynamic loader: nothing is installed on the system. Packages come
# from wherever this machine's apt is set up to fetch Debian's. A failure is remembered for an hour.
# Beside it, crit shows what is in its images, if this machine's python3 can run it.
set -u
here=$(cd "$(dirname "$0")" && pwd)
cache=${CRIU_CACHE:-$here/../build/criu}

give_up() {
	echo "get_criu.sh: $*" >&2
	exit 1
}
works() {
	"$1" check >/dev/null 2>&1
}

# the archive that this machine's apt takes Debian itself from
debian_mirror() {
	# shellcheck disable=SC2016  # apt's own variables
	apt-get indextargets --format '$(REPO_URI) $(ORIGIN) $(LABEL)' 'Created-By: Packages' 2>/dev/null |
		awk '$2 == "Debian" && $3 == "Debian" { print $1; exit }'
}

# closure SUITE MIRROR DIR: fetch criu and everything it needs, as if nothing at all were installed, into DIR/debs
closure() {
	local suite=$1 mirror=$2 apt=$3/apt key=/usr/share/keyrings/debian-archive-keyring.gpg
	mkdir -p "$apt/lists/partial" "$apt/archives/partial" && : >"$apt/status" || return 1
	[ -e $key ] && key="[signed-by=$key]" || key=
	echo "deb $key $mirror $suite main" >"$apt/sources.list"
	cat >"$apt/conf" <<-END
		Dir::State::Lists "$apt/lists";
		Dir::State::status "$apt/status";
		Dir::Cache "$apt";
		Dir::Cache::Archives "$apt/archives";
		Dir::Etc::SourceList "$apt/sources.list";
		Dir::Etc::SourceParts "/dev/null";
		Dir::Etc::Preferences "/dev/null";
		Dir::Etc::PreferencesParts "/dev/null";
		APT::Sandbox::User "root";
		APT::Install-Recommends "false";
		Acquire::Languages "none";
		Acquire::Retries "2";
	END
	export APT_CONFIG=$apt/conf
	apt-get -qq update && apt-get -qq -y --download-only install criu && mv "$apt/archives" "$3/debs" || return 1
	# crit, without the python it was packaged for
	mkdir "$3/crit-debs" && (cd "$3/crit-debs" && apt-get -qq download python3-pycriu python3-protobuf)
	return 0
}

# unpack DIR: DIR/debs becomes DIR/root, with DIR/criu to start it wherever DIR is moved to
unpack() {
	local dir=$1 deb loader libs
	mkdir -p "$dir/root"
	for deb in "$dir"/debs/*.deb; do dpkg-deb -x "$deb" "$dir/root" || return 1; done
	for deb in "$dir"/crit-debs/*.deb; do [ ! -e "$deb" ] || dpkg-deb -x "$deb" "$dir/crit-root"; done
	rm -rf "$dir/debs" "$dir/crit-debs" "$dir/apt" "$dir/root/usr/share" "$dir/crit-root/usr/share"
	loader=$(cd "$dir/root" && find usr/lib* -name 'ld-linux*.so.*' | head -n 1)
	libs=$(cd "$dir/root" && find usr/lib -maxdepth 1 -name '*-linux-gnu*' | head -n 1)
	[ -n "$loader" ] && [ -n "$libs" ] || return 1
	cat >"$dir/criu" <<-END
		#!/bin/sh
		root=\$(dirname "\$(readlink -f "\$0")")/root
		exec "\$root/$loader" --argv0 criu --library-path "\$root/$libs" "\$root/usr/sbin/criu" "\$@"
	END
	cat >"$dir/crit" <<-END
		#!/bin/sh
		modules=\$(dirname "\$(readlink -f "\$0")")/crit-root/usr/lib/python3/dist-packages
		PYTHONPATH=\$modules PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=python exec python3 -m crit "\$@"
	END
	chmod +x "$dir/criu" "$dir/crit"
	"$dir/crit" --help >/dev/null 2>&1 || rm -rf "$dir/crit" "$dir/crit-root"
}

[ "$(id -u)" = 0 ] || give_up "criu needs root"
own=$(command -v criu) && works "$own" && echo "$own" && exit 0
mkdir -p "$cache" || give_up "cannot make '$cache'"
cache=$(cd "$cache" && pwd)
exec 9>"$cache/lock" && flock 9
[ -x "$cache/tree/criu" ] && works "$cache/tree/criu" && echo "$cache/tree/criu" && exit 0
[ -n "$(find "$cache/failed" -mmin -60 2>/dev/null)" ] && give_up "$(cat "$cache/failed")"

command -v apt-get >/dev/null || give_up "the criu here does not work, and there is no apt to fetch another"
mirror=$(debian_mirror)
[ -n "$mirror" ] || { apt-get -qq update >&2 && mirror=$(debian_mirror); }
[ -n "$mirror" ] || give_up "the criu here does not work, and apt is not set up for Debian"
for suite in forky trixie; do
	rm -rf "$cache/new" "$cache/tree"
	{ closure $suite "$mirror" "$cache/new" && unpack "$cache/new"; } >"$cache/log" 2>&1 || continue
	works "$cache/new/criu" && mv "$cache/new" "$cache/tree" && echo "$cache/tree/criu" && exit 0
done
rm -rf "$cache/new"
why="no criu that works on this kernel could be fetched (see $cache/log)"
echo "$why" >"$cache/failed"
give_up "$why"
