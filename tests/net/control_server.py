"""Runs the C control server for a test and speaks to it as a data plane and as a client would."""
import os
import shutil
import subprocess
import tempfile

import grpc
from penstock.v1 import (admin_pb2, admin_pb2_grpc, capability_pb2, capability_pb2_grpc, common_pb2, namespace_pb2,
                         namespace_pb2_grpc, session_pb2, session_pb2_grpc, status_pb2, status_pb2_grpc)

# set by the test's main
EXE = None
SCRATCH = None  # a folder for what it makes


class Server:
    """A server with a fresh store on 127.0.0.1 (and whatever args add)."""

    def __init__(self, *args, listen=("127.0.0.1:0",), store=None, files=None):
        self.dir = tempfile.mkdtemp(prefix="penstock-ctl-")
        self.run_dir = os.path.join(self.dir, "run")
        store = store or os.path.join(self.dir, "store")
        os.makedirs(store, exist_ok=True)
        # On a busy machine the tests of a class take longer than a session lives that nobody renews.
        cmd = [EXE, f"local:{store}", "--lease-ms", "600000", "--ticket-ms", "600000", *args]
        for a in listen:
            cmd += ["--listen", a]
        limit = ["prlimit", f"--nofile={files}"] if files else []
        self.process = subprocess.Popen(limit + cmd, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env=dict(os.environ, PENSTOCK_RUN_DIR=self.run_dir))
        self.ports = []
        while True:
            line = self.process.stdout.readline()
            if not line:
                self.stop()
                raise RuntimeError("the server did not start")
            if line == "ready\n":
                break
            self.ports.append(int(line.split()[1]))
        self.port = self.ports[0]

    def token(self):
        with open(os.path.join(self.run_dir, f"{self.port}.token")) as f:
            return f.read().encode()

    def command(self, line):
        """What the data plane asks of the server: a list of words."""
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().split()

    def refused(self, reason):
        return int(self.command(f"refused {reason}")[1])

    def stop(self):
        """Returns the exit status: a sanitizer's findings show here."""
        if self.process.poll() is None:
            self.process.stdin.close()
            self.process.wait(300)
        self.process.stdout.close()
        shutil.rmtree(self.dir, ignore_errors=True)
        return self.process.returncode

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        status = self.stop()
        if not exc[0]:
            assert status == 0, f"the server ended with status {status}"


class Recorder(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor,
               grpc.StreamStreamClientInterceptor):
    """Which methods were called, over all channels."""
    called = set()

    def _note(self, next_call, details, request):
        method = details.method
        Recorder.called.add(method if isinstance(method, str) else method.decode())
        return next_call(details, request)

    intercept_unary_unary = intercept_unary_stream = intercept_stream_stream = _note


class Client:
    """A channel with a stub for each service, and a session once open() is called."""

    def __init__(self, target, credentials=None, options=()):
        self.channel = grpc.secure_channel(target, credentials, options) if credentials else \
            grpc.insecure_channel(target, options)
        c = grpc.intercept_channel(self.channel, Recorder())
        self.session_service = session_pb2_grpc.SessionServiceStub(c)
        self.pools = admin_pb2_grpc.PoolServiceStub(c)
        self.containers = admin_pb2_grpc.ContainerServiceStub(c)
        self.ns = namespace_pb2_grpc.NamespaceServiceStub(c)
        self.caps = capability_pb2_grpc.CapabilityServiceStub(c)
        self.status = status_pb2_grpc.StatusServiceStub(c)
        self.tenant = admin_pb2_grpc.TenantServiceStub(c)
        self.raw = c
        self.session = b""
        self.handle = 0
        self.sequence = 0

    def open(self, token=b"", purpose="api", client_id=None, fence=False):
        self.client_id = client_id or os.urandom(16)
        self.opened = self.session_service.Open(session_pb2.SessionOpenRequest(
            protocol=1, software="test 1", client_id=self.client_id, token=token, purpose=purpose,
            fence=fence), timeout=120)
        self.session = self.opened.session
        return self

    def request_id(self):
        self.sequence += 1
        return common_pb2.RequestId(slot=0, sequence=self.sequence)

    def admin(self, cred=None, request_id=None):
        return admin_pb2.AdminHeader(session=self.session, cred=cred, request_id=request_id)

    def header(self, cred=None, request_id=None):
        return common_pb2.Header(session=self.session, container=self.handle, cred=cred, request_id=request_id)

    def make_container(self, pool="p", label="c", mode=0o777):
        self.pools.Create(admin_pb2.PoolCreateRequest(header=self.admin(), pool=admin_pb2.Pool(label=pool, mode=0o777)))
        self.containers.Create(admin_pb2.ContainerCreateRequest(
            header=self.admin(), container=admin_pb2.Container(label=label, pool=pool, mode=mode)))
        return self

    def open_container(self, pool="p", label="c"):
        r = self.containers.Open(admin_pb2.ContainerOpenRequest(header=self.admin(), pool=pool, label=label))
        self.handle = r.handle
        return r

    def close(self):
        self.channel.close()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()
