#!/usr/bin/python3
"""The daemon against everything that is no client: it serves the others meanwhile, and keeps nothing afterwards.

Usage: server_abuse.py PENSTOCK. PENSTOCK_EXTENDED=1 does it in the counts of the issue, PENSTOCK_SEED repeats a run.
"""
import os
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

PENSTOCK = sys.argv[1]
EXTENDED = bool(os.environ.get("PENSTOCK_EXTENDED"))
PROVIDER = ["--provider", os.environ["PENSTOCK_TEST_PROVIDER"]] if os.environ.get("PENSTOCK_TEST_PROVIDER") else []
SEED = int(os.environ.get("PENSTOCK_SEED", str(int(time.time()))))
HALF_OPEN = 2000 if EXTENDED else 200
KILLS = 100 if EXTENDED else 6
rng = random.Random(SEED)
# Sanitizers keep memory of their own.
SANITIZED = b"__asan_init" in open(PENSTOCK, "rb").read()
print(f"seed {SEED}: PENSTOCK_SEED={SEED} repeats it")

T = tempfile.mkdtemp(prefix="penstock-abuse-")
os.environ["PENSTOCK_RUN_DIR"] = T + "/run"


class Daemon:
    def __init__(self, name, *flags, limits=()):
        def set_limits():
            for what, value in limits:
                resource.setrlimit(what, (value, value))

        self.log = f"{T}/{name}.log"
        with open(self.log, "w") as log:
            self.p = subprocess.Popen(
                [PENSTOCK, "serve", "--dev", f"{T}/{name}", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0",
                 "--lease", "1s", "--shards", "1", "--buffer-memory", "16M", "--log", "warn",
                 *PROVIDER, *flags],
                stdout=subprocess.PIPE, stderr=log, text=True, preexec_fn=set_limits)
        line = self.p.stdout.readline()  # the URL: printed once all is open
        m = re.match(r"penstock://127.0.0.1:(\d+)/", line)
        if not m:
            raise AssertionError("the daemon did not start: " + open(self.log).read())
        self.control = int(m[1])
        self.url = line.strip()
        self.ports = sorted(self.listening())
        self.metrics = next(p for p in self.ports if p != self.control and self.http(p))
        self.data = [p for p in self.ports if p not in (self.control, self.metrics)]
        assert self.data, "no data port found"

    def listening(self):
        inodes = set()
        for fd in os.listdir(f"/proc/{self.p.pid}/fd"):
            try:
                m = re.match(r"socket:\[(\d+)\]", os.readlink(f"/proc/{self.p.pid}/fd/{fd}"))
            except OSError:
                continue
            if m:
                inodes.add(m[1])
        found = set()
        for table in ("tcp", "tcp6"):
            for row in open(f"/proc/{self.p.pid}/net/{table}").readlines()[1:]:
                f = row.split()
                if f[3] == "0A" and f[9] in inodes:
                    found.add(int(f[1].split(":")[1], 16))
        return found

    @staticmethod
    def http(port):
        try:
            with socket.create_connection(("127.0.0.1", port), 5) as s:
                s.settimeout(3)
                s.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
                return b"200" in s.recv(100)
        except OSError:
            return False

    def metric(self, name):
        with socket.create_connection(("127.0.0.1", self.metrics), 10) as s:
            s.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            page = b""
            while part := s.recv(65536):
                page += part
        return float(re.search(rf"^{re.escape(name)} (\S+)$", page.decode(), re.M)[1])

    def fds(self):
        """Sockets: the engine opens files and rings of its own when it has work to do."""
        n = 0
        for fd in os.listdir(f"/proc/{self.p.pid}/fd"):
            try:
                n += os.readlink(f"/proc/{self.p.pid}/fd/{fd}").startswith("socket:")
            except OSError:
                pass
        return n

    def all_fds(self):
        return len(os.listdir(f"/proc/{self.p.pid}/fd"))

    def rss(self):
        return int(re.search(r"VmRSS:\s+(\d+)", open(f"/proc/{self.p.pid}/status").read())[1]) * 1024

    def serves(self):
        """A real client writes and reads."""
        text = str(rng.random()).encode()
        subprocess.run([PENSTOCK, "put", "-", self.url + "/probe"], input=text, check=True)
        got = subprocess.run([PENSTOCK, "cat", self.url + "/probe"], capture_output=True, check=True).stdout
        assert got == text, (got, text)

    def comes_back_to(self, fds):
        """What went away is given back, at the latest after the time-outs of half-open connections."""
        end = time.monotonic() + 60
        while self.fds() > fds and time.monotonic() < end:
            time.sleep(0.2)
        assert self.fds() <= fds, f"{self.fds()} sockets, {fds} before:\n" + self.fd_list()

    def fd_list(self):
        return subprocess.run(["ls", "-l", f"/proc/{self.p.pid}/fd"], capture_output=True, text=True).stdout

    def end(self):
        self.p.send_signal(signal.SIGTERM)
        assert self.p.wait(60) == 0, f"ended with {self.p.returncode}: " + open(self.log).read()[-3000:]


def say(text):
    print("# " + text, flush=True)


def garbage():
    kind = rng.randrange(6)
    n = rng.choice((1, 3, 24, 100, 1000, 20000))
    if kind == 0:
        return rng.randbytes(n)
    if kind == 1:
        return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + rng.randbytes(n)
    if kind == 2:
        return b"\0" * n
    if kind == 3:
        return b"GET /" + b"a" * n + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n" + rng.randbytes(n)
    if kind == 4:
        return b"\x16\x03\x01" + rng.randbytes(n)
    return b"\xff" * n


