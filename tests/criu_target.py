#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A process, or a tree of them, to checkpoint: criu_target.py python|tree STATUS

Each process rewrites its file (STATUS; STATUS.1 and STATUS.2 for the children of the tree) in place, ten times a second,
with a counter and a hash over its memory that never changes. The members of the tree share an anonymous
mapping and a memfd, and have memory from before and after the fork.
"""
import hashlib
import mmap
import os
import random
import sys
import time


def run(status, parts):
    fd = os.open(status, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    counter = 0
    while True:
        digest = hashlib.sha256()
        for part in parts():
            digest.update(part)
        counter += 1
        os.pwrite(fd, b"%010d %s\n" % (counter, digest.hexdigest().encode()), 0)
        time.sleep(0.1)


def python(status):
    table = {i: str(i) * 3 for i in range(100000)}
    noise = random.Random(1).randbytes(6 << 20)
    zeros = bytearray(16 << 20)
    zeros[:] = bytes(len(zeros))
    run(status, lambda: (repr(sorted(table.items())[::50]).encode(), noise, zeros))


def tree(status):
    shared = mmap.mmap(-1, 4 << 20)
    shared[:] = random.Random(2).randbytes(3 << 20) + bytes(1 << 20)
    memfd = os.memfd_create("tree")
    os.ftruncate(memfd, 4 << 20)
    os.pwrite(memfd, random.Random(3).randbytes(1 << 20), 2 << 20)
    mapped = mmap.mmap(memfd, 4 << 20)
    before = random.Random(4).randbytes(4 << 20)
    for i in (1, 2):
        if os.fork() == 0:
            own = random.Random(4 + i).randbytes(2 << 20)
            run(f"{status}.{i}", lambda: (shared[:], mapped[:], before, own))
    run(status, lambda: (shared[:], mapped[:], before))


{"python": python, "tree": tree}[sys.argv[1]](sys.argv[2])
