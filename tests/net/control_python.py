#!/usr/bin/python3
"""Calls every method of the C control server with Debian's python3-grpcio.

usage: control_python.py CTL_SERVER PROTO_DIR GRPC_PROTO_DIR [test ...]
"""
import os
import queue
import shutil
import sys
import threading
import time
import unittest

import control_stubs

STUBS = control_stubs.generate(sys.argv[2], sys.argv[3])

import grpc  # noqa: E402
import health_pb2  # noqa: E402
import health_pb2_grpc  # noqa: E402
import reflection_v1_pb2  # noqa: E402
import reflection_v1_pb2_grpc  # noqa: E402
import reflection_v1alpha_pb2  # noqa: E402
import reflection_v1alpha_pb2_grpc  # noqa: E402
from google.protobuf import descriptor_pb2  # noqa: E402
from penstock.v1 import admin_pb2 as ad  # noqa: E402
from penstock.v1 import capability_pb2 as cap  # noqa: E402
from penstock.v1 import common_pb2 as co  # noqa: E402
from penstock.v1 import namespace_pb2 as ns  # noqa: E402
from penstock.v1 import session_pb2 as se  # noqa: E402
from penstock.v1 import status_pb2 as st  # noqa: E402

import control_server  # noqa: E402
from control_server import Client, Recorder, Server  # noqa: E402

control_server.EXE = os.path.abspath(sys.argv[1])
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


class Sessions(Shared):
    def test_open_tells_what_the_client_needs(self):
        o = self.client(b"alice-token").opened
        self.assertEqual((len(o.session), len(o.data_key), o.protocol, o.uid, o.gid, o.any_uid, o.slots),
                         (16, 32, 1, 1000, 1000, False, 1024))
        self.assertTrue(o.lease_ms and o.software.startswith("penstock "))
        self.assertEqual([(d.provider, d.shard, d.text) for d in o.data], [("tcp", 0, "127.0.0.1:4712")])
        self.assertEqual(len(o.data[0].address), 16)
        self.assertEqual(self.root.opened.any_uid, os.geteuid() == 0)

    def test_renew_close_and_then_it_is_gone(self):
        c = self.client(b"alice-token")
        self.assertEqual(c.session_service.Renew(se.SessionRenewRequest(session=c.session)).lease_ms, c.opened.lease_ms)
        c.session_service.Close(se.SessionCloseRequest(session=c.session))
        for call, req in ((c.session_service.Renew, se.SessionRenewRequest), (c.session_service.Close,
                          se.SessionCloseRequest), (c.session_service.Ticket, se.TicketRequest)):
            self.fails(Code.UNAUTHENTICATED, "ESTALE", call, req(session=c.session))
        self.fails(Code.UNAUTHENTICATED, "ESTALE", c.ns.Statfs, ns.StatfsRequest(header=c.header()))

    def test_version_mismatch_names_both(self):
        c = Client(self.target)
        self.addCleanup(c.close)
        text = self.fails(Code.FAILED_PRECONDITION, "EPROTO", c.session_service.Open, se.SessionOpenRequest(
            protocol=7, software="newer 9.1\x01", client_id=bytes(16), token=b"alice-token"))
        self.assertTrue("protocol 7 (newer 9.1?)" in text and "protocol 1 (penstock" in text, text)

    def test_who_has_no_credential_is_refused(self):
        c = Client(self.target)
        self.addCleanup(c.close)
        before = self.server.refused("credential")
        for token in (b"", b"wrong", b"alice-toke", b"alice-token\0", os.urandom(70000)):
            self.fails(Code.UNAUTHENTICATED, "EACCES", c.session_service.Open, se.SessionOpenRequest(
                protocol=1, client_id=bytes(16), token=token))
        self.assertEqual(self.server.refused("credential"), before + 5)
        self.fails(Code.INVALID_ARGUMENT, "EINVAL", c.session_service.Open, se.SessionOpenRequest(
            protocol=1, client_id=b"short", token=b"alice-token"))

    def test_random_session_ids_are_refused(self):
        c = self.client(b"alice-token")
        for s in (b"", b"x", bytes(16), os.urandom(16), os.urandom(17)):
            self.fails(Code.UNAUTHENTICATED, "ESTALE", c.session_service.Renew, se.SessionRenewRequest(session=s))

    def test_tickets_work_once(self):
        c = self.client(b"alice-token")
        t = c.session_service.Ticket(se.TicketRequest(session=c.session, shard=0, count=3))
        self.assertEqual(len(t.tickets), 3)
        self.assertTrue(all(len(x) <= 48 for x in t.tickets) and t.ticket_ms)
        ok = self.server.command(f"ticket {t.tickets[0].hex()} 0")
        self.assertEqual(ok[:2], ["ok", c.session.hex()])
        self.assertNotEqual(ok[2], c.client_id.hex())  # bound to the credential
        self.assertEqual(self.server.command(f"ticket {t.tickets[0].hex()} 0"), ["err", "EACCES"])
        self.assertEqual(self.server.command(f"ticket {t.tickets[1].hex()} 1"), ["err", "EACCES"])
        self.assertEqual(self.server.command(f"ticket {t.tickets[1].hex()} 0"), ["err", "EACCES"])
        c.session_service.Close(se.SessionCloseRequest(session=c.session))
        self.assertEqual(self.server.command(f"ticket {t.tickets[2].hex()} 0"), ["err", "EACCES"])
        for bad in (dict(shard=1, count=1), dict(shard=0, count=0), dict(shard=0, count=17)):
            c2 = self.client(b"alice-token")
            self.fails(Code.INVALID_ARGUMENT, "EINVAL", c2.session_service.Ticket,
                       se.TicketRequest(session=c2.session, **bad))

    def test_unused_tickets_are_bounded(self):
        c = self.client(b"alice-token")
        self.assertEqual(len(c.session_service.Ticket(se.TicketRequest(session=c.session, count=10)).tickets), 10)
        self.assertEqual(len(c.session_service.Ticket(se.TicketRequest(session=c.session, count=10)).tickets), 6)
        self.fails(Code.RESOURCE_EXHAUSTED, "EAGAIN", c.session_service.Ticket,
                   se.TicketRequest(session=c.session, count=1))

    def test_a_client_id_means_another_client_under_another_credential(self):
        ids = []
        for token in (b"alice-token", b"bob-token", b"alice-token"):
            c = self.client(token, client_id=b"0123456789abcdef")
            t = c.session_service.Ticket(se.TicketRequest(session=c.session, count=1)).tickets[0]
            ids.append(self.server.command(f"ticket {t.hex()} 0")[2])
        self.assertEqual(ids[0], ids[2])
        self.assertNotEqual(ids[0], ids[1])


