#!/usr/bin/python3
"""Checkpoint savers (users.md A31, A32): pickle + os.replace; mkstemp, write, fchmod, fsync, rename over the old name while
readers hold it: the name is never missing, and holds one whole version."""
import os
import pickle
import sys
import tempfile
import threading

folder, rounds = sys.argv[1], int(sys.argv[2])
os.makedirs(folder)
target = os.path.join(folder, "model.safetensors")
pick = os.path.join(folder, "state.pkl")
errors = []
stop = threading.Event()


def body(n):
    return n.to_bytes(4, "little") * 50000


def save(n):
    fd, tmp = tempfile.mkstemp(dir=folder)
    with os.fdopen(fd, "wb") as f:
        f.write(body(n))
        os.fchmod(f.fileno(), 0o644)
        f.flush()
        os.fsync(f.fileno())
    os.rename(tmp, target)


def reader():
    while not stop.is_set():
        try:
            with open(target, "rb") as f:
                data = f.read()
            if data != data[:4] * 50000:
                errors.append(f"a mixed or short file: {len(data)} bytes")
        except OSError as e:
            errors.append(repr(e))


save(0)
threads = [threading.Thread(target=reader) for _ in range(2)]
for t in threads:
    t.start()
with open(target, "rb") as old:
    for n in range(1, rounds + 1):
        save(n)
        with open(pick + ".tmp", "wb") as f:
            pickle.dump({"round": n, "weights": list(range(2000))}, f)
        os.replace(pick + ".tmp", pick)
        with open(pick, "rb") as f:
            assert pickle.load(f)["round"] == n
    stop.set()
    assert old.read() == body(0), "the replaced file's reader lost its data"
for t in threads:
    t.join()
assert not errors, errors[:5]
assert sorted(os.listdir(folder)) == ["model.safetensors", "state.pkl"], os.listdir(folder)
assert os.stat(target).st_mode & 0o777 == 0o644
