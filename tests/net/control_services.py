"""Capabilities, status, health, reflection; deadlines, limits and drains."""
import os
import shutil
import time

import grpc
import health_pb2
import health_pb2_grpc
import reflection_v1_pb2
import reflection_v1_pb2_grpc
import reflection_v1alpha_pb2
import reflection_v1alpha_pb2_grpc
from google.protobuf import descriptor_pb2
from penstock.v1 import admin_pb2 as ad
from penstock.v1 import capability_pb2 as cap
from penstock.v1 import common_pb2 as co
from penstock.v1 import namespace_pb2 as ns
from penstock.v1 import session_pb2 as se
from penstock.v1 import status_pb2 as st

import control_server
from control_case import Case, Code, Pipe, ROOT, Shared
from control_server import Client, Server


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

    def test_tenants_are_told_to_administrators(self):
        tenants = self.root.status.Tenants
        r = tenants(st.TenantsRequest(session=self.root.session)).tenants
        self.assertEqual([t.name for t in r], ["default"])
        self.assertGreaterEqual(r[0].sessions, 1)
        self.assertGreaterEqual(r[0].objects, 1)
        self.fails(Code.NOT_FOUND, "ENOENT", tenants, st.TenantsRequest(session=self.root.session, name="none"))
        self.fails(Code.PERMISSION_DENIED, "EPERM", tenants,
                   st.TenantsRequest(session=self.client(b"alice-token").session))

    def test_limits_of_tenants_are_set_by_administrators(self):
        def req(session, name="default", limits=(("rate", "1M"),)):
            return ad.TenantSetRequest(header=ad.AdminHeader(session=session), name=name,
                                       limits=[ad.TenantLimit(key=k, value=v) for k, v in limits])
        set_limits, root = self.root.tenant.Set, self.root.session
        # This server has no limits at all: penstock serve has.
        self.fails(Code.UNIMPLEMENTED, "EOPNOTSUPP", set_limits, req(root))
        self.fails(Code.NOT_FOUND, "ENOENT", set_limits, req(root, name="none"))
        self.fails(Code.INVALID_ARGUMENT, "EINVAL", set_limits, req(root, limits=()))
        self.fails(Code.INVALID_ARGUMENT, "EINVAL", set_limits, req(root, limits=[("rate", "1M")] * 33))
        self.fails(Code.INVALID_ARGUMENT, "EINVAL", set_limits, ad.TenantSetRequest(name="default"))
        self.fails(Code.UNAUTHENTICATED, "ESTALE", set_limits, req(b""))
        self.fails(Code.PERMISSION_DENIED, "EPERM", set_limits, req(self.client(b"alice-token").session))

    def test_tenants_and_credentials_are_made_by_administrators(self):
        t, root = self.root.tenant, self.root.session
        alice = self.client(b"alice-token").session

        def settings(**kw):
            return [ad.TenantLimit(key=k, value=v) for k, v in kw.items()]

        def calls(h):
            return ((t.Create, ad.TenantCreateRequest(header=h, name="t", settings=settings(containers="p/*"))),
                    (t.Delete, ad.TenantDeleteRequest(header=h, name="t")),
                    (t.CreateCredential, ad.CredentialCreateRequest(header=h, name="c", settings=settings(tenant="t"))),
                    (t.DeleteCredential, ad.CredentialDeleteRequest(header=h, name="c")),
                    (t.ListCredentials, ad.CredentialListRequest(header=h)))
        # This server has no hooks for them: penstock serve has (tenant_made.sh).
        for call, req in calls(ad.AdminHeader(session=root)):
            self.fails(Code.UNIMPLEMENTED, "EOPNOTSUPP", call, req)
        for call, req in calls(ad.AdminHeader(session=alice)):
            self.fails(Code.PERMISSION_DENIED, "EPERM", call, req)
        for call, req in calls(ad.AdminHeader()):
            self.fails(Code.UNAUTHENTICATED, "ESTALE", call, req)
        for call, req in calls(None):
            self.fails(Code.INVALID_ARGUMENT, "EINVAL", call, req)

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
            "StatusService", "TenantService")})
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

    def test_a_fence_ends_what_earlier_sessions_have_under_way(self):
        def mkdir(name, slot, call):
            return call(ns.MkdirRequest(header=c.header(request_id=co.RequestId(slot=slot, sequence=1, attempt=1)), parent=ROOT,
                                        name=name, mode=0o755))
        with Server("--filter", "delay:ms=1500,op=make,count=1") as s, Client(f"127.0.0.1:{s.port}") as c:
            c.open(s.token()).make_container().open_container()
            slow = mkdir(b"slow", 1, c.ns.Mkdir.future)
            time.sleep(0.5)
            with Client(f"127.0.0.1:{s.port}") as later:
                # One that does not fence goes beside it; one that does waits for what is in the store.
                later.open(s.token(), client_id=c.client_id)
                self.fails(Code.RESOURCE_EXHAUSTED, "EAGAIN", later.open, s.token(), client_id=c.client_id, fence=True)
                self.fails(Code.UNAUTHENTICATED, "ESTALE", mkdir, b"late", 2, c.ns.Mkdir)
                self.assertTrue(slow.result().attr.ino)
                later.open(s.token(), client_id=c.client_id, fence=True).open_container()
                self.fails(Code.NOT_FOUND, "ENOENT", later.ns.Lookup, ns.LookupRequest(header=later.header(), parent=ROOT,
                                                                                       name=b"late"))
            c.ns.Lookup(ns.LookupRequest(header=c.header(), parent=ROOT, name=b"slow"))  # what changes nothing goes on

    def test_two_servers_do_not_share_a_port(self):
        with Server() as s, self.assertRaises(RuntimeError):
            Server(listen=(f"127.0.0.1:{s.port}",))

    def test_a_unix_socket_serves_too(self):
        import hashlib
        path = os.path.join(control_server.SCRATCH, "sock")
        with Server(listen=(f"unix:{path}",)) as s, Client(f"unix:{path}") as c:
            name = "unix-" + hashlib.sha256(path.encode()).hexdigest()[:16] + ".token"
            with open(os.path.join(s.run_dir, name)) as f:
                c.open(f.read().encode()).make_container().open_container()
            c.ns.Statfs(ns.StatfsRequest(header=c.header()))

    def test_reply_records_survive_a_restart(self):
        store = os.path.join(control_server.SCRATCH, "kept")
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
