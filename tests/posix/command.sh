#!/usr/bin/env bash
# The mount command: what it refuses and with which line, read-only, owner-only, foreground, a second mount of a local store.
. "$(dirname "$0")/../lib/mount.sh"
mnt_setup local
refuses() { # WORD ARGS...: fails quickly, in one line that has the word
    local word=$1 out
    shift
    if out=$(timeout 30 "$PENSTOCK" mount "$@" 2>&1); then fail "mount $* succeeded"; fi
    [ "$(echo "$out" | wc -l)" -eq 1 ] || fail "more than one line: $out"
    [[ $out == *"$word"* ]] || fail "no \"$word\" in: $out"
    say "$out"
}
mkdir "$T/m2"
: >"$T/file"
refuses "not a directory" "local:$T/store" "$T/file"
refuses "No such file" "local:$T/store" "$T/none"
refuses "nothing-here" "local:$T/nothing-here" "$T/m2"
refuses "use" "local:$T/store" "$T/m2" # opened by the first mount
refuses "a mount is there already (penstock umount ends it)" "local:$T/other" "$MNT"
refuses "option" --mount-options nonsense "local:$T/store" "$T/m2"
refuses "127.0.0.1" "penstock://127.0.0.1:1/p/c" "$T/m2"
! grep -qF " $T/m2 " /proc/mounts || fail "a failed mount is in the mount table"
echo kept >"$MNT/f"
mkdir "$MNT/busy"
umnt "$MNT"

mnt "$URL" "$MNT" --read-only
[ "$(cat "$MNT/f")" = kept ]
for try in 'echo x >"$MNT/f"' 'rm "$MNT/f"' 'mkdir "$MNT/d"' 'chmod 600 "$MNT/f"'; do
    if (eval "$try") 2>/dev/null; then fail "read-only, but: $try"; fi
done
umnt "$MNT"

mnt "$URL" "$MNT" --only-owner
[ "$(cat "$MNT/f")" = kept ]
if setpriv --reuid 1000 --regid 1000 --clear-groups cat "$MNT/f" 2>/dev/null; then fail "another user got in"; fi
umnt "$MNT"

say "foreground, SIGINT, exit code"
"$PENSTOCK" mount -f --no-supervisor "$URL" "$MNT" 2>"$T/fg.log" &
pid=$!
wait_for 20 test -e "$MNT/f" || fail "not mounted"
kill -INT "$pid"
wait "$pid" || fail "exit code $? after SIGINT"
! grep -qF " $MNT " /proc/mounts || fail "still mounted"
[ ! -s "$T/fg.log" ] || fail "$(cat "$T/fg.log")"

say "umount of a busy mount fails, lazily it works"
mnt "$URL" "$MNT" --durability fsync
cd "$MNT/busy"
if "$PENSTOCK" umount "$MNT" 2>/dev/null; then fail "unmounted although busy"; fi
echo late >"$MNT/late"
"$PENSTOCK" umount --lazy "$MNT"
cd /
wait_for 20 sh -c "'$PENSTOCK' cat 'local:$T/store?default/default/late' >'$T/late'" || fail "the process did not end"
[ "$(cat "$T/late")" = late ]
if "$PENSTOCK" umount "$T" 2>"$T/err"; then fail "a folder that is no mount was unmounted"; fi
grep -qF "not a mount" "$T/err" || fail "$(cat "$T/err")"
