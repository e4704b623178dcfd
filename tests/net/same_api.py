#!/usr/bin/python3
"""The same calls to a server and to an agent, one by one: the answers and errors are the same. Each method of the control plane in
good and bad use, and then namespace operations at random (PENSTOCK_SEED), of several users.

usage: same_api.py PENSTOCK PROTO_DIR GRPC_PROTO_DIR
"""
import glob
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import control_stubs

STUBS = control_stubs.generate(sys.argv[2], sys.argv[3])

import grpc  # noqa: E402
from google.protobuf.json_format import MessageToDict  # noqa: E402
from penstock.v1 import (admin_pb2 as ad, capability_pb2 as cp, common_pb2 as co, namespace_pb2 as ns,  # noqa: E402
                         session_pb2 as se, status_pb2 as st)

from control_server import Client, Recorder  # noqa: E402

PENSTOCK = os.path.abspath(sys.argv[1])
PROVIDER = ["--provider", os.environ["PENSTOCK_TEST_PROVIDER"]] if os.environ.get("PENSTOCK_TEST_PROVIDER") else []
STEPS = 5000 if os.environ.get("PENSTOCK_EXTENDED") else 200
T = tempfile.mkdtemp(prefix="penstock-same-")
CONFIG = "credentials:\n" + "".join(f"  - {{name: {n}, token: {n}s-token-of-this-test, uid: {u}, gid: {u}{more}}}\n"
                                    for n, u, more in (("alice", 1000, ""), ("bob", 1001, ""), ("farm", 5, ", any_uid: true")))
# What differs by nature: times, and what is random or counts the store's own past.
HIDDEN = {"atime_ns", "mtime_ns", "ctime_ns", "btime_ns", "change", "uuid", "created_ns", "session", "data_key", "data", "history",
          "export_path", "tickets", "capability", "software", "key_id", "token", "used_bytes", "total_bytes", "free_bytes", "walked"}
NUMBERS = {"ino", "handle", "parent", "id", "container_id", "cookie"}  # the same where they were the same before


class Daemon:
    """Its port is known by the name of its token file."""

    def __init__(self, name, *args):
        run = f"{T}/{name}-run"
        self.p = subprocess.Popen([PENSTOCK, "serve", "--listen", "127.0.0.1:0", "--metrics", "off", "--shards", "1", "--log", "error",
                                   "--lease", "600s", "--buffer-memory", "32M", "--config", T + "/config", *PROVIDER, *args],
                                  env=dict(os.environ, PENSTOCK_RUN_DIR=run))
        while not (found := glob.glob(run + "/*.token")):
            assert self.p.poll() is None, f"{name} did not start"
            time.sleep(0.05)
        self.token_file = found[0]
        self.target = "127.0.0.1:" + os.path.basename(found[0]).split(".")[0]

    def token(self):
        with open(self.token_file, "rb") as f:
            return f.read()

    def stop(self):
        self.p.send_signal(signal.SIGTERM)
        assert self.p.wait() == 0, f"the daemon ended with status {self.p.returncode}"


class Side:
    """One of the two: its sessions, and names for the numbers that it has given."""

    def __init__(self, daemon):
        self.daemon = daemon
        self.root = self.client(daemon.token())
        self.alice, self.bob, self.farm = (self.client(f"{n}s-token-of-this-test".encode()) for n in ("alice", "bob", "farm"))
        self.of = {}     # (kind, number): its name
        self.saved = {}  # what a step keeps for later ones

    def client(self, token):
        c = Client(self.daemon.target)
        grpc.channel_ready_future(c.channel).result(timeout=60)
        c.open(token)
        c.sequences = [0] * 4
        return c

    def name(self, kind, number):
        if number in (0, 1):
            return number
        return self.of.setdefault((kind, number), f"{kind}{len(self.of)}")

    def plain(self, x, key=""):
        """A reply without what differs by nature."""
        if isinstance(x, dict):
            return {k: self.plain(v, k) for k, v in sorted(x.items()) if k not in HIDDEN}
        if isinstance(x, list):
            return [self.plain(v, key) for v in x]
        kind = "ino" if key in ("ino", "parent") else key
        return self.name(kind, int(x)) if key in NUMBERS else x

    def call(self, fn):
        try:
            reply = fn(self)
        except grpc.RpcError as e:
            return "error", e.code().name, e.details().split(":")[0]
        self.last = reply
        if reply is None:
            return "ok", None
        if not hasattr(reply, "DESCRIPTOR"):
            return "ok", reply
        return "ok", self.plain(MessageToDict(reply, preserving_proto_field_name=True))


