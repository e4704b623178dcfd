#!/usr/bin/env bash
# Every operation gives the same results and errors as on the file system below /tmp.
. "$(dirname "$0")/../lib/mount.sh"
mnt_setup "$1" --mount-options dev,suid --durability fsync
mkdir "$T/ref" "$MNT/t"
python3 "$(dirname "$0")/ops_compare.py" "$T/ref" "$MNT/t"
umnt "$MNT"