def throw_garbage(d, rounds):
    for _ in range(rounds):
        for port in d.ports:
            try:
                with socket.create_connection(("127.0.0.1", port), 5) as s:
                    s.settimeout(0.05)
                    s.sendall(garbage())
                    if rng.random() < 0.3:
                        s.recv(100)
            except OSError:
                pass


def main():
    d = Daemon("a")
    d.serves()
    d.serves()
    time.sleep(2)  # the sessions of these clients are over
    fds, total, rss = d.fds(), d.all_fds(), d.rss()

    say("garbage on all ports, while a client works")
    throw_garbage(d, 60 if EXTENDED else 15)
    d.serves()
    throw_garbage(d, 60 if EXTENDED else 15)

    say(f"{HALF_OPEN} half-open connections")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    half = []
    for i in range(HALF_OPEN):
        s = socket.socket()
        s.setblocking(False)
        s.connect_ex(("127.0.0.1", d.ports[i % len(d.ports)]))
        half.append(s)
    time.sleep(0.3)
    for s in half[::2]:
        try:
            s.send(rng.randbytes(rng.randrange(1, 30)))
        except OSError:
            pass
    d.serves()
    for s in half:
        s.close()
    d.serves()
    d.comes_back_to(fds)

    say(f"{KILLS} clients killed in mid-transfer")
    big = f"{T}/big"
    with open(big, "wb") as f:
        f.write(rng.randbytes(1 << 20) * 64)
    subprocess.run([PENSTOCK, "put", big, d.url + "/big"], check=True)
    for i in range(KILLS):
        cmd = [[PENSTOCK, "put", big, d.url + f"/big{i % 4}", "--no-attributes"],
               [PENSTOCK, "get", d.url + "/big", f"{T}/out", "--no-attributes", "-q"],
               [PENSTOCK, "bench", d.url, "-w", "-s", "256K", "-d", "16", "--file-size", "8M", "--keep"]][i % 3]
        p = subprocess.Popen(cmd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(0.4 + rng.random() * 0.8)
        p.kill()
        p.wait()
    got = subprocess.run([PENSTOCK, "cat", d.url + "/big"], stdout=subprocess.PIPE, check=True).stdout
    assert got == open(big, "rb").read(), "a file that nobody wrote to has changed"
    d.serves()
    end = time.monotonic() + 60
    while d.metric("penstock_sessions") > 0 and time.monotonic() < end:
        time.sleep(0.2)
    assert d.metric("penstock_sessions") == 0, "a session of a dead client lives on"
    assert d.metric('penstock_data_connections{shard="0"}') == 0, "a connection of a dead client is left"
    d.comes_back_to(fds)
    grown = d.rss() - rss
    say(f"memory grew by {grown >> 20} MiB; {d.all_fds()} descriptors, {total} before")
    assert d.all_fds() < total + 16, d.fd_list()
    assert SANITIZED or grown < (160 << 20), "memory is not given back"
    d.end()
    check = subprocess.run([PENSTOCK, "check", f"{T}/a"], capture_output=True, text=True)
    assert check.returncode == 0, check.stdout + check.stderr

    say("few descriptors: others wait, nothing ends")
    try:
        Daemon("b", limits=[(resource.RLIMIT_NOFILE, 64)]).end()
        raise SystemExit("it started with too few descriptors")
    except AssertionError as e:
        assert "ulimit -n" in str(e), e
    base = 128
    d = Daemon("b", limits=[(resource.RLIMIT_NOFILE, base)])
    half = []
    ports = [p for p in d.ports if p != d.metrics]
    for i in range(base * 2):
        s = socket.socket()
        s.setblocking(False)
        s.connect_ex(("127.0.0.1", ports[i % len(ports)]))
        half.append(s)
    time.sleep(0.5)
    assert d.p.poll() is None, "it died of too few descriptors: " + open(d.log).read()[-2000:]
    assert d.http(d.metrics), "nobody can watch it"
    for s in half:
        s.close()
    end = time.monotonic() + 60
    while True:
        try:
            d.serves()
            break
        except subprocess.CalledProcessError:
            assert time.monotonic() < end, "nobody is served any more"
            time.sleep(0.5)
    for limit, works in ((16, False), (30, False), (40, False), (64, True)):
        p = subprocess.run(["prlimit", f"--nofile={limit}", PENSTOCK, "cp", "-r", os.path.dirname(os.path.abspath(__file__)),
                            f"{d.url}/tree{limit}"], capture_output=True, text=True)
        assert (p.returncode == 0) == works and (works or "ulimit -n" in p.stderr), (limit, p)
    d.end()

    say("little lockable memory: it starts, or says what to change")
    try:
        d = Daemon("c", limits=[(resource.RLIMIT_MEMLOCK, 65536)])
        d.serves()
        d.end()
    except AssertionError as e:
        assert "ulimit -l" in str(e) or "memlock" in str(e).lower(), e
    say("passed")


try:
    main()
finally:
    for child in subprocess.run(["ps", "-o", "pid=", "--ppid", str(os.getpid())], capture_output=True,
                                text=True).stdout.split():
        try:
            os.kill(int(child), signal.SIGKILL)
        except OSError:
            pass
    shutil.rmtree(T, ignore_errors=True)