class Creds(Shared):
    def test_a_plain_credential_acts_as_itself_only(self):
        c = self.client(b"alice-token")
        c.open_container()
        before = self.server.refused("cred")
        c.ns.Statfs(ns.StatfsRequest(header=c.header()))
        c.ns.Statfs(ns.StatfsRequest(header=c.header(ALICE)))
        c.ns.Statfs(ns.StatfsRequest(header=c.header(co.Cred(uid=1000, gid=1000, groups=[1000]))))
        for cred in (BOB, co.Cred(), co.Cred(uid=1000), co.Cred(uid=1000, gid=1000, groups=[0])):
            self.fails(Code.PERMISSION_DENIED, "EPERM", c.ns.Statfs, ns.StatfsRequest(header=c.header(cred)))
        self.assertEqual(self.server.refused("cred"), before + 4)

    def test_an_any_uid_credential_acts_as_anyone_but_is_no_administrator_by_that(self):
        c = self.client(b"farm-token")
        c.open_container()
        c.ns.Statfs(ns.StatfsRequest(header=c.header(co.Cred(uid=77, gid=77, groups=range(64)))))
        self.fails(Code.INVALID_ARGUMENT, "EINVAL", c.ns.Statfs,
                   ns.StatfsRequest(header=c.header(co.Cred(groups=range(65)))))
        self.fails(Code.PERMISSION_DENIED, "EPERM", c.pools.Create, ad.PoolCreateRequest(
            header=c.admin(), pool=ad.Pool(label="farm")))
        c.pools.Create(ad.PoolCreateRequest(header=c.admin(co.Cred(uid=0)), pool=ad.Pool(label="farm")))
        c.pools.Destroy(ad.PoolDestroyRequest(header=c.admin(co.Cred(uid=0)), label="farm"))

    def test_files_keep_others_out(self):
        c = self.client(b"farm-token")
        c.open_container()
        r = c.ns.Create(ns.CreateRequest(header=c.header(ALICE), parent=ROOT, name=b"private", mode=0o600, open=True,
                                         accmode=6))
        self.assertEqual((r.attr.uid, r.attr.gid, r.created), (1000, 1000, True))
        self.fails(Code.PERMISSION_DENIED, "EACCES", c.ns.Open, ns.OpenRequest(header=c.header(BOB), ino=r.attr.ino,
                                                                               accmode=4))
        self.fails(Code.PERMISSION_DENIED, "EACCES", c.caps.Grant, cap.GrantRequest(header=c.header(BOB),
                                                                                    ino=r.attr.ino, rights=2))

    def test_administration_is_for_administrators(self):
        c = self.client(b"alice-token")
        before = self.server.refused("admin")
        self.fails(Code.PERMISSION_DENIED, "EPERM", c.pools.Create, ad.PoolCreateRequest(
            header=c.admin(), pool=ad.Pool(label="mine")))
        self.fails(Code.PERMISSION_DENIED, "EPERM", c.pools.Destroy, ad.PoolDestroyRequest(header=c.admin(), label="p"))
        self.fails(Code.PERMISSION_DENIED, "EPERM", lambda: list(c.status.Scrub(st.ScrubRequest(session=c.session))))
        self.fails(Code.PERMISSION_DENIED, "EPERM", c.caps.Revoke, cap.RevokeRequest(
            session=c.session, target_session=self.root.session))
        self.assertEqual(self.server.refused("admin"), before + 4)


class Admin(Shared):
    def test_pools_and_containers(self):
        c = self.root
        p = c.pools.Create(ad.PoolCreateRequest(header=c.admin(), pool=ad.Pool(
            label="zoo", quota_bytes=1 << 30, mode=0o755, uid=1000, gid=1000)))
        self.assertEqual((p.label, p.quota_bytes, p.uid, p.mode, len(p.uuid)), ("zoo", 1 << 30, 1000, 0o755, 16))
        self.fails(Code.ALREADY_EXISTS, "EEXIST", c.pools.Create, ad.PoolCreateRequest(
            header=c.admin(), pool=ad.Pool(label="zoo")))
        self.assertEqual(c.pools.Query(ad.PoolQueryRequest(header=c.admin(), label="zoo")).uuid, p.uuid)
        a = c.containers.Create(ad.ContainerCreateRequest(header=c.admin(), container=ad.Container(
            pool="zoo", label="ape", chunk_size=1 << 17, uid=1000, gid=1000, mode=0o700)))
        self.assertEqual((a.label, a.pool, a.chunk_size, a.uid, a.mode, a.checksum, len(a.uuid)),
                         ("ape", "zoo", 1 << 17, 1000, 0o700, "crc32c", 16))
        self.assertGreater(a.created_ns, 0)
        q = c.containers.Query(ad.ContainerQueryRequest(header=c.admin(), pool="zoo", label="ape"))
        self.assertEqual((q.id, q.uuid), (a.id, a.uuid))
        self.fails(Code.FAILED_PRECONDITION, "ENOTEMPTY", c.pools.Destroy, ad.PoolDestroyRequest(
            header=c.admin(), label="zoo"))
        h = c.containers.Open(ad.ContainerOpenRequest(header=c.admin(), pool="zoo", label="ape")).handle
        self.fails(Code.FAILED_PRECONDITION, "EBUSY", c.containers.Destroy, ad.ContainerDestroyRequest(
            header=c.admin(), pool="zoo", label="ape"))
        c.containers.Close(ad.ContainerCloseRequest(header=c.admin(), handle=h))
        self.fails(Code.INVALID_ARGUMENT, "EBADF", c.containers.Close, ad.ContainerCloseRequest(
            header=c.admin(), handle=h))
        c.containers.Destroy(ad.ContainerDestroyRequest(header=c.admin(), pool="zoo", label="ape"))
        c.pools.Destroy(ad.PoolDestroyRequest(header=c.admin(), label="zoo"))
        self.fails(Code.NOT_FOUND, "ENOENT", c.pools.Query, ad.PoolQueryRequest(header=c.admin(), label="zoo"))

    def test_listings_come_in_pages(self):
        c = self.root
        for i in range(25):
            c.containers.Create(ad.ContainerCreateRequest(header=c.admin(), container=ad.Container(
                pool="p", label=f"list{i:02}")))
        got, after = [], "list"
        while True:
            r = c.containers.List(ad.ContainerListRequest(header=c.admin(), pool="p", after=after, limit=10))
            got += [x.label for x in r.containers]
            if not r.more:
                break
            self.assertEqual(len(r.containers), 10)
            after = got[-1]
        self.assertEqual(got, [f"list{i:02}" for i in range(25)])
        for label in got:
            c.containers.Destroy(ad.ContainerDestroyRequest(header=c.admin(), pool="p", label=label))
        r = c.pools.List(ad.PoolListRequest(header=c.admin()))
        self.assertEqual(([x.label for x in r.pools], r.more), (["p"], False))

    def test_bad_arguments_are_named(self):
        c = self.root
        for kw in (dict(label=""), dict(label="a/b"), dict(label="x" * 128), dict(label="ok", mode=0o10000)):
            self.fails(Code.INVALID_ARGUMENT, "EINVAL", c.pools.Create, ad.PoolCreateRequest(
                header=c.admin(), pool=ad.Pool(**kw)))
        self.fails(Code.INVALID_ARGUMENT, "EINVAL", c.pools.Create, ad.PoolCreateRequest(header=c.admin()), text="pool")
        self.fails(Code.INVALID_ARGUMENT, "EINVAL", c.pools.Create, ad.PoolCreateRequest(), text="header")
        for kw, text in ((dict(chunk_size=65537), "chunk_size"), (dict(chunk_size=1 << 30), "chunk_size"),
                         (dict(checksum="md5"), "checksum")):
            self.fails(Code.INVALID_ARGUMENT, "EINVAL", c.containers.Create, ad.ContainerCreateRequest(
                header=c.admin(), container=ad.Container(pool="p", label="bad", **kw)), text=text)

    def test_containers_of_ordinary_users_are_their_own(self):
        c = self.client(b"alice-token")
        a = c.containers.Create(ad.ContainerCreateRequest(header=c.admin(), container=ad.Container(
            pool="p", label="alices", mode=0o700)))
        self.assertEqual((a.uid, a.gid), (1000, 1000))
        self.fails(Code.PERMISSION_DENIED, "EPERM", c.containers.Create, ad.ContainerCreateRequest(
            header=c.admin(), container=ad.Container(pool="p", label="bobs", uid=1001, gid=1001)))
        c.containers.Destroy(ad.ContainerDestroyRequest(header=c.admin(), pool="p", label="alices"))

    def test_mounts_are_counted(self):
        c = self.root
        c.containers.Create(ad.ContainerCreateRequest(header=c.admin(), container=ad.Container(pool="p", label="m")))
        a, b = self.client(self.server.token(), purpose="mount"), self.client(self.server.token(), purpose="mount")
        self.assertEqual(a.open_container(label="m").mounts, 1)
        self.assertEqual(b.open_container(label="m").mounts, 2)
        self.assertEqual(c.containers.Open(ad.ContainerOpenRequest(header=c.admin(), pool="p", label="m")).mounts, 2)


