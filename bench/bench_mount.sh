#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Reading from a mount, against filesystems that hold the same file: see "The mount" in README.md.
. "$(dirname "$0")/lib.sh"
SIZE=${BENCH_SIZE:-3G}
MKFS_EROFS=${MKFS_EROFS:-mkfs.erofs}
probe=$bin/bench/bench_probe
[ "$(id -u)" = 0 ] || { note "mount: left out: it needs root, to mount what it is compared with" && exit 0; }
[ -w /dev/fuse ] || { note "mount: left out: it needs /dev/fuse" && exit 0; }
for tool in jq numfmt; do have $tool || { note "mount: left out: it needs $tool" && exit 0; }; done
bytes=$(numfmt --from=iec "$SIZE") || die "BENCH_SIZE: not a size: $SIZE"

# --- sides: a name, the files its data comes from, how it is mounted, which file is read

declare -A images mount_by file_at options
at() { echo "$D/at.${1// /-}"; }
# side NAME IMAGES COMMAND FILE: COMMAND mounts at $at; FILE is relative to that, or absolute for what needs no mount
side() {
	images[$1]=$2 mount_by[$1]=$3 file_at[$1]=$4
	[ "${4#/}" != "$4" ] || file_at[$1]=$(at "$1")/$4
}
leave() {
	local at
	at=$(at "$1")
	if ! mountpoint -q "$at"; then return; fi
	case $1 in
	thawfs*)
		local daemon
		daemon=$(jq -r .supervisor_pid "$at/.thawfs/status.json")
		"$thawfs" umount "$at" || die "cannot unmount $at"
		while kill -0 "$daemon" 2>/dev/null; do sleep 0.01; done
		;;
	*) # the kernel may still be reading ahead
		for _ in $(seq 100); do
			if umount "$at" 2>/dev/null; then return; fi
			sleep 0.1
		done
		die "cannot unmount $at"
		;;
	esac
}
enter() {
	local at
	at=$(at "$1")
	mkdir -p "$at"
	if [ -z "${mount_by[$1]}" ] || mountpoint -q "$at"; then return; fi
	at=$at bash -c "${mount_by[$1]}" >"$D/out" 2>&1
}
# everything cold: nothing decoded, no page cache of the mount, nor of the image below it
fresh() {
	leave "$1"
	# shellcheck disable=SC2086 # several files
	[ -z "${images[$1]}" ] || "$probe" evict ${images[$1]} || die "cannot evict ${images[$1]}"
	enter "$1" || die "cannot mount $1: $(tail -n 3 "$D/out")"
}
leave_all() {
	local name
	for name in "${!mount_by[@]}"; do
		leave "$name"
		[ ! -d "$(at "$name")" ] || rmdir "$(at "$name")"
	done
	if mountpoint -q "$D/tmpfs"; then umount "$D/tmpfs"; fi
	[ ! -d "$D/tmpfs" ] || rmdir "$D/tmpfs"
}
# is there such a side, and can it be mounted
usable() { [ -n "${file_at[$1]:-}" ]; }
forget() {
	note "$1: left out: $2"
	unset "file_at[$1]" "images[$1]" "mount_by[$1]"
}

# --- cases

