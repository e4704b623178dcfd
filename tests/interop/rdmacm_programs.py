#!/usr/bin/python3
"""rdmacm-utils, unchanged, on the drop-in libraries: as a plain user, each end in a network namespace of its own.
rdmacm_programs.py UROCE-COMMAND

Every program that there is, over IPv4 and IPv6, in both directions; connections by the hundred; a listener that is killed,
a port where nobody listens, a port of another process.
"""
import pathlib
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "lib"))
import programs
import two_nets

TIMEOUT = 60
# Nobody listens yet: the client comes again.
REFUSED = ("REJECTED", "UNREACHABLE", "ECONNREFUSED", "Connection refused", "unable to connect", "error 8")
n = 1000 if programs.EXTENDED else 300
many = 500 if programs.EXTENDED else 150

nets = two_nets.enter(4200)
p = programs.Programs(sys.argv[1], nets)


def start(i, command, env=None):
    return nets.popen(i, p.argv(command.split()), env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                      stderr=subprocess.STDOUT, text=True)


def end(proc, timeout=TIMEOUT):
    try:
        return proc.communicate(timeout=timeout)[0]
    except subprocess.TimeoutExpired:
        proc.kill()
        return proc.communicate()[0] + "\n-- it did not end"


def client_of(i, command):
    for _ in range(100):
        c = start(i, command)
        said = end(c)
        if c.returncode == 0 or not any(r in said for r in REFUSED):
            break
        time.sleep(0.05)
    return c.returncode, said


def game(server, client, family=4, side=0, want=()):
    """The server in namespace `side`. What both wrote."""
    address = (two_nets.ADDRESS if family == 4 else two_nets.ADDRESS6)[side]
    begin = time.monotonic()
    s = start(side, server.format(a=address))
    status, said = client_of(1 - side, client.format(a=address))
    heard = end(s, 10 if status else TIMEOUT)
    both = f"-- server {server}: {s.returncode}\n{heard}\n-- client {client}: {status}\n{said}"
    assert status == 0 and s.returncode == 0, both
    for text in want:
        assert text in said + heard, f"no '{text}' in\n{both}"
    print(f"{client.format(a=address)}: {time.monotonic() - begin:.1f} s", flush=True)
    return heard, said


def all_programs():
    for family in (4, 6):
        for side in (0, 1):
            game(f"rping -s -a {{a}} -C {n} -V", f"rping -c -a {{a}} -C {n} -V", family, side)
        anything = "0.0.0.0" if family == 4 else "::"
        game(f"rping -s -a {anything} -C 100 -V -q", "rping -c -a {a} -C 100 -V -q", family)
        game(f"ucmatose -b {anything}", "ucmatose -s {a}", family, 1, ["return status 0"])
        game("udaddy -b {a}", "udaddy -s {a}", family, 0, ["return status 0"])
    game("rping -s -a {a} -C 5 -v -S 4000", "rping -c -a {a} -C 5 -v -S 4000", want=["ping data: rdma-ping-4"])
    game("rping -s -a {a} -C 3 -v", "rping -c -a {a} -C 3 -v -I " + two_nets.ADDRESS[1], want=["ping data: rdma-ping-2"])
    game("ucmatose -c 20 -C 50 -S 20000", "ucmatose -s {a} -c 20 -C 50 -S 20000", want=["return status 0"])
    game("udaddy -c 20 -C 20", "udaddy -s {a} -c 20 -C 20", want=["return status 0"])
    game("rdma_server", "rdma_client -s {a}", want=["rdma_server: end 0", "rdma_client: end 0"])
    game("rdma_xserver", "rdma_xclient -s {a}", want=["rdma_xclient: end 0"])
    game("rdma_xserver -c x", "rdma_xclient -s {a} -c x", want=["rdma_xclient: end 0"])


def groups():
    """Multicast: who receives is there before who sends; sent again until one has come."""
    for group, mine in (("239.7.7.7", two_nets.ADDRESS), ("ff15::7", two_nets.ADDRESS6)):
        s = start(0, f"mckey -m {group} -b {mine[0]}")
        said = ""
        while s.poll() is None:
            time.sleep(0.3)
            said = end(start(1, f"mckey -m {group} -b {mine[1]} -s"))
        heard = end(s)
        assert s.returncode == 0 and "return status 0" in heard, f"{heard}\n{said}"
        print(f"mckey {group}", flush=True)


def by_the_hundred():
    s = start(0, "cmtime")
    time.sleep(0.3)
    status, said = client_of(1, f"cmtime -s {two_nets.ADDRESS[0]} -c {many}")
    s.kill()
    end(s)
    assert status == 0 and "disconnect" in said, said
    game(f"ucmatose -c {many} -C 3", f"ucmatose -s {{a}} -c {many} -C 3", want=["return status 0"])


def those_who_are_not_there():
    client = f"rping -c -a {two_nets.ADDRESS[0]} -C 1"

    def refused():
        begin = time.monotonic()
        status, said = run_alone(client)
        assert status != 0 and "RDMA_CM_EVENT_REJECTED, error 8" in said, f"{status}: {said}"
        assert time.monotonic() - begin < 8, "a refusal is no time-out"

    # Some process on that address refuses what nobody listens for.
    other = start(0, f"rping -s -p 9999 -a {two_nets.ADDRESS[0]}")
    time.sleep(0.5)
    refused()
    # Also in the place of a listener that was killed.
    s = start(0, f"rping -s -a {two_nets.ADDRESS[0]}")
    time.sleep(0.5)
    s.kill()
    s.wait()
    refused()
    # A port of another process.
    status, said = run_alone(f"rping -s -p 9999 -a {two_nets.ADDRESS[0]}", 0)
    assert status != 0 and "Address already in use" in said, f"{status}: {said}"
    other.kill()
    other.wait()
    print("refusals are told", flush=True)


def run_alone(command, i=1):
    c = start(i, command)
    said = end(c)
    return c.returncode, said


all_programs()
groups()
by_the_hundred()
those_who_are_not_there()
nets.close()
