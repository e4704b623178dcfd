#!/usr/bin/python3
"""Runs one scripted sequence of file operations in two folders and compares every result and errno.

usage: ops_compare.py REFERENCE TESTED        (both empty, on different file systems)

A step is a function of a folder; what it returns, or the name of its error, is its result. Differences that POSIX leaves to
the file system (sizes of directories, block counts) are not looked at.
"""
import ctypes
import errno
import fcntl
import mmap
import os
import socket
import stat
import struct
import sys
import time

libc = ctypes.CDLL(None, use_errno=True)
AT_FDCWD = -100
SEEK_DATA, SEEK_HOLE = 3, 4
KEEP, PUNCH, ZERO = 1, 2, 16

STEPS = []


def step(fn):
    STEPS.append(fn)
    return fn


def check(r):
    if r < 0:
        e = ctypes.get_errno()
        raise OSError(e, os.strerror(e))
    return r


def renameat2(a, b, flags):
    check(libc.renameat2(AT_FDCWD, os.fsencode(a), AT_FDCWD, os.fsencode(b), flags))


def fallocate(fd, mode, off, length):
    check(libc.fallocate(fd, mode, ctypes.c_long(off), ctypes.c_long(length)))


def attempt(fn, *args, **kw):
    """The result, or the error's name."""
    try:
        return fn(*args, **kw)
    except OSError as e:
        return errno.errorcode.get(e.errno, e.errno)


def st(path, follow=False):
    s = os.stat(path, follow_symlinks=follow)
    out = [stat.filemode(s.st_mode), s.st_nlink, s.st_uid, s.st_gid]
    if not stat.S_ISDIR(s.st_mode):
        out += [s.st_size, s.st_rdev]
    return tuple(out)


def write(path, data=b"x", mode=0o644, flags=os.O_CREAT | os.O_TRUNC | os.O_WRONLY):
    fd = os.open(path, flags, mode)
    try:
        return os.write(fd, data)
    finally:
        os.close(fd)


