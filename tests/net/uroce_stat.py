#!/usr/bin/python3
"""`uroce stat` tells the counters of processes that run, also of such that do nothing, to their user alone.

Usage: uroce_stat.py UROCE UROCE_QP LIBUROCE
"""
import ctypes
import json
import os
import pathlib
import socket
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "lib"))
import two_nets

uroce, uroce_qp, liburoce = map(os.path.abspath, sys.argv[1:4])


def many_pairs(count):
    """A process that opens a device with so many queue pairs, says so, and computes for ever."""
    lib = ctypes.CDLL(liburoce)

    class Init(ctypes.Structure):
        _fields_ = [("type", ctypes.c_int), ("send_cq", ctypes.c_void_p), ("recv_cq", ctypes.c_void_p),
                    ("srq", ctypes.c_void_p), ("xrcd", ctypes.c_void_p), ("cap", ctypes.c_uint32 * 5),
                    ("sq_sig_all", ctypes.c_int)]

    err, dev, pd, cq = ctypes.create_string_buffer(256), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    assert lib.uroce_open(None, ctypes.byref(dev), err, 256) == 0, err.value
    assert lib.uroce_pd_alloc(dev, ctypes.byref(pd)) == 0
    assert lib.uroce_cq_create(dev, 1, None, None, ctypes.byref(cq)) == 0
    init = Init(2, cq, cq, None, None, (1, 1, 1, 1, 0), 0)
    for _ in range(count):
        assert lib.uroce_qp_create(pd, ctypes.byref(init), ctypes.byref(ctypes.c_void_p())) == 0
    print("ready", flush=True)
    while True:
        pass


if len(sys.argv) > 4:
    many_pairs(int(sys.argv[4]))

nets = two_nets.enter()


def start(i, **env):
    p = nets.popen(i, [uroce_qp, 1 << 20], env={"UROCE_HOLDER": "off", "UROCE_SHM": "0", **env}, stdin=subprocess.PIPE,
                   stdout=subprocess.PIPE, text=True, bufsize=1)
    assert p.stdout.readline().startswith("ok")
    return p


def cmd(p, line):
    p.stdin.write(line + "\n")
    words = p.stdout.readline().split()
    assert words and words[0] == "ok", (line, words)
    return dict(w.partition("=")[::2] for w in words[1:])


def stat(i, *args):
    r = nets.run(i, [uroce, "stat", "--json", *args])
    return r, json.loads(r.stdout) if r.stdout else None


def names(i):
    return [n for n in nets.output(i, ["cat", "/proc/self/net/unix"]).splitlines() if "@uroce-stat-" in n]


a, b = start(0, UROCE_ADDRESS="10.77.0.1"), start(1, UROCE_DEVICES="other=10.77.0.2")
ends = [cmd(p, "new type=rc") for p in (a, b)]
for p, peer in ((a, ends[1]), (b, ends[0])):
    cmd(p, f"connect qpn={peer['qpn']} psn={peer['psn']} gid={peer['gid']}")


def write(n):
    cmd(a, f"write off=0 len={n} va={ends[1]['addr']} rkey={ends[1]['rkey']}")
    assert cmd(a, "poll")["status"] == "0"


write(1000000)

# Both wait for a line and do nothing.
r, found = stat(0, str(a.pid))
assert r.returncode == 0 and len(found) == 1, (r, found)
mine = found[0]
assert (mine["pid"], mine["program"], mine["device"], mine["gids"]) == (a.pid, "uroce_qp", "uroce0", ["10.77.0.1"]), mine
assert mine["counters"]["tx_bytes"] >= 1000000 and mine["complete"], mine  # management datagrams, too
(pair,) = mine["queue_pairs"]
assert (pair["qpn"], pair["remote_qpn"]) == (int(ends[0]["qpn"]), int(ends[1]["qpn"])), pair
assert (pair["type"], pair["state"], pair["local"], pair["remote"], pair["port"], pair["mtu"]) == \
    ("RC", "RTS", "10.77.0.1", "10.77.0.2", "udp", 1024), pair
assert pair["counters"]["tx_bytes"] == 1000000, pair
write(5000)
assert stat(0, str(a.pid))[1][0]["queue_pairs"][0]["counters"]["tx_bytes"] == 1005000

