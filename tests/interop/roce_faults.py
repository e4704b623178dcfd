#!/usr/bin/python3
"""uroce and the kernel's soft-RoCE over a bad link, and what each says of the other's mistakes:
roce_faults.py RXE_AGENT RXE_QP UROCE_QP."""
import os
import sys
import tempfile
import time

sys.dont_write_bytecode = True
from roce_ends import (LEN, OK, QP_OP, REM_ACCESS, REM_INVALID, REM_OP, RETRY, RNR_RETRY, Exchange, Rxe, Uroce, expect,
                       expect_quiet, judge, pair, rxe_guest, seeded)

BUFFER = (8 << 20) + 4096
RULES = {
    "loss": "drop prob=0.01",
    "reorder": "delay us=3000 prob=0.03",
    "all at once": "drop prob=0.01; delay us=2000 prob=0.01; duplicate prob=0.01; corrupt prob=0.005",
}
ERROR_STATE = 6


def bad_link(x, uroce, rxe, rng, family, mtu, sizes, ops=("send", "write_imm", "read")):
    pair(uroce, rxe, rng, "rc", family, mtu)
    for a, b in ((uroce, rxe), (rxe, uroce)):
        for op in ops:
            for n in sizes:
                x.message(a, b, op, n)
        x.atomics(a, b)
    expect_quiet(uroce, rxe)


def many_at_once(x, a, b, rng):
    """Requests of all kinds under way together: done in order, each once."""
    pair(a, b, rng, "rc", depth=128)
    n, lines = 3000, []
    for i in range(32):
        a.cmd("fill", off=i * n, len=n, seed=1000 + i)
    b.cmd("set", off=1 << 20, value=0)
    for i in range(16):
        b.cmd("recv", off=(2 << 20) + i * n, len=n, id=i)
    for i in range(16):
        lines += [("send", dict(off=i * n, len=n, id=3 * i)),
                  ("write", dict(off=(16 + i) * n, len=n, va=b.addr + (3 << 20) + i * n, rkey=b.rkey, id=3 * i + 1)),
                  ("faa", dict(off=(4 << 20) + 8 * i, va=b.addr + (1 << 20), rkey=b.rkey, add=1, id=3 * i + 2))]
    for verb, args in lines:
        a.cmd(verb, **args)
    for verb, args in lines:
        expect(a, status=OK, op=verb, id=args["id"])
    for i in range(16):
        expect(b, status=OK, op="recv", id=i, len=n)
        assert a.cmd("get", off=(4 << 20) + 8 * i)["value"] == i, "an atomic was applied twice, or not at all"
        for off, seed in (((2 << 20) + i * n, 1000 + i), ((3 << 20) + i * n, 1016 + i)):
            assert "same" in b.cmd("check", off=off, len=n, seed=seed)
    assert b.cmd("get", off=1 << 20)["value"] == 16
    expect_quiet(a, b)
    x.count += len(lines)


def on_bad_links(x, rxe, uroce_qp, rng, tmp, extended):
    for name, rules in RULES.items():
        for family, mtu in ((4, 1024), (6, 4096), (6, 1024), (4, 4096))[:4 if extended else 2]:
            start, before, capture = time.monotonic(), x.count, f"{tmp}/a.pcapng"
            sizes = [0, 1, 1025, 4097, 65537] * (5 if extended else 1)
            uroce = Uroce(uroce_qp, BUFFER, family, capture=capture, impair=rules)
            bad_link(x, uroce, rxe, rng, family, mtu, sizes)
            if family == 4:
                many_at_once(x, uroce, rxe, rng)
                many_at_once(x, rxe, uroce, rng)
            counters = uroce.cmd("counters")
            uroce.close()
            frames = judge(capture, damaged="corrupt" in rules)
            if mtu == 4096 and "corrupt" in rules or extended:
                uroce = Uroce(uroce_qp, BUFFER, family, impair=rules)
                bad_link(x, uroce, rxe, rng, family, mtu, [8 << 20], ["write_imm"])
                uroce.close()
            print(f"{name}, IPv{family}, MTU {mtu}: {x.count - before} right, {len(frames)} frames, "
                  f"{counters['retransmits']} sent again, {counters['timeouts']} time-outs, "
                  f"{counters['out_of_order']} out of order, {counters['duplicates']} duplicates, "
                  f"{counters['drop_icrc']} bad ICRCs, {time.monotonic() - start:.1f} s", flush=True)


