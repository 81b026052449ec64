#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# thawfs gpu resume: the states of a checkpointed process, with the double of the driver and with the tool.
. "$(dirname "$0")/lib.sh"
requires jq

[ "${THAW_GPU:-}" = real ] && skip "needs the double of the driver"
cd "$T" || exit 1
mkdir state
export THAWFS_LIBCUDA=$bin/double/libcuda.so.1 THAW_DOUBLE_REPORT=$T/report THAW_DOUBLE_STATE=$T/state
head -c 16777216 /dev/urandom >memory

target=
# shellcheck disable=SC2317 # at the end
end_target() { [ -z "$target" ] || kill -KILL "$target"; }
on_exit end_target
# begin STATE [STORAGE]: a process with 16 MiB of private memory of which nothing is there yet
begin() {
	[ -z "$target" ] || { kill -KILL "$target"; wait "$target" 2>/dev/null; }
	rm -f ready
	"$bin/tool_lazymem" memory ready &
	target=$!
	for _ in $(seq 200); do [ -e ready ] && break; sleep 0.05; done
	[ -e ready ] || fail "the target does not start"
	echo "$1 ${2:-0} 0" >"state/$target"
}
state() { cut -d' ' -f1 "state/$target"; }

begin 2
must "$thawfs" gpu resume "$target"
[ "$(state)" = 0 ] || fail "it is in state $(state), not running"
rss=$(cut -d' ' -f3 "state/$target")
[ "$rss" -ge 16384 ] || fail "only $rss KiB were there when the driver restored"
# not in the state for it
must_fail 1 "$thawfs" gpu resume "$target"
says "process $target is running, not checkpointed"
begin 1
must_fail 1 "$thawfs" gpu resume "$target"
says "is locked"
begin 3
must_fail 1 "$thawfs" gpu resume "$target"
says "is failed"
must_fail 1 "$thawfs" gpu resume 999999999
must_fail 2 "$thawfs" gpu resume x
must_fail 2 "$thawfs" gpu resume

# other cards: the map has to name all
export THAW_DOUBLE_DEVICES=2
begin 2
mapfile -t uuid < <("$thawfs" gpu devices --json | jq -r '.gpus[].uuid')
must_fail 1 "$thawfs" gpu resume --map "${uuid[0]}=${uuid[1]}" "$target"
[ "$(state)" = 2 ] || fail "a failed restore changed the state to $(state)"
must "$thawfs" gpu resume --map "${uuid[0]}=${uuid[1]}" --map "${uuid[1]}=${uuid[0]}" "$target"
[ "$(state)" = 0 ] || fail "not running after a map"

# what the driver leaves to its caller
head -c 3000000 /dev/urandom >part0
head -c 3000000 /dev/urandom >part1
must "$thawfs" gpu save -o storage.thaw part0 part1 >/dev/null
begin 2 3000000
must_fail 1 "$thawfs" gpu resume --storage storage.thaw "$target"
says "that takes 13.4"
export THAW_DOUBLE_VERSION=13040 THAW_DOUBLE_STORAGE=1
must "$thawfs" gpu resume --storage storage.thaw "$target"
[ "$(state)" = 0 ] || fail "not running with storage"
must cmp part0 "state/$target.0"
must cmp part1 "state/$target.1"
# the image has another size: the process must not go on
begin 2 2000000
must_fail 1 "$thawfs" gpu resume --storage storage.thaw "$target"
says "wants 2000000 bytes for GPU 0"
for _ in $(seq 100); do kill -0 "$target" 2>/dev/null || break; sleep 0.05; done
kill -0 "$target" 2>/dev/null && fail "it goes on with rubbish"
wait "$target" 2>/dev/null
target=
# a damaged image is found before the driver is asked, or the process is killed
begin 2 3000000
must_fail 1 "$thawfs" gpu resume --storage none.thaw "$target"
[ "$(state)" = 2 ] || fail "touched without an image"
for n in 19 20 21 22 40 80 120; do
	if kill -0 "$target" 2>/dev/null; then echo "2 3000000 0" >"state/$target"; else begin 2 3000000; fi
	THAW_DOUBLE_FAIL_AT=$n THAW_DOUBLE_FAIL_CODE=2 "$thawfs" gpu resume --storage storage.thaw "$target" >out 2>&1
	rc=$?
	[ $rc = 0 ] || [ $rc = 1 ] || fail "exit $rc when call $n fails: $(cat out)"
	# failed after the driver let go of the bytes: it must not run
	if [ $rc = 1 ] && [ "$(state)" = 0 ]; then fail "runs after a failure of call $n"; fi
done

# a driver without checkpoints, and the tool
export THAW_DOUBLE_VERSION=12020
unset THAW_DOUBLE_STORAGE
cat >tool <<'TOOL'
#!/bin/bash
echo "$*" >>calls
[ "$2" != fail ]
TOOL
chmod +x tool
begin 2
must "$thawfs" gpu resume --tool ./tool --map "${uuid[0]}=${uuid[1]}" "$target"
[ "$(cat calls)" = "--action restore --pid $target --device-map ${uuid[0]}=${uuid[1]}
--action unlock --pid $target" ] || fail "the tool was called so: $(cat calls)"
printf '#!/bin/sh\nexit 3\n' >tool
must_fail 1 "$thawfs" gpu resume --tool ./tool "$target"
says "'./tool --action restore' failed"
must_fail 1 "$thawfs" gpu resume --tool ./none "$target"
says "cannot run './none'"
grep -qv '^clean' report && fail "the driver was not used well: $(grep -v '^clean' report)"
exit 0
