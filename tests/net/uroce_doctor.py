#!/usr/bin/python3
"""`uroce doctor` names what would not work, and what to do about it.

Usage: uroce_doctor.py UROCE LIBUROCE-FS LIBDIR
"""
import os
import pathlib
import socket
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "lib"))
import two_nets
import uroce_installed

built, preload, libdir = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2]), sys.argv[3]
nets = two_nets.enter()
_, private, uroce = uroce_installed.install(nets, built, preload, libdir)


def doctor(*args, **env):
    r = nets.run(0, [uroce, "doctor", *args], env={"UROCE_HOLDER": "off", "TMPDIR": nets.dir, **env})
    assert not r.stderr and r.returncode in (0, 1), r
    assert (r.returncode == 1) == ("\nBAD " in "\n" + r.stdout), r
    return r


def says(r, verdict, *words):
    lines = [line for line in r.stdout.splitlines() if line.startswith(verdict)]
    assert any(all(w in line for w in words) for line in lines), (verdict, words, r.stdout)


says(doctor(), "BAD", "drop-in libraries", "meson install")
(private / "libibverbs.so.1").touch()
says(doctor(), "BAD", "librdmacm.so.1", "rdma_cm")
(private / "librdmacm.so.1").touch()

r = doctor("sh")
assert r.returncode == 0 and "uroce run -- PROGRAM" in r.stdout, r
for i, text in enumerate(("10.77.0.1", "fd77::1", "fe80::", "127.0.0.1", "::1")):
    says(r, "ok", text, f"GID {i}", "comes back")
says(r, "note", "va: MTU 1500", "1024", "ip link set va mtu 4300")
# The devices as they are: names, GUIDs, addresses with their interfaces.
r = nets.run(0, [uroce, "devices"], env={"UROCE_HOLDER": "off", "UROCE_DEVICES": "one=fd77::1,10.77.0.1;two=127.0.0.1"})
lines = [" ".join(line.split()) for line in r.stdout.splitlines()]
assert r.returncode == 0 and [line.split()[0] for line in lines] == ["one", "guid", "gid", "gid", "two", "guid", "gid"], r
assert lines[2] == "gid 0 fd77::1, RoCE v2 va, link MTU 1500" and lines[6].startswith("gid 0 127.0.0.1, RoCE v2 lo,"), r

says(doctor("no-such-program"), "BAD", "no-such-program", "no such program")
says(doctor(UROCE_ADDRESS="10.9.9.9"), "BAD", "UROCE_ADDRESS", "10.9.9.9", "ip address")
says(doctor(UROCE_DEVICES="10.9.9.9"), "BAD", "UROCE_DEVICES", "NAME=ADDRESS")
says(doctor(UROCE_IMPAIR="lose everything"), "BAD", "lose")

taken = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
taken.bind(("10.77.0.1", 4791))
r = doctor()
says(r, "BAD", "10.77.0.1", "4791", "in use")
if two_nets.CAN_CHANGE_USER:
    says(r, "note", "4791 is in use by uid 0", "rdma link")
taken.close()

for rule in ("add table inet t", "add chain inet t in { type filter hook input priority 0; }",
             "add rule inet t in ip daddr 10.77.0.1 udp dport 4791 drop"):
    subprocess.run(["nft", rule], check=True)
r = doctor()
says(r, "BAD", "10.77.0.1, GID 0", "is lost", "packet filter")
says(r, "ok", "fd77::1, GID 1", "comes back")
subprocess.run(["nft", "delete table inet t"], check=True)

subprocess.run(["ip", "link", "set", "va", "mtu", "9000"], check=True)
assert "MTU 9000" not in doctor().stdout
subprocess.run(["ip", "link", "set", "va", "down"], check=True)
subprocess.run(["ip", "link", "set", "lo", "down"], check=True)
says(doctor(), "BAD", "no interface is up", "ip link set lo up")
nets.close()
