#!/usr/bin/env bash
# A listing is whole or fails, never short: the server is killed at some moment of it and does not come back (users.md A49).
. "$(dirname "$0")/../lib/mount.sh"
need_fuse
n=$(count 3000 200000) rounds=$(count 3 6)
start_server
URL=penstock://$SERVER/default/default
MNT=$T/mnt
mnt "$URL" "$MNT" --durability fsync --timeout 1000
python3 - "$MNT" "$n" <<'P'
import os, sys
os.makedirs(f"{sys.argv[1]}/list")
d = os.open(f"{sys.argv[1]}/list", os.O_RDONLY)
for i in range(int(sys.argv[2])):
    os.mknod(f"{i}", 0o100644, dir_fd=d)
os.fsync(d)
P
start=$(date +%s%N)
"$PENSTOCK" ls "$URL/list" >"$T/names"
whole=$((($(date +%s%N) - start) / 1000))
[ "$(wc -l <"$T/names")" -eq "$n" ] || fail "$(wc -l <"$T/names") names of $n"
say "$n names by the API in $((whole / 1000)) ms"
seed=${PENSTOCK_SEED:-$(date +%N)}
RANDOM=$seed
say "seed $seed"
failed=0
for round in $(seq $((10 * rounds))); do
    # A kill may come too late for both: that round shows nothing.
    [ "$round" -le "$rounds" ] || [ "$failed" -eq 0 ] || break
    (code=0; "$PENSTOCK" ls --timeout 1000 "$URL/list" >"$T/by-api" 2>"$T/api.log" || code=$?; echo $code >"$T/api-code") &
    api=$!
    (code=0; ls -f "$MNT/list" >"$T/by-mount" 2>"$T/ls.log" || code=$?; echo $code >"$T/ls-code") &
    ls=$!
    sleep "$(awk -v us=$((RANDOM * whole / 32768)) 'BEGIN {printf "%.4f", us / 1000000}')"
    kill -9 "$SERVER_PID"
    wait "$SERVER_PID" 2>/dev/null || true
    wait $api $ls
    if [ "$(cat "$T/api-code")" = 0 ]; then
        [ "$(wc -l <"$T/by-api")" -eq "$n" ] || fail "round $round: $(wc -l <"$T/by-api") names of $n and no error"
    else
        failed=$((failed + 1))
        [ -s "$T/api.log" ] || fail "round $round: it failed and said nothing"
    fi
    if [ "$(cat "$T/ls-code")" = 0 ]; then
        [ "$(wc -l <"$T/by-mount")" -eq $((n + 2)) ] || fail "round $round: $(wc -l <"$T/by-mount") names by the mount and no error"
    else
        failed=$((failed + 1))
        [ -s "$T/ls.log" ] || fail "round $round: ls failed and said nothing"
    fi
    serve_store
    wait_for 20 "$PENSTOCK" status "penstock://$SERVER" || fail "the server did not start again"
done
say "$failed listings failed"
[ "$failed" -gt 0 ] || fail "no kill met a listing"
wait_for 20 test -e "$MNT/list/0" || fail "the mount does not answer again"
[ "$(ls -f "$MNT/list" | wc -l)" -eq $((n + 2)) ]
umnt "$MNT"
