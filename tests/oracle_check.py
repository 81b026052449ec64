#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare what oracle.py reads in an image with something else; prints the first difference and exits with 1.

  oracle_check.py [--base-path DIR] tree IMAGE DIR    names, metadata and bytes of the tree that was packed
  oracle_check.py [--base-path DIR] ls IMAGE          'thawfs ls -R --json IMAGE' on standard input
                                                      (--any-owner: owners may differ)
  oracle_check.py [--base-path DIR] maps IMAGE        'thawfs maps --json IMAGE' on standard input
  oracle_check.py lies DIR                            what images in DIR are: good-*, damaged-*, new-* (too new),
                                                      base-* (a base is missing)
"""
import json
import os
import stat
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import oracle  # noqa: E402


class Same:
    """A file to write() bytes to that must be those of another."""

    def __init__(self, path):
        self.path, self.fd, self.at = os.fsdecode(path), os.open(path, os.O_RDONLY), 0

    def write(self, data):
        if os.pread(self.fd, len(data), self.at) != data:
            sys.exit("'%s': bytes differ in %d + %d" % (self.path, self.at, len(data)))
        self.at += len(data)

    def hole(self, n):
        """n zeros: holes of the other file need not be read."""
        while n:
            try:
                data = os.lseek(self.fd, self.at, os.SEEK_DATA)
            except OSError:
                data = self.at + n
            skip = min(n, data - self.at)
            self.at += skip
            n -= skip
            step = min(n, 1 << 20)
            self.write(bytes(step))
            n -= step
        if os.fstat(self.fd).st_size < self.at:
            sys.exit("'%s': ends before %d" % (self.path, self.at))

    def end(self):
        if os.pread(self.fd, 1, self.at):
            sys.exit("'%s': longer than in the image" % self.path)
        os.close(self.fd)


def differ(what, a, b):
    if a != b:
        sys.exit("%s differs: the image has %r, wanted %r" % (what, a, b))


def describe(path):
    """The same as Image.describe() gives, as far as the file system can tell."""
    st = os.lstat(path)
    d = {"type": oracle.TYPE_NAME[stat.S_IFMT(st.st_mode)], "mode": "%04o" % stat.S_IMODE(st.st_mode), "uid": st.st_uid,
         "gid": st.st_gid, "size": st.st_size if stat.S_ISREG(st.st_mode) else 0, "mtime_sec": st.st_mtime_ns // 10**9,
         "mtime_nsec": st.st_mtime_ns % 10**9, "nlink": 1 if stat.S_ISDIR(st.st_mode) else st.st_nlink}
    if stat.S_ISLNK(st.st_mode):
        d["target"] = os.fsdecode(os.readlink(path))
        d["size"] = len(os.fsencode(d["target"]))
    if stat.S_ISCHR(st.st_mode) or stat.S_ISBLK(st.st_mode):
        d["rdev_major"], d["rdev_minor"] = os.major(st.st_rdev), os.minor(st.st_rdev)
    names = [n for n in os.listxattr(path, follow_symlinks=False) if n.startswith("user.")]
    if names:
        d["xattrs"] = {n: os.fsdecode(os.getxattr(path, n, follow_symlinks=False)) for n in names}
    return d


def tree(img, top, any_owner):
    found, inodes = {}, {}
    for here, dirs, files in os.walk(os.fsencode(top)):
        for name in dirs + files:
            path = os.path.join(here, name)
            found[os.path.relpath(path, os.fsencode(top))] = path
    members = [(path, ino) for path, ino in img.walk() if path]
    differ("the list of members", sorted(p for p, _ in members), sorted(found))
    for path, ino in members:
        d = img.describe(path, ino)
        for key in ("path", "inode", "hole_bytes", "format"):
            d.pop(key, None)
        if "xattrs" in d:
            d["xattrs"] = {n: v for n, v in d["xattrs"].items() if n.startswith("user.")}
            if not d["xattrs"]:
                del d["xattrs"]
        there = describe(found[path])
        if any_owner:
            there["uid"], there["gid"] = d["uid"], d["gid"]
            d["mode"], there["mode"] = (d["mode"][-3:], there["mode"][-3:])  # without the owner, no set-user-ID
        differ("'%s'" % os.fsdecode(path), d, there)
        differ("sharing of '%s'" % os.fsdecode(path), inodes.setdefault(ino, os.lstat(found[path]).st_ino),
               os.lstat(found[path]).st_ino)
        if img.is_type(ino, stat.S_IFREG):
            same = Same(found[path])
            img.write_range(ino, 0, None, same.write, same.hole)
            same.end()


def maps(img, theirs):
    mine = [img.describe_space(s) for s in img.spaces]
    differ("number of spaces", len(mine), len(theirs))
    for a, b in zip(mine, theirs):
        for key in ("name", "kind", "member", "pid"):
            differ("'%s' of a space" % key, a[key], b[key])
        differ("number of regions", len(a["regions"]), len(b["regions"]))
        for r, s in zip(a["regions"], b["regions"]):
            r["perms"] = "".join(c if r["prot"] >> i & 1 else "-" for i, c in enumerate("rwx"))
            r["perms"] += "s" if r["flags"] & 1 else "p"
            for key in ("addr", "len", "pgoff", "flags", "name", "perms"):
                differ("'%s' of region %#x" % (key, r["addr"]), r[key], s[key])
            for kind, key in (("absent", "absent_bytes"),):
                n = sum(g["len"] for g in a["segments"] if g["kind"] == kind and r["addr"] <= g["addr"] < r["addr"] + r["len"])
                differ("'%s' of region %#x" % (key, r["addr"]), n, s[key])


def lies(folder):
    wrong = []
    for name in sorted(os.listdir(folder)):
        want = name.split("-")[0]
        try:
            img = oracle.Image(os.path.join(folder, name))
            what = img.verify()
            got = "damaged" if what else "good"
        except oracle.Damage as e:
            got, what = "damaged", e
        except oracle.Failed as e:
            got, what = "base" if "base image" in str(e) else "new", e
        if got != want:
            wrong.append("%s: to the oracle it is %s (%s)" % (name, got, what))
    if wrong:
        sys.exit("\n".join(wrong))


def main():
    any_owner = "--any-owner" in sys.argv
    args = [a for a in sys.argv[1:] if a != "--any-owner"]
    base_paths = []
    while args and args[0] == "--base-path":
        base_paths.append(args[1])
        args = args[2:]
    if len(args) == 2 and args[0] == "lies":
        return lies(args[1])
    if len(args) < 2 or args[0] not in ("tree", "ls", "maps") or len(args) != (3 if args[0] == "tree" else 2):
        sys.stderr.write(__doc__)
        sys.exit(2)
    img = oracle.Image(args[1], base_paths)
    if args[0] == "tree":
        tree(img, args[2], any_owner)
    elif args[0] == "ls":
        mine = sorted((img.describe(p, i) for p, i in img.walk() if p), key=lambda d: d["path"])
        theirs = sorted(json.load(sys.stdin)["members"], key=lambda d: d["path"])
        differ("number of members", len(mine), len(theirs))
        for a, b in zip(mine, theirs):
            differ("'%s'" % a["path"], a, b)
    else:
        maps(img, json.load(sys.stdin)["spaces"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
