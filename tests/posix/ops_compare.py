#!/usr/bin/python3
"""Runs one scripted sequence of file operations in two folders and compares every result and errno.

usage: ops_compare.py REFERENCE TESTED        (both empty, on different file systems)

A step is a function of a folder; what it returns, or the name of its error, is its result. Differences that POSIX leaves to
the file system (sizes of directories, block counts) are not looked at.
"""
import fcntl
import os
import struct
import sys
import time

from ops_base import as_user, attempt, step, STEPS, write

# The steps, in this order: later ones use what earlier ones made.
import ops_names  # noqa: F401 E402
import ops_data  # noqa: F401 E402
import ops_attr  # noqa: F401 E402

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
