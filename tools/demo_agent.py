#!/usr/bin/python3
"""penstock-demo --agent, inside of its namespaces: server, agent and host, the real trees both ways, the host's processor time.

Runs in a network, mount and process namespace of its own (penstock-demo makes them), which is the host's; all that it starts and
mounts ends with it.
"""
import argparse
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
GIB = float(1 << 30)
TICK = os.sysconf("SC_CLK_TCK")
GOAL = 0.5
SERVER, AGENT = "10.78.2.1", "10.78.1.1"

ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
ap.add_argument("--work", required=True, help="directory for all that is made; exists")
ap.add_argument("--build", required=True, help="build directory")
ap.add_argument("--tree", action="append", required=True)
ap.add_argument("--provider", default="", help="libfabric provider of all connections")
ap.add_argument("--size", type=int, default=256, help="MiB of each file that is measured")
ap.add_argument("--rounds", type=int, default=3)
ap.add_argument("--crossing", action="store_true", help="the host hands no memory over to the agent")
args = ap.parse_args()

work = args.work
penstock = os.path.join(args.build, "src/cli/penstock")
mnt, src = os.path.join(work, "mnt"), os.path.join(work, "src")
filters = ["compress", "crypt:key_file=%s/tenant.key" % work]


class Failed(Exception):
    pass


def say(text):
    print(text, flush=True)


def run(*argv, **kw):
    p = subprocess.run([str(a) for a in argv], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **kw)
    if p.returncode:
        raise Failed("%s: %s" % (" ".join(map(str, argv)), p.stdout.strip()[-600:]))
    return p.stdout


# ---- the three machines ----

def net_of(pid):
    return os.readlink("/proc/%d/ns/net" % pid)


def namespace():
    """A process in a network namespace of its own; everything ends with this one, as the process namespace does."""
    p = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
    while net_of(p.pid) == net_of(os.getpid()):
        time.sleep(0.01)
    return p.pid


def within(pid, *argv):
    return ["nsenter", "--net=/proc/%d/ns/net" % pid, "--", *argv]


def link(a, a_addr, b, b_addr, name):
    """A cable between two namespaces."""
    run("ip", "link", "add", name + "a", "netns", a, "type", "veth", "peer", "name", name + "b", "netns", b)
    for pid, addr, end in ((a, a_addr, "a"), (b, b_addr, "b")):
        run(*within(pid, "ip", "addr", "add", addr + "/24", "dev", name + end))
        run(*within(pid, "ip", "link", "set", name + end, "up"))


class Machines:
    def __init__(self):
        self.host, self.agent, self.server = os.getpid(), namespace(), namespace()
        for pid in (self.host, self.agent, self.server):
            run(*within(pid, "ip", "link", "set", "lo", "up"))
        link(self.host, "10.78.1.2", self.agent, AGENT, "ha")
        link(self.agent, "10.78.2.2", self.server, SERVER, "as")
        link(self.host, "10.78.3.2", self.server, "10.78.3.1", "hs")
        run("ip", "route", "add", SERVER, "via", "10.78.3.1")  # the host reaches the server by a cable of its own


CONFIG = """
{store}control:
  listen: ['{addr}:7440']
  tls: {{ca: {work}/ca.pem, cert: {work}/{name}-tls/server.pem, key: {work}/{name}-tls/server.key}}
data: {{listen: '{addr}:7450', security: clear{data}}}
metrics: {{listen: 'off'}}
log: warn
credentials:
{credentials}"""


