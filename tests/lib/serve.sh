# For tests with a daemon: . tests/lib/serve.sh; serve FLAGS... starts one and sets URL, CONTROL, METRICS, DAEMON.
# PENSTOCK names the command, PENSTOCK_TEST_PROVIDER the libfabric provider of the daemons. Everything is removed at the end, whatever happens.
set -euo pipefail
PENSTOCK=${PENSTOCK:-penstock}
T=$(mktemp -d "${TMPDIR:-/tmp}/penstock-test.XXXXXX")
export PENSTOCK_RUN_DIR=$T/run
PIDS=()

cleanup() {
    local code=$? p
    trap - EXIT
    set +e
    for p in "${PIDS[@]}"; do
        kill "$p" 2>/dev/null
        for _ in $(seq 150); do kill -0 "$p" 2>/dev/null || break; sleep 0.1; done
        kill -9 "$p" 2>/dev/null
    done
    if grep -qsE 'ERROR: (Address|Leak)Sanitizer|WARNING: ThreadSanitizer|runtime error:' "$T"/*.log; then code=1; fi
    if [ "$code" -ne 0 ] && [ "$code" -ne 77 ]; then
        for f in "$T"/*.log; do [ -s "$f" ] && { echo "--- $(basename "$f")"; tail -40 "$f"; }; done
    fi
    chmod -R u+rwx "$T"
    rm -rf "$T"
    exit "$code"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

say() { echo "# $*"; }
fail() { echo "FAILED: $*" >&2; exit 1; }
# expect CODE COMMAND...: it ends with this exit code; its standard error is in $T/err.
expect() {
    local want=$1 code=0
    shift
    "$@" >"$T/out" 2>"$T/err" || code=$?
    [ "$code" = "$want" ] || fail "$* ended with $code, not $want: $(cat "$T/err")"
}
says() { grep -qF -- "$1" "$T/err" || fail "\"$(cat "$T/err")\" does not say \"$1\""; }

# Waits for "control on ... port N" and the metrics port in the log.
serve() {
    local log=$T/daemon${#PIDS[@]}.log
    : >"$log"
    "$PENSTOCK" serve --listen 127.0.0.1:0 --metrics 127.0.0.1:0 \
        ${PENSTOCK_TEST_PROVIDER:+--provider "$PENSTOCK_TEST_PROVIDER"} "$@" >"$log.out" 2>"$log" &
    DAEMON=$!
    PIDS+=("$DAEMON")
    for _ in $(seq 300); do
        CONTROL=$(sed -n 's/.*control on 127.0.0.1 port //p' "$log")
        METRICS=$(sed -n 's/.*metrics on port //p' "$log")
        [ -n "$CONTROL" ] && [ -n "$METRICS" ] && break
        kill -0 "$DAEMON" 2>/dev/null || fail "the daemon did not start: $(cat "$log")"
        sleep 0.05
    done
    SERVER=penstock://127.0.0.1:$CONTROL
    URL=$SERVER/default/default
    LOG=$log
}
# Ends the last daemon; it must end with 0.
drain() {
    local code=0
    kill -TERM "$DAEMON"
    wait "$DAEMON" || code=$?
    [ "$code" = 0 ] || fail "the daemon ended with $code after SIGTERM"
}
# METRICS_TOKEN is the page's token, where it has one.
metric() { curl -sf ${METRICS_TOKEN:+-H "Authorization: Bearer $METRICS_TOKEN"} "http://127.0.0.1:$METRICS/metrics" | awk -v k="$1" '$1 == k { print $2 }'; }
