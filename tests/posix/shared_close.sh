#!/usr/bin/env bash
# Two processes share a handle and close it at the same time: with durability=close neither is told before the data is durable.
. "$(dirname "$0")/../lib/mount.sh"
need_fuse
MNT=$T/mnt
start_server --filter delay:op=fsync,ms=1500
mnt "penstock://$SERVER/default/default" "$MNT"
python3 - "$MNT/f" <<'P' || fail "a close returned while the data of the handle was not durable yet"
import os, sys, time
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o644)
os.write(fd, b"shared")
ready, tell = os.pipe()
pid = os.fork()
if pid == 0:
    os.write(tell, b"x")
    os.close(fd)
    os._exit(0)
os.read(ready, 1)
time.sleep(0.3)  # the child's close is under way, most probably: else ours is the first
began = time.monotonic()
os.close(fd)
took = time.monotonic() - began
time.sleep(0.3)
still = os.waitpid(pid, os.WNOHANG) == (0, 0)  # ours was back while the first one had not ended
if still:
    os.waitpid(pid, 0)
sys.exit(still and took < 1.0)  # a sync takes 1.5 s
P
umnt "$MNT"