def daemon(name, pid, addr, store, credentials, data="", environment=None):
    """penstock serve in a namespace; returns its process once it answers."""
    path = os.path.join(work, name + ".yaml")
    provider = ", provider: " + args.provider if args.provider else ""
    with open(path, "w", encoding="utf-8") as f:
        f.write(CONFIG.format(store=store, addr=addr, work=work, name=name, data=provider + data, credentials=credentials))
    log = open(os.path.join(work, name + ".log"), "w", encoding="utf-8")
    p = subprocess.Popen(within(pid, penstock, "serve", "-c", path), stdout=log, stderr=log,
                         env=dict(os.environ, PENSTOCK_RUN_DIR=work + "/run-" + name, **(environment or {})))
    for _ in range(100):
        answer = subprocess.run([penstock, "df", *TLS, "--timeout", "1000", url(addr)], stdout=subprocess.DEVNULL,
                                stderr=subprocess.PIPE, text=True)
        if answer.returncode == 0:
            return p
        if p.poll() is not None:
            break
        time.sleep(0.1)
    log.flush()
    raise Failed("%s did not start: %s %s" % (name, answer.stderr.strip(), open(log.name, encoding="utf-8").read().strip()[-600:]))


def url(addr):
    return "penstock://%s/ml/set" % addr


TLS = ["--ca", work + "/ca.pem", "--cert", work + "/agent-tls/host.pem", "--key", work + "/agent-tls/host.key"]


def start(m):
    """The server keeps what it gets, and trusts agent and host; the agent has a certificate of its own, and the key."""
    run(penstock, "tls", "init", work + "/server-tls", "--server-name", SERVER, "--client", "agent")
    run(penstock, "tls", "init", work + "/agent-tls", "--server-name", AGENT, "--client", "host")
    with open(work + "/ca.pem", "w", encoding="utf-8") as f:  # either side takes certificates of both
        for name in ("server", "agent"):
            f.write(open("%s/%s-tls/ca.pem" % (work, name), encoding="utf-8").read())
    with open(os.open(work + "/tenant.key", os.O_CREAT | os.O_WRONLY, 0o600), "wb") as f:
        f.write(os.urandom(32))
    os.mkdir(work + "/sockets", 0o755)
    server = daemon("server", m.server, SERVER, "store: {url: 'local:%s/store', options: [create=1]}\n"
                    "pools: [{label: ml, containers: [{label: set}]}]\n" % work,
                    "  - {name: agent, cn: agent, any_uid: true, admin: true}\n"
                    "  - {name: host, cn: host, any_uid: true}\n")
    store = ("role: agent\nbackend: {{url: 'penstock://{s}', ca: {w}/ca.pem, cert: {w}/server-tls/agent.pem, "
             "key: {w}/server-tls/agent.key}}\nfilters: [{f}]\n").format(s=SERVER, w=work, f=", ".join("'%s'" % f for f in filters))
    export = "" if args.crossing else ", export_listen: %s/sockets/agent" % work
    agent = daemon("agent", m.agent, AGENT, store, "  - {name: host, cn: host, any_uid: true}\n", export)
    return server, agent


# ---- mounts ----

WAYS = {"agent": (AGENT, []), "host": (SERVER, [x for f in filters for x in ("--filter", f)])}


class Mount:
    """The container on `mnt`, by one process."""

    def __init__(self, way):
        addr, opts = WAYS[way]
        self.log = open(work + "/mount.log", "a", encoding="utf-8")
        self.process = subprocess.Popen([penstock, "mount", "-f", "--no-supervisor", *TLS, *opts, url(addr), mnt],
                                        stdout=self.log, stderr=self.log)
        while not os.path.ismount(mnt):
            if self.process.poll() is not None:
                raise Failed("the mount ended: " + open(work + "/mount.log", encoding="utf-8").read().strip()[-600:])
            time.sleep(0.02)

    def cpu(self):
        f = open("/proc/%d/stat" % self.process.pid, encoding="utf-8").read().rsplit(")", 1)[1].split()
        return (int(f[11]) + int(f[12])) / TICK

    def end(self):
        run("umount", mnt)
        if self.process.wait(60):
            raise Failed("the mount ended with status %d" % self.process.returncode)


# ---- the same files both ways ----

def entries():
    return sum(len(d) + len(f) for t in args.tree for _, d, f in os.walk(t))


