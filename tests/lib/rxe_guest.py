"""A real RoCE peer for tests: Debian's kernel with its soft-RoCE driver (rdma_rxe) and rdma-core's programs in a guest.

    this process: a network namespace of its own          guest
    10.78.0.1, fd78::1 on the tap rxe, MTU 4200  -------  10.78.0.2, fd78::2 on eth0, with rxe0

The kernel comes from Debian's package, which is downloaded and not installed, and stays in
${XDG_CACHE_HOME:-~/.cache}/penstock. All else in the guest is this machine's: programs, their libraries, and what the
test gives. Needs root (a namespace, a tap). Guest and namespace end with this process, however it ends.

The GIDs of rxe0: 1 is the IPv4 address, 2 the IPv6 address.
"""
import contextlib
import ctypes
import fcntl
import glob
import lzma
import os
import pathlib
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

HOST4, GUEST4, HOST6, GUEST6 = "10.78.0.1", "10.78.0.2", "fd78::1", "fd78::2"
MTU = 4200
AGENT_PORT = 1
KERNEL = "linux-image-amd64"  # the cloud kernel has no rdma_rxe
MODULES = ["virtio_pci", "virtio_net", "crc32_generic", "ib_uverbs", "rdma_ucm", "rdma_rxe"]
PROGRAMS = ["/bin/ip", "/usr/bin/rdma", "/usr/bin/ibv_*", "/usr/bin/ib_*_bw", "/usr/bin/ib_*_lat", "/usr/bin/rping",
            "/usr/bin/ucmatose", "/usr/bin/udaddy", "/usr/lib/*/libibverbs/librxe-*.so",
            "/lib/*/libgcc_s.so.1"]  # for pthread_exit
APPLETS = ["sh", "mount", "mkdir", "insmod", "cat", "grep", "sleep", "echo", "dmesg", "kill", "ls", "ping", "true", "false"]
INIT = """#!/bin/sh
export PATH=/usr/bin:/bin
mkdir -p /proc /sys /dev /tmp
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev; mount -t tmpfs tmp /tmp
for m in {modules}; do insmod /modules/$m.ko || echo "insmod $m failed"; done
echo 0 >/proc/sys/net/ipv6/conf/all/accept_ra
/bin/ip link set lo up
/bin/ip link set eth0 mtu {mtu}
/bin/ip addr add {guest4}/24 dev eth0; /bin/ip addr add {guest6}/64 dev eth0 nodad
/bin/ip link set eth0 up
rdma link add rxe0 type rxe netdev eth0
until grep -q ACTIVE /sys/class/infiniband/rxe0/ports/1/state; do sleep 0.1; done
until ping -6 -c 1 -W 1 {host6} >/dev/null; do sleep 0.1; done # a queue pair needs the neighbour at RTR
echo ready
exec /bin/rxe_agent {port}
"""
libc = ctypes.CDLL(None, use_errno=True)


def skip(reason):
    print("skipped:", reason)
    sys.exit(77)


def needs():
    """Ends the program with 77 where there can be no guest."""
    if os.geteuid() != 0:
        skip("needs root, for a network namespace and a tap")
    try:
        os.close(os.open("/dev/net/tun", os.O_RDWR))
    except OSError as e:
        skip(f"/dev/net/tun: {e.strerror}")


# ---- the kernel ----

def module_files(tree):
    """The modules that are wanted, and those that they need, in the order in which they load."""
    there = {p.name[:-3].replace("-", "_"): p for p in pathlib.Path(tree).rglob("*.ko")}
    order = []

    def need(name):
        if name in there and there[name] not in order:
            needed = re.search(rb"\0depends=([^\0]*)\0", there[name].read_bytes()).group(1).decode()
            for other in filter(None, needed.split(",")):
                need(other)
            order.append(there[name])

    for name in MODULES:
        need(name)
    return order


def unpack_kernel(bzimage):
    """The ELF file within: it boots at once, while the guest would take seconds to decompress it."""
    data = pathlib.Path(bzimage).read_bytes()
    setup_sectors = data[0x1f1] or 4
    offset, length = struct.unpack_from("<II", data, 0x248)
    at = (setup_sectors + 1) * 512 + offset
    return lzma.decompress(data[at:at + length - 4])


