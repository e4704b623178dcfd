#!/usr/bin/env bash
# A mount's process is killed while the server is slow with a write of its own: what programs write through the next process
# is not overwritten when the first write comes at last.
. "$(dirname "$0")/../lib/mount.sh"
need_fuse
MNT=$T/mnt
start_server --filter delay:op=write,ms=2500,count=1
mnt "penstock://$SERVER/default/default" "$MNT"
python3 - "$MNT" "$(serving_pid "$MNT")" <<'P'
import errno, os, signal, sys, threading, time
mnt, pid = sys.argv[1], int(sys.argv[2])
os.close(os.open(f"{mnt}/f", os.O_CREAT | os.O_WRONLY))
said = []
def first():
    try:
        fd = os.open(f"{mnt}/f", os.O_WRONLY | os.O_DSYNC)
        os.pwrite(fd, b"old old old", 0)
        said.append("the write was not held up")
    except OSError as e:
        said.append(e.errno)
t = threading.Thread(target=first)
t.start()
time.sleep(0.5)
os.kill(pid, signal.SIGKILL)
t.join()
assert said[0] in (errno.ECONNABORTED, errno.EIO), said # here: what a thread raises ends nobody else
while True:
    try:
        with open(f"{mnt}/f", "r+b", buffering=0) as f:
            f.write(b"new")
            os.fsync(f.fileno())
        break
    except OSError as e:
        assert e.errno == errno.ECONNABORTED, e
time.sleep(3)
fd = os.open(f"{mnt}/f", os.O_RDONLY | os.O_DIRECT)
got = os.read(fd, 4096)
assert got[:3] == b"new", got
P

if extended; then
    say "the server is away when the process dies, and comes back"
    echo hello >"$MNT/hello"
    kill -9 "$SERVER_PID"
    wait "$SERVER_PID" 2>/dev/null || true
    kill -9 "$(serving_pid "$MNT")"
    sleep 25 # longer than it takes to be refused ten times
    serve_store
    [ "$(timeout 60 cat "$MNT/hello")" = hello ] || fail "the mount was given up"
fi
umnt "$MNT"
