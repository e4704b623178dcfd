#!/usr/bin/env bash
# The credential of clients is taken away while they work: mounts and commands get an error at once instead of at the end of their
# time-outs, what was not stored is told, and they work again by themselves when the credential is made again.
. "$(dirname "$0")/../lib/mount.sh"
need_fuse
SERVER=127.0.0.1:$(free_port) AGENT=127.0.0.1:$(free_port)
CRYPT='crypt:key_command=printf${IFS}%064d${IFS}7'
mkdir "$T/store"
cat >"$T/penstock.yaml" <<YAML
store: {url: "local:$T/store", options: [create=1, size=536870912]}
pools: [{label: pa, mode: 777, containers: [{label: c, mode: 777}, {label: d, mode: 777}, {label: e, mode: 777}]}]
data: {shards: 1, buffer_memory: 32M}
tenants_file: $T/kept
YAML
"$PENSTOCK" serve --config "$T/penstock.yaml" --listen "$SERVER" --metrics off >>"$T/server.log" 2>&1 &
PIDS+=($!)
wait_for 20 "$PENSTOCK" status "penstock://$SERVER" || fail "the server did not start"
admin() { local what=$1 verb=$2; shift 2; "$PENSTOCK" "$what" "$verb" "penstock://$SERVER" "$@" >/dev/null 2>"$T/err" || fail "$(cat "$T/err")"; }
head -c 24 /dev/urandom | base64 >"$T/anna.token"
chmod 600 "$T/anna.token"
let_in() { admin credential create anna tenant=anna any_uid=true origin=true --from "$T/anna.token"; }
admin tenant create anna 'containers=pa/*' buffer_memory=16M
let_in
head -c 3000000 /dev/urandom >"$T/f"

# soon COMMAND...: it fails, and not by a time-out (two minutes of a mount, half of one of a command); its code is in $CODE
soon() {
    local start=$SECONDS
    CODE=0
    LC_ALL=C timeout -k 1 60 "$@" >/dev/null 2>"$T/err" || CODE=$?
    [ "$CODE" != 0 ] || fail "$* worked without a credential"
    [ $((SECONDS - start)) -lt 20 ] || fail "$* took $((SECONDS - start)) s"
}
refused() { soon "$@"; grep -qE "Permission denied|Input/output error" "$T/err" || fail "$*: $(cat "$T/err")"; }
# ends PID: within the same time
ends() { wait_for 20 gone "$1" || fail "process $1 hangs"; }
# Writes without a sync until it is told that something was not stored; then $1.told has what it was told.
write_on() {
    python3 -c '
import errno, os, sys, time
fd, n = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR), 0
block = os.urandom(1 << 18)
try:
    while n < 6000:
        os.pwrite(fd, block, n % 100 << 18)
        n += 1
        if n == 8:
            open(sys.argv[2] + ".begun", "w").close()
        time.sleep(0.01)
    os.fsync(fd)
    os.close(fd)
    what = "nothing"
except OSError as e:
    what = errno.errorcode[e.errno]
open(sys.argv[2] + ".told", "w").write(what)
' "$1" "$2" &
    WRITER=$!
    wait_for 20 test -e "$2.begun" || fail "nothing is written to $1"
}
told() { ends "$1"; [[ $(cat "$2.told") =~ ^(EACCES|EIO)$ ]] || fail "it was told: $(cat "$2.told")"; }

say "two mounts, one of them encrypted, and commands, at work"
mnt "penstock://$SERVER/pa/c" "$T/c" --token-file "$T/anna.token"
mnt "penstock://$SERVER/pa/d" "$T/d" --token-file "$T/anna.token" --filter "$CRYPT" --log-file "$T/mount-d.log"
cp "$T/f" "$T/c/f"
cp "$T/f" "$T/d/f"
sync "$T/c/f" "$T/d/f"
exec 8<"$T/c/f"
write_on "$T/c/w" "$T/wc"
WC=$WRITER
write_on "$T/d/w" "$T/wd"
WD=$WRITER
mkfifo "$T/in"
"$PENSTOCK" put --token-file "$T/anna.token" - "penstock://$SERVER/pa/c/put" <"$T/in" >"$T/put.log" 2>&1 &
PUT=$!
exec 9>"$T/in"
head -c 1000000 /dev/zero >&9

say "the credential is taken away"
admin credential delete anna
told $WC "$T/wc"
told $WD "$T/wd"
head -c 40000000 /dev/zero >&9 2>/dev/null || true
exec 9>&-
ends $PUT
CODE=0
wait $PUT || CODE=$?
[ $CODE = 5 ] || fail "put ended with $CODE: $(cat "$T/put.log")"
for m in c d; do
    refused dd if="$T/$m/f" iflag=direct of=/dev/null bs=65536
    refused ls "$T/$m/none"
    refused mkdir "$T/$m/dir"
    refused dd if=/dev/zero of="$T/$m/new" bs=4096 count=1 conv=fsync
    refused sync -f "$T/$m"
done
for log in mount mount-d; do
    [ "$(grep -c 'token-file.*operations fail until the server lets this client in again' "$T/$log.log")" = 1 ] || fail "$log.log does not say it once"
done

say "it is made again"
let_in
for m in c d; do
    wait_for 20 ls "$T/$m/f" || fail "the mount does not come back"
    cmp "$T/f" "$T/$m/f"
    rm -f "$T/$m/w"
    timeout 60 cp "$T/f" "$T/$m/w"
    timeout 60 sync "$T/$m/w"
done
cmp "$T/f" - <&8 || fail "what was open before is not"
exec 8<&-

say "taken away once more, with its tenant: unmounts end too"
dd if=/dev/zero of="$T/c/late" bs=65536 count=20 2>/dev/null
admin tenant delete anna
refused ls "$T/c/none"
for m in c d; do
    pids=$(mount_pids "$T/$m")
    start=$SECONDS
    timeout 60 "$PENSTOCK" umount "$T/$m" 2>"$T/err" || grep -q . "$T/err" || fail "umount says nothing"
    for p in $pids; do ends "$p"; done
    [ $((SECONDS - start)) -lt 20 ] || fail "the unmount took $((SECONDS - start)) s"
done

say "an agent whose server refuses it: its hosts are told, and go on when it is let in"
admin tenant create anna 'containers=pa/*' buffer_memory=16M
let_in
"$PENSTOCK" serve --role agent --backend "penstock://$SERVER" --backend-token-file "$T/anna.token" --listen "$AGENT" --metrics off >>"$T/agent.log" 2>&1 &
PIDS=($! "${PIDS[@]}")
wait_for 20 "$PENSTOCK" status "penstock://$AGENT" || fail "the agent did not start"
mnt "penstock://$AGENT/pa/e" "$T/e" --log-file "$T/mount-e.log"
cp "$T/f" "$T/e/f"
sync "$T/e/f"
write_on "$T/e/w" "$T/we"
admin credential delete anna
told $WRITER "$T/we"
refused dd if="$T/e/f" iflag=direct of=/dev/null bs=65536
refused mkdir "$T/e/dir"
soon "$PENSTOCK" ls "penstock://$AGENT/pa/e"
let_in
wait_for 20 mkdir "$T/e/dir" || fail "the mount does not come back: $(ls "$T/e" 2>&1)"
cmp "$T/f" "$T/e/f"
timeout 60 cp "$T/f" "$T/e/g"
umnt "$T/e"
"$PENSTOCK" cat "penstock://$SERVER/pa/e/g" | cmp - "$T/f"
