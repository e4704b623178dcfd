#!/usr/bin/env bash
# A real tree through a mount whose server compresses and encrypts: it comes back byte for byte, after a restart and under a
# new tenant key too; the store's files have neither planted plain text nor keys; another key is refused at the door.
. "$(dirname "$0")/../lib/mount.sh"
need_fuse
MNT=$T/mnt
(umask 077; head -c 32 /dev/urandom >"$T/key"; head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$T/key2")
FILTERS=(--filter compress:alg=zstd --filter "crypt:key_file=$T/key")
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

start_server "${FILTERS[@]}"
URL=penstock://$SERVER/default/default
mnt "$URL" "$MNT"
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
    kill "$SERVER_PID"
    wait "$SERVER_PID" || fail "the server ended badly"
    [ $# = 0 ] && return
    serve_store "$@"
    wait_for 20 "$PENSTOCK" status "penstock://$SERVER" || fail "the server did not start again"
}

say "after a restart"
restart "${FILTERS[@]}"
mnt "$URL" "$MNT"
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
    serve_store "$@"
    wait_for 20 "$PENSTOCK" status "penstock://$SERVER" || fail "the server did not start"
    "$PENSTOCK" ls "$URL" >"$T/out" 2>&1 && fail "it was opened with: $*"
    cat "$T/out"
    kill "$SERVER_PID"
    wait "$SERVER_PID" || fail "the server ended badly"
}
refused --filter "crypt:key_file=$T/wrong"
refused --filter compress

serve_store
wait_for 20 "$PENSTOCK" status "penstock://$SERVER" || fail "the server did not start"
"$PENSTOCK" cat "$URL/tree/bash" >"$T/out" 2>"$T/err" && fail "without filters something was read"
cat "$T/err"
[ ! -s "$T/out" ] || fail "stored bytes were handed out"
kill "$SERVER_PID"
wait "$SERVER_PID" || fail "the server ended badly"

say "a new key"
chmod 600 "$T/key2"
"$PENSTOCK" rewrap --filter "crypt:key_file=$T/key2,old_key_file=$T/key" "local:$T/server-store?default/default"
refused --filter "crypt:key_file=$T/key"
serve_store --filter "crypt:key_file=$T/key2"
wait_for 20 "$PENSTOCK" status "penstock://$SERVER" || fail "the server did not start"
mnt "$URL" "$MNT"
diff -r --no-dereference "$T/tree" "$MNT/tree"
