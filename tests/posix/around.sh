#!/usr/bin/env bash
# Who writes a file anew goes around the kernel's pages: what others on the same mount see of it, and what is durable.
. "$(dirname "$0")/../lib/mount.sh"
mnt_setup penstock --durability fsync
python3 "$(dirname "$0")/around.py" "$MNT" "$(count 3 30)"
syncs() { "$PENSTOCK" status --metrics "penstock://$SERVER" | awk '$1 == "store_syncs_total" {print $2}'; }
for flags in os.O_TRUNC os.O_APPEND; do
    before=$(syncs)
    python3 -c "
import os
fd = os.open('$MNT/f', os.O_WRONLY | $flags)
for _ in range(50):
    os.pwritev(fd, [b'durable'], 0, os.RWF_DSYNC)"
    [ "$(syncs)" -ge $((before + 50)) ] || fail "writes with RWF_DSYNC ($flags) were answered before they were durable"
done
say "what was just closed can be mapped"
python3 - "$MNT/map" "$(count 300 5000)" <<'P'
import mmap, os, sys
path, rounds = sys.argv[1], int(sys.argv[2])
for i in range(rounds):
    with open(path, "wb") as f:
        f.write(b"round %06d" % i)
    with open(path, "rb") as f, mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as m:
        assert m[:] == b"round %06d" % i
P
umnt "$MNT"
