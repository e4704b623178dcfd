#!/usr/bin/python3
"""Runs every block of README.md that is marked with <!-- test -->, in order, in one shell, as a new user would."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
    print("skipped: needs root (packages) and /dev/fuse")
    sys.exit(77)
blocks = re.findall(r"<!-- test -->\n```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
assert len(blocks) >= 5, "README.md has lost its marked blocks"
home = tempfile.mkdtemp(prefix="penstock-readme.")
script = "set -euxo pipefail\ncd source\n" + "\n".join(blocks)
# A copy of the sources: a user's build must not need, or touch, the build of the tests.
shutil.copytree(ROOT, home + "/source", symlinks=True, ignore=shutil.ignore_patterns("build*", ".git"))
os.mkdir(home + "/source/build")
env = {"HOME": home, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PENSTOCK_RUN_DIR": home + "/run", "LANG": "C.UTF-8",
       "CCACHE_DIR": os.environ.get("CCACHE_DIR", os.path.expanduser("~/.cache/ccache"))}
os.mkdir(env["PENSTOCK_RUN_DIR"], 0o700)
# A network namespace of its own: the README uses the default port, which a server of this machine may have.
# And of processes: nothing that a failed block has started outlives it.
command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", str(ROOT / "tests/lib/own_net.sh"), "bash", "-m", "-c", script]
try:
    done = subprocess.run(command, cwd=home, env=env, stdin=subprocess.DEVNULL, timeout=1200)
finally:
    subprocess.run(["umount", "-l", home + "/penstock-mnt"], stderr=subprocess.DEVNULL)
    shutil.rmtree(home, ignore_errors=True)
sys.exit(done.returncode)
