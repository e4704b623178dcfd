"""Steps of ops_compare.py: names and listings."""
import ctypes
import os
import socket
import stat

from ops_base import attempt, libc, read, renameat2, st, step, write

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
