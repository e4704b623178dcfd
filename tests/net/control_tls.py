#!/usr/bin/python3
"""TLS of the control server: who is let in, which version, and reloading of certificates, with python3-grpcio.

usage: control_tls.py CTL_SERVER PROTO_DIR GRPC_PROTO_DIR
"""
import os
import shutil
import socket
import ssl
import subprocess
import sys
import unittest
from pathlib import Path

import control_stubs

STUBS = control_stubs.generate(sys.argv[2], sys.argv[3])

import grpc  # noqa: E402
import health_pb2  # noqa: E402
import health_pb2_grpc  # noqa: E402
from penstock.v1 import session_pb2 as se  # noqa: E402

import control_server  # noqa: E402
from control_server import Client, Server  # noqa: E402

control_server.EXE = EXE = os.path.abspath(sys.argv[1])
Code = grpc.StatusCode


def make_certs(name, client="alice", *server_names):
    d = os.path.join(STUBS, name)
    subprocess.run([EXE, "--tls-init", d, client, *server_names], check=True)
    return d


def credentials(ca, cert_dir=None, name="alice"):
    root = Path(ca, "ca.pem").read_bytes()
    if not cert_dir:
        return grpc.ssl_channel_credentials(root)
    return grpc.ssl_channel_credentials(root, Path(cert_dir, name + ".key").read_bytes(),
                                        Path(cert_dir, name + ".pem").read_bytes())


def tls_args(d):
    return ["--tls", ",".join(os.path.join(d, f) for f in ("ca.pem", "server.pem", "server.key"))]