class Pair:
    def __init__(self, server, agent):
        self.sides = Side(server), Side(agent)
        self.n = self.bad = self.errors = 0

    def same(self, what, fn):
        a, b = (s.call(fn) for s in self.sides)
        self.n += 1
        self.errors += a[0] == "error"
        if a != b:
            self.bad += 1
            print(f"{what}:\n    server {a}\n    agent  {b}")
        return a


def keep(s, key, value):
    s.saved[key] = value
    return value


# ---- each method ----

def pools(p):
    A = lambda c, **kw: c.admin(**kw)
    for who in ("root", "alice"):
        P = lambda s: getattr(s, who)
        for label in ("p", "p", "", "a/b", "x" * 128):
            p.same(f"{who} creates pool {label[:9]!r}", lambda s: P(s).pools.Create(ad.PoolCreateRequest(
                header=A(P(s)), pool=ad.Pool(label=label, mode=0o777))))
            p.same(f"{who} asks for pool {label[:9]!r}", lambda s: P(s).pools.Query(
                ad.PoolQueryRequest(header=A(P(s)), label=label)))
        for label, pool, more in (("c", "p", {}), ("c", "p", {}), ("d", "q", {}), ("", "p", {}), ("e", "p", {"chunk_size": 12345}),
                                  ("small", "p", {"chunk_size": 65536, "quota_bytes": 1 << 20}), ("f", "p", {"mode": 0o70000})):
            box = {"mode": 0o777, **more}
            p.same(f"{who} creates container {pool}/{label}", lambda s: P(s).containers.Create(ad.ContainerCreateRequest(
                header=A(P(s)), container=ad.Container(label=label, pool=pool, **box))))
            p.same(f"{who} asks for container {pool}/{label}", lambda s: P(s).containers.Query(ad.ContainerQueryRequest(
                header=A(P(s)), pool=pool, label=label)))
        for after, limit in (("", 10), ("", 0), ("p", 1), ("", 1 << 20)):
            p.same(f"{who} lists pools", lambda s: P(s).pools.List(ad.PoolListRequest(
                header=A(P(s)), after=after, limit=limit)))
            for pool in ("p", "q"):
                p.same(f"{who} lists containers of {pool}", lambda s: P(s).containers.List(ad.ContainerListRequest(
                    header=A(P(s)), pool=pool, after=after, limit=limit)))
    p.same("an owner's container in somebody's pool", lambda s: s.root.containers.Create(ad.ContainerCreateRequest(
        header=s.root.admin(cred=co.Cred(uid=1000, gid=1000)), container=ad.Container(label="g", pool="p", mode=0o750))))
    p.same("bob destroys it", lambda s: s.bob.containers.Destroy(ad.ContainerDestroyRequest(header=s.bob.admin(), pool="p", label="g")))
    p.same("bob opens it", lambda s: s.bob.containers.Open(ad.ContainerOpenRequest(header=s.bob.admin(), pool="p", label="g")))
    p.same("a pool with containers", lambda s: s.root.pools.Destroy(ad.PoolDestroyRequest(header=s.root.admin(), label="p")))
    p.same("a pool that is none", lambda s: s.root.pools.Destroy(ad.PoolDestroyRequest(header=s.root.admin(), label="none")))
    for who in ("root", "alice", "bob", "farm"):
        P = lambda s: getattr(s, who)
        p.same(f"{who} opens what is not there", lambda s: P(s).containers.Open(ad.ContainerOpenRequest(
            header=P(s).admin(), pool="p", label="none")))
        p.same(f"{who} opens", lambda s: P(s).open_container("p", "c"))
    p.same("an open container", lambda s: s.root.containers.Destroy(ad.ContainerDestroyRequest(header=s.root.admin(), pool="p", label="c")))
    p.same("destroyed", lambda s: s.root.containers.Destroy(ad.ContainerDestroyRequest(header=s.root.admin(), pool="p", label="small")))
    p.same("again", lambda s: s.root.containers.Destroy(ad.ContainerDestroyRequest(header=s.root.admin(), pool="p", label="small")))
    p.same("no handle", lambda s: s.root.containers.Close(ad.ContainerCloseRequest(header=s.root.admin(), handle=12345)))


