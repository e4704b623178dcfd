"""Server, agent and host on one machine: each in a network namespace of its own, with cables between them and TLS.

For who runs as the first process of a process namespace, in a network and mount namespace of its own, which is the host's: what is
started and made here ends with it (tools/demo-agent, bench/agent).
"""
import os
import subprocess
import time

SERVER, AGENT = "10.78.2.1", "10.78.1.1"


class Failed(Exception):
    pass


def run(*argv, **kw):
    p = subprocess.run([str(a) for a in argv], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **kw)
    if p.returncode:
        raise Failed("%s: %s" % (" ".join(map(str, argv)), p.stdout.strip()[-600:]))
    return p.stdout


def net_of(pid):
    return os.readlink("/proc/%d/ns/net" % pid)


def namespace():
    """A process in a network namespace of its own; it ends with this one, as the process namespace does."""
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


def url(addr, port=7440, container="set"):
    return "penstock://%s:%d/ml/%s" % (addr, port, container)


CONFIG = """
{store}control:
  listen: ['{addr}:{port}']
  tls: {{ca: {work}/ca.pem, cert: {work}/{tls}-tls/server.pem, key: {work}/{tls}-tls/server.key}}
data: {{listen: '{addr}:{data_port}', security: clear{data}}}
metrics: {{listen: 'off'}}
log: warn
credentials:
{credentials}"""


class Machines:
    """work: a directory that is there; penstock: the command; provider: libfabric's, of all connections."""

    def __init__(self, work, penstock, provider=""):
        self.work, self.penstock, self.provider = work, penstock, provider
        self.tls = ["--ca", work + "/ca.pem", "--cert", work + "/agent-tls/host.pem", "--key", work + "/agent-tls/host.key"]
        self.environment = {"PENSTOCK_CA_FILE": self.tls[1], "PENSTOCK_CERT_FILE": self.tls[3], "PENSTOCK_KEY_FILE": self.tls[5]}
        self.host, self.agent, self.server = os.getpid(), namespace(), namespace()
        for pid in (self.host, self.agent, self.server):
            run(*within(pid, "ip", "link", "set", "lo", "up"))
        link(self.host, "10.78.1.2", self.agent, AGENT, "ha")
        link(self.agent, "10.78.2.2", self.server, SERVER, "as")
        link(self.host, "10.78.3.2", self.server, "10.78.3.1", "hs")
        run("ip", "route", "add", SERVER, "via", "10.78.3.1")  # the host reaches the server by a cable of its own
        run(penstock, "tls", "init", work + "/server-tls", "--server-name", SERVER, "--client", "agent")
        run(penstock, "tls", "init", work + "/agent-tls", "--server-name", AGENT, "--client", "host")
        with open(work + "/ca.pem", "w", encoding="utf-8") as f:  # either side takes certificates of both
            for name in ("server", "agent"):
                f.write(open("%s/%s-tls/ca.pem" % (work, name), encoding="utf-8").read())
        with open(os.open(work + "/tenant.key", os.O_CREAT | os.O_WRONLY, 0o600), "wb") as f:
            f.write(os.urandom(32))
        os.mkdir(work + "/sockets", 0o755)

    def daemon(self, name, pid, addr, port, store, credentials, data="", prefix=(), container="set"):
        """penstock serve in a namespace, by the command `prefix`; returns its process once it answers for the container."""
        path = os.path.join(self.work, name + ".yaml")
        provider = ", provider: " + self.provider if self.provider else ""
        with open(path, "w", encoding="utf-8") as f:
            f.write(CONFIG.format(store=store, addr=addr, port=port, data_port=port + 10, work=self.work, data=provider + data,
                                  tls="server" if addr == SERVER else "agent", credentials=credentials))
        log = open(os.path.join(self.work, name + ".log"), "w", encoding="utf-8")
        p = subprocess.Popen(within(pid, *prefix, self.penstock, "serve", "-c", path), stdout=log, stderr=log,
                             env=dict(os.environ, PENSTOCK_RUN_DIR=self.work + "/run-" + name))
        for _ in range(100):
            answer = subprocess.run([self.penstock, "df", *self.tls, "--timeout", "1000", url(addr, port, container)],
                                    stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            if answer.returncode == 0:
                return p
            if p.poll() is not None:
                break
            time.sleep(0.1)
        said = open(log.name, encoding="utf-8").read().strip()
        raise Failed("%s did not start: %s %s" % (name, answer.stderr.strip(), said[-600:]))

    def start_server(self, prefix=(), containers=("set",)):
        """It keeps what it gets, and trusts agents and the host."""
        return self.daemon("server", self.server, SERVER, 7440, "store: {url: 'local:%s/store', options: [create=1]}\n"
                           "pools: [{label: ml, containers: [%s]}]\n" % (self.work, ", ".join("{label: %s}" % c for c in containers)),
                           "  - {name: agent, cn: agent, any_uid: true, admin: true, origin: true}\n"
                           "  - {name: host, cn: host, any_uid: true, admin: true}\n", prefix=prefix, container=containers[0])

    def start_agent(self, name, filters, port=7440, export=False, prefix=(), container="set"):
        """It has a certificate of its own at the server, and the tenant's key where it is among the filters."""
        store = ("role: agent\nbackend: {{url: 'penstock://{s}', ca: {w}/ca.pem, cert: {w}/server-tls/agent.pem, "
                 "key: {w}/server-tls/agent.key}}\n").format(s=SERVER, w=self.work)
        if filters:
            store += "filters: [%s]\n" % ", ".join("'%s'" % f for f in filters)
        data = ", export_listen: %s/sockets/%s" % (self.work, name) if export else ""
        return self.daemon(name, self.agent, AGENT, port, store, "  - {name: host, cn: host, any_uid: true, admin: true}\n", data,
                           prefix, container)