# For people. A network namespace is entered by who may: not by a plain user, when root made it.
r = nets.run(0, [uroce, "stat", b.pid])
assert r.returncode == 1 and not r.stdout and "nsenter" in r.stderr, r
text = nets.run(1, [uroce, "stat", b.pid])
assert text.returncode == 0 and f"pid {b.pid} (uroce_qp)  other" in text.stdout, text
assert "RC RTS  10.77.0.2 -> 10.77.0.1" in text.stdout and "rx_bytes 1005000" in text.stdout, text

# Who made a user namespace gets there, as with what `unshare -rn` and rootless containers run.
boxed = nets.popen(0, ["unshare", "-rn", "sh", "-c", 'ip link set lo up && exec "$0" 65536', uroce_qp],
                   env={"UROCE_HOLDER": "off"}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                   stderr=None if two_nets.CAN_CHANGE_USER else subprocess.DEVNULL)  # a root that has no capability
if two_nets.CAN_CHANGE_USER:
    assert boxed.stdout.readline().startswith("ok")
    (found,) = stat(0, str(boxed.pid))[1]
    assert found["pid"] == boxed.pid and "127.0.0.1" in found["gids"], found
found = [d["pid"] for d in stat(0, "--all")[1]]
assert a.pid in found and (boxed.pid in found) == two_nets.CAN_CHANGE_USER, found

# A process that computes, with more queue pairs than one message holds.
asan = subprocess.run(["cc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True).stdout.strip()
preload = {"LD_PRELOAD": asan} if b"libasan.so" in pathlib.Path(liburoce).read_bytes() else {}
busy = nets.popen(0, [sys.executable, os.path.abspath(__file__), uroce, uroce_qp, liburoce, 100],
                  env={"UROCE_HOLDER": "off", "UROCE_ADDRESS": "127.0.0.1", two_nets.MARK: os.environ[two_nets.MARK],
                       **preload},
                  stdout=subprocess.PIPE, text=True)
assert busy.stdout.readline() == "ready\n"
found = stat(0, str(busy.pid))[1]
assert len({q["qpn"] for q in found[0]["queue_pairs"]}) == 100 and found[0]["complete"], found

# Readers that do not read are in nobody's way.
if not two_nets.CAN_CHANGE_USER:
    stalled = []
    for n in names(0):
        for _ in range(6):
            s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            s.setblocking(False)
            try:
                s.connect("\0" + n.split("@")[1])
            except BlockingIOError:
                pass
            stalled.append(s)
    write(7000)
    assert stat(0, str(a.pid))[1][0]["queue_pairs"][0]["counters"]["tx_bytes"] == 1012000

# Another user is told nothing: neither by the command nor by the socket.
if two_nets.CAN_CHANGE_USER:
    r = nets.run(0, [uroce, "stat", str(a.pid)], user=65533)
    assert r.returncode == 1 and f"process {a.pid} is not yours" in r.stderr and not r.stdout, r
    read = "import socket,sys;s=socket.socket(1,5);s.settimeout(20);s.connect(sys.argv[1]);print(len(s.recv(4096)))"
    for n in names(0):
        r = nets.run(0, [sys.executable, "-c", read.replace("sys.argv[1]", repr("\0" + n.split("@")[1]))], user=65533)
        assert r.stdout == "0\n", r
    r = nets.run(0, [uroce, "stat", "--all"], user=65533)
    assert "no process of this user" in r.stdout, r
else:
    print("not tried here: another user (this one has no other)")

# Killed: nothing is left.
a.kill()
a.wait()
busy.kill()
busy.wait()
r = nets.run(0, [uroce, "stat", str(a.pid)])
assert r.returncode == 1 and f"there is no process {a.pid}" in r.stderr, r
deadline = time.monotonic() + 10
while names(0) and time.monotonic() < deadline:
    time.sleep(0.01)
assert not names(0), names(0)
r = nets.run(0, [uroce, "stat", os.getpid()])
assert r.returncode == 1, r
for bad in ([], ["x"], ["1", "--all"], ["1", "2"], ["-1"]):
    r = nets.run(0, [uroce, "stat", *bad])
    assert r.returncode == 2 and "uroce stat: " in r.stderr, r
nets.close()