def sessions(p):
    open_it = se.SessionOpenRequest
    for what, q in (("no token", dict(protocol=1, client_id=b"c" * 16)), ("a wrong one", dict(protocol=1, client_id=b"c" * 16, token=b"x")),
                    ("another protocol", dict(protocol=2, client_id=b"c" * 16, token=b"alices-token-of-this-test")),
                    ("a short id", dict(protocol=1, client_id=b"c", token=b"alices-token-of-this-test"))):
        p.same(f"a session with {what}", lambda s: s.alice.session_service.Open(open_it(**q)))
    for what, c in (("alice", lambda s: s.alice.session), ("none", lambda s: b""), ("a guess", lambda s: b"g" * 16)):
        p.same(f"renew {what}", lambda s: s.alice.session_service.Renew(se.SessionRenewRequest(session=c(s))))
        for shard, count in ((0, 1), (0, 0), (0, 17), (99, 1)):
            p.same(f"tickets of {what} {shard} {count}", lambda s: s.alice.session_service.Ticket(
                se.TicketRequest(session=c(s), shard=shard, count=count)))
        for call, q in (("Status", st.StatusRequest), ("Metrics", st.MetricsRequest), ("Backup", st.BackupRequest)):
            if what != "alice" or call == "Backup":
                p.same(f"{call} of {what}", lambda s: getattr(s.alice.status, call)(q(session=c(s))))
    for call, q in (("Status", st.StatusRequest), ("Metrics", st.MetricsRequest), ("Tenants", st.TenantsRequest)):
        for who in ("root", "alice"):
            p.same(f"{call} for {who}", lambda s: getattr(getattr(s, who).status, call)(q(session=getattr(s, who).session)) and None)
    # To an administrator an agent says EOPNOTSUPP: it has no engine.
    p.same("a backup", lambda s: s.alice.status.Backup(st.BackupRequest(session=s.alice.session, directory=T + "/none/at/all")))
    p.same("a scrub", lambda s: [None for _ in s.alice.status.Scrub(st.ScrubRequest(session=s.alice.session))] and None)
    p.same("third party", lambda s: s.alice.session_service.ThirdParty(se.ThirdPartyRequest(header=s.alice.admin())))
    p.same("third ticket", lambda s: s.alice.session_service.ThirdTicket(se.ThirdTicketRequest(header=s.alice.admin())))
    p.same("origins", lambda s: s.alice.session_service.Origins(se.OriginsRequest(header=s.alice.admin(), clients=[b"o" * 16])))
    p.same("a closed session", lambda s: keep(s, "gone", s.client(b"bobs-token-of-this-test")).session_service.Close(
        se.SessionCloseRequest(session=s.saved["gone"].session)))
    p.same("is over", lambda s: s.saved["gone"].ns.Getattr(ns.GetattrRequest(header=s.saved["gone"].header(), ino=1)))
    for call, q in (("Set", ad.TenantSetRequest), ("Create", ad.TenantCreateRequest), ("Delete", ad.TenantDeleteRequest),
                    ("CreateCredential", ad.CredentialCreateRequest), ("DeleteCredential", ad.CredentialDeleteRequest),
                    ("ListCredentials", ad.CredentialListRequest)):
        p.same(f"alice and {call}", lambda s: getattr(s.alice.tenant, call)(q(header=s.alice.admin())))
    p.same("credentials", lambda s: s.root.tenant.ListCredentials(ad.CredentialListRequest(header=s.root.admin())))
    p.same("a tenant by no name", lambda s: s.root.tenant.Set(ad.TenantSetRequest(header=s.root.admin(), name="none")))


