#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What test_real_inputs.sh needs to know about foreign images, read from them without any of the C code.

  criu-regions DIR PID     the mappings in mm-PID.img, a line each: start-end prot pgoff, in hexadecimal
  criu-zeros DIR PID       aligned MiBs of the process that are stored and all zero: pages file, offset, address
  core-regions CORE        the same as criu-regions for an ELF core, from 'readelf -lW': start-end prot
  core-zeros CORE          aligned MiBs of the core's memory that are all zero: file, offset, address
  maps-regions SPACE [-p]  the same from 'thawfs maps --json' on stdin; -p: with pgoff
  holes DIR                reads the lines of *-zeros; each must be a hole of that file under DIR
"""
import json
import os
import re
import struct
import subprocess
import sys

MIB = 1 << 20
PAGE = 4096
IMG_MAGIC = 0x54564319
PE_PRESENT = 4


def varint(data, pos):
    value = shift = 0
    while True:
        byte = data[pos]
        pos += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, pos


def fields(data):
    """The fields of a protobuf message: (number, int or bytes)."""
    pos = 0
    while pos < len(data):
        key, pos = varint(data, pos)
        kind = key & 7
        if kind == 0:
            value, pos = varint(data, pos)
        elif kind == 2:
            size, pos = varint(data, pos)
            value, pos = data[pos : pos + size], pos + size
        else:
            size = {1: 8, 5: 4}[kind]
            value, pos = int.from_bytes(data[pos : pos + size], "little"), pos + size
        yield key >> 3, value


def messages(path):
    with open(path, "rb") as file:
        data = file.read()
    assert struct.unpack_from("<I", data)[0] == IMG_MAGIC, path
    pos = 8
    while pos < len(data):
        (size,) = struct.unpack_from("<I", data, pos)
        yield list(fields(data[pos + 4 : pos + 4 + size]))
        pos += 4 + size


def prot_text(prot):
    return "".join(c if prot & bit else "-" for c, bit in (("r", 1), ("w", 2), ("x", 4)))


def criu_regions(folder, pid):
    for number, value in next(messages(f"{folder}/mm-{pid}.img")):
        if number == 14:
            vma = dict(fields(value))
            yield f"{vma[1]:x}-{vma[2]:x} {prot_text(vma[5])} {vma[3]:x}"


def zero_mibs(name, file, pieces):
    """Aligned MiBs whose bytes are all in 'pieces' (address, length, offset; by address) and zero."""
    runs = []
    for addr, size, off in pieces:
        if runs and runs[-1][0] + runs[-1][1] == addr and runs[-1][2] + runs[-1][1] == off:
            runs[-1][1] += size
        else:
            runs.append([addr, size, off])
    zeros = bytes(MIB)
    for addr, size, off in runs:
        for start in range((addr + MIB - 1) // MIB * MIB, addr + size - MIB + 1, MIB):
            file.seek(off + start - addr)
            if file.read(MIB) == zeros:
                yield f"{name} {off + start - addr} {start:x}"


def criu_zeros(folder, pid):
    entries = messages(f"{folder}/pagemap-{pid}.img")
    name = f"pages-{dict(next(entries))[1]}.img"
    pieces, off = [], 0
    for entry in map(dict, entries):
        size = (entry.get(5) or entry.get(2)) * PAGE
        if entry.get(4, PE_PRESENT) & PE_PRESENT:
            pieces.append((entry[1], size, off))
            off += size
    with open(f"{folder}/{name}", "rb") as file:
        yield from zero_mibs(name, file, pieces)


def core_loads(core):
    text = subprocess.run(["readelf", "-lW", core], check=True, capture_output=True, text=True).stdout
    for line in text.splitlines():
        match = re.match(r" +LOAD +0x(\w+) 0x(\w+) 0x\w+ 0x(\w+) 0x(\w+) (...) ", line)
        if match:
            off, addr, filesz, memsz = (int(x, 16) for x in match.groups()[:4])
            yield off, addr, filesz, memsz, match.group(5)


def core_regions(core):
    for _, addr, _, memsz, flags in core_loads(core):
        if memsz:
            prot = "".join(c.lower() if c in flags else "-" for c in "RW") + ("x" if "E" in flags else "-")
            yield f"{addr:x}-{addr + memsz:x} {prot}"


def core_zeros(core):
    with open(core, "rb") as file:
        pieces = sorted((addr, filesz, off) for off, addr, filesz, _, _ in core_loads(core) if filesz)
        yield from zero_mibs(os.path.basename(core), file, pieces)


def maps_regions(space, with_pgoff):
    for entry in json.load(sys.stdin)["spaces"]:
        if entry["name"] == space:
            for region in entry["regions"]:
                start = int(region["addr"], 16) if isinstance(region["addr"], str) else region["addr"]
                line = f"{start:x}-{start + region['len']:x} {region['perms'][:3]}"
                yield line + (f" {region['pgoff']:x}" if with_pgoff else "")


def holes(folder):
    bad = count = 0
    for line in sys.stdin:
        name, off, addr = line.split()
        with open(f"{folder}/{name}", "rb") as file:
            # a file system has holes of whole blocks; those at the ends may hold a neighbour's bytes
            block = os.fstat(file.fileno()).st_blksize
            start, end = -(-int(off) // block) * block, (int(off) + MIB) // block * block
            try:
                data = os.lseek(file.fileno(), start, os.SEEK_DATA)
            except OSError:  # ENXIO: no data up to the end
                data = 1 << 63
        count += 1
        if data < end:
            bad += 1
            print(f"{name}: the zero MiB at offset {off} (address {addr}) is not a hole: data at {data}")
    print(f"{count} zero MiBs, {bad} of them not holes")
    sys.exit(1 if bad or not count else 0)


def main():
    verb, args = sys.argv[1], sys.argv[2:]
    if verb == "holes":
        holes(args[0])
    lines = {
        "criu-regions": lambda: criu_regions(*args),
        "criu-zeros": lambda: criu_zeros(*args),
        "core-regions": lambda: core_regions(*args),
        "core-zeros": lambda: core_zeros(*args),
        "maps-regions": lambda: maps_regions(args[0], "-p" in args[1:]),
    }[verb]()
    for line in lines:
        print(line)


main()
