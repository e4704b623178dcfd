#!/usr/bin/env bash
# The link between a mount and its server goes down under a copy and comes back: the copy goes on by itself, with the right
# bytes, and a mount that was idle meanwhile answers (users.md A22, A01). Two namespaces:
#
#     server 10.77.0.1 ---veth--- 10.77.0.2 client with the mount
. "$(dirname "$0")/../lib/mount.sh"
need_fuse
ip netns add "pl-s$$" 2>/dev/null || skip "no network namespaces here"
forget() {
    local code=$? m
    set +e
    for m in "${MOUNTS[@]}"; do umount -l "$m" 2>/dev/null; done
    ip netns del "pl-c$$"
    ip netns del "pl-s$$"
    (exit $code)
    cleanup
}
trap forget EXIT
ip netns add "pl-c$$"
ip link add "s$$" netns "pl-s$$" type veth peer name "c$$" netns "pl-c$$"
# not `ip netns exec`: a mount made there would be in a mount namespace of its own
s() { nsenter --net=/run/netns/pl-s$$ "$@"; }
c() { nsenter --net=/run/netns/pl-c$$ "$@"; }
s ip addr add 10.77.0.1/24 dev "s$$"; s ip link set "s$$" up; s ip link set lo up
c ip addr add 10.77.0.2/24 dev "c$$"; c ip link set "c$$" up; c ip link set lo up
down=$(count "${PENSTOCK_LINK_DOWN_S:-5}" 60)

mkdir "$T/store"
export PENSTOCK_RUN_DIR=$T/run
token=$(head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \n')
printf %s "$token" >"$T/token"
chmod 600 "$T/token"
nsenter --net="/run/netns/pl-s$$" "$PENSTOCK" serve --dev "$T/store" --listen 10.77.0.1:7440 --data-listen 10.77.0.1:7450 --insecure --data-security clear \
    --credential "name=test,token_file=$T/token,any_uid,admin" --metrics off \
    ${PENSTOCK_TEST_PROVIDER:+--provider "$PENSTOCK_TEST_PROVIDER"} >>"$T/server.log" 2>&1 &
SERVER_PID=$!
PIDS+=("$SERVER_PID")
URL="penstock://10.77.0.1:7440/default/default"
O="--insecure --token-file $T/token"
wait_for 20 c "$PENSTOCK" df $O "$URL" || fail "the server did not start"
MNT=$T/mnt IDLE=$T/idle
mkdir "$MNT" "$IDLE"
MOUNTS+=("$MNT" "$IDLE")
c "$PENSTOCK" mount --log-file "$T/mount.log" $O "$URL" "$MNT"
c "$PENSTOCK" mount --log-file "$T/mount.log" $O "$URL" "$IDLE"

say "the link is down for $down s under two copies"
head -c $((24 << 20)) /dev/urandom >"$T/data"
echo idle >"$IDLE/small"
cat "$IDLE/small" >/dev/null
(for i in $(seq 1000); do
    dd if="$T/data" of="$MNT/copy" bs=1M conv=fsync status=none || exit 1
    cmp "$T/data" "$MNT/copy" || exit 1
    [ -e "$T/stop" ] && exit 0
done) &
copy=$!
(for i in $(seq 100000); do
    echo "$i" >>"$MNT/log" && mv "$MNT/log" "$MNT/log2" && mv "$MNT/log2" "$MNT/log" || exit 1
    [ -e "$T/stop" ] && { echo "$i" >"$T/lines"; exit 0; }
done) &
names=$!
sleep 1
s ip link set "s$$" down
sleep "$down"
s ip link set "s$$" up
up=$(date +%s%N)
touch "$T/stop"
cat "$IDLE/small" >/dev/null
say "the idle mount answers after $((($(date +%s%N) - up) / 1000000)) ms"
wait $copy || fail "the copy did not go on: see above"
say "the copy is done after $((($(date +%s%N) - up) / 1000000)) ms"
wait $names || fail "changes of names did not go on"
cmp "$T/data" "$IDLE/copy"
seq "$(cat "$T/lines")" | cmp - "$MNT/log" || fail "appends were lost, or happened twice"
say "$(cat "$T/lines") appends, each once"
