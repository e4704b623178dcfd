#!/usr/bin/python3
"""rdma-core's own test suite in Python, as the distribution ships it, on the drop-in libraries: verbs_pyverbs.py UROCE [MODULE...].

MODULEs (test_rdmacm, ..) are left out, for a look at the others.

Nothing may fail, at least 140 of its 273 tests have to run, and each that is skipped has to be so for a reason that is
listed here. It runs as a plain user in a network namespace, under `uroce run`.
"""
import collections
import gzip
import os
import pathlib
import re
import shutil
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "lib"))
import two_nets

SHIPPED = pathlib.Path("/usr/share/doc/rdma-core/tests")
RUN_AT_LEAST = 140
# What the suite says when it skips, and why that is right here.
REASONS = {
    "Can not run the test over non MLX5 device": "of Mellanox's own interface: it needs their adapter",
    r"Could not open mlx5 context \(This is not an MLX5 device\)": "likewise",
    "PCI device must be passed by the user": "likewise, of their user-space driver over VFIO",
    "Converting timestamp to nanoseconds is not supported": "likewise, of their clock",
    "Can not run the test over non EFA device": "of Amazon's own interface: it needs their adapter",
    r"Create QP type 8 is not supported": "raw Ethernet: uroce is RoCE alone, packets of other protocols are the kernel's",
    r"Create Raw Packet QP .*is not supported": "likewise",
    r"(Must be run|To Create RAW QP must be done) by root on Ethernet link layer": "likewise",
    "Extended CQ is not supported": "tag matching, which moves a message layer into an adapter",
    "Extended QP is not supported on this device": "ATOMIC_WRITE, of the next version of the specification",
    r"Allocating dmabuf is not supported by .*": "the memory of a GPU: none is here",
    r"cuda-python .* must be installed.*": "likewise",
    r"There are no huge pages of size .* allocated": "the machine has reserved none",
}


def explained(reason):
    return any(re.fullmatch(r, reason) for r in REASONS)


def copy_suite(to):
    """The distribution compresses long files."""
    to.mkdir()
    for f in SHIPPED.iterdir():
        if f.suffix == ".gz":
            (to / f.stem).write_bytes(gzip.decompress(f.read_bytes()))
        else:
            shutil.copy(f, to)


def main():
    uroce, left_out = os.path.abspath(sys.argv[1]), sys.argv[2:]
    if not SHIPPED.is_dir():
        two_nets.skip("python3-pyverbs is not installed")
    nets = two_nets.enter()
    suite = pathlib.Path(nets.dir) / "tests"
    copy_suite(suite)
    for module in left_out:
        (suite / f"{module}.py").unlink()
    r = nets.run(0, [uroce, "run", "--", "/usr/bin/python3", suite / "run_tests.py", "-v", "--dev", "uroce0"],
                 env={"PYTHONDONTWRITEBYTECODE": "1"}, timeout=300)
    said = r.stdout + r.stderr
    ran = re.search(r"^Ran (\d+) tests in", said, re.M)
    result = re.search(r"^(OK|FAILED)(?: \((.*)\))?$", said, re.M)
    assert ran and result, f"it did not come to its end: status {r.returncode}\n{said[-4000:]}"
    skipped = collections.Counter(re.findall(r"\.\.\. skipped ['\"](.*)['\"]$", said, re.M))
    run = int(ran[1]) - sum(skipped.values())
    for reason, n in skipped.most_common():
        print(f"{n:4} skipped: {reason}")
    print(f"{run} of {ran[1]} tests ran: {result[0]}")
    if result[1] != "OK" or r.returncode:
        sys.exit("\n".join(re.findall(r"^(?:FAIL|ERROR): .*(?:\n(?!====).*)*", said, re.M)) or said)
    unexplained = [r for r in skipped if not explained(r)]
    assert not unexplained, f"skipped for reasons that are not known: {unexplained}"
    assert run >= RUN_AT_LEAST or left_out, f"{run} tests ran, at least {RUN_AT_LEAST} are meant to"


main()