def read(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        out = b""
        while True:
            part = os.read(fd, 1 << 20)
            if not part:
                return out
            out += part
    finally:
        os.close(fd)


def as_user(uid, groups, fn):
    """fn() in a child with that identity: its result (a string) or error name."""
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups(groups)
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            out = repr(attempt(fn))
        except BaseException as e:
            out = repr(e)
        os.write(w, out.encode())
        os._exit(0)
    os.close(w)
    out = b""
    while True:
        part = os.read(r, 65536)
        if not part:
            break
        out += part
    os.close(r)
    os.waitpid(pid, 0)
    return out.decode()


# ---- names ----

@step
def create_and_stat(d):
    write(f"{d}/f", b"hello")
    return st(f"{d}/f"), read(f"{d}/f")


@step
def umask_is_applied(d):
    old = os.umask(0o027)
    try:
        write(f"{d}/um", mode=0o666)
        os.mkdir(f"{d}/umd", 0o777)
        os.mkfifo(f"{d}/ump", 0o666)
    finally:
        os.umask(old)
    return st(f"{d}/um"), st(f"{d}/umd"), st(f"{d}/ump")


@step
def exclusive_create(d):
    fd = os.open(f"{d}/ex", os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    os.close(fd)
    return attempt(os.open, f"{d}/ex", os.O_CREAT | os.O_EXCL | os.O_RDWR), attempt(os.open, f"{d}", os.O_CREAT | os.O_RDWR)


@step
def open_errors(d):
    write(f"{d}/plain")
    return [attempt(os.open, f"{d}/none", os.O_RDONLY), attempt(os.open, f"{d}/plain/x", os.O_RDONLY),
            attempt(os.open, f"{d}/none/x", os.O_CREAT | os.O_WRONLY), attempt(os.open, f"{d}/plain", os.O_DIRECTORY),
            attempt(os.open, f"{d}", os.O_WRONLY), attempt(os.open, f"{d}/" + "n" * 256, os.O_CREAT | os.O_WRONLY),
            attempt(os.open, f"{d}/plain/", os.O_RDONLY)]


@step
def longest_name(d):
    n = "n" * 255
    write(f"{d}/{n}")
    r = n in os.listdir(d)
    os.unlink(f"{d}/{n}")
    return r


@step
def names_of_any_bytes(d):
    b = os.fsencode(d)
    names = [b"sp ace", b"new\nline", b"\xff\xfe", b"\xe4\xb8\xad", b"-rf", b"...", b"a\\b", b"q'\"*?"]
    os.mkdir(b + b"/odd")
    for n in names:
        write(b + b"/odd/" + n, n)
    got = sorted(os.listdir(b + b"/odd"))
    return got, [read(b + b"/odd/" + n) for n in names]


@step
def mkdir_rmdir(d):
    os.mkdir(f"{d}/m", 0o755)
    os.mkdir(f"{d}/m/sub", 0o700)
    a = st(f"{d}/m")
    out = [a, attempt(os.rmdir, f"{d}/m"), attempt(os.mkdir, f"{d}/m"), attempt(os.rmdir, f"{d}/nothing"),
           attempt(os.unlink, f"{d}/m/sub"), attempt(os.rmdir, f"{d}/f")]
    os.rmdir(f"{d}/m/sub")
    out += [st(f"{d}/m"), attempt(os.rmdir, f"{d}/m/."), attempt(os.rmdir, f"{d}/m")]
    return out


@step
def setgid_directory_is_inherited(d):
    os.mkdir(f"{d}/sg")
    os.chown(f"{d}/sg", 0, 4242)
    os.chmod(f"{d}/sg", 0o2775)
    write(f"{d}/sg/f")
    os.mkdir(f"{d}/sg/d")
    os.symlink("x", f"{d}/sg/l")
    return st(f"{d}/sg"), st(f"{d}/sg/f"), st(f"{d}/sg/d"), st(f"{d}/sg/l")


@step
def symlinks(d):
    os.symlink("f", f"{d}/l")
    os.symlink("nowhere", f"{d}/dangling")
    os.symlink("loop2", f"{d}/loop1")
    os.symlink("loop1", f"{d}/loop2")
    long = "a/" * 2000 + "b"
    os.symlink(long, f"{d}/long")
    return [st(f"{d}/l"), os.readlink(f"{d}/l"), read(f"{d}/l"), attempt(os.stat, f"{d}/dangling"),
            attempt(os.stat, f"{d}/loop1"), os.readlink(f"{d}/long") == long, attempt(os.symlink, "x", f"{d}/l"),
            attempt(os.symlink, "", f"{d}/empty"), attempt(os.readlink, f"{d}/f"),
            attempt(os.open, f"{d}/l", os.O_RDONLY | os.O_NOFOLLOW)]


@step
def hard_links(d):
    write(f"{d}/h1", b"one")
    os.link(f"{d}/h1", f"{d}/h2")
    out = [st(f"{d}/h1"), os.stat(f"{d}/h1").st_ino == os.stat(f"{d}/h2").st_ino, attempt(os.link, f"{d}/h1", f"{d}/h2"),
           attempt(os.link, f"{d}/none", f"{d}/h3"), attempt(os.link, f"{d}/sg", f"{d}/h4")]
    write(f"{d}/h2", b"longer")
    out.append(read(f"{d}/h1"))
    os.unlink(f"{d}/h1")
    out += [st(f"{d}/h2"), attempt(os.stat, f"{d}/h1")]
    os.symlink("h2", f"{d}/hl")
    os.link(f"{d}/hl", f"{d}/hl2", follow_symlinks=False)
    out.append(st(f"{d}/hl2"))
    return out


@step
def special_files(d):
    os.mkfifo(f"{d}/fifo", 0o640)
    os.mknod(f"{d}/chr", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    os.mknod(f"{d}/blk", stat.S_IFBLK | 0o600, os.makedev(259, 70000))
    os.mknod(f"{d}/reg", stat.S_IFREG | 0o604)
    s = socket.socket(socket.AF_UNIX)
    here = os.open(".", os.O_RDONLY)
    os.chdir(d)
    s.bind("sock")
    os.fchdir(here)
    os.close(here)
    s.close()
    return [st(f"{d}/{n}") for n in ("fifo", "chr", "blk", "reg", "sock")] + [attempt(os.mkfifo, f"{d}/fifo")]


@step
def rename_basics(d):
    write(f"{d}/r1", b"1")
    write(f"{d}/r2", b"22")
    os.mkdir(f"{d}/rd1")
    os.mkdir(f"{d}/rd2")
    write(f"{d}/rd2/full")
    out = [attempt(os.rename, f"{d}/r1", f"{d}/rd1"), attempt(os.rename, f"{d}/rd1", f"{d}/r1"),
           attempt(os.rename, f"{d}/rd1", f"{d}/rd2"), attempt(os.rename, f"{d}/nope", f"{d}/r1"),
           attempt(os.rename, f"{d}/rd1", f"{d}/rd1/in"), attempt(os.rename, f"{d}/r1", f"{d}/r1")]
    os.rename(f"{d}/r1", f"{d}/r2")
    out += [attempt(os.stat, f"{d}/r1"), read(f"{d}/r2"), st(f"{d}/r2")]
    os.rename(f"{d}/rd2", f"{d}/rd1")
    out += [sorted(os.listdir(f"{d}/rd1")), attempt(os.stat, f"{d}/rd2")]
    os.rename(f"{d}/r2", f"{d}/rd1/r3")
    out += [sorted(os.listdir(f"{d}/rd1")), st(f"{d}/rd1")]
    write(f"{d}/ha", b"same")
    os.link(f"{d}/ha", f"{d}/hb")
    os.rename(f"{d}/ha", f"{d}/hb")  # two names of one object: nothing happens
    out += [st(f"{d}/ha"), st(f"{d}/hb")]
    return out


@step
def rename_flags(d):
    write(f"{d}/x1", b"1")
    write(f"{d}/x2", b"22")
    os.mkdir(f"{d}/xd")
    out = [attempt(renameat2, f"{d}/x1", f"{d}/x2", 1), attempt(renameat2, f"{d}/x1", f"{d}/x3", 1),
           attempt(renameat2, f"{d}/x3", f"{d}/x9", 2), attempt(renameat2, f"{d}/x3", f"{d}/x2", 2),
           attempt(renameat2, f"{d}/x3", f"{d}/xd", 2), attempt(renameat2, f"{d}/x3", f"{d}/x2", 3)]
    return out + [st(f"{d}/x2"), st(f"{d}/x3"), st(f"{d}/xd"), attempt(os.listdir, f"{d}/x3")]


@step
def moving_a_directory_moves_dotdot(d):
    os.makedirs(f"{d}/p1/child")
    os.mkdir(f"{d}/p2")
    before = os.stat(f"{d}/p1").st_nlink, os.stat(f"{d}/p2").st_nlink
    os.rename(f"{d}/p1/child", f"{d}/p2/child")
    up = os.stat(f"{d}/p2/child/..").st_ino == os.stat(f"{d}/p2").st_ino
    return before, up, os.stat(f"{d}/p1").st_nlink, os.stat(f"{d}/p2").st_nlink


@step
def rename_into_own_grandchild_and_over_parents(d):
    os.makedirs(f"{d}/g/a/b")
    return [attempt(os.rename, f"{d}/g", f"{d}/g/a/b/c"), attempt(os.rename, f"{d}/g/a/b", f"{d}/g"),
            attempt(os.rename, f"{d}/g/.", f"{d}/gg")]


# ---- listing ----

@step
def listing(d):
    os.mkdir(f"{d}/ls")
    for i in range(3000):
        os.mknod(f"{d}/ls/entry-{i:05d}")
    names = os.listdir(f"{d}/ls")
    with os.scandir(f"{d}/ls") as it:
        types = {e.is_file(follow_symlinks=False) for e in it}
    return len(names), len(set(names)), sorted(names)[:3], types


@step
def removing_while_listing(d):
    with os.scandir(f"{d}/ls") as it:
        for e in it:
            os.unlink(e.path)
    return os.listdir(f"{d}/ls"), attempt(os.rmdir, f"{d}/ls")


@step
def entries_that_stay_are_listed_once_under_change(d):
    os.mkdir(f"{d}/lc")
    for i in range(2000):
        os.mknod(f"{d}/lc/stay{i}")
    seen = []
    with os.scandir(f"{d}/lc") as it:
        for n, e in enumerate(it):
            seen.append(e.name)
            if n % 3 == 0:
                os.mknod(f"{d}/lc/new{n}")
                os.unlink(f"{d}/lc/new{n}")
    stay = [s for s in seen if s.startswith("stay")]
    return len(stay), len(set(stay))


@step
def dots_have_the_right_numbers(d):
    class Dirent(ctypes.Structure):
        _fields_ = [("ino", ctypes.c_ulong), ("off", ctypes.c_long), ("len", ctypes.c_ushort), ("type", ctypes.c_ubyte),
                    ("name", ctypes.c_char * 256)]
    libc.opendir.restype = libc.readdir.restype = ctypes.c_void_p
    os.makedirs(f"{d}/dots/in")
    h = ctypes.c_void_p(libc.opendir(os.fsencode(f"{d}/dots/in")))
    got = {}
    while True:
        p = libc.readdir(h)
        if not p:
            break
        e = Dirent.from_address(p)
        got[e.name] = e.ino
    libc.closedir(h)
    return (got[b"."] == os.stat(f"{d}/dots/in").st_ino, got[b".."] == os.stat(f"{d}/dots").st_ino, sorted(got))


@step
def seekdir_comes_back_to_the_place(d):
    libc.opendir.restype = libc.readdir.restype = ctypes.c_void_p
    libc.telldir.restype = ctypes.c_long
    os.mkdir(f"{d}/seek")
    for i in range(500):
        os.mknod(f"{d}/seek/{i}")
    h = ctypes.c_void_p(libc.opendir(os.fsencode(f"{d}/seek")))
    name = lambda p: ctypes.string_at(p + 19)
    for _ in range(250):
        libc.readdir(h)
    pos = libc.telldir(h)
    a = name(libc.readdir(h))
    while libc.readdir(h):
        pass
    libc.seekdir(h, ctypes.c_long(pos))
    b = name(libc.readdir(h))
    libc.rewinddir(h)
    n = 0
    while libc.readdir(h):
        n += 1
    libc.closedir(h)
    return a == b, n


# ---- data ----

@step
def read_write_seek(d):
    fd = os.open(f"{d}/rw", os.O_RDWR | os.O_CREAT)
    out = [os.write(fd, b"0123456789"), os.lseek(fd, 4, 0), os.read(fd, 3), os.pwrite(fd, b"AB", 8), os.pread(fd, 20, 0),
           os.lseek(fd, -2, 2), os.read(fd, 9), os.read(fd, 9), attempt(os.lseek, fd, -1, 0), os.lseek(fd, 100, 0),
           os.write(fd, b"end"), os.fstat(fd).st_size, os.pread(fd, 200, 0)]
    os.close(fd)
    fd = os.open(f"{d}/rw", os.O_RDONLY)
    out.append(attempt(os.write, fd, b"x"))
    os.close(fd)
    fd = os.open(f"{d}/rw", os.O_WRONLY)
    out.append(attempt(os.read, fd, 1))
    os.close(fd)
    return out


@step
def vectors(d):
    fd = os.open(f"{d}/vec", os.O_RDWR | os.O_CREAT)
    out = [os.writev(fd, [b"a" * 5000, b"", b"b" * 70000, b"c"])]
    bufs = [bytearray(4999), bytearray(70002)]
    out += [os.preadv(fd, bufs, 0), bytes(bufs[0][-3:]), bytes(bufs[1][:3]), bytes(bufs[1][-3:])]
    os.close(fd)
    return out


@step
def append(d):
    write(f"{d}/ap", b"start")
    fd = os.open(f"{d}/ap", os.O_WRONLY | os.O_APPEND)
    fd2 = os.open(f"{d}/ap", os.O_RDWR)
    out = [os.write(fd, b"-a"), os.pwrite(fd2, b"S", 0), os.write(fd2, b"T"), os.write(fd, b"-b"), os.lseek(fd, 0, 1)]
    os.ftruncate(fd2, 3)
    os.write(fd, b"-c")
    os.close(fd)
    os.close(fd2)
    return out, read(f"{d}/ap")


@step
def truncation(d):
    data = bytes(range(256)) * 40
    write(f"{d}/tr", data)
    out = []
    for size in (5000, 4096, 1, 0, 10000, 3):
        os.truncate(f"{d}/tr", size)
        out.append((st(f"{d}/tr"), read(f"{d}/tr") == (data + bytes(10000))[:size] if size == 5000 else len(read(f"{d}/tr"))))
    os.truncate(f"{d}/tr", 8000)
    out += [read(f"{d}/tr")[3:] == bytes(7997), attempt(os.truncate, f"{d}/tr", -1), attempt(os.truncate, f"{d}/sg", 0)]
    fd = os.open(f"{d}/tr", os.O_RDONLY)
    out.append(attempt(os.ftruncate, fd, 1))
    os.close(fd)
    fd = os.open(f"{d}/tr", os.O_WRONLY | os.O_TRUNC)
    out.append(os.fstat(fd).st_size)
    os.close(fd)
    return out


@step
def sparse(d):
    fd = os.open(f"{d}/sp", os.O_RDWR | os.O_CREAT)
    os.pwrite(fd, b"x" * 65536, 4 << 20)
    out = [os.fstat(fd).st_size, os.lseek(fd, 0, SEEK_DATA), os.lseek(fd, 4 << 20, SEEK_HOLE), os.lseek(fd, 0, SEEK_HOLE),
           attempt(os.lseek, fd, 5 << 20, SEEK_DATA), os.pread(fd, 10, 1 << 20), os.fstat(fd).st_blocks < 1024]
    os.ftruncate(fd, 8 << 20)
    out += [attempt(os.lseek, fd, 5 << 20, SEEK_DATA), os.lseek(fd, 5 << 20, SEEK_HOLE)]
    os.close(fd)
    return out


@step
def fallocate_and_punch(d):
    fd = os.open(f"{d}/fa", os.O_RDWR | os.O_CREAT)
    out = [attempt(fallocate, fd, 0, 0, 1 << 20), os.fstat(fd).st_size, os.fstat(fd).st_blocks * 512 >= 1 << 20]
    out += [attempt(fallocate, fd, KEEP, 1 << 20, 1 << 20), os.fstat(fd).st_size]
    os.pwrite(fd, b"z" * (1 << 20), 0)
    out += [attempt(fallocate, fd, KEEP | PUNCH, 4096, 100000), os.pread(fd, 1 << 20, 0) ==
            b"z" * 4096 + bytes(100000) + b"z" * ((1 << 20) - 104096), os.fstat(fd).st_size]
    out += [attempt(fallocate, fd, PUNCH, 0, 4096), attempt(fallocate, fd, 0, 0, 0), attempt(fallocate, fd, 0, -1, 10)]
    os.close(fd)
    fd = os.open(f"{d}/fa", os.O_RDONLY)
    out.append(attempt(fallocate, fd, 0, 0, 4096))
    os.close(fd)
    return out


@step
def copy_file_range(d):
    write(f"{d}/cp1", bytes(range(256)) * 1000)
    a = os.open(f"{d}/cp1", os.O_RDONLY)
    b = os.open(f"{d}/cp2", os.O_RDWR | os.O_CREAT)
    n = os.copy_file_range(a, b, 100000, 1000, 5)
    os.close(a)
    os.close(b)
    return n, read(f"{d}/cp2") == bytes(5) + (bytes(range(256)) * 1000)[1000:101000]


@step
def big_writes(d):
    block = os.urandom(1 << 20) * 5 + b"tail"
    write(f"{d}/big", block)
    return read(f"{d}/big") == block, st(f"{d}/big")


@step
def mappings(d):
    fd = os.open(f"{d}/mm", os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, 20000)
    m = mmap.mmap(fd, 20000, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    m[5000:5005] = b"hello"
    m.flush()
    out = [os.pread(fd, 5, 5000)]
    os.pwrite(fd, b"HE", 5000)
    out.append(bytes(m[5000:5005]))
    m[19990:20000] = b"0123456789"
    m.close()
    os.close(fd)
    out.append(read(f"{d}/mm")[-10:])
    fd = os.open(f"{d}/mm", os.O_RDONLY)
    p = mmap.mmap(fd, 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    p[0:3] = b"abc"
    out += [read(f"{d}/mm")[:3], bytes(p[5000:5005])]
    p.close()
    os.close(fd)
    return out


@step
def sync_calls(d):
    fd = os.open(f"{d}/sy", os.O_RDWR | os.O_CREAT | os.O_SYNC)
    out = [os.write(fd, b"s"), os.fsync(fd), os.fdatasync(fd)]
    os.close(fd)
    dd = os.open(d, os.O_RDONLY)
    out += [os.fsync(dd), check(libc.syncfs(dd))]
    os.close(dd)
    return out


@step
def direct(d):
    fd = os.open(f"{d}/od", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    m = mmap.mmap(-1, 1 << 20)
    m[:] = bytes(range(256)) * 4096
    out = [os.writev(fd, [m]), os.fstat(fd).st_size]
    back = mmap.mmap(-1, 1 << 20)
    out += [os.preadv(fd, [back], 0), back[:] == m[:], os.preadv(fd, [memoryview(back)[:4096]], 1 << 20)]
    os.close(fd)
    return out, read(f"{d}/od") == m[:]


# ---- open files without names ----

@step
def unlinked_file_lives_while_open(d):
    fd = os.open(f"{d}/ul", os.O_RDWR | os.O_CREAT)
    os.write(fd, b"before")
    os.unlink(f"{d}/ul")
    out = [os.fstat(fd).st_nlink, os.pread(fd, 10, 0), os.write(fd, b"after"), os.pread(fd, 20, 0), os.fstat(fd).st_size,
           attempt(os.stat, f"{d}/ul")]
    os.ftruncate(fd, 3)
    os.fchmod(fd, 0o600)
    out += [os.pread(fd, 20, 0), stat.filemode(os.fstat(fd).st_mode), os.fsync(fd)]
    os.close(fd)
    return out, [n for n in os.listdir(d) if "ul" in n]


@step
def replaced_file_keeps_its_old_readers(d):
    write(f"{d}/old", b"old data")
    fd = os.open(f"{d}/old", os.O_RDONLY)
    write(f"{d}/new", b"new")
    os.rename(f"{d}/new", f"{d}/old")
    out = [os.read(fd, 20), os.fstat(fd).st_nlink, read(f"{d}/old")]
    os.close(fd)
    return out


@step
def read_only_file_just_created_is_writable_through_its_handle(d):
    fd = os.open(f"{d}/ro", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o444)
    out = [os.write(fd, b"w")]
    os.close(fd)
    return out, st(f"{d}/ro"), as_user(1000, [], lambda: os.open(f"{d}/ro", os.O_RDWR))


# ---- attributes ----

@step
def chmod(d):
    write(f"{d}/cm")
    out = []
    for mode in (0o600, 0o4755, 0o2755, 0o1777, 0o7777, 0):
        os.chmod(f"{d}/cm", mode)
        out.append(st(f"{d}/cm"))
    fd = os.open(f"{d}/cm", os.O_RDWR)
    os.fchmod(fd, 0o640)
    os.close(fd)
    return out, st(f"{d}/cm"), attempt(os.chmod, f"{d}/none", 0o600)


@step
def chown(d):
    write(f"{d}/co")
    os.chmod(f"{d}/co", 0o6755)
    os.chown(f"{d}/co", 1000, 1001)
    out = [st(f"{d}/co")]
    os.chown(f"{d}/co", -1, 1002)
    os.lchown(f"{d}/l", 5, 6)
    return out + [st(f"{d}/co"), st(f"{d}/l")]


@step
def times(d):
    write(f"{d}/ti")
    os.utime(f"{d}/ti", ns=(1_000_000_007, 2_000_000_000_000_000_123))
    s = os.stat(f"{d}/ti")
    out = [s.st_atime_ns, s.st_mtime_ns]
    os.utime(f"{d}/ti", ns=(-5_000_000_001, 4_000_000_000 * 1_000_000_000))
    s = os.stat(f"{d}/ti")
    out += [s.st_atime_ns, s.st_mtime_ns]
    os.utime(f"{d}/l", ns=(7, 9), follow_symlinks=False)
    s = os.lstat(f"{d}/l")
    out += [s.st_atime_ns, s.st_mtime_ns]
    before = time.time()
    os.utime(f"{d}/ti")
    s = os.stat(f"{d}/ti")
    out.append(abs(s.st_mtime - before) < 60)
    return out


@step
def what_changes_which_time(d):
    def changed(path, fn):
        a = os.stat(path)
        time.sleep(0.02)
        fn()
        b = os.stat(path)
        return a.st_mtime_ns != b.st_mtime_ns, a.st_ctime_ns != b.st_ctime_ns
    os.mkdir(f"{d}/tm")
    write(f"{d}/tm/f", b"123")
    f = f"{d}/tm/f"
    return [changed(f, lambda: write(f, b"4", flags=os.O_WRONLY)), changed(f, lambda: os.chmod(f, 0o600)),
            changed(f, lambda: os.truncate(f, 1)), changed(f, lambda: os.link(f, f + "2")),
            changed(f, lambda: os.rename(f + "2", f + "3")), changed(f"{d}/tm", lambda: write(f"{d}/tm/n")),
            changed(f"{d}/tm", lambda: os.unlink(f"{d}/tm/n")), changed(f"{d}/tm", lambda: write(f, b"q", flags=os.O_WRONLY)),
            changed(f"{d}/tm", lambda: os.rename(f + "3", f + "4")), changed(f, lambda: read(f)),
            changed(f, lambda: os.setxattr(f, "user.t", b"1"))]


@step
def xattrs(d):
    f = f"{d}/xa"
    write(f)
    out = [os.listxattr(f), attempt(os.getxattr, f, "user.none"), os.setxattr(f, "user.a", b"1"), os.setxattr(f, "user.b", b""),
           os.getxattr(f, "user.a"), os.getxattr(f, "user.b"), sorted(os.listxattr(f)),
           attempt(os.setxattr, f, "user.a", b"2", os.XATTR_CREATE), attempt(os.setxattr, f, "user.c", b"2", os.XATTR_REPLACE),
           os.setxattr(f, "user.a", b"3" * 1000, os.XATTR_REPLACE), len(os.getxattr(f, "user.a")),
           os.removexattr(f, "user.a"), attempt(os.removexattr, f, "user.a"), os.listxattr(f),
           attempt(os.setxattr, f, "bad", b"x"), attempt(os.setxattr, f, "user." + "n" * 260, b"x"),
           os.setxattr(f, "trusted.t", b"root"), os.getxattr(f, "trusted.t"),
           as_user(1000, [], lambda: os.getxattr(f, "trusted.t")), os.setxattr(f"{d}/sg", "user.d", b"dir"),
           attempt(os.setxattr, f"{d}/l", "user.x", b"1", follow_symlinks=False)]
    return out


@step
def statvfs_makes_sense(d):
    s = os.statvfs(d)
    return s.f_namemax, s.f_blocks > 0, 0 <= s.f_bavail <= s.f_bfree <= s.f_blocks, s.f_files >= s.f_ffree > 0


# ---- users ----

@step
def owners_and_others(d):
    os.mkdir(f"{d}/u", 0o777)
    os.chmod(f"{d}/u", 0o777)
    a = f"{d}/u/a"
    out = [as_user(1000, [], lambda: write(a, b"secret", 0o600)), st(a), as_user(1000, [], lambda: read(a)),
           as_user(1001, [], lambda: read(a)), as_user(1001, [], lambda: write(a, b"x", flags=os.O_WRONLY)),
           as_user(1001, [], lambda: os.chmod(a, 0o666)), as_user(1000, [], lambda: os.chown(a, 1001, -1)),
           as_user(1000, [], lambda: os.chown(a, -1, 1001)), as_user(1000, [1001], lambda: os.chown(a, -1, 1001)), st(a),
           as_user(1001, [], lambda: os.truncate(a, 0)), as_user(1001, [], lambda: os.utime(a)),
           as_user(1001, [], lambda: os.utime(a, (1, 1))), as_user(1000, [], lambda: os.utime(a, (1, 1))),
           as_user(1001, [], lambda: os.mknod(f"{d}/u/dev", stat.S_IFCHR | 0o666, 259))]
    return out


@step
def groups_decide(d):
    g = f"{d}/grp"
    write(g, b"for the group")
    os.chown(g, 1000, 3000)
    os.chmod(g, 0o640)
    out = [as_user(1001, [], lambda: read(g)), as_user(1001, [5, 3000, 6], lambda: read(g)),
           as_user(1001, [3000], lambda: write(g, flags=os.O_WRONLY))]
    os.chmod(g, 0o604)  # the group is shut out, all others may
    out += [as_user(1001, [], lambda: read(g)), as_user(1001, [3000], lambda: read(g))]
    return out


@step
def a_closed_directory_hides_what_is_in_it(d):
    os.mkdir(f"{d}/closed")
    write(f"{d}/closed/f", b"in")
    os.chown(f"{d}/closed", 1000, 1000)
    os.chmod(f"{d}/closed", 0o700)
    out = [as_user(1000, [], lambda: read(f"{d}/closed/f"))]  # the names are in the kernel's cache now
    out += [as_user(1001, [], lambda: read(f"{d}/closed/f")), as_user(1001, [], lambda: os.listdir(f"{d}/closed"))]
    os.chmod(f"{d}/closed", 0o711)
    out += [as_user(1001, [], lambda: read(f"{d}/closed/f")), as_user(1001, [], lambda: os.listdir(f"{d}/closed"))]
    os.chmod(f"{d}/closed", 0o744)
    return out + [as_user(1001, [], lambda: sorted(os.listdir(f"{d}/closed"))), as_user(1001, [], lambda: os.stat(f"{d}/closed/f"))]


@step
def sticky_directory(d):
    os.mkdir(f"{d}/st")
    os.chmod(f"{d}/st", 0o1777)
    as_user(1000, [], lambda: write(f"{d}/st/mine"))
    return [as_user(1001, [], lambda: os.unlink(f"{d}/st/mine")), as_user(1001, [], lambda: os.rename(f"{d}/st/mine", f"{d}/st/x")),
            as_user(1001, [], lambda: write(f"{d}/st/his")), as_user(1001, [], lambda: os.rename(f"{d}/st/his", f"{d}/st/mine")),
            as_user(1000, [], lambda: os.unlink(f"{d}/st/mine"))]


@step
def set_id_bits_fall_on_writes_by_others(d):
    f = f"{d}/suid"
    write(f, b"prog")
    os.chown(f, 1000, 1000)
    out = []
    for who, groups, fn in ((1001, [1000], lambda: write(f, b"x", flags=os.O_WRONLY)), (1000, [], lambda: write(f, b"x", flags=os.O_WRONLY)),
                            (1001, [1000], lambda: os.truncate(f, 1)), (1000, [], lambda: os.chown(f, -1, 1000)),
                            (0, [0], lambda: write(f, b"x", flags=os.O_WRONLY))):
        os.chmod(f, 0o6775)
        r = as_user(who, groups, fn)
        out.append((r, st(f)))
    os.chmod(f, 0o640)
    os.chown(f, 1000, 3000)
    return out, as_user(1000, [], lambda: os.chmod(f, 0o2750)), st(f)


@step
def running_without_read_right(d):
    f = f"{d}/prog"
    write(f, read("/bin/true"), 0o711)
    os.chmod(f, 0o711)
    return as_user(1000, [], lambda: os.spawnv(os.P_WAIT, f, [f])), as_user(1000, [], lambda: read(f))


@step
def text_file_busy(d):
    f = f"{d}/busy"
    write(f, read("/bin/sleep"), 0o755)
    os.chmod(f, 0o755)
    pid = os.spawnv(os.P_NOWAIT, f, [f, "20"])
    for _ in range(500):  # until the child runs it
        if attempt(os.readlink, f"/proc/{pid}/exe") == f:
            break
        time.sleep(0.01)
    r = attempt(os.open, f, os.O_WRONLY)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return r


@step
def a_handle_serves_another_user(d):
    """Rights are checked at the open: who gets the handle afterwards may use it."""
    f = f"{d}/handed"
    write(f, b"handed over", 0o600)
    os.mkdir(f"{d}/handed-dir", 0o700)
    write(f"{d}/handed-dir/x")
    fd = os.open(f, os.O_RDWR)
    dd = os.open(f"{d}/handed-dir", os.O_RDONLY)
    out = [as_user(1000, [], lambda: os.pread(fd, 20, 0)), as_user(1000, [], lambda: os.pwrite(fd, b"H", 0)),
           as_user(1000, [], lambda: os.ftruncate(fd, 6)), as_user(1000, [], lambda: os.fsync(fd)),
           as_user(1000, [], lambda: os.listdir(dd)), as_user(1000, [], lambda: os.fchmod(fd, 0o777))]
    os.close(fd)
    os.close(dd)
    return out, read(f)


# ---- locks ----

@step
def record_locks(d):
    f = f"{d}/lk"
    write(f, b"0123456789")
    fd = os.open(f, os.O_RDWR)
    fcntl.lockf(fd, fcntl.LOCK_EX, 4, 2)

    def other(kind, length, start):
        def fn():
            o = os.open(f, os.O_RDWR)
            return fcntl.lockf(o, kind | fcntl.LOCK_NB, length, start)
        return as_user(0, [0], fn)
    out = [other(fcntl.LOCK_EX, 2, 0), other(fcntl.LOCK_SH, 1, 5), other(fcntl.LOCK_EX, 3, 6)]
    fcntl.lockf(fd, fcntl.LOCK_UN, 2, 3)
    out += [other(fcntl.LOCK_EX, 2, 3), other(fcntl.LOCK_EX, 1, 2), other(fcntl.LOCK_EX, 1, 5)]
    q = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0)

    def getlk():
        o = os.open(f, os.O_RDWR)
        t, _, start, length, pid = struct.unpack("hhqqi4x", fcntl.fcntl(o, fcntl.F_GETLK, q))
        return t, start, length, pid == os.getppid()
    out.append(as_user(0, [0], getlk))
    fd2 = os.open(f, os.O_RDONLY)
    os.close(fd2)  # POSIX: closing any handle of the file drops the process's locks
    out.append(other(fcntl.LOCK_EX, 0, 0))
    os.close(fd)
    return out


@step
def flocks(d):
    f = f"{d}/fl"
    write(f)
    a, b = os.open(f, os.O_RDONLY), os.open(f, os.O_RDONLY)
    fcntl.flock(a, fcntl.LOCK_EX)
    out = [attempt(fcntl.flock, b, fcntl.LOCK_SH | fcntl.LOCK_NB)]
    fcntl.flock(a, fcntl.LOCK_SH)
    out += [attempt(fcntl.flock, b, fcntl.LOCK_SH | fcntl.LOCK_NB), attempt(fcntl.flock, a, fcntl.LOCK_EX | fcntl.LOCK_NB)]
    os.close(b)
    out.append(attempt(fcntl.flock, a, fcntl.LOCK_EX | fcntl.LOCK_NB))
    os.close(a)
    return out


@step
def a_lock_waits_and_gets_it(d):
    f = f"{d}/wait"
    write(f)
    r, w = os.pipe()
    fd = os.open(f, os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    pid = os.fork()
    if pid == 0:
        o = os.open(f, os.O_RDWR)
        os.write(w, b"waiting ")
        fcntl.flock(o, fcntl.LOCK_EX)
        os.write(w, b"got")
        os._exit(0)
    out = os.read(r, 8)
    time.sleep(0.05)
    os.set_blocking(r, False)
    early = attempt(os.read, r, 8)
    os.set_blocking(r, True)
    fcntl.flock(fd, fcntl.LOCK_UN)
    out += os.read(r, 8)
    os.waitpid(pid, 0)
    os.close(fd)
    return out, early


@step
def a_waiting_lock_can_be_interrupted(d):
    import signal
    f = f"{d}/intr"
    write(f)
    fd = os.open(f, os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    pid = os.fork()
    if pid == 0:
        class Alarm(Exception):
            pass

        def on(*_):
            raise Alarm
        signal.signal(signal.SIGALRM, on)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        try:
            fcntl.flock(os.open(f, os.O_RDWR), fcntl.LOCK_EX)
        except Alarm:
            os._exit(7)
        os._exit(1)
    out = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    fcntl.flock(fd, fcntl.LOCK_UN)
    g = os.open(f, os.O_RDWR)
    free = attempt(fcntl.flock, g, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(fd)
    os.close(g)
    return out, free


# ---- what is not offered ----

@step
def refusals(d):
    fd = os.open(f"{d}/f", os.O_RDWR)
    out = [attempt(fcntl.ioctl, fd, 0x5401, b"\0" * 64)]
    os.close(fd)
    return out


def main():
    ref, tested = sys.argv[1:3]
    only = sys.argv[3:]
    bad = 0
    os.umask(0o022)
    for fn in STEPS:
        if only and fn.__name__ not in only and fn not in STEPS[:1]:
            continue
        a, b = attempt(fn, ref), attempt(fn, tested)
        if a != b:
            bad += 1
            print(f"DIFFERENT {fn.__name__}:\n    reference {a!r}\n    tested    {b!r}")
    print(f"{len(STEPS)} steps, {bad} different")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
