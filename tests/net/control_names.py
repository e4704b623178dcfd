"""The namespace: every operation, by unary calls and by the stream."""
import grpc
from penstock.v1 import common_pb2 as co
from penstock.v1 import namespace_pb2 as ns

from control_case import Code, Pipe, ROOT, Shared


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
