#!/usr/bin/env bash
# Two mounts of one container: close-to-open (users.md A43), appends (A33), names (A39), shared mappings (A36), locks.
. "$(dirname "$0")/../lib/mount.sh"
mnt_setup penstock
M2=$T/mnt2
mnt "$URL" "$M2"
python3 "$(dirname "$0")/two_mounts.py" "$MNT" "$M2" "$(count 100 1000)" "$(count 500 5000)"

say "set-id bits and capabilities"
for m in "$MNT" "$M2"; do mnt "$URL" "$m-suid" --mount-options suid; done
python3 "$(dirname "$0")/two_mounts_rights.py" "$MNT-suid" "$M2-suid" "$(count 5 100)"

umnt "$MNT-suid"
umnt "$M2-suid"

say "locks are refused, not pretended"
: >"$MNT/lock"
for m in "$MNT" "$M2"; do
    python3 - "$m/lock" <<'P' || fail "a lock was granted on a container that is mounted twice"
import errno, fcntl, sys
f = open(sys.argv[1], "r+")
for lock in (lambda: fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB), lambda: fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB)):
    try:
        lock()
        sys.exit(1)
    except OSError as e:
        assert e.errno == errno.ENOLCK, e
P
done
umnt "$M2"
say "alone again: locks work"
wait_for 20 flock -n "$MNT/lock" true || fail "no lock although the other mount is gone"
say "who waits for a lock when the mount is ended gets an error, and it ends"
flock -F "$MNT/lock" sleep 300 &
PIDS+=($!)
wait_for 20 bash -c "! flock -n '$MNT/lock' true" || fail "the lock is not held"
flock -F "$MNT/lock" true &
waits=$!
PIDS+=($waits)
sleep 0.5
kill -0 "$waits" || fail "the second lock was not waited for"
pids=$(mount_pids "$MNT")
for p in $pids; do
    [[ " $(echo $pids) " != *" $(awk '/^PPid/ {print $2}' "/proc/$p/status") "* ]] && kill "$p" # the supervisor
done
for p in $pids; do wait_for 60 gone "$p" || fail "process $p of the mount is still there"; done
if wait "$waits"; then fail "a lock of a mount that has ended was granted"; fi
