#!/usr/bin/python3
"""One request in three logs: the id that a host's slow or failed request has is in the agent's and in the server's log.

Usage: trace.py PENSTOCK
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
T = tempfile.mkdtemp(prefix="penstock-trace-")
os.environ.update(PENSTOCK_RUN_DIR=T + "/run", PENSTOCK_LOG="info", PENSTOCK_LOG_SLOW="200")
LINE = re.compile(r"^(\w+): (\w+): request ([0-9a-f]{12}): (slow )?(.*): (done|E\w+), (\d+)\.\d{3} ms$", re.M)
running = []


class Daemon:
    def __init__(self, name, *flags):
        self.log = f"{T}/{name}.log"
        with open(self.log, "w") as f:
            self.p = subprocess.Popen([PENSTOCK, "serve", "--listen", "127.0.0.1:0", "--metrics", "off", "--shards", "1",
                                       "--buffer-memory", "16M", "--log-slow", "200ms", *PROVIDER, *flags], stderr=f, stdout=f)
        running.append(self)
        self.port = self.wait(r"control on 127\.0\.0\.1 port (\d+)")[1]
        self.url = f"penstock://127.0.0.1:{self.port}"

    def wait(self, what):
        while True:
            with open(self.log) as f:
                m = re.search(what, f.read())
            if m:
                return m
            assert self.p.poll() is None, open(self.log).read()
            time.sleep(0.05)

    def lines(self):
        return lines(open(self.log).read())

    def stop(self):
        self.p.send_signal(signal.SIGTERM)
        assert self.p.wait() == 0, open(self.log).read()
        running.remove(self)


def lines(text):
    return [dict(zip(("component", "level", "id", "slow", "what", "end", "ms"), m.groups())) for m in LINE.finditer(text)]


def one(found, **want):
    hits = [x for x in found if all(re.match(v, x[k] or "") for k, v in want.items())]
    assert hits, (want, found)
    return hits[0]


def host(code, *args):
    r = subprocess.run([PENSTOCK, *args], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert r.returncode == code, (args, r.returncode, r.stderr)
    return lines(r.stderr)


def agent(name, server, *flags):
    tokens = [f"{T}/run/{server.port}.token"]
    return Daemon(name, "--role", "agent", "--backend", server.url, "--backend-token-file", tokens[0], *flags)


def followed(server, *agent_flags, file):
    """Slow: the name's request and the data's, in each log with one id, the longer the nearer to the host."""
    a = agent(f"agent-{file}", server, *agent_flags)
    url = a.url + "/default/default/" + file
    host(0, "put", T + "/data", url)
    at_host = host(0, "cat", url)
    for what in ("Lookup", "read "):
        h = one(at_host, component="client|remote", slow="slow", what=what, end="done")
        assert h["level"] == "info", h
        kind = "read |chunk_read " if agent_flags and what == "read " else what
        here = one(a.lines(), component="control|server", id=h["id"], slow="slow", what=what, end="done")
        on = one(a.lines(), component="remote", id=h["id"], slow="slow", what=kind, end="done")
        there = one(server.lines(), component="control|server", id=h["id"], slow="slow", what=kind, end="done")
        assert int(h["ms"]) >= int(there["ms"]) >= 200, (h, there)
        assert here["level"] == on["level"] == there["level"] == "info"
        print(f"# {what.strip()} {h['id']}: host {h['ms']} ms, agent {here['ms']} ms, server {there['ms']} ms")
    assert len({x["id"] for x in at_host}) == len(at_host), "two requests of the host have one id"
    a.stop()


def failed():
    server = Daemon("failing", "--dev", T + "/failing", "--filter", "error:errno=EIO,op=read")
    a = agent("agent-failing", server)
    url = a.url + "/default/default/file"
    host(0, "put", T + "/data", url)
    h = one(host(1, "cat", url), component="remote", what="read ", end="EIO")
    for found in (a.lines(), server.lines()):
        x = one(found, component="server", id=h["id"], what="read ", end="EIO")
        assert x["level"] == "warn", x
    host(4, "ls", url + "-none")  # an answer that programs ask for: not told
    assert not [x for x in a.lines() + server.lines() if x["end"] == "ENOENT"]
    a.stop()
    server.stop()


def each_at_debug():
    server = Daemon("debug", "--dev", T + "/debug", "--log", "debug")
    os.environ["PENSTOCK_LOG"] = "debug"
    found = host(0, "put", T + "/data", server.url + "/default/default/file")
    for what in ("Create", "write "):
        one(server.lines(), id=one(found, what=what)["id"], level="debug", what=what, end="done")
    server.stop()


try:
    with open(T + "/data", "wb") as f:
        f.write(os.urandom(100000))
    slow = Daemon("server", "--dev", T + "/store", "--filter", "delay:op=read+chunk_read+lookup,ms=250")
    followed(slow, file="plain")
    followed(slow, "--filter", "csum", file="filtered")
    slow.stop()
    failed()
    each_at_debug()
finally:
    for d in running:
        d.p.kill()
        print(f"--- {d.log}\n" + open(d.log).read()[-4000:])
    shutil.rmtree(T, ignore_errors=True)
