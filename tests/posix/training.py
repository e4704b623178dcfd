#!/usr/bin/python3
"""training.py MOUNT CHECKPOINT_MIB FILES: saves and loads checkpoints, reads many small files; all of it is compared."""
import hashlib
import mmap
import multiprocessing
import os
import pickle
import random
import sys
import time
import zipfile

mnt, mib, files = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
seed = int(os.environ.get("PENSTOCK_SEED", time.time_ns()))
print("# seed", seed)
BLOCK = 1 << 20


def tensor(n, which):
    """`n` MiB that are like nothing else."""
    return random.Random(f"{seed} {which}").randbytes(BLOCK) * n if n < 8 else \
        b"".join(random.Random(f"{seed} {which} {i}").randbytes(BLOCK) for i in range(8)) * (n // 8)


def save(path, parts):
    """As torch.save does: a zip of stored members, written to the final name's folder, then renamed over it."""
    with open(path + ".tmp", "wb") as f:
        with zipfile.ZipFile(f, "w", zipfile.ZIP_STORED) as z:
            z.writestr("archive/data.pkl", pickle.dumps({f"layer{i}": len(p) for i, p in enumerate(parts)}, protocol=2))
            for i, p in enumerate(parts):
                with z.open(f"archive/data/{i}", "w", force_zip64=True) as m:
                    m.write(p)
        f.flush()
        os.fsync(f.fileno())
    os.rename(path + ".tmp", path)


def load(path, parts):
    with zipfile.ZipFile(path) as z:
        assert z.testzip() is None
        sizes = pickle.loads(z.read("archive/data.pkl"))
        assert sizes == {f"layer{i}": len(p) for i, p in enumerate(parts)}
        for i, p in enumerate(parts):
            assert z.read(f"archive/data/{i}") == p, f"{path}: layer {i}"


def saver(rank, rounds):
    parts = [tensor(max(1, mib // 4), f"{rank} {i}") for i in range(4)]
    for _ in range(rounds):
        save(f"{mnt}/checkpoint{rank}", parts)
    load(f"{mnt}/checkpoint{rank}", parts)


def at_once(fn, args):
    procs = [multiprocessing.Process(target=fn, args=a) for a in args]
    start = time.monotonic()
    for p in procs:
        p.start()
    for p in procs:
        p.join()
    assert all(p.exitcode == 0 for p in procs), [p.exitcode for p in procs]
    return time.monotonic() - start


def checkpoints():
    n = mib // 4 * 4
    block = os.urandom(BLOCK)
    start = time.monotonic()
    with open(f"{mnt}/plain", "wb", buffering=0) as f:
        for _ in range(n):
            f.write(block)
        os.fsync(f.fileno())
    plain = n / (time.monotonic() - start)
    parts = [tensor(n // 4, i) for i in range(4)]
    start = time.monotonic()
    save(f"{mnt}/checkpoint", parts)
    one = n / (time.monotonic() - start)
    both = at_once(saver, [(r, 1) for r in range(2)])
    print(f"# {n} MiB: plain writes {plain:.0f} MiB/s, a checkpoint {one:.0f}, two writers save and load in {both:.2f} s")
    at_once(saver, [(r, 2) for r in range(2)])  # over the old ones
    os.unlink(f"{mnt}/plain")


def mapped(path, first, want):
    h = hashlib.sha256()
    with open(path, "rb") as f:
        with mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as m:
            n = len(m) // BLOCK
            for i in range(n):  # each begins elsewhere
                at = (first + i) % n * BLOCK
                m[at]  # a fault for its first page
            for i in range(n):
                h.update(m[i * BLOCK:(i + 1) * BLOCK])
    assert h.hexdigest() == want, "a mapped read differs"


def maps():
    n = mib
    path = f"{mnt}/weights"
    h = hashlib.sha256()
    with open(path, "wb") as f:
        for i in range(n):
            b = random.Random(f"{seed} weights {i % 16}").randbytes(BLOCK)
            f.write(b)
            h.update(b)
    took = at_once(mapped, [(path, i * n // 4, h.hexdigest()) for i in range(4)])
    print(f"# 4 processes map {n} MiB: {took:.2f} s")
    start = time.monotonic()
    with open(path, "rb", buffering=0) as f:
        while f.read(BLOCK):
            pass
    print(f"# one reads it: {time.monotonic() - start:.2f} s")


def content(i):
    return b"%d " % i * (1 + (i * 7919) % 20000)


def worker(rank, workers):
    order = list(range(rank, files, workers))
    random.Random(f"{seed} {rank}").shuffle(order)
    for i in order:
        with open(f"{mnt}/samples/{i % 10}/{i}", "rb") as f:
            assert f.read() == content(i), f"sample {i}"


def samples():
    for d in range(10):
        os.makedirs(f"{mnt}/samples/{d}")
    for i in range(files):
        with open(f"{mnt}/samples/{i % 10}/{i}", "wb") as f:
            f.write(content(i))
    start = time.monotonic()
    assert sum(len(names) for _, _, names in os.walk(f"{mnt}/samples")) == files
    print(f"# listing {files} files: {time.monotonic() - start:.2f} s")
    for workers in (1, 2, 4):
        took = at_once(worker, [(r, workers) for r in range(workers)])
        print(f"# {workers} workers: {files / took:.0f} files/s in random order")


checkpoints()
maps()
samples()
