#!/usr/bin/python3
"""Rate limits of a daemon, as its clients feel them: they hold, for bytes and for requests; who waits at one, goes away or
stops reading holds up nobody; and the daemon ends while requests wait.

Usage: limits.py PENSTOCK. That a limit holds is a lower bound of a time, which a slow machine only makes longer.
"""
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

PENSTOCK = os.path.abspath(sys.argv[1])
PROVIDER = ["--provider", os.environ["PENSTOCK_TEST_PROVIDER"]] if os.environ.get("PENSTOCK_TEST_PROVIDER") else []
MIB = 1 << 20
T = tempfile.mkdtemp(prefix="penstock-limits-")
os.environ["PENSTOCK_RUN_DIR"] = T + "/run"


class Daemon:
    def __init__(self, *flags):
        self.p = subprocess.Popen([PENSTOCK, "serve", "--dev", T + "/store", "--listen", "127.0.0.1:0", "--metrics", "off",
                                   "--shards", "1", "--lease", "2s", "--log", "warn", "--drain", "1s", *PROVIDER, *flags],
                                  stdout=subprocess.PIPE, text=True)
        self.url = self.p.stdout.readline().strip()
        assert self.url.startswith("penstock://"), "the daemon did not start"

    def metrics(self):
        out = cli("status", "--metrics", self.url).stdout
        return {m[1]: float(m[2]) for m in re.finditer(r'penstock_tenant_(\w+)\{tenant="default"\} (\S+)', out)}

    def settle(self):
        while True:
            m = self.metrics()
            if m["waiting"] == 0 and m["running"] == 0:
                return m
            time.sleep(0.05)

    def stop(self):
        self.p.send_signal(signal.SIGTERM)
        assert self.p.wait() == 0, f"the daemon ended with status {self.p.returncode}"
        self.p.stdout.close()


def cli(*args):
    return subprocess.run([PENSTOCK, *args], check=True, capture_output=True, text=True)


def start(*args):
    return subprocess.Popen([PENSTOCK, *args], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def no_limits():
    d = Daemon()
    assert d.metrics() == {}, "turns are taken where there is nothing to share and no limit"
    cli("put", T + "/data", d.url + "/data")
    d.stop()


def bytes_hold():
    rate = 16 * MIB
    d = Daemon("--limit-bytes", "16M")
    t0 = time.monotonic()
    cli("get", d.url + "/data", T + "/back")
    took, m = time.monotonic() - t0, d.settle()
    assert open(T + "/back", "rb").read() == DATA
    # A burst is a tenth of a second's.
    assert took >= (len(DATA) - rate / 10) / rate - 0.001, f"{len(DATA)} bytes in {took} s"
    assert m["turn_bytes_total"] >= len(DATA) and m["throttled_total"] > 0 and m["waited_seconds_total"] > 0, m
    d.stop()


def requests_hold():
    """Of names too; and whoever is not limited (status is not) is served meanwhile."""
    d = Daemon("--limit-ops", "50")
    before = d.metrics()["turns_total"]
    t0 = time.monotonic()
    mkdirs = [start("mkdir", f"{d.url}/d{i}") for i in range(40)]
    while any(p.poll() is None for p in mkdirs):
        d.metrics()
        time.sleep(0.05)
    took = time.monotonic() - t0
    assert all(p.wait() == 0 for p in mkdirs)
    m = d.settle()
    asked = m["turns_total"] - before
    assert asked >= 40 and m["throttled_total"] > 0, m
    assert took >= (asked - 5) / 50 - 0.001, f"{asked} requests in {took} s"
    d.stop()


def who_goes_away_leaves_the_queue():
    d = Daemon("--limit-bytes", "8M", "--window", "1M")
    for _ in range(3):
        clients = [start("get", d.url + "/data", f"{T}/back{i}") for i in range(3)]
        while d.metrics()["waiting"] == 0:
            time.sleep(0.02)
        for p in clients:
            p.kill()
            p.wait()
    d.settle()
    assert cli("cat", d.url + "/small").stdout == "small\n"
    d.stop()


def who_stops_reading_holds_no_turn():
    d = Daemon("--limit-bytes", "1G", "--window", "64K")
    stopped = [start("bench", "--time", "60", "--file-size", "8M", f"{d.url}/"), start("get", d.url + "/data", T + "/back0")]
    while d.metrics()["turns_total"] < 20:
        time.sleep(0.02)
    for p in stopped:
        p.send_signal(signal.SIGSTOP)
    assert d.settle()["turns_total"] >= 20  # nothing is in the store, though its answers are not read
    for _ in range(5):
        assert cli("cat", d.url + "/small").stdout == "small\n"
    for p in stopped:
        p.kill()
        p.wait()
    d.stop()


def the_daemon_ends_while_requests_wait():
    d = Daemon("--limit-bytes", "64K", "--limit-ops", "5")
    clients = [start("get", d.url + "/data", f"{T}/back{i}") for i in range(3)]
    clients += [start("mkdir", f"{d.url}/e{i}") for i in range(10)]
    while d.metrics()["waiting"] == 0:
        time.sleep(0.02)
    d.stop()
    for p in clients:
        p.kill()
        p.wait()


DATA = os.urandom(24 * MIB)
try:
    with open(T + "/data", "wb") as f:
        f.write(DATA)
    first = Daemon()
    subprocess.run([PENSTOCK, "put", "-", first.url + "/small"], check=True, input=b"small\n", stdout=subprocess.DEVNULL)
    first.stop()
    for case in (no_limits, bytes_hold, requests_hold, who_goes_away_leaves_the_queue, who_stops_reading_holds_no_turn,
                 the_daemon_ends_while_requests_wait):
        begun = time.monotonic()
        case()
        print(f"ok: {case.__name__} ({time.monotonic() - begun:.1f} s)", flush=True)
finally:
    shutil.rmtree(T, ignore_errors=True)
