#!/usr/bin/env bash
# A daemon on loopback and the command: everything a user does in the first hour, and what is refused.
. "$(dirname "$0")/../lib/serve.sh"
P=$PENSTOCK
JSON='import json, sys; j = json.load(sys.stdin); print(eval(sys.argv[1]))'
json() { python3 -c "$JSON" "$1"; }

say "a small tree with everything that a tree can have"
S=$T/tree
mkdir -p "$S/sub/deep" "$S/empty"
seq 1 50000 >"$S/numbers"
: >"$S/nothing"
head -c 3000000 /dev/urandom >"$S/random"
truncate -s 10M "$S/sparse"
printf end | dd of="$S/sparse" bs=1 seek=5000000 conv=notrunc status=none
ln -s ../numbers "$S/sub/link"
ln -s /nowhere "$S/dangling"
ln "$S/numbers" "$S/sub/deep/same"
mkfifo "$S/fifo"
printf x >"$S/sub/a name with spaces, a
newline and ü"
chmod 751 "$S/sub" && chmod 4711 "$S/random" && chmod 500 "$S/sub/deep"
touch -d '2001-02-03 04:05:06.123456789' "$S/numbers" "$S/sub"
touch -h -d '2002-03-04 05:06:07.5' "$S/dangling"
setfattr -n user.color -v blue "$S/random" 2>/dev/null || say "no extended attributes here"
# Names, types, modes, times, sizes, links, targets: one line each.
listing() { (cd "$1" && find . -printf '%p|%y|%m|%T@|%s|%n|%l|%U:%G\n' | sort -z | sed 's/\(|d|[^|]*|[^|]*\)|[0-9]*|[0-9]*|/\1|||/' | sort); }
identical() {
    diff -r --no-dereference "$1" "$2" -x fifo || fail "contents differ"
    diff -a <(listing "$1") <(listing "$2") || fail "attributes differ"
}

serve --dev "$T/store"
say "status and lists"
expect 0 "$P" status "$SERVER" --json
[ "$(json 'j["facts"]["data.provider"]' <"$T/out")" = "${PENSTOCK_TEST_PROVIDER:-tcp}" ] || fail "no provider in status"
[ "$(json 'j["facts"]["engine"]' <"$T/out")" = local ]
expect 0 "$P" pool list "$SERVER" --json
[ "$(json 'j[0]["label"]' <"$T/out")" = default ]
expect 0 "$P" pool create "$SERVER/ml" --quota 1G
expect 1 "$P" pool create "$SERVER/ml"
expect 0 "$P" container create "$SERVER/ml/set" --chunk-size 64K --json
[ "$(json 'j["chunk_size"]' <"$T/out")" = 65536 ]
expect 0 "$P" container list "$SERVER/ml"
expect 0 "$P" pool query "$SERVER/ml" --json
[ "$(json 'j["quota"]' <"$T/out")" = $((1 << 30)) ]

say "trees in, between containers, and out"
expect 0 "$P" cp -r "$S" "$URL/tree" --json
[ "$(json 'j["failed"]' <"$T/out")" = 0 ]
expect 0 "$P" cp -r "$URL/tree" "$SERVER/ml/set/copy"
expect 0 "$P" cp -r "$SERVER/ml/set/copy" "$T/back"
identical "$S" "$T/back"
[ "$(stat -c %i "$T/back/numbers")" = "$(stat -c %i "$T/back/sub/deep/same")" ] || fail "a hard link became a copy"
[ "$(du -k "$T/back/sparse" | cut -f1)" -lt 1024 ] || fail "a hole became zeros"
if getfattr -n user.color "$S/random" >/dev/null 2>&1; then
    [ "$(getfattr --only-values -n user.color "$T/back/random")" = blue ] || fail "an extended attribute is lost"
fi

say "a second copy sends nothing; a changed file is sent"
expect 0 "$P" cp -r "$S" "$URL/tree" --json
[ "$(json 'j["bytes"]' <"$T/out")" = 0 ] || fail "the second copy sent $(cat "$T/out")"
printf changed >>"$S/nothing"
expect 0 "$P" cp -r "$S" "$URL/tree" --json
[ "$(json 'j["bytes"]' <"$T/out")" = 7 ]
chmod 755 "$S/sub/deep"
t=$(stat -c %y "$S/numbers")
printf X | dd of="$S/numbers" bs=1 seek=100 conv=notrunc status=none
touch -d "$t" "$S/numbers" # the same size and time, other bytes
expect 0 "$P" cp -r "$S" "$URL/tree" --checksum
"$P" cat "$URL/tree/numbers" | cmp - "$S/numbers" || fail "--checksum did not see the change"

