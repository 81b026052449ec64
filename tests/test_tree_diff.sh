#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Random trees with everything that a file system can hold: what is unpacked is what cp -a would have made.
. "$(dirname "$0")/lib.sh"
requires python3
tree=$src/random_tree.py
seeds=$(long_or 200 8)
first=${THAW_SEED:-1}

for seed in $(seq "$first" $((first + seeds - 1))); do
	work=$T/$seed
	mkdir -p "$work/src"
	must python3 "$tree" make "$work/src" "$seed" >"$T/out"
	# that the comparison itself says nothing wrong, nor this file system
	must cp -a "$work/src" "$work/cp"
	python3 "$tree" compare "$work/src" "$work/cp" >"$T/out" || {
		head -n 20 "$T/out"
		fail "cp -a differs (seed $seed)"
	}
	must "$thawfs" pack -q --no-fsync -j $((seed % 5 + 1)) -o "$work/i.thaw" "$work/src"
	must "$thawfs" verify -q "$work/i.thaw"
	must "$thawfs" unpack -q --no-fsync -j $((seed % 3 + 1)) "$work/i.thaw" "$work/back" 2>"$T/err"
	python3 "$tree" compare "$work/src" "$work/back" >"$T/out" || {
		head -n 20 "$T/out"
		fail "what was unpacked differs (seed $seed)"
	}
	# over itself: nothing is lost by replacing
	must "$thawfs" unpack -q -f --no-fsync "$work/i.thaw" "$work/back" 2>"$T/err"
	python3 "$tree" compare "$work/src" "$work/back" >"$T/out" || {
		head -n 20 "$T/out"
		fail "what was unpacked over it differs (seed $seed)"
	}
	# the copy, and what came out, are the same image
	must "$thawfs" pack -q --no-fsync -o "$work/again.thaw" "$work/back"
	must cmp "$work/i.thaw" "$work/again.thaw"
	rm -rf "$work"
done

# longer than any path may be
mkdir "$T/src"
must python3 "$tree" make "$T/src" 4711 deep
must "$thawfs" pack -q --no-fsync -o "$T/i.thaw" "$T/src"
must "$thawfs" verify -q "$T/i.thaw"
must "$thawfs" unpack -q --no-fsync "$T/i.thaw" "$T/back" 2>"$T/err"
python3 "$tree" compare "$T/src" "$T/back" >"$T/out" || {
	head -n 20 "$T/out"
	fail "what was unpacked differs (deep)"
}
exit 0
