#!/bin/sh
# The embedded engine in process beside fio's io_uring on the same file system, at the same depth and caching, in turn.
#   bench/local.sh BUILD_DIR [SCRATCH_DIR] [SIZE_MIB] [SECONDS]
# Goals: 4 KiB random read >= 80 % of fio, 1 MiB >= 90 %.
set -eu

build=$1
dir=$(mktemp -d "${2:-/var/tmp}/penstock-bench-XXXXXX")
size=${3:-512}
seconds=${4:-2}
trap 'rm -rf "$dir"' EXIT INT TERM

if ! command -v fio >/dev/null; then
    echo "fio is not installed: only our own figures"
    "$build/bench/bench_local" "$dir/store" "size=$size" "seconds=$seconds"
    exit 0
fi

# name, rw, block size, depth, direct, warm: the file is read before
one_fio() {
    [ "$6" = 0 ] || cat "$dir/fio.0.0" >/dev/null 2>&1 || true
    limit="--time_based --runtime=$seconds"
    case $1 in write-1m | overwrite-1m | read-1m-cold) limit= ;; esac
    fio --name=fio --directory="$dir" --filename_format='fio.$jobnum.$filenum' --size="${size}m" --rw="$2" --bs="$3" \
        --iodepth="$4" --direct="$5" --ioengine=io_uring --invalidate=$((1 - $6)) --randrepeat=1 --end_fsync=1 \
        --output-format=json $limit >"$dir/$1.json" 2>"$dir/$1.err" || { cat "$dir/$1.err" >&2; exit 1; }
}

"$build/bench/bench_local" "$dir/store" "size=$size" "seconds=$seconds" >"$dir/ours"
rm -rf "$dir/store"
one_fio write-1m write 1m 8 1 0
one_fio overwrite-1m write 1m 8 1 0
one_fio read-1m-cold read 1m 8 0 0
one_fio read-1m-warm read 1m 8 0 1
one_fio randread-4k-warm randread 4k 32 0 1
one_fio randread-4k-cold randread 4k 32 0 0
one_fio randwrite-4k randwrite 4k 32 0 1

/usr/bin/python3 - "$dir" <<'PY'
import json, sys, os
d = sys.argv[1]
print("%-20s %12s %12s %7s   %s" % ("", "ours MB/s", "fio MB/s", "ratio", "core-s/GiB ours, fio"))
for line in open(os.path.join(d, "ours")):
    name, _, _, mb, _, core, _ = line.split()
    job = json.load(open(os.path.join(d, name + ".json")))["jobs"][0]
    io = max(job["read"], job["write"], key=lambda x: x["io_bytes"])
    rate = io["bw_bytes"] / 1e6
    seconds = job["job_runtime"] / 1000
    fio_core = (job["usr_cpu"] + job["sys_cpu"]) / 100 * seconds / (io["io_bytes"] / 2**30)
    print("%-20s %12.1f %12.1f %6.0f%%   %s, %.3f" % (name, float(mb), rate, float(mb) / rate * 100, core, fio_core))
PY
