#!/usr/bin/env bash
# What training does to a mount: checkpoints saved by several writers, mapped loads by several readers (users.md A48, A44), many
# small files in random order by several workers (A45), and more direct I/O at once than the server has buffers (A47). Rates
# are printed, not judged: bench/ does that.
. "$(dirname "$0")/../lib/mount.sh"
need fio
here=$(cd "$(dirname "$0")" && pwd)
mnt_setup "$1"
python3 "$here/training.py" "$MNT" "$(count 24 1024)" "$(count 400 20000)"

jobs=$(count 32 128) runtime=$(count 3 60)
say "fio: $jobs jobs of direct 4 MiB writes and reads, $runtime s"
fio --name=storm --directory="$MNT" --ioengine=psync --direct=1 --bs=4m --size=8m --rw=randrw --numjobs="$jobs" --time_based \
    --runtime="$runtime" --group_reporting --output="$T/fio.log" || fail "fio: $(cat "$T/fio.log")"
grep -E 'READ:|WRITE:' "$T/fio.log"
umnt "$MNT"