class Namespace(Shared):
    def setUp(self):
        self.c = self.root
        self.dir = self.c.ns.Mkdir(ns.MkdirRequest(header=self.c.header(), parent=ROOT, name=self.id().encode()[-200:],
                                                   mode=0o777)).attr.ino

    def test_every_operation(self):
        c, n, h, d = self.c, self.c.ns, self.c.header(), self.dir
        f = n.Create(ns.CreateRequest(header=h, parent=d, name=b"f", mode=0o640)).attr
        self.assertEqual((f.mode, f.nlink, f.size), (0o100640, 1, 0))
        again = n.Create(ns.CreateRequest(header=h, parent=d, name=b"f", mode=0o600))
        self.assertEqual((again.attr.ino, again.created), (f.ino, False))
        self.fails(Code.ALREADY_EXISTS, "EEXIST", n.Create, ns.CreateRequest(header=h, parent=d, name=b"f", mode=0o600,
                                                                             exclusive=True))
        self.assertEqual(n.Lookup(ns.LookupRequest(header=h, parent=d, name=b"f")).attr.ino, f.ino)
        a = n.Setattr(ns.SetattrRequest(header=h, ino=f.ino, mask=1 | 8 | 32, attr=co.Attr(
            mode=0o600, size=12345, mtime_ns=-5_000_000_000))).attr
        self.assertEqual((a.mode, a.size, a.mtime_ns), (0o100600, 12345, -5_000_000_000))
        self.assertGreater(a.change, f.change)
        self.assertEqual(n.Getattr(ns.GetattrRequest(header=h, ino=f.ino)).attr, a)
        s = n.Symlink(ns.SymlinkRequest(header=h, parent=d, name=b"s", target=b"../\xff f")).attr
        self.assertEqual(n.Readlink(ns.ReadlinkRequest(header=h, ino=s.ino)).target, b"../\xff f")
        p = n.Mknod(ns.MknodRequest(header=h, parent=d, name=b"p", mode=0o10600)).attr
        self.assertEqual(p.mode, 0o10600)
        self.assertEqual(n.Link(ns.LinkRequest(header=h, ino=f.ino, parent=d, name=b"f2")).attr.nlink, 2)
        n.Rename(ns.RenameRequest(header=h, parent=d, name=b"f2", new_parent=d, new_name=b"f3"))
        self.fails(Code.ALREADY_EXISTS, "EEXIST", n.Rename, ns.RenameRequest(
            header=h, parent=d, name=b"f3", new_parent=d, new_name=b"f", flags=1))
        n.Rename(ns.RenameRequest(header=h, parent=d, name=b"s", new_parent=d, new_name=b"p", flags=2))
        r = n.Readdir(ns.ReaddirRequest(header=h, ino=d, limit=100, with_attr=True))
        self.assertEqual({(e.name, e.ino) for e in r.entries},
                         {(b"f", f.ino), (b"f3", f.ino), (b"s", p.ino), (b"p", s.ino)})
        self.assertTrue(all(e.attr.ino == e.ino and e.type == e.attr.mode & 0o170000 for e in r.entries))
        self.assertFalse(r.more)
        self.assertEqual(n.Parent(ns.ParentRequest(header=h, ino=d)).parent, ROOT)
        fs = n.Statfs(ns.StatfsRequest(header=h))
        self.assertTrue(fs.total_bytes >= fs.free_bytes > 0 and fs.objects > 4)
        n.Setxattr(ns.SetxattrRequest(header=h, ino=f.ino, name=b"user.a", value=b"\0\xff" * 1000))
        n.Setxattr(ns.SetxattrRequest(header=h, ino=f.ino, name=b"user.b", value=b""))
        self.assertEqual(n.Getxattr(ns.GetxattrRequest(header=h, ino=f.ino, name=b"user.a")).value, b"\0\xff" * 1000)
        self.assertEqual(n.Getxattr(ns.GetxattrRequest(header=h, ino=f.ino, name=b"user.b")).value, b"")
        self.assertEqual(set(n.Listxattr(ns.ListxattrRequest(header=h, ino=f.ino)).names), {b"user.a", b"user.b"})
        n.Removexattr(ns.RemovexattrRequest(header=h, ino=f.ino, name=b"user.a"))
        self.fails(Code.NOT_FOUND, "ENODATA", n.Getxattr, ns.GetxattrRequest(header=h, ino=f.ino, name=b"user.a"))
        self.assertEqual(list(n.Listxattr(ns.ListxattrRequest(header=h, ino=s.ino)).names), [])
        n.Fsync(ns.FsyncRequest(header=h, ino=f.ino))
        n.Fsync(ns.FsyncRequest(header=h, ino=d))
        n.Fsync(ns.FsyncRequest(header=h, whole_container=True))
        self.fails(Code.FAILED_PRECONDITION, "ENOTEMPTY", n.Rmdir, ns.RmdirRequest(
            header=h, parent=ROOT, name=self.id().encode()[-200:]))
        for name in (b"f", b"f3", b"s", b"p"):
            n.Unlink(ns.UnlinkRequest(header=h, parent=d, name=name))
        n.Rmdir(ns.RmdirRequest(header=h, parent=ROOT, name=self.id().encode()[-200:]))
        self.fails(Code.NOT_FOUND, "ENOENT", n.Getattr, ns.GetattrRequest(header=h, ino=d))

    def test_an_open_object_lives_until_it_is_closed(self):
        c, n, h = self.c, self.c.ns, self.c.header()
        r = n.Create(ns.CreateRequest(header=h, parent=self.dir, name=b"f", mode=0o400, open=True, accmode=6))
        self.assertTrue(r.open.handle and r.open.capability and r.open.attr.ino == r.attr.ino)
        n.Unlink(ns.UnlinkRequest(header=h, parent=self.dir, name=b"f"))
        self.assertEqual(n.Getattr(ns.GetattrRequest(header=h, ino=r.attr.ino)).attr.nlink, 0)
        n.Close(ns.CloseRequest(header=h, handle=r.open.handle))
        self.fails(Code.NOT_FOUND, "ENOENT", n.Getattr, ns.GetattrRequest(header=h, ino=r.attr.ino))
        self.fails(Code.INVALID_ARGUMENT, "EBADF", n.Close, ns.CloseRequest(header=h, handle=r.open.handle))
        r = n.Create(ns.CreateRequest(header=h, parent=self.dir, name=b"g", mode=0o400, open=True, accmode=4))
        again = c.header(request_id=co.RequestId(slot=9, sequence=1))
        for _ in range(2):
            n.Close(ns.CloseRequest(header=again, handle=r.open.handle))
        self.fails(Code.INVALID_ARGUMENT, "EBADF", n.Close, ns.CloseRequest(
            header=c.header(request_id=co.RequestId(slot=9, sequence=2)), handle=r.open.handle))

    def test_the_creator_may_open_what_the_mode_forbids(self):
        c = self.client(b"alice-token")
        c.open_container()
        r = c.ns.Create(ns.CreateRequest(header=c.header(), parent=self.dir, name=b"ro", mode=0o400, open=True,
                                         accmode=6, exclusive=True))
        self.assertTrue(r.created)
        self.fails(Code.PERMISSION_DENIED, "EACCES", c.ns.Open, ns.OpenRequest(header=c.header(), ino=r.attr.ino,
                                                                               accmode=2))
        self.assertTrue(c.ns.Open(ns.OpenRequest(header=c.header(), ino=r.attr.ino, accmode=4)).capability)

    def test_open_truncates_and_directories_need_no_capability(self):
        n, h = self.c.ns, self.c.header()
        f = n.Create(ns.CreateRequest(header=h, parent=self.dir, name=b"f", mode=0o600)).attr
        n.Setattr(ns.SetattrRequest(header=h, ino=f.ino, mask=8, attr=co.Attr(size=99)))
        self.assertEqual(n.Open(ns.OpenRequest(header=h, ino=f.ino, accmode=2, truncate=True)).attr.size, 0)
        d = n.Open(ns.OpenRequest(header=h, ino=self.dir))
        self.assertTrue(d.handle and not d.capability)
        self.fails(Code.INVALID_ARGUMENT, "EINVAL", n.Open, ns.OpenRequest(header=h, ino=f.ino, accmode=1))

    def test_names_are_checked(self):
        n, h, d = self.c.ns, self.c.header(), self.dir
        for name, err in ((b"", "EINVAL"), (b"a\0b", "EINVAL"), (b"none/b", "ENOENT"), (b".", "EINVAL"), (b"..", "EINVAL"),
                          (b"/b", "EINVAL"), (b"b/", "EINVAL"), (b"./b", "EINVAL"), (b"../b", "EINVAL"),
                          (b"a//b", "ENOENT"), (b"a/" * 2200 + b"b", "ENAMETOOLONG"),
                          (b"x" * 256, "ENAMETOOLONG"), (b"x" * 500000, "ENAMETOOLONG")):
            for call, req in ((n.Lookup, ns.LookupRequest), (n.Create, ns.CreateRequest), (n.Mkdir, ns.MkdirRequest),
                              (n.Unlink, ns.UnlinkRequest), (n.Rmdir, ns.RmdirRequest)):
                with self.subTest(name=name[:20], req=req.__name__), self.assertRaises(grpc.RpcError) as e:
                    call(req(header=h, parent=d, name=name))
                self.assertIn(dict(e.exception.trailing_metadata())["penstock-errno"], (err, "ENOENT", "EEXIST",
                              "ENOTEMPTY") if name in (b".", b"..") else (err,))
        n.Create(ns.CreateRequest(header=h, parent=d, name=b"x" * 255, mode=0o600))
        n.Create(ns.CreateRequest(header=h, parent=d, name=b"\xff\xfe\n", mode=0o600))
        self.fails(Code.INVALID_ARGUMENT, "ENAMETOOLONG", n.Symlink, ns.SymlinkRequest(
            header=h, parent=d, name=b"s", target=b"t" * 4096))
        self.fails(Code.NOT_FOUND, "ENOENT", n.Symlink, ns.SymlinkRequest(header=h, parent=d, name=b"s"))
        self.fails(Code.INVALID_ARGUMENT, "E2BIG", n.Setxattr, ns.SetxattrRequest(
            header=h, ino=d, name=b"user.x", value=bytes(65537)))
        for mode in (0o40755, 0o120777, 0o1000600):
            self.fails(Code.INVALID_ARGUMENT, "EINVAL", n.Mknod, ns.MknodRequest(
                header=h, parent=d, name=b"n", mode=mode))
        for mask in (1 << 20, 1):
            self.fails(Code.INVALID_ARGUMENT, "EINVAL", n.Setattr, ns.SetattrRequest(header=h, ino=d, mask=mask))

    def test_a_name_may_have_the_way_before_it(self):
        n, h, d = self.c.ns, self.c.header(), self.dir
        a = n.Mkdir(ns.MkdirRequest(header=h, parent=d, name=b"a", mode=0o755)).attr.ino
        b = n.Mkdir(ns.MkdirRequest(header=h, parent=d, name=b"a/b", mode=0o755)).attr.ino
        self.assertEqual(n.Lookup(ns.LookupRequest(header=h, parent=a, name=b"b")).attr.ino, b)
        f = n.Create(ns.CreateRequest(header=h, parent=d, name=b"a/b/f", mode=0o600)).attr.ino
        self.assertEqual(n.Lookup(ns.LookupRequest(header=h, parent=d, name=b"a/b/f")).attr.ino, f)
        self.assertEqual(n.Lookup(ns.LookupRequest(header=h, parent=b, name=b"f")).attr.ino, f)
        n.Symlink(ns.SymlinkRequest(header=h, parent=d, name=b"a/s", target=b"b"))
        self.assertEqual(n.Lookup(ns.LookupRequest(header=h, parent=d, name=b"a/s")).attr.mode & 0o170000, 0o120000)
        for call, req in ((n.Lookup, ns.LookupRequest), (n.Unlink, ns.UnlinkRequest), (n.Create, ns.CreateRequest)):
            self.fails(Code.FAILED_PRECONDITION, "ELOOP", call, req(header=h, parent=d, name=b"a/s/f"))
            self.fails(Code.FAILED_PRECONDITION, "ENOTDIR", call, req(header=h, parent=d, name=b"a/b/f/g"))
        # Who may not search a directory on the way does not get through it.
        n.Setattr(ns.SetattrRequest(header=h, ino=a, mask=1, attr=co.Attr(mode=0o700)))
        eve = self.client(b"alice-token")
        eve.open_container()
        self.fails(Code.PERMISSION_DENIED, "EACCES", eve.ns.Lookup, ns.LookupRequest(
            header=eve.header(), parent=d, name=b"a/b/f"))
        # A retry gets its reply, though the way is another one by then.
        head = self.c.header(request_id=co.RequestId(slot=77, sequence=1))
        n.Unlink(ns.UnlinkRequest(header=head, parent=d, name=b"a/b/f"))
        n.Rename(ns.RenameRequest(header=h, parent=d, name=b"a", new_parent=d, new_name=b"c"))
        n.Unlink(ns.UnlinkRequest(header=head, parent=d, name=b"a/b/f"))
        self.fails(Code.NOT_FOUND, "ENOENT", n.Unlink, ns.UnlinkRequest(
            header=self.c.header(request_id=co.RequestId(slot=77, sequence=2)), parent=d, name=b"a/b/f"))
        n.Unlink(ns.UnlinkRequest(header=h, parent=d, name=b"c/s"))
        n.Rmdir(ns.RmdirRequest(header=h, parent=d, name=b"c/b"))

    def test_a_small_file_is_written_by_who_has_it_open(self):
        n, h = self.c.ns, self.c.header()
        r = n.Create(ns.CreateRequest(header=h, parent=self.dir, name=b"f", mode=0o600, open=True, accmode=2))
        ino, handle = r.attr.ino, r.open.handle
        n.Write(ns.WriteRequest(header=h, ino=ino, handle=handle, offset=10, data=b"x" * 16384))
        n.Write(ns.WriteRequest(header=h, ino=ino, offset=0, data=b"y", durable=True))
        self.assertEqual(n.Getattr(ns.GetattrRequest(header=h, ino=ino)).attr.size, 16394)
        # Once, also when it is sent again after another write.
        head = self.c.header(request_id=co.RequestId(slot=78, sequence=1))
        n.Write(ns.WriteRequest(header=head, ino=ino, handle=handle, offset=16394, data=b"z"))
        before = n.Getattr(ns.GetattrRequest(header=h, ino=ino)).attr.change
        n.Write(ns.WriteRequest(header=head, ino=ino, handle=handle, offset=16394, data=b"z"))
        self.assertEqual(n.Getattr(ns.GetattrRequest(header=h, ino=ino)).attr.change, before)
        for size in (0, 16385):
            self.fails(Code.INVALID_ARGUMENT, "EINVAL", n.Write, ns.WriteRequest(
                header=h, ino=ino, handle=handle, data=bytes(size)))
        self.fails(Code.OUT_OF_RANGE, "EFBIG", n.Write, ns.WriteRequest(
            header=h, ino=ino, handle=handle, offset=1 << 63, data=b"x"))
        other = n.Create(ns.CreateRequest(header=h, parent=self.dir, name=b"g", mode=0o600, open=True, accmode=4))
        for i, k in ((other.attr.ino, other.open.handle), (other.attr.ino, handle), (self.dir, handle)):
            self.fails(Code.INVALID_ARGUMENT, "EBADF", n.Write, ns.WriteRequest(header=h, ino=i, handle=k, data=b"x"))
        more = [n.Open(ns.OpenRequest(header=h, ino=ino, accmode=4)).handle for _ in range(5)]
        n.Close(ns.CloseRequest(header=h, handle=handle, more=more[:4] + [other.open.handle]))
        self.fails(Code.INVALID_ARGUMENT, "EBADF", n.Write, ns.WriteRequest(header=h, ino=ino, handle=handle, data=b"x"))
        head = self.c.header(request_id=co.RequestId(slot=79, sequence=1))
        n.Close(ns.CloseRequest(header=head, handle=more[4], more=more[:1]))
        n.Close(ns.CloseRequest(header=head, handle=more[4], more=more[:1]))
        for k in (handle, other.open.handle, *more):
            self.fails(Code.INVALID_ARGUMENT, "EBADF", n.Close, ns.CloseRequest(header=h, handle=k))
        self.fails(Code.INVALID_ARGUMENT, "EINVAL", n.Close, ns.CloseRequest(header=h, handle=1, more=[1] * 257))

    def test_a_long_listing_comes_in_pages_under_a_mebibyte(self):
        n, h, d = self.c.ns, self.c.header(), self.dir
        names = {b"%04d" % i + b"n" * 200 for i in range(3000)}
        calls = [n.Create.future(ns.CreateRequest(header=h, parent=d, name=x, mode=0o600)) for x in names]
        for x in calls:
            x.result()
        got, cookie, pages = [], 0, 0
        while True:
            r = n.Readdir(ns.ReaddirRequest(header=h, ino=d, cookie=cookie, limit=4096, with_attr=True))
            self.assertLess(r.ByteSize(), 1 << 20)
            got += [e.name for e in r.entries]
            cookie = r.entries[-1].cookie
            pages += 1
            if not r.more:
                break
        self.assertEqual((len(got), set(got)), (3000, names))
        self.assertGreater(pages, 1)
        r = n.Readdir(ns.ReaddirRequest(header=h, ino=d, limit=7))
        self.assertTrue(len(r.entries) == 7 and r.more and not r.entries[0].HasField("attr"))
        for limit in (0, 4097):
            self.fails(Code.INVALID_ARGUMENT, "EINVAL", n.Readdir, ns.ReaddirRequest(header=h, ino=d, limit=limit))

    def test_a_retry_gets_the_first_reply(self):
        c, n, d = self.c, self.c.ns, self.dir
        h = c.header(request_id=c.request_id())
        req = ns.CreateRequest(header=h, parent=d, name=b"once", mode=0o600, exclusive=True, open=True, accmode=6)
        first, second = n.Create(req), n.Create(req)
        self.assertEqual((first.attr.ino, first.created), (second.attr.ino, second.created))
        self.assertEqual(first.open.handle, second.open.handle)  # one open, not two
        n.Close(ns.CloseRequest(header=c.header(), handle=first.open.handle))
        req = ns.UnlinkRequest(header=c.header(request_id=c.request_id()), parent=d, name=b"once")
        n.Unlink(req)
        n.Unlink(req)
        self.fails(Code.NOT_FOUND, "ENOENT", n.Unlink, ns.UnlinkRequest(
            header=c.header(request_id=c.request_id()), parent=d, name=b"once"))
        self.fails(Code.INVALID_ARGUMENT, "EINVAL", n.Mkdir, ns.MkdirRequest(
            header=c.header(request_id=co.RequestId(slot=1024, sequence=1)), parent=d, name=b"x"))

    def test_a_retry_with_other_rights_is_checked_anew(self):
        f = self.c.ns.Create(ns.CreateRequest(header=self.c.header(), parent=self.dir, name=b"root's", mode=0o604)).attr
        c = self.client(b"alice-token")
        c.open_container()
        h = c.header(request_id=c.request_id())
        for before in (0, 4):
            c.ns.Open(ns.OpenRequest(header=h, ino=f.ino, accmode=before))
            for more in (2, 6):
                self.fails(Code.PERMISSION_DENIED, "EACCES", c.ns.Open,
                           ns.OpenRequest(header=h, ino=f.ino, accmode=more))

    def test_another_credential_does_not_get_its_replies(self):
        a, b = (self.client(t, client_id=b"same client id..") for t in (b"alice-token", b"bob-token"))
        for c, name in ((a, b"a"), (b, b"b")):
            c.open_container()
            c.ns.Mkdir(ns.MkdirRequest(header=c.header(request_id=co.RequestId(slot=0, sequence=1)), parent=self.dir,
                                       name=name, mode=0o700))
        r = self.c.ns.Readdir(ns.ReaddirRequest(header=self.c.header(), ino=self.dir, limit=10))
        self.assertEqual({e.name for e in r.entries}, {b"a", b"b"})

    def test_handles_of_other_sessions_are_refused(self):
        c = self.client(b"alice-token")
        before = self.server.refused("handle")
        c.handle = self.root.handle
        self.fails(Code.INVALID_ARGUMENT, "EBADF", c.ns.Statfs, ns.StatfsRequest(header=c.header()))
        self.fails(Code.INVALID_ARGUMENT, "EBADF", c.ns.Statfs, ns.StatfsRequest(header=co.Header(
            session=c.session, container=99)))
        self.fails(Code.INVALID_ARGUMENT, "EINVAL", c.ns.Statfs, ns.StatfsRequest())
        self.assertEqual(self.server.refused("handle"), before + 2)


