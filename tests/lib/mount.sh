# For tests on mounts: . tests/lib/mount.sh; then mnt_setup "$1" (local | penstock) gives a mounted, empty container at $MNT.
# PENSTOCK names the command under test, PENSTOCK_TEST_PROVIDER the libfabric provider of its servers, PENSTOCK_TEST_FILTERS
# their filters, separated by spaces; with PENSTOCK_TEST_AGENT the clients reach them through an agent, PENSTOCK_TEST_AGENT_FILTERS are its
# filters. Everything is removed at the end, whatever happens.
set -euo pipefail
# In a mount namespace of its own: a namespace that someone else starts meanwhile would take a copy of our mounts along, and
# keep them alive after the unmount.
if [ -z "${PENSTOCK_TEST_NS:-}" ] && unshare -m true 2>/dev/null; then
    exec env PENSTOCK_TEST_NS=1 unshare -m --propagation private bash "$0" "$@"
fi
PENSTOCK=${PENSTOCK:-penstock}
export PENSTOCK_LOG=${PENSTOCK_LOG:-warn}
T=$(mktemp -d "${TMPDIR:-/tmp}/penstock-test.XXXXXX")
chmod 755 "$T"
MOUNTS=() # folders that are or were mounted
PIDS=()   # processes to end, in this order

# What hangs shows where; for who has a debugger.
stacks() {
    local p
    command -v gdb >/dev/null || return 0
    for p in "${PIDS[@]}"; do
        [ "$(cat "/proc/$p/comm" 2>/dev/null)" = penstock ] || continue
        echo "--- stacks of $(tr '\0' ' ' <"/proc/$p/cmdline")"
        timeout 30 gdb -batch -p "$p" -ex 'thread apply all bt 12' 2>/dev/null </dev/null | grep -E '^(Thread|#)'
    done
}

