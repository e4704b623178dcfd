#!/usr/bin/python3
"""What strangers do to the control port: garbage, half-open connections, no descriptors left. Others are served on.

usage: control_hostile.py CTL_SERVER PROTO_DIR GRPC_PROTO_DIR, with PENSTOCK the command
"""
import os
import random
import resource
import shutil
import socket
import subprocess
import sys
import threading
import time
import unittest

import control_stubs

STUBS = control_stubs.generate(sys.argv[2], sys.argv[3])

from penstock.v1 import namespace_pb2 as ns  # noqa: E402
from penstock.v1 import status_pb2 as st  # noqa: E402

import control_server  # noqa: E402
from control_server import Client, Server  # noqa: E402

control_server.EXE = os.path.abspath(sys.argv[1])
PENSTOCK = os.environ["PENSTOCK"]
EXTENDED = bool(os.environ.get("PENSTOCK_EXTENDED"))
SEED = int(os.environ.get("PENSTOCK_SEED") or time.time_ns())
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def descriptors(s):
    return len(os.listdir(f"/proc/{s.process.pid}/fd"))


class Hostile(unittest.TestCase):
    def connect(self, s):
        c = socket.create_connection(("127.0.0.1", s.port), 20)
        self.addCleanup(c.close)
        return c

    def works(self, s, timeout=20):
        # A connection of its own, not one that another test has.
        with Client(f"127.0.0.1:{s.port}", None, [("grpc.use_local_subchannel_pool", 1)]) as c:
            c.open(s.token()).open_container()
            c.ns.Statfs(ns.StatfsRequest(header=c.header()), timeout=timeout)

    def dropped(self, c):
        m = c.status.Metrics(st.MetricsRequest(session=c.session)).metrics
        return sum(x.value for x in m if x.name == "penstock_dropped_connections_total")

    def prepare(self, s):
        with Client(f"127.0.0.1:{s.port}") as c:
            c.open(s.token()).make_container()

    def test_garbage_is_thrown_out(self):
        rng = random.Random(SEED)
        print("seed", SEED)
        with Server() as s:
            self.prepare(s)
            for i in range(3000 if EXTENDED else 150):
                c = self.connect(s)
                data = rng.randbytes(rng.randrange(1, 2000))
                if i % 3 == 0:
                    data = PREFACE + data
                elif i % 3 == 1:  # frames with honest headers
                    body = rng.randbytes(rng.randrange(64))
                    data = PREFACE + b"\0\0\0\4\0\0\0\0\0" + len(body).to_bytes(3, "big") + bytes(
                        [rng.randrange(10), rng.randrange(256)]) + rng.randrange(8).to_bytes(4, "big") + body
                try:
                    c.sendall(data)
                except OSError:
                    pass
                if i % 2:
                    c.close()
            self.works(s)

    def test_half_open_connections_do_not_keep_others_out(self):
        n = 2000 if EXTENDED else 300
        with Server() as s:
            self.prepare(s)
            before = descriptors(s)
            socks = [self.connect(s) for _ in range(n)]
            for c in socks[::2]:
                c.sendall(PREFACE + b"\0\0\0\4\0\0\0\0\0")
            self.works(s)
            for c in socks:
                c.close()
            while descriptors(s) > before + 20:  # they go with their peers
                time.sleep(0.05)
            self.works(s)

    def test_without_descriptors_it_recovers_once_there_are_some(self):
        with Server(files=128) as s:
            self.prepare(s)
            before = descriptors(s)
            with Client(f"127.0.0.1:{s.port}") as old:
                old.open(s.token()).open_container()
                socks = [self.connect(s) for _ in range(400)]
                old.ns.Statfs(ns.StatfsRequest(header=old.header()), timeout=20)
                while not self.dropped(old):
                    time.sleep(0.05)
                self.assertLess(descriptors(s), 128 - 128 // 4 + 10)  # some are kept for files
                for c in socks:
                    c.close()
                while descriptors(s) > before + 20:
                    time.sleep(0.05)
                self.works(s)

    def test_a_client_asks_again_while_there_are_too_many_calls(self):
        with Server("--max-calls", "2") as s:
            over = threading.Event()

            def requests():
                over.wait(60)
                yield from ()

            with Client(f"127.0.0.1:{s.port}") as other:
                held = other.ns.Stream(requests(), timeout=60)
                p = subprocess.Popen([PENSTOCK, "pool", "create", f"penstock://127.0.0.1:{s.port}/late"],
                                     stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                     env=dict(os.environ, PENSTOCK_RUN_DIR=s.run_dir))
                time.sleep(1)
                self.assertIsNone(p.poll(), "it has not waited: there was room, or it gave up")
                over.set()
                out = p.communicate(timeout=60)[0]
                self.assertEqual(p.returncode, 0, out)
                del held


if __name__ == "__main__":
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard != resource.RLIM_INFINITY and hard < 4096 else 4096, hard))
    test = unittest.main(argv=sys.argv[:1], verbosity=2, exit=False)
    shutil.rmtree(STUBS, ignore_errors=True)
    sys.exit(not test.result.wasSuccessful())
