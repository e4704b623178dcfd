#!/usr/bin/env bash
# The disk becomes read-only under a running server, as ext4 makes it after an error: what is there is read, changes are
# refused with EROFS, nothing that was acknowledged is lost. A store on a read-only disk is checked, and served for reading.
. "$(dirname "$0")/../lib/mount.sh"
[ "$(id -u)" -eq 0 ] || skip "a file system of its own needs root"
need mkfs.ext4 curl
truncate -s 200M "$T/disk"
mkfs.ext4 -q -m 0 "$T/disk"
mkdir "$T/server-store"
mount -o loop "$T/disk" "$T/server-store" || skip "no loop devices here"
MOUNTS+=("$T/server-store")
store=$T/server-store/s
serve() {
    "$PENSTOCK" serve --dev "$store" --listen "$SERVER" --metrics "127.0.0.1:$metrics" "$@" >>"$T/server.log" 2>&1 &
    SERVER_PID=$!
    PIDS+=("$SERVER_PID")
    wait_for 20 "$PENSTOCK" status "penstock://$SERVER"
}
SERVER=127.0.0.1:$(free_port)
metrics=$(free_port)
URL=penstock://$SERVER/default/default
refused() { # COMMAND...: fails, once, because of a read-only file system
    if "$@" >"$T/out" 2>&1; then fail "$* succeeded"; fi
    grep -q "Read-only file system" "$T/out" && [ "$(wc -l <"$T/out")" = 1 ] || fail "$*: $(cat "$T/out")"
}
there() {
    "$PENSTOCK" cat "$URL/file" | cmp - "$T/file" || fail "what was stored cannot be read"
}
serve || fail "the server does not start"
seq 300000 >"$T/file"
"$PENSTOCK" put "$T/file" "$URL/file"
"$PENSTOCK" put "$T/file" "$URL/first"

say "the disk becomes read-only"
mount -o remount,abort "$T/server-store" 2>/dev/null || skip "this file system cannot be made to fail"
"$PENSTOCK" put "$T/file" "$URL/new" 2>"$T/out" && fail "stored on a read-only disk"
there
if "$PENSTOCK" rm "$URL/first" 2>"$T/out"; then fail "removed on a read-only disk"; fi # the first change finds out
refused "$PENSTOCK" rm "$URL/file"
refused "$PENSTOCK" pool create "penstock://$SERVER/more"
there
"$PENSTOCK" status "penstock://$SERVER" | grep -q "^writable *no" || fail "status does not tell"
curl -s "http://127.0.0.1:$metrics/metrics" | grep -qx "penstock_store_readonly 1" || fail "the metrics do not tell"
kill "$SERVER_PID"
wait "$SERVER_PID" || fail "the server ended with $?"
for try in "serve --dev" check; do
    if "$PENSTOCK" $try "$store" >"$T/out" 2>&1; then fail "$try on a store that needs its log, on a read-only disk"; fi
    grep -q "read-only file system" "$T/out" || fail "$try: $(cat "$T/out")"
done

say "writable again"
umount "$T/server-store"
mount -o loop "$T/disk" "$T/server-store"
serve || fail "the server does not start"
there
"$PENSTOCK" stat "$URL/first" >/dev/null || fail "a removal that failed took place"
"$PENSTOCK" put "$T/file" "$URL/new"
kill "$SERVER_PID"
wait "$SERVER_PID" || fail "the server ended with $?"
umount "$T/server-store"

say "a store on a read-only disk"
mount -o loop,ro "$T/disk" "$T/server-store"
[ "$("$PENSTOCK" check "$store")" = clean ] || fail "check on a read-only disk"
if "$PENSTOCK" serve --dev "$store" >"$T/out" 2>&1; then fail "served for writing"; fi
grep -q "readonly=1" "$T/out" || fail "no advice: $(cat "$T/out")"
serve --store-option readonly=1 || fail "not served for reading"
there
refused "$PENSTOCK" rm "$URL/file"
if "$PENSTOCK" put "$T/file" "$URL/other" 2>"$T/out"; then fail "stored in a read-only store"; fi
kill "$SERVER_PID"
wait "$SERVER_PID" || fail "the server ended with $?"
umount "$T/server-store"