def capabilities(p):
    """Grants of what is open and what is not, in each way to be refused."""
    p.same("a file", lambda s: keep(s, "cap", s.alice.ns.Create(ns.CreateRequest(
        header=s.alice.header(request_id=rid(s.alice, 0)), parent=1, name=b"cap", mode=0o640, open=True, accmode=6))))
    ino = lambda s: s.saved["cap"].attr.ino
    p.same("a directory", lambda s: keep(s, "dir", s.alice.ns.Mkdir(ns.MkdirRequest(header=s.alice.header(), parent=1, name=b"capdir", mode=0o755))))
    for closed in (False, True):
        if closed:
            p.same("closed", lambda s: s.alice.ns.Close(ns.CloseRequest(header=s.alice.header(), handle=s.saved["cap"].open.handle)))
        for who in ("alice", "bob", "farm", "root"):
            for kw in (dict(rights=4), dict(rights=6), dict(rights=0), dict(rights=1), dict(rights=4, range_offset=1 << 63, range_length=1 << 63),
                       dict(rights=4, range_offset=(1 << 64) - 1, range_length=2), dict(rights=2, range_offset=9, range_length=7),
                       dict(rights=4, lifetime_ms=1), dict(rights=4, lifetime_ms=(1 << 32) - 1)):
                P = lambda s: getattr(s, who)
                r = p.same(f"{who} is granted {kw}", lambda s: keep(s, "got", P(s).caps.Grant(
                    cp.GrantRequest(header=P(s).header(), ino=ino(s), **kw))))
                if r[0] != "error" and "lifetime_ms" not in kw:
                    for by in ("alice", "bob"):
                        p.same(f"{by} inspects it", lambda s: getattr(s, by).caps.Inspect(
                            cp.InspectRequest(session=getattr(s, by).session, capability=s.saved["got"].capability)))
    for what, n in (("nothing", lambda s: 0), ("what is not there", lambda s: 999999), ("a directory", lambda s: s.saved["dir"].attr.ino)):
        for rights in (2, 4, 6):
            p.same(f"of {what} {rights}", lambda s: s.alice.caps.Grant(cp.GrantRequest(header=s.alice.header(), ino=n(s), rights=rights)))
    for what in (b"", b"C\1" + b"k" * 8 + b"m" * 32, b"nonsense", b"x" * 2000):
        p.same("inspects nonsense", lambda s: s.alice.caps.Inspect(cp.InspectRequest(session=s.alice.session, capability=what)))
    p.same("revokes nothing", lambda s: s.alice.caps.Revoke(cp.RevokeRequest(session=s.alice.session)))
    p.same("revokes no container", lambda s: s.alice.caps.Revoke(cp.RevokeRequest(session=s.alice.session, container=999)))
    p.same("revokes no key", lambda s: s.alice.caps.Revoke(cp.RevokeRequest(session=s.alice.session, key_id=999)))
    p.same("revokes another's", lambda s: s.bob.caps.Revoke(cp.RevokeRequest(session=s.bob.session, target_session=s.alice.session)))
    p.same("a short name", lambda s: s.bob.caps.Revoke(cp.RevokeRequest(session=s.bob.session, target_session=b"x")))
    p.same("its own", lambda s: keep(s, "mine", s.alice.caps.Grant(cp.GrantRequest(header=s.alice.header(), ino=ino(s), rights=4))))
    p.same("revokes its own", lambda s: s.alice.caps.Revoke(cp.RevokeRequest(session=s.alice.session, key_id=s.saved["mine"].key_id)))
    p.same("which has ended", lambda s: s.alice.caps.Inspect(cp.InspectRequest(session=s.alice.session, capability=s.saved["mine"].capability)))
    p.same("an administrator's", lambda s: s.root.caps.Revoke(cp.RevokeRequest(session=s.root.session, target_session=s.alice.session)))
    p.same("of a container", lambda s: s.alice.caps.Revoke(cp.RevokeRequest(session=s.alice.session, container=s.alice.handle)))


# ---- names, at random ----

NAMES = [b"a", b"b", b"c", b"d", b"e", b"n" * 255, b"n" * 256, b"", b".", b"..", b"x/y", b"a/b", b"\xff\xfe"]
XATTRS = [b"user.a", b"user.b", b"trusted.a", b"security.a", b"system.posix_acl_access", b"user.", b"", b"noprefix", b"user." + b"x" * 300]


def rid(client, slot):
    client.sequences[slot] += 1
    return co.RequestId(slot=slot, sequence=client.sequences[slot])