def compare(way, root, what):
    for t in args.tree:
        out = run(os.path.join(HERE, "compare-trees"), t, os.path.join(root, os.path.basename(t)))
        say("   %s, %s: %s" % (what, t, out.strip().splitlines()[-1]))


def round_trip(way):
    """Stored through a mount, read back through another one, the C API and the command."""
    addr, opts = WAYS[way]
    top = "by-" + way
    m = Mount(way)
    os.mkdir(os.path.join(mnt, top))
    t0 = time.monotonic()
    for t in args.tree:
        run("cp", "-a", t, os.path.join(mnt, top, os.path.basename(t)))
    say("   stored, durable: %d entries in %.1f s" % (entries(), time.monotonic() - t0))
    m.end()
    m = Mount(way)
    compare(way, os.path.join(mnt, top), "mount")
    m.end()
    os.mkdir(os.path.join(work, "back"))
    env = dict(os.environ, PENSTOCK_FILTERS=" ".join(opts[1::2]), PENSTOCK_CA_FILE=TLS[1], PENSTOCK_CERT_FILE=TLS[3],
               PENSTOCK_KEY_FILE=TLS[5])
    for t in args.tree:
        name = os.path.basename(t)
        run(os.path.join(args.build, "examples/verify_tree"), url(addr), "/%s/%s" % (top, name), t, env=env)
        run(penstock, "cp", "-r", "-q", *TLS, *opts, url(addr) + "/%s/%s" % (top, name), os.path.join(work, "back", name))
    say("   C API: identical")
    compare(way, os.path.join(work, "back"), "command")
    shutil.rmtree(os.path.join(work, "back"))


def crossed():
    """What was written by one is read by the other, with the same key."""
    for way, other in (("agent", "host"), ("host", "agent")):
        m = Mount(other)
        compare(other, os.path.join(mnt, "by-" + way), "stored by the %s, read by the %s" % (way, other))
        m.end()


