#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# thawfs gpu serve: many targets at once, and what dies, is cancelled or takes too long on either side.
. "$(dirname "$0")/lib.sh"
requires jq python3

cd "$T" || exit 1
if [ "${THAW_GPU:-}" = real ]; then
	"$thawfs" gpu devices || skip "needs a GPU"
	n_gpus=$("$thawfs" gpu devices --json | jq '.gpus | length')
else
	export THAWFS_LIBCUDA=$bin/double/libcuda.so.1 THAW_DOUBLE_REPORT=$T/report THAW_DOUBLE_DEVICES=4
	n_gpus=4
fi
helper=
start() { # VARIABLE=VALUE...: start a helper with these in its environment
	rm -f ready
	env "$@" "$thawfs" gpu serve --socket s -j 4 --slot 1M --slots 2 >ready 2>>helper.log &
	helper=$!
	for _ in $(seq 200); do
		grep -q serving ready && return
		kill -0 $helper 2>/dev/null || break
		sleep 0.05
	done
	cat helper.log
	fail "the helper does not start"
}
stop() { # CODE: end it, it must exit so
	kill -TERM $helper 2>/dev/null
	wait $helper
	local rc=$?
	[ $rc = "$1" ] || { cat helper.log; fail "the helper's exit code is $rc, not $1"; }
	helper=
}
# shellcheck disable=SC2317 # at the end
end_helper() { [ -z "$helper" ] || kill -KILL "$helper"; }
on_exit end_helper

for i in $(seq 8); do
	head -c $((200000 * i)) /dev/urandom >"random$i"
	truncate -s 3000000 "zeros$i"
	must "$thawfs" gpu save -o "$i.thaw" --gpu $((i % n_gpus)) "random$i" "zeros$i" >/dev/null
done

# eight at once, twice, on all GPUs
start X=1
pids=()
for round in 1 2; do
	for i in $(seq 8); do
		"$thawfs" gpu load --socket s --read-back "$i.thaw" >"$i.$round.log" 2>&1 &
		pids+=($!)
	done
