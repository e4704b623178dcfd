#!/usr/bin/python3
"""rdma-core's examples on uroce, unchanged: ibv_devices, ibv_devinfo, ibv_*_pingpong over every GID.

Usage: verbs_pingpong.py UROCE
"""
import os
import pathlib
import re
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "lib"))
import programs
import two_nets

p = programs.start(sys.argv[1])
rng = programs.rng()
PORT = 18515

out = p.run(["ibv_devices"])
assert re.search(r"^ +uroce0\s+02[0-9a-f]{14}$", out, re.M), out
out = p.run(["ibv_devinfo", "-v"])
want = ["hca_id:\turoce0", "state:\t\t\tPORT_ACTIVE (4)", "link_layer:\t\tEthernet", "active_mtu:\t\t1024 (3)",
        f"::ffff:{two_nets.ADDRESS[0]}, RoCE v2", "fd77::1, RoCE v2", "fe80::", "::ffff:127.0.0.1, RoCE v2"]
assert all(w in out for w in want), out
gids = re.findall(r"GID\[ *(\d+)\]:\s+(\S+), RoCE v2", out)
assert [int(i) for i, _ in gids] == [0, 1, 2, 3, 4], gids

# What libibverbs tells and what the files say is one.
files = p.run(["sh", "-c", "cd /sys/class/infiniband/uroce0; cat node_guid ports/1/rate; ls ports/1/gids | wc -l; cat fw_ver"])
guid, rate, count, version = files.splitlines()
assert f"node_guid:\t\t\t{guid}" in out and f"fw_ver:\t\t\t\t{version}" in out, (files, out)
assert rate == "25 Gb/sec (1X EDR)" and "active_width:\t\t1X (1)" in out and "active_speed:\t\t25.0 Gbps" in out, (rate, out)
assert f"gid_tbl_len:\t\t{count}" in out, (count, out)
out = p.run(["ibv_devices"], options=["--device", "b=fd77::1", "--device", "a=127.0.0.1"])
assert re.findall(r"^ +(\w+)\s+02[0-9a-f]{14}$", out, re.M) == ["b", "a"], out

# One whose address is not there is named, once, and the other one works.
r = p.nets.run(0, p.argv(["ibv_devices"], ["--device", "bad=192.0.2.9", "--device", "good=127.0.0.1"]))
assert r.returncode == 0 and re.findall(r"^ +(\w+)\s+02[0-9a-f]{14}$", r.stdout, re.M) == ["good"], r
assert len(r.stderr.splitlines()) == 1 and "192.0.2.9" in r.stderr, r

# Each kind over each GID, between two namespaces and within one; -c: rdma-core's program compares what came.
EXTRA = {
    "rc": [[], ["-e"], ["-N"], ["-t"], ["-s", "100000", "-m", "512"], ["-r", "4"], ["-o"], ["-O"], ["-j"]],
    "uc": [[], ["-e"], ["-s", "5000"], ["-r", "500"]],
    "ud": [[], ["-e"], ["-s", "1000"]],
    "srq": [[], ["-e"], ["-q", "2"], ["-s", "20000"]],
    "xsrq": [[], ["-e"], ["-s", "8192"]],
}
COMPARES = {"rc", "uc", "srq"}
cases = [(kind, gid, extra) for kind, extras in EXTRA.items() for extra in extras for gid in range(5)]
few = programs.sample(cases, 12, rng)
# At least once each: a kind, a GID.
for kind in EXTRA:
    if kind not in {c[0] for c in few}:
        few.append(rng.choice([c for c in cases if c[0] == kind]))
for gid in range(5):
    if gid not in {c[1] for c in few}:
        few.append(rng.choice([c for c in cases if c[1] == gid]))
for kind, gid, extra in few:
    places = (0, 1) if gid < 3 and rng.randrange(4) else (0, 0)
    argv = [f"ibv_{kind}_pingpong", "-g", gid, "-n", 50, *(["-c"] if kind in COMPARES else []), *extra]
    if kind == "xsrq":
        argv += ["-c", 1]
    out = p.pair(argv, [*argv, two_nets.ADDRESS[0]], PORT, places, env=programs.wire(rng))
    assert kind == "xsrq" or all("50 iters in" in o for o in out), out
    assert not any("invalid data" in o for o in out), out
# One file has all that a program sends and receives, over whichever address, also of processes one after the other.
shell = f"ibv_rc_pingpong -g 0 -n 3 {two_nets.ADDRESS[0]} && sleep 1 && ibv_uc_pingpong -g 1 -n 3 {two_nets.ADDRESS[0]}"
server = f"{p.uroce} run -- ibv_rc_pingpong -g 0 -n 3 && {p.uroce} run -- ibv_uc_pingpong -g 1 -n 3"
s = p.nets.popen(0, ["sh", "-c", server], stdout=subprocess.DEVNULL)
while not p.listens(s, PORT):
    time.sleep(0.01)
p.run(["sh", "-c", shell], i=1, options=["--capture", "all.pcapng"], env=programs.UDP)
assert s.wait(30) == 0
read = subprocess.run(["tshark", "-r", f"{p.nets.dir}/all.pcapng", "-T", "fields", "-e", "ip.src", "-e", "ipv6.src", "-e",
                       "infiniband.bth.opcode"], capture_output=True, text=True, check=True,
                      env={**os.environ, "HOME": p.nets.dir}).stdout  # it fails in a home that it cannot read
rows = [line.split("\t") for line in read.splitlines()]
for source in two_nets.ADDRESS:
    assert any(r[0] == source and r[2] in ("0", "4") for r in rows), read  # RC SEND first or only
for source in two_nets.ADDRESS6:
    assert any(r[1] == source and r[2] in ("32", "36") for r in rows), read  # UC
print(f"{p.count} programs and pairs were right")
p.nets.close()
