#!/usr/bin/python3
"""`uroce run` sets up what a program needs and becomes the program; what it cannot serve, it names.

The command is tried where `meson install` would put it, and moved from there, with an empty library in the place of the
drop-in: what programs then do is tested in tests/interop.

Usage: uroce_run.py UROCE LIBUROCE-FS LIBDIR
"""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "lib"))
import two_nets
import uroce_installed

built, preload, libdir = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2]), sys.argv[3]
nets = two_nets.enter()
prefix, private, uroce = uroce_installed.install(nets, built, preload, libdir)
# With the sanitizer in the command, a preload comes before it: of no consequence here.
ASAN = os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"
ENV = {"UROCE_HOLDER": "off", "TMPDIR": nets.dir, "ASAN_OPTIONS": ASAN}


def run(*args, env=None, program=uroce, i=0, **more):
    return nets.run(i, [program, *args], env={**ENV, **(env or {})}, **more)


def refused(r, status, *words):
    lines = r.stderr.strip().splitlines()
    assert r.returncode == status and len(lines) == 1 and not r.stdout, r
    assert all(w in lines[0] for w in words), r


# Without the drop-ins there is a word on where they were looked for.
refused(run("run", "--", "true"), 1, "drop-in", f"../{libdir}/uroce", "meson install")
empty = pathlib.Path(nets.dir) / "empty.c"
empty.write_text("int penstock_test_empty;\n")
subprocess.run(["cc", "-shared", "-o", private / "libibverbs.so.1", "-Wl,-soname,libibverbs.so.1", empty], check=True)

# It is the program: arguments, environment, exit status, signals, process id.
show = """import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ), os.getpid()]))"""
r = run("run", "--", sys.executable, "-c", show, "a b", "--json", "", env={"LD_PRELOAD": "", "MINE": "x"})
assert r.returncode == 0 and not r.stderr, r
args, env, _ = json.loads(r.stdout)
assert args == ["a b", "--json", ""] and env["MINE"] == "x", (args, env)
assert env["LD_LIBRARY_PATH"].split(":")[0] == str(private), env
assert env["LD_PRELOAD"] == str(private / "liburoce-fs.so"), env
view = pathlib.Path(env["UROCE_SYSFS"])
r = run("run", sys.executable, "-c", show, env={"LD_PRELOAD": preload, "LD_LIBRARY_PATH": "/mine:/other"})
env = json.loads(r.stdout)[1]
assert env["LD_LIBRARY_PATH"] == f"{private}:/mine:/other", env
assert env["LD_PRELOAD"] == f"{preload}:{private}/liburoce-fs.so", env
# A program with a library path of its own that comes before the environment's gets the drop-in itself.
empty.write_text('#include <stdlib.h>\n#include <stdio.h>\nint main(void) { return puts(getenv("LD_PRELOAD")) < 0; }\n')
subprocess.run(["cc", "-o", f"{nets.dir}/rpath", "-Wl,--disable-new-dtags,-rpath,/usr/lib", empty], check=True)
assert run("run", "./rpath").stdout == f"{private}/liburoce-fs.so:{private}/libibverbs.so.1\n"
assert run("run", "--", "sh", "-c", "exit 77").returncode == 77
assert run("run", "--", "sh", "-c", "kill -USR1 $$").returncode == -signal.SIGUSR1
p = nets.popen(0, [uroce, "run", "--", "sh", "-c", "echo $$; exec sleep 100"], env=ENV, stdout=subprocess.PIPE, text=True)
assert int(p.stdout.readline()) == p.pid
p.terminate()
assert p.wait() == -signal.SIGTERM

# The view, as a program sees it, and what the kernel would show.
look = r"""
set -e
c=/sys/class/infiniband; d=$c/uroce0; p=$d/ports/1
ls $c; ls $c/uroce0/ports; ls /sys/class/infiniband_verbs /dev/infiniband
cat $d/node_type $p/state $p/phys_state $p/link_layer $p/gids/0 $p/gid_attrs/types/0 $p/gid_attrs/ndevs/0
cat $p/gids/1 $p/gids/31; wc -c <$p/gid_attrs/types/31; cat $p/pkeys/0 /sys/class/infiniband_verbs/uverbs0/ibdev
ls $d/device/net; ls $d/device/infiniband; readlink $d
test -c /dev/infiniband/uverbs0 -a -r /dev/infiniband/uverbs0 -a -w /dev/infiniband/uverbs0
test ! -e /sys/class/infiniband/other && ls -d /sys/class/net/lo
"""
zero = ":".join(["0000"] * 8)
want = f"""uroce0
1
/dev/infiniband:
uverbs0

/sys/class/infiniband_verbs:
abi_version
uverbs0
1: CA
4: ACTIVE
5: LinkUp
Ethernet
0000:0000:0000:0000:0000:ffff:0a4d:0001
RoCE v2
va
fd77:0000:0000:0000:0000:0000:0000:0001
{zero}
0
0xffff
uroce0
va
uroce0
../../devices/virtual/infiniband/uroce0
/sys/class/net/lo
"""
r = run("run", "--device", "10.77.0.1,fd77::1", "--", "sh", "-c", look)
assert (r.returncode, r.stdout, r.stderr) == (0, want, ""), r
assert run("run", "--", "ls", "/sys/class/infiniband/uroce0/device/net").stdout == "va\n"
r = run("run", "--device", "b=fd77::1", "--device", "a=127.0.0.1", "--", "sh", "-c",
        "ls /sys/class/infiniband; cat /sys/class/infiniband_verbs/uverbs1/ibdev; echo $UROCE_DEVICES")