def fetch_kernel(into):
    apt = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=600"]
    run = dict(check=True, stdout=subprocess.DEVNULL)
    if not subprocess.run(["apt-cache", "show", KERNEL], capture_output=True).stdout:
        subprocess.run(apt + ["update"], **run)
    depends = subprocess.run(["apt-cache", "depends", KERNEL], check=True, capture_output=True, text=True).stdout
    package = re.search(r"Depends: (linux-image-\S+)", depends).group(1)
    with tempfile.TemporaryDirectory(prefix="pst-kernel-") as tmp:
        # The lists at hand may name a version that is gone.
        if subprocess.run(apt + ["download", package], cwd=tmp, capture_output=True).returncode:
            subprocess.run(apt + ["update"], **run)
            subprocess.run(apt + ["download", package], cwd=tmp, **run)
        subprocess.run(["dpkg-deb", "-x", glob.glob(tmp + "/*.deb")[0], tmp + "/x"], check=True)
        new = tempfile.mkdtemp(prefix="new-", dir=into.parent)
        pathlib.Path(new, "vmlinux").write_bytes(unpack_kernel(glob.glob(tmp + "/x/boot/vmlinuz-*")[0]))
        files = module_files(tmp + "/x/lib/modules")
        for file in files:
            shutil.copy(file, new)
        pathlib.Path(new, "order").write_text(" ".join(f.name[:-3] for f in files))
        os.rename(new, into)


