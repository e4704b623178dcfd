"""What the steps of ops_compare.py share."""
import ctypes
import errno
import os
import stat

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
