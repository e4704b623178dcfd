#!/usr/bin/env bash
# kill -9 at a random moment of the server (or the agent), of the mount's serving process or of the program itself, while programs
# work on the mount. Afterwards everything that was answered is there, and nothing else: files are prefixes of what was written,
# git and sqlite find their repositories whole, with every commit that they had reported. Under a killed server or agent the
# programs do not even notice. VICTIMS, WORKLOADS: some of them.
. "$(dirname "$0")/../lib/mount.sh"
SEED=${PENSTOCK_SEED:-$RANDOM}
echo "seed $SEED: PENSTOCK_SEED=$SEED repeats it"
RANDOM=$SEED
need git fio python3 sqlite3
mnt_setup penstock
work=$(dirname "$0")/kill_work.py
export HOME=$T GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
mkdir "$T/tree"
python3 "$work" tree "$T/tree"

# hit VICTIM: kills it
hit() {
    case $1 in
    server)
        kill -9 "$SERVER_PID"
        wait "$SERVER_PID" 2>/dev/null || true
        sleep "0.$((RANDOM % 8))"
        serve_store ;;
    agent)
        kill -9 "$AGENT_PID"
        wait "$AGENT_PID" 2>/dev/null || true
        sleep "0.$((RANDOM % 8))"
        serve_agent ;;
    mount) kill -9 "$(serving_pid "$MNT")" ;;
    client) kill -9 -- "-$client" 2>/dev/null || true ;;
    esac
}

# one WORKLOAD VICTIM NUMBER
one() {
    local dir=$MNT/$1-$2-$3 code=0 p
    mkdir "$dir"
    setsid python3 "$work" "$1" "$dir" "$T/tree" "$T/said" >"$T/work.out" 2>&1 &
    client=$!
    sleep "$((RANDOM % 2)).$((RANDOM % 10))"
    hit "$2"
    wait "$client" 2>/dev/null || code=$?
    [[ $2 != server && $2 != agent ]] || [ "$code" = 0 ] || fail "$1 noticed that the $2 was killed: $(tail -5 "$T/work.out")"
    wait_for 60 ls "$dir" || fail "$1, $2 killed: the mount does not answer"
    python3 "$work" "check-$1" "$dir" "$T/tree" "$T/said" >"$T/check.out" 2>&1 ||
        fail "$1, $2 killed, round $3: $(tail -20 "$T/check.out")$(tail -5 "$T/work.out")"
    tail -1 "$T/check.out"
    rm -rf "$dir" "$T/said"
    if [ "$2" = mount ]; then # a mount whose process dies every moment is given up
        umnt "$MNT"
        mnt "$URL" "$MNT"
    fi
}

for w in ${WORKLOADS:-cp git fio blocks sqlite}; do
    for v in ${VICTIMS:-server mount client}; do
        for i in $(seq "$(count 1 20)"); do
            extended || ((RANDOM % 3 == 0)) || continue # a third of them, others at the next seed
            one "$w" "$v" "$i"
        done
    done
done
umnt "$MNT"
for p in ${AGENT_PID:-} "$SERVER_PID"; do
    kill "$p"
    wait_for 20 gone "$p"
done
"$PENSTOCK" check "$T/server-store"
