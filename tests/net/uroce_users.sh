#!/usr/bin/env bash
# Two users of one machine, each with an address of its own: they meet by UDP, and neither maps the other's memory. And
# what is said where the addresses do not fit. UROCE is the holder's program.
. "$(dirname "$0")/../lib/serve.sh"
[ "$(id -u)" -eq 0 ] || exit 77
export PENSTOCK_TEST_PROVIDER=uroce UROCE_HOLDER=$UROCE
OTHER=(setpriv --reuid 65534 --regid 65534 --clear-groups env PENSTOCK_RUN_DIR="$T/other/run")
"${OTHER[@]}" test -x "$PENSTOCK" -a -x "$UROCE" || exit 77
ip addr add 192.0.2.2/24 dev link0
chmod 755 "$T"
mkdir "$T/other" "$T/d"
chmod 700 "$T/other"
chmod 777 "$T/d"
head -c 3000000 /dev/urandom >"$T/other/file"
chown -R 65534:65534 "$T/other"

# The control plane's host is loopback, which the device has not: it does not listen on another address instead.
UROCE_ADDRESS=192.0.2.1 expect 1 timeout 30 "$PENSTOCK" serve --dev "$T/store" --listen 127.0.0.1:0 \
    --metrics off --provider uroce
says "127.0.0.1:0 (data.listen)"
says "uroce does not have this address"

export UROCE_ADDRESS=192.0.2.1
serve --dev "$T/store" --data-listen 192.0.2.1:0 --data-security clear
expect 0 "$PENSTOCK" cp -r "$T/d" "$URL/d"
install -o 65534 -m 600 "$T/run/$CONTROL.token" "$T/other/token"

say "another user without an address of its own"
TOKEN=(--token-file "$T/other/token")
expect 1 "${OTHER[@]}" env -u UROCE_ADDRESS "$PENSTOCK" put "${TOKEN[@]}" "$T/other/file" "$URL/d/none"
says "192.0.2.1: UDP port 4791 is in use"
says "unset: all are taken, loopback too"

say "with one"
OTHER+=(UROCE_ADDRESS=192.0.2.2)
expect 0 "${OTHER[@]}" "$PENSTOCK" put "${TOKEN[@]}" "$T/other/file" "$URL/d/file"
expect 0 "${OTHER[@]}" "$PENSTOCK" get "${TOKEN[@]}" "$URL/d/file" "$T/other/back"
cmp "$T/other/file" "$T/other/back" || fail "other bytes came back"

# Of the memory files that a process maps: the inodes.
memory() { awk '/memfd:/ { print $5 }' "/proc/$1/maps" | sort -u; }
# meets COMMAND...: while it runs: WAYS, those of its queue pairs; SHARED, the most memory files in common with the
# server.
meets() {
    local pid n
    "$@" >"$T/bench.log" 2>&1 &
    pid=$!
    SHARED=0
    : >"$T/ways"
    while kill -0 "$pid" 2>/dev/null; do
        "$UROCE" stat --json "$pid" 2>/dev/null | grep -oE '"port": *"[a-z]+"' >>"$T/ways" || true
        n=$(comm -12 <(memory "$DAEMON") <(memory "$pid" 2>/dev/null) | wc -l)
        [ "$n" -le "$SHARED" ] || SHARED=$n
        sleep 0.1
    done
    wait "$pid" || fail "$*: $(cat "$T/bench.log")"
    WAYS=$(sort -u "$T/ways")
}
BENCH=("$PENSTOCK" bench -w -t 3 -s 64K --file-size 4M "${TOKEN[@]}" "$URL/d")

meets "${OTHER[@]}" "${BENCH[@]}"
[[ $WAYS == *udp* && $WAYS != *shm* ]] || fail "another user's connections go by: $WAYS"
[ "$SHARED" = 0 ] || fail "another user and the server have $SHARED memory files in common"
say "the same user, who shows that this would be seen"
chown 0 "$T/other/token"
meets "${BENCH[@]}"
[[ $WAYS == *shm* ]] || fail "the same user's connections go by: $WAYS"
[ "$SHARED" -gt 0 ] || fail "the same user and the server have no memory in common"
drain
