#!/usr/bin/env bash
# Two tenants and an administrator on one daemon: each sees its own containers, space ends at its quota, also after a
# restart, and what is another's is answered as what is not there.
. "$(dirname "$0")/../lib/serve.sh"

head -c 24 /dev/urandom | base64 >"$T/a.token"
head -c 24 /dev/urandom | base64 >"$T/b.token"
head -c 24 /dev/urandom | base64 >"$T/page.token"
chmod 600 "$T"/*.token
METRICS_TOKEN=$(cat "$T/page.token")
cat >"$T/penstock.yaml" <<YAML
store:
  url: local:$T/store
  options: [create=1, size=268435456]
pools:
  - {label: pa, mode: 777, containers: [{label: c, mode: 777}, {label: d, mode: 777}]}
  - {label: pb, mode: 777, containers: [{label: c, mode: 777}]}
  - {label: shared, mode: 777, containers: [{label: in, mode: 777}, {label: out, mode: 777}]}
data: {shards: 1, buffer_memory: 16M}
metrics: {token_file: $T/page.token}
audit: {file: $T/audit.log, size: 1M, keep: 2}
tenants:
  - {name: anna, containers: [pa/*, shared/in], quota: 4M, quota_objects: 12, buffer_memory: 16M, max_connections: 8}
  - {name: bert, containers: [pb/c, shared/in], weight: 3, rate: 1G, burst: 64M, buffer_memory: 16M,
     filters: ["crypt:key_file=$T/bert.key"]}
credentials:
  - {name: anna, token_file: $T/a.token, uid: 1000, gid: 1000, tenant: anna, origin: true}
  - {name: bert, token_file: $T/b.token, uid: 1000, gid: 1000, tenant: bert, origin: true}
YAML
head -c 32 /dev/urandom | od -An -tx1 -v | tr -d ' \n' >"$T/bert.key"
chmod 600 "$T/bert.key"
anna() { PENSTOCK_TOKEN_FILE=$T/a.token "$PENSTOCK" "$@"; }
bert() { PENSTOCK_TOKEN_FILE=$T/b.token "$PENSTOCK" "$@"; }
export -f anna bert
export T PENSTOCK

serve --config "$T/penstock.yaml"
say "a listing shows ones own"
[ "$(anna pool list "$SERVER" | awk 'NR > 1 { print $1 }' | xargs)" = "pa shared" ] || fail "$(anna pool list "$SERVER")"
[ "$(bert pool list "$SERVER" | awk 'NR > 1 { print $1 }' | xargs)" = "pb shared" ] || fail "$(bert pool list "$SERVER")"
[ "$(anna container list "$SERVER/shared" | grep -cE '\b(in|out)\b')" = 1 ] || fail "shared/out is listed"
[ "$("$PENSTOCK" pool list "$SERVER" | awk 'NR > 1 { print $1 }' | xargs)" = "pa pb shared" ] || fail "the administrator"

say "what is another's is not there, in the same words as what is not there"
for there in pb/c shared/out; do
    expect 4 anna ls "$SERVER/$there"
    sed 's/container "[a-z]*"/X/' "$T/err" >"$T/one"
    expect 4 anna ls "$SERVER/${there%/*}/none"
    sed 's/container "[a-z]*"/X/' "$T/err" | cmp - "$T/one" || fail "$(cat "$T/one" "$T/err")"
done
for op in "pool create" "pool destroy"; do
    expect 5 anna $op "$SERVER/pb"
    sed 's/pb/X/g' "$T/err" >"$T/one"
    expect 5 anna $op "$SERVER/none"
    sed 's/none/X/g' "$T/err" | cmp - "$T/one" || fail "$op: $(cat "$T/one" "$T/err")"
done
expect 5 anna container create "$SERVER/shared/out"
expect 5 anna container create "$SERVER/shared/none"

say "bytes go in and out, encrypted by the tenant's own key"
head -c 1000000 /dev/urandom >"$T/f"
anna cp "$T/f" "$SERVER/pa/c/f"
anna cp "$SERVER/pa/c/f" "$T/g" && cmp "$T/f" "$T/g"
bert cp "$T/f" "$SERVER/pb/c/f"
bert cp "$SERVER/pb/c/f" "$T/g" && cmp "$T/f" "$T/g"
expect 1 "$PENSTOCK" cp "$SERVER/pb/c/f" "$T/h" # the administrator has no key
cmp -s "$T/f" "$T/h" && fail "the server's own tenant read what is encrypted"

say "space ends at the quota, over all containers, also after a restart"
anna cp "$T/f" "$SERVER/pa/d/f2"
anna cp "$T/f" "$SERVER/shared/in/f3"
head -c 3000000 /dev/zero | tr '\0' x >"$T/big"
expect 1 anna cp "$T/big" "$SERVER/pa/c/big"
says "quota"
anna rm "$SERVER/pa/c/big" 2>/dev/null || true
bert cp "$T/big" "$SERVER/pb/c/big"
drain
serve --config "$T/penstock.yaml"
expect 1 anna cp "$T/big" "$SERVER/pa/c/big"
says "quota"
anna rm "$SERVER/pa/c/big" 2>/dev/null || true
anna rm "$SERVER/pa/d/f2"
anna rm "$SERVER/pa/c/f"
anna cp "$T/big" "$SERVER/pa/c/big"
anna cp "$SERVER/pa/c/big" "$T/g" && cmp "$T/big" "$T/g"

say "figures: a tenant's own, with its label for the administrator, refusals by tenant"
anna status --metrics "$SERVER" >"$T/own"
grep -q '^penstock_tenant_used_bytes [1-9]' "$T/own" || fail "$(cat "$T/own")"
grep -qE 'bert|shard="[02-9]"' "$T/own" && fail "anna reads of others: $(grep -E 'bert|shard' "$T/own")"
anna status "$SERVER" >"$T/own"
grep -qE "$T|bert" "$T/own" && fail "anna's status tells of others: $(cat "$T/own")"
expect 5 anna pool create "$SERVER/more"
[ "$(metric 'penstock_tenant_refused_total{tenant="anna",reason="admin"}')" = 1 ] || fail "anna's refusal"
[ "$(metric 'penstock_tenant_refused_total{tenant="bert",reason="admin"}')" = 0 ] || fail "bert's refusals"
[ "$(metric 'penstock_tenant_quota_bytes{tenant="anna"}')" = 4194304 ] || fail "anna's quota"
[ "$(metric 'penstock_tenant_data_bytes_in_total{tenant="anna"}')" -ge 3000000 ] || fail "anna's bytes"

say "the Prometheus page is for who has its token; without one it tells of no tenant"
page() { curl -s -o "$T/page" -w '%{http_code}' "$@" "http://127.0.0.1:$METRICS/metrics"; }
[ "$(page)" = 401 ] && [ "$(page -H 'Authorization: Bearer wrong-wrong-wrong-wrong')" = 401 ] || fail "the page is open"
[ "$(page -H "Authorization: Basic $METRICS_TOKEN")" = 401 ] && [ "$(page -H "Authorization: Bearer ${METRICS_TOKEN}x")" = 401 ] || fail "open"
grep -q penstock_ "$T/page" && fail "a refusal has figures: $(cat "$T/page")"
[ "$(page -H "Authorization: Bearer $METRICS_TOKEN")" = 200 ] && grep -q 'tenant="anna"' "$T/page" || fail "$(head "$T/page")"
[ "$(curl -s -o /dev/null -w '%{http_code}' "http://127.0.0.1:$METRICS/healthz")" = 200 ] || fail "healthz needs a token"
drain
sed '/^metrics:/d' "$T/penstock.yaml" >"$T/open.yaml"
serve --config "$T/open.yaml"
[ "$(METRICS_TOKEN= page)" = 200 ] && grep -q '^penstock_sessions ' "$T/page" || fail "$(head "$T/page")"
grep -E 'tenant=|anna|bert' "$T/page" && fail "the page tells of tenants"
drain
expect 2 "$PENSTOCK" serve --config "$T/open.yaml" --listen 127.0.0.1:0 --metrics 0.0.0.0:0
says "metrics.token_file"
serve --config "$T/penstock.yaml"

say "objects end at theirs"
for i in $(seq 20); do anna mkdir "$SERVER/pa/c/d$i" 2>"$T/err" || break; done
says "quota"
[ "$i" -lt 12 ] || fail "$i directories"
anna rm -r "$SERVER/pa/c/d1"
anna mkdir "$SERVER/pa/c/e"

say "an agent has each tenant's own credential at the server, and mixes nothing"
FIRST=$DAEMON FIRST_SERVER=$SERVER FIRST_LOG=$LOG
head -c 24 /dev/urandom | base64 >"$T/host.token"
chmod 600 "$T/host.token"
cat >"$T/agent.yaml" <<YAML
role: agent
backend: {url: "$SERVER", token_file: $T/b.token}
data: {shards: 1, buffer_memory: 16M}
tenants:
  - {name: anna, containers: [pa/*, pb/c], buffer_memory: 16M, backend_token_file: $T/a.token}
credentials:
  - {name: host, token_file: $T/host.token, uid: 1000, gid: 1000, tenant: anna}
YAML
serve --config "$T/agent.yaml"
host() { PENSTOCK_TOKEN_FILE=$T/host.token "$PENSTOCK" "$@"; }
host rm "$SERVER/pa/c/big"
host cp "$T/f" "$SERVER/pa/c/via"
anna cp "$FIRST_SERVER/pa/c/via" "$T/g" && cmp "$T/f" "$T/g"
[ "$(host pool list "$SERVER" | awk 'NR > 1 { print $1 }' | xargs)" = "pa" ] || fail "$(host pool list "$SERVER")"
expect 4 host ls "$SERVER/pb/c" # the agent would let her; the server does not
expect 1 host cp "$T/big" "$SERVER/pa/c/more"
says "quota"
host rm "$SERVER/pa/c/more" 2>/dev/null || true
drain
DAEMON=$FIRST SERVER=$FIRST_SERVER LOG=$FIRST_LOG

say "the audit log has it, and goes on after a rotation"
mv "$T/audit.log" "$T/audit.old"
kill -HUP "$DAEMON"
for _ in $(seq 100); do [ -e "$T/audit.log" ] && break; sleep 0.05; done
anna ls "$SERVER/pa/c" >/dev/null
"$PENSTOCK" pool create "$SERVER/extra" >/dev/null
printf 0123456789abcdef0123 >"$T/wrong"
chmod 600 "$T/wrong"
PENSTOCK_TOKEN_FILE=$T/wrong expect 5 "$PENSTOCK" ls "$SERVER/pa/c"
drain
/usr/bin/python3 - "$T/audit.old" "$T/audit.log" <<'PY'
import json, sys
old, new = ([json.loads(line) for line in open(f)] for f in sys.argv[1:])
def has(log, **want):
    assert any(all(e.get(k) == v for k, v in want.items()) for e in log), (want, log[-20:])
has(old, event="session_open", tenant="anna", credential="anna")
has(old, event="grant", tenant="bert", credential="bert")
has(old, event="refused", tenant="anna", what="admin")
has(old, event="pool_create", tenant="anna", what="more", error="EPERM")
has(new, event="session_open", tenant="anna")
has(new, event="session_end", tenant="anna")
has(new, event="pool_create", tenant="default", what="extra")
has(new, event="session_refused", what="wrong token", error="EACCES")
PY
echo passed
