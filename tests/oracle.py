#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A second reader of thawfs images, written from docs/FORMAT.md alone: the tests hold the C reader and writer against it.

  oracle.py list IMAGE            members, one JSON object a line
  oracle.py cat IMAGE MEMBER      a member's bytes
  oracle.py maps IMAGE            address spaces with their regions and segments, one JSON object a line
  oracle.py view IMAGE SPACE ADDR LEN   bytes of an address space
  oracle.py verify IMAGE          check every rule of the document; lists what is broken
  oracle.py sections IMAGE        where things are, as JSON
  oracle.py dump IMAGE            every byte that is not zero, field by field
Options: --base-path DIR (may be repeated): where else to look for bases.
Exit codes: 0 good, 1 failed, 2 usage, 3 damaged image.

It is simple rather than fast and keeps the whole index in memory. Hashes and codecs are those of the commands xxhsum,
zstd and lz4, called for many chunks at a time.
"""
import argparse
import json
import os
import re
import stat
import struct
import subprocess
import sys
import tempfile

PAGE = 4096
BLOCK = 16384
HEAD_MAGIC = b"\x89THAW\r\n\x1a"
FOOT_MAGIC = b"\x89THAWEND"
HOLE = 0xFFFFFFFF
BATCH = 32 << 20  # logical bytes decoded at a time

SUMMARY, CHUNKS, INODES, NAMES, EXTENTS, SPACES, REGIONS, SEGMENTS, XATTRS, BASES, _, STRINGS, PROPERTIES = range(1, 14)
SECTION = {
    SUMMARY: ("SUMMARY", "<13Q24s"),
    CHUNKS: ("CHUNKS", "<QQIIBBHI"),
    INODES: ("INODES", "<IIIIQqIIIIQQQQII40s"),
    NAMES: ("NAMES", "<IIQI12s"),
    EXTENTS: ("EXTENTS", "<QII"),
    SPACES: ("SPACES", "<QIIIIQQII16s"),
    REGIONS: ("REGIONS", "<QQQIIQI20s"),
    SEGMENTS: ("SEGMENTS", "<QQQIBBH"),
    XATTRS: ("XATTRS", "<QQIIQ"),
    BASES: ("BASES", "<16sQI36s"),
    STRINGS: ("STRINGS", None),
    PROPERTIES: ("PROPERTIES", None),
}
MEMBERS = ("source", "single", "notes", "labels", "creator", "host", "created")  # of PROPERTIES
FIELDS = {
    "header": ("<8sII4072sQ", "magic version chunk_size reserved header_hash"),
    "footer": ("<8sIIIIQQII16s", "magic version chunk_size incompat_flags compat_flags file_size data_end n_sections reserved image_id"),
    "section entry": ("<IIQQ16s24s", "type entry_size offset length hash reserved"),
    SUMMARY: ("<13Q24s", "logical_bytes hole_bytes chunk_bytes stored_bytes base_bytes dup_bytes n_chunks_raw n_chunks_zstd "
              "n_chunks_lz4 n_chunks_shuffled n_chunks_base n_files n_dirs reserved"),
    CHUNKS: ("", "stored_off hash stored_len logical_len codec shuffle base reserved"),
    INODES: ("", "mode nlink uid gid size mtime_sec mtime_nsec rdev_major rdev_minor n_xattrs first_xattr first count "
             "hole_bytes parent format reserved"),
    NAMES: ("", "parent inode name_off name_len reserved"),
    EXTENTS: ("", "off chunk chunk_off"),
    SPACES: ("", "name_off name_len kind inode pid first_region first_segment n_regions n_segments reserved"),
    REGIONS: ("", "addr len pgoff prot flags name_off name_len reserved"),
    SEGMENTS: ("", "addr len off inode kind reserved base"),
    XATTRS: ("", "name_off value_off name_len value_len reserved"),
    BASES: ("", "image_id name_off name_len reserved"),
}
FLAG_LZ4, FLAG_SHUFFLE, FLAG_BASE = 1, 2, 4
RAW, ZSTD, LZ4 = 0, 1, 2
KIND_SPACE = {1: "dmtcp", 2: "criu", 3: "criu-shmem", 4: "core"}
KIND_FORMAT = {0: "plain", 1: "dmtcp", 2: "criu", 3: "core", 4: "dmtcp-gzip"}
KIND_SEGMENT = {1: "data", 2: "hole", 3: "absent"}
TYPE_NAME = {
    stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink", stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket", stat.S_IFCHR: "char-device", stat.S_IFBLK: "block-device",
}


class Damage(Exception):
    """A rule of the document is broken."""


class Failed(Exception):
    """Cannot go on for another reason: not an image, no such member, base missing."""


def align(x, n):
    return (x + n - 1) // n * n


def run(cmd, data):
    return subprocess.run(cmd, input=data, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)


def xxh(flag, digits, datas):
    """Hashes of many pieces of bytes, as the hexadecimal text that xxhsum prints."""
    out = []
    datas = list(datas)
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as tmp:
        for start in range(0, len(datas), 512):
            names = []
            for i, data in enumerate(datas[start:start + 512]):
                names.append("P%d" % i)
                with open(os.path.join(tmp, names[-1]), "wb") as f:
                    f.write(data)
            r = subprocess.run(["xxhsum", flag] + names, cwd=tmp, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=True)
            found = re.findall(r"\b(?:XXH3_)?([0-9a-f]{%d})\b" % digits, r.stdout.decode())
            if len(found) != len(names):
                raise Failed("cannot understand what xxhsum prints: %r" % r.stdout[:200])
            out += found
    return out


def hash64(datas):
    return [int(h, 16) for h in xxh("-H3", 16, datas)]


def hash128(data):
    return bytes.fromhex(xxh("-H2", 32, [data])[0])


def zstd_frame(data, content, window_max):
    """Check that data is exactly one zstd frame (RFC 8878) as the document wants it: walks its blocks."""
    if len(data) < 6 or data[:4] != b"\x28\xb5\x2f\xfd":
        raise Damage("not a zstd frame")
    desc = data[4]
    fcs_flag, single, unused, checksum, dict_flag = desc >> 6, desc >> 5 & 1, desc >> 3 & 1, desc >> 2 & 1, desc & 3
    if unused:
        raise Damage("zstd frame with a reserved bit")
    if dict_flag:
        raise Damage("zstd frame with a dictionary")
    pos, window = 5, 0
    if not single:
        exp, mantissa = data[pos] >> 3, data[pos] & 7
        window = (1 << (10 + exp)) // 8 * (8 + mantissa)
        pos += 1
    fcs_len = (single, 2, 4, 8)[fcs_flag]
    if fcs_len == 0:
        raise Damage("zstd frame that does not state its content size")
    size = int.from_bytes(data[pos:pos + fcs_len], "little") + (256 if fcs_len == 2 else 0)
    pos += fcs_len
    if size != content:
        raise Damage("zstd content size is %d, not %d" % (size, content))
    if single:
        window = size
    if window > window_max:
        raise Damage("zstd window of %d bytes, more than %d" % (window, window_max))
    last = 0
    while not last:
        if pos + 3 > len(data):
            raise Damage("zstd frame is cut short")
        head = int.from_bytes(data[pos:pos + 3], "little")
        last, kind, size = head & 1, head >> 1 & 3, head >> 3
        if kind == 3:
            raise Damage("zstd block of a reserved kind")
        pos += 3 + (1 if kind == 1 else size)
    pos += 4 * checksum
    if pos != len(data):
        raise Damage("zstd frame ends at %d of %d bytes" % (pos, len(data)))


def unshuffle(s, w):
    n = len(s)
    m = n // w
    b = bytearray(s)
    for lane in range(w):
        b[lane:m * w:w] = s[lane * m:(lane + 1) * m]
    return bytes(b)


def unpack_many(codec, blobs, lens):
    """Decode frames in one go; a list of bytes, None where it does not give exactly the length wanted."""
    if not blobs:
        return []
    if codec == ZSTD:
        cmd, data = ["zstd", "-dcq"], b"".join(blobs)
    else:  # an LZ4 frame of one block, up to 4 MiB, around each: magic, flags, hash of the flags, size … end mark
        cmd = ["lz4", "-dcq"]
        data = b"".join(b"\x04\x22\x4d\x18\x60\x70\x73" + struct.pack("<I", len(b)) + b + bytes(4) for b in blobs)
    r = run(cmd, data)
    if r.returncode == 0 and len(r.stdout) == sum(lens):
        out, pos = [], 0
        for n in lens:
            out.append(r.stdout[pos:pos + n])
            pos += n
        return out
    if len(blobs) == 1:
        return [None]
    half = len(blobs) // 2
    return unpack_many(codec, blobs[:half], lens[:half]) + unpack_many(codec, blobs[half:], lens[half:])


class Image:
    """The index of one image, decoded; bases are opened when first needed."""

    def __init__(self, path, base_paths=(), depth=0):
        self.path, self.base_paths, self.depth = path, list(base_paths), depth
        self.problems, self.bases, self.cache = [], {}, {}
        try:
            self.fd = os.open(path, os.O_RDONLY)
        except OSError as e:
            raise Failed("cannot open '%s': %s" % (path, e.strerror)) from e
        self.size = os.fstat(self.fd).st_size
        self.read_header()
        self.read_footer()
        self.read_sections()

    def pread(self, off, n):
        data = b""
        while len(data) < n:
            part = os.pread(self.fd, n - len(data), off + len(data))
            if not part:
                raise Damage("file ends at %d, wanted %d bytes at %d" % (off + len(data), n, off))
            data += part
        return data

    def want(self, ok, text, *args):
        if not ok:
            self.problems.append(text % args if args else text)
        return ok

    def must_be(self, ok, text, *args):
        if not ok:
            raise Damage(text % args if args else text)

    # header, footer, sections: sections 2 and 3 of the document

    def read_header(self):
        if self.size < PAGE or os.pread(self.fd, 8, 0) != HEAD_MAGIC:
            raise Failed("'%s' is not a thaw image" % self.path)
        head = self.pread(0, PAGE)
        stored = struct.unpack_from("<Q", head, 4088)[0]
        version, self.chunk_size = struct.unpack_from("<II", head, 8)
        self.must_be(hash64([head[:4088]])[0] == stored, "header: hash is wrong")
        if version > 1:
            raise Failed("version %d is too new" % version)
        self.must_be(version == 1, "header: version %d", version)
        c = self.chunk_size
        self.must_be(65536 <= c <= 4194304 and c & (c - 1) == 0, "header: chunk size %d", c)
        self.must_be(not any(head[16:4088]), "header: reserved bytes are not zero")

    def read_footer(self):
        self.must_be(self.size >= 2 * PAGE, "incomplete: no footer")
        foot = self.pread(self.size - PAGE, PAGE)
        self.must_be(foot[:8] == FOOT_MAGIC, "incomplete: no footer")
        self.must_be(hash64([foot[:4088]])[0] == struct.unpack_from("<Q", foot, 4088)[0], "footer: hash is wrong")
        (version, chunk_size, self.incompat, self.compat, file_size, self.data_end, n,
         reserved) = struct.unpack_from("<IIIIQQII", foot, 8)
        self.image_id = foot[48:64]
        if version > 1:
            raise Failed("version %d is too new" % version)
        self.must_be(version == 1 and chunk_size == self.chunk_size, "footer: version or chunk size differs from the header's")
        if self.incompat & ~7:
            raise Failed("unknown incompatible feature: flags %#x" % self.incompat)
        self.must_be(file_size == self.size, "footer: file size is %d, the file has %d", file_size, self.size)
        self.must_be(n <= 62, "footer: %d sections", n)
        self.must_be(reserved == 0 and not any(foot[64 + 64 * n:4088]), "footer: reserved bytes are not zero")
        self.must_be(hash128(foot[64:64 + 64 * n]) == self.image_id, "footer: image id is not the section table's hash")
        self.must_be(PAGE <= self.data_end <= self.size - PAGE, "footer: data end is %d", self.data_end)
        self.table = [struct.unpack_from("<IIQQ16s24s", foot, 64 + 64 * i) for i in range(n)]

    def read_sections(self):
        self.data, self.places = {}, []
        end, last_type, blocks, wanted, roots = self.data_end, 0, [], [], []
        for kind, entry_size, off, length, hash_, reserved in self.table:
            name = "section %s" % (SECTION[kind][0] if kind in SECTION else kind)
            self.must_be(kind > last_type, "%s: out of order", name)
            last_type = kind
            self.must_be(off == align(end, PAGE), "%s: offset %d instead of %d", name, off, align(end, PAGE))
            self.must_be(not any(reserved), "%s: reserved bytes are not zero", name)
            self.must_be(0 < length <= 1 << 40 and off + length <= self.size - PAGE, "%s: length %d", name, length)
            self.must_be(entry_size > 0 and length % entry_size == 0, "%s: entry size %d", name, entry_size)
            self.must_be(not any(self.pread(end, off - end)), "%s: padding before it is not zero", name)
            n_blocks = align(length, BLOCK) // BLOCK
            hashes_off = align(off + length, 8)
            end = hashes_off + 8 * n_blocks
            self.must_be(end <= self.size - PAGE, "%s: ends at %d, behind the footer", name, end)
            data, hashes = self.pread(off, length), self.pread(hashes_off, 8 * n_blocks)
            self.must_be(not any(self.pread(off + length, hashes_off - off - length)), "%s: padding is not zero", name)
            blocks += [data[i:i + BLOCK] for i in range(0, length, BLOCK)]
            wanted += [(name, i, h) for i, h in enumerate(struct.unpack("<%dQ" % n_blocks, hashes))]
            roots.append((name, hashes, hash_))
            self.data[kind] = data
            self.places.append((kind, off, length, hashes_off, end))
            if kind in SECTION:
                fmt = SECTION[kind][1]
                self.must_be(entry_size == (struct.calcsize(fmt) if fmt else 1), "%s: entry size %d", name, entry_size)
        for (name, _, hash_), found in zip(roots, xxh("-H2", 32, [r[1] for r in roots])):
            self.must_be(bytes.fromhex(found) == hash_, "%s: hash of block hashes is wrong", name)
        for (name, i, hash_), found in zip(wanted, hash64(blocks)):
            self.must_be(found == hash_, "%s: block %d: hash is wrong", name, i)
        self.must_be(self.size - PAGE == align(end, PAGE), "footer is at %d instead of %d", self.size - PAGE, align(end, PAGE))
        self.must_be(not any(self.pread(end, self.size - PAGE - end)), "padding before the footer is not zero")
        self.must_be(INODES in self.data, "no section INODES")
        self.must_be(len(self.data.get(SUMMARY, b"")) == 128, "not exactly one SUMMARY")

        def entries(kind):
            return list(struct.iter_unpack(SECTION[kind][1], self.data.get(kind, b"")))
        (self.chunks, self.inodes, self.names, self.extents, self.spaces, self.regions, self.segments, self.xattrs,
         self.base_table) = (entries(k) for k in range(CHUNKS, BASES + 1))
        self.summary = entries(SUMMARY)[0]
        self.strings = self.data.get(STRINGS, b"")

    def string(self, off, n, what):
        if off + n > len(self.strings):
            raise Damage("%s: string at %d + %d lies outside STRINGS" % (what, off, n))
        return self.strings[off:off + n]

    # the tree: section 5

    def is_type(self, ino, kind):
        return stat.S_IFMT(self.inodes[ino][0]) == kind

    def slice_of(self, table, first, count, what):
        if first + count > len(table):
            raise Damage("%s: entries %d + %d of %d" % (what, first, count, len(table)))
        return table[first:first + count]

    def walk(self):
        """Yield (path, inode) of all members, parents first; the root is the empty path."""
        todo, seen = [(b"", 0)], set()
        while todo:
            path, ino = todo.pop()
            yield path, ino
            if not self.is_type(ino, stat.S_IFDIR):
                continue
            if ino in seen:
                raise Damage("directory inode %d has two names" % ino)
            seen.add(ino)
            names = self.slice_of(self.names, self.inodes[ino][11], self.inodes[ino][12], "inode %d" % ino)
            for _parent, child, off, n, _pad in reversed(names):
                if child >= len(self.inodes):
                    raise Damage("name leads to inode %d of %d" % (child, len(self.inodes)))
                todo.append(((path + b"/" if path else b"") + self.string(off, n, "name"), child))

    def lookup(self, path):
        ino = 0
        for part in filter(None, path.split(b"/")):
            if not self.is_type(ino, stat.S_IFDIR):
                raise Failed("no such member")
            for _parent, child, off, n, _pad in self.slice_of(self.names, self.inodes[ino][11], self.inodes[ino][12], "inode"):
                if self.string(off, n, "name") == part:
                    ino = child
                    break
            else:
                raise Failed("no such member: '%s'" % os.fsdecode(path))
        return ino

    def xattrs_of(self, ino):
        i = self.inodes[ino]
        return [(self.string(no, nl, "xattr"), self.string(vo, vl, "xattr"))
                for no, vo, nl, vl, _ in self.slice_of(self.xattrs, i[10], i[9], "inode %d: xattrs" % ino)]

    def extents_of(self, ino):
        """(start, end, chunk, chunk_off) of a file's extents."""
        i = self.inodes[ino]
        rows = self.slice_of(self.extents, i[11], i[12], "inode %d: extents" % ino)
        ends = [r[0] for r in rows[1:]] + [i[4]]
        return [(off, end, chunk, chunk_off) for (off, chunk, chunk_off), end in zip(rows, ends)]

    def runs(self, ino, start=0, end=None):
        """(chunk, off in it, length) that make up a file's bytes [start, end); chunk HOLE: zeros."""
        size = self.inodes[ino][4]
        end = size if end is None else end
        if end > size:
            raise Damage("inode %d: bytes to %d of %d" % (ino, end, size))
        for a, b, chunk, chunk_off in self.extents_of(ino):
            lo, hi = max(a, start), min(b, end)
            if lo >= hi:
                continue
            if chunk == HOLE:
                yield HOLE, 0, hi - lo
                continue
            p = lo
            while p < hi:
                at = chunk_off + p - a
                n = min(self.chunk_size - at % self.chunk_size, hi - p)
                yield chunk + at // self.chunk_size, at % self.chunk_size, n
                p += n

    # chunks and bases: sections 4 and 7

    def base(self, number):
        """BASES entry number - 1, opened; looked for beside the image and in the directories given."""
        if number in self.bases:
            return self.bases[number]
        if not 0 < number <= len(self.base_table):
            raise Damage("base %d of %d" % (number, len(self.base_table)))
        if self.depth >= 64:
            raise Failed("chain of bases is too deep")
        want, off, n, _ = self.base_table[number - 1]
        hint = os.fsdecode(self.string(off, n, "base"))
        for folder in [os.path.dirname(self.path) or "."] + self.base_paths:
            names = sorted(os.listdir(folder), key=lambda x: (x != hint, x))
            for name in names:
                path = os.path.join(folder, name)
                if os.path.isfile(path) and self.id_of(path) == want:
                    self.bases[number] = Image(path, self.base_paths, self.depth + 1)
                    return self.bases[number]
        raise Failed("base image %s ('%s') is missing" % (want.hex(), hint))

    @staticmethod
    def id_of(path):
        with open(path, "rb") as f:
            if f.read(8) != HEAD_MAGIC or os.fstat(f.fileno()).st_size < 2 * PAGE:
                return None
            f.seek(-PAGE, os.SEEK_END)
            foot = f.read(64)
            return foot[48:64] if foot[:8] == FOOT_MAGIC else None

    def decode(self, wanted):
        """{chunk: logical bytes, or the Damage that it is} for chunk indexes, hashes checked."""
        out, groups, later = {}, {ZSTD: [], LZ4: []}, {}
        for c in wanted:
            try:
                if c >= len(self.chunks):
                    raise Damage("chunk %d of %d" % (c, len(self.chunks)))
                off, _, stored, logical, codec, _, base, _ = self.chunks[c]
                if base:
                    later.setdefault(base, {}).setdefault(off, []).append(c)
                    continue
                if not (PAGE <= off and off + stored <= self.data_end and 1 <= stored <= 2 * self.chunk_size):
                    raise Damage("chunk %d: stored at %d + %d" % (c, off, stored))
                if not 1 <= logical <= self.chunk_size:
                    raise Damage("chunk %d: logical length %d" % (c, logical))
                data = self.pread(off, stored)
                if codec == RAW:
                    if stored != logical:
                        raise Damage("chunk %d: raw and of two lengths" % c)
                    out[c] = data
                    continue
                if codec == ZSTD:
                    zstd_frame(data, logical, max(self.chunk_size, 1024))
                elif codec != LZ4:
                    raise Damage("chunk %d: codec %d" % (c, codec))
                groups[codec].append((c, data, logical))
            except Damage as e:
                out[c] = Damage("chunk %d: %s" % (c, e))
        for codec, group in groups.items():
            datas = unpack_many(codec, [g[1] for g in group], [g[2] for g in group])
            for (c, _, _), data in zip(group, datas):
                out[c] = Damage("chunk %d does not decode" % c) if data is None else data
        for number, by_index in later.items():
            base = self.base(number)
            found = base.decode(by_index)
            for index, mine in by_index.items():
                for c in mine:
                    out[c] = found[index]
                    if not isinstance(found[index], Damage):
                        theirs = base.chunks[index]
                        if theirs[6] or theirs[3] != self.chunks[c][3] or theirs[1] != self.chunks[c][1]:
                            out[c] = Damage("chunk %d: the base's chunk does not fit" % c)
        good = [c for c in wanted if not isinstance(out[c], Damage)]
        for c in good:
            if self.chunks[c][5] and not self.chunks[c][6]:
                out[c] = unshuffle(out[c], self.chunks[c][5])
        for c, h in zip(good, hash64(out[c] for c in good)):
            if h != self.chunks[c][1]:
                out[c] = Damage("chunk %d at offset %d: checksum mismatch" % (c, self.chunks[c][0]))
        return out

    def write_range(self, ino, start, end, write, write_hole=None):
        """Give a file's bytes [start, end) to write(), and lengths of holes to write_hole(); decodes a batch of chunks at a time."""
        batch, need, total = [], [], 0

        def write_zeros(n):
            for done in range(0, n, 1 << 20):
                write(bytes(min(1 << 20, n - done)))
        write_hole = write_hole or write_zeros

        def flush():
            have = self.decode(sorted(set(need) - set(self.cache)))
            have.update(self.cache)
            for chunk, at, n in batch:
                if chunk == HOLE:
                    write_hole(n)
                    continue
                if isinstance(have[chunk], Damage):
                    raise have[chunk]
                data = have[chunk][at:at + n]
                if len(data) != n:
                    raise Damage("chunk %d is too short for an extent" % chunk)
                write(data)
            self.cache = {c: have[c] for c in need[-4:] if c in have}

        for run_ in self.runs(ino, start, end):
            batch.append(run_)
            if run_[0] != HOLE:
                need.append(run_[0])
                total += self.chunk_size
            if total >= BATCH:
                flush()
                batch, need, total = [], [], 0
        flush()

    # what the commands print

    def describe(self, path, ino):
        i = self.inodes[ino]
        d = {
            "path": os.fsdecode(path), "type": TYPE_NAME.get(stat.S_IFMT(i[0]), "?"), "mode": "%04o" % (i[0] & 0o7777),
            "inode": ino, "nlink": i[1], "uid": i[2], "gid": i[3], "size": i[4], "mtime_sec": i[5], "mtime_nsec": i[6],
        }
        if self.is_type(ino, stat.S_IFREG):
            d["hole_bytes"], d["format"] = i[13], KIND_FORMAT.get(i[15], "?")
        if self.is_type(ino, stat.S_IFLNK):
            d["target"] = os.fsdecode(self.string(i[11], i[4], "symlink"))
        if self.is_type(ino, stat.S_IFCHR) or self.is_type(ino, stat.S_IFBLK):
            d["rdev_major"], d["rdev_minor"] = i[7], i[8]
        if i[9]:
            d["xattrs"] = {os.fsdecode(n): os.fsdecode(v) for n, v in self.xattrs_of(ino)}
        return d

    def describe_space(self, s):
        name_off, name_len, kind, ino, pid, r0, s0, n_r, n_s, _ = s
        paths = {i: p for p, i in self.walk()}
        regions = [{
            "addr": a, "len": n, "pgoff": pgoff, "prot": prot, "flags": flags,
            "name": os.fsdecode(self.string(no, nl, "region")),
        } for a, n, pgoff, prot, flags, no, nl, _ in self.slice_of(self.regions, r0, n_r, "space")]
        segments = [{
            "addr": a, "len": n, "kind": KIND_SEGMENT.get(k, "?"), "off": off, "inode": i, "base": b,
        } for a, n, off, i, k, _, b in self.slice_of(self.segments, s0, n_s, "space")]
        return {
            "name": os.fsdecode(self.string(name_off, name_len, "space")), "kind": KIND_SPACE.get(kind, "?"),
            "member": os.fsdecode(paths.get(ino, b"?")), "pid": pid, "regions": regions, "segments": segments,
        }

    def view(self, name, addr, length, write):
        for s in self.spaces:
            if self.string(s[0], s[1], "space") == name:
                break
        else:
            raise Failed("no such address space")
        at, end = addr, addr + length
        for a, n, off, ino, kind, _, base in self.slice_of(self.segments, s[6], s[8], "space"):
            lo, hi = max(a, at), min(a + n, end)
            if lo >= hi:
                continue
            write(bytes(lo - at))
            if kind == 3:
                raise Failed("bytes at %#x are not in the image" % lo)
            if kind == 2:
                write(bytes(hi - lo))
            else:
                image = self.base(base) if base else self
                image.write_range(ino, off + lo - a, off + hi - a, write)
            at = hi
        write(bytes(end - at))

    def dump(self, out):
        """The whole file: fields with their bytes and values, a line each; what is left out is zero."""
        self.dumped = 0

        def line(off, data, text):
            if any(self.pread(self.dumped, off - self.dumped)):
                raise Damage("bytes before %d belong to nothing" % off)
            self.dumped = off + len(data)
            for i in range(0, len(data), 16):
                out("%08x  %-48s %s" % (off + i, data[i:i + 16].hex(" "), text if i == 0 else ""))

        def struct_at(off, key, title):
            fmt, names = FIELDS[key]
            fmt = fmt or SECTION[key][1]
            out("%s" % title)
            pos = off
            for (count, code), name in zip(re.findall(r"(\d*)([sBHIQq])", re.sub(r"13Q", "Q" * 13, fmt)), names.split()):
                data = self.pread(pos, struct.calcsize("<" + count + code))
                if name != "reserved":
                    value = "" if code == "s" else " = %d" % struct.unpack("<" + code, data)
                    if name == "mode":
                        value = " = 0%o" % struct.unpack("<I", data)
                    if name.endswith("hash"):
                        value = ""
                    line(pos, data, name + value)
                pos += len(data)

        def raw(off, n, title):
            out(title)
            data = self.pread(off, n)
            for i in (i for i in range(0, n, 16) if any(data[i:i + 16])):
                line(off + i, data[i:i + 16], "".join(chr(c) if 32 <= c < 127 else "." for c in data[i:i + 16]))
        struct_at(0, "header", "header")
        for c, k in enumerate(self.chunks):
            if not k[6]:
                raw(k[0], k[2], "chunk %d, %s" % (c, ("raw", "zstd", "LZ4")[k[4]]))
        for kind, off, length, hashes, end in self.places:
            name = SECTION[kind][0]
            size = struct.calcsize(SECTION[kind][1] or "")
            if size:
                for i in range(length // size):
                    struct_at(off + i * size, kind, "%s %d" % (name, i) if length > size else name)
            else:
                raw(off, length, name)
            out("block hashes of %s" % name)
            for at in range(hashes, end, 8):
                line(at, self.pread(at, 8), "hash")
        foot = self.size - PAGE
        struct_at(foot, "footer", "footer")
        for i, entry in enumerate(self.table):
            struct_at(foot + 64 + 64 * i, "section entry", "section entry %d: %s" % (i, SECTION[entry[0]][0]))
        out("end of the footer")
        line(self.size - 8, self.pread(self.size - 8, 8), "footer_hash")

    # every other rule

    def verify(self):
        missing = None
        for check in (self.check_chunks, self.check_padding, self.check_tree, self.check_names, self.check_extents,
                      self.check_xattrs, self.check_spaces, self.check_bases, self.check_summary, self.check_properties,
                      self.check_content):
            try:
                check()
            except Damage as e:
                self.problems.append(str(e))
            except Failed as e:
                missing = e
        if missing and not self.problems:
            raise missing
        return self.problems

    def check_chunks(self):
        end, flags = PAGE, FLAG_BASE if BASES in self.data else 0
        self.gaps = []
        for c, (off, hash_, stored, logical, codec, shuffle, base, reserved) in enumerate(self.chunks):
            def want(ok, text, c=c):
                self.want(ok, "chunk %d: %s" % (c, text))
            want(reserved == 0, "reserved field is not zero")
            want(1 <= logical <= self.chunk_size, "logical length %d" % logical)
            if base:
                want(base <= len(self.base_table), "base %d" % base)
                want(stored == 0 and codec == 0 and shuffle == 0, "in a base, but with stored length, codec or shuffle")
                if base <= len(self.base_table):
                    theirs = self.base(base).chunks
                    want(off < len(theirs) and theirs[off][6] == 0 and theirs[off][3] == logical and theirs[off][1] == hash_,
                         "does not fit the base's")
                continue
            want(codec in (RAW, ZSTD, LZ4), "codec %d" % codec)
            want(shuffle in (0, 2, 4, 8) and (codec or not shuffle), "shuffle %d" % shuffle)
            want(1 <= stored <= 2 * self.chunk_size, "stored length %d" % stored)
            want(codec or stored == logical, "raw, but of two lengths")
            expect = end if codec else align(end, PAGE)
            want(off == expect, "at %d instead of %d" % (off, expect))
            self.gaps.append((end, min(off, expect)))
            end = off + stored
            flags |= (FLAG_LZ4 if codec == LZ4 else 0) | (FLAG_SHUFFLE if shuffle else 0)
        self.want(end == self.data_end, "data ends at %d, the footer says %d", end, self.data_end)
        self.want(flags == self.incompat, "incompatible flags are %d instead of %d", self.incompat, flags)

    def check_padding(self):
        for a, b in self.gaps:
            self.want(a >= b or not any(self.pread(a, b - a)), "padding at %d is not zero", a)

    def ranges_cover(self, what, table, rows):
        """rows: (owner, first, count); they follow each other and cover the table; 0 for an empty one."""
        at = 0
        for owner, first, count in rows:
            self.want(first == (at if count else 0), "%s %d: %s start at %d instead of %d", owner[0], owner[1], what, first, at)
            at += count
        self.want(at == len(table), "%s: %d entries of %d belong to somebody", what, at, len(table))

    def check_tree(self):
        for i, (mode, nlink, _, _, size, _, nsec, major, minor, n_x, _first_x, first, count, holes, parent, fmt,
                reserved) in enumerate(self.inodes):
            def want(ok, text, i=i):
                self.want(ok, "inode %d: %s" % (i, text))
            kind = stat.S_IFMT(mode)
            want(kind in TYPE_NAME and mode >> 16 == 0, "mode %o" % mode)
            want(nsec < 1000000000, "nanoseconds %d" % nsec)
            want(not any(reserved), "reserved bytes are not zero")
            is_file, is_dir, is_link = kind == stat.S_IFREG, kind == stat.S_IFDIR, kind == stat.S_IFLNK
            want(is_dir or i > 0, "the root is not a directory")
            want(kind in (stat.S_IFCHR, stat.S_IFBLK) or major == minor == 0, "device numbers of no device")
            if is_link:
                want(1 <= size <= 4095, "target of %d bytes" % size)
                want(b"\0" not in self.string(first, size, "inode %d" % i), "NUL in a target")
            want(is_file or is_link or size == 0, "size %d" % size)
            want(size < 1 << 63, "size %d" % size)
            want(is_file or (holes == 0 and fmt == 0), "holes or format of what is no file")
            want(is_file or is_dir or count == 0, "count %d" % count)
            want(is_file or is_dir or is_link or first == 0, "first %d" % first)
            want(not is_file or fmt in KIND_FORMAT, "format %d" % fmt)
            want(not is_file or holes <= size, "more holes than bytes")
            if is_dir:
                want(parent < i or i == parent == 0, "parent %d" % parent)
            else:
                want(parent == 0, "parent of what is no directory")
            want(nlink == (0 if i == 0 else 1) if is_dir else nlink >= 1, "%d links" % nlink)

    def check_names(self):
        links, last = [0] * len(self.inodes), None
        for k, (parent, ino, off, n, reserved) in enumerate(self.names):
            def want(ok, text, k=k):
                return self.want(ok, "name %d: %s" % (k, text))
            want(not any(reserved), "reserved bytes are not zero")
            name = self.string(off, n, "name %d" % k)
            want(1 <= n <= 255 and b"/" not in name and b"\0" not in name and name not in (b".", b".."), "%r" % name)
            want(last is None or last < (parent, name), "out of order")
            last = (parent, name)
            if not want(parent < len(self.inodes) and ino < len(self.inodes), "inode or parent out of range"):
                continue
            want(self.is_type(parent, stat.S_IFDIR), "parent %d is no directory" % parent)
            want(ino > 0, "names the root")
            links[ino] += 1
            if self.is_type(ino, stat.S_IFDIR):
                want(ino > parent, "directory %d in a later one" % ino)
                want(self.inodes[ino][14] == parent, "directory %d has another parent" % ino)
        for i, n in enumerate(links):
            self.want(self.inodes[i][1] == n, "inode %d: %d links, %d names", i, self.inodes[i][1], n)
        dirs = [i for i in range(len(self.inodes)) if self.is_type(i, stat.S_IFDIR)]
        self.ranges_cover("names", self.names, [(("inode", i), self.inodes[i][11], self.inodes[i][12]) for i in dirs])
        for i in dirs:
            for row in self.slice_of(self.names, self.inodes[i][11], self.inodes[i][12], "inode %d: names" % i):
                self.want(row[0] == i, "inode %d: has a name of directory %d", i, row[0])

    def check_extents(self):
        files = [i for i in range(len(self.inodes)) if self.is_type(i, stat.S_IFREG)]
        self.ranges_cover("extents", self.extents, [(("inode", i), self.inodes[i][11], self.inodes[i][12]) for i in files])
        for i in files:
            size, at, holes = self.inodes[i][4], -1, 0
            rows = self.extents_of(i)
            self.want(bool(rows) == bool(size), "inode %d: %d extents for %d bytes", i, len(rows), size)
            self.want(not rows or rows[0][0] == 0, "inode %d: first extent is not at 0", i)
            for a, b, chunk, chunk_off in rows:
                if not self.want(at < a < size and a < b, "inode %d: extent at %d is out of order", i, a):
                    continue
                at = a
                if chunk == HOLE:
                    self.want(chunk_off == 0, "inode %d: hole at %d with a chunk offset", i, a)
                    holes += b - a
                    continue
                n = (chunk_off + b - a + self.chunk_size - 1) // self.chunk_size
                mine = self.chunks[chunk:chunk + n]
                if not self.want(len(mine) == n, "inode %d: extent at %d wants chunks behind the last", i, a):
                    continue
                self.want(chunk_off < mine[0][3], "inode %d: extent at %d begins behind its chunk", i, a)
                self.want(all(c[3] == self.chunk_size for c in mine[:-1]), "inode %d: short chunk inside extent at %d", i, a)
                self.want(chunk_off + b - a - (n - 1) * self.chunk_size <= mine[-1][3], "inode %d: extent at %d is too long", i, a)
            self.want(holes == self.inodes[i][13], "inode %d: %d bytes of holes, %d by its extents", i, self.inodes[i][13], holes)

    def check_xattrs(self):
        self.ranges_cover("xattrs", self.xattrs, [(("inode", i), r[10], r[9]) for i, r in enumerate(self.inodes)])
        for i in range(len(self.inodes)):
            last = b""
            for name_off, value_off, n, value_len, reserved in self.slice_of(
                    self.xattrs, self.inodes[i][10], self.inodes[i][9], "inode %d: xattrs" % i):
                name = self.string(name_off, n, "inode %d: xattr" % i)
                self.string(value_off, value_len, "inode %d: xattr" % i)
                self.want(1 <= n <= 255 and b"\0" not in name, "inode %d: xattr %r", i, name)
                self.want(last < name, "inode %d: xattr %r is out of order", i, name)
                self.want(value_len <= 65536 and (value_len or not value_off), "inode %d: xattr %r: value", i, name)
                self.want(reserved == 0, "inode %d: xattr %r: reserved bytes are not zero", i, name)
                last = name

    def check_spaces(self):
        self.ranges_cover("regions", self.regions, [(("space", k), s[5], s[7]) for k, s in enumerate(self.spaces)])
        self.ranges_cover("segments", self.segments, [(("space", k), s[6], s[8]) for k, s in enumerate(self.spaces)])
        last = b""
        for k, (off, n, kind, ino, _pid, r0, s0, n_r, n_s, reserved) in enumerate(self.spaces):
            name = self.string(off, n, "space %d" % k)
            self.want(1 <= n <= 4095 and b"\0" not in name and not {b"", b".", b".."} & set(name.split(b"/"))
                      and max(map(len, name.split(b"/"))) <= 255, "space %d: name %r", k, name)
            self.want(last < name, "space %d: out of order", k)
            last = name
            self.want(kind in KIND_SPACE, "space %d: kind %d", k, kind)
            self.want(not any(reserved), "space %d: reserved bytes are not zero", k)
            self.want(ino < len(self.inodes) and self.is_type(ino, stat.S_IFREG), "space %d: inode %d is no file", k, ino)
            regions = self.slice_of(self.regions, r0, n_r, "space %d" % k)
            self.check_regions(k, regions)
            self.check_segments(k, regions, self.slice_of(self.segments, s0, n_s, "space %d" % k))

    def check_regions(self, k, regions):
        end = 0
        for addr, n, _pgoff, prot, _flags, name_off, name_len, reserved in regions:
            self.want(n > 0 and addr >= end and addr + n <= 1 << 64, "space %d: region at %#x", k, addr)
            end = addr + n
            self.want(prot < 8, "space %d: region at %#x: protection %d", k, addr, prot)
            self.want(name_len <= 4096 and (name_len or not name_off), "space %d: region at %#x: name", k, addr)
            self.string(name_off, name_len, "space %d: region at %#x" % (k, addr))
            self.want(not any(reserved), "space %d: region at %#x: reserved bytes are not zero", k, addr)

    def check_segments(self, k, regions, segments):
        end, r = 0, 0
        for addr, n, off, ino, kind, reserved, base in segments:
            def want(ok, text, addr=addr):
                return self.want(ok, "space %d: segment at %#x: %s" % (k, addr, text))
            want(n > 0 and addr >= end and addr + n <= 1 << 63, "out of order or too long")
            end = addr + n
            want(kind in KIND_SEGMENT and reserved == 0, "kind %d, reserved %d" % (kind, reserved))
            while r < len(regions) and regions[r][0] + regions[r][1] <= addr:
                r += 1
            want(r < len(regions) and regions[r][0] <= addr and end <= regions[r][0] + regions[r][1], "in no region")
            if kind != 1:
                want(off == ino == base == 0, "fields that only data has")
                continue
            if want(base <= len(self.base_table), "base %d" % base):
                image = self.base(base) if base else self
                if want(ino < len(image.inodes) and image.is_type(ino, stat.S_IFREG), "inode %d is no file" % ino):
                    want(off + n <= image.inodes[ino][4], "goes beyond the end of the file")

    def check_bases(self):
        self.want(len(self.base_table) <= 64, "%d bases", len(self.base_table))
        first = []
        for b, (_id, off, n, reserved) in enumerate(self.base_table):
            name = self.string(off, n, "base %d" % b)
            self.want(1 <= n <= 255 and b"/" not in name and b"\0" not in name, "base %d: name %r", b, name)
            self.want(not any(reserved), "base %d: reserved bytes are not zero", b)
        ids = [b[0] for b in self.base_table]
        self.want(len(set(ids)) == len(ids) and self.image_id not in ids, "a base is listed twice, or is the image itself")
        for number in [c[6] for c in self.chunks] + [s[6] for s in self.segments]:
            if number and number not in first:
                first.append(number)
        self.want(len(first) == len(ids), "%d bases, %d of them used", len(ids), len(first))
        for number in range(1, len(ids) + 1):
            self.base(number)

    def check_summary(self):
        files = [r for r in self.inodes if stat.S_IFMT(r[0]) == stat.S_IFREG]
        here = [c for c in self.chunks if not c[6]]
        logical, holes = sum(r[4] for r in files), sum(r[13] for r in files)
        chunk_bytes, base_bytes = sum(c[3] for c in here), sum(c[3] for c in self.chunks if c[6])
        want = (logical, holes, chunk_bytes, sum(c[2] for c in here), base_bytes,
                max(0, logical - holes - chunk_bytes - base_bytes),
                sum(c[4] == RAW for c in here), sum(c[4] == ZSTD for c in here), sum(c[4] == LZ4 for c in here),
                sum(c[5] > 0 for c in here), len(self.chunks) - len(here), len(files),
                sum(stat.S_IFMT(r[0]) == stat.S_IFDIR for r in self.inodes))
        self.want(self.summary[:13] == want, "summary is %r instead of %r", self.summary[:13], want)
        self.want(not any(self.summary[13]), "summary: reserved bytes are not zero")

    def check_properties(self):
        if PROPERTIES not in self.data:
            return
        def pairs(items):
            names = [name for name, _ in items]
            return {"": [n for n in MEMBERS if names.count(n) > 1], "names": names, "values": [v for _, v in items],
                    "get": dict(items)}

        def no_constant(name):
            raise ValueError("'%s' is no number" % name)

        try:
            p = json.loads(self.data[PROPERTIES].decode("utf-8"), object_pairs_hook=pairs, parse_constant=no_constant,
                           parse_int=float)
        except (ValueError, RecursionError) as e:
            raise Damage("properties: %s" % e) from e
        self.must_be(isinstance(p, dict), "properties are no JSON object")
        todo = [(p, 1)]
        while todo:
            v, depth = todo.pop()
            if isinstance(v, str):
                self.want(not any(c == "\0" or 0xd800 <= ord(c) < 0xe000 for c in v), "properties: string %r", v)
            elif isinstance(v, (dict, list)):
                self.want(depth <= 64, "properties: nested too deep")
                todo += [(w, depth + 1) for w in (v["names"] + v["values"] if isinstance(v, dict) else v)]
        self.want(not p[""], "properties: twice: %r", p[""])
        p = p["get"]
        for name in ("source", "creator", "host", "created"):
            self.want(isinstance(p.get(name, ""), str), "properties: %s", name)
        self.want(isinstance(p.get("single", True), bool), "properties: single")
        notes, labels = p.get("notes", []), p.get("labels", {"values": []})
        self.want(isinstance(notes, list) and all(isinstance(n, str) for n in notes), "properties: notes")
        self.want(isinstance(labels, dict) and all(isinstance(n, str) for n in labels["values"]), "properties: labels")

    def check_content(self):
        step = max(1, BATCH // self.chunk_size)
        for start in range(0, len(self.chunks), step):
            for data in self.decode(range(start, min(start + step, len(self.chunks)))).values():
                self.want(not isinstance(data, Damage), "%s", data)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--base-path", action="append", default=[])
    p.add_argument("verb", choices=("list", "cat", "maps", "view", "verify", "sections", "dump"))
    p.add_argument("image")
    p.add_argument("args", nargs="*")
    a = p.parse_intermixed_args()
    if len(a.args) != {"cat": 1, "view": 3}.get(a.verb, 0):
        p.error("wrong number of arguments")
    out = sys.stdout.buffer.write
    img = Image(a.image, a.base_path)
    if a.verb == "list":
        for path, ino in img.walk():
            if path:
                print(json.dumps(img.describe(path, ino)))
    elif a.verb == "maps":
        for s in img.spaces:
            print(json.dumps(img.describe_space(s)))
    elif a.verb == "cat":
        ino = img.lookup(os.fsencode(a.args[0]))
        if not img.is_type(ino, stat.S_IFREG):
            raise Failed("not a file")
        img.write_range(ino, 0, None, out)
    elif a.verb == "view":
        img.view(os.fsencode(a.args[0]), int(a.args[1], 0), int(a.args[2], 0), out)
    elif a.verb == "dump":
        img.dump(lambda text: print(text.rstrip()))
    elif a.verb == "sections":
        print(json.dumps({"id": img.image_id.hex(), "chunk_size": img.chunk_size, "data_end": img.data_end, "size": img.size,
                          "chunks": [{"off": c[0], "stored": c[2], "logical": c[3], "codec": c[4], "shuffle": c[5], "base": c[6]}
                                     for c in img.chunks],
                          "sections": [{"type": k, "off": o, "len": n, "hashes": h, "end": e} for k, o, n, h, e in img.places]}))
    else:
        for text in img.verify():
            print("%s: %s" % (a.image, text))
        if img.problems:
            return 3
        print("%s: good" % a.image)
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Damage as e:
        print("oracle: damaged: %s" % e, file=sys.stderr)
        sys.exit(3)
    except (Failed, OSError) as e:
        print("oracle: %s" % e, file=sys.stderr)
        sys.exit(1)
