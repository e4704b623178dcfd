#!/usr/bin/python3
"""Epochs over a set of files through an agent with a cache: the second one reads no byte from the server, what is changed by
another way is seen at the next open, and each tenant has a cache of its own, of which the other hears nothing.

Usage: epochs.py PENSTOCK.
"""
import filecmp
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

PENSTOCK = os.path.abspath(sys.argv[1])
T = tempfile.mkdtemp(prefix="penstock-epochs-")
SEED = int(os.environ.get("PENSTOCK_SEED", random.randrange(1 << 32)))
os.environ["PENSTOCK_RUN_DIR"] = T + "/run"
FILES = 30


class Daemon:
    count = 0

    def __init__(self, *flags):
        Daemon.count += 1
        log = "%s/%d.log" % (T, Daemon.count)
        with open(log, "w") as f:
            self.p = subprocess.Popen([PENSTOCK, "serve", "--listen", "127.0.0.1:0", "--metrics", "off", "--shards", "2",
                                       "--buffer-memory", "16M", *flags], stdout=subprocess.DEVNULL, stderr=f)
        port = None
        while not port:
            assert self.p.poll() is None, open(log).read()
            time.sleep(0.02)
            port = re.search(r"control on 127.0.0.1 port (\d+)", open(log).read())
        self.url = "penstock://127.0.0.1:" + port[1]

    def metrics(self, **env):
        out = cli("status", "--metrics", self.url, **env)
        return {m[1]: float(m[2]) for m in re.finditer(r"^(?:penstock_)?([a-z_]+(?:\{[^}]*\})?) (\S+)$", out, re.M)}

    def stop(self):
        self.p.send_signal(signal.SIGTERM)
        assert self.p.wait() == 0, f"the daemon ended with status {self.p.returncode}"


def cli(*args, **env):
    r = subprocess.run([PENSTOCK, *args], capture_output=True, text=True, env=dict(os.environ, **env))
    assert r.returncode == 0, f"{args}: {r.stderr}"
    return r.stdout


def write(path, size, rng):
    with open(path, "wb") as f:
        f.write(rng.randbytes(size // 2) + b"again " * (size // 12))


def epoch(agent, container, **env):
    """All files, compared with what they are to be."""
    shutil.rmtree(T + "/out", ignore_errors=True)
    cli("cp", "-r", "-q", f"{agent.url}/{container}", T + "/out", **env)
    out = T + "/out" if os.path.exists(T + "/out/f0") else T + "/out/" + container.split("/")[-1]
    _, different, missing = filecmp.cmpfiles(T + "/set", out, os.listdir(T + "/set"), shallow=False)
    assert not different and not missing, f"different: {different}, missing: {missing}"


def reads(server):
    m = server.metrics()
    return m['data_requests_total{op="read"}'], m["data_bytes_out_total"]


def one(rng, filters):
    server = Daemon("--dev", T + "/store")
    agent = Daemon("--role", "agent", "--backend", server.url, "--cache", "64M", *filters)
    other = Daemon("--role", "agent", "--backend", server.url, *filters)
    where = "default/default/set"
    cli("cp", "-r", "-q", T + "/set", f"{agent.url}/{where}")
    epoch(agent, where)
    first = reads(server)
    for _ in range(2):
        epoch(agent, where)
    again = reads(server)
    assert again == first, f"the second epoch read from the server: {first} {again}"
    m = agent.metrics()
    size = sum(os.path.getsize(os.path.join(T, "set", n)) for n in os.listdir(T + "/set"))
    assert m["cache_hit_bytes_total"] >= 2 * size, (size, {k: v for k, v in m.items() if "cache" in k})
    assert "64 MiB" in cli("status", agent.url)
    top = json.loads(cli("top", "--json", "--interval", "100", agent.url))["caches"]
    assert [(c["tenant"], c["memory_bytes"]) for c in top] == [("default", 64 << 20)], top
    assert "EVICTED/S" in cli("top", "--once", "--interval", "100", agent.url)
    for _ in range(4):
        name = f"f{rng.randrange(FILES)}"
        write(f"{T}/set/{name}", rng.randrange(1, 400000), rng)
        cli("put", f"{T}/set/{name}", f"{other.url}/{where}/{name}")
        epoch(agent, where)
    epoch(other, where)
    for d in (agent, other, server):
        d.stop()
    shutil.rmtree(T + "/store")


def token(name):
    with open(f"{T}/{name}.token", "w") as f:
        f.write("%032x" % random.SystemRandom().randrange(1 << 128))
    os.chmod(f.name, 0o600)
    return f.name


def tenants(rng):
    """Two tenants of an agent, who share a container."""
    names = {"anna": "64M", "bert": "16M"}
    who = {n: {"PENSTOCK_TOKEN_FILE": token(n)} for n in names}
    ids = "uid: %d, gid: %d" % (os.getuid(), os.getgid())
    with open(T + "/server.yaml", "w") as f:
        f.write("credentials:\n  - {name: agent, token_file: %s, any_uid: true, origin: true}\n" % token("agent"))
    server = Daemon("--dev", T + "/store", "--config", f.name)
    with open(T + "/agent.yaml", "w") as f:
        f.write(f"role: agent\nbackend: {{url: '{server.url}', token_file: {T}/agent.token}}\ntenants:\n")
        for n, size in names.items():
            f.write(f"  - {{name: {n}, containers: [default/default], cache: {size}, backend_token_file: {T}/agent.token}}\n")
        f.write("credentials:\n")
        for n in names:
            f.write(f"  - {{name: {n}, token_file: {T}/{n}.token, {ids}, tenant: {n}}}\n")
    agent = Daemon("--config", f.name)
    where = "default/default/set"
    cli("cp", "-r", "-q", T + "/set", f"{agent.url}/{where}", **who["anna"])
    epoch(agent, where, **who["anna"])
    first = reads(server)
    epoch(agent, where, **who["anna"])
    assert reads(server) == first, "anna's second epoch read from the server"
    m = agent.metrics()
    bert = {k: m['tenant_cache_%s{tenant="bert"}' % k] for k in ("hits_total", "misses_total", "used_bytes", "memory_bytes")}
    assert bert == {"hits_total": 0, "misses_total": 0, "used_bytes": 0, "memory_bytes": 16 << 20}, bert
    epoch(agent, where, **who["bert"])
    size = sum(os.path.getsize(os.path.join(T, "set", n)) for n in os.listdir(T + "/set"))
    assert reads(server)[1] - first[1] >= size, "bert had bytes of anna's cache"
    assert agent.metrics()['tenant_cache_used_bytes{tenant="bert"}'] <= 16 << 20
    write(f"{T}/set/f0", 300000, rng)
    cli("put", T + "/set/f0", f"{agent.url}/{where}/f0", **who["bert"])
    epoch(agent, where, **who["anna"])
    for d in (agent, server):
        d.stop()


def main():
    rng = random.Random(SEED)
    print("PENSTOCK_SEED=%d" % SEED)
    os.mkdir(T + "/set")
    for i in range(FILES):
        write(f"{T}/set/f{i}", rng.choice([0, 1, 5000, 65536, 200000, 1500000]), rng)
    open(T + "/key", "w").write("7" * 64)
    os.chmod(T + "/key", 0o600)
    one(rng, [])
    one(rng, ["--filter", "compress", "--filter", f"crypt:key_file={T}/key"])
    tenants(rng)


try:
    main()
finally:
    shutil.rmtree(T, ignore_errors=True)
