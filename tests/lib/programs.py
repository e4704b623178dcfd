"""Programs that we did not write, in pairs, each end by `uroce run` as a plain user in a network namespace."""
import os
import random
import subprocess
import time

import two_nets

EXTENDED = bool(os.environ.get("PENSTOCK_EXTENDED"))


def rng():
    seed = int(os.environ.get("PENSTOCK_SEED") or time.time() % 1000000)
    print("seed:", seed, flush=True)
    return random.Random(seed)


UDP = {"UROCE_SHM": "0"}


def wire(r):
    """Both ends are on one machine: over UDP as between two, or over shared memory, where they move by themselves."""
    return UDP if r.randrange(2) else {}


class Failed(Exception):
    pass


class Programs:
    def __init__(self, uroce, nets):
        self.uroce, self.nets = os.path.abspath(uroce), nets
        self.count = 0

    def argv(self, argv, options=()):
        return [self.uroce, "run", *options, "--", *argv]

    def run(self, argv, i=0, options=(), env=None, timeout=60):
        r = self.nets.run(i, self.argv(argv, options), env=env, timeout=timeout)
        if r.returncode:
            raise Failed(f"{' '.join(map(str, argv))}: status {r.returncode}\n{r.stdout}{r.stderr}")
        self.count += 1
        return r.stdout

    def listens(self, proc, port):
        """Whether somebody listens on that TCP port in the process's network namespace."""
        for name in ("tcp", "tcp6"):
            try:
                with open(f"/proc/{proc.pid}/net/{name}", encoding="ascii") as f:
                    lines = f.readlines()
            except OSError:  # it has just ended
                lines = []
            for words in map(str.split, lines):
                if words[3] == "0A" and int(words[1].split(":")[-1], 16) == port:
                    return True
        return False

    def pair(self, server, client, port, places=(0, 1), env=None, options=(), timeout=60, refused=None):
        """Server and client in those namespaces: what they wrote. The client begins when somebody listens on that TCP
        port; without a port, it begins anew while it writes `refused`."""
        both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "stdin": subprocess.DEVNULL}
        end = time.monotonic() + timeout
        s = self.nets.popen(places[0], self.argv(server, options), env=env, **both)
        out = ["", ""]
        try:
            while port and not self.listens(s, port):
                if s.poll() is not None or time.monotonic() > end:
                    raise subprocess.TimeoutExpired(server, timeout)
                time.sleep(0.005)
            again = True
            while again:
                c = self.nets.popen(places[1], self.argv(client, options), env=env, **both)
                try:
                    out[1] = c.communicate(timeout=max(1, end - time.monotonic()))[0]
                finally:
                    if c.poll() is None:
                        two_nets.end(c)
                        out[1] = c.communicate()[0]
                again = c.returncode and refused and refused in out[1] and s.poll() is None and time.monotonic() < end
            out[0] = s.communicate(timeout=10)[0]
            status = (s.returncode, c.returncode)
        except subprocess.TimeoutExpired:
            two_nets.end(s)
            out[0] = s.communicate()[0]
            status = ("time is over", s.returncode)
        if status != (0, 0):
            raise Failed(f"{' '.join(map(str, client))}: statuses {status}\n-- server: {' '.join(map(str, server))}\n"
                         f"{out[0]}\n-- client\n{out[1]}")
        self.count += 1
        return out


def sample(cases, n, r):
    """n of the cases, all when the tests are extended."""
    cases = list(cases)
    return cases if EXTENDED or n >= len(cases) else r.sample(cases, n)


def start(uroce, mtu=1500):
    nets = two_nets.enter(mtu)
    return Programs(uroce, nets)