done
for p in "${pids[@]}"; do wait "$p" || { cat ./*.log; fail "a target failed"; }; done

# what the helper refuses, and it serves on
must_fail 2 "$thawfs" gpu serve
must_fail 1 "$thawfs" gpu serve --socket s
says "Address already in use"
must_fail 1 "$thawfs" gpu load --socket nowhere 1.thaw
says "cannot connect to the GPU helper"
cp 1.thaw bad.thaw
printf 'damage' | dd of=bad.thaw bs=1 seek=5000 conv=notrunc status=none
must_fail 3 "$thawfs" gpu load --socket s bad.thaw
says "the GPU helper failed: cannot read '$T/bad.thaw': 'random1' at offset 0"
python3 - <<'PY' || fail "the helper does not end bad talk"
import os, socket, struct
def talk(*packets, fds=()):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.connect("s")
    for p in packets:
        try:
            socket.send_fds(s, [p], list(fds))
        except BrokenPipeError:
            break
    s.settimeout(10)
    return s, s.recv(1000)
begin = struct.pack("=IIII", 1, 1, 0, 0)
image = os.open("1.thaw", os.O_RDONLY)
null = os.open("/dev/null", os.O_RDONLY)
def reason(m): return m[32:].split(b"\0")[0].decode()
s, m = talk(b"rubbish")
assert struct.unpack("=Ii", m[:8]) == (5, -74), m
s, m = talk(b"\x07\0\0\0")
assert "does not speak" in reason(m), m
s, m = talk(begin, fds=[null])
assert "no image" in reason(m), m
s, m = talk(struct.pack("=IIII", 1, 9, 0, 0), fds=[image])
assert "version 9" in reason(m), m
def buffer(id, size=200000, mapped=2 << 20, uuid=bytes(range(16, 31)) + b"\1"):
    return struct.pack("=II16sQQ208s", 2, 0, uuid, size, mapped, id)
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.connect("s")
def one(b, fd=None):
    socket.send_fds(s, [begin], [image])
    socket.send_fds(s, [b], [fd] if fd is not None else [])
    return reason(s.recv(1000))
assert "has no buffer" in one(buffer(b"nothing"), null)
assert "has 200000 bytes, not 1" in one(buffer(b"random1", 1), null)
assert "there is no GPU-" in one(buffer(b"random1", uuid=b"x" * 16), null)
PY
if [ "${THAW_GPU:-}" != real ]; then
	python3 - <<'PY' || fail "the helper takes what is no memory of a GPU"
import os, socket, struct
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.connect("s")
socket.send_fds(s, [struct.pack("=IIII", 1, 1, 0, 0)], [os.open("1.thaw", os.O_RDONLY)])
uuid = bytes(range(16, 31)) + b"\1"
socket.send_fds(s, [struct.pack("=II16sQQ208s", 2, 0, uuid, 200000, 2 << 20, b"random1")], [os.open("/dev/null", os.O_RDONLY)])
m = s.recv(1000)
assert b"import memory" in m, m
PY
fi
if [ "$(id -u)" = 0 ] && command -v setpriv >/dev/null; then
	chmod 755 "$T" && chmod 666 s && chmod 644 1.thaw
	nobody=(setpriv --reuid=65534 --regid=65534 --clear-groups)
	if "${nobody[@]}" "$thawfs" help >/dev/null 2>&1; then
		must_fail 1 "${nobody[@]}" "$thawfs" gpu load --socket s 1.thaw
		says "user 65534 may not use this helper"
	fi
fi
must "$thawfs" gpu load --socket s --read-back 2.thaw >/dev/null
stop 0
[ ! -e s ] || fail "the socket is left"
if [ "${THAW_GPU:-}" = real ]; then exit 0; fi
grep -qv '^clean' report && fail "the driver was not used well: $(grep -v '^clean' report)"

# from here on each copy takes its time
head -c 20000000 /dev/urandom >large
must "$thawfs" gpu save --raw -o large.thaw large >/dev/null
slow=THAW_DOUBLE_DELAY_US=200000
busy() { # the helper is at it
	for _ in $(seq 200); do
		grep -q filling helper.log && : >helper.log && sleep 0.3 && return
		sleep 0.05
	done
	fail "the helper does not begin: $(cat helper.log target.log)"
}
start $slow
# a target that is killed
"$thawfs" gpu load --socket s large.thaw >target.log 2>&1 &
target=$!
busy
kill -KILL $target
wait $target 2>/dev/null
for _ in $(seq 100); do grep -q "the target is gone" helper.log && break; sleep 0.05; done
grep -q "the target is gone" helper.log || fail "the helper did not see the target die: $(cat helper.log)"
# a target that cancels
"$thawfs" gpu load --socket s large.thaw >target.log 2>&1 &
target=$!
busy
kill -TERM $target
wait $target && fail "a cancelled load succeeds"
grep -q "cancelled by the target" target.log || fail "not cancelled: $(cat target.log)"
# one that has no time
must_fail 1 "$thawfs" gpu load --socket s --timeout 1 large.thaw
says "the GPU helper failed: it took too long"
# a helper that is told to end
"$thawfs" gpu load --socket s large.thaw >target.log 2>&1 &
target=$!
busy
stop 0
wait $target && fail "a load succeeds whose helper ended"
grep -q "the GPU helper failed: the helper ends" target.log || fail "not told: $(cat target.log)"
# a helper that is killed; what it leaves behind is no hindrance
start $slow
"$thawfs" gpu load --socket s large.thaw >target.log 2>&1 &
target=$!
busy
kill -KILL $helper
wait $helper 2>/dev/null
wait $target && fail "a load succeeds whose helper was killed"
grep -q "the GPU helper is gone" target.log || fail "not noticed: $(cat target.log)"
[ -S s ] || fail "the socket is gone"
# a device that is lost: an answer, then the helper ends
start THAW_DOUBLE_ASYNC_AT=3 THAW_DOUBLE_ASYNC_CODE=214
must_fail 1 "$thawfs" gpu load --socket s large.thaw
says "could not be corrected (CUDA 214)"
wait $helper
[ $? = 1 ] || fail "a helper goes on without its device"
helper=
grep -q "start the helper again" helper.log || fail "$(cat helper.log)"
# copies that come late, from memory that is watched
start THAW_DOUBLE_DELAY_US=3000 THAW_DOUBLE_CHECK=1
for i in 1 2 3; do
	"$thawfs" gpu load --socket s --read-back "$i.thaw" >"$i.log" 2>&1 &
	pids[i]=$!
done
for i in 1 2 3; do wait "${pids[i]}" || fail "late copies: $(cat "$i.log")"; done
stop 0
grep -qv '^clean' report && fail "the driver was not used well: $(grep -v '^clean' report)"
exit 0
