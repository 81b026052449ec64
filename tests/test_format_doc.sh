#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The image that section 12 of docs/FORMAT.md shows byte by byte is what the packer makes.
# REGENERATE=1 writes it into the document.
# shellcheck source=tests/lib.sh
. "$(dirname "$0")/lib.sh"
requires python3 xxhsum
doc=$src/../docs/FORMAT.md

# files must belong to root, whoever runs this
if [ "$(id -u)" != 0 ]; then
	unshare -r true 2>/dev/null || skip "needs root or user namespaces"
	rm -rf "$T"
	exec unshare -r bash "$0"
fi

mkdir -p "$T/tree/d"
echo 'hello, thawfs' >"$T/tree/d/hello"
truncate -s 64K "$T/tree/d/hole"
ln -s d/hello "$T/tree/link"
chmod 755 "$T/tree" "$T/tree/d"
chmod 644 "$T/tree/d/"*
for f in d/hello d/hole link d .; do touch -h -d @1700000000 "$T/tree/$f"; done
must "$thawfs" pack -q --no-fsync --raw --chunk 64K -o "$T/x.thaw" "$T/tree"
must python3 "$src/oracle.py" verify "$T/x.thaw"
python3 "$src/oracle.py" dump "$T/x.thaw" >"$T/dump" || fail "no dump: $(cat "$T/dump")"

if [ "${REGENERATE:-0}" = 1 ]; then
	{
		sed '/<!-- hexdump:begin -->/q' "$doc"
		echo '```'
		cat "$T/dump"
		echo '```'
		sed -n '/<!-- hexdump:end -->/,$p' "$doc"
	} >"$T/doc" && cp "$T/doc" "$doc"
fi
sed -n '/<!-- hexdump:begin -->/,/<!-- hexdump:end -->/p' "$doc" | grep -v -e '^```' -e '^<!--' >"$T/want"
[ -s "$T/want" ] || fail "docs/FORMAT.md has no dump"
diff "$T/want" "$T/dump" || fail "docs/FORMAT.md shows another image; REGENERATE=1 bash $0 updates it"

# and the bytes in the document are the image: put together again, they are the same file
python3 - "$T/want" "$T/again" <<'PYTHON' || fail "the dump cannot be read back"
import re, sys
image, end = bytearray(), 0
for line in open(sys.argv[1]):
    m = re.match(r"([0-9a-f]{8})  ((?:[0-9a-f]{2} ?){1,16})", line[:58])
    if m:
        off, data = int(m[1], 16), bytes.fromhex(m[2])
        image += bytes(max(0, off - len(image)))
        image[off:off + len(data)] = data
open(sys.argv[2], "wb").write(image)
PYTHON
must cmp "$T/x.thaw" "$T/again"
