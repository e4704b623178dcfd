"""Two ends that speak the dialect of tests/lib/qp_lines.h, for tests of uroce against the kernel's soft-RoCE: one in
this process's network namespace (uroce), one in the guest (rxe)."""
import os
import pathlib
import random
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "lib"))
import roce_frames
import rxe_guest

OK, LEN, QP_OP, REM_INVALID, REM_ACCESS, REM_OP, RETRY, RNR_RETRY = 0, 1, 2, 9, 10, 11, 12, 13
AROUND = 64


class End:
    name = "?"

    def send(self, line):
        raise NotImplementedError

    def line(self):
        raise NotImplementedError

    def ready(self):
        self.answer("start")

    def answer(self, command):
        words = self.line().split()
        if not words or words[0] != "ok":
            raise AssertionError(f"{self.name}: {command}: {' '.join(words) or 'it has ended'}")
        return {k: v for k, _, v in (w.partition("=") for w in words[1:])}

    def cmd(self, verb, **args):
        command = " ".join([verb] + [f"{k}={v}" for k, v in args.items()])
        self.send(command)
        return {k: int(v) if v.isdigit() else v for k, v in self.answer(command).items()}


class Uroce(End):
    name = "uroce"

    def __init__(self, program, buffer, family=4, **env):
        """env: capture=FILE is UROCE_CAPTURE, and so on. One address: a device captures each in a file of its own."""
        env["address"] = rxe_guest.HOST4 if family == 4 else rxe_guest.HOST6
        env = {**os.environ, **{"UROCE_" + k.upper(): v for k, v in env.items()}}
        self.proc = subprocess.Popen([program, str(buffer)], env=env, text=True, bufsize=1, stdin=subprocess.PIPE,
                                     stdout=subprocess.PIPE, preexec_fn=rxe_guest.die_with_parent)
        self.ready()

    def send(self, line):
        self.proc.stdin.write(line + "\n")
        self.proc.stdin.flush()

    def line(self):
        return self.proc.stdout.readline()

    def close(self):
        self.proc.stdin.close()
        status = self.proc.wait(60)
        assert status == 0, f"uroce_qp ended with {status}"


class Rxe(End):
    name = "rxe"

    def __init__(self, guest, buffer):
        self.session = guest.open(f"exec rxe_qp {buffer}")
        self.ready()

    def send(self, line):
        self.session.send(line)

    def line(self):
        return self.session.line()

    def close(self):
        self.session.close()


def pair(a, b, rng, kind="rc", family=4, mtu=1024, depth=64, access=15, a_args=None, b_args=None):
    """New queue pairs at both ends, connected; PSNs at random, often just before they wrap."""
    for e in (a, b):
        psn = rng.choice([rng.randrange(1 << 24), (1 << 24) - rng.randrange(1, 50)])
        e.kind = kind
        e.__dict__.update(e.cmd("new", type=kind, family=family, depth=depth, psn=psn, access=access))
    if kind != "ud":
        for e, peer, args in ((a, b, a_args), (b, a, b_args)):
            e.cmd("connect", qpn=peer.qpn, psn=peer.psn, gid=peer.gid, mtu=mtu, **(args or {}))


def expect(end, **want):
    got = end.cmd("poll", ms=60000)
    for key, value in want.items():
        assert got.get(key) == value, f"{end.name}: a completion is {got}, expected {want}"
    return got


def expect_quiet(*ends):
    """Each request has been completed once."""
    for end in ends:
        got = end.cmd("poll", ms=0)
        assert "none" in got, f"{end.name}: a completion too many: {got}"