class Names:
    """One operation at a time, of a user; objects go by the name that both sides know them by."""

    def __init__(self, p, rng):
        self.p, self.rng = p, rng
        self.inos = {1: lambda s: 1, 0: lambda s: 0, "wrong": lambda s: 987654321}
        self.open = []

    def note(self):
        """What the last answers named, the same on both sides by now."""
        first = [s.of for s in self.p.sides]
        for (kind, number), name in first[0].items():
            if kind == "ino" and name not in self.inos:
                other = [n for (k, n), m in first[1].items() if m == name and k == "ino"]
                if other:
                    self.inos[name] = {self.p.sides[0]: number, self.p.sides[1]: other[0]}.__getitem__

    def call(self, op, **fields):
        rng = self.rng
        who = rng.choice(["alice", "alice", "bob", "farm", "root"])
        cred = None
        if who in ("farm", "root") and rng.random() < 0.6:
            uid = rng.choice([0, 1000, 1001, 7])
            cred = co.Cred(uid=uid, gid=uid, groups=rng.choice([[], [1000], [5, 1001]]))
        elif rng.random() < 0.02:
            cred = co.Cred(uid=0, gid=0)
        recorded = op not in ("Lookup", "Getattr", "Readlink", "Readdir", "Parent", "Statfs", "Getxattr", "Listxattr", "Open", "Close") and \
            rng.random() < 0.7
        slot = rng.randrange(4) if recorded else None

        def fn(s):
            c = getattr(s, who)
            real = {k: v(s) if callable(v) else v for k, v in fields.items()}
            id = rid(c, slot) if recorded else None
            return getattr(c.ns, op)(getattr(ns, op + "Request")(header=c.header(cred=cred, request_id=id), **real))

        shown = {k: v for k, v in fields.items() if not callable(v)}
        r = self.p.same(f"{who} {op} {shown} as {str(cred).split() if cred else ''}", fn)
        self.note()
        return r, who

    def step(self):
        rng, some = self.rng, lambda: self.inos[rng.choice(list(self.inos))]
        name = lambda: rng.choice(NAMES if rng.random() < 0.2 else NAMES[:5])
        place = lambda: self.inos[1] if rng.random() < 0.6 else some()
        mode = lambda: rng.choice([0, 0o600, 0o644, 0o666, 0o777, 0o1777, 0o2755, 0o4755, 0o10644])
        op = rng.choice(["Lookup", "Getattr", "Setattr", "Setattr", "Create", "Create", "Create", "Mkdir", "Mkdir", "Symlink", "Mknod", "Readlink",
                         "Link", "Unlink", "Rmdir", "Rename", "Rename", "Readdir", "Parent", "Setxattr", "Getxattr", "Listxattr", "Removexattr",
                         "Open", "Open", "Close", "Write", "Write", "Fsync"])
        if op in ("Lookup", "Unlink", "Rmdir"):
            self.call(op, parent=place(), name=name())
        elif op in ("Getattr", "Readlink", "Parent", "Listxattr"):
            self.call(op, ino=some())
        elif op == "Setattr":
            mask = rng.choice([1, 2, 4, 6, 8, 8, 8, 16, 64, 128, 0, 256, 9])
            attr = co.Attr(mode=mode(), uid=rng.choice([0, 1000, 1001]), gid=rng.choice([0, 5, 1000]),
                           size=rng.choice([0, 1, 5000, 1 << 20, 1 << 40, (1 << 63) - 1, 1 << 63]), atime_ns=5)
            self.call(op, ino=some(), mask=mask, attr=attr)
        elif op == "Create":
            opens = rng.random() < 0.6
            (r, who) = self.call(op, parent=place(), name=name(), mode=mode(), exclusive=rng.random() < 0.3, open=opens,
                                 accmode=rng.choice([0, 2, 4, 6, 6, 8]))
            self.opened(r, who, opens)
        elif op == "Mkdir":
            self.call(op, parent=place(), name=name(), mode=mode())
        elif op == "Symlink":
            self.call(op, parent=place(), name=name(), target=rng.choice([b"a", b"/x/y", b"", b"t" * 4095, b"t" * 4096, b"t" * 5000]))
        elif op == "Mknod":
            self.call(op, parent=place(), name=name(), mode=rng.choice([0o010644, 0o020644, 0o060600, 0o140777, 0o100644, 0o040755, 0]), rdev=5)
        elif op == "Link":
            self.call(op, ino=some(), parent=place(), name=name())
        elif op == "Rename":
            self.call(op, parent=place(), name=name(), new_parent=place(), new_name=name(), flags=rng.choice([0, 0, 0, 1, 2, 3, 8]))
        elif op == "Readdir":
            self.call(op, ino=place(), cookie=0, with_attr=rng.random() < 0.5, limit=rng.choice([0, 4096, 4096, 4097]))
        elif op == "Setxattr":
            self.call(op, ino=some(), name=rng.choice(XATTRS), value=rng.choice([b"", b"v", b"v" * 65536, b"v" * 65537]), flags=rng.choice([0, 0, 1, 2, 3]))
        elif op in ("Getxattr", "Removexattr"):
            self.call(op, ino=some(), name=rng.choice(XATTRS))
        elif op == "Open":
            (r, who) = self.call(op, ino=some(), accmode=rng.choice([0, 2, 4, 6, 1]), truncate=rng.random() < 0.2)
            self.opened(r, who, True)
        elif op == "Close" and self.open and rng.random() < 0.8:
            who, handle, _ = self.open.pop(rng.randrange(len(self.open)))
            self.p.same(f"{who} Close", lambda s: getattr(s, who).ns.Close(ns.CloseRequest(header=getattr(s, who).header(), handle=handle(s))))
        elif op == "Close":
            self.call(op, handle=77777)
        elif op == "Write" and self.open:
            who, handle, ino = rng.choice(self.open)
            data = rng.choice([b"w", b"w" * 4000, b"w" * 16384, b"w" * 16385, b""])
            offset, durable = rng.choice([0, 1, 8192, 1 << 41, (1 << 63) - 1]), rng.random() < 0.2
            self.p.same(f"{who} Write {len(data)} at {offset}", lambda s: getattr(s, who).ns.Write(ns.WriteRequest(
                header=getattr(s, who).header(), ino=ino(s), handle=handle(s), offset=offset, data=data, durable=durable)))
        elif op == "Fsync":
            self.call(op, ino=some(), whole_container=rng.random() < 0.3)

    def opened(self, r, who, opens):
        if r[0] == "error" or not opens:
            return
        replies = {s: s.last for s in self.p.sides}
        inner = lambda s: replies[s].open if hasattr(replies[s], "open") else replies[s]
        self.open.append((who, lambda s: inner(s).handle, lambda s: inner(s).attr.ino))