class Pipe:
    """The requests of a Stream: what is put comes out; None ends it."""

    def __init__(self):
        self.q = queue.Queue()

    def __iter__(self):
        return iter(self.q.get, None)


class Stream(Shared):
    def start(self):
        p = Pipe()
        return p, self.root.ns.Stream(iter(p))

    def test_every_operation_by_stream(self):
        h, (pipe, replies) = self.root.header(), self.start()
        tags = iter(range(1, 1000))

        def do(**op):
            tag = next(tags)
            pipe.q.put(ns.NamespaceRequest(tag=tag, **op))
            r = next(replies)
            self.assertEqual(r.tag, tag)
            self.assertEqual(r.error, "", op)
            return getattr(r, r.WhichOneof("op"))

        d = do(mkdir=ns.MkdirRequest(header=h, parent=ROOT, name=b"stream", mode=0o755)).attr.ino
        f = do(create=ns.CreateRequest(header=h, parent=d, name=b"f", mode=0o600)).attr.ino
        self.assertEqual(do(lookup=ns.LookupRequest(header=h, parent=d, name=b"f")).attr.ino, f)
        pipe.q.put(ns.NamespaceRequest(tag=5000, lookup=ns.LookupRequest(header=h, parent=ROOT, name=b"stream/f")))
        r = next(replies)
        self.assertEqual((r.tag, r.attr.attr.ino, r.walked), (5000, f, d))
        self.assertEqual(do(getattr=ns.GetattrRequest(header=h, ino=f)).attr.ino, f)
        self.assertEqual(do(setattr=ns.SetattrRequest(header=h, ino=f, mask=8, attr=co.Attr(size=5))).attr.size, 5)
        s = do(symlink=ns.SymlinkRequest(header=h, parent=d, name=b"s", target=b"t")).attr.ino
        do(mknod=ns.MknodRequest(header=h, parent=d, name=b"p", mode=0o10600))
        self.assertEqual(do(readlink=ns.ReadlinkRequest(header=h, ino=s)).target, b"t")
        do(link=ns.LinkRequest(header=h, ino=f, parent=d, name=b"l"))
        do(rename=ns.RenameRequest(header=h, parent=d, name=b"l", new_parent=d, new_name=b"m"))
        self.assertEqual(len(do(readdir=ns.ReaddirRequest(header=h, ino=d, limit=10)).entries), 4)
        self.assertEqual(do(parent=ns.ParentRequest(header=h, ino=d)).parent, ROOT)
        self.assertGreater(do(statfs=ns.StatfsRequest(header=h)).total_bytes, 0)
        do(setxattr=ns.SetxattrRequest(header=h, ino=f, name=b"user.k", value=b"v"))
        self.assertEqual(do(getxattr=ns.GetxattrRequest(header=h, ino=f, name=b"user.k")).value, b"v")
        self.assertEqual(list(do(listxattr=ns.ListxattrRequest(header=h, ino=f)).names), [b"user.k"])
        do(removexattr=ns.RemovexattrRequest(header=h, ino=f, name=b"user.k"))
        o = do(open=ns.OpenRequest(header=h, ino=f, accmode=6))
        do(write=ns.WriteRequest(header=h, ino=f, handle=o.handle, data=b"hello"))
        do(fsync=ns.FsyncRequest(header=h, ino=f))
        do(close=ns.CloseRequest(header=h, handle=o.handle))
        for name in (b"f", b"m", b"s", b"p"):
            do(unlink=ns.UnlinkRequest(header=h, parent=d, name=name))
        do(rmdir=ns.RmdirRequest(header=h, parent=ROOT, name=b"stream"))
        pipe.q.put(None)
        self.assertEqual(list(replies), [])
        self.assertEqual(replies.code(), Code.OK)
        self.assertEqual({f.name for f in ns.NamespaceRequest.DESCRIPTOR.oneofs[0].fields}, {
            "lookup", "getattr", "setattr", "create", "mkdir", "symlink", "mknod", "readlink", "link", "unlink", "rmdir",
            "rename", "readdir", "parent", "statfs", "setxattr", "getxattr", "listxattr", "removexattr", "open", "close",
            "fsync", "write"}, "a new operation needs its line above")

    def test_errors_come_by_tag_and_the_stream_goes_on(self):
        h, (pipe, replies) = self.root.header(), self.start()
        pipe.q.put(ns.NamespaceRequest(tag=7, lookup=ns.LookupRequest(header=h, parent=ROOT, name=b"none")))
        r = next(replies)
        self.assertEqual((r.tag, r.error, r.WhichOneof("op")), (7, "ENOENT", None))
        pipe.q.put(ns.NamespaceRequest(tag=8))
        self.assertEqual(next(replies).error, "EOPNOTSUPP")
        pipe.q.put(ns.NamespaceRequest(tag=9, getattr=ns.GetattrRequest(header=co.Header(session=b"x"), ino=1)))
        self.assertEqual(next(replies).error, "ESTALE")
        pipe.q.put(ns.NamespaceRequest(tag=10, getattr=ns.GetattrRequest(header=h, ino=ROOT)))
        self.assertEqual(next(replies).attr.attr.ino, ROOT)
        pipe.q.put(None)
        self.assertEqual(list(replies), [])

    def test_a_thousand_requests_at_once_are_all_answered(self):
        h, (pipe, replies) = self.root.header(), self.start()
        for i in range(1000):
            pipe.q.put(ns.NamespaceRequest(tag=i, getattr=ns.GetattrRequest(header=h, ino=ROOT)))
        pipe.q.put(None)
        self.assertEqual(sorted(r.tag for r in replies), list(range(1000)))

    def test_a_message_that_is_none_ends_the_stream(self):
        call = self.root.raw.stream_stream("/penstock.v1.NamespaceService/Stream")
        self.fails(Code.INVALID_ARGUMENT, "EBADMSG", lambda: list(call(iter([b"\xff\xff\xff"]))))

    def test_cancelling_a_stream_leaves_the_server_well(self):
        h = self.root.header()
        for _ in range(20):
            pipe, replies = self.start()
            for i in range(50):
                pipe.q.put(ns.NamespaceRequest(tag=i, getattr=ns.GetattrRequest(header=h, ino=ROOT)))
            next(replies)
            replies.cancel()
            pipe.q.put(None)
        self.root.ns.Statfs(ns.StatfsRequest(header=h))


