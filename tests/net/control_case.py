"""What the tests of the control plane share. The stubs are there before this is imported (control_stubs)."""
import queue
import unittest

import grpc
from penstock.v1 import common_pb2 as co

from control_server import Client, Server

Code = grpc.StatusCode
ROOT = 1
ALICE = co.Cred(uid=1000, gid=1000)
BOB = co.Cred(uid=1001, gid=1001)


class Case(unittest.TestCase):
    def fails(self, code, name, call, *args, text=None, **kw):
        """The call fails with this status, errno in details and metadata."""
        with self.assertRaises(grpc.RpcError) as e:
            call(*args, **kw)
        e = e.exception
        self.assertEqual((e.code(), e.details().split(":")[0]), (code, name), e.details())
        self.assertEqual(dict(e.trailing_metadata()).get("penstock-errno"), name)
        if text:
            self.assertIn(text, e.details())
        return e.details()


class Shared(Case):
    """Tests that share one server, with a session of the token file and a container of their own."""

    @classmethod
    def setUpClass(cls):
        cls.server = Server("--cred", "name=alice,token=alice-token,uid=1000,gid=1000",
                            "--cred", "name=bob,token=bob-token,uid=1001,gid=1001",
                            "--cred", "name=farm,token=farm-token,uid=5,gid=5,any")
        cls.target = f"127.0.0.1:{cls.server.port}"
        cls.root = Client(cls.target).open(cls.server.token()).make_container()
        cls.root.open_container()

    @classmethod
    def tearDownClass(cls):
        cls.root.close()
        assert cls.server.stop() == 0, "the server ended badly"

    def client(self, token, **kw):
        c = Client(self.target)
        self.addCleanup(c.close)
        return c.open(token, **kw)


class Pipe:
    """The requests of a Stream: what is put comes out; None ends it."""

    def __init__(self):
        self.q = queue.Queue()

    def __iter__(self):
        return iter(self.q.get, None)
