#!/usr/bin/env bash
# fio verifies what it wrote through every engine, cached and direct, beside a buffered reader (users.md A37).
. "$(dirname "$0")/../lib/mount.sh"
need fio
mnt_setup "$1"
size=$(count 4m 256m)
# Over filters each 4 KiB that is synced is a chunk of 1 MiB read, transformed and written.
[ -z "${PENSTOCK_TEST_FILTERS:-}${PENSTOCK_FILTERS:-}" ] || size=$(count 4m 16m)
run() {
    say "$*"
    fio --name=v --directory="$MNT" --size="$size" --verify=crc32c --verify_fatal=1 --end_fsync=1 --verify_state_save=0 --output="$T/fio.log" "$@" || fail "fio $*"
    rm -f "$MNT"/v.*
}
for direct in 0 1; do
    run --ioengine=psync --rw=randwrite --bs=4k --direct=$direct
    run --ioengine=psync --rw=write --bs=1m --direct=$direct
    run --ioengine=libaio --iodepth=16 --rw=randwrite --bs=4k --direct=$direct --numjobs=2 --group_reporting
    run --ioengine=libaio --iodepth=8 --rw=write --bs=1m --direct=$direct
    if fio --name=probe --ioengine=io_uring --filename="$T/probe" --size=4k --bs=4k --rw=write >/dev/null 2>&1; then
        run --ioengine=io_uring --iodepth=16 --rw=randrw --bs=4k --direct=$direct
        run --ioengine=io_uring --iodepth=8 --rw=write --bs=1m --direct=$direct
    else
        say "io_uring is not allowed here"
    fi
done
run --ioengine=psync --rw=randwrite --bsrange=512-70000 --bs_unaligned=1
say "direct writer, buffered reader"
fio --name=d --filename="$MNT/mixed" --size=4m --ioengine=libaio --iodepth=8 --direct=1 --rw=write --bs=64k --output="$T/fio.log"
fio --name=r --filename="$MNT/mixed" --size=4m --ioengine=psync --rw=read --bs=128k --output="$T/fio.log"
python3 - "$MNT/mixed" <<'P'
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_DIRECT)
page = mmap.mmap(-1, 4096)
with open(sys.argv[1], "rb") as f:
    for i in range(200):
        page[:] = bytes([i]) * 4096
        os.pwrite(fd, page, 4096 * (i % 7))
        assert os.pread(f.fileno(), 4096, 4096 * (i % 7)) == bytes([i]) * 4096, f"round {i}: a stale page"
P
umnt "$MNT"
