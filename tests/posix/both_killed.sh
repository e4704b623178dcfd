#!/usr/bin/env bash
# Supervisor and serving process are killed right after one another, idle and under load, with pages that only the kernel
# has: both end, whatever the serving process was about to do to its mount, and the mount point is dead or gone.
. "$(dirname "$0")/../lib/mount.sh"
need_fuse
mnt_setup "$1"
umnt "$MNT"

# Load on the mount until it is dead. It maps pages, which the unmount in order has to write.
load() {
    exec python3 - "$MNT" <<'P'
import mmap, os, sys
os.chdir(sys.argv[1]) # stays on it when it has been unmounted
try:
    fd = os.open("mapped", os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, 8 << 20)
    m = mmap.mmap(fd, 8 << 20)
    i = 0
    while True:
        for at in range(0, 8 << 20, 4096):
            m[at] = i & 255
        with open(f"f{i % 50}", "wb") as f:
            f.write(b"x" * 100000)
        os.listdir(".")
        i += 1
except OSError:
    pass
P
}

# The kernel's word: the file system of the mount point answers ENOTCONN, or is none of ours any more.
dead() { ! stat "$MNT" >/dev/null 2>&1 || ! grep -qF " $MNT fuse.penstock" /proc/self/mounts; }

none_left() { [ -z "$(mount_pids "$MNT")" ]; }

# Seconds between the two kills: the serving process is met at each step of its unmount
delays=(0 0 0.001 0.002 0.003 0.005 0.008 0.012 0.02 0.04)
for i in $(seq "$(count 20 200)"); do
    mnt "$URL" "$MNT"
    served=$(serving_pid "$MNT")
    sup=$(awk '{print $4}' "/proc/$served/stat")
    worker=
    if [ $((i % 2)) -eq 0 ]; then
        load >/dev/null 2>&1 &
        worker=$!
        sleep 0.2
    fi
    python3 - "$sup" "$served" "${delays[$((i / 2 % ${#delays[@]}))]}" <<'P'
import os, signal, sys, time
sup, served, delay = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
os.kill(sup, signal.SIGKILL)
time.sleep(delay)
try:
    os.kill(served, signal.SIGKILL)
except ProcessLookupError:
    pass
P
    for p in "$sup" "$served"; do
        wait_for 5 gone "$p" || {
            umount -l "$MNT" # whoever asked it for anything, as the end of this script does, would hang
            fail "round $i: process $p is left: $(cat /proc/"$p"/task/*/stack 2>&1 | head -30)"
        }
    done
    wait_for 5 none_left || fail "round $i: left: $(mount_pids "$MNT")"
    dead || fail "round $i: the mount point answers"
    [ -z "$worker" ] || wait_for 10 gone "$worker" || fail "round $i: a program hangs on the dead mount"
    ! grep -qF " $MNT fuse.penstock" /proc/self/mounts || umount -l "$MNT"
done
