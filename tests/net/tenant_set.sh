#!/usr/bin/env bash
# Limits of tenants change at run time, at once and for who is connected; they are kept over restarts where there is a file for them;
# a configuration that is read again gives its own; only an administrator of the server may, and a tenant is told of itself alone.
. "$(dirname "$0")/../lib/serve.sh"

for who in anna bert boss page; do head -c 24 /dev/urandom | base64 >"$T/$who.token"; done
chmod 600 "$T"/*.token
METRICS_TOKEN=$(cat "$T/page.token")
config() { # ANNA'S QUOTA, EXTRA
    cat >"$T/penstock.yaml" <<YAML
store: {url: "local:$T/store", options: [create=1, size=268435456]}
pools:
  - {label: pa, mode: 777, containers: [{label: c, mode: 777}]}
  - {label: pb, mode: 777, containers: [{label: c, mode: 777}]}
data: {shards: 1, buffer_memory: 16M}
metrics: {token_file: $T/page.token}
audit: {file: $T/audit.log}
tenants:
  - {name: anna, containers: [pa/*], quota: $1, buffer_memory: 16M}
  - {name: bert, containers: [pb/*], buffer_memory: 16M}
credentials:
  - {name: anna, token_file: $T/anna.token, uid: 1000, gid: 1000, tenant: anna}
  - {name: boss, token_file: $T/boss.token, uid: 1000, gid: 1000, tenant: anna, admin: true}
  - {name: bert, token_file: $T/bert.token, uid: 1000, gid: 1000, tenant: bert}
$2
YAML
}
anna() { PENSTOCK_TOKEN_FILE=$T/anna.token "$PENSTOCK" "$@"; }
boss() { PENSTOCK_TOKEN_FILE=$T/boss.token "$PENSTOCK" "$@"; }
bert() { PENSTOCK_TOKEN_FILE=$T/bert.token "$PENSTOCK" "$@"; }
set_limits() { "$PENSTOCK" tenant set "$SERVER" "$@"; }
shown() { "$PENSTOCK" tenant show "$SERVER" "$1" | sed -n "s/^$2  *//p"; }
head -c 1500000 /dev/urandom >"$T/f"
config 1M ""
serve --config "$T/penstock.yaml"

say "a quota that is raised lets in what was refused, and one that is set refuses"
expect 1 anna put "$T/f" "$SERVER/pa/c/f"
says quota
set_limits anna quota=4M quota_objects=100 | grep -q 'until the daemon ends' || fail "it does not say that it is not kept"
anna put "$T/f" "$SERVER/pa/c/f"
bert put "$T/f" "$SERVER/pb/c/f"
set_limits bert quota=2M >/dev/null
expect 1 bert put "$T/f" "$SERVER/pb/c/g"
says quota
bert get "$SERVER/pb/c/f" - | cmp - "$T/f"
bert rm "$SERVER/pb/c/g" 2>/dev/null || true
set_limits bert quota=64K >/dev/null # less than there is: it stays, and nothing more comes
bert get "$SERVER/pb/c/f" - | cmp - "$T/f"
expect 1 bert put "$T/f" "$SERVER/pb/c/g"
bert rm "$SERVER/pb/c/g" 2>/dev/null || true
set_limits bert quota=none >/dev/null
bert put "$T/f" "$SERVER/pb/c/g"
[ "$(shown anna quota)" = 4194304 ] && [ -z "$(shown bert quota)" ] || fail "$("$PENSTOCK" tenant list "$SERVER")"
[ "$(shown anna set_at_run_time | xargs)" = "quota quota_objects" ] || fail "$("$PENSTOCK" tenant show "$SERVER" anna)"
[ "$(metric 'penstock_tenant_quota_bytes{tenant="anna"}')" = 4194304 ] || fail "the metrics have the old quota"

say "a rate is felt at once"
set_limits bert rate=1M burst=1M max_sessions=40 >/dev/null
start=$(date +%s%N)
bert get "$SERVER/pb/c/f" - >/dev/null
bert get "$SERVER/pb/c/g" - | cmp - "$T/f"
ms=$((($(date +%s%N) - start) / 1000000))
[ "$ms" -ge 1700 ] || fail "3 MB at 1 MiB/s with a burst of 1 MiB took $ms ms"
[ "$(metric 'penstock_tenant_throttled_total{tenant="bert"}')" -ge 1 ] || fail "nothing was held up"
set_limits bert rate=none burst=none >/dev/null

say "sessions: so many, and not one more"
mkfifo "$T/fifo"
anna get "$SERVER/pa/c/f" - >"$T/fifo" &
exec 9<"$T/fifo"
head -c 10 <&9 >/dev/null
set_limits anna max_sessions=1 >/dev/null
expect 1 anna ls --timeout 1000 "$SERVER/pa/c"
set_limits anna max_sessions=none weight=7 max_connections=50 >/dev/null
anna ls "$SERVER/pa/c" >/dev/null
exec 9<&-
wait $! || true
[ "$(shown anna weight) $(shown anna max_connections)" = "7 50" ] || fail "$("$PENSTOCK" tenant show "$SERVER" anna)"