class Exchange:
    """Messages from end to end, each compared byte by byte, with the bytes around the target."""

    def __init__(self, rng):
        self.rng = rng
        self.seed = rng.randrange(1 << 30)
        self.count = 0  # of what was right; also the id of the next request

    def next_seed(self):
        self.seed += 1
        return self.seed

    def message(self, a, b, op, n):
        """op begins at a: send, send_imm, write, write_imm, read."""
        verb, _, imm = op.partition("_")
        source, target = (b, a) if verb == "read" else (a, b)
        src, dst = AROUND + self.rng.randrange(8), AROUND + self.rng.randrange(8)
        seed, was = self.next_seed(), self.next_seed()
        source.cmd("fill", off=src, len=n, seed=seed)
        target.cmd("fill", off=dst - AROUND, len=n + 2 * AROUND, seed=was)
        args = {"off": src, "len": n}
        received = {}
        if verb == "read":
            args = {"off": dst, "len": n, "va": b.addr + src, "rkey": b.rkey}
        elif verb == "write":
            args.update(va=b.addr + dst, rkey=b.rkey)
        if imm:
            args["imm"] = received["imm"] = self.rng.randrange(1 << 32)
        if verb == "send":
            b.cmd("recv", off=dst, len=n + self.rng.randrange(AROUND), id=self.count)
        elif imm:
            b.cmd("recv", off=0, len=0, id=self.count)
        a.cmd(verb, id=self.count, **args)
        expect(a, status=OK, op=verb, id=self.count)
        if verb == "send" or imm:
            expect(b, status=OK, op="recv" if verb == "send" else "recv_write", len=n, id=self.count, **received)
        elif a.kind == "uc":
            self.follow(a, b)
        self.compare(target, dst, n, seed, was, f"{a.name} {op} of {n} bytes")

    def follow(self, a, b):
        """UC: that a WRITE has arrived is known from what comes behind it, not from its completion."""
        b.cmd("recv", off=0, len=0, id=self.count)
        a.cmd("send", off=0, len=0, id=self.count)
        expect(a, status=OK, op="send", id=self.count)
        expect(b, status=OK, op="recv", len=0, id=self.count)

    def compare(self, target, dst, n, seed, was, what):
        got = target.cmd("check", off=dst, len=n, seed=seed, around=AROUND, was=was)
        assert "same" in got, f"{what}: {got}"
        self.count += 1

    def atomics(self, a, b):
        for _ in range(8):
            at, before, operand = 8 * self.rng.randrange(8), self.rng.getrandbits(64), self.rng.getrandbits(64)
            to = {"off": 512, "va": b.addr + at, "rkey": b.rkey}
            for op, args, after in (("faa", {"add": operand}, (before + operand) % 2**64),
                                    ("cas", {"compare": before, "swap": operand}, operand),
                                    ("cas", {"compare": before ^ 1, "swap": operand}, before)):
                b.cmd("set", off=at, value=before)
                a.cmd(op, id=self.count, **to, **args)
                expect(a, status=OK, op=op, id=self.count)
                assert a.cmd("get", off=512)["value"] == before, f"{a.name} {op}: the old value is wrong"
                assert b.cmd("get", off=at)["value"] == after, f"{a.name} {op}: the new value is wrong"
                self.count += 1

    def invalidate(self, a, b):
        """A WRITE through a window of b's, and a SEND that takes the window away."""
        key = b.cmd("window", off=64, len=4096)["rkey"]
        expect(b, status=OK, op="bind")
        seed, was = self.next_seed(), self.next_seed()
        a.cmd("fill", off=0, len=1000, seed=seed)
        b.cmd("fill", off=0, len=1000 + 2 * AROUND, seed=was)
        a.cmd("write", off=0, len=1000, va=b.addr + 64, rkey=key)
        expect(a, status=OK, op="write")
        self.compare(b, 64, 1000, seed, was, f"{a.name} write through a window")
        b.cmd("recv", off=8192, len=100)
        a.cmd("send", off=0, len=100, inv=key)
        expect(a, status=OK, op="send")
        told = {"inv": key} if isinstance(b, Uroce) else {}  # the kernel does not tell a program
        expect(b, status=OK, op="recv", len=100, **told)
        a.cmd("write", off=0, len=1, va=b.addr + 64, rkey=key)
        expect(a, status=REM_ACCESS)
        self.count += 1

    def datagram(self, a, b, n, imm):
        src, dst, seed, was = 5, AROUND + 3, self.next_seed(), self.next_seed()
        a.cmd("fill", off=src, len=n, seed=seed)
        b.cmd("fill", off=dst + 40 + n, len=AROUND, seed=was)
        b.cmd("recv", off=dst, len=n + 40, id=self.count)
        args = {"imm": self.rng.randrange(1 << 32)} if imm else {}
        a.cmd("send", off=src, len=n, gid=b.gid, qpn=b.qpn, qkey=1, id=self.count, **args)
        expect(a, status=OK, op="send", id=self.count)
        expect(b, status=OK, op="recv", id=self.count, len=n + 40, src=a.qpn, **args)
        for check in ({"off": dst + 40, "len": n, "seed": seed}, {"off": dst + 40 + n, "len": AROUND, "seed": was}):
            got = b.cmd("check", **check)
            assert "same" in got, f"{a.name} datagram of {n} bytes: {check}: {got}"
        self.count += 1


# ---- captures ----

FIELDS = ["_ws.malformed", "frame.packet_flags_direction", "infiniband.bth.opcode", "infiniband.bth.destqp",
          "infiniband.deth.srcqp", "infiniband.mad.mgmtclass"]


def judge(path, damaged=False):
    """A capture as tshark sees it: no malformed frame; every ICRC right, unless some were damaged on purpose. Returns
    the frames."""
    frames = roce_frames.tshark(path, FIELDS)
    malformed = [i for i, f in enumerate(frames, 1) if f["_ws.malformed"]]
    assert not malformed, f"{path}: malformed frames {malformed[:5]}"
    wrong = [i for i, f in enumerate(roce_frames.pcapng_frames(pathlib.Path(path).read_bytes()), 1)
             if not roce_frames.icrc_is_right(f)]
    assert damaged or not wrong, f"{path}: the ICRC of frames {wrong[:5]} is wrong"
    return frames


def seeded():
    seed = int(os.environ.get("PENSTOCK_SEED") or random.randrange(1 << 30))
    print("seed", seed, flush=True)
    return random.Random(seed)
