# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# For tests that restart processes: source this after lib.sh.
selfckpt=$(realpath "$BUILD/examples/selfckpt")
restarter=$(realpath "$BUILD/thawfs-mtcp-restart")
export selfckpt restarter
[ "$(uname -m)" = x86_64 ] || skip "needs x86-64"

# make_checkpoint FILE OPTION...: a process that saved itself once, at count 2
make_checkpoint() {
	local file=$1
	shift
	printf 'verify\ncount 2\nsave %s\nverify\n' "$file" | "$selfckpt" "$@" >"$T/out" 2>&1
	[ "$(tail -n 2 "$T/out" | tr '\n' ' ')" = "saved verified " ] || {
		cat "$T/out"
		fail "cannot make a checkpoint with $*"
	}
}
# drive WANT COMMANDS COMMAND...: run a restart, give it the commands (separated by ;), compare the lines it prints
drive() {
	local want=$1 commands=$2 got rc
	shift 2
	got=$(tr ';' '\n' <<<"$commands" | "$@" 2>"$T/err" | tr '\n' ';'; exit "${PIPESTATUS[1]}")
	rc=$?
	if [ "$got" != "$want" ] || [ $rc -ne 0 ]; then
		cat "$T/err"
		fail "exit $rc, printed '$got', not '$want', from: $*"
	fi
}
raw_limit=120
[ "${THAW_LONG:-0}" != 1 ] || raw_limit=1200
# raw FILE [HEAD]: the restarter on descriptor 3, with the arguments that DMTCP takes from HEAD, else FILE
buffer_of() {
	local n
	read -r -a n < <(od -An -v -t u8 -j 168 -N 16 "$1")
	printf '0x%x 0x%x\n' "${n[0]}" $((n[1] - n[0]))
}
raw() {
	local at
	read -r -a at < <(buffer_of "${2:-$1}")
	timeout "$raw_limit" "$restarter" --stderr-fd 2 --restore-buffer-addr "${at[0]}" --restore-buffer-len "${at[1]}" --fd 3 \
		3<"$1"
}
raw_pipe() {
	local at
	read -r -a at < <(buffer_of "${2:-$1}")
	timeout "$raw_limit" "$restarter" --stderr-fd 2 --restore-buffer-addr "${at[0]}" --restore-buffer-len "${at[1]}" --fd 3 \
		3< <(tail -c +4097 "$1")
}