cleanup() {
    local code=$? m p
    trap - EXIT
    set +e
    cd /
    [ "$code" = 0 ] || [ "$code" = 77 ] || [ "$code" = 130 ] || [ "$code" = 143 ] || stacks
    for m in "${MOUNTS[@]}"; do
        mountpoint -q "$m" 2>/dev/null && { umount "$m" 2>/dev/null || umount -l "$m" 2>/dev/null; }
        # a dead one is no mountpoint for stat(2)
        grep -qF " $m fuse.penstock" /proc/mounts && umount -l "$m"
    done
    for p in "${PIDS[@]}"; do
        kill "$p" 2>/dev/null
        for _ in $(seq 100); do kill -0 "$p" 2>/dev/null || break; sleep 0.1; done
        kill -9 "$p" 2>/dev/null
    done
    # a sanitizer's finding in a process that runs in the background
    if grep -qsE 'ERROR: (Address|Leak)Sanitizer|WARNING: ThreadSanitizer|runtime error:' "$T"/*.log; then code=1; fi
    if [ "$code" -ne 0 ] && [ "$code" -ne 77 ]; then
        for f in "$T"/*.log; do [ -s "$f" ] && { echo "--- $(basename "$f")"; tail -40 "$f"; }; done
    fi
    rm -rf "$T"
    exit "$code"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

say() { echo "# $*"; }
fail() { echo "FAILED: $*" >&2; exit 1; }
skip() { echo "skipped: $*"; exit 77; }
extended() { [ -n "${PENSTOCK_EXTENDED:-}" ]; }
# count DEFAULT EXTENDED
count() { if extended; then echo "$2"; else echo "$1"; fi; }
need() { local c; for c in "$@"; do command -v "$c" >/dev/null || skip "no $c here"; done; }
# wait_for SECONDS COMMAND...: until it succeeds
wait_for() {
    local n=$(($1 * 20)) i
    shift
    for ((i = 0; i < n; i++)); do "$@" >/dev/null 2>&1 && return 0; sleep 0.05; done
    return 1
}
# gone PID: ended, all its threads, so that it holds no lock any more (nobody may have waited for it yet)
gone() { [ ! -e "/proc/$1" ] || { grep -q '^State:.*Z' "/proc/$1/status" && [ "$(ls "/proc/$1/task" | wc -l)" -le 1 ]; }; }
need_fuse() {
    [ "$(id -u)" -eq 0 ] || skip "mounts for several users need root"
    [ -c /dev/fuse ] || skip "this machine has no /dev/fuse"
}

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# serve_store [options]: a server for $T/server-store on $SERVER, in the background: $SERVER_PID. With an agent that is on
# $SERVER, and the server behind it on $BACKEND.
serve_store() {
    local f filters=()
    for f in ${PENSTOCK_TEST_FILTERS:-}; do filters+=(--filter "$f"); done
    "$PENSTOCK" serve --dev "$T/server-store" --listen "${BACKEND:-$SERVER}" --metrics off "${filters[@]}" \
        ${PENSTOCK_TEST_PROVIDER:+--provider "$PENSTOCK_TEST_PROVIDER"} "$@" >>"$T/server.log" 2>&1 &
    SERVER_PID=$!
    PIDS+=("$SERVER_PID")
}

# serve_agent [options]: the agent on $SERVER: $AGENT_PID
serve_agent() {
    local f filters=()
    for f in ${PENSTOCK_TEST_AGENT_FILTERS:-}; do filters+=(--filter "$f"); done
    "$PENSTOCK" serve --role agent --backend "penstock://$BACKEND" --listen "$SERVER" --metrics off "${filters[@]}" \
        ${PENSTOCK_TEST_PROVIDER:+--provider "$PENSTOCK_TEST_PROVIDER"} "$@" >>"$T/agent.log" 2>&1 &
    AGENT_PID=$!
    PIDS=("$AGENT_PID" "${PIDS[@]}")
}

# start_server [options]: a server on a free port with a store of its own: $SERVER (host:port), $SERVER_PID
start_server() {
    SERVER=127.0.0.1:$(free_port)
    BACKEND=${PENSTOCK_TEST_AGENT:+127.0.0.1:$(free_port)}
    mkdir -p "$T/server-store"
    serve_store "$@"
    [ -z "$BACKEND" ] || serve_agent
    wait_for 20 "$PENSTOCK" status "penstock://$SERVER" || fail "the server did not start"
}

# mnt URL DIR [options]: mounts in the background; returns when it works
mnt() {
    local url=$1 dir=$2
    shift 2
    mkdir -p "$dir"
    MOUNTS+=("$dir")
    [[ $url != local:* ]] || set -- --store-options create=1 "$@"
    "$PENSTOCK" mount --log-file "$T/mount.log" "$@" "$url" "$dir"
}

# umnt DIR: unmounts, and waits until its processes are gone (what was written is stored then)
umnt() {
    local pids
    pids=$(mount_pids "$1")
    umount "$1"
    for p in $pids; do wait_for 20 gone "$p" || fail "process $p of $1 is still there after the unmount"; done
}

# mount_pids DIR: supervisor and serving process
mount_pids() {
    local p
    for p in /proc/[0-9]*; do
        tr '\0' '\n' 2>/dev/null <"$p/cmdline" | grep -qxF "$1" && [ "$(readlink "$p/exe" 2>/dev/null)" = "$(readlink -f "$(command -v "$PENSTOCK")")" ] && basename "$p"
    done
    return 0
}

# serving_pid DIR: the serving process alone (its parent is the supervisor); waits for it while there is none
serving_pid() {
    local p all _
    for _ in $(seq 200); do
        all=" $(mount_pids "$1" | tr '\n' ' ')"
        for p in $all; do
            [[ $all == *" $(awk '{print $4}' "/proc/$p/stat" 2>/dev/null || echo none) "* ]] && { echo "$p"; return; }
        done
        sleep 0.1
    done
    fail "nobody serves $1"
}

# mnt_setup local|penstock [mount options]: $URL mounted at $MNT
mnt_setup() {
    local kind=$1
    shift
    need_fuse
    MNT=$T/mnt
    if [ "$kind" = local ]; then
        URL=local:$T/store
    else
        start_server
        URL=penstock://$SERVER/default/default
    fi
    mnt "$URL" "$MNT" "$@"
}