say "all or nothing, and by words that help"
expect 2 set_limits anna quota
says "is not KEY=VALUE"
for bad in quota=lots weight=0 weight=100000 rate=1 burst=1M shards=2 name=x "quota=1M 2M"; do
    expect 1 set_limits anna weight=9 "$bad"
done
expect 1 set_limits anna weight=9 shards=2
says "these can: quota quota_objects weight"
[ "$(shown anna weight)" = 7 ] || fail "half of a set was taken"
expect 4 set_limits carl weight=2
says "no such tenant"
expect 1 set_limits default rate=1M
says "limits.bytes"

say "only for administrators of the server; a tenant sees itself"
expect 5 anna tenant set "$SERVER" anna quota=none
expect 5 boss tenant set "$SERVER" anna quota=none
expect 5 boss tenant set "$SERVER" bert quota=64K
[ "$(anna tenant list "$SERVER" | awk 'NR > 1 { print $1 }' | xargs)" = anna ] || fail "$(anna tenant list "$SERVER")"
anna tenant show "$SERVER" anna >/dev/null
expect 4 anna tenant show "$SERVER" bert
expect 4 anna tenant show "$SERVER" none
expect 4 boss tenant show "$SERVER" default
[ "$("$PENSTOCK" tenant list "$SERVER" --json | python3 -c 'import json, sys; print(*[t["name"] for t in json.load(sys.stdin)])')" = "default anna bert" ]

say "a configuration that is read again gives its limits, but for those that were set"
config 8M ""
sed -i 's/{name: bert, containers/{name: bert, weight: 5, containers/' "$T/penstock.yaml"
kill -HUP "$DAEMON"
for _ in $(seq 100); do [ "$(shown bert weight)" = 5 ] && break; sleep 0.05; done
[ "$(shown bert weight)" = 5 ] || fail "bert's weight after SIGHUP: $(shown bert weight)"
[ "$(shown anna quota)" = 4194304 ] || fail "anna's quota, which was set, is $(shown anna quota)"
set_limits anna quota= >/dev/null
[ "$(shown anna quota)" = 8388608 ] || fail "anna's quota is not the configuration's: $(shown anna quota)"
config 8M "  - {name: carl, token: 0123456789abcdef, tenant: carl}"
sed -i 's/^credentials:/  - {name: carl, containers: [pa\/*], buffer_memory: 16M}\ncredentials:/' "$T/penstock.yaml"
kill -HUP "$DAEMON"
for _ in $(seq 100); do grep -q 'tenant carl is new' "$LOG" && break; sleep 0.05; done
grep -q 'tenant carl is new' "$LOG" || fail "$(cat "$LOG")"
drain
config 8M ""
serve --config "$T/penstock.yaml"
[ "$(shown anna weight)" = 1 ] || fail "without a file a limit was kept: $(shown anna weight)"
drain

say "with a file they are kept over a restart, and a kill"
config 1M "tenants_file: $T/limits"
serve --config "$T/penstock.yaml"
set_limits anna quota=4M weight=7 | grep -q 'kept over restarts' || fail "it does not say that it is kept"
set_limits bert rate_ops=500 >/dev/null
set_limits bert rate_ops= >/dev/null
[ "$(stat -c %a "$T/limits")" = 600 ]
kill -9 "$DAEMON"
wait "$DAEMON" || true
serve --config "$T/penstock.yaml"
[ "$(shown anna quota)" = 4194304 ] && [ "$(shown anna weight)" = 7 ] && [ -z "$(shown bert rate_ops)" ] ||
    fail "$("$PENSTOCK" tenant list "$SERVER")"
anna rm "$SERVER/pa/c/f"
anna put "$T/f" "$SERVER/pa/c/f"
drain
echo "anna quota plenty" >"$T/limits"
expect 2 "$PENSTOCK" serve --config "$T/penstock.yaml" --listen 127.0.0.1:0 --metrics off
says "must be a size"
echo "anna quota" >"$T/limits"
expect 2 "$PENSTOCK" serve --config "$T/penstock.yaml" --listen 127.0.0.1:0 --metrics off
says "$T/limits: line 1"
config 1M "tenants_file: /proc/self/mem" # a file that cannot be read
expect 1 timeout 60 "$PENSTOCK" serve --config "$T/penstock.yaml" --listen 127.0.0.1:0 --metrics off
says "/proc/self/mem (tenants_file): "
/usr/bin/python3 - "$T/audit.log" <<'PY'
import json, sys
log = [json.loads(line) for line in open(sys.argv[1])]
acts = [e for e in log if e["event"] == "tenant_set"]
def has(**want):
    assert any(all(e.get(k) == v for k, v in want.items()) for e in acts), (want, acts)
has(tenant="default", what="anna quota=4M quota_objects=100")
has(tenant="anna", credential="boss", what="bert quota=64K", error="EPERM")
has(what="anna weight=9 shards=2", error="EINVAL")
PY