assert r.stdout == "a\nb\na\nb=fd77::1;a=127.0.0.1\n", r

# Who needs the same view uses the same one; a damaged one is mended; another user's directory is not trusted.
where = ["run", "--", "sh", "-c", "echo $UROCE_SYSFS"]
first = run(*where).stdout.strip()
assert first == str(view) and run(*where).stdout.strip() == first
other = run(*where, i=1).stdout.strip()
assert other != first and os.path.dirname(other) == os.path.dirname(first), (other, first)
assert oct(os.stat(os.path.dirname(first)).st_mode & 0o777) == "0o700"
os.unlink(first + "/devices/virtual/infiniband/uroce0/node_type")
assert run(*where).stdout.strip() == first
assert (view / "devices/virtual/infiniband/uroce0/node_type").read_text() == "1: CA\n"
many = [nets.popen(1, [uroce, "run", "--device", "::1", "--", "cat", "/sys/class/infiniband/uroce0/ports/1/gids/0"],
                   env=ENV, stdout=subprocess.PIPE, text=True) for _ in range(8)]
for p in many:
    assert p.communicate()[0] == "0000:0000:0000:0000:0000:0000:0000:0001\n" and p.returncode == 0
left = [n for n in os.listdir(os.path.dirname(first)) if not n.startswith("view-")]
assert not left, left
base = os.path.dirname(first)
os.chmod(base, 0o755)
assert run(*where).stdout.strip() == first.replace(base, base + ".1")
os.chmod(base + ".1", 0o755)
for i in range(2, 10):
    os.mkdir(f"{base}.{i}")
refused(run(*where), 1, base, "not a directory of this user's alone", "TMPDIR")
os.chmod(base, 0o700)
runtime = pathlib.Path(nets.dir) / "runtime"
runtime.mkdir()
os.chmod(runtime, 0o777)
assert run(*where, env={"XDG_RUNTIME_DIR": str(runtime)}).stdout.startswith(f"{runtime}/uroce/view-")
old = run(*where, env={"TMPDIR": str(runtime)}).stdout.strip()
os.utime(old, (0, 0))
run(*where, i=1, env={"TMPDIR": str(runtime)})
assert not os.path.exists(old)

# A relative name of a capture holds in whatever directory the program opens its device.
r = run("capture", "-o", "x.pcapng", "--filter", "tx", "--impair", "drop prob=0.1", "--", "sh", "-c",
        "cd /; echo $UROCE_CAPTURE $UROCE_CAPTURE_FILTER $UROCE_IMPAIR")
assert r.stdout == f"+{nets.dir}/x.pcapng tx drop prob=0.1\n", r
refused(run("capture", "-o", "none/x.pcapng", "true"), 1, "none/x.pcapng", "No such file")

# What it cannot serve.
refused(run("run", "--", "no-such-program"), 127, "no-such-program", "no such program")
plain = pathlib.Path(nets.dir) / "plain"
plain.write_text("text")
os.chmod(plain, 0o644)
refused(run("run", "--", "./plain"), 126, "Permission denied")
static = pathlib.Path(nets.dir) / "static"
empty.write_text("int main(void) { return 0; }\n")
subprocess.run(["cc", "-static", "-o", static, empty], check=True)
refused(run("run", "--", "./static"), 126, "static program")
script = pathlib.Path(nets.dir) / "script"
script.write_text(f"#!{static}\n")
os.chmod(script, 0o755)
refused(run("run", "--", "./script"), 126, "static program")
script.write_text("#!/usr/bin/env python3\nimport os\nprint(os.path.exists('/sys/class/infiniband/uroce0'))\n")
assert run("run", "--", "./script").stdout == "True\n"
if two_nets.CAN_CHANGE_USER:
    set_uid = pathlib.Path(nets.dir) / "set-uid"
    shutil.copy("/bin/true", set_uid)
    os.chmod(set_uid, 0o4755)
    refused(run("run", "--", "./set-uid"), 126, "set-uid", "cp ")
refused(run("run", "--device", "10.9.9.9", "--", "true"), 1, "UROCE_ADDRESS", "10.9.9.9")
refused(run("run", "--device", "a=10.9.9.9", "--", "true"), 1, "UROCE_DEVICES", "10.9.9.9")
for bad in ([], ["--"], ["--device"], ["--nothing", "true"], ["--device", "::1", "--device", "a=::1", "true"]):
    refused(run("run", *bad), 2, "uroce run: ")
refused(run("capture", "true"), 2, "-o FILE")

# Moved as a whole.
prefix.rename(pathlib.Path(nets.dir) / "moved")
moved = pathlib.Path(nets.dir) / "moved/bin/uroce"
assert run("run", "--", "sh", "-c", "echo $LD_LIBRARY_PATH", program=moved).stdout == f"{nets.dir}/moved/{libdir}/uroce\n"
nets.close()
