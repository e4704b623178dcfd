"""Sessions, credentials, pools and containers."""
import os

from penstock.v1 import admin_pb2 as ad
from penstock.v1 import capability_pb2 as cap
from penstock.v1 import common_pb2 as co
from penstock.v1 import namespace_pb2 as ns
from penstock.v1 import session_pb2 as se
from penstock.v1 import status_pb2 as st

from control_case import ALICE, BOB, Code, ROOT, Shared
from control_server import Client


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

    def test_an_agent_passes_on_the_request_ids_of_its_clients(self):
        host, made = os.urandom(16), None
        for again in range(2):  # by another session, as of another process of the agent
            c = self.client(self.server.token())
            c.open_container()
            numbers = c.session_service.Origins(se.OriginsRequest(header=c.admin(), clients=[host, os.urandom(16)])).numbers
            self.assertEqual(list(numbers), [1, 2])
            req = ns.CreateRequest(header=c.header(request_id=co.RequestId(slot=5, sequence=1, origin=1)), parent=1,
                                   name=b"of-a-host", mode=0o644, exclusive=True)
            ino = c.ns.Create(req).attr.ino
            self.assertEqual(ino, made or ino)
            made = ino
        req.header.request_id.origin = 2  # another client's request of that number
        self.fails(Code.ALREADY_EXISTS, "EEXIST", c.ns.Create, req)
        for origin, code, name in ((3, Code.UNAUTHENTICATED, "ESTALE"), (1 << 16, Code.INVALID_ARGUMENT, "EINVAL")):
            req.header.request_id.origin = origin
            self.fails(code, name, c.ns.Create, req)
        self.fails(Code.INVALID_ARGUMENT, "EINVAL", c.session_service.Origins,
                   se.OriginsRequest(header=c.admin(), clients=[bytes(15)]))
        a = self.client(b"alice-token")
        self.fails(Code.PERMISSION_DENIED, "EPERM", a.session_service.Origins,
                   se.OriginsRequest(header=a.admin(), clients=[host]))

    def test_ways_for_third_parties_are_for_agents(self):
        c, a = self.client(self.server.token()), self.client(b"alice-token")
        made = [c.session_service.ThirdTicket(se.ThirdTicketRequest(header=c.admin(), owner=n)) for n in range(64)]
        self.assertEqual(len({t.ticket for t in made}), 64)
        self.assertEqual(len({t.number for t in made} - {0}), 64)
        self.assertEqual({(len(t.ticket), t.ticket_ms) for t in made}, {(32, 600000)})
        self.fails(Code.RESOURCE_EXHAUSTED, "EAGAIN", c.session_service.ThirdTicket, se.ThirdTicketRequest(header=c.admin()))
        self.fails(Code.INVALID_ARGUMENT, "EINVAL", c.session_service.ThirdTicket,
                   se.ThirdTicketRequest(header=c.admin(), shard=99))
        self.fails(Code.PERMISSION_DENIED, "EPERM", a.session_service.ThirdTicket, se.ThirdTicketRequest(header=a.admin()))
        self.fails(Code.UNIMPLEMENTED, "EOPNOTSUPP", c.session_service.ThirdParty, se.ThirdPartyRequest(header=c.admin()))
        for call, request in ((c.session_service.ThirdTicket, se.ThirdTicketRequest), (c.session_service.ThirdParty,
                                                                                     se.ThirdPartyRequest)):
            self.fails(Code.INVALID_ARGUMENT, "EINVAL", call, request())

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
        self.client(self.server.token(), purpose="agent").open_container(label="m")  # there may be mounts behind it
        self.assertEqual(c.containers.Query(ad.ContainerQueryRequest(header=c.admin(), pool="p", label="m")).mounts, 3)
