#!/usr/bin/env bash
# A full store: fallocate reserves for real, ENOSPC comes at write, fsync or close, removing works, space comes back
# (users.md A38, A41).
. "$(dirname "$0")/../lib/mount.sh"
need_fuse
MNT=$T/mnt
if [ "$1" = local ]; then
    # a small file system for the store
    truncate -s 320M "$T/disk"
    mkfs.ext4 -q -m 0 "$T/disk"
    mkdir "$T/small"
    mount -o loop "$T/disk" "$T/small" || skip "no loop devices here"
    MOUNTS+=("$T/small")
    mnt "local:$T/small/store" "$MNT"
    MOUNTS=("$MNT" "$T/small")
else
    # a pool with a quota
    start_server
    "$PENSTOCK" pool create --quota 256M "penstock://$SERVER/small"
    "$PENSTOCK" container create "penstock://$SERVER/small/c"
    mnt "penstock://$SERVER/small/c" "$MNT"
fi
python3 - "$MNT" <<'P'
import ctypes, errno, mmap, os, sys
mnt = sys.argv[1]
libc = ctypes.CDLL(None, use_errno=True)

def fallocate(fd, mode, off, n):
    if libc.fallocate(fd, mode, ctypes.c_long(off), ctypes.c_long(n)):
        raise OSError(ctypes.get_errno(), "fallocate")

def free():
    s = os.statvfs(mnt)
    return s.f_bavail * s.f_frsize

start = free()
fd = os.open(f"{mnt}/reserved", os.O_RDWR | os.O_CREAT)
fallocate(fd, 0, 0, 8 << 20)
assert os.fstat(fd).st_size == 8 << 20
try:
    fallocate(fd, 0, 0, 100 << 30)
    raise SystemExit("100 GiB were reserved")
except OSError as e:
    assert e.errno in (errno.ENOSPC, errno.EDQUOT), e

full = None
try:
    with open(f"{mnt}/fill", "wb", buffering=0) as f:
        while True:
            if f.write(os.urandom(1 << 20)) == 0:
                break
except OSError as e:
    full = e.errno
assert full in (errno.ENOSPC, errno.EDQUOT), full
print("# full after", (start - free()) >> 20, "MiB,", free() >> 20, "MiB reported free")

m = mmap.mmap(fd, 8 << 20)          # reserved: no SIGBUS, nothing lost
m[:] = b"reserved" * (1 << 20)
m.flush()
os.fsync(fd)
m.close()
os.close(fd)
with open(f"{mnt}/reserved", "rb") as f:
    assert f.read() == b"reserved" * (1 << 20)

size = os.stat(f"{mnt}/fill").st_size
assert size > 0
os.mkdir(f"{mnt}/still-works")      # names have a reserve
os.unlink(f"{mnt}/fill")            # removing always works
import time
for _ in range(100):
    if abs(free() - start + (8 << 20)) < start // 20:
        break
    time.sleep(0.1)
assert abs(free() - start + (8 << 20)) < start // 20, (free(), start)
with open(f"{mnt}/again", "wb") as f:
    f.write(os.urandom(4 << 20))
os.unlink(f"{mnt}/reserved")
P
umnt "$MNT"
if [ "$1" = local ]; then umount "$T/small"; fi
