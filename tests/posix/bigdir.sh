#!/usr/bin/env bash
# A large directory is listed with flat memory, in linear time, exactly, while creates run (users.md A40).
. "$(dirname "$0")/../lib/mount.sh"
mnt_setup "$1" --durability fsync
n=$(count 20000 200000)
pid=$(serving_pid "$MNT")
rss() { awk '/^VmRSS/ {print $2}' "/proc/$pid/status"; }
python3 - "$MNT" "$n" <<'P'
import os, sys
mnt, n = sys.argv[1], int(sys.argv[2])
os.makedirs(f"{mnt}/big")
fd = os.open(f"{mnt}/big", os.O_RDONLY)
for i in range(n):
    os.mknod(f"e{i}", 0o100644, dir_fd=fd)
P
before=$(rss)
[ "$(ls -f "$MNT/big" | wc -l)" -eq $((n + 2)) ]
after=$(rss)
say "resident before $before KiB, after a listing of $n names $after KiB"
[ $((after - before)) -lt 65536 ] || fail "the listing took memory"
(for i in $(seq 500); do : >"$MNT/big/extra$i"; rm "$MNT/big/extra$i"; done) &
for round in 1 2 3; do
    ls -f "$MNT/big" | grep '^e[0-9]*$' | sort | uniq -c | awk -v n="$n" '$1 != 1 {bad = 1} END {exit bad || NR != n}' ||
        fail "names are missing or there twice"
done
wait $!
find "$MNT/big" -type f -name 'e*' -size 0 | wc -l | grep -qx "$n"
umnt "$MNT"
