"""Two network namespaces for tests of programs, joined by a veth pair, as tests/lib/netns.h has them for tests in C:

    0: 10.77.0.1/24, fd77::1/64 on va ---- vb: 10.77.0.2/24, fd77::2/64 :1

Programs run in them without any privilege: root is only whoever makes the namespaces."""
import atexit
import os
import signal
import subprocess
import sys
import tempfile
import time

ADDRESS = ["10.77.0.1", "10.77.0.2"]
ADDRESS6 = ["fd77::1", "fd77::2"]
MARK = "PENSTOCK_TEST_NETNS"
CAN_CHANGE_USER = False
DIE = ["setpriv", "--pdeathsig", "KILL"]


def skip(why):
    print("skipped:", why)
    sys.exit(77)


def enter(mtu=1500):
    """This program starts anew in a network namespace of its own; call it first."""
    if MARK not in os.environ:
        how = ["unshare", "-n"] if os.geteuid() == 0 else ["unshare", "-rn"]
        probe = subprocess.run([*how, "true"], stderr=subprocess.PIPE, text=True)
        if probe.returncode:
            skip("no network namespaces here: " + probe.stderr.strip())
        os.environ[MARK] = "root" if os.geteuid() == 0 else "user"
        os.execvp(how[0], [*how, sys.executable, *sys.argv])
    if os.environ[MARK] == "root":
        # In a user namespace that has no other user, root without capabilities is as plain as it gets.
        global CAN_CHANGE_USER
        CAN_CHANGE_USER = subprocess.run(["setpriv", "--reuid", "65534", "--clear-groups", "true"],
                                         stderr=subprocess.DEVNULL).returncode == 0
    return Nets(mtu)


def end(p):
    """The program and whatever it has started."""
    try:
        os.killpg(p.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    p.wait()


def sh(*argv):
    subprocess.run(argv, check=True)


class Nets:
    def __init__(self, mtu=1500):
        self.other = subprocess.Popen([*DIE, "unshare", "-n", "sleep", "infinity"])
        mine = os.readlink("/proc/self/ns/net")
        while os.readlink(f"/proc/{self.other.pid}/ns/net") == mine:
            time.sleep(0.005)
        sh("ip", "link", "add", "va", "type", "veth", "peer", "name", "vb", "netns", str(self.other.pid))
        for i, dev in enumerate(("va", "vb")):
            ip = [*self.where(i), "ip"]
            sh(*ip, "link", "set", "lo", "up")
            sh(*ip, "link", "set", dev, "mtu", str(mtu))
            # Else the link-local address is for use after a second or two.
            sh(*self.where(i), "sh", "-c", f"echo 0 >/proc/sys/net/ipv6/conf/{dev}/accept_dad || true")
            sh(*ip, "addr", "add", f"{ADDRESS[i]}/24", "dev", dev)
            sh(*ip, "addr", "add", f"{ADDRESS6[i]}/64", "dev", dev, "nodad")
            sh(*ip, "link", "set", dev, "up")
        for i, dev in enumerate(("va", "vb")):
            while "state UP" not in self.output(i, ["ip", "link", "show", dev]):
                time.sleep(0.01)
        # Programs of another user reach neither the tests' nor root's directories.
        self.dir = tempfile.mkdtemp(prefix="uroce-test-", dir="/tmp")
        os.chmod(self.dir, 0o1777)
        self.children = []
        atexit.register(self.close)

    def where(self, i):
        return ["nsenter", f"--net=/proc/{self.other.pid}/ns/net"] if i else []

    def argv(self, i, argv, user=65534):
        who = ["--reuid", str(user), "--regid", str(user), "--clear-groups"] if CAN_CHANGE_USER else []
        return [*self.where(i), *DIE, *who, "--inh-caps=-all", "--bounding-set=-all", "--no-new-privs", *map(str, argv)]

    def env(self, env):
        # MALLOC_PERTURB_ of Meson's ends programs that use what they have freed, as rping does at its end.
        ours = ("UROCE_", "LD_", "MALLOC_", "XDG_RUNTIME_DIR")
        clean = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
        return {**clean, "HOME": self.dir, **(env or {})}

    def popen(self, i, argv, env=None, user=65534, **args):
        """A program in namespace i as a plain user; it is killed when the test ends."""
        # In a session of its own, so that what it starts can be ended with it.
        p = subprocess.Popen(self.argv(i, argv, user), env=self.env(env), cwd=self.dir, start_new_session=True, **args)
        self.children.append(p)
        return p

    def run(self, i, argv, env=None, user=65534, timeout=120, **args):
        args = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **args}
        return subprocess.run(self.argv(i, argv, user), env=self.env(env), cwd=self.dir, timeout=timeout, **args)

    def output(self, i, argv):
        return subprocess.run([*self.where(i), *argv], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                              text=True).stdout

    def close(self):
        atexit.unregister(self.close)
        for p in self.children:
            end(p)
        self.other.send_signal(signal.SIGKILL)
        self.other.wait()
        subprocess.run(["rm", "-rf", self.dir], check=True)