say "single files, streams and ranges"
echo hello | "$P" put - "$URL/hello"
[ "$("$P" get "$URL/hello" -)" = hello ]
[ "$("$P" cat "$URL/tree/numbers" --offset 2 --length 1)" = 2 ]
expect 0 "$P" put "$S/random" "$URL/r1"
(cd "$T" && "$P" get "$URL/r1") && cmp "$T/r1" "$S/random"
expect 0 "$P" mkdir -p "$URL/a/b/c"
expect 0 "$P" cp "$S/random" "$S/nothing" "$URL/a/b/"
expect 0 "$P" ls "$URL/a/b" --json
[ "$(json 'sorted(x["path"] for x in j)' <"$T/out")" = "['c', 'nothing', 'random']" ]
expect 0 "$P" mv "$URL/a/b/random" "$URL/a/moved"
expect 0 "$P" stat "$URL/a/moved" --json
[ "$(json 'j["size"], j["type"]' <"$T/out")" = "(3000000, 'file')" ]
expect 0 "$P" du "$URL/tree" --json
[ "$(json 'j["files"]' <"$T/out")" = 9 ] || fail "du counts $(cat "$T/out")"
expect 0 "$P" df "$URL"

say "tar archives"
"$P" export "$URL/tree" "$T/tree.tar"
mkdir "$T/untar" && tar -C "$T/untar" -xpf "$T/tree.tar"
identical "$S" "$T/untar"
"$P" export "$URL/tree" -z zstd - | "$P" import "$URL/again" -
expect 0 "$P" cp -r "$URL/again" "$T/again"
identical "$S" "$T/again"
printf 'x' >"$T/x" && tar -C "$T" -cPf "$T/evil.tar" --transform 's,^x$,../../x,' x
expect 1 "$P" import "$URL/again" "$T/evil.tar"
python3 - "$T/evil.tar" <<'PY' # a link of the archive leads out, a hard link goes through it
import sys, tarfile
with tarfile.open(sys.argv[1], "w") as t:
    for name, kind, target in (("d", tarfile.SYMTYPE, ".."), ("h", tarfile.LNKTYPE, "d/hello")):
        i = tarfile.TarInfo(name); i.type, i.linkname = kind, target; t.addfile(i)
PY
expect 1 "$P" import "$URL/again" "$T/evil.tar" && says "h: Not a directory"
expect 4 "$P" stat "$URL/again/h"

say "metrics, scrub, bench, support bundle"
[ "$(metric penstock_data_bytes_in_total)" != 0 ] || fail "no bytes counted"
curl -sf "http://127.0.0.1:$METRICS/metrics" | python3 -c '
import re, sys
seen, kind = set(), {}
for line in sys.stdin:
    if line.startswith("# TYPE"):
        name = line.split()[2]; assert name not in kind, name; kind[name] = line.split()[3]
    elif not line.startswith("#"):
        m = re.fullmatch(r"([a-z_]+)(\{[^}]*\})? [-+0-9.einfNa]+\n", line); assert m, line
        assert (m[1], m[2]) not in seen, line; seen.add((m[1], m[2]))
        assert any(m[1] == n or k == "histogram" and m[1].startswith(n + "_") for n, k in kind.items()), line
assert len(seen) > 50
'
curl -s -o /dev/null -w '%{http_code}' -X POST "http://127.0.0.1:$METRICS/metrics" | grep 405 >/dev/null
expect 0 "$P" scrub "$SERVER" --json
[ "$(json 'j["damaged"]' <"$T/out")" = 0 ]
expect 0 "$P" bench "$URL" -t 1 -s 64K --file-size 4M --json
[ "$(json 'j["ops"] > 0' <"$T/out")" = True ]
cat >"$T/c.yaml" <<YAML
store: {url: 'local:$T/other'}
credentials: [{name: x, token: very-secret-token}]
YAML
expect 0 "$P" support-bundle "$SERVER" "$T/b.tar.gz" -c "$T/c.yaml"
tar -tzf "$T/b.tar.gz" | grep status.json >/dev/null
tar -xzOf "$T/b.tar.gz" | grep very-secret >/dev/null && fail "a secret is in the support bundle"

say "a backup of a store in use opens as a store"
expect 0 "$P" backup "$SERVER" "$T/backup"
expect 0 "$P" check "$T/backup"
[ "$("$P" cat "local:$T/backup?default/default/hello")" = hello ]
expect 1 "$P" backup "$SERVER" "$T/backup"

