#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Random trees of everything a file system holds.

random_tree.py make DIR SEED [deep]   fill DIR, which is there
random_tree.py compare A B            say every difference, exit 1 if there is one

Whatever needs privileges or a file system that has it is left out where it does not work.
"""
import errno
import os
import random
import socket
import stat
import sys

TIMES = [0, -1, -1_500_000_000, 1, 999_999_999, -(2**31) * 10**9, (2**31 - 1) * 10**9, 2**32 * 10**9 + 7,
         -2_000_000_000 * 10**9 + 123_456_789, 14_000_000_000 * 10**9 + 999_999_999]


class Maker:
    def __init__(self, seed):
        self.rnd = random.Random(seed)
        self.root = os.geteuid() == 0
        self.files = []
        self.made = []  # (parent path, name): dressed at the end, deepest first

    def name(self):
        r = self.rnd
        kind = r.random()
        if kind < 0.5:
            return b"%s-%d" % (r.choice([b"file", b".hidden", b"a b", b"-x", b"%n%s", b"#", b"new\nline", b"\\", b"'\""]),
                               r.randrange(10**6))
        if kind < 0.6:
            return bytes(r.choice(b"abcdefgh") for _ in range(255))
        if kind < 0.9:
            name = bytes(r.randrange(1, 256) for _ in range(r.randrange(1, 40))).replace(b"/", b"_")
            return name if name not in (b".", b"..") else b"dots"
        return "ÄÖü→日本".encode() + b"%d" % r.randrange(10**6)

    def content(self):
        r = self.rnd
        size = r.choice([0, 1, 100, 4095, 4096, 4097, 70000, 262143, 262144, 262145, 600000])
        kind = r.random()
        if kind < 0.3:
            return bytes(size)
        if kind < 0.6:
            return r.randbytes(size)
        return (r.randbytes(r.randrange(1, 200)) * (size // 1 + 1))[:size]

    def file(self, path):
        r = self.rnd
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        os.write(fd, self.content())
        if r.random() < 0.2:
            off = r.randrange(2**22)
            os.pwrite(fd, b"after a hole", off)
            os.truncate(fd, max(os.fstat(fd).st_size, off) + r.randrange(2**21))
        os.close(fd)
        self.files.append(path)

    def link(self, path):
        if not self.files:
            return self.file(path)
        os.link(self.rnd.choice(self.files), path, follow_symlinks=False)
        return None

    def symlink(self, path):
        r = self.rnd
        os.symlink(r.choice([b"nowhere", b"/", b"..", b".", b"x" * 4095, b"a/" * 500 + b"\xff", r.randbytes(300).replace(b"\0", b"_"),
                             b"../" * 40 + b"etc/passwd"]), path)
        if r.random() < 0.3:
            self.files.append(path)  # links to symlinks

    def fifo(self, path):
        os.mkfifo(path)
        if self.rnd.random() < 0.3:
            self.files.append(path)

    def socket(self, path):
        here = os.getcwdb()
        os.chdir(os.path.dirname(path))  # the address is short
        with socket.socket(socket.AF_UNIX) as s:
            try:
                s.bind(b"./" + os.path.basename(path)[:90])
            except OSError:
                pass
        os.chdir(here)

    def device(self, path):
        r = self.rnd
        kind = r.choice([stat.S_IFCHR, stat.S_IFBLK])
        try:
            os.mknod(path, kind | 0o600, os.makedev(r.choice([0, 1, 240, 4095]), r.choice([0, 3, 255, 256, 1048575])))
        except PermissionError:
            self.file(path)

    def directory(self, path, depth):
        r = self.rnd
        for _ in range(r.choice([0, 1, 3, 8, 20]) if depth else 30):
            entry = path + b"/" + self.name()
            if os.path.lexists(entry):
                continue
            what = r.random()
            if what < 0.2 and depth < 6 and len(entry) < 2500:
                os.mkdir(entry)
                self.directory(entry, depth + 1)
            else:
                r.choice([self.file] * 5 + [self.link, self.link, self.symlink, self.symlink, self.fifo, self.socket,
                                            self.device])(entry)
            if os.path.lexists(entry):
                self.made.append(entry)
        self.made.append(path)

    def attributes(self, path):
        r = self.rnd
        special = not (os.path.isfile(path) or os.path.isdir(path)) or os.path.islink(path)
        for _ in range(r.choice([0, 0, 1, 2, 5])):
            space = b"trusted." if special or (self.root and r.random() < 0.3) else b"user."
            name = space + r.choice([b"a", b"b", b"long" * 50, b"\xff\xfe", "ü".encode()]) + b"%d" % r.randrange(100)
            try:
                os.setxattr(path, name, r.randbytes(r.choice([0, 1, 30, 1000])), follow_symlinks=False)
            except OSError as e:
                if e.errno not in (errno.ENOTSUP, errno.EPERM, errno.ENOSPC, errno.ERANGE, errno.E2BIG):
                    raise

    def dress(self, path):
        r = self.rnd
        if self.root:
            os.chown(path, r.choice([0, 1, 1000, 65534, 2**31 + 5, 2**32 - 2]), r.choice([0, 7, 4_000_000_000]),
                     follow_symlinks=False)
        self.attributes(path)
        if not os.path.islink(path):
            mode = r.randrange(0o10000) if self.root else r.randrange(0o10000) | 0o700
            os.chmod(path, mode)
        t = r.choice(TIMES) if r.random() < 0.5 else r.randrange(-10**18, 4 * 10**18)
        os.utime(path, ns=(t, t), follow_symlinks=False)


def make_deep(path):
    """a chain longer than any path may be"""
    fd = os.open(path, os.O_RDONLY)
    for i in range(300):
        name = b"%03d-" % i + b"d" * 120
        os.mkdir(name, 0o755, dir_fd=fd)
        below = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
        if i % 50 == 49:
            f = os.open(b"file", os.O_CREAT | os.O_WRONLY, 0o640, dir_fd=fd)
            os.write(f, b"at %d" % i)
            os.close(f)
            os.link(b"file", b"again", src_dir_fd=fd, dst_dir_fd=fd)
            os.symlink(b"file", b"sym", dir_fd=fd)
    os.close(fd)


def attributes(fd, name):
    path = b"/proc/self/fd/%d/%s" % (fd, name)
    try:
        return {a: os.getxattr(path, a, follow_symlinks=False) for a in os.listxattr(path, follow_symlinks=False)}
    except OSError as e:
        if e.errno == errno.ENOTSUP:
            return {}
        raise


def content(fd, name):
    f = os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=fd)
    with os.fdopen(f, "rb") as file:
        return file.read()


def describe(fd, name, seen, number):
    st = os.stat(name, dir_fd=fd, follow_symlinks=False)
    what = {"mode": oct(st.st_mode), "uid": st.st_uid, "gid": st.st_gid, "mtime": st.st_mtime_ns,
            "attributes": attributes(fd, name)}
    if not stat.S_ISDIR(st.st_mode):
        what["nlink"] = st.st_nlink
        what["same file as entry"] = seen.setdefault((st.st_dev, st.st_ino), number)
    if stat.S_ISLNK(st.st_mode):
        what["target"] = os.readlink(name, dir_fd=fd)
    if stat.S_ISREG(st.st_mode):
        what["size"] = st.st_size
        what["content"] = content(fd, name)
    if stat.S_ISCHR(st.st_mode) or stat.S_ISBLK(st.st_mode):
        what["device"] = (os.major(st.st_rdev), os.minor(st.st_rdev))
    return what


def walk(root):
    """(path, description) of everything, in an order that only depends on names"""
    seen = {}
    number = 0
    fd = os.open(root, os.O_RDONLY)
    yield b".", describe(fd, b".", seen, 0)
    stack = [(fd, b"", sorted(os.listdir(fd), key=os.fsencode))]
    while stack:
        fd, prefix, names = stack[-1]
        if not names:
            os.close(fd)
            stack.pop()
            continue
        name = os.fsencode(names.pop(0))
        number += 1
        yield prefix + name, describe(fd, name, seen, number)
        if stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
            below = os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=fd)
            stack.append((below, prefix + name + b"/", sorted(os.listdir(below), key=os.fsencode)))


def short(value):
    text = repr(value)
    return text if len(text) < 200 else text[:200] + "..."


def compare(a, b):
    """both walks yield in the same order if the names are the same"""
    wrong = 0
    count = 0
    left, right = walk(a), walk(b)
    for (path, x), (other, y) in zip(left, right):
        count += 1
        if path != other:
            print(f"only one has {short(path)} or {short(other)}")
            return 1
        for key in x.keys() | y.keys():
            if x.get(key) != y.get(key):
                print(f"{short(path)}: {key}: {short(x.get(key))} became {short(y.get(key))}")
                wrong += 1
    rest = next(left, None) or next(right, None)
    if rest:
        print(f"only one has {short(rest[0])}")
        wrong += 1
    print(f"{count} entries, {wrong} differences")
    return 1 if wrong else 0


def main():
    if sys.argv[1] == "compare":
        return compare(os.fsencode(sys.argv[2]), os.fsencode(sys.argv[3]))
    root = os.path.realpath(os.fsencode(sys.argv[2]))
    os.umask(0)
    maker = Maker(int(sys.argv[3]))
    maker.directory(root, 0)
    if "deep" in sys.argv:
        make_deep(root)
    for path in maker.made:  # what is in a directory comes before it
        maker.dress(path)
    return 0


sys.exit(main())