def unreadable():
    """Without the key the server has nothing to read."""
    t = args.tree[0]
    name = next(os.path.relpath(os.path.join(d, f), t) for d, _, fs in os.walk(t) for f in fs
                if os.path.isfile(os.path.join(d, f)) and os.path.getsize(os.path.join(d, f)) > 0)
    p = subprocess.run([penstock, "cat", *TLS, url(SERVER) + "/by-agent/%s/%s" % (os.path.basename(t), name)],
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if p.returncode == 0 or p.stdout:
        raise Failed("the server hands out plain bytes of " + name)
    say("   the server itself cannot read a file: " + p.stderr.decode().strip())


# ---- the host's processor time ----

def busy():
    f = [int(x) for x in open("/proc/stat", encoding="utf-8").readline().split()[1:]]
    return (sum(f[:7]) - f[3] - f[4]) / TICK


def measured(mount, *argv):
    """Seconds of the mount's process, of the program, of the machine, and on the clock."""
    before, all_before, t0 = mount.cpu(), busy(), time.monotonic()
    p = subprocess.Popen(argv, stderr=subprocess.PIPE)
    _, status, use = os.wait4(p.pid, 0)
    p.returncode = os.waitstatus_to_exitcode(status)
    if p.returncode:
        raise Failed("%s: %s" % (" ".join(argv), p.stderr.read().decode().strip()[-400:]))
    gib = args.size * (1 << 20) / GIB
    return {"mount": (mount.cpu() - before) / gib, "program": (use.ru_utime + use.ru_stime) / gib,
            "machine": (busy() - all_before) / gib, "seconds": (time.monotonic() - t0) / gib}


def text(path):
    """Real text: what is in the trees, and again."""
    left = args.size << 20
    names = [os.path.join(d, f) for t in args.tree for d, _, fs in sorted(os.walk(t)) for f in sorted(fs)]
    with open(path, "wb") as out:
        while left:
            before = left
            for name in names:
                if os.path.isfile(name) and not name.endswith((".gz", ".png", ".so")):
                    left -= out.write(open(name, "rb").read(left))
            if left == before:
                raise Failed("there is nothing in the trees to make text of")


def random(path):
    with open(path, "wb") as out:
        for _ in range(args.size):
            out.write(os.urandom(1 << 20))


def cell(way, content, n):
    """A file to a fresh mount, and back from another."""
    name = "%s/%s-%s-%d" % (mnt, way, content, n)
    m = Mount(way)
    w = measured(m, "dd", "if=%s/%s" % (src, content), "of=" + name, "bs=1M", "conv=fsync", "status=none")
    m.end()
    m = Mount(way)
    r = measured(m, "dd", "if=" + name, "of=/dev/null", "bs=1M", "status=none")
    run("cmp", name, "%s/%s" % (src, content))
    os.unlink(name)
    m.end()
    return {"write": w, "read": r}


def host_cpu():
    """Returns whether the goal is met."""
    got = {}
    run("mount", "-t", "tmpfs", "-o", "size=%dM" % (2 * args.size + 16), "none", src)
    text(src + "/text")
    random(src + "/random")
    for n in range(args.rounds):
        for content in ("text", "random"):
            for way in sorted(WAYS, reverse=n % 2 == 1):
                for work_, m in cell(way, content, n).items():
                    got.setdefault((work_, content, way), []).append(m)
    ok = True
    for work_ in ("write", "read"):
        for content in ("text", "random"):
            med = {way: {k: statistics.median(x[k] for x in got[work_, content, way])
                         for k in ("mount", "program", "machine", "seconds")} for way in WAYS}
            a, h = med["agent"], med["host"]
            ratio = (a["mount"] + a["program"]) / (h["mount"] + h["program"])
            say("host CPU, %s, %s: %.2f s/GiB through the agent (mount %.2f, dd %.2f), %.2f s/GiB with the same filters in the host "
                "(mount %.2f, dd %.2f): %.2f of it%s"
                % (work_, content, a["mount"] + a["program"], a["mount"], a["program"], h["mount"] + h["program"], h["mount"],
                   h["program"], ratio, "" if work_ == "read" else "; goal %.2f at most" % GOAL))
            say("   whole machine: %.2f and %.2f s/GiB; rate: %.0f and %.0f MB/s"
                % (a["machine"], h["machine"], GIB / 1e6 / a["seconds"], GIB / 1e6 / h["seconds"]))
            ok = ok and (work_ == "read" or ratio <= GOAL)
    return ok


def main():
    for d in (mnt, src):
        os.mkdir(d)
    m = Machines()
    say("\n== 1. server, agent and host, each in a network namespace of its own")
    start(m)
    say("   server %s, agent %s with %s" % (SERVER, AGENT, ", ".join(f.split(":")[0] for f in filters)))
    mount = Mount("agent")
    for line in run(penstock, "status", *TLS, "penstock://" + AGENT).splitlines():
        if line.startswith(("data.", "role", "backend", "placement", "filter", "mount")):
            say("   " + line)
    mount.end()
    for n, (way, text_) in enumerate((("agent", "through the agent"), ("host", "direct, with the filters in the host")), 2):
        say("\n== %d. the trees %s" % (n, text_))
        round_trip(way)
    say("\n== 4. each reads what the other stored; the server reads nothing")
    crossed()
    unreadable()
    say("\n== 5. processor time of the host: files of %d MiB, medians of %d rounds" % (args.size, args.rounds))
    ok = host_cpu()
    say("\n== all identical" + ("" if ok else ", but the goal for writes is missed"))
    return 0 if ok else 3


signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
try:
    sys.exit(main())
except Failed as e:
    print("penstock-demo: %s" % e, file=sys.stderr)
    sys.exit(1)
except KeyboardInterrupt:
    sys.exit(130)
