#!/usr/bin/env bash
# Tenants and credentials are made and deleted at run time, beside others that notice nothing; they are kept over restarts and kills;
# what is wrong is refused with its name; nothing of a deleted one reaches the next of its name. With PENSTOCK_TEST_EXPORT clients hand
# over their memory, as PENSTOCK_PLACEMENT=exported demands.
. "$(dirname "$0")/../lib/serve.sh"

for who in bert boss page; do head -c 24 /dev/urandom | base64 >"$T/$who.token"; done
chmod 600 "$T"/*.token
METRICS_TOKEN=$(cat "$T/page.token")
config() { # EXTRA TENANT, EXTRA CREDENTIAL
    cat >"$T/penstock.yaml" <<YAML
store: {url: "local:$T/store", options: [create=1, size=268435456]}
pools:
  - {label: pa, mode: 777, containers: [{label: c, mode: 777}]}
  - {label: pb, mode: 777, containers: [{label: c, mode: 777}]}
data: {shards: 1, buffer_memory: 16M${PENSTOCK_TEST_EXPORT:+, export_listen: $T/export.sock}}
metrics: {token_file: $T/page.token}
audit: {file: $T/audit.log}
tenants_file: $T/kept
tenants:
  - {name: bert, containers: [pb/*], buffer_memory: 16M}
$1
credentials:
  - {name: bert, token_file: $T/bert.token, uid: 1000, gid: 1000, tenant: bert}
  - {name: boss, token_file: $T/boss.token, uid: 1000, gid: 1000, tenant: bert, admin: true}
$2
YAML
}
as() { local who=$1; shift; PENSTOCK_TOKEN_FILE=$T/$who.token "$PENSTOCK" "$@"; }
tenant() { local verb=$1; shift; "$PENSTOCK" tenant "$verb" "$SERVER" "$@"; }
credential() { local verb=$1; shift; "$PENSTOCK" credential "$verb" "$SERVER" "$@"; }
make_anna() { # SETTINGS...
    tenant create anna 'containers=pa/*' buffer_memory=16M "$@" >/dev/null
    rm -f "$T/anna.token"
    credential create anna tenant=anna uid=1000 gid=1000 --to "$T/anna.token" 2>/dev/null
}
names() { tenant list | awk 'NR > 1 { print $1 }' | xargs; }
head -c 1500000 /dev/urandom >"$T/f"
config "" ""
serve --config "$T/penstock.yaml"
as bert put "$T/f" "$SERVER/pb/c/f"

say "another tenant reads all the time, and notices nothing of what follows"
touch "$T/on"
(while [ -e "$T/on" ]; do as bert get "$SERVER/pb/c/f" - | cmp - "$T/f" || { touch "$T/broken"; break; }; sleep 0.3; done) 2>/dev/null &
READER=$!
mkfifo "$T/bfifo"
as bert get "$SERVER/pb/c/f" - >"$T/bfifo" & # a session that stays
STAYS=$!
exec 8<"$T/bfifo"
head -c 10 <&8 >"$T/stays"

say "a tenant is made, used, and its limits hold"
tenant create anna 'containers=pa/*' buffer_memory=16M quota=4M weight=3 | grep -q 'kept over restarts' || fail "it does not say that it is kept"
[ "$(names)" = "default bert anna" ] || fail "tenants: $(names)"
credential create anna tenant=anna uid=1000 gid=1000 >"$T/anna.token" 2>"$T/err"
chmod 600 "$T/anna.token"
[ "$(wc -c <"$T/anna.token")" = 65 ] || fail "the token is $(wc -c <"$T/anna.token") bytes long"
as anna put "$T/f" "$SERVER/pa/c/f"
as anna get "$SERVER/pa/c/f" - | cmp - "$T/f"
expect 4 as anna ls "$SERVER/pb/c"
expect 4 as bert ls "$SERVER/pa/c"
tenant show anna | grep -q '^created  *at run time' || fail "$(tenant show anna)"
tenant set anna quota=8M >/dev/null
[ "$(metric 'penstock_tenant_quota_bytes{tenant="anna"}')" = 8388608 ] || fail "the metrics do not have its quota"
credential list | grep -q '^anna  *anna  *token .*run time' || fail "$(credential list)"
credential list anna --json | python3 -c 'import json, sys; c, = json.load(sys.stdin); assert c["run_time"] and c["uid"] == 1000, c'
echo 0123456789abcdef-of-a-file >"$T/given.token"
chmod 600 "$T/given.token"
[ -z "$(credential create given tenant=anna --from "$T/given.token" uid=1000 2>/dev/null)" ] || fail "a given token was shown"
as given ls "$SERVER/pa/c" >/dev/null

say "the secrets are in no file but the user's"
[ "$(stat -c %a "$T/kept")" = 600 ]
if grep -qF -e "$(cat "$T/anna.token")" -e "$(cat "$T/given.token")" "$T/kept" "$T/audit.log" "$T"/daemon*.log; then fail "a token is in a file"; fi
grep -q "^@anna token_hash $(tr -d '\n' <"$T/anna.token" | sha256sum | cut -d' ' -f1)$" "$T/kept" || fail "$(cat "$T/kept")"

say "what is wrong is refused by its name, and leaves nothing"
cp "$T/kept" "$T/kept.before"
bad() { # WHAT IT SAYS, EXIT CODE, COMMAND...
    local what=$1 code=$2
    shift 2
    expect "$code" "$@"
    says "$what"
}
bad "there is a tenant" 1 tenant create anna 'containers=pa/*'
bad "carl.quota: \"lots\": must be a size" 1 tenant create carl 'containers=pa/*' quota=lots
bad 'carl.buffer_memory: 1073741824 MiB: this machine has' 1 tenant create carl 'containers=pa/*' buffer_memory=1P
bad "is not KEY=VALUE" 2 tenant create carl containers
bad "/none: No such file" 1 tenant create carl 'containers=pa/*' "filters=crypt:key_file=$T/none" buffer_memory=16M
bad "no such tenant" 4 tenant delete carl
bad "is in the configuration: take it out of the file" 1 tenant delete bert
bad "\"token\" is no setting" 1 credential create carl tenant=anna token=0123456789abcdef
echo short >"$T/short.token"
chmod 600 "$T/short.token"
bad "at least 16 characters" 2 credential create carl tenant=anna --from "$T/short.token"
chmod 644 "$T/short.token"
bad "may be read by others" 2 credential create carl tenant=anna --from "$T/short.token"
bad "File exists" 2 credential create carl tenant=anna --to "$T/short.token"
expect 4 credential create carl tenant=none --to "$T/carl.token"
[ ! -e "$T/carl.token" ] || fail "a file for the token of a credential that was not made"
bad "it is in the configuration: take it out" 1 credential delete bert
expect 5 as anna tenant create "$SERVER" carl 'containers=pb/*'
expect 5 as boss tenant delete "$SERVER" anna
expect 5 as bert credential create "$SERVER" carl tenant=bert
expect 5 as boss credential delete "$SERVER" anna
expect 5 as boss credential list "$SERVER"
[ "$(names)" = "default bert anna" ] || fail "tenants: $(names)"
cmp "$T/kept" "$T/kept.before" || fail "a refusal has changed the file"

say "a credential that is taken away: its sessions end at once, others' of the tenant do not"
# $1 reads into a pipe that is full before the end; its process is $GETS.
gets() {
    rm -f "$T/fifo"
    mkfifo "$T/fifo"
    PENSTOCK_TOKEN_FILE="$T/$1.token" "$PENSTOCK" get "$SERVER/pa/c/f" - >"$T/fifo" 2>/dev/null &
    GETS=$!
    exec 9<"$T/fifo"
}
gets given
head -c 10 <&9 >/dev/null
OUT=$(credential delete given)
[ "${OUT%%
*}" = "1 of its sessions have ended" ] || fail "not one session has ended: $OUT"
kill $GETS # it tries to come again for a while
exec 9<&-
wait $GETS || true
expect 5 as given ls "$SERVER/pa/c"
as anna ls "$SERVER/pa/c" >/dev/null

say "a tenant that is deleted: who is there is out, who comes is refused, its data stays"
gets anna
head -c 10 <&9 >/dev/null
OUT=$(tenant delete anna)
case $OUT in
"1 of its sessions have ended; its containers and their data stay"*) ;;
*) fail "not one session has ended: $OUT" ;;
esac
kill $GETS
exec 9<&-
wait $GETS || true
expect 5 as anna ls "$SERVER/pa/c"
[ "$(names)" = "default bert" ] || fail "tenants: $(names)"
[ -z "$(credential list anna | tail -n +2)" ] || fail "$(credential list)"
[ -z "$(metric 'penstock_tenant_quota_bytes{tenant="anna"}')" ] || fail "there are metrics of it"
if grep -q anna "$T/kept"; then fail "$(cat "$T/kept")"; fi
"$PENSTOCK" get "$SERVER/pa/c/f" - | cmp - "$T/f" || fail "its data is not there"

say "one of the same name is another: the old credential, limits and counts are not its"
cp "$T/anna.token" "$T/old.token"
make_anna
[ "$(tenant show anna | grep -c -e '^quota' -e '^weight  *3' -e set_at_run_time)" = 0 ] || fail "$(tenant show anna)"
expect 5 as old ls "$SERVER/pa/c"
as anna get "$SERVER/pa/c/f" - | cmp - "$T/f"
[ "$(metric 'penstock_tenant_refused_total{tenant="anna",reason="handle"}')" = 0 ] || fail "the old one's refusals are counted as its"

say "kept over a kill, at any moment the old or the new, and one after the other"
rm "$T/on"
wait $READER
[ ! -e "$T/broken" ] || fail "the other tenant was disturbed"
cat <&8 >>"$T/stays"
exec 8<&-
wait $STAYS || fail "the other tenant's session has ended"
cmp "$T/stays" "$T/f"
kill -9 "$DAEMON"
wait "$DAEMON" 2>/dev/null || true
serve --config "$T/penstock.yaml"
as anna get "$SERVER/pa/c/f" - | cmp - "$T/f"
[ "$(names)" = "default bert anna" ] || fail "tenants after a kill: $(names)"
for _ in $(seq "$([ -n "${PENSTOCK_EXTENDED:-}" ] && echo 40 || echo 2)"); do
    (for i in $(seq 50); do
        "$PENSTOCK" tenant create "$SERVER" "t$i" 'containers=pa/*' buffer_memory=16M || exit 0
        "$PENSTOCK" credential create "$SERVER" "t$i" "tenant=t$i" >"$T/t$i.token" || exit 0
        "$PENSTOCK" tenant delete "$SERVER" "t$i" || exit 0
    done) >/dev/null 2>&1 &
    CHURN=$!
    sleep "0.$((RANDOM % 7 + 3))"
    kill -9 "$DAEMON"
    wait "$DAEMON" 2>/dev/null || true
    wait $CHURN || true
    serve --config "$T/penstock.yaml"
    as anna get "$SERVER/pa/c/f" - | cmp - "$T/f" || fail "anna is not served after a kill"
    as bert get "$SERVER/pb/c/f" - | cmp - "$T/f" || fail "bert is not served after a kill"
    for t in $(names); do case $t in t*) tenant delete "$t" >/dev/null ;; esac; done
    [ "$(names)" = "default bert anna" ] || fail "tenants: $(names)"
done
drain

say "what does not go together ends the start, and names both"
config "  - {name: anna, containers: [pa/*]}" "  - {name: anna2, token: 0123456789abcdef, tenant: anna}"
bad 'tenant "anna" is in the configuration (tenants), but was also created at run time' 1 \
    "$PENSTOCK" serve --config "$T/penstock.yaml" --listen 127.0.0.1:0 --metrics off
says "$T/kept: line"
config "" "  - {name: anna, token: 0123456789abcdef, tenant: bert}"
bad 'credential "anna" is in the configuration (credentials), but was also created at run time' 1 \
    "$PENSTOCK" serve --config "$T/penstock.yaml" --listen 127.0.0.1:0 --metrics off
config "" "  - {name: anna2, token: $(cat "$T/anna.token"), tenant: bert}"
bad 'credential "anna2" of the configuration has the same token as "anna"' 1 \
    "$PENSTOCK" serve --config "$T/penstock.yaml" --listen 127.0.0.1:0 --metrics off
config "" ""
cp "$T/kept" "$T/kept.good"
while read -r line; do
    { cat "$T/kept.good"; printf '%s\n' "$line"; } >"$T/kept"
    expect 2 "$PENSTOCK" serve --config "$T/penstock.yaml" --listen 127.0.0.1:0 --metrics off
    says "tenants_file"
done <<'LINES'
+carl id 00
+carl containers pa/*
+carl id 00112233445566778899aabbccddeegg
+carl id 00112233445566778899aabbccddeeff
+anna weight 1000000
+anna colour red
+default id 00112233445566778899aabbccddeeff
+default weight 3
@carl token_hash 00
@carl tenant bert
@anna token_hash 00
@anna uid many
@anna
+
anna weight
LINES
twin() { # TEXT: what the lines of standard input have in common with others' of the file
    { cat "$T/kept.good"; cat; } >"$T/kept"
    bad "$1" 1 "$PENSTOCK" serve --config "$T/penstock.yaml" --listen 127.0.0.1:0 --metrics off
}
twin 'credentials "anna" and "twin" have the same token' <<TWIN
@twin tenant bert
@twin uid 1
@twin gid 1
$(sed -n 's/^@anna token_hash/@twin token_hash/p' "$T/kept.good")
TWIN
twin 'tenants "anna" and "twin" have the same id' <<TWIN
$(sed -n 's/^+anna id/+twin id/p' "$T/kept.good")
+twin containers pb/*
+twin buffer_memory 16M
TWIN
cp "$T/kept.good" "$T/kept"
chmod 660 "$T/kept"
bad "may be written by others" 1 "$PENSTOCK" serve --config "$T/penstock.yaml" --listen 127.0.0.1:0 --metrics off
chmod 600 "$T/kept"
serve --config "$T/penstock.yaml"
as anna ls "$SERVER/pa/c" >/dev/null

say "a tenant that is taken out of the configuration, and put back, has its credentials and limits again"
credential create eve tenant=bert uid=1000 gid=1000 --to "$T/eve.token" 2>/dev/null
tenant set bert weight=5 >/dev/null
drain
config "  - {name: fritz, containers: [pb/*], buffer_memory: 16M}" "  - {name: fritz, token: fritz-0123456789abcdef, tenant: fritz}"
cp "$T/penstock.yaml" "$T/with.yaml"
sed -i /bert/d "$T/penstock.yaml"
serve --config "$T/penstock.yaml"
tenant set fritz weight=2 >/dev/null # the file is written anew
expect 5 as eve ls "$SERVER/pb/c"
credential list bert | grep -q '^eve  *bert  *token' || fail "$(credential list)"
bad 'has 2 credentials and limits of a tenant "bert"' 1 tenant create bert 'containers=pb/*' buffer_memory=16M
bad 'has a credential "eve" of a tenant' 1 credential create eve tenant=fritz
bad "another one has this token" 1 credential create mallory tenant=fritz --from "$T/eve.token"
drain
serve --config "$T/with.yaml"
as eve get "$SERVER/pb/c/f" - | cmp - "$T/f"
tenant show bert | grep -q '^weight  *5' || fail "$(tenant show bert)"
drain
serve --config "$T/penstock.yaml"
credential delete eve | grep -q '^0 of its sessions' || fail "a credential that lets nobody in cannot be deleted"
tenant delete bert >/dev/null
if grep -q -e eve -e bert "$T/kept"; then fail "$(cat "$T/kept")"; fi
tenant create bert 'containers=pb/*' buffer_memory=16M >/dev/null
tenant delete bert >/dev/null
drain
config "" ""
serve --config "$T/penstock.yaml"

say "a key file that nobody writes to is not waited for without end"
mkfifo -m 600 "$T/nobody"
bad "nobody" 1 tenant create carl 'containers=pb/*' buffer_memory=16M "filters=crypt:key_file=$T/nobody"
tenant create carl 'containers=pb/*' buffer_memory=16M >/dev/null
tenant delete carl >/dev/null
drain

/usr/bin/python3 - "$T/audit.log" <<'PY'
import json, sys
log = [json.loads(line) for line in open(sys.argv[1])]
def has(**want):
    assert any(all(e.get(k) == v for k, v in want.items()) and e.get("request") for e in log), want
has(event="tenant_create", tenant="default", credential="local", what="anna containers=pa/* buffer_memory=16M quota=4M weight=3")
has(event="credential_create", tenant="default", what="anna tenant=anna uid=1000 gid=1000")
has(event="credential_create", what="carl tenant=anna token=...", error="EINVAL")
has(event="tenant_delete", tenant="default", what="anna")
has(event="tenant_delete", what="bert", error="EOPNOTSUPP")
has(event="credential_delete", what="given")
has(event="tenant_delete", tenant="bert", credential="boss", what="anna", error="EPERM")
has(event="tenant_create", tenant="anna", what="carl containers=pb/*", error="EPERM")
PY
