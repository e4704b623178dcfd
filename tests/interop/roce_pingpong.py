#!/usr/bin/python3
"""rdma-core's own ping-pong programs in the guest, as server and as client, against uroce:
roce_pingpong.py RXE_AGENT UROCE_PINGPONG."""
import os
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
from roce_ends import judge, rxe_guest


def game(guest, program, kind, family, mtu, size, iterations, qps, guest_serves, tmp):
    """Ours compares what comes back. They meet over IPv4, where theirs listen, whatever they play over."""
    gid, host = (1, rxe_guest.HOST4) if family == 4 else (2, rxe_guest.HOST6)
    capture = f"{tmp}/a.pcapng"
    theirs = f"exec ibv_{kind}_pingpong -d rxe0 -g {gid} -s {size} -n {iterations}"
    theirs += f" -q {qps}" if kind == "srq" else ""
    theirs += f" -m {mtu}" if kind != "ud" else ""
    ours = [program, kind, str(size), str(iterations), str(mtu), str(qps)]
    if guest_serves:
        session = guest.open(theirs)
        ours.append("::ffff:" + rxe_guest.GUEST4)
    env = {**os.environ, "UROCE_ADDRESS": host, "UROCE_CAPTURE": capture}
    proc = subprocess.Popen(ours, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                            preexec_fn=rxe_guest.die_with_parent)
    try:
        if not guest_serves:
            assert proc.stdout.readline() == "ready\n"
            session = guest.open(f"{theirs} {rxe_guest.HOST4}")
        said = proc.stdout.readline()
        assert "each way" in said, f"{' '.join(ours)}: {said}"
        status, output = session.wait()
        session.close()
        proc.stdin.close()
        assert proc.wait() == 0
    finally:
        proc.kill()
        proc.wait()
    assert status == 0 and "iters in" in output, f"{theirs}: {status}: {output}"
    frames = judge(capture)
    print(f"ibv_{kind}_pingpong as {'server' if guest_serves else 'client'}, IPv{family}, MTU {mtu}, {size} bytes: "
          f"{said.strip()}, {len(frames)} frames", flush=True)


def main():
    agent, program = sys.argv[1:3]
    extended = bool(os.environ.get("PENSTOCK_EXTENDED"))
    iterations = 1000 if extended else 100
    with rxe_guest.Guest([agent]) as guest, tempfile.TemporaryDirectory(prefix="pst-rxe-") as tmp:
        for kind, sizes in (("rc", [4096, 1, 65536]), ("uc", [4096, 1]), ("ud", [2048, 1]), ("srq", [4096, 9000])):
            for family, mtu in ((4, 1024), (6, 4096)):
                for size in sizes if extended else sizes[:1]:
                    for guest_serves in (True, False):
                        game(guest, program, kind, family, mtu, size, iterations, 4, guest_serves, tmp)


main()
