#!/usr/bin/env bash
# A new tenant key for a container on a server, while it is in use: no file is lost or changed, the old key opens nothing afterwards,
# and no key is in the server's store or log.
. "$(dirname "$0")/../lib/serve.sh"

(umask 077; for k in old new wrong; do head -c 32 /dev/urandom | od -An -tx1 -v | tr -d ' \n' >"$T/$k.key"; done)
OLD=crypt:key_file=$T/old.key NEW=crypt:key_file=$T/new.key BOTH=crypt:key_file=$T/new.key,old_key_file=$T/old.key
serve --dev "$T/store" --store-option size=268435456 --log debug
mkdir "$T/tree"
for i in $(seq 12); do head -c "$((i * 20000))" /dev/urandom >"$T/tree/$i"; done
"$PENSTOCK" cp -r --filter "$OLD" "$T/tree" "$URL/tree"

say "who has the wrong keys changes nothing"
expect 1 "$PENSTOCK" rewrap --filter "$NEW" "$URL"
says "wrapped by another tenant key"
expect 1 "$PENSTOCK" rewrap --filter "crypt:key_file=$T/new.key,old_key_file=$T/wrong.key" "$URL"
says "wrapped by another tenant key"
head -c 24 /dev/urandom | base64 >"$T/token"
chmod 600 "$T/token"
expect 5 "$PENSTOCK" rewrap --filter "$BOTH" --token-file "$T/token" "$URL"
kill -STOP "$DAEMON"
expect 3 timeout 20 "$PENSTOCK" rewrap --filter "$BOTH" --timeout 300 "$URL"
kill -CONT "$DAEMON"

say "while others write, with both keys"
(i=0; while [ ! -e "$T/stop" ]; do
    i=$((i + 1)); "$PENSTOCK" put --filter "$BOTH" "$T/tree/2" "$URL/made$i"; echo "$i" >"$T/made"
done) &
WRITER=$!
PIDS+=("$WRITER")
until [ -s "$T/made" ]; do sleep 0.05; done
"$PENSTOCK" rewrap --filter "$BOTH" "$URL" | tee "$T/said"
grep -qE '^1[34] wrapped anew, [0-9]+ were already, 0 failed$' "$T/said" || fail "12 files and the root: $(cat "$T/said")"
touch "$T/stop"
wait "$WRITER"

say "every byte is there for the new key, none for the old one"
expect 1 "$PENSTOCK" cat --filter "$OLD" "$URL/tree/3"
says "wrapped by another tenant key"
"$PENSTOCK" cp -r --filter "$NEW" "$URL/tree" "$T/back"
diff -r "$T/tree" "$T/back"
for i in $(seq "$(cat "$T/made")"); do "$PENSTOCK" cat --filter "$NEW" "$URL/made$i" | cmp - "$T/tree/2"; done
"$PENSTOCK" rewrap --filter "$BOTH" "$URL" | grep -q '^0 wrapped anew, .* 0 failed$' || fail "there was something left"
drain

say "no key is with the server"
for k in old new; do
    sed 's/\(..\)/\\x\1/g' "$T/$k.key" | xargs -0 printf '%b' >"$T/raw"
    python3 - "$T/raw" "$T/$k.key" "$LOG" "$T"/store/* <<'PY'
import mmap, os, sys
keys = [open(f, "rb").read() for f in sys.argv[1:3]]
assert [len(k) for k in keys] == [32, 64]
for path in [os.path.join(d, n) for top in sys.argv[4:] for d, _, names in os.walk(top) for n in names] + sys.argv[3:]:
    if os.path.isfile(path) and os.path.getsize(path):
        with open(path, "rb") as f, mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as m:
            assert all(m.find(k) < 0 for k in keys), path
PY
done
