#!/usr/bin/env bash
# The server's machine crashes (recent=0: a killed server loses what is not durable, as a machine does) and comes back while
# programs work on the mount: calls wait and go on, nothing that was synced is lost, nothing happens twice, and what was lost
# because nobody had synced it fails the next fsync. An orderly restart loses nothing at all.
. "$(dirname "$0")/../lib/mount.sh"
need_fuse
MNT=$T/mnt
start_server --store-option recent=0
URL=penstock://$SERVER/default/default
mnt "$URL" "$MNT" --durability fsync

start_again() { serve_store --store-option recent=0; }
# the program below is where it wants the server to go
at() { wait_for 30 test -e "$T/at" || { wait "$work"; fail "the program did not come so far"; }; }
kill_server() { kill -9 "$SERVER_PID"; wait "$SERVER_PID" 2>/dev/null || true; }

say "killed between a write and its fsync"
python3 - "$MNT" "$T" <<'P' &
import errno, os, sys, time
mnt, t = sys.argv[1:3]
def killed():
    """The server is killed and started again now."""
    open(f"{t}/at", "w").close()
    while os.path.exists(f"{t}/at"):
        time.sleep(0.02)
def expect(r, fn, *args):
    try:
        fn(*args)
        got = 0
    except OSError as e:
        got = e.errno
    assert got == r, f"{fn.__name__}: {got}, not {r}"
d = os.open(mnt, os.O_RDONLY)
os.mkdir(f"{mnt}/dir")
sub = os.open(f"{mnt}/dir", os.O_RDONLY)
for kind in ("write", "mapped size", "name"):
    fd = os.open(f"{mnt}/f-{kind}", os.O_RDWR | os.O_CREAT)
    os.write(fd, b"base")
    os.fsync(fd)
    os.fsync(d)
    if kind == "write":
        os.pwrite(fd, b"acknowledged", 100)
        assert os.fstat(fd).st_size == 112 # so the server has it
    elif kind == "mapped size":
        os.ftruncate(fd, 5000)
    else:
        os.rename(f"{mnt}/f-{kind}", f"{mnt}/renamed")
    killed()
    if kind == "name":
        expect(0, os.fsync, sub) # nothing of it is lost
        expect(errno.EIO, os.fsync, d)
        expect(0, os.fsync, d)
        expect(errno.EIO, os.fsync, fd) # it may be the one that was renamed
        expect(0, os.fsync, fd)
    else:
        expect(errno.EIO, os.fsync, fd)
        expect(0, os.fsync, fd)
        assert os.pread(fd, 4, 0) == b"base"
        os.pwrite(fd, b"again", 100)
        expect(0, os.fsync, fd)
    os.close(fd)
P
work=$!
for _ in 1 2 3; do
    at
    kill_server
    start_again
    rm "$T/at"
done
wait "$work"

say "killed under load"
python3 - "$MNT" >"$T/work.log" 2>&1 <<'P' &
import errno, os, sys, time
mnt = sys.argv[1]
d = os.open(mnt, os.O_RDONLY)
log = os.open(f"{mnt}/log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
os.fsync(log)
os.fsync(d)
sure, told, n = [], 0, 0
end = time.monotonic() + 6
while time.monotonic() < end:
    n += 1
    fd = -1
    try:
        fd = os.open(f"{mnt}/f{n}", os.O_WRONLY | os.O_CREAT | os.O_EXCL)  # done twice it would fail with EEXIST
        os.write(fd, b"%d " % n * 1000)
        os.rename(f"{mnt}/f{n}", f"{mnt}/g{n}")
        os.write(log, b"%06d\n" % n)
        os.fsync(fd)
        os.fsync(log)
        os.fsync(d)
        sure.append(n)
    except OSError as e:
        # lost before it was synced, and said so
        assert e.errno in (errno.EIO, errno.ESTALE, errno.ENOENT), e
        told += 1
    finally:
        if fd >= 0:
            try:
                os.close(fd)
            except OSError:
                pass
assert sure and told <= 30, (len(sure), told)
print(*sure)
print(f"# {len(sure)} rounds, {told} times told of a loss", file=sys.stderr)
P
work=$!
for _ in 1 2 3; do
    sleep 1
    kill_server
    sleep 0.2
    start_again
done
wait "$work" || fail "$(cat "$T/work.log")"
python3 - "$MNT" "$T/work.log" <<'P'
import collections, sys
mnt = sys.argv[1]
lines = open(sys.argv[2]).read().splitlines()
print(*[l for l in lines if l.startswith("#")])
sure = [int(x) for l in lines if not l.startswith("#") for x in l.split()]
log = collections.Counter(open(f"{mnt}/log").read().split())
assert max(log.values()) == 1, "an append happened twice"
for n in sure:
    assert open(f"{mnt}/g{n}").read() == f"{n} " * 1000, n
    assert log["%06d" % n] == 1, n
P

say "an orderly restart loses nothing"
python3 - "$MNT" "$T" <<'P' &
import os, sys, time
mnt, t = sys.argv[1:3]
d = os.open(mnt, os.O_RDONLY)
try:
    os.fsync(d) # names that the last crash took
except OSError:
    pass
fd = os.open(f"{mnt}/orderly", os.O_RDWR | os.O_CREAT)
os.write(fd, b"not synced")
os.fstat(fd)
os.rename(f"{mnt}/orderly", f"{mnt}/orderly2")
open(f"{t}/at", "w").close()
while os.path.exists(f"{t}/at"):
    time.sleep(0.02)
os.fsync(fd)
os.fsync(d)
assert open(f"{mnt}/orderly2").read() == "not synced"
P
work=$!
at
kill -TERM "$SERVER_PID"
wait "$SERVER_PID" || fail "the server's exit code: $?"
start_again
rm "$T/at"
wait "$work"
umnt "$MNT"