declare -A bars
# rounds CASE UNIT TEMPERATURE (LABEL SIDE COMMAND)...: the COMMANDs, which print a number first, in turns, BENCH_RUNS times
# after one that does not count. {} is the side's file. cold: fresh mounts each time; warm: after the first, which
# does not count, they stay; image: fresh mounts over images in the page cache.
# A row for each label; for those that begin with thawfs one against each that does not: ratio how many times less, bar from
# bars[CASE|LABEL of the other], or for any thawfs from bars[CASE|*].
rounds() {
	local case=$1 unit=$2 temperature=$3 i k n=0 label=() where=() command=() number rest
	shift 3
	while [ $# -gt 0 ]; do
		if usable "$2"; then
			label[n]=$1 where[n]=$2 command[n]=${3//'{}'/${file_at[$2]}}
			: >"$D/times.$n"
			: >"$D/rest.$n"
			n=$((n + 1))
		fi
		shift 3
	done
	for ((i = 0; i <= BENCH_RUNS; i++)); do
		for ((k = 0; k < n; k++)); do
			case $temperature in
			cold) fresh "${where[k]}" ;;
			image)
				fresh "${where[k]}"
				# shellcheck disable=SC2086 # several files
				cat ${images[${where[k]}]} >/dev/null
				;;
			*) enter "${where[k]}" || die "cannot mount ${where[k]}" ;;
			esac
			read -r number rest < <(bash -c "${command[k]}") || die "failed: ${command[k]}"
			[ $i = 0 ] || echo "$number" >>"$D/times.$k"
			[ $i = 0 ] || [ -z "$rest" ] || echo "$rest" >>"$D/rest.$k"
			# what is not being measured holds no memory
			[ "$temperature" = warm ] || leave "${where[k]}"
		done
	done
	report
	rm -f "$D"/times.* "$D"/rest.*
}
shown() {
	local text=${1//"$D/"/}
	echo "${text//"$bin/bench/"/}"
}
# the rows of a case, from the variables of rounds
report() {
	local i k min median spread ratio compared
	for ((i = 0; i < n; i++)); do
		read -r min median spread < <(stats <"$D/times.$i")
		compared=
		for ((k = 0; k < n; k++)); do
			[[ ${label[i]} = thawfs* && ${label[k]} != thawfs* ]] || continue
			read -r _ ratio _ < <(paste "$D/times.$k" "$D/times.$i" | awk '{ print $1 / $2 }' | stats)
			row "$case" "${label[i]} : ${label[k]}" "$unit" "$BENCH_RUNS" "$min" "$median" "$spread" "$ratio" \
				"${bars["$case|${label[k]}"]:--}" "$(shown "${command[i]}")"
			compared=1
		done
		[ $compared ] || row "$case" "${label[i]}" "$unit" "$BENCH_RUNS" "$min" "$median" "$spread" 1 - \
			"$(shown "${command[i]}")"
		if [ -s "$D/rest.$i" ]; then
			read -r _ median _ < <(stats <"$D/rest.$i")
			note "$case, ${label[i]}: 99th percentile $median"
		fi
	done
}
# each COMMAND SIDE...: the same command for sides under their own names
each() {
	local what=$1 name
	shift
	triples=()
	for name in "$@"; do triples+=("$name" "$name" "$what"); done
}
# at_most CASE SIDE UNIT LIMIT COMMAND: the median of what is in $D/numbers is to be below it
at_most() {
	local min median spread n
	n=$(wc -l <"$D/numbers")
	read -r min median spread < <(stats <"$D/numbers")
	row "$1" "$2" "$3" "$n" "$min" "$median" "$spread" "$(awk -v l="$4" -v m="$median" 'BEGIN { print l / m }')" 1 "$5"
	rm -f "$D/numbers"
}

# --- inputs

# memory SIZE_BYTES FILE SEED: as of a process, 29 % holes: every fourth MiB, and the last twentieth
memory() {
	make_once "$2" "$bin/tests/tool_genimage mem $2.new --size=$(($1 * 19 / 20 / 4096 * 4096)) --kind=process \
		--zero-every=4 --seed=$3 --sparse && truncate -s $1 $2.new"
}
packed() { # packed IMAGE SOURCE OPTION...
	local image=$1 source=$2
	shift 2
	[ "$image" -nt "$thawfs" ] || "$thawfs" pack -q "$@" -o "$image" "$source" || die "cannot pack $source"
}
tree=$D/mount-$SIZE
plain=$tree/memory
mkdir -p "$tree"
trap leave_all EXIT
memory "$bytes" "$plain" 1
packed "$tree-z1.thaw" "$tree" -z1
packed "$tree-raw.thaw" "$tree" --raw
data=$("$thawfs" info --json "$tree-z1.thaw" | jq .chunk_bytes) || die "cannot read $tree-z1.thaw"
note "$bytes bytes, of which $data are not holes; images of $(stat -c %s "$tree-z1.thaw") and $(stat -c %s "$tree-raw.thaw") bytes"

disk=$(df --output=fstype "$D" | tail -n 1)
side "$disk" "$plain" "" "$plain"
side thawfs "$tree-z1.thaw" "$thawfs mount $tree-z1.thaw \$at" memory
side "thawfs raw" "$tree-raw.thaw" "$thawfs mount $tree-raw.thaw \$at" memory
prefetch=
if "$thawfs" mount --help | grep -q prefetch=; then
	prefetch="thawfs prefetch=all"
	side "$prefetch" "$tree-z1.thaw" "$thawfs mount -o prefetch=all $tree-z1.thaw \$at" memory
else
	note "thawfs prefetch: left out: this version has none"
fi

erofs=
# 128 KiB clusters, as zstd where both mkfs.erofs and the kernel know it
if have "$MKFS_EROFS"; then
	for try in "zstd|-zzstd,level=1" "lz4hc|-zlz4hc"; do
		erofs="EROFS ${try%|*}"
		image=$tree-${try%|*}.erofs
		"$MKFS_EROFS" --help 2>&1 | grep -qw "${try%|*}" &&
			{ [ -e "$image" ] || "$MKFS_EROFS" --quiet "${try#*|}" -C131072 "$image" "$tree" >/dev/null; } &&
			side "$erofs" "$image" "mount -o loop,ro -t erofs $image \$at" memory &&
			fresh "$erofs" && break
		note "$erofs: left out: $MKFS_EROFS or the kernel has no such compression"
		rm -f "$image"
		unset "file_at[$erofs]" "images[$erofs]" "mount_by[$erofs]"
		erofs=
	done
	[ -z "$erofs" ] || leave "$erofs"
else
	note "EROFS: left out: no $MKFS_EROFS"
fi
if have mksquashfs; then
	[ -e "$tree.sqfs" ] || mksquashfs "$tree" "$tree.sqfs" -quiet -no-progress -noappend -comp zstd \
		-Xcompression-level 1 -b 128K >/dev/null || die "cannot make $tree.sqfs"
	side squashfs "$tree.sqfs" "mount -o loop,ro -t squashfs $tree.sqfs \$at" memory
	enter squashfs || forget squashfs "the kernel cannot mount it: $(tail -n 1 "$D/out")"
	leave squashfs
	if have squashfuse; then
		side squashfuse "$tree.sqfs" "squashfuse $tree.sqfs \$at" memory
	else
		note "squashfuse: left out: it is not installed"
	fi
else
	note "squashfs, squashfuse: left out: no mksquashfs"
fi
if have mkdwarfs && have dwarfs; then
	[ -e "$tree.dwarfs" ] || mkdwarfs -i "$tree" -o "$tree.dwarfs" --log-level=error -C zstd:level=1 -S 18 -B 1 ||
		die "cannot make $tree.dwarfs"
	side DwarFS "$tree.dwarfs" "dwarfs $tree.dwarfs \$at" memory
else
	note "DwarFS: left out: it is not installed"
fi
mkdir -p "$D/tmpfs"
free=$(awk '/MemAvailable/ { printf "%.0f", $2 * 1024 }' /proc/meminfo)
# one copy for tmpfs, one for hydration, and the page cache
if [ "$free" -gt $((3 * bytes)) ]; then
	mountpoint -q "$D/tmpfs" || mount -t tmpfs -o "size=$((3 * bytes))" none "$D/tmpfs" || die "cannot mount a tmpfs"
	cp --sparse=always "$plain" "$D/tmpfs/memory"
	side tmpfs "" "" "$D/tmpfs/memory"
	mkdir -p "$D/tmpfs/hydrated"
	side "thawfs hydrated" "$tree-z1.thaw" \
		"$thawfs mount -o hydrate_dir=$D/tmpfs/hydrated,hydrate_max=$bytes $tree-z1.thaw \$at" memory
else
	note "tmpfs, hydrated: left out: they need $((3 * bytes >> 20)) MiB of memory"
fi
zstd_peer="EROFS zstd"
usable "$zstd_peer" || note "what was promised against EROFS zstd is not judged"

# --- cold

bars["read cold|$zstd_peer"]=1.2 bars["touch cold|$zstd_peer"]=1.2
bars["read cold|squashfuse"]=1.5 bars["touch cold|squashfuse"]=1.5
cold=("$disk" "$erofs" squashfs squashfuse DwarFS thawfs "$prefetch")
mapfile -t cold < <(printf '%s\n' "${cold[@]}" | grep .)
each "$probe read {}" "${cold[@]}"
rounds "read cold" s cold "${triples[@]}"
each "$probe touch {}" "${cold[@]}"
rounds "touch cold" s cold "${triples[@]}"

# holes are not read, because decoding them is nothing that zstd does
bars["two readers, data, image in page cache|zstd -d, 2 threads, memory"]=0.75
rounds "two readers, data, image in page cache" s image \
	"zstd -d, 2 threads, memory" "$disk" "$bin/bench/bench_pieces {} 1 262144 2" \
	thawfs thawfs "$probe read {} 2 data"
each "$probe read {} 2" "${cold[@]}"
rounds "two readers, all" s cold "${triples[@]}"

# 0.35 of its time, and half a GiB of faults is enough
bars["fault cold|$zstd_peer"]=2.857 bars["fault cold, MADV_RANDOM|$zstd_peer"]=2.857
mapfile -t no_prefetch < <(printf '%s\n' "${cold[@]}" | grep -v prefetch)
each "$probe faults {} 500 $plain" "${no_prefetch[@]}"
rounds "fault cold" us cold "${triples[@]}"
each "$probe faults {} 500 $plain random" "${no_prefetch[@]}"
rounds "fault cold, MADV_RANDOM" us cold "${triples[@]}"

# a working set is recorded, then made resident before the same faults
if [ "$prefetch" ]; then
	image=$tree-ws.thaw
	[ -e "$image" ] || ln "$tree-z1.thaw" "$image"
	rm -f "$image.ws"
	side "thawfs record" "$image" "$thawfs mount -o record $image \$at" memory
	side "thawfs prefetch=ws" "$image" "$thawfs mount -o prefetch=ws $image \$at" memory
	fresh "thawfs record"
	"$probe" faults "${file_at[thawfs record]}" 500 "$plain" random >/dev/null
	leave "thawfs record"
	bars["fault after prefetch|tmpfs, resident"]=0.5
	status="$(at "thawfs prefetch=ws")/.thawfs/status.json"
	wait_for="timeout 120 sh -c 'until jq -e \".prefetch.bytes > 0 and .prefetch.running == 0\" $status; do sleep 0.1; done' >/dev/null"
	rounds "fault after prefetch" us cold \
		"tmpfs, resident" tmpfs "$probe faults {} 500 $plain random" \
		"thawfs prefetch=ws" "thawfs prefetch=ws" "exec 9<{}; $wait_for && $probe faults {} 500 $plain random"
fi

# --- raw

bars["raw read cold|$disk"]=0.9
rounds "raw read cold" s cold "$disk" "$disk" "$probe read {}" "thawfs raw" "thawfs raw" "$probe read {}"
for ((i = 0; i <= BENCH_RUNS; i++)); do
	fresh "thawfs raw"
	cat "$tree-raw.thaw" >/dev/null
	"$probe" read "${file_at["thawfs raw"]}" >>"$D/numbers" || die "cannot read the raw image"
	leave "thawfs raw"
	[ $i -gt 0 ] || : >"$D/numbers"
done
at_most "raw read, image in page cache" "thawfs raw" s "$(awk -v b="$bytes" 'BEGIN { print b / 2e9 }')" \
	"bench_probe read (limit: 2 GB/s)"

# --- warm

bars["read warm|$disk"]=0.9 bars["touch warm|$disk"]=0.9 bars["read warm|tmpfs"]=0.9 bars["touch warm|tmpfs"]=0.9
warm=("$disk" tmpfs thawfs)
if usable "thawfs hydrated"; then
	enter "thawfs hydrated" || die "cannot mount with hydrate_dir"
	status=$(at "thawfs hydrated")/.thawfs/status.json
	if [ "$(jq -r .kernel.passthrough "$status")" = true ]; then
		head -c 1 "${file_at["thawfs hydrated"]}" >/dev/null
		for _ in {1..1200}; do
			[ "$(jq .hydrate.files "$status")" = 0 ] || break
			sleep 0.1
		done
		[ "$(jq .hydrate.files "$status")" = 1 ] || die "not hydrated: $(jq -c .hydrate "$status")"
		warm+=("thawfs hydrated")
	else
		note "hydrated: left out: this kernel has no FUSE passthrough"
	fi
fi
each "$probe read {}" "${warm[@]}"
rounds "read warm" s warm "${triples[@]}"
each "$probe touch {}" "${warm[@]}"
rounds "touch warm" s warm "${triples[@]}"
if usable "thawfs hydrated"; then
	[ "$(jq -r .kernel.passthrough "$status")" != true ] || [ "$(jq .hydrate.opens "$status")" -ge "$BENCH_RUNS" ] ||
		die "what was measured as hydrated was not passed through: $(jq -c .hydrate "$status")"
fi
leave_all
mkdir -p "$D/tmpfs"

# --- crowds: images of an eighth, so that all of them fit into memory

store=$D/mount-store-$SIZE
mkdir -p "$store"
for i in {1..8}; do
	mkdir -p "$D/crowd-$SIZE/$i"
	memory $((bytes / 8 / 4096 * 4096)) "$D/crowd-$SIZE/$i/memory" "$i"
	packed "$store/$i.thaw" "$D/crowd-$SIZE/$i" -z1
done
bars["88 readers of one image|one after another"]=0.769 bars["88 readers of 8 images|one after another"]=0.769
at_store=$(at "thawfs store")
side "thawfs store" "$(echo "$store"/*.thaw)" "$thawfs mount $store \$at" 1/memory
rounds "88 readers of one image" s cold \
	"one after another" "thawfs store" "$probe crowd 88 apart {}" \
	"thawfs, all at once" "thawfs store" "$probe crowd 88 together {}"
all=$(for i in {1..8}; do printf '%s ' "$at_store/$i/memory"; done)
rounds "88 readers of 8 images" s cold \
	"one after another" "thawfs store" "$probe crowd 88 apart $all" \
	"thawfs, all at once" "thawfs store" "$probe crowd 88 together $all"

# --- opening

areas=$D/mount-areas
make_once "$areas" "$bin/tests/tool_genimage dmtcp $areas.new --size=512M --areas=100000"
packed "$areas.thaw" "$areas" -z1
side "thawfs areas" "$areas.thaw" "$thawfs mount $areas.thaw \$at" mount-areas
note "$("$thawfs" info --json "$areas.thaw" | jq .n_regions) regions"
for temperature in cold warm; do
	for ((i = 0; i <= 10; i++)); do
		leave "thawfs areas"
		[ $temperature = warm ] || "$probe" evict "$areas.thaw"
		mkdir -p "$(at "thawfs areas")"
		at=$(at "thawfs areas") seconds "$D/numbers" "${mount_by["thawfs areas"]}"
		[ $i -gt 0 ] || : >"$D/numbers"
	done
	at_most "mount of 100,000 regions, $temperature" "thawfs" s 0.05 "thawfs mount (limit: 50 ms)"
done
leave "thawfs areas"

# --- memory under load: all processes of the mount, what they share by share

pss_kib() {
	local pid sum=0 n
	for pid in "$1" $(pgrep -P "$1"); do
		n=$(awk '/^Pss:/ { print $2 }' "/proc/$pid/smaps_rollup" 2>/dev/null)
		sum=$((sum + ${n:-0}))
	done
	echo "$sum"
}
side "thawfs small cache" "$tree-z1.thaw" "$thawfs mount -o cache=64M $tree-z1.thaw \$at" memory
fresh "thawfs small cache"
daemon=$(jq -r .supervisor_pid "$(at "thawfs small cache")/.thawfs/status.json")
file=${file_at["thawfs small cache"]}
{
	"$probe" crowd 8 together "$file" >/dev/null
	"$probe" evict "$file"
	"$probe" faults "$file" 500 "$plain" >/dev/null
	"$probe" read "$file" 16 >/dev/null
} &
load=$!
index=$("$thawfs" info --json "$tree-z1.thaw" | jq .index_bytes)
while kill -0 $load 2>/dev/null; do
	pss_kib "$daemon"
	sleep 0.05
done | sort -n | tail -n 1 >"$D/numbers"
wait $load || die "the load failed"
at_most "peak memory under load" "thawfs, cache=64M" KiB $((96 * 1024 + index / 1024)) \
	"8 and 16 readers (limit: cache + 32 MiB + index)"
leave "thawfs small cache"

# --- what checking costs

if have perf; then
	fresh thawfs
	worker=$(jq -r .worker_pid "$(at thawfs)/.thawfs/status.json")
	perf record -q -F 999 -o "$D/perf.data" -p "$worker" >"$D/out" 2>&1 &
	perf=$!
	sleep 1
	"$probe" read "${file_at[thawfs]}" 2 >/dev/null
	kill -INT $perf
	wait $perf
	perf report -q -i "$D/perf.data" --stdio --sort dso,symbol 2>/dev/null | awk '
		/%/ { all += $1; if (/xxhash|XXH/) xxh += $1 }
		END { if (xxh) printf "%.4f\n", xxh / all * 100 }' >"$D/numbers"
	if [ -s "$D/numbers" ]; then
		at_most "checksums, share of the worker's CPU" thawfs % 12 "perf record, two readers, cold (limit: 12 %)"
	else
		note "checksums: left out: perf records nothing here: $(tail -n 1 "$D/out")"
	fi
	rm -f "$D/perf.data" "$D/numbers"
else
	note "checksums: left out: no perf"
fi
