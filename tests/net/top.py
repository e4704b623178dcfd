#!/usr/bin/python3
"""`penstock top`: one view for programs and as text, and the live view in a pseudo-terminal: it fits, and leaves it as it was.

Usage: top.py PENSTOCK
"""
import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time

PENSTOCK = os.path.abspath(sys.argv[1])
PROVIDER = ["--provider", os.environ["PENSTOCK_TEST_PROVIDER"]] if os.environ.get("PENSTOCK_TEST_PROVIDER") else []
T = tempfile.mkdtemp(prefix="penstock-top-")
os.environ["PENSTOCK_RUN_DIR"] = T + "/run"
ENTER, LEAVE = b"\x1b[?1049h", b"\x1b[?1049l"


def top(*args):
    return subprocess.run([PENSTOCK, "top", *args], stdin=subprocess.DEVNULL, capture_output=True, text=True)


class Live:
    """top in a terminal of so many rows and columns."""

    def __init__(self, url, rows, cols):
        self.master, slave = pty.openpty()
        self.size(rows, cols)
        self.before = termios.tcgetattr(slave)
        self.p = subprocess.Popen([PENSTOCK, "top", "--interval", "100", url], stdin=slave, stdout=slave, stderr=slave,
                                  start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        self.slave = slave
        self.seen = b""

    def size(self, rows, cols):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def read_until(self, what, start=0):
        while what not in self.seen[start:]:
            assert select.select([self.master], [], [], 60)[0], f"no {what} in {self.seen[-2000:]}"
            self.seen += os.read(self.master, 65536)

    def views(self, n):
        """n whole views from now on."""
        start = len(self.seen)
        while self.seen[start:].count(b"\x1b[H") < n + 1:
            self.read_until(b"\x1b[H", len(self.seen))
        return [v.split(b"\x1b[J")[0].decode() for v in self.seen[start:].split(b"\x1b[H")[1:-1]]

    def end(self, status=0):
        self.read_until(LEAVE)
        assert self.p.wait() == status, self.p.returncode
        now = termios.tcgetattr(self.slave)
        assert now == self.before, f"the terminal is not as it was: {now} {self.before}"
        os.close(self.master)
        os.close(self.slave)


def fits(view, rows, cols):
    lines = [re.sub(r"\x1b\[K", "", x).rstrip("\r") for x in view.split("\n")]
    return len(lines) <= rows and all(len(x) <= cols for x in lines)


daemon = subprocess.Popen([PENSTOCK, "serve", "--dev", T + "/store", "--listen", "127.0.0.1:0", "--metrics", "off", "--shards",
                           "1", "--log", "warn", "--limit-bytes", "256M", "--filter", "compress", *PROVIDER],
                          stdout=subprocess.PIPE, text=True)
try:
    url = daemon.stdout.readline().strip()
    bench = subprocess.Popen([PENSTOCK, "bench", "--write", "--time", "3600", "--file-size", "16M", url + "/"],
                             stdout=subprocess.DEVNULL)

    # Wait for the load, then one view for programs.
    while True:
        r = top("--json", "--interval", "300", url)
        assert r.returncode == 0, r.stderr
        v = json.loads(r.stdout)
        # The counters of the whole and of connections are not of one moment.
        if v["write_bytes_per_s"] > 0 and any(x["write_bytes_per_s"] > 0 for x in v["connections"]):
            break
    assert v["operations_per_s"] > 0 and v["role"] == "server"
    write = next(x for x in v["latency"] if x["op"] == "write")
    assert write["per_s"] > 0 and 0 < write["p50"] <= write["p90"] <= write["p99"], write
    tenant = v["tenants"][0]
    assert tenant["tenant"] == "default" and tenant["bytes_per_s"] > 0 and abs(tenant["share"] - 1) < 1e-6, tenant
    c = next(x for x in v["connections"] if x["purpose"] != "status" and x["write_bytes_per_s"] > 0)
    assert c["provider"] and c["rdma"] in (True, False) and c["placement"], c
    assert any(f["cost"] > 0 and f["bytes_in_per_s"] > 0 for f in v["filters"]), v["filters"]

    r = top("--once", "--interval", "100", url)
    assert r.returncode == 0 and "TENANT" in r.stdout and "PEER" in r.stdout and "\x1b" not in r.stdout, r.stdout

    # Mistakes are told in a line.
    for args, word in ((url,), "--once"), ((url, "--json", "--interval", "1"), "--interval"), (("--once", "local:" + T), "server"):
        r = top(*args)
        assert r.returncode == 2 and word in r.stderr and r.stdout == "", (args, r)
    r = top("--once", "penstock://127.0.0.1:1")
    assert r.returncode == 3 and r.stderr.count("\n") == 1, r

    # Live: it fits the terminal, also when that changes, and ends at q and at SIGINT.
    t = Live(url, 24, 80)
    t.read_until(ENTER)
    for view in t.views(2):
        assert fits(view, 24, 80) and "OPERATION" in view and "TENANT" in view, view
    t.size(6, 30)
    t.p.send_signal(signal.SIGWINCH)
    t.views(1)
    for view in t.views(2):
        assert fits(view, 6, 30) and "OPERATION" in view, view
    os.write(t.master, b"xq")
    t.end()
    t = Live(url, 40, 200)
    t.views(1)
    os.write(t.master, b"\x03")
    t.end()

    # The server goes: a message, on the terminal's own screen.
    bench.kill()
    bench.wait()
    t = Live(url, 24, 80)
    t.views(1)
    daemon.terminate()
    daemon.wait()
    t.read_until(LEAVE)
    t.read_until(b"does not answer")
    assert t.p.wait() == 3, t.p.returncode
    print("ok")
finally:
    daemon.kill()
    daemon.wait()
    shutil.rmtree(T, ignore_errors=True)
