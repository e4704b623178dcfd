#!/usr/bin/env bash
# The server dies (kill -9) and comes back while programs work on the mount: they wait and go on, nothing closed is lost,
# nothing happens twice.
. "$(dirname "$0")/../lib/mount.sh"
mnt_setup penstock
python3 - "$MNT" >"$T/work.log" 2>&1 <<'P' &
import os, sys, time
mnt = sys.argv[1]
log = os.open(f"{mnt}/log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
kept = os.open(f"{mnt}/kept", os.O_RDWR | os.O_CREAT)
os.unlink(f"{mnt}/kept")
n = 0
end = time.monotonic() + 6
while time.monotonic() < end:
    with open(f"{mnt}/f{n}", "xb") as f:          # exclusive: done twice it would fail
        f.write(b"%d " % n * 1000)
    os.rename(f"{mnt}/f{n}", f"{mnt}/g{n}")        # done twice it would fail
    os.write(log, b"%06d\n" % n)                   # done twice it would be there twice
    n += 1
print(n)
P
work=$!
for _ in 1 2 3; do
    sleep 1
    kill -9 "$SERVER_PID"
    sleep 0.2
    "$PENSTOCK" serve --dev "$T/server-store" --listen "$SERVER" --metrics off >>"$T/server.log" 2>&1 &
    SERVER_PID=$!
    PIDS+=("$SERVER_PID")
done
wait "$work" || { cat "$T/work.log"; fail "a program got an error"; }
n=$(tail -1 "$T/work.log")
say "$n rounds, the server killed three times"
[ "$n" -gt 0 ]
cmp <(seq -f '%06g' 0 $((n - 1))) "$MNT/log"
[ "$(ls "$MNT" | wc -l)" -eq $((n + 1)) ]
for i in 0 $((n / 2)) $((n - 1)); do [ "$(head -c 12 "$MNT/g$i")" = "$(printf "$i %.0s" $(seq 12) | head -c 12)" ]; done
umnt "$MNT"