class Capabilities(Shared):
    def setUp(self):
        self.c = self.client(self.server.token())
        self.c.open_container()
        h = self.c.header()
        self.f = self.c.ns.Create(ns.CreateRequest(header=h, parent=ROOT, name=os.urandom(8).hex().encode(), mode=0o600,
                                                   open=True, accmode=6))
        t = self.c.session_service.Ticket(se.TicketRequest(session=self.c.session, count=1)).tickets[0]
        self.assertEqual(self.server.command(f"ticket {t.hex()} 0")[0], "ok")

    def present(self, capability):
        return self.server.command(f"cap {capability.hex()}")

    def use(self, ino, rights, offset=0, length=1):
        return self.server.command(f"use {ino} {rights} {offset} {length}")

    def inspect(self, c, capability):
        return c.caps.Inspect(cap.InspectRequest(session=c.session, capability=capability))

    def test_what_open_grants(self):
        ino = self.f.attr.ino
        i = self.inspect(self.c, self.f.open.capability)
        self.assertEqual((i.ino, i.rights, i.range_offset, i.range_length, i.expires_in_ms), (ino, 6, 0, 0, -1))
        self.assertEqual(self.present(self.f.open.capability), ["ok", str(ino), "6"])
        self.assertEqual(self.use(ino, 6, 1 << 40, 1 << 20), ["ok"])
        before = self.server.refused("cap_rights")
        self.assertEqual(self.use(ino + 1, 4), ["err", "EACCES"])
        r = self.c.ns.Open(ns.OpenRequest(header=self.c.header(), ino=ino, accmode=4))
        self.assertEqual(self.present(r.capability), ["ok", str(ino), "4"])
        self.assertEqual(self.use(ino, 2), ["err", "EACCES"])
        self.assertEqual(self.server.refused("cap_rights"), before + 2)

    def test_grants_are_as_narrow_as_asked(self):
        ino = self.f.attr.ino
        g = self.c.caps.Grant(cap.GrantRequest(header=self.c.header(), ino=ino, rights=4, range_offset=4096,
                                               range_length=8192, lifetime_ms=60000))
        i = self.inspect(self.c, g.capability)
        self.assertEqual((i.key_id, i.ino, i.rights, i.range_offset, i.range_length), (g.key_id, ino, 4, 4096, 8192))
        self.assertTrue(0 < i.expires_in_ms <= 60000)
        self.assertEqual(self.present(g.capability)[0], "ok")
        self.assertEqual(self.use(ino, 4, 4096, 8192), ["ok"])
        self.assertEqual(self.use(ino, 4, 4095, 1), ["err", "ERANGE"])
        self.assertEqual(self.use(ino, 4, 4096, 8193), ["err", "ERANGE"])
        for kw in (dict(ino=0, rights=4), dict(ino=ino), dict(ino=ino, rights=8),
                   dict(ino=ino, rights=4, range_offset=2**64 - 1, range_length=2)):
            self.fails(Code.INVALID_ARGUMENT, "EINVAL", self.c.caps.Grant, cap.GrantRequest(
                header=self.c.header(), **kw))
        self.fails(Code.NOT_FOUND, "ENOENT", self.c.caps.Grant, cap.GrantRequest(
            header=self.c.header(), ino=1 << 50, rights=4))

    def test_an_expired_one_is_refused(self):
        g = self.c.caps.Grant(cap.GrantRequest(header=self.c.header(), ino=self.f.attr.ino, rights=4, lifetime_ms=1000))
        self.assertEqual(self.present(g.capability)[0], "ok")
        before = self.server.refused("cap_expired")
        time.sleep(1.05)
        self.assertEqual(self.use(self.f.attr.ino, 4), ["err", "EKEYEXPIRED"])
        self.assertEqual(self.present(g.capability), ["err", "EKEYEXPIRED"])
        self.fails(Code.PERMISSION_DENIED, "EKEYEXPIRED", self.inspect, self.c, g.capability)
        self.assertEqual(self.server.refused("cap_expired"), before + 3)

    def test_forged_and_foreign_ones_are_refused_and_counted(self):
        good = self.f.open.capability
        forged = good[:-1] + bytes([good[-1] ^ 1])
        mac, session, key, bad = (self.server.refused(x) for x in ("cap_mac", "cap_session", "cap_key", "cap_malformed"))
        self.fails(Code.PERMISSION_DENIED, "EACCES", self.inspect, self.c, forged)
        self.assertEqual(self.present(forged), ["err", "EACCES"])
        other = self.client(b"alice-token")
        self.fails(Code.PERMISSION_DENIED, "EACCES", self.inspect, other, good)
        unknown = good[:2] + bytes(8) + good[10:]
        self.assertEqual(self.present(unknown), ["err", "EACCES"])
        for x in (b"", b"C", good[:40], good + bytes(1025), os.urandom(100)):
            self.fails(Code.INVALID_ARGUMENT, "EBADMSG", self.inspect, self.c, x)
        self.assertEqual([self.server.refused(x) for x in ("cap_mac", "cap_session", "cap_key", "cap_malformed")],
                         [mac + 2, session + 1, key + 1, bad + 5])

    def revoked(self, **what):
        c = self.f.open.capability
        self.assertEqual(self.present(c)[0], "ok")
        self.assertEqual(self.use(self.f.attr.ino, 4), ["ok"])
        n = self.c.caps.Revoke(cap.RevokeRequest(session=self.c.session, **what)).keys
        self.assertGreaterEqual(n, 1)
        self.assertEqual(self.use(self.f.attr.ino, 4), ["err", "EKEYREVOKED"])  # on a connection that has used it
        self.assertEqual(self.present(c), ["err", "EKEYREVOKED"])
        self.fails(Code.PERMISSION_DENIED, "EKEYREVOKED", self.inspect, self.c, c)
        n, h, f = self.c.ns, self.c.header(), self.f
        small = ns.WriteRequest(header=h, ino=f.attr.ino, handle=f.open.handle, data=b"x")
        self.fails(Code.PERMISSION_DENIED, "EKEYREVOKED", n.Write, small)
        fresh = n.Open(ns.OpenRequest(header=h, ino=f.attr.ino, accmode=4)).capability
        self.assertEqual(self.present(fresh)[0], "ok")
        self.fails(Code.PERMISSION_DENIED, "EKEYREVOKED", n.Write, small)
        n.Open(ns.OpenRequest(header=h, ino=f.attr.ino, accmode=6))
        n.Write(small)

    def test_revocation_by_session(self):
        self.revoked(target_session=self.c.session)

    def test_revocation_by_container(self):
        self.revoked(container=self.c.handle)

    def test_revocation_by_key(self):
        self.revoked(key_id=self.inspect(self.c, self.f.open.capability).key_id)

    def test_others_keys_cannot_be_revoked(self):
        alice = self.client(b"alice-token")
        alice.open_container()
        key = self.inspect(self.c, self.f.open.capability).key_id
        self.assertEqual(alice.caps.Revoke(cap.RevokeRequest(session=alice.session, key_id=key)).keys, 0)
        self.assertEqual(alice.caps.Revoke(cap.RevokeRequest(session=alice.session, container=alice.handle)).keys, 0)
        self.fails(Code.INVALID_ARGUMENT, "EINVAL", alice.caps.Revoke, cap.RevokeRequest(session=alice.session))
        self.assertEqual(self.present(self.f.open.capability)[0], "ok")

    def test_a_capability_outlives_the_handle_that_it_came_with(self):
        self.c.ns.Close(ns.CloseRequest(header=self.c.header(), handle=self.f.open.handle))
        self.assertEqual(self.present(self.f.open.capability)[0], "ok")
        self.assertEqual(self.use(self.f.attr.ino, 4), ["ok"])
        self.c.caps.Revoke(cap.RevokeRequest(session=self.c.session, container=self.c.handle))
        self.assertEqual(self.use(self.f.attr.ino, 4), ["err", "EKEYREVOKED"])

    def test_capabilities_end_with_the_session_and_with_the_container_handle(self):
        c = self.f.open.capability
        self.assertEqual(self.present(c)[0], "ok")
        self.c.containers.Close(ad.ContainerCloseRequest(header=self.c.admin(), handle=self.c.handle))
        self.assertEqual(self.use(self.f.attr.ino, 4), ["err", "EKEYREVOKED"])
        self.c.open_container()
        c = self.c.ns.Open(ns.OpenRequest(header=self.c.header(), ino=self.f.attr.ino, accmode=4)).capability
        self.assertEqual(self.present(c)[0], "ok")
        self.c.session_service.Close(se.SessionCloseRequest(session=self.c.session))
        self.assertEqual(self.use(self.f.attr.ino, 4), ["err", "EKEYREVOKED"])
        self.assertEqual(self.present(c), ["err", "EKEYREVOKED"])


