#!/usr/bin/python3
"""Work for kill_rounds.sh, and what must be there when it was killed.

kill_work.py tree DIR | WORKLOAD DIR TREE SAID | check-WORKLOAD DIR TREE SAID. SAID lists what was reported as done.
"""
import os
import random
import sqlite3
import struct
import subprocess
import sys
import zlib

BLOCK = 4096
BLOCKS = 256


def run(*cmd):
    p = subprocess.run(cmd, capture_output=True, text=True)
    if p.returncode:
        sys.exit(f"{cmd} ended with {p.returncode}: {p.stdout[-500:]}{p.stderr[-1500:]}")
    return p.stdout


def say(said, text):
    with open(said, "a") as f:
        f.write(text + "\n")


def told(said):
    return open(said).read().splitlines() if os.path.exists(said) else []


def make_tree(top):
    rng = random.Random(7)
    for d in range(20):
        os.makedirs(f"{top}/d{d}/sub")
        for f in range(15):
            with open(f"{top}/d{d}/" + ("sub/" if f % 3 == 0 else "") + f"f{f}", "wb") as out:
                out.write(rng.randbytes(rng.choice((0, 10, 5000, 70000, 400000))))
        os.symlink("sub/f0", f"{top}/d{d}/link")


def cp(d, tree, said):
    run("cp", "-r", tree, d + "/copy")
    say(said, "done")


def check_cp(d, tree, said):
    if told(said):
        run("diff", "-r", "--no-dereference", tree, d + "/copy")
        print("cp: all copied")
        return
    n = 0
    for at, _, names in os.walk(d + "/copy"):
        for name in names:
            path = at + "/" + name
            src = tree + path[len(d + "/copy"):]
            n += 1
            if os.path.islink(path):
                assert os.readlink(path) == os.readlink(src), path
                continue
            with open(path, "rb") as a, open(src, "rb") as b:
                got, want = a.read(), b.read()
            assert want.startswith(got), f"{path}: {len(got)} bytes, not the first of {len(want)}"
    run("rm", "-rf", d + "/copy")
    run("cp", "-r", tree, d + "/copy")
    run("diff", "-r", "--no-dereference", tree, d + "/copy")
    print(f"cp: interrupted at {n} files")


def git(d, tree, said):
    run("git", "init", "-q", d)
    for i in range(60):
        with open(f"{d}/f{i % 7}", "a") as f:
            f.write(f"{i} " * 500)
        run("git", "-C", d, "add", "-A")
        run("git", "-C", d, "commit", "-qm", str(i))
        say(said, run("git", "-C", d, "rev-parse", "HEAD").strip())
    run("git", "-C", d, "gc", "-q")


def check_git(d, tree, said):
    done = told(said)
    for lock in (".git/index.lock", ".git/HEAD.lock", ".git/refs/heads/master.lock", ".git/gc.pid",
                 ".git/packed-refs.lock", ".git/config.lock"):
        if os.path.exists(f"{d}/{lock}"):
            os.unlink(f"{d}/{lock}")
    if done:
        run("git", "-C", d, "fsck", "--full", "--strict")
        run("git", "-C", d, "merge-base", "--is-ancestor", done[-1], "HEAD")
        log = run("git", "-C", d, "log", "--format=%H").split()
        assert len(log) - len(done) in (0, 1), (len(log), len(done))
        run("git", "-C", d, "reset", "-q", "--hard", done[-1])
        run("git", "-C", d, "status", "--porcelain")
    print(f"git: {len(done)} commits")


def block(at, n):
    head = struct.pack("<QQ", at, n)
    body = head * (BLOCK // 16 - 1)
    return body + struct.pack("<QII", n, at & 0xffffffff, zlib.crc32(body))


def fio(d, tree, said):
    run("fio", "--name=v", "--directory=" + d, "--size=4m", "--bs=4k", "--rw=randwrite", "--verify=crc32c", "--fsync=64",
        "--do_verify=1", "--ioengine=psync", "--verify_fatal=1", "--verify_dump=0", "--verify_state_save=0", "--thread",
        "--thinktime=1000")
    say(said, "done")


def check_fio(d, tree, said):
    """fio itself has verified all, if it could; check-blocks looks at what is left of one that was killed."""
    print("fio: verified" if told(said) else "fio: interrupted")


def blocks(d, tree, said):
    """As fio's verify does it, but each block says which write it is, so that an old one is seen too."""
    rng = random.Random(os.getpid())
    fd = os.open(d + "/blocks", os.O_RDWR | os.O_CREAT)
    with open(said, "ab", buffering=0) as log:
        for n in range(1, 4000):
            at = rng.randrange(BLOCKS)
            os.pwrite(fd, block(at, n), at * BLOCK)
            if n % 20 == 0:
                os.fsync(fd)
                log.write(f"s {n}\n".encode())
            log.write(f"w {at} {n}\n".encode())
    os.fsync(fd)
    os.close(fd)
    say(said, "done")


def check_blocks(d, tree, said):
    """A block is whole, and no older than the last one written before an fsync (or, unless the mount died, at all)."""
    lines = [l.split() for l in told(said)]
    synced = max([int(l[1]) for l in lines if l[0] == "s"], default=0)
    last = {}
    for l in lines:
        if l[0] == "w" and (int(l[2]) <= synced or "-mount-" not in d):
            last[int(l[1])] = int(l[2])
    if not lines:
        print("blocks: not begun")
        return
    with open(d + "/blocks", "rb") as f:
        for at in range(BLOCKS):
            got = f.read(BLOCK)
            n = struct.unpack("<Q", got[8:16])[0] if len(got) >= 16 else 0
            if n:
                assert got == block(at, n), f"block {at} of write {n} is not whole"
            else:
                assert not got.strip(b"\0"), f"block {at} is not empty and not whole"
            assert n >= last.get(at, 0), f"block {at} is of write {n}, {last[at]} was answered"
    print(f"blocks: {len(lines)} lines, synced up to {synced}")


def sqlite(d, tree, said):
    db = sqlite3.connect(d + "/db", isolation_level=None)
    db.execute("create table t (n integer primary key, text)")
    for n in range(150):
        db.execute("begin")
        for k in range(5):
            db.execute("insert into t values (?, ?)", (n * 5 + k, "x" * (n * 37 % 3000)))
        db.execute("commit")
        say(said, str(n))
    db.close()


def check_sqlite(d, tree, said):
    done = told(said)
    if done:
        db = sqlite3.connect(d + "/db", timeout=90) # locks are free again when the dead one's session has ended
        assert db.execute("pragma integrity_check").fetchone() == ("ok",)
        n = db.execute("select count(*) from t").fetchone()[0]
        assert n % 5 == 0 and n // 5 - len(done) in (0, 1), (n, len(done))
        assert db.execute("select max(n) from t").fetchone()[0] == n - 1
        db.close()
    print(f"sqlite: {len(done)} transactions")


if sys.argv[1] == "tree":
    make_tree(sys.argv[2])
else:
    {f.__name__.replace("check_", "check-"): f for f in
     (cp, check_cp, git, check_git, fio, check_fio, blocks, check_blocks, sqlite, check_sqlite)}[sys.argv[1]](*sys.argv[2:5])
