#!/usr/bin/env bash
# A store and a client in network namespaces of their own:
#
#     store: 10.77.0.1  (s$$) ---veth--- (c$$)  10.77.0.2 :client
#
# Control by mutual TLS, data in clear text because the configuration says so; who has no certificate gets nothing.
. "$(dirname "$0")/../lib/serve.sh"
P=$PENSTOCK
[ "$(id -u)" = 0 ] || { echo "skipped: namespaces need root"; exit 77; }
ip netns add "ps-s$$" 2>/dev/null || { echo "skipped: no network namespaces here"; exit 77; }
forget() { ip netns del "ps-s$$" 2>/dev/null; ip netns del "ps-c$$" 2>/dev/null; cleanup; }
trap forget EXIT
ip netns add "ps-c$$"
ip link add "s$$" netns "ps-s$$" type veth peer name "c$$" netns "ps-c$$"
s() { ip netns exec "ps-s$$" "$@"; }
c() { ip netns exec "ps-c$$" "$@"; }
s ip addr add 10.77.0.1/24 dev "s$$"; s ip link set "s$$" up; s ip link set lo up
c ip addr add 10.77.0.2/24 dev "c$$"; c ip link set "c$$" up; c ip link set lo up

say "certificates, and a configuration file"
chmod 755 "$T"
"$P" tls init "$T/tls" --server-name 10.77.0.1 --client trainer >/dev/null
"$P" tls init "$T/other" --server-name 10.77.0.1 --client trainer >/dev/null
mkdir "$T/store"
chown -R nobody "$T/tls" "$T/store"
cat >"$T/penstock.yaml" <<YAML
store: {url: 'local:$T/store', options: [create=1]}
pools:
  - label: ml
    containers: [{label: set, uid: 1000, gid: 1000}]
control:
  listen: ['10.77.0.1:7440', '127.0.0.1:7440']
  tls: {ca: $T/tls/ca.pem, cert: $T/tls/server.pem, key: $T/tls/server.key}
data: {listen: '10.77.0.1:7450', shards: 2, buffer_memory: 32M, provider: ${PENSTOCK_TEST_PROVIDER:-auto}}
credentials:
  - {name: trainers, cn: trainer, uid: 1000, gid: 1000}
metrics: {listen: 'off'}
user: nobody
YAML
unset PENSTOCK_RUN_DIR
export PENSTOCK_RUN_DIR=$T/store/run # nobody makes it
expect 2 s "$P" serve -c "$T/penstock.yaml" && says "data.security: clear" && says "line 8"
sed -i 's/shards: 2/security: clear, shards: 2/' "$T/penstock.yaml"
s "$P" serve -c "$T/penstock.yaml" 2>"$T/daemon.log" &
DAEMON=$!
PIDS+=("$DAEMON")
URL=penstock://10.77.0.1/ml/set
for _ in $(seq 200); do grep -q "control on 127.0.0.1" "$T/daemon.log" && break; sleep 0.05; done
unset PENSTOCK_RUN_DIR
[ "$(stat -c %U "/proc/$(pgrep -P "$DAEMON" 2>/dev/null || echo "$DAEMON")")" = nobody ] || fail "it does not run as nobody"

say "only the right certificate lets in"
C="--ca $T/tls/ca.pem --cert $T/tls/trainer.pem --key $T/tls/trainer.key"
expect 0 c "$P" df $C "$URL"
c "$P" ls --timeout 3000 "$URL" >/dev/null 2>&1 && fail "let in without a certificate"
c "$P" ls --timeout 3000 --insecure "$URL" >/dev/null 2>&1 && fail "let in by plain text"
c "$P" ls --timeout 3000 --ca "$T/other/ca.pem" --cert "$T/tls/trainer.pem" --key "$T/tls/trainer.key" "$URL" \
    >/dev/null 2>&1 && fail "the client took a server of another CA"
c "$P" ls --timeout 3000 --ca "$T/tls/ca.pem" --cert "$T/other/trainer.pem" --key "$T/other/trainer.key" "$URL" \
    >/dev/null 2>&1 && fail "let in with a certificate of another CA"
expect 0 c "$P" status $C "$URL" --json
python3 - "$T/out" <<'PY'
import json, os, sys
facts = json.load(open(sys.argv[1]))["facts"]
assert facts["control.security"] == "tls", facts
assert facts["data.security"] == "clear", facts
assert facts["data.provider"] == os.environ.get("PENSTOCK_TEST_PROVIDER", facts["data.provider"]), facts
assert facts["data.address"] == ["10.77.0.1:7450", "10.77.0.1:7451"], facts
PY
expect 5 c "$P" pool create $C penstock://10.77.0.1/more

say "a tree over the wire and back, by both shards"
c "$P" cp -r $C /usr/include/linux "$URL/linux" --json >/dev/null
c "$P" cp -r $C "$URL/linux" "$T/back" --json >/dev/null
diff -r /usr/include/linux "$T/back"
grep -c . "$T/daemon.log" >/dev/null

say "drain"
kill -TERM "$(pgrep -P "$DAEMON" 2>/dev/null || echo "$DAEMON")"
code=0; wait "$DAEMON" || code=$?
[ "$code" = 0 ] || fail "the daemon ended with $code: $(cat "$T/daemon.log")"
expect 0 "$P" check "$T/store"
say "passed"
