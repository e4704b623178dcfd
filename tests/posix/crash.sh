#!/usr/bin/env bash
# The serving process is killed: the path answers again within 5 s, with what had been closed; an open reader gets data or
# an error, an open writer an error, nobody hangs; SIGTERM unmounts in order (users.md A42).
. "$(dirname "$0")/../lib/mount.sh"
mnt_setup "$1"
seq 200000 >"$T/data"
cp "$T/data" "$MNT/data"
mkdir "$MNT/dir"
touch "$MNT/dir/a" "$MNT/dir/b"

python3 - "$MNT" "$(serving_pid "$MNT")" "$T/data" <<'P'
import os, signal, sys, time
mnt, pid, ref = sys.argv[1], int(sys.argv[2]), open(sys.argv[3], "rb").read()
reader = os.open(f"{mnt}/data", os.O_RDONLY)
writer = os.open(f"{mnt}/written", os.O_RDWR | os.O_CREAT)
os.write(writer, b"w" * 300000)
folder = os.open(f"{mnt}/dir", os.O_RDONLY)
assert os.pread(reader, 100, 0) == ref[:100]
os.kill(pid, signal.SIGKILL)
start = time.monotonic()
while True:
    try:
        with open(f"{mnt}/data", "rb", buffering=0) as f:
            assert f.read() == ref
        break
    except OSError as e:
        assert time.monotonic() - start < 5, f"not readable: {e}"
        time.sleep(0.01)
assert time.monotonic() - start < 5
print("# readable again after %.2f s" % (time.monotonic() - start))
try:
    got = os.pread(reader, 1000, 500000)
    assert got == ref[500000:501000]
    print("# the open reader goes on")
except OSError as e:
    print("# the open reader got", e)
assert sorted(os.listdir(folder)) == ["a", "b"]
assert sorted(os.listdir(f"{mnt}/dir")) == ["a", "b"]
for what, fn in (("write", lambda: os.write(writer, b"more")), ("fsync", lambda: os.fsync(writer))):
    try:
        fn()
        raise SystemExit(f"{what} on a handle that may have lost data succeeded")
    except OSError as e:
        print(f"# {what}:", e.strerror)
try:
    os.close(writer)
    raise SystemExit("close of a handle that may have lost data succeeded")
except OSError:
    pass
os.close(reader)
with open(f"{mnt}/after", "w") as f:
    f.write("new process")
P
[ "$(cat "$MNT/after")" = "new process" ]
chmod 6777 "$MNT/after"
echo by root >>"$MNT/after"
[ "$(stat -c %a "$MNT/after")" = 6777 ] || fail "root's write took set-id bits away"
setpriv --reuid 1000 --regid 1000 --clear-groups bash -c 'echo by another >>"$1"' - "$MNT/after"
[ "$(stat -c %a "$MNT/after")" = 777 ] || fail "another's write left the set-id bits"

say "killed again and again under load"
for i in $(seq "$(count 3 30)"); do
    (for k in $(seq 200); do echo "$i $k" >"$MNT/dir/f$k"; done) >/dev/null 2>&1 &
    load=$!
    sleep 0.1
    kill -9 "$(serving_pid "$MNT")"
    start=$(date +%s%N)
    wait_for 5 cmp "$T/data" "$MNT/data" || fail "round $i: not readable 5 s after the kill"
    wait "$load" || true
    # more than ten that live for less than 10 s each: the supervisor would give up
    [ $((i % 8)) -ne 0 ] || sleep 11
done
[ "$(ls "$MNT/dir" | wc -l)" -ge 2 ]

say "the supervisor is killed: the serving process unmounts in order"
served=$(serving_pid "$MNT")
sup=$(awk '{print $4}' "/proc/$(serving_pid "$MNT")/stat")
kill -9 "$sup"
wait_for 10 sh -c "! grep -qF ' $MNT fuse' /proc/mounts" || fail "still mounted"
wait_for 10 gone "$served" || fail "the serving process is left"
mnt "$URL" "$MNT"
cmp "$T/data" "$MNT/data"

say "SIGTERM with dirty pages and open files"
python3 - "$MNT" "$(awk '{print $4}' "/proc/$(serving_pid "$MNT")/stat")" <<'P'
import mmap, os, signal, sys, time
mnt, sup = sys.argv[1], int(sys.argv[2])
fd = os.open(f"{mnt}/mapped", os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 1 << 20)
m = mmap.mmap(fd, 1 << 20)
m[:] = b"dirty " * 174762 + b"page"
os.kill(sup, signal.SIGTERM)
start = time.monotonic()
while os.path.exists(f"/proc/{sup}") and open(f"/proc/{sup}/stat").read().split()[2] != "Z":
    assert time.monotonic() - start < 20, "SIGTERM had no effect"
    time.sleep(0.05)
try:
    os.pread(fd, 1, 0)
    os.stat(f"{mnt}/mapped")
    raise SystemExit("still mounted")
except OSError as e:
    print("# open file after the unmount:", e.strerror)
os._exit(0)
P
mnt "$URL" "$MNT"
[ "$(head -c 12 "$MNT/mapped")" = "dirty dirty " ]
[ "$(tail -c 4 "$MNT/mapped")" = page ]
umnt "$MNT"
