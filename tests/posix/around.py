#!/usr/bin/python3
"""around.py MOUNT SECONDS: who writes a file anew goes around the kernel's pages, and nobody who has it open meanwhile sees anything else."""
import errno
import mmap
import multiprocessing
import os
import random
import sys
import time

path = f"{sys.argv[1]}/f"
seconds = int(sys.argv[2])
seed = int(os.environ.get("PENSTOCK_SEED", time.time_ns()))
rng = random.Random(seed)
print("# seed", seed)


def refused(fd, **kw):
    """The file cannot be mapped this way now."""
    try:
        mmap.mmap(fd, 100, **kw)
    except OSError as e:
        return e.errno == errno.ENODEV
    return False


def anew():
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)


def writes(model, w, look):
    """Whatever is written is there for who looks, at once."""
    for _ in range(300):
        data = bytes([rng.randrange(256)]) * rng.choice((1, 10, 4096, 5000, 100000, 1 << 20, 1500000))
        at = rng.randrange(1 << 21)
        kind = rng.randrange(8)
        if kind == 0:
            size = rng.randrange(1 << 21)
            os.ftruncate(w, size)
            model[size:] = bytes(max(size - len(model), 0))
        else:
            assert os.pwrite(w, data, at) == len(data)
            model.extend(bytes(max(at + len(data) - len(model), 0)))
            model[at:at + len(data)] = data
        at = max(at - 2000, 0)
        look(at, len(data) + 4000)


# The reader comes second: it reads what the store has.
w = anew()
os.pwrite(w, b"x" * 100, 0)
r, rw, a = os.open(path, os.O_RDONLY), os.open(path, os.O_RDWR), os.open(path, os.O_WRONLY | os.O_APPEND)
assert refused(r, prot=mmap.PROT_READ) and refused(rw)
with mmap.mmap(r, 100, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ) as m:
    assert m[:] == b"x" * 100
model = bytearray(b"x" * 100)


def by_reads(at, n):
    assert os.fstat(r).st_size == len(model)
    for fd in r, rw:
        assert os.pread(fd, n, at) == model[at:at + n], f"{n} bytes at {at}"


writes(model, w, by_reads)
writes(model, rw, by_reads)
for _ in range(20):
    os.write(a, b"appended")
    model.extend(b"appended")
    by_reads(len(model) - 3000, 5000)
os.close(w)
assert refused(os.open(path, os.O_RDONLY), prot=mmap.PROT_READ)  # the other one may write still
os.close(rw)
os.close(a)

# All writers are gone: a file like any other, of which the kernel kept nothing old.
r2, rw = os.open(path, os.O_RDONLY), os.open(path, os.O_RDWR)
with mmap.mmap(r2, 0, prot=mmap.PROT_READ) as m, mmap.mmap(rw, 0) as mw:
    assert m[:] == bytes(model)
    w = os.open(path, os.O_WRONLY)  # joins those that use pages
    model[5:8] = b"map"
    mw[5:8] = b"map"
    os.pwrite(w, b"write", 8)
    model[8:13] = b"write"
    assert m[:20] == mw[:20] == model[:20]
    os.close(w)
os.close(rw)
assert open(path, "rb").read() == model

# The reader comes first, has the file mapped, and keeps it: then its pages are written through.
w = anew()
model = bytearray()
assert os.fstat(r2).st_size == 0
writes(model, w, lambda at, n: None)
os.ftruncate(w, 1 << 21)
model[1 << 21:] = bytes(max((1 << 21) - len(model), 0))
with mmap.mmap(r2, 1 << 21, prot=mmap.PROT_READ) as m:
    assert m[:] == model
    for _ in range(100):
        at = rng.randrange((1 << 21) - 5000)
        data = os.urandom(rng.choice((1, 100, 5000)))
        os.pwrite(w, data, at)
        assert m[at:at + len(data)] == data
for fd in r, r2, w:
    os.close(fd)

# Whoever reads what others are writing sees no hole that nobody made, and what was written stays.
def write_some(fd, times):
    n = 0
    for _ in range(times):
        n += os.write(fd, b"g" * rng.choice((10, 700, 4000, 9000)))
    return n


def read_on(end, growing):
    """While it only grows: its last bytes, again and again. (Of a file that is cut meanwhile the kernel may show zeros.)"""
    while time.monotonic() < end:
        fd = os.open(path, os.O_RDONLY)
        for _ in range(3):
            data = os.pread(fd, 60000, max(os.fstat(fd).st_size - 30000, 0))
            assert not growing or data.count(b"g") == len(data), f"{data.count(0)} of {len(data)} bytes read as zero"
        os.close(fd)


def with_readers(growing, work):
    end = time.monotonic() + seconds
    readers = [multiprocessing.Process(target=read_on, args=(end, growing)) for _ in range(2)]
    for p in readers:
        p.start()
    while time.monotonic() < end:
        work()
    for p in readers:
        p.join()
        assert p.exitcode == 0, "a reader saw a hole"


def write_anew():
    fd = os.open(path, flags | os.O_TRUNC)
    n = write_some(fd, rng.randrange(1, 5))
    os.close(fd)
    with open(path, "rb") as f:
        assert f.read() == b"g" * n, "what was written is not there"


for flags in os.O_WRONLY, os.O_RDWR:
    fd = os.open(path, flags | os.O_TRUNC)
    with_readers(True, lambda: write_some(fd, 10))
    os.close(fd)
    with_readers(False, write_anew)
