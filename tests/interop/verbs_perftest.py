#!/usr/bin/python3
"""perftest on uroce, unchanged: every tool over every transport it has, with the options that change what it does.

Usage: verbs_perftest.py UROCE
"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "lib"))
import programs
import two_nets

p = programs.start(sys.argv[1], mtu=4300)
rng = programs.rng()
PORT = 18515

# Tools, their transports, and what else each takes.
TOOLS = {
    "ib_write_bw": ["RC", "UC"], "ib_write_lat": ["RC", "UC"], "ib_read_bw": ["RC"], "ib_read_lat": ["RC"],
    "ib_send_bw": ["RC", "UC", "UD", "XRC"], "ib_send_lat": ["RC", "UC", "UD", "XRC"],
    "ib_atomic_bw": ["RC"], "ib_atomic_lat": ["RC"],
}


# Of UC and UD nothing tells a sender that its receiver is behind, and perftest waits for ever for what was lost: at
# most so many bytes in all, which a socket's buffer holds.
AT_ONCE = 600000


def options(tool, transport):
    """Sets of options, each a case."""
    bw, sure = tool.endswith("_bw"), transport in ("RC", "XRC")
    few = ["-n", 50] if sure or not bw else ["-n", 50, "-s", 4096]
    yield few
    if "write" not in tool:
        yield [*few, "-e"]
    if "atomic" in tool:
        yield [*few, "-A", "CMP_AND_SWAP"]
    else:
        yield ["-n", 50, "-s", rng.choice([1, 2, 100, 1000])]
        yield ["-n", 50, "-s", rng.choice([200, 256, 1000]), "-m", rng.choice([256, 512, 1024, 2048, 4096])] \
            if transport != "UD" else ["-n", 50, "-s", 100]
        if "read" not in tool:
            yield ["-n", 50, "-I", rng.choice([64, 128, 200]), "-s", 64]
        # For each line of a latency the program measures its processor's clock for a second.
        if sure and (bw or programs.EXTENDED):
            yield ["-a", "-n", 10] if bw else ["-a", "-n", 5]
        if sure:
            yield ["-n", 50, "-s", rng.choice([4096, 65536, 100001, 1 << 20])]
    yield [*few, "--use_old_post_send"]
    if sure:
        yield ["-D", 10 if programs.EXTENDED else 1]
    if bw:
        for qps in (2, 16, 64):
            # A receiver with one queue for all posts a share of -n messages for each queue pair: one at least.
            n = max(20, qps) if transport == "XRC" else 20 if sure else max(5, AT_ONCE // (4096 * qps))
            yield ["-q", qps, "-n", n] if sure else ["-q", qps, "-n", n, "-s", min(4096, AT_ONCE // (n * qps) // 64 * 64)]
        yield [*few, "-b"]
        yield ["-n", 64, "-l", 8, "-s", 4096]
        yield ["-n", 64, "-Q", 16, "-t", 64, "-s", 4096]
        yield [*few, "-t", 5]
        if sure:
            yield [*few, "--mr_per_qp", "-q", 3]
            yield [*few, "-b", "-q", 4, *(["-e"] if "write" not in tool else [])]
    if "send" in tool:
        yield ["-n", 50, "-r", 64, "-s", 1000]
        if transport in ("RC", "UD"):
            yield [*few, "--use-srq"]
    if transport in ("RC", "UD"):  # connected, or their numbers told, by rdma_cm
        yield [*few, "-R"]
        yield [*few, "-z"]
    if transport == "RC":
        yield ["-n", 20, "-R", "-q", 4] if bw else [*few, "-R", "-e"] if "write" not in tool else [*few, "-R"]
        if "atomic" not in tool:
            yield [*few, "--odp"]
        yield [*few, "--ipv6"]


cases = [(tool, transport, opts) for tool, transports in TOOLS.items() for transport in transports
         for opts in options(tool, transport)]
for tool, _, opts in cases:
    if "atomic" in tool and "-s" in opts:  # it has 8 bytes
        del opts[opts.index("-s"):opts.index("-s") + 2]
if programs.EXTENDED:
    few = [(*c, i % 3) for i, c in enumerate(cases)]
else:
    # Each tool once, over one of its transports; one of a second's duration.
    few = [(*rng.choice([c for c in cases if c[0] == tool and "-D" not in c[2]]), rng.randrange(3)) for tool in TOOLS]
    few.append((*rng.choice([c for c in cases if "-D" in c[2]]), 0))
    few.append((*rng.choice([c for c in cases if "-R" in c[2]]), 0))
failed = []
for tool, transport, opts, gid in few:
    argv = [tool, "-F", "-c", transport, *opts]
    if "--ipv6" not in opts:
        argv += ["-x", gid]
    try:
        cm = "-R" in opts or "-z" in opts
        out = p.pair(argv, [*argv, two_nets.ADDRESS[0]], None if cm else PORT, env=programs.wire(rng), timeout=100,
                     refused="Unexpected CM event" if cm else None)
        assert "#bytes" in out[1], out
    except (programs.Failed, AssertionError) as e:
        failed.append(str(e))
        print(f"FAILED {len(failed)}: {e}", flush=True)
        if len(failed) == 5:
            break


def check_bytes(tool, transport, n, gid):
    """The programs' buffers are files here. Both begin with the same random bytes, in front and behind: then what the
    client sent has to be where it belongs, and all else as it was."""
    both = [pathlib.Path(p.nets.dir) / name for name in ("server", "client")]
    for path in both:
        path.write_bytes(bytes(2 * n + 8192))
        path.chmod(0o666)
    s_argv, c_argv = ([tool, "-F", "-c", transport, "-x", gid, "-n", 10, "-s", n, f"--mmap={path}"] for path in both)
    p.pair(s_argv, [*c_argv, two_nets.ADDRESS[0]], PORT, env=programs.wire(rng), timeout=100)
    server, client = (path.read_bytes() for path in both)
    source, target = (server, client) if "read" in tool else (client, server)
    there = (n + 63) // 64 * 64 if "send" in tool else n  # where a server's half of the buffer begins
    at = (there, 0) if "read" in tool else (0, there)
    assert target[at[1]:at[1] + n] == source[at[0]:at[0] + n], (tool, transport, n, "other bytes came")
    assert target[:at[1]] == source[:at[1]] and target[at[1] + n:] == source[at[1] + n:], (tool, n, "more was written")
    assert target != source, "nothing was written"


for tool in ("ib_write_bw", "ib_read_bw", "ib_send_bw"):
    for transport in TOOLS[tool]:
        if transport in ("RC", "UC") and (programs.EXTENDED or transport == "RC"):
            check_bytes(tool, transport, rng.randrange(4096, 30000 if transport == "UC" else 2 << 20), rng.randrange(3))
print(f"{p.count} of {len(few) + (5 if programs.EXTENDED else 3)} pairs were right")
p.nets.close()
sys.exit(bool(failed))
