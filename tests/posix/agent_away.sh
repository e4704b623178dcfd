#!/usr/bin/env bash
# The server behind an agent goes away: programs on a mount wait, and go on when it is back in time; when it stays away for longer
# than backend.timeout they get EIO. Nothing that was synced is lost, and the mount is as good as before once it is back.
. "$(dirname "$0")/../lib/mount.sh"
need_fuse
MNT=$T/mnt
SERVER=127.0.0.1:$(free_port) BACKEND=127.0.0.1:$(free_port)
URL=penstock://$SERVER/default/default
mkdir "$T/server-store"
# agent TIME: waits so long for its server
agent() {
    serve_agent --backend-timeout "$1"
    wait_for 60 "$PENSTOCK" status "penstock://$SERVER" || fail "the agent did not start"
}
lose() { kill -9 "$SERVER_PID"; wait "$SERVER_PID" 2>/dev/null || true; }
# gets_eio COMMAND...
gets_eio() {
    if LC_ALL=C "$@" >/dev/null 2>"$T/err"; then fail "$* worked without a server"; fi
    grep -q "Input/output error" "$T/err" || fail "$*: no EIO: $(cat "$T/err")"
}

serve_store
agent 300s
mnt "$URL" "$MNT"
echo kept >"$MNT/kept"
sync "$MNT/kept"

say "it is back in time"
lose
(echo later >"$MNT/later" && sync "$MNT/later" && cat "$MNT/kept") >"$T/out" 2>&1 &
waits=$!
sleep 1
kill -0 $waits || fail "it did not wait: $(cat "$T/out")"
# Who looks at the agent does so because of that, and does not wait; who comes with work does.
"$PENSTOCK" status "penstock://$SERVER" >"$T/status" || fail "no status"
grep -q 'backend.connection *down' "$T/status" || fail "it does not say that the server is away: $(cat "$T/status")"
"$PENSTOCK" tenant list "penstock://$SERVER" >"$T/tenants" || fail "no list of tenants"
grep -q '^default *[0-9]* *- ' "$T/tenants" || fail "it knows what it cannot know: $(cat "$T/tenants")"
"$PENSTOCK" mkdir --timeout 120000 "$URL/made" >"$T/made" 2>&1 &
makes=$!
sleep 1
kill -0 $makes || fail "the command did not wait: $(cat "$T/made")"
serve_store
wait $makes || fail "the command failed: $(cat "$T/made")"
[ -d "$MNT/made" ] || fail "what it made is not there"
wait $waits || fail "it failed: $(cat "$T/out")"
[ "$(cat "$T/out")" = kept ] || fail "$(cat "$T/out")"

say "it stays away"
kill "$AGENT_PID"
wait "$AGENT_PID" || fail "the agent ended badly"
agent 2s
wait_for 60 test -s "$MNT/kept" || fail "the mount did not find the next agent"
lose
gets_eio dd if="$MNT/later" iflag=direct of=/dev/null bs=4096 count=1
gets_eio mkdir "$MNT/never"
gets_eio dd if=/dev/zero of="$MNT/kept" bs=4096 count=1 conv=notrunc,fsync

say "and is back"
serve_store
wait_for 60 cat "$MNT/later" || fail "the mount does not go on"
[ "$(cat "$MNT/later")" = later ] || fail "what was synced is lost"
echo again >"$MNT/again"
sync "$MNT/again"
umnt "$MNT"
kill "$AGENT_PID"
wait "$AGENT_PID" || fail "the agent ended badly"
[ "$("$PENSTOCK" cat "penstock://$BACKEND/default/default/again")" = again ] || fail "what was written then is lost"