say "errors: one line, the right code"
expect 4 "$P" cat "$URL/none" && says none
expect 4 "$P" ls "$SERVER/ml/none"
expect 2 "$P" ls nonsense && says "not a URL"
expect 2 "$P" ls && says "an argument is missing"
expect 2 "$P" ls --nonsense "$URL"
expect 2 "$P" frobnicate && says frobnicate
expect 1 "$P" cp "$S" "$URL/x" && says "cp -r"
expect 1 "$P" rm "$URL/tree" && says "rm -r"
expect 3 "$P" ls penstock://127.0.0.1:1/p/c --timeout 500
expect 1 "$P" container destroy "$SERVER/ml/set" && says "--force"
echo not-the-token-not-the-token >"$T/token"
expect 5 "$P" ls "$URL" --token-file "$T/token"
[ "$(wc -l <"$T/err")" = 1 ]

say "two daemons never open one store"
expect 1 "$P" serve --store "local:$T/store" --listen 127.0.0.1:0 --metrics off
expect 1 "$P" check "$T/store"

say "removal, then the end"
expect 0 "$P" rm -r "$URL/tree" "$URL/again"
expect 4 "$P" stat "$URL/tree"
expect 0 "$P" rm -rf "$URL/tree"
expect 0 "$P" container destroy "$SERVER/ml/set" --force
expect 0 "$P" pool destroy "$SERVER/ml"
kill -HUP "$DAEMON"
sleep 0.3
kill -0 "$DAEMON" || fail "SIGHUP ended the daemon"
"$P" bench "$URL" -w -t 3 -s 1M -d 4 --file-size 8M >/dev/null 2>&1 & # under way while the daemon ends
BENCH=$!
sleep 1
drain
kill "$BENCH" 2>/dev/null || true
wait "$BENCH" 2>/dev/null || true
[ -z "$(ls "$PENSTOCK_RUN_DIR")" ] || fail "a token file is left: $(ls "$PENSTOCK_RUN_DIR")"
expect 0 "$P" check "$T/store"

say "an agent that waits for its server at its start can be told to end"
"$P" serve --role agent --backend penstock://127.0.0.1:1 --backend-timeout 24h --listen 127.0.0.1:0 --metrics off 2>"$T/waits.log" &
WAITS=$!
PIDS+=("$WAITS")
until grep -q "waiting for it (backend.timeout)" "$T/waits.log"; do kill -0 $WAITS || fail "$(cat "$T/waits.log")"; sleep 0.1; done
kill -TERM $WAITS
wait $WAITS || fail "it ended with $?: $(cat "$T/waits.log")"

say "what was stored is there after a restart"
serve --dev "$T/store"
[ "$("$P" cat "$URL/hello")" = hello ]
drain

say "few buffers and credits: requests wait in order, and all bytes arrive"
serve --dev "$T/store" --shards 1 --buffer-memory 16M --buffer-size 4M --credits 8
mkdir "$T/big"
for i in 1 2 3 4 5 6; do head -c $((5000000 + i)) /dev/urandom >"$T/big/$i"; done
expect 0 "$P" cp -r -j 12 "$T/big" "$URL/big"
expect 0 "$P" cp -r -j 12 "$URL/big" "$T/big.back"
diff -r "$T/big" "$T/big.back"
for w in "" -w; do expect 0 "$P" bench "$URL" $w -t 1 -s 3M -d 16 -j 2 --file-size 12M; done
[ "$(metric penstock_data_buffer_waits_total)" != 0 ] || fail "nothing waited"
drain

say "bad configurations are refused with a line"
echo 'sotre: {}' >"$T/bad.yaml"
expect 2 "$P" serve -c "$T/bad.yaml" && says "line 1"
expect 2 "$P" serve --store local:/x --listen 10.9.8.7:7440 && says tls
expect 2 "$P" serve --store local:/x --insecure --listen 10.9.8.7:7440 && says "data-security clear"
expect 2 "$P" serve && says store.url
expect 1 "$P" serve --store "local:$T/none" --metrics off
expect 1 "$P" serve --dev "$T/store" --listen 127.0.0.1:0 --metrics off --provider nonsense && says nonsense
expect 2 "$P" serve --dev "$T/store" --listen 127.0.0.1:0 --metrics off --filter nonsense && says "known filters"
expect 0 "$P" serve --dev "$T/store" --check-config
grep -q "store.url: local:" "$T/out"
say "passed"
