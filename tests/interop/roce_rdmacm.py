#!/usr/bin/python3
"""Connections between uroce and the kernel's rdma_cm over its soft-RoCE, in both directions: rdmacm-utils in the guest
and, the same programs, here on the drop-in libraries. roce_rdmacm.py RXE_AGENT LIBRARY-DIRECTORY."""
import os
import subprocess
import sys
import time

sys.dont_write_bytecode = True
from roce_ends import rxe_guest

TIMEOUT = 120
# Nobody listens yet: the client comes again.
REFUSED = ("RDMA_CM_EVENT_REJECTED", "RDMA_CM_EVENT_UNREACHABLE", "error 8", "cma event REJECTED", "unable to connect")


class Here:
    """A program in this process's network namespace, on uroce."""

    def __init__(self, command, libraries, family):
        env = {**os.environ, "LD_LIBRARY_PATH": libraries, "UROCE_HOLDER": "off",
               "UROCE_ADDRESS": f"{rxe_guest.HOST4},{rxe_guest.HOST6}"}
        self.proc = subprocess.Popen(command.split(), env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                     stderr=subprocess.STDOUT, text=True, preexec_fn=rxe_guest.die_with_parent)

    def wait(self):
        try:
            out = self.proc.communicate(timeout=TIMEOUT)[0]
        except subprocess.TimeoutExpired:
            self.proc.kill()
            return 124, self.proc.communicate()[0]
        return self.proc.returncode, out

    def close(self):
        if self.proc.poll() is None:
            self.proc.kill()
        self.proc.wait()


def game(guest, libraries, server, client, family, guest_serves, want):
    address = ((rxe_guest.GUEST4, rxe_guest.GUEST6) if guest_serves else (rxe_guest.HOST4, rxe_guest.HOST6))[family == 6]
    server, client = server.format(a=address), client.format(a=address)
    begin = time.monotonic()

    def start(command, in_guest):
        return guest.open("exec " + command, TIMEOUT) if in_guest else Here(command, libraries, family)

    s = start(server, guest_serves)
    try:
        for _ in range(50):
            c = start(client, not guest_serves)
            status, said = c.wait()
            c.close()
            if status == 0 or not any(r in said for r in REFUSED):
                break
            time.sleep(0.1)
        assert status == 0, f"client {client}: {status}\n{said}"
        status, heard = s.wait()
    finally:
        s.close()
    assert status == 0, f"server {server}: {status}\n{heard}\nclient:\n{said}"
    for text in want:
        assert text in said + heard, f"{client}: no '{text}' in\n{said}\n{heard}"
    print(f"{client}: served by {'the kernel' if guest_serves else 'uroce'}, {time.monotonic() - begin:.1f} s", flush=True)


def refused(guest, libraries):
    """A port where nobody listens, both ways: the reason is "invalid service id", 8."""
    for in_guest, address in ((False, rxe_guest.GUEST4), (True, rxe_guest.HOST4)):
        command = f"rping -c -a {address} -C 1"
        other = Here(f"rping -s -p 9999 -a {address}", libraries, 4) if in_guest else None
        time.sleep(1)  # somebody has to be there to refuse
        c = guest.open(command, TIMEOUT) if in_guest else Here(command, libraries, 4)
        status, said = c.wait()
        c.close()
        if other:
            other.close()
        assert status != 0 and "RDMA_CM_EVENT_REJECTED, error 8" in said, f"{command}: {status}: {said}"
    print("refusals have their reason", flush=True)


def main():
    agent, libraries = sys.argv[1:3]
    extended = bool(os.environ.get("PENSTOCK_EXTENDED"))
    n = 1000 if extended else 100
    games = [
        (f"rping -s -a {{a}} -C {n} -V", f"rping -c -a {{a}} -C {n} -V", (4, 6), []),
        ("rping -s -a {a} -C 3 -v -S 1000", "rping -c -a {a} -C 3 -v -S 1000", (4,), ["ping data: rdma-ping-2"]),
        ("ucmatose -b {a}", "ucmatose -s {a}", (4, 6), ["test complete", "return status 0"]),
        ("ucmatose -b {a} -c 10 -C 5 -S 2000", "ucmatose -s {a} -c 10 -C 5 -S 2000", (4,), ["return status 0"]),
        ("udaddy -b {a}", "udaddy -s {a}", (4, 6), ["test complete", "return status 0"]),
    ]
    with rxe_guest.Guest([agent]) as guest:
        for server, client, families, want in games:
            for family in families:
                for guest_serves in (True, False):
                    game(guest, libraries, server, client, family, guest_serves, want)
        refused(guest, libraries)


main()
