#!/usr/bin/python3
"""two_mounts_rights.py MOUNT1 MOUNT2 ROUNDS: a write takes the rights that another mount has given, and no more.

Whoever has a file open for writing must not change it under set-id bits, or a capability, that it got meanwhile by the other
mount; and a write beside a chmod by the other mount is before or after it, never instead.
"""
import mmap
import os
import random
import subprocess
import sys
import time

a, b, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
seed = int(os.environ.get("PENSTOCK_SEED", time.time_ns()))
rng = random.Random(seed)
print("# seed", seed)
OWNER, STRANGER = 1001, 1004
CAPABILITY = bytes.fromhex("0100000200040000000000000000000000000000")


def direct(fd):
    with mmap.mmap(-1, 4096) as m:
        os.pwritev(fd, [m], 0)


WRITES = {
    "pages": (os.O_RDWR, b"x" * 5000, lambda fd: os.pwrite(fd, b"evil", 0)),
    "around": (os.O_WRONLY, b"", lambda fd: os.pwrite(fd, b"evil", 0)),
    "append": (os.O_WRONLY | os.O_APPEND, b"x", lambda fd: os.write(fd, b"evil")),
    "direct": (os.O_WRONLY | os.O_DIRECT, b"x", direct),
    "durable": (os.O_WRONLY | os.O_DSYNC, b"x", lambda fd: os.pwrite(fd, b"evil", 0)),
    "ftruncate": (os.O_RDWR, b"x" * 5000, lambda fd: os.ftruncate(fd, 100)),
    "fallocate": (os.O_RDWR, b"x", lambda fd: os.posix_fallocate(fd, 0, 9000)),
}


def make(how, mode, uid=0):
    path = f"{a}/{how}"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.write(fd, WRITES[how][1])
    os.fchown(fd, uid, 1002)
    os.fchmod(fd, mode)
    os.close(fd)
    return path


class Writer:
    """A process of uid that has the file open before the constructor returns, and changes it at each go()."""

    def __init__(self, how, uid):
        flags, _, change = WRITES[how]
        ready, up = os.pipe()
        self.told, go = os.pipe()[::-1]
        self.result, result = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.close(self.told)
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            try:
                fd = os.open(f"{a}/{how}", flags)
                os.write(up, b"r")
                while os.read(go, 1) == b"g":
                    change(fd)
                    os.write(result, b"k")
                os.close(fd)
            except OSError as e:
                os.write(result, b"e" + str(e).encode())
            os._exit(0)
        for fd in (up, go, result):
            os.close(fd)
        assert os.read(ready, 1) == b"r", f"{how}: not opened by {uid}: {os.read(self.result, 200)}"
        os.close(ready)

    def go(self):
        os.write(self.told, b"g")

    def wait(self, what):
        r = os.read(self.result, 200)
        assert r == b"k", f"{what}: {r.decode()}"

    def end(self):
        os.write(self.told, b"q")  # its end would not do: writers that came later have the pipe, too
        os.waitpid(self.pid, 0)
        os.close(self.told)
        os.close(self.result)


def mode_of(path):
    return os.stat(path).st_mode & 0o7777


def given_by_the_other_mount():
    for new in (0o6777, 0o4755):  # 4755: and who has it open may not write it any more
        for how in WRITES:
            make(how, 0o777)
        writers = {how: Writer(how, STRANGER) for how in WRITES}
        for i in range(3):
            for how in WRITES:
                os.chmod(f"{b}/{how}", new)
                os.setxattr(f"{b}/{how}", "security.capability", CAPABILITY)
                if i == 1:  # the writer's kernel knows of the bits, too
                    os.stat(f"{a}/{how}")
            time.sleep(1.1)  # what was known of a capability is old
            for how, w in writers.items():
                w.go()
                w.wait(f"{how} {new:o}")
                assert mode_of(f"{a}/{how}") == new & 0o777, f"{how}, on its own mount: {mode_of(f'{a}/{how}'):o}"
                assert mode_of(f"{b}/{how}") == new & 0o777, f"{how}: {mode_of(f'{b}/{how}'):o}"
                assert "security.capability" not in os.listxattr(f"{b}/{how}"), f"{how}: the capability is there"
        for w in writers.values():
            w.end()


def roots_writes_leave_them():
    for how in WRITES:
        make(how, 0o777)
        w = Writer(how, 0)
        os.chmod(f"{b}/{how}", 0o6755)
        w.go()
        w.wait(how)
        assert mode_of(f"{b}/{how}") == 0o6755, f"root's {how}: {mode_of(f'{b}/{how}'):o}"
        w.end()


def a_changed_program_runs_without_them():
    """Also where the kernel has its mode from before."""
    with open("/usr/bin/id", "rb") as f:
        program = f.read()
    for i in range(rounds):
        for there in (a, b):
            path = f"{a}/program"
            with open(path, "wb") as f:
                f.write(program)
            os.chmod(path, 0o777)
            fd = os.open(path, os.O_WRONLY)
            os.chmod(path, 0o4755)
            run = lambda: subprocess.run([f"{there}/program", "-u"], user=STRANGER, group=STRANGER, capture_output=True)
            if there == b:  # here it could not run: it is open for writing
                r = run()
                assert r.stdout == b"0\n", f"it does not run as root: {r}"
            os.stat(path)
            if not os.fork():
                os.setresuid(STRANGER, STRANGER, STRANGER)
                os.pwrite(fd, program[:1000], 0)
                os._exit(0)
            assert os.wait()[1] == 0
            os.close(fd)
            r = run()
            assert r.stdout == b"%d\n" % STRANGER, f"round {i}, changed by a stranger it runs as root at {there}: {r}"


def beside_a_chmod():
    for how in WRITES:
        for uid in (OWNER, STRANGER):
            for i in range(rounds):
                make(how, 0o6777, OWNER)
                w = Writer(how, uid)
                new = rng.choice((0o700, 0o640, 0o4711, 0o2755, 0o777))
                os.stat(f"{b}/{how}")
                w.go()
                time.sleep(rng.random() * 0.003)
                os.chmod(f"{b}/{how}", new)
                w.wait(f"{how} by {uid}, round {i}")
                w.end()
                got, less = mode_of(f"{b}/{how}"), new & (0o777 if new & 0o10 else 0o2777)
                assert got in (new, less), f"{how} by {uid}, round {i}: chmod {new:o} has become {got:o}"


os.umask(0)
for test in (given_by_the_other_mount, roots_writes_leave_them, a_changed_program_runs_without_them, beside_a_chmod):
    print("#", test.__name__.replace("_", " "), flush=True)
    test()