class Status(Shared):
    def test_status_and_metrics(self):
        s = self.root.status.Status(st.StatusRequest(session=self.root.session))
        self.assertEqual((s.role, bool(s.version)), ("server", True))
        self.assertGreaterEqual(s.sessions, 1)
        self.assertTrue(s.facts)
        m = self.root.status.Metrics(st.MetricsRequest(session=self.root.session)).metrics
        names = {x.name for x in m}
        self.assertLessEqual({"penstock_sessions", "penstock_refused_total", "penstock_control_requests_total"}, names)
        self.assertIn('reason="cap_mac"', {x.labels for x in m})
        self.fails(Code.UNAUTHENTICATED, "ESTALE", self.root.status.Status, st.StatusRequest())
        self.fails(Code.UNAUTHENTICATED, "ESTALE", self.root.status.Metrics, st.MetricsRequest())

    def test_scrub_ends_with_a_count(self):
        events = list(self.root.status.Scrub(st.ScrubRequest(session=self.root.session)))
        self.assertTrue(events[-1].done and events[-1].damaged == 0)
        self.fails(Code.UNAUTHENTICATED, "ESTALE", lambda: list(self.root.status.Scrub(st.ScrubRequest())))

    def test_backup_needs_an_administrator_and_an_empty_folder(self):
        import tempfile
        with tempfile.TemporaryDirectory() as d:
            backup = self.root.status.Backup
            backup(st.BackupRequest(session=self.root.session, directory=d + "/new"), timeout=60)
            self.assertIn("superblock", os.listdir(d + "/new"))
            self.fails(Code.FAILED_PRECONDITION, "ENOTEMPTY", backup,
                       st.BackupRequest(session=self.root.session, directory=d + "/new"))
            self.fails(Code.INVALID_ARGUMENT, "EINVAL", backup,
                       st.BackupRequest(session=self.root.session, directory="new"))
            self.fails(Code.UNAUTHENTICATED, "ESTALE", backup, st.BackupRequest(directory=d + "/other"))

    def test_health(self):
        h = health_pb2_grpc.HealthStub(self.root.raw)
        serving = health_pb2.HealthCheckResponse.SERVING
        self.assertEqual(h.Check(health_pb2.HealthCheckRequest()).status, serving)
        self.assertEqual(h.Check(health_pb2.HealthCheckRequest(service="penstock.v1.PoolService")).status, serving)
        self.fails(Code.NOT_FOUND, "ENOENT", h.Check, health_pb2.HealthCheckRequest(service="none"))
        w = h.Watch(health_pb2.HealthCheckRequest())
        self.assertEqual(next(w).status, serving)
        w.cancel()
        w = h.Watch(health_pb2.HealthCheckRequest(service="none"))
        self.assertEqual(next(w).status, health_pb2.HealthCheckResponse.SERVICE_UNKNOWN)
        w.cancel()

    def reflect(self, pb, stub):
        asked = []

        def ask(**kw):
            asked.append(pb.ServerReflectionRequest(host="here", **kw))
            r = list(stub(self.root.raw).ServerReflectionInfo(iter(asked[-1:])))
            self.assertEqual(len(r), 1)
            self.assertEqual((r[0].valid_host, r[0].original_request), ("here", asked[-1]))
            return r[0]

        services = [s.name for s in ask(list_services="").list_services_response.service]
        methods = set()
        for s in services:
            files = [descriptor_pb2.FileDescriptorProto.FromString(f)
                     for f in ask(file_containing_symbol=s).file_descriptor_response.file_descriptor_proto]
            known = {f.name for f in files}
            self.assertTrue(all(d in known for f in files for d in f.dependency))
            for x in files[0].service:
                if f"{files[0].package}.{x.name}" == s:
                    methods |= {f"/{s}/{m.name}" for m in x.method}
        f = ask(file_by_filename="penstock/v1/session.proto").file_descriptor_response.file_descriptor_proto
        self.assertEqual(descriptor_pb2.FileDescriptorProto.FromString(f[0]).package, "penstock.v1")
        for symbol in ("penstock.v1.Attr", "penstock.v1.NamespaceService.Open", "penstock.v1.NamespaceReply"):
            self.assertTrue(ask(file_containing_symbol=symbol).HasField("file_descriptor_response"), symbol)
        for kw in (dict(file_containing_symbol="penstock.v1.Att"), dict(file_containing_symbol="penstock.v2.Attr"),
                   dict(file_by_filename="no.proto"), dict(all_extension_numbers_of_type="penstock.v1.Attr")):
            self.assertEqual(ask(**kw).error_response.error_code, Code.NOT_FOUND.value[0])
        return set(services), methods

    def test_reflection_v1_and_v1alpha(self):
        a = self.reflect(reflection_v1_pb2, reflection_v1_pb2_grpc.ServerReflectionStub)
        b = self.reflect(reflection_v1alpha_pb2, reflection_v1alpha_pb2_grpc.ServerReflectionStub)
        self.assertEqual(a, b)
        self.assertEqual({s for s in a[0] if s.startswith("penstock")}, {"penstock.v1." + s for s in (
            "SessionService", "PoolService", "ContainerService", "NamespaceService", "CapabilityService",
            "StatusService")})
        Status.all_methods = a[1]


