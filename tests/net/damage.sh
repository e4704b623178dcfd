#!/usr/bin/env bash
# One byte of the store goes bad on disk: its reader gets EIO and never the byte, others go on, it is counted, the scrub and the
# offline check name it (users.md A27). Over a mount and by the command line.
. "$(dirname "$0")/../lib/serve.sh"
P=$PENSTOCK
mkdir "$T/store"
serve --dev "$T/store"
head -c 3000000 /dev/urandom >"$T/good"
(head -c 1500000 /dev/urandom; printf 'here is what goes bad'; head -c 1500000 /dev/urandom) >"$T/bad"
expect 0 "$P" cp "$T/good" "$URL/good"
expect 0 "$P" cp "$T/bad" "$URL/bad"
drain
python3 - "$T/store" <<'PY'
import mmap, sys
with open(f"{sys.argv[1]}/data", "r+b") as f:
    m = mmap.mmap(f.fileno(), 0)
    at = m.find(b"here is what goes bad")
    assert at >= 0, "the file's bytes are not in the store"
    m[at + 3] ^= 4
    m.flush()
PY
serve --dev "$T/store"
[ "$(metric penstock_store_data_errors_total)" = 0 ]
say "the reader gets an error, and no byte of the damaged block"
expect 1 "$P" cat "$URL/bad"
says "Input/output error"
[ "$(stat -c %s "$T/out")" -le 1500000 ] || fail "bytes behind the damage were written out"
cmp -n "$(stat -c %s "$T/out")" "$T/out" "$T/bad"
expect 1 "$P" cp "$URL/bad" "$T/copy"
[ "$(metric penstock_store_data_errors_total)" -ge 1 ] || fail "it was not counted"
grep -qE 'request [0-9a-f]{12}: checksum mismatch' "$LOG" || fail "the log does not have the request: $(cat "$LOG")"
say "other files are served on"
expect 0 "$P" cat "$URL/good"
cmp "$T/out" "$T/good"
say "the scrub names it"
expect 6 "$P" scrub "$SERVER"
cat "$T/out" "$T/err" >"$T/said"
grep -q 'default/default' "$T/said" || fail "the scrub says: $(cat "$T/said")"
say "written anew it is whole"
touch "$T/bad" # else the copy is taken for done
expect 0 "$P" cp "$T/bad" "$URL/bad"
expect 0 "$P" cat "$URL/bad"
cmp "$T/out" "$T/bad"
expect 0 "$P" scrub "$SERVER"
drain
expect 0 "$P" check "$T/store"
