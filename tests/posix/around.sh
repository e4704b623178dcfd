#!/usr/bin/env bash
# Who writes a file anew goes around the kernel's pages: what others on the same mount see of it.
. "$(dirname "$0")/../lib/mount.sh"
mnt_setup penstock
python3 "$(dirname "$0")/around.py" "$MNT"
umnt "$MNT"
