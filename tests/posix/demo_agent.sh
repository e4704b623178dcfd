#!/usr/bin/env bash
# The demo of the agent at a small size: everything comes back identical, whatever the processor time is; and nothing of it is left
# when it has ended, nor when it was killed half-way.
# usage: demo_agent.sh BUILD
. "$(dirname "$0")/../lib/mount.sh"
need_fuse
need unshare setpriv nsenter ip
unshare --net --pid --fork true 2>/dev/null || skip "no namespaces here"
DEMO=$(cd "$(dirname "$0")/../.." && pwd)/tools/demo-agent
mkdir -p "$T/tmp" "$T/tree/sub"
cp "$(dirname "$0")"/*.sh "$T/tree/"
cp /bin/bash "$T/tree/sub/"
ln -s ../ops.sh "$T/tree/sub/link"
export TMPDIR=$T/tmp
OPTS=("$1" --tree "$T/tree" --size "$(count 8 64)" --rounds 1 ${PENSTOCK_TEST_PROVIDER:+--provider "$PENSTOCK_TEST_PROVIDER"})
links() { ip -br link | wc -l; }
BEFORE=$(links)
nothing_left() { [ -z "$(ls "$TMPDIR")" ] && [ "$(links)" = "$BEFORE" ] && ! grep -q "$TMPDIR" /proc/mounts /proc/[0-9]*/cmdline 2>/dev/null; }

code=0
"$DEMO" "${OPTS[@]}" >"$T/demo.log" 2>&1 || code=$?
[ $code = 0 ] || [ $code = 3 ] || fail "the demo ended with $code"
grep -q "stored by the agent, read by the host, .*: identical" "$T/demo.log" || fail "it did not compare"
grep -q "the server itself cannot read a file" "$T/demo.log" || fail "the server could read"
[ "$(grep -c '^host CPU' "$T/demo.log")" = 4 ] || fail "no figures"
if grep -q "goal for writes is missed" "$T/demo.log"; then want=3; else want=0; fi
[ $code = $want ] || fail "the exit status $code does not say what the demo says"
wait_for 10 nothing_left || fail "something is left: $(ls "$TMPDIR")"

say "killed half-way"
for signal in KILL TERM; do
    "$DEMO" "${OPTS[@]}" >"$T/demo.log" 2>&1 &
    PID=$!
    wait_for 60 grep -q "== 2" "$T/demo.log" || fail "it did not get so far"
    kill -$signal $PID
    wait $PID || true
    wait_for 20 nothing_left || fail "after SIG$signal something is left: $(ls "$TMPDIR"; links)"
done
