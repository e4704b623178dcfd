#!/usr/bin/python3
"""UCX on uroce, unchanged: it finds the device, and its benchmark runs every kind of transfer over rc_verbs and ud_verbs.

Usage: verbs_ucx.py UROCE
"""
import os
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "lib"))
import programs
import two_nets

p = programs.start(sys.argv[1], mtu=4300)
rng = programs.rng()
PORT = 13337

out = p.run(["ucx_info", "-d"])
found = re.findall(r"Transport: (\w+)\n#\s+Device: uroce0:1", out)
assert {"rc_verbs", "ud_verbs"} <= set(found), out

# The benchmark reads its tests from a file, one a line; both ends the same.
KINDS = ["tag_lat", "tag_bw", "tag_sync_lat", "tag_sync_bw", "stream_lat", "stream_bw", "ucp_am_lat", "ucp_am_bw",
         "ucp_put_lat", "ucp_put_bw", "ucp_get", "ucp_add", "ucp_fadd", "ucp_swap", "ucp_cswap"]
UCT = ["am_lat", "am_bw", "put_lat", "put_bw", "get", "fadd", "cswap", "add_lat"]
ATOMIC = ("add", "swap")


def line(n, kind, size, more=""):
    size = 8 if any(a in kind for a in ATOMIC) else size
    count = 200 if size < 10000 else 10
    return f"{n}_{kind}_{size} -t {kind} -s {size} -n {count} -w 10 {more}\n"


def run(name, lines, env):
    path = pathlib.Path(p.nets.dir) / name
    path.write_text("".join(lines))
    argv = ["ucx_perftest", "-f", "-v", "-b", path]
    # The server's address comes first.
    out = p.pair(argv, ["ucx_perftest", two_nets.ADDRESS[0], *argv[1:]], PORT, env={**env, **programs.wire(rng)}, timeout=90)
    text = out[0] + out[1]
    done = [w.split(",")[0] for w in text.splitlines() if "," in w]
    missing = [w.split()[0] for w in lines if w.split()[0] not in text]
    assert not missing and "ERROR" not in text, (missing, done, text)


sizes = [1, 8, 1000, 5000, 65536, 1 << 20, 8 << 20]
for tl in ("rc_verbs", "ud_verbs"):
    # rc's connections are made by way of ud.
    tls = {"rc_verbs": "rc_v", "ud_verbs": "ud_v"}[tl]
    env = {"UCX_TLS": tls, "UCX_NET_DEVICES": "uroce0:1", "UCX_LOG_LEVEL": "error"}
    # Each kind once, over sizes by chance.
    run(f"{tl}.ucp", [line(tl, k, s) for k in KINDS for s in (sizes if programs.EXTENDED else [rng.choice(sizes[:6])])], env)
    # The transport itself. ud has no one-sided operations.
    kinds = [k for k in UCT if tl == "rc_verbs" or k.startswith("am")]
    layout = {"put_lat": "short", "put_bw": "zcopy", "get": "zcopy", "am_lat": "short", "am_bw": "zcopy"}
    lines = [line(tl, k, 32 if layout.get(k) == "short" else 2048, f"-D {layout.get(k, 'short')} -x {tl} -d uroce0:1") for k in kinds]
    run(f"{tl}.uct", lines, env)
# Over IPv6.
env = {"UCX_TLS": "rc_v", "UCX_NET_DEVICES": "uroce0:1", "UCX_IB_GID_INDEX": "1", "UCX_LOG_LEVEL": "error"}
run("ipv6", [line("v6", k, 5000) for k in ("tag_bw", "ucp_put_bw")], env)
print(f"{p.count} programs and pairs were right")
p.nets.close()
