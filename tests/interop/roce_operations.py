#!/usr/bin/python3
"""Every operation between uroce and the kernel's soft-RoCE, begun by either, contents compared:
roce_operations.py RXE_AGENT RXE_QP UROCE_QP. A sample of the matrix; PENSTOCK_EXTENDED=1: all of it."""
import os
import sys
import tempfile
import time

sys.dont_write_bytecode = True
from roce_ends import Exchange, Rxe, Uroce, expect_quiet, judge, pair, rxe_guest, seeded

SIZES = [0, 1, 1023, 1024, 1025, 4095, 4096, 4097, 65535, 65536, 65537]
BIG = 8 << 20
BUFFER = BIG + 4096
RC_OPS = ["send", "send_imm", "write", "write_imm", "read"]
UC_OPS = ["send", "send_imm", "write", "write_imm"]


def connected(x, uroce, rxe, rng, kind, family, mtu, sizes, ops):
    pair(uroce, rxe, rng, kind, family, mtu)
    for a, b in ((uroce, rxe), (rxe, uroce)):
        for op in ops:
            for n in sizes:
                x.message(a, b, op, n)
        if kind == "rc":
            x.atomics(a, b)
    expect_quiet(uroce, rxe)


def datagrams(x, uroce, rxe, rng, family, mtu):
    pair(uroce, rxe, rng, "ud", family)
    for a, b in ((uroce, rxe), (rxe, uroce)):
        for n in [n for n in SIZES if n <= mtu]:
            x.datagram(a, b, n, n % 2)


def hello_is_ignored(frames):
    """It was sent, and QP 1 of the peer said nothing."""
    asked = [f for f in frames if f["frame.packet_flags_direction"].endswith("2") and f["infiniband.mad.mgmtclass"]]
    heard = [f for f in frames if f["frame.packet_flags_direction"].endswith("1") and f["infiniband.deth.srcqp"] and
             int(f["infiniband.deth.srcqp"], 0) == 1]
    assert asked, "no hello was sent"
    assert not heard, "QP 1 of the kernel answered"


def main():
    agent, rxe_qp, uroce_qp = sys.argv[1:4]
    rng = seeded()
    extended = bool(os.environ.get("PENSTOCK_EXTENDED"))
    x = Exchange(rng)
    with rxe_guest.Guest([agent, rxe_qp]) as guest, tempfile.TemporaryDirectory(prefix="pst-rxe-") as tmp:
        rxe = Rxe(guest, BUFFER)
        for family, mtu in ((4, 4096), (6, 1024), (4, 1024), (6, 4096)):
            full = extended or (family, mtu) in ((4, 4096), (6, 1024))
            sizes = SIZES if full else [0, 1, mtu - 1, mtu, mtu + 1, 65537]
            start, before = time.monotonic(), x.count
            capture = f"{tmp}/{family}-{mtu}.pcapng"
            uroce = Uroce(uroce_qp, BUFFER, family, capture=capture)
            connected(x, uroce, rxe, rng, "rc", family, mtu, sizes, RC_OPS)
            for a, b in ((uroce, rxe), (rxe, uroce)):
                pair(a, b, rng, "rc", family, mtu)
                x.invalidate(a, b)
            connected(x, uroce, rxe, rng, "uc", family, mtu, sizes, UC_OPS)
            datagrams(x, uroce, rxe, rng, family, mtu)
            uroce.close()
            frames = judge(capture)
            hello_is_ignored(frames)
            os.unlink(capture)
            if full:
                uroce = Uroce(uroce_qp, BUFFER, family)
                connected(x, uroce, rxe, rng, "rc", family, mtu, [BIG], ["send", "write", "read"])
                uroce.close()
            print(f"IPv{family}, MTU {mtu}: {x.count - before} messages and atomics are right, {len(frames)} frames, "
                  f"{time.monotonic() - start:.1f} s", flush=True)
        kernel_log = guest.run("dmesg")[1]
        assert "Call Trace" not in kernel_log, kernel_log


main()