# ---- mistakes ----

def broken(a, b, rng, status, verb, args, b_status=None, recv=None, **options):
    """a's request ends with that status, and nothing of b changes; both are in the state ERR then."""
    pair(a, b, rng, "rc", **options)
    b.cmd("fill", off=0, len=8192, seed=1)
    if recv is not None:
        b.cmd("recv", off=0, len=recv, id=1)
    a.cmd(verb, id=2, **{k: v(b) if callable(v) else v for k, v in args.items()})
    expect(a, status=status, id=2)
    if b_status is not None:
        expect(b, status=b_status, id=1)
    assert a.cmd("state")["state"] == ERROR_STATE, f"{a.name} after {verb}"
    got = b.cmd("check", off=0, len=8192, seed=1)
    assert "same" in got or recv, f"{b.name}: {verb} changed it: {got}"


def mistakes(uroce, rxe, rng):
    va, rkey = lambda b: b.addr, lambda b: b.rkey
    for a, b in ((uroce, rxe), (rxe, uroce)):
        for verb in ("write", "read"):
            broken(a, b, rng, REM_ACCESS, verb, dict(off=0, len=100, va=va, rkey=lambda b: b.rkey ^ 0x100))
            broken(a, b, rng, REM_ACCESS, verb, dict(off=0, len=100, va=lambda b: b.addr + BUFFER - 99, rkey=rkey))
            broken(a, b, rng, REM_ACCESS, verb, dict(off=0, len=100, va=lambda b: b.addr - 1, rkey=rkey))
        broken(a, b, rng, REM_ACCESS, "faa", dict(off=0, va=va, add=1, rkey=lambda b: b.rkey ^ 0x100))
        if a is uroce:  # the kernel does not even post it
            broken(a, b, rng, REM_INVALID, "faa", dict(off=0, va=lambda b: b.addr + 4, rkey=rkey, add=1))
        broken(a, b, rng, REM_INVALID, "write", dict(off=0, len=100, va=va, rkey=rkey), access=1)
        # The specification wants a length error and an invalid request; the kernel calls both operation errors.
        too_long = (REM_OP, QP_OP) if b is rxe else (REM_INVALID, LEN)
        broken(a, b, rng, too_long[0], "send", dict(off=0, len=101), b_status=too_long[1], recv=100)
        broken(a, b, rng, too_long[0], "send", dict(off=0, len=5000), b_status=too_long[1], recv=4999)
        no_receive(a, b, rng)
        # Nobody there.
        pair(a, b, rng, "rc", a_args={"timeout": 12, "retry": 2})
        b.cmd("new")
        a.cmd("send", off=0, len=1, id=3)
        expect(a, status=RETRY, id=3)
        print(f"the mistakes of {a.name} are told", flush=True)


def no_receive(a, b, rng):
    pair(a, b, rng, "rc", a_args={"rnr": 1})
    a.cmd("send", off=0, len=1, id=4)
    expect(a, status=RNR_RETRY, id=4)
    pair(a, b, rng, "rc")  # rnr=7: for ever
    a.cmd("fill", off=0, len=3000, seed=5)
    a.cmd("send", off=0, len=3000, id=5)
    time.sleep(0.1)
    b.cmd("recv", off=16, len=3000, id=6)
    expect(a, status=OK, id=5)
    expect(b, status=OK, id=6, len=3000)
    assert "same" in b.cmd("check", off=16, len=3000, seed=5)


def main():
    agent, rxe_qp, uroce_qp = sys.argv[1:4]
    rng = seeded()
    with rxe_guest.Guest([agent, rxe_qp]) as guest, tempfile.TemporaryDirectory(prefix="pst-rxe-") as tmp:
        rxe = Rxe(guest, BUFFER)
        uroce = Uroce(uroce_qp, BUFFER, capture=f"{tmp}/mistakes.pcapng")
        mistakes(uroce, rxe, rng)
        uroce.close()
        judge(f"{tmp}/mistakes.pcapng")
        on_bad_links(Exchange(rng), rxe, uroce_qp, rng, tmp, bool(os.environ.get("PENSTOCK_EXTENDED")))


main()
