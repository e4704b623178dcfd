#!/usr/bin/python3
"""libfabric on uroce, unchanged: its verbs provider finds the device, and its own ping-pong compares what comes, over
connected and datagram end points and over the layers on top of them.

Usage: verbs_libfabric.py UROCE
"""
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "lib"))
import programs
import two_nets

p = programs.start(sys.argv[1], mtu=4300)
rng = programs.rng()
PORT = 47592

out = p.run(["fi_info", "-p", "verbs"])
found = set(re.findall(r"provider: (\S+)\n\s+fabric: \S+\n\s+domain: (\S+)\n.*?type: (\S+)", out, re.S))
for want in (("verbs", "uroce0", "FI_EP_MSG"), ("verbs", "uroce0-dgram", "FI_EP_DGRAM")):
    assert want in found, (want, found, out)
assert "verbs;ofi_rxm" in {f[0] for f in found}, out

CASES = [
    ("verbs", "msg", []), ("verbs", "dgram", []), ("verbs", "msg", ["-m", "msg", "-6"]),
    ("verbs;ofi_rxm", "rdm", []), ("verbs;ofi_rxm", "rdm", ["-m", "tagged"]), ("verbs;ofi_rxd", "rdm", []),
]
for provider, kind, more in CASES:
    sizes = ["all"] if programs.EXTENDED else [rng.choice([64, 1000, 4000]), rng.choice([65536, 1 << 20])]
    for size in sizes[:1] if kind == "dgram" else sizes:
        argv = ["fi_pingpong", "-p", provider, "-e", kind, "-I", 20, "-S", size, "-c", *more]
        address = two_nets.ADDRESS6[0] if "-6" in more else two_nets.ADDRESS[0]
        out = p.pair(argv, [*argv, address], PORT, env=programs.wire(rng))
        assert "bytes" in out[1] and "error" not in out[1].lower(), out
print(f"{p.count} programs and pairs were right")
p.nets.close()
