#!/usr/bin/python3
"""rdma-core's ping-pong programs, the same at both ends: here on the drop-in library, in the guest on the kernel's
soft-RoCE driver. verbs_kernel.py RXE_AGENT UROCE"""
import os
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
from roce_ends import judge, rxe_guest
import programs

EXTENDED = bool(os.environ.get("PENSTOCK_EXTENDED"))
PORT = 18515


def listens():
    with open("/proc/self/net/tcp", encoding="ascii") as f, open("/proc/self/net/tcp6", encoding="ascii") as g:
        return any(f":{PORT:04X} 0" in line and " 0A " in line for line in [*f, *g])


def start(command):
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            env={**os.environ, "UROCE_HOLDER": "off"}, preexec_fn=rxe_guest.die_with_parent)


def game(guest, uroce, kind, family, more, guest_serves, tmp):
    gid, host = (1, rxe_guest.HOST4) if family == 4 else (2, rxe_guest.HOST6)
    capture = f"{tmp}/a.pcapng"
    # -c: the messages are compared.
    both = f"ibv_{kind}_pingpong -n 50 {'-c ' if kind in ('rc', 'uc') else ''}{more}"
    theirs = f"exec {both} -d rxe0 -g {gid}"
    ours = [uroce, "run", "--device", host, "--capture", capture, "--", *both.split(), "-g", "0"]
    if guest_serves:
        session = guest.open(theirs)
        ours.append(rxe_guest.GUEST4)
    proc = start(ours)
    try:
        if not guest_serves:
            while not listens():
                assert proc.poll() is None, proc.communicate()[0]
                time.sleep(0.01)
            session = guest.open(f"{theirs} {rxe_guest.HOST4}")
        said = proc.communicate(timeout=60)[0]
        for _ in range(100):
            if "Couldn't connect" not in said:  # it does not listen yet
                break
            time.sleep(0.1)
            proc = start(ours)
            said = proc.communicate(timeout=60)[0]
        status, output = session.wait()
        session.close()
    finally:
        proc.kill()
        proc.wait()
    assert proc.returncode == 0 and "50 iters in" in said and "invalid" not in said + output, (ours, said, output)
    assert status == 0 and "50 iters in" in output, f"{theirs}: {status}: {output}"
    frames = judge(capture)
    print(f"{both}, IPv{family}, the {'kernel' if guest_serves else 'drop-in'} serves: {len(frames)} frames", flush=True)


def main():
    rng = programs.rng()
    agent, uroce = sys.argv[1], os.path.abspath(sys.argv[2])
    with rxe_guest.Guest([agent]) as guest, tempfile.TemporaryDirectory(prefix="pst-rxe-") as tmp:
        for kind, sets in (("rc", ["", "-e", "-s 100000"]), ("uc", ["", "-e"]), ("ud", ["", "-e"]), ("srq", ["-q 4", "-q 2 -e"])):
            for family in (4, 6) if EXTENDED else [rng.choice([4, 6])]:
                for more in sets if EXTENDED else sets[:1]:
                    for guest_serves in (True, False):
                        game(guest, uroce, kind, family, more, guest_serves, tmp)


main()