def kernel():
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "penstock")
    cache.mkdir(parents=True, exist_ok=True)
    with open(cache / "rxe-kernel.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (cache / "rxe-kernel").exists():
            print("downloading Debian's kernel", flush=True)
            fetch_kernel(cache / "rxe-kernel")
    return cache / "rxe-kernel"


# ---- the guest's file system ----

def libraries(program):
    # Meson's environment may name our drop-in libraries: the guest has the system's.
    env = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
    out = subprocess.run(["ldd", program], capture_output=True, text=True, env=env).stdout
    assert "not found" not in out, out
    return re.findall(r"(/\S+) \(0x", out)


def cpio(entries):
    """entries: (name, mode, bytes), a folder before what is in it."""
    out = []
    for i, (name, mode, data) in enumerate(entries + [("TRAILER!!!", 0, b"")]):
        fields = [i + 1, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0]
        head = b"070701" + b"".join(b"%08X" % f for f in fields) + name.encode() + b"\0"
        out += [head, bytes(-len(head) % 4), data, bytes(-len(data) % 4)]
    return b"".join(out)


def image(kernel_dir, programs):
    """programs: files of the test, which go to /bin."""
    files = {"/etc/libibverbs.d/rxe.driver": "/etc/libibverbs.d/rxe.driver", "/bin/busybox": "/bin/busybox"}
    mine = [p for pattern in PROGRAMS for p in glob.glob(pattern)]
    files.update({p: p for p in mine})
    files.update({"/bin/" + os.path.basename(p): p for p in programs})
    for program in ["/bin/busybox"] + mine + programs:
        files.update({lib: lib for lib in libraries(program)})
    order = (kernel_dir / "order").read_text()
    files.update({f"/modules/{m}.ko": f"{kernel_dir}/{m}.ko" for m in order.split()})
    folders = {str(p) for name in files for p in pathlib.Path(name).parents} | {"/bin", "/usr/bin"}
    entries = [(f.lstrip("/"), 0o40755, b"") for f in sorted(folders) if f != "/"]
    entries += [(name.lstrip("/"), 0o100755, pathlib.Path(f).read_bytes()) for name, f in sorted(files.items())]
    entries += [(f"bin/{a}", 0o120777, b"busybox") for a in APPLETS]
    init = INIT.format(modules=order, mtu=MTU, guest4=GUEST4, guest6=GUEST6, host6=HOST6, port=AGENT_PORT)
    return cpio(entries + [("init", 0o100755, init.encode())])


# ---- the guest ----

def own_network():
    """This process, and all that it starts from now on, is alone with the tap."""
    if libc.unshare(0x40000000):  # CLONE_NEWNET
        skip("no network namespace: " + os.strerror(ctypes.get_errno()))
    for command in ("link set lo up", "tuntap add dev rxe mode tap", f"link set rxe mtu {MTU}",
                    f"addr add {HOST4}/24 dev rxe", f"addr add {HOST6}/64 dev rxe nodad", "link set rxe up"):
        subprocess.run(["ip"] + command.split(), check=True)


def die_with_parent():
    libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class Session:
    """A command that runs in the guest."""

    def __init__(self, command, timeout):
        self.sock = socket.create_connection((GUEST4, AGENT_PORT), timeout=timeout)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.file = self.sock.makefile("r", encoding="utf-8", errors="replace", newline="\n")
        self.send(command)

    def send(self, line):
        self.sock.sendall(line.encode() + b"\n")

    def line(self):
        return self.file.readline()

    def wait(self):
        """Its exit status, and all output that was not read."""
        out = self.file.read()
        text, mark, status = out.rpartition("\x1e")
        if not mark:
            raise RuntimeError("the guest has gone away: " + out)
        return int(status), text

    def close(self):
        self.file.close()
        self.sock.close()


class Guest:
    def __init__(self, programs):
        """programs: what a test wants in the guest; rxe_agent must be among them."""
        needs()
        kernel_dir = kernel()
        own_network()
        self.tmp = tempfile.TemporaryDirectory(prefix="pst-rxe-")
        self.dir = self.tmp.name
        pathlib.Path(self.dir, "initramfs").write_bytes(image(kernel_dir, programs))
        # A /dev/kvm on a processor without VMX or SVM cannot boot a guest.
        flags = re.search(r"^flags.*", pathlib.Path("/proc/cpuinfo").read_text(), re.M)
        kvm = os.access("/dev/kvm", os.R_OK | os.W_OK) and flags and re.search(r"\b(vmx|svm)\b", flags.group())
        plain = ",".join(f + "=off" for f in (
            "csum gso guest_csum guest_tso4 guest_tso6 guest_ecn guest_ufo host_tso4 host_tso6 host_ecn host_ufo").split())
        command = ["qemu-system-x86_64", "-M", f"pc,accel={'kvm' if kvm else 'tcg'},usb=off,vmport=off,hpet=off",
                   "-cpu", "host" if kvm else "qemu64", "-m", "400", "-nodefaults", "-no-user-config", "-no-reboot",
                   "-display", "none", "-monitor", "none", "-serial", f"file:{self.dir}/console",
                   "-kernel", f"{kernel_dir}/vmlinux", "-initrd", f"{self.dir}/initramfs",
                   "-netdev", "tap,id=n,ifname=rxe,script=no,downscript=no,vhost=off",
                   "-device", "virtio-net-pci,netdev=n,romfile=," + plain,
                   "-append", "console=ttyS0 quiet no_timer_check panic=-1 edd=off tsc=reliable mitigations=off nokaslr "
                              "audit=0 cryptomgr.notests=1 random.trust_cpu=on"]
        self.qemu = subprocess.Popen(command, preexec_fn=die_with_parent)
        self.wait_until_up()

    def console(self):
        with contextlib.suppress(FileNotFoundError):
            return pathlib.Path(self.dir, "console").read_text(errors="replace")
        return ""

    def wait_until_up(self):
        while "ready" not in self.console():
            if self.qemu.poll() is not None:
                raise RuntimeError("the guest does not boot:\n" + self.console())
            time.sleep(0.05)
        while self.run("true")[0]:
            time.sleep(0.05)

    def open(self, command, timeout=120):
        while True:
            try:
                return Session(command, timeout)
            except ConnectionRefusedError:
                if self.qemu.poll() is not None:
                    raise
                time.sleep(0.05)

    def run(self, command, timeout=120):
        s = self.open(command, timeout)
        try:
            return s.wait()
        finally:
            s.close()

    def close(self):
        self.qemu.kill()
        self.qemu.wait()
        self.tmp.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        if exc[0] and not issubclass(exc[0], SystemExit):
            print("console of the guest:\n" + self.console()[-3000:], file=sys.stderr)
        self.close()
