#!/usr/bin/env bash
# A real tree through a mount whose server compresses and encrypts, or that does so itself: it comes back byte for byte, after a
# restart and under a new tenant key too; the store's files have neither planted plain text nor keys; another key is refused at
# the door. With the filters in the host or in an agent neither the server's memory nor what it is sent has any of that; the
# host's and the server's filters read what the other wrote.
# usage: filters.sh server|host|agent
. "$(dirname "$0")/../lib/mount.sh"
need_fuse
WHERE=$1 HERE=$(cd "$(dirname "$0")" && pwd)
MNT=$T/mnt
(umask 077; head -c 32 /dev/urandom >"$T/key"; head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$T/key2")
FILTERS=(--filter compress:alg=zstd --filter "crypt:key_file=$T/key")
# on_server, on_host FILTERS...: what of them belongs there, in $OURS
on_server() { [ "$WHERE" = server ] && OURS=("$@") || OURS=(); }
on_agent() { [ "$WHERE" = agent ] && OURS=("$@") || OURS=(); }
on_host() { [ "$WHERE" = host ] && OURS=("$@") || OURS=(); }
PLANTED=penstock-planted-plain-text-0123456789

# Files of many sizes, some that do not become shorter, names of each kind.
mkdir -p "$T/tree/sub dir/deep"
cp -r "$(dirname "$0")/.." "$T/tree/tests" 2>/dev/null
cp /bin/bash "$T/tree/bash"
for n in 0 1 4095 4096 65537 1048576 3000001; do head -c "$n" /dev/urandom >"$T/tree/random-$n"; done
head -c 5000000 < <(yes "$PLANTED" 2>/dev/null) >"$T/tree/sub dir/text"
echo "$PLANTED" >"$T/tree/sub dir/deep/short"
ln "$T/tree/bash" "$T/tree/hard link"
ln -s bash "$T/tree/symbolic link"
truncate -s 20M "$T/tree/sparse"
printf x | dd of="$T/tree/sparse" bs=1 seek=10000000 conv=notrunc status=none

serve_with() {
    on_server "$@"
    serve_store "${OURS[@]}"
    on_agent "$@"
    [ -z "$BACKEND" ] || serve_agent "${OURS[@]}"
    wait_for 20 "$PENSTOCK" status "penstock://$SERVER" || fail "the server did not start"
}
end_server() {
    [ -z "$BACKEND" ] || { kill "$AGENT_PID"; wait "$AGENT_PID" || fail "the agent ended badly"; }
    kill "$SERVER_PID"
    wait "$SERVER_PID" || fail "the server ended badly"
}
SERVER=127.0.0.1:$(free_port) BACKEND=
[ "$WHERE" != agent ] || BACKEND=127.0.0.3:$(free_port)
mkdir "$T/server-store"
serve_with "${FILTERS[@]}"
URL=penstock://$SERVER/default/default
mount_it() { on_host "$@"; mnt "$URL" "$MNT" "${OURS[@]}"; }
mount_it "${FILTERS[@]}"
cp -a "$T/tree" "$MNT/"
sync -f "$MNT"
diff -r --no-dereference "$T/tree" "$MNT/tree"
[ "$(stat -c %h "$MNT/tree/hard link")" = 2 ] || fail "the hard link is a copy"
say "changed in place"
for d in "$T" "$MNT"; do
    cd "$d/tree"
    printf 'in the middle' | dd of="sub dir/text" bs=1 seek=1048570 conv=notrunc status=none
    echo "at the end" >>"sub dir/text"
    truncate -s 1500000 random-3000001
    truncate -s 2500000 random-3000001
    fallocate -p -o 100000 -l 2000000 "sub dir/text"
    mv random-4096 "sub dir/moved"
    rm random-1
    cd /
done
diff -r --no-dereference "$T/tree" "$MNT/tree"
getfattr -d -m - "$MNT/tree/bash" 2>/dev/null | grep -q penstock && fail "the header is seen"
[ "$(stat -c %b "$MNT/tree/sub dir/text")" -lt 4000 ] || fail "text of 3 MB takes $(stat -c %b "$MNT/tree/sub dir/text") sectors"
[ "$(stat -c %b "$MNT/tree/sparse")" -lt 100 ] || fail "the hole is not one"

restart() {
    umnt "$MNT"
    end_server
    [ $# = 0 ] && return
    serve_with "$@"
}

say "after a restart"
restart "${FILTERS[@]}"
mount_it "${FILTERS[@]}"
diff -r --no-dereference "$T/tree" "$MNT/tree"
restart
"$PENSTOCK" check "$T/server-store" >"$T/check.log" || fail "check: $(cat "$T/check.log")"

say "what is stored"
python3 - "$T" "$PLANTED" <<'P'
import os, sys
t, planted = sys.argv[1], sys.argv[2].encode()
key = open(f"{t}/key", "rb").read()
wanted = {"the key": key, "the key in hexadecimal": key.hex().encode(), "the plain text": planted,
          "a program": open("/bin/bash", "rb").read()[4096:4128]}
names = 0
for d, _, files in os.walk(f"{t}/server-store"):
    for f in files:
        data = open(os.path.join(d, f), "rb").read()
        for what, b in wanted.items():
            assert b not in data, f"{what} is in {d}/{f}"
        names += b"hard link" in data
assert names, "the store's files were not searched: a name has to be in them"
P

say "a key that is not its own, and none"
(umask 077; head -c 32 /dev/zero >"$T/wrong")
refused() {
    serve_with "$@"
    on_host "$@"
    "$PENSTOCK" ls "${OURS[@]}" "$URL" >"$T/out" 2>&1 && fail "it was opened with: $*"
    cat "$T/out"
    [ "$(wc -l <"$T/out")" = 1 ] || fail "that is not one line"
    end_server
}
refused --filter "crypt:key_file=$T/wrong"
refused --filter compress

serve_with
"$PENSTOCK" cat "$URL/tree/bash" >"$T/out" 2>"$T/err" && fail "without filters something was read"
cat "$T/err"
[ ! -s "$T/out" ] || fail "stored bytes were handed out"
end_server

say "a new key"
chmod 600 "$T/key2"
"$PENSTOCK" rewrap --filter "crypt:key_file=$T/key2,old_key_file=$T/key" "local:$T/server-store?default/default"
refused --filter "crypt:key_file=$T/key"
serve_with --filter "crypt:key_file=$T/key2"
mount_it --filter "crypt:key_file=$T/key2"
diff -r --no-dereference "$T/tree" "$MNT/tree"
[ "$WHERE" != server ] || exit 0

say "the filters are not in the server: what the server can know"
hex() { od -An -v -tx1 "$@" | tr -d ' \n'; }
umnt "$MNT"
python3 "$HERE/../lib/search.py" capture "$T/packets" ${BACKEND:+"${BACKEND%:*}"} >"$T/capture.out" &
CAPTURE=$!
PIDS+=("$CAPTURE")
wait_for 5 grep -q ready "$T/capture.out" || fail "nothing captures packets"
mount_it --filter "crypt:key_file=$T/key2"
mkdir "$MNT/a-name-that-it-does-know"
head -c 3000000 < <(yes "$PLANTED" 2>/dev/null) >"$MNT/a-name-that-it-does-know/text"
echo "$PLANTED" >"$MNT/a-name-that-it-does-know/short"
printf '%s' "$PLANTED" | dd of="$MNT/a-name-that-it-does-know/text" bs=1 seek=1048560 conv=notrunc status=none
cat "$MNT/tree/bash" "$MNT/a-name-that-it-does-know/text" >/dev/null
sync -f "$MNT"
kill "$CAPTURE"
wait "$CAPTURE" || fail "the capture failed"
cat "$T/capture.out"
grep -q ', 0 packets missed' "$T/capture.out" || say "not all packets were seen"
python3 "$HERE/../lib/search.py" find --pid "$SERVER_PID" --files "$T/server-store" --packets "$T/packets" \
    --secret "the plain text=$(printf '%s' "$PLANTED" | hex)" --secret "a program=$(dd if=/bin/bash bs=4096 skip=1 count=1 status=none | head -c 32 | hex)" \
    --secret "the key=$(cat "$T/key2")" --secret "the key in hexadecimal=$(hex "$T/key2")" --secret "the old key=$(hex "$T/key")" \
    --must "a name=$(printf a-name-that-it-does-know | hex)" || fail "the server has what it must not have"
umnt "$MNT"
end_server
[ "$WHERE" = host ] || exit 0

say "each side reads what the other's filters wrote"
KEY2=(--filter "crypt:key_file=$T/key2")
serve_store "${KEY2[@]}" --filter csum
wait_for 20 "$PENSTOCK" status "penstock://$SERVER" || fail "the server did not start"
mnt "$URL" "$MNT"
diff -r --no-dereference "$T/tree" "$MNT/tree"
cp -a "$T/tree" "$MNT/by-server"
printf 'once more' | dd of="$MNT/tree/sub dir/text" bs=1 seek=2000000 conv=notrunc status=none
umnt "$MNT"
"$PENSTOCK" cp "${KEY2[@]}" "$T/key" "$URL/key" 2>"$T/err" && fail "filters over filters"
cat "$T/err"
end_server
serve_with
printf 'once more' | dd of="$T/tree/sub dir/text" bs=1 seek=2000000 conv=notrunc status=none
PENSTOCK_FILTERS="compress crypt:key_file=$T/key2" "$PENSTOCK" cp -r "$URL" "$T/back"
diff -r --no-dereference "$T/tree" "$T/back/tree"
printf 'once more' | dd of="$T/back/by-server/sub dir/text" bs=1 seek=2000000 conv=notrunc status=none
diff -r --no-dereference "$T/tree" "$T/back/by-server"
mkdir "$T/back/tar"
"$PENSTOCK" export "${KEY2[@]}" "$URL/tree" - | tar xf - -C "$T/back/tar"
diff -r --no-dereference "$T/tree" "$T/back/tar"
end_server

say "a user who is not root, at a server that lets him act for himself alone"
mkdir -m 700 "$T/nobody"
cp "$T/key2" "$T/nobody/key"
chmod 600 "$T/nobody/key"
chown -R 65534:65534 "$T/nobody"
AS=(setpriv --reuid 65534 --regid 65534 --clear-groups env HOME="$T/nobody" PENSTOCK_RUN_DIR="$T/nobody/run" "PENSTOCK_FILTERS=crypt:key_file=$T/nobody/key compress")
mkdir -p "$T/server-store"
SERVER=127.0.0.1:$(free_port)
"${AS[@]}" "$PENSTOCK" serve --dev "$T/nobody/store" --listen "$SERVER" --metrics off >>"$T/server.log" 2>&1 &
SERVER_PID=$!
PIDS+=("$SERVER_PID")
wait_for 20 "${AS[@]}" "$PENSTOCK" status "penstock://$SERVER" || fail "the server of nobody did not start"
URL=penstock://$SERVER/default/default
chmod 444 "$T/tree/random-65537"
"${AS[@]}" "$PENSTOCK" cp -r "$T/tree" "$URL/tree"
"${AS[@]}" "$PENSTOCK" cp "$T/tree/bash" "$URL/tree/random-0"
"${AS[@]}" "$PENSTOCK" cat "$URL/tree/random-0" | cmp - "$T/tree/bash"
"${AS[@]}" "$PENSTOCK" cat "$URL/tree/random-65537" | cmp - "$T/tree/random-65537"
"${AS[@]}" "$PENSTOCK" cat "$URL/tree/sub dir/text" | cmp - "$T/tree/sub dir/text"
end_server
