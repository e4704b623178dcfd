"""What the benches of the store share: building, a server, one measurement of it."""
import json
import os
import socket
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
GIB = float(1 << 30)


def say(text):
    print(text, file=sys.stderr, flush=True)


PATIENCE = 120  # seconds, beyond what was asked for: what has not ended then does not


def end(process):
    """By SIGTERM; a daemon that does not is killed."""
    process.terminate()
    try:
        process.wait(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def command(*argv, **kw):
    try:
        p = subprocess.run([str(a) for a in argv], stdout=subprocess.PIPE, text=True, **kw)
    except subprocess.TimeoutExpired as e:
        sys.exit("%s: %s has not ended after %d s" % (os.path.basename(sys.argv[0]), " ".join(map(str, argv)), e.timeout))
    if p.returncode:
        sys.exit("%s: %s ended with status %d" % (os.path.basename(sys.argv[0]), " ".join(map(str, argv)), p.returncode))
    return p.stdout


def several(jobs):
    return "1 job" if jobs == 1 else "%d jobs" % jobs


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Build:
    """A build directory."""

    def __init__(self, path):
        self.path = path
        self.penstock = os.path.join(path, "src", "cli", "penstock")

    def make(self, *targets):
        if not os.path.exists(os.path.join(self.path, "build.ninja")):
            command("meson", "setup", self.path, ROOT, "--buildtype=release")
        command("ninja", "-C", self.path, *targets)

    def program(self, name):
        return os.path.join(self.path, "bench", name)

    def store(self, url, kind, server=None, env=None, **kv):
        """One run of bench_store: {"mb": MB/s, "ops": 1/s, "core": core-s/GiB, "p50", "p99", "p999": us}."""
        if server:
            kv["server"] = server.pid
        j = json.loads(command(self.program("bench_store"), url, kind, *("%s=%s" % i for i in kv.items()), env=env))
        core = (j["client_cpu"] + j["server_cpu"]) / (j["bytes"] / GIB)
        return {"mb": j["bytes"] / j["seconds"] / 1e6, "ops": j["ops"] / j["seconds"], "core": core,
                "p50": j["p50_us"], "p99": j["p99_us"], "p999": j["p999_us"]}


class Server:
    """penstock serve on the engine, with its store in work/NAME."""

    def __init__(self, build, work, provider, name="store", env=None):
        port = free_port()
        self.store = os.path.join(work, name)
        self.url = "penstock://127.0.0.1:%d/default/default" % port
        self.log = open(os.path.join(work, name + ".log"), "w")
        start = time.time()
        self.process = subprocess.Popen([build.penstock, "serve", "--dev", self.store, "--listen", "127.0.0.1:%d" % port,
                                         "--metrics", "off", "--log", "warn", "--provider", provider],
                                        stdout=self.log, stderr=self.log, env=env)
        while subprocess.run([build.penstock, "df", self.url], stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL).returncode:
            if self.process.poll() is not None or time.time() - start > 60:
                sys.exit("%s: the server did not start: see %s" % (os.path.basename(sys.argv[0]), self.log.name))
            time.sleep(0.05)
        self.start_seconds = time.time() - start
        self.pid = self.process.pid

    def stop(self):
        if self.process.poll() is None:
            end(self.process)
