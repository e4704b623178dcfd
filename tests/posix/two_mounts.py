#!/usr/bin/python3
"""two_mounts.py MOUNT1 MOUNT2 ROUNDS LINES: what one mount of a container shows of the other's changes."""
import mmap
import os
import random
import subprocess
import sys
import time

a, b = sys.argv[1:3]
rounds, lines = int(sys.argv[3]), int(sys.argv[4])
seed = int(os.environ.get("PENSTOCK_SEED", time.time_ns()))
rng = random.Random(seed)
print("# seed", seed)


def put(path, data):
    with open(path, "wb") as f:
        f.write(data)


def get(path):
    with open(path, "rb") as f:
        return f.read()


def close_to_open():
    for i in range(rounds):
        src, dst = (a, b) if rng.random() < 0.5 else (b, a)
        body = b"%d " % i * rng.choice((1, 100, 3000, 200000))
        put(f"{src}/cto", body)
        got = get(f"{dst}/cto")
        assert got == body, f"round {i}: {len(got)} bytes, not {len(body)}"
        if rng.random() < 0.3:  # in place
            with open(f"{dst}/cto", "r+b") as f:
                f.seek(len(body) // 2)
                f.write(b"@")
            body = body[:len(body) // 2] + b"@" + body[len(body) // 2 + 1:]
            assert get(f"{src}/cto") == body, f"round {i}: in place"
        assert os.stat(f"{dst}/cto").st_size == len(body)


def appends(mounts, log, lines=lines):
    """A writer for each of the mounts, which may be the same one."""
    procs = []
    for n, m in enumerate(mounts):
        code = ("import os,sys\nfor i in range(int(sys.argv[3])):\n"
                " fd=os.open(sys.argv[1],os.O_WRONLY|os.O_APPEND|os.O_CREAT,0o644)\n"
                " os.write(fd,b'%s line %06d\\n'%(sys.argv[2].encode(),i)); os.close(fd)\n")
        procs.append(subprocess.Popen([sys.executable, "-c", code, f"{m}/{log}", f"writer{n}", str(lines)]))
    for p in procs:
        assert p.wait() == 0
    for m in (a, b):
        got = get(f"{m}/{log}").split(b"\n")
        want = sorted(b"writer%d line %06d" % (n, i) for n in range(len(mounts)) for i in range(lines))
        assert got[-1] == b"" and sorted(got[:-1]) == want, f"{len(got) - 1} lines of {len(mounts) * lines}"


def appends_of_two_mounts():
    appends((a, b), "log")


def appends_of_four_processes_of_one_mount():
    appends((a,) * 4, "log4", lines // 4)


def appends_on_open_handles():
    fa, fb = (os.open(f"{m}/log2", os.O_WRONLY | os.O_APPEND | os.O_CREAT) for m in (a, b))
    for i in range(100):
        os.write(fa, b"a%03d\n" % i)
        os.write(fb, b"b%03d\n" % i)
    os.close(fa)
    os.close(fb)
    want = b"".join(b"a%03d\nb%03d\n" % (i, i) for i in range(100))
    assert get(f"{a}/log2") == want and get(f"{b}/log2") == want


def wait(what, fn, bound=3.0):
    start = time.monotonic()
    while not fn():
        assert time.monotonic() - start < bound, what
        time.sleep(0.05)


def names():
    """The bound is the entry time-out, 1 s, with room for a slow machine."""
    os.makedirs(f"{a}/d/sub")
    put(f"{a}/d/sub/f", b"one")
    assert get(f"{b}/d/sub/f") == b"one"
    os.rename(f"{a}/d", f"{a}/e")
    wait("the old name is still there", lambda: not os.path.exists(f"{b}/d"))
    assert get(f"{b}/e/sub/f") == b"one"
    os.makedirs(f"{a}/d/sub")
    put(f"{a}/d/sub/f", b"two")
    wait("the name's new owner is not seen", lambda: os.path.exists(f"{b}/d/sub/f") and get(f"{b}/d/sub/f") == b"two")
    put(f"{a}/tmp", b"replaced")
    os.rename(f"{a}/tmp", f"{a}/e/sub/f")
    assert get(f"{b}/e/sub/f") == b"replaced", "the replaced file is gone: its name must be looked up at once"
    assert not os.path.exists(f"{b}/fresh")
    put(f"{a}/fresh", b"1")
    assert get(f"{b}/fresh") == b"1", "a name that was missing must not be remembered as missing"
    os.unlink(f"{a}/fresh")
    wait("a removed name is still there", lambda: not os.path.exists(f"{b}/fresh"))
    os.chmod(f"{a}/e/sub/f", 0o600)
    wait("the mode is old", lambda: os.stat(f"{b}/e/sub/f").st_mode & 0o777 == 0o600)
    assert sorted(os.listdir(f"{b}/e/sub")) == ["f"]


def maps():
    put(f"{a}/map", bytes(1 << 20))
    with open(f"{a}/map", "r+b") as f:
        m = mmap.mmap(f.fileno(), 1 << 20)
        m[123456:123461] = b"hello"
        m[(1 << 20) - 4:] = b"tail"
        m.flush()
    with open(f"{b}/map", "rb") as f:
        r = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
        assert r[123456:123461] == b"hello" and r[-4:] == b"tail"
        r.close()
    m[0:3] = b"abc"
    m.close()  # not flushed: the kernel writes it at the last unmapping
    with open(f"{b}/map", "rb") as f:
        assert f.read(3) in (b"abc", b"\0\0\0")
    wait("the unmapped pages were not written", lambda: get(f"{b}/map")[:3] == b"abc", 10)
    w = os.open(f"{a}/map", os.O_RDWR)
    with open(f"{a}/map", "rb") as f:
        r = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
        os.pwrite(w, b"XYZ", 0)
        assert r[:3] == b"XYZ"
        r.close()
    os.close(w)


def removed_elsewhere():
    put(f"{a}/gone", b"still here")
    fd = os.open(f"{b}/gone", os.O_RDONLY)
    os.unlink(f"{a}/gone")
    assert os.read(fd, 20) == b"still here"
    assert os.fstat(fd).st_size == 10
    os.close(fd)
    wait("the name is still there", lambda: not os.path.exists(f"{b}/gone"))


for fn in (close_to_open, appends_of_two_mounts, appends_of_four_processes_of_one_mount, appends_on_open_handles, names, maps,
           removed_elsewhere):
    start = time.monotonic()
    fn()
    print(f"# {fn.__name__}: {time.monotonic() - start:.1f} s")