class Calls(Case):
    """Deadlines, cancelling, limits, drains: servers of their own."""

    def test_deadlines_and_cancelling_are_honoured(self):
        with Server("--filter", "delay:ms=2000,op=statfs,when=before") as s, Client(f"127.0.0.1:{s.port}") as c:
            c.open(s.token()).make_container().open_container()
            h = c.header()
            began = time.monotonic()
            with self.assertRaises(grpc.RpcError) as e:
                c.ns.Statfs(ns.StatfsRequest(header=h), timeout=0.1)
            self.assertEqual(e.exception.code(), Code.DEADLINE_EXCEEDED)
            call = c.ns.Statfs.future(ns.StatfsRequest(header=h))
            time.sleep(0.05)
            call.cancel()
            self.assertTrue(call.cancelled())
            self.assertLess(time.monotonic() - began, 2)
            with self.assertRaises(grpc.RpcError) as e:  # over before it begins
                c.ns.Mkdir(ns.MkdirRequest(header=h, parent=ROOT, name=b"late"), timeout=-1)
            self.fails(Code.NOT_FOUND, "ENOENT", c.ns.Lookup, ns.LookupRequest(header=h, parent=ROOT, name=b"late"))

    def test_a_session_that_is_not_renewed_dies_with_all_it_holds(self):
        with Server("--lease-ms", "1200") as s, Client(f"127.0.0.1:{s.port}") as c, \
                Client(f"127.0.0.1:{s.port}") as d:
            c.open(s.token()).make_container().open_container()
            f = c.ns.Create(ns.CreateRequest(header=c.header(), parent=ROOT, name=b"f", open=True, accmode=4))
            c.ns.Unlink(ns.UnlinkRequest(header=c.header(), parent=ROOT, name=b"f"))
            for _ in range(3):  # kept alive
                time.sleep(0.5)
                c.session_service.Renew(se.SessionRenewRequest(session=c.session))
            time.sleep(1.3)
            self.fails(Code.UNAUTHENTICATED, "ESTALE", c.session_service.Renew, se.SessionRenewRequest(session=c.session))
            d.open(s.token()).open_container()
            while d.status.Status(st.StatusRequest(session=d.session)).sessions > 1:  # the sweep comes soon after
                time.sleep(0.05)
                d.session_service.Renew(se.SessionRenewRequest(session=d.session))
            self.fails(Code.NOT_FOUND, "ENOENT", d.ns.Getattr, ns.GetattrRequest(header=d.header(), ino=f.attr.ino))

    def test_too_many_calls_at_once_are_refused_and_the_others_go_on(self):
        with Server("--max-calls", "4", "--filter", "delay:ms=500,op=statfs") as s, \
                Client(f"127.0.0.1:{s.port}") as c:
            c.open(s.token()).make_container().open_container()
            calls = [c.ns.Statfs.future(ns.StatfsRequest(header=c.header())) for _ in range(12)]
            codes = [x.exception().code() if x.exception() else Code.OK for x in calls]
            self.assertTrue(codes.count(Code.OK) >= 4 and codes.count(Code.RESOURCE_EXHAUSTED) >= 1, codes)
            self.assertEqual(set(codes), {Code.OK, Code.RESOURCE_EXHAUSTED})
            c.ns.Statfs(ns.StatfsRequest(header=c.header()))

    def test_oversized_compressed_and_unknown_calls_are_refused(self):
        with Server() as s, Client(f"127.0.0.1:{s.port}") as c:
            c.open(s.token())
            with self.assertRaises(grpc.RpcError) as e:
                c.session_service.Renew(se.SessionRenewRequest(session=bytes(2 << 20)))
            self.assertEqual(e.exception.code(), Code.RESOURCE_EXHAUSTED)
            with self.assertRaises(grpc.RpcError) as e:
                c.session_service.Renew(se.SessionRenewRequest(session=bytes(50000)), compression=grpc.Compression.Gzip)
            self.assertEqual(e.exception.code(), Code.UNIMPLEMENTED)
            self.fails(Code.UNIMPLEMENTED, "EOPNOTSUPP", c.raw.unary_unary("/penstock.v1.PoolService/Nope"), b"")
            for junk in (b"\xff", b"\x0a\x05ab", os.urandom(1000)):
                self.fails(Code.INVALID_ARGUMENT, "EBADMSG", c.raw.unary_unary("/penstock.v1.PoolService/Create"), junk)
            c.session_service.Renew(se.SessionRenewRequest(session=c.session))

    def test_stopping_ends_streams_tells_watchers_and_removes_the_token(self):
        s = Server()
        with Client(f"127.0.0.1:{s.port}") as c:
            c.open(s.token()).make_container().open_container()
            pipe = Pipe()
            replies = c.ns.Stream(iter(pipe))
            pipe.q.put(ns.NamespaceRequest(tag=1, getattr=ns.GetattrRequest(header=c.header(), ino=ROOT)))
            self.assertEqual(next(replies).tag, 1)
            watch = health_pb2_grpc.HealthStub(c.raw).Watch(health_pb2.HealthCheckRequest())
            self.assertEqual(next(watch).status, health_pb2.HealthCheckResponse.SERVING)
            token = os.path.join(s.run_dir, f"{s.port}.token")
            self.assertEqual(os.stat(token).st_mode & 0o7777, 0o600)
            self.assertEqual(os.stat(s.run_dir).st_mode & 0o7777, 0o700)
            s.process.stdin.close()
            self.assertEqual(next(watch).status, health_pb2.HealthCheckResponse.NOT_SERVING)
            for call in (replies, watch):
                self.fails(Code.UNAVAILABLE, "ESHUTDOWN", lambda: list(call))
            pipe.q.put(None)
            self.assertEqual(s.process.wait(20), 0)
            self.assertFalse(os.path.exists(token))
        self.assertEqual(s.stop(), 0)

    def test_a_call_in_progress_is_finished_before_the_server_stops(self):
        s = Server("--filter", "delay:ms=400,op=statfs")
        with Client(f"127.0.0.1:{s.port}") as c:
            c.open(s.token()).make_container().open_container()
            call = c.ns.Statfs.future(ns.StatfsRequest(header=c.header()))
            time.sleep(0.1)
            s.process.stdin.close()
            self.assertGreater(call.result().total_bytes, 0)
        self.assertEqual(s.stop(), 0)

    def test_two_servers_do_not_share_a_port(self):
        with Server() as s, self.assertRaises(RuntimeError):
            Server(listen=(f"127.0.0.1:{s.port}",))

    def test_a_unix_socket_serves_too(self):
        import hashlib
        path = os.path.join(STUBS, "sock")
        with Server(listen=(f"unix:{path}",)) as s, Client(f"unix:{path}") as c:
            name = "unix-" + hashlib.sha256(path.encode()).hexdigest()[:16] + ".token"
            with open(os.path.join(s.run_dir, name)) as f:
                c.open(f.read().encode()).make_container().open_container()
            c.ns.Statfs(ns.StatfsRequest(header=c.header()))

    def test_reply_records_survive_a_restart(self):
        store = os.path.join(STUBS, "kept")
        shutil.rmtree(store, ignore_errors=True)
        ids, client_id = [], os.urandom(16)
        for _ in range(2):
            with Server(store=store) as s, Client(f"127.0.0.1:{s.port}") as c:
                c.open(s.token(), client_id=client_id)
                if not ids:
                    c.make_container()
                c.open_container()
                ids.append(c.ns.Mkdir(ns.MkdirRequest(header=c.header(request_id=co.RequestId(slot=5, sequence=1)),
                                                      parent=ROOT, name=b"once", mode=0o755)).attr.ino)
        self.assertEqual(ids[0], ids[1])


class ZLast(Case):
    def test_every_method_was_called(self):
        if len(sys.argv) > 4:
            self.skipTest("only some tests were asked for")
        self.assertEqual(Status.all_methods - Recorder.called, set())


def main():
    # The order of the file, so that the last test sees what all others did.
    loader = unittest.TestLoader()
    classes = [Sessions, Creds, Admin, Namespace, Stream, Capabilities, Status, Calls, ZLast]
    suite = unittest.TestSuite(loader.loadTestsFromTestCase(c) for c in classes)
    if len(sys.argv) > 4:
        suite = loader.loadTestsFromNames(sys.argv[4:], sys.modules[__name__])
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    shutil.rmtree(STUBS, ignore_errors=True)
    sys.exit(not result.wasSuccessful())


threading.excepthook = lambda args: None if args.exc_type is ValueError else sys.__excepthook__(*args[:3])
main()