def main():
    seed = int(os.environ.get("PENSTOCK_SEED") or random.SystemRandom().randrange(1 << 31))
    print(f"PENSTOCK_SEED={seed}", flush=True)
    os.makedirs(T + "/alone"), os.makedirs(T + "/behind")
    with open(T + "/config", "w") as f:
        f.write(CONFIG)
    alone = Daemon("alone", "--store", f"local:{T}/alone", "--store-option", "create=1")
    behind = Daemon("behind", "--store", f"local:{T}/behind", "--store-option", "create=1")
    agent = Daemon("agent", "--role", "agent", "--backend", f"penstock://{behind.target}", "--backend-token-file", behind.token_file)
    p = Pair(alone, agent)
    pools(p)
    sessions(p)
    capabilities(p)
    names = Names(p, random.Random(seed))
    for _ in range(STEPS):
        names.step()
    p.same("the whole of it", lambda s: s.root.ns.Readdir(ns.ReaddirRequest(header=s.root.header(), ino=1, with_attr=True, limit=4096)))
    p.same("space", lambda s: s.root.ns.Statfs(ns.StatfsRequest(header=s.root.header())))
    for s in p.sides:
        for c in (s.root, s.alice, s.bob, s.farm):
            c.close()
    print(f"{p.n} calls, {p.errors} of them errors, {len(Recorder.called)} methods: {p.bad} differ")
    for d in (agent, behind, alone):
        d.stop()
    sys.exit(p.bad > 0)


try:
    main()
finally:
    shutil.rmtree(T, ignore_errors=True)
    shutil.rmtree(STUBS, ignore_errors=True)
