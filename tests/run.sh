#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Run the tests whose names begin with one of the arguments ("test_" may be left out), or all of them.
# A test exits 0 (passed), 77 (skipped, the reason is its last line) or anything else (failed; its output is shown).
# BUILD is where programs are; output of each test stays in $BUILD/tests/log/. TEST_TIMEOUT: seconds for one test.
set -u
BUILD=${BUILD:-build}
export BUILD
log=$BUILD/tests/log
limit=${TEST_TIMEOUT:-900}
mkdir -p "$log"
passed=0 failed=0 skipped=0

wanted() {
	local name=$1 t
	shift
	[ $# -eq 0 ] && return 0
	for t in "$@"; do
		case ${name#test_} in "${t#test_}"*) return 0 ;; esac
	done
	return 1
}

run_one() {
	local name=$1 out=$log/$1.log start rc
	shift
	start=$(date +%s%N)
	timeout -k 10 "$limit" "$@" >"$out" 2>&1 </dev/null
	rc=$?
	local ms=$((($(date +%s%N) - start) / 1000000))
	case $rc in
	0) passed=$((passed + 1)) && printf 'ok    %s (%d.%d s)\n' "$name" $((ms / 1000)) $((ms % 1000 / 100)) ;;
	77) skipped=$((skipped + 1)) && printf 'skip  %s: %s\n' "$name" "$(tail -n 1 "$out")" ;;
	*)
		failed=$((failed + 1))
		printf 'FAIL  %s (exit %d); the end of %s:\n' "$name" "$rc" "$out"
		tail -n 40 "$out" | sed 's/^/    /'
		;;
	esac
}

for t in "$BUILD"/tests/test_*; do
	case $t in *.o | *.d) continue ;; esac
	if [ ! -x "$t" ] || [ ! -f "tests/$(basename "$t").c" ]; then continue; fi
	wanted "$(basename "$t")" "$@" && run_one "$(basename "$t")" "$t"
done
for t in "$BUILD"/tests/fuzz_*.replay; do
	[ -x "$t" ] || continue
	n=$(basename "$t" .replay)
	wanted "$n" "$@" && run_one "$n" "$t" "tests/corpus/${n#fuzz_}"
done
for t in tests/test_*.sh; do
	[ -f "$t" ] || continue
	n=$(basename "$t" .sh)
	wanted "$n" "$@" && run_one "$n" bash "$t"
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ $((passed + skipped)) -gt 0 ]
