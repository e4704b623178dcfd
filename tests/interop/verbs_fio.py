#!/usr/bin/python3
"""fio's rdma engine on uroce, unchanged.

Usage: verbs_fio.py UROCE
"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "lib"))
import programs
import two_nets

p = programs.start(sys.argv[1], mtu=4300)
rng = programs.rng()
here = pathlib.Path(p.nets.dir)

# fio: the client says how the server's memory is used. (Its SENDs may come before the server's receives, and it allows
# no retry then: that is a matter of luck with any adapter.)
for verb in ("write", "read"):
    size, block = "4m", rng.choice(["4k", "64k", "256k"])
    common = f"[global]\nioengine=rdma\nport=7777\nbs={block}\nsize={size}\niodepth=4\n"
    (here / "server.fio").write_text(f"{common}[receiver]\nrw=read\n")
    (here / "client.fio").write_text(f"{common}hostname={two_nets.ADDRESS[0]}\nverb={verb}\n[sender]\nrw=write\n")
    out = p.pair(["fio", "server.fio"], ["fio", "client.fio"], None, env=programs.wire(rng), refused="connect fail")
    assert "WRITE: bw=" in out[1] and "io=4096KiB" in out[1], out

print(f"{p.count} programs and pairs were right")
p.nets.close()
