#!/usr/bin/env bash
# The support bundle of an agent: its status with the server's state, configuration, tenants, metrics, log; and not one byte of a
# key, a token or a file in it, also with everything logged.
. "$(dirname "$0")/../lib/serve.sh"

secret() { head -c 24 /dev/urandom | base64 | tee "$T/$1" | tr -d '\n' >>"$T/planted"; echo >>"$T/planted"; chmod 600 "$T/$1"; }
hexkey() { head -c 32 /dev/urandom | od -An -tx1 -v | tr -d ' \n' | tee "$T/$1" >>"$T/planted"; echo >>"$T/planted"; chmod 600 "$T/$1"; }
secret server.token; secret host.token; secret inline.token
hexkey anna.key; hexkey command.key
cat >"$T/server.yaml" <<YAML
store: {url: "local:$T/store", options: [create=1, size=268435456]}
pools: [{label: pa, mode: 777, containers: [{label: c, mode: 777}]}]
data: {shards: 1, buffer_memory: 16M}
tenants: [{name: anna, containers: [pa/*], quota: 64M, buffer_memory: 16M}]
credentials: [{name: anna, token_file: $T/server.token, uid: 1000, gid: 1000, any_uid: true, tenant: anna, origin: true}]
YAML
serve --config "$T/server.yaml"
cat >"$T/agent.yaml" <<YAML
role: agent
backend: {url: "$SERVER", token_file: $PENSTOCK_RUN_DIR/$CONTROL.token}
data: {shards: 1, buffer_memory: 16M}
log: debug
tenants:
  - {name: anna, containers: [pa/*], buffer_memory: 16M, cache: 16M, read_ahead: 2M, weight: 3, backend_token_file: $T/server.token,
     filters: ["csum", "crypt:key_file=$T/anna.key,old_key_command=echo $(cat "$T/command.key")"]}
credentials:
  - {name: anna, token_file: $T/host.token, uid: 1000, gid: 1000, tenant: anna}
  - {name: other, token: $(cat "$T/inline.token"), uid: 1000, gid: 1000, tenant: anna}
YAML
serve --config "$T/agent.yaml"
for f in "$PENSTOCK_RUN_DIR"/*.token; do (cat "$f"; echo) >>"$T/planted"; done
(echo; head -c 300000 /dev/urandom | base64 -w 64) >"$T/file"
sed -n '2p;100p' "$T/file" >>"$T/planted"
PENSTOCK_TOKEN_FILE=$T/host.token "$PENSTOCK" put "$T/file" "$SERVER/pa/c/file"
PENSTOCK_TOKEN_FILE=$T/host.token "$PENSTOCK" cat "$SERVER/pa/c/file" | cmp - "$T/file"
"$PENSTOCK" support-bundle "$SERVER" "$T/b.tar.gz" --config "$T/agent.yaml" --log-file "$LOG"
mkdir "$T/b"
tar -xzf "$T/b.tar.gz" -C "$T/b"

say "everything of the agent is there"
has() { grep -qE -- "$2" "$T/b/$1" || fail "$1 has no $2: $(cat "$T/b/$1")"; }
has status.json '"role": "agent"'
has status.json '"backend.connection": "up"'
has status.json '"backend.server": "127.0.0.1:'
has metrics.json '"penstock_tenant_data_bytes_in_total"'
has tenants.json '"name": "anna"'
has tenants.json '"weight": "3"'
has config.txt '^role: agent$'
has config.txt '^tenants.filters: crypt:key_file=.*key_command=\(not shown\)$'
has config.txt '^credentials.token: \(not shown\)$'
has config.txt '^tenants.weight: 3$'
has config.txt '^tenants.cache: 16M$'
has config.txt '^tenants.read_ahead: 2M$'
has versions.txt '^penstock '
has "log/$(basename "$LOG")" 'request [0-9a-f]{12}: chunk_replace of object'

say "and nothing that is secret"
[ "$(wc -l <"$T/planted")" -ge 9 ] || fail "$(wc -l <"$T/planted") secrets were planted"
while read -r s; do
    [ -n "$s" ] || continue
    grep -rqF -- "$s" "$T/b" && fail "\"$s\" is in the bundle: $(grep -rlF -- "$s" "$T/b")"
done <"$T/planted"
sed 's/\(..\)/\\x\1/g' "$T/anna.key" | xargs -0 printf '%b' >"$T/raw"
/usr/bin/python3 - "$T/raw" "$T"/b/*.* "$T"/b/log/* <<'PY'
import sys
raw = open(sys.argv[1], "rb").read()
assert len(raw) == 32
assert not [f for f in sys.argv[2:] if raw in open(f, "rb").read()]
PY
drain
