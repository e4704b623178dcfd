#!/usr/bin/env bash
# The server is killed (kill -9) at once after a change was answered: names and bytes that nobody has synced are there
# when it is back, and fsync tells the truth. An error of a write is not used up by a child that closes its copy of the
# descriptor.
. "$(dirname "$0")/../lib/mount.sh"
mnt_setup penstock
for i in $(seq "$(count 4 40)"); do
    mkdir "$MNT/d$i" "$MNT/gone$i"
    echo "$i" >"$MNT/d$i/f"
    mv "$MNT/d$i/f" "$MNT/d$i/g"
    ln -s target "$MNT/d$i/l"
    chmod 711 "$MNT/d$i"
    rmdir "$MNT/gone$i"
    python3 - "$MNT/d$i/data" "$SERVER_PID" "$T/back" "$i" <<'P' &
import os, sys, time
path, pid, back, i = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
body = bytes([i % 256]) * 1000 * 7919
f = os.open(path, os.O_WRONLY | os.O_CREAT)
for at in range(0, len(body), 100000):
    os.write(f, body[at:at + 100000])
os.kill(pid, 9)
while not os.path.exists(back + str(i)):
    time.sleep(0.05)
os.fsync(f)
os.close(f)
with open(path, "rb") as f:
    assert f.read() == body, "fsync succeeded, but bytes are lost"
P
    work=$!
    wait_for 20 gone "$SERVER_PID" || fail "the server is still there"
    touch "$T/back$i"
    serve_store
    wait "$work" || fail "round $i"
    [ "$(ls "$MNT/d$i" | tr '\n' ' ')" = "data g l " ] || fail "round $i: $(ls "$MNT/d$i")"
    [ "$(cat "$MNT/d$i/g")" = "$i" ] || fail "round $i: contents"
    [ "$(stat -c %a "$MNT/d$i")" = 711 ] || fail "round $i: mode"
    [ ! -e "$MNT/gone$i" ] || fail "round $i: a removed folder is back"
done
umnt "$MNT"

say "a child's close does not use up the error"
mnt "$URL" "$MNT" --timeout 1000
python3 - "$MNT/lost" "$SERVER_PID" "$T" <<'P' &
import os, sys, time
path, pid, t = sys.argv[1], int(sys.argv[2]), sys.argv[3]
f = os.open(path, os.O_WRONLY | os.O_CREAT)
os.kill(pid, 9)
os.write(f, b"x" * 100000)
child = os.fork()
if not child:
    try:
        os.close(f)
    except OSError:
        pass
    os._exit(0)
os.waitpid(child, 0)
open(t + "/closed", "w").close()
while not os.path.exists(t + "/up"):
    time.sleep(0.05)
try:
    os.fsync(f)
except OSError as e:
    print("# fsync:", e.strerror)
    sys.exit(0)
sys.exit("fsync succeeded, but the bytes are lost")
P
work=$!
wait_for 60 test -e "$T/closed" || fail "the child hangs"
serve_store
wait_for 20 "$PENSTOCK" status "penstock://$SERVER" || fail "the server is not back"
wait_for 20 ls "$MNT" || fail "the mount is not back"
touch "$T/up"
wait "$work" || fail "the error was lost"
umnt "$MNT"
kill "$SERVER_PID"
wait_for 20 gone "$SERVER_PID"
"$PENSTOCK" check "$T/server-store"