class Tls(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.ours = make_certs("ours")
        for name in ("bob", "eve"):  # eve has a good certificate and no credential
            make_certs("ours", name)
        cls.foreign = make_certs("foreign")

    def server(self, certs=None, *more):
        s = Server("--no-local", "--cred", "name=alice,cert,uid=1000,gid=1000", "--cred", "name=bob,cert,uid=1001",
                   "--cred", "name=token,token=secret,uid=7,gid=7", "--listen", "127.0.0.1:0",
                   *tls_args(certs or self.ours), *more)
        self.addCleanup(lambda: self.assertEqual(s.stop(), 0))
        self.plain, self.port = s.ports[:2]
        return s

    def client(self, creds, port=None):
        c = Client(f"127.0.0.1:{port or self.port}", creds)
        self.addCleanup(c.close)
        return c

    def refused(self, code, name, call, *args):
        with self.assertRaises(grpc.RpcError) as e:
            call(*args)
        self.assertEqual(e.exception.code(), code, e.exception.details())
        self.assertEqual(dict(e.exception.trailing_metadata()).get("penstock-errno"), name)

    def test_a_certificate_names_its_credential(self):
        self.server()
        o = self.client(credentials(self.ours, self.ours)).open().opened
        self.assertEqual((o.uid, o.gid, o.any_uid), (1000, 1000, False))
        o = self.client(credentials(self.ours, self.ours, "bob")).open().opened
        self.assertEqual(o.uid, 1001)

    def test_strangers_do_not_get_as_far_as_a_call(self):
        self.server()
        for creds in (credentials(self.ours), credentials(self.ours, self.foreign), None):
            self.refused(Code.UNAVAILABLE, None, self.client(creds).open)
        self.refused(Code.UNAVAILABLE, None, self.client(credentials(self.foreign, self.ours)).open)

    def test_a_certificate_without_a_credential_is_refused_before_anything_is_read(self):
        s = self.server()
        c = self.client(credentials(self.ours, self.ours, "eve"))
        before = s.refused("credential")
        self.refused(Code.UNAUTHENTICATED, "EACCES", c.open)
        self.refused(Code.UNAUTHENTICATED, "EACCES", c.raw.unary_unary("/penstock.v1.StatusService/Status"), b"")
        self.assertEqual(s.refused("credential"), before + 2)
        self.assertEqual(health_pb2_grpc.HealthStub(c.raw).Check(health_pb2.HealthCheckRequest()).status, 1)

    def test_a_token_over_tls_says_whom_the_session_acts_for(self):
        self.server()
        self.assertEqual(self.client(credentials(self.ours, self.ours)).open(b"secret").opened.uid, 7)
        self.refused(Code.UNAUTHENTICATED, "EACCES", self.client(credentials(self.ours, self.ours)).open, b"wrong")

    def test_a_session_is_bound_to_its_certificate(self):
        s = self.server()
        for token in (b"", b"secret"):
            alice = self.client(credentials(self.ours, self.ours)).open(token)
            for other in (self.client(credentials(self.ours, self.ours, "bob")), self.client(None, self.plain)):
                before = s.refused("foreign_session")
                self.refused(Code.PERMISSION_DENIED, "EPERM", other.session_service.Renew,
                             se.SessionRenewRequest(session=alice.session))
                self.assertEqual(s.refused("foreign_session"), before + 1)
            alice.session_service.Renew(se.SessionRenewRequest(session=alice.session))

    def context(self, version=None):
        c = ssl.create_default_context(cafile=os.path.join(self.ours, "ca.pem"))
        c.load_cert_chain(os.path.join(self.ours, "alice.pem"), os.path.join(self.ours, "alice.key"))
        c.set_alpn_protocols(["h2"])
        if version:
            c.maximum_version = version
        return c

    def handshake(self, context, name="127.0.0.1"):
        with socket.create_connection(("127.0.0.1", self.port), 20) as s, \
                context.wrap_socket(s, server_hostname=name) as t:
            return t.version(), t.getpeercert()

    def test_only_tls_1_3(self):
        self.server()
        self.assertEqual(self.handshake(self.context())[0], "TLSv1.3")
        with self.assertRaises((ssl.SSLError, OSError)):
            self.handshake(self.context(ssl.TLSVersion.TLSv1_2))
        c = self.context(ssl.TLSVersion.TLSv1_2)
        c.set_ciphers("ALL:@SECLEVEL=0")
        with self.assertRaises((ssl.SSLError, OSError)):
            self.handshake(c)

    def test_names_in_the_certificate_are_checked(self):
        elsewhere = make_certs("elsewhere", "alice", "example.org")
        self.server(elsewhere)
        self.refused(Code.UNAVAILABLE, None, self.client(credentials(elsewhere, elsewhere)).open)
        c = Client(f"127.0.0.1:{self.port}", credentials(elsewhere, elsewhere),
                   [("grpc.ssl_target_name_override", "example.org")])
        self.addCleanup(c.close)
        c.open()

    def test_certificates_are_reloaded_when_the_files_change(self):
        live = os.path.join(STUBS, "live")
        shutil.copytree(make_certs("first", "alice", "localhost", "127.0.0.1"), live)
        second = make_certs("second", "alice", "localhost", "127.0.0.1", "new.example")
        s = self.server(live)
        old = self.client(credentials(live, live)).open()
        old_creds, new_creds = credentials(live, live), credentials(second, second)

        # A half of a pair is not taken: what was there goes on.
        shutil.copy(os.path.join(second, "server.key"), os.path.join(live, "server.key"))
        self.client(old_creds).open()
        os.truncate(os.path.join(live, "server.key"), 10)
        self.client(old_creds).open()
        os.unlink(os.path.join(live, "server.key"))
        self.client(old_creds).open()

        for f in ("server.key", "server.pem", "ca.pem"):
            shutil.copy(os.path.join(second, f), os.path.join(live, f))
        self.client(new_creds).open()
        self.refused(Code.UNAVAILABLE, None, self.client(old_creds).open)
        # A connection that is there stays: its handshake was good.
        old.session_service.Renew(se.SessionRenewRequest(session=old.session))
        self.assertEqual(s.process.poll(), None)

    def test_plain_text_off_loopback_only_when_asked_for(self):
        with self.assertRaises(RuntimeError):
            Server(listen=("0.0.0.0:0",))
        with Server("--listen", "0.0.0.0:0", "--insecure", listen=()) as s, Client(f"127.0.0.1:{s.port}") as c:
            c.open(s.token())

    def test_bad_files_are_named(self):
        missing = ["--tls", "/nonexistent/ca.pem,/nonexistent/s.pem,/nonexistent/s.key"]
        mixed = ["--tls", ",".join([f"{self.ours}/ca.pem", f"{self.ours}/server.pem", f"{self.foreign}/server.key"])]
        for args, text in ((missing, "/nonexistent/ca.pem: No such file"), (mixed, "is not the key of")):
            store = os.path.join(STUBS, "unused")
            os.makedirs(store, exist_ok=True)
            p = subprocess.run([EXE, f"local:{store}", *args, "--listen", "127.0.0.1:0"], stdin=subprocess.DEVNULL,
                               capture_output=True, text=True)
            self.assertEqual(p.returncode, 1)
            self.assertIn(text, p.stderr)

    def test_init_makes_private_keys_and_does_not_overwrite(self):
        d = make_certs("fresh", "carol")
        for f in ("ca.key", "server.key", "carol.key"):
            self.assertEqual(os.stat(os.path.join(d, f)).st_mode & 0o777, 0o600)
        before = {f.name: f.read_bytes() for f in Path(d).iterdir()}
        p = subprocess.run([EXE, "--tls-init", d, "carol"], capture_output=True, text=True)
        self.assertEqual(p.returncode, 1)
        self.assertIn("carol", p.stderr)
        for name in ("../x", "server", "ca", "a b", "x" * 64, ""):
            self.assertEqual(subprocess.run([EXE, "--tls-init", d, name], capture_output=True).returncode, 1, name)
        make_certs("fresh", "dave")
        after = {f.name: f.read_bytes() for f in Path(d).iterdir()}
        self.assertEqual({k: after[k] for k in before}, before)
        self.assertEqual(set(after) - set(before), {"dave.pem", "dave.key"})
        for cert in ("server", "carol", "dave"):
            subprocess.run(["openssl", "verify", "-x509_strict", "-CAfile", f"{d}/ca.pem", f"{d}/{cert}.pem"],
                           check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    test = unittest.main(argv=sys.argv[:1], verbosity=2, exit=False)
    shutil.rmtree(STUBS, ignore_errors=True)
    sys.exit(not test.result.wasSuccessful())
