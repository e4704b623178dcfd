#!/usr/bin/python3
"""Runs every block of docs/operations.md that is marked with <!-- test -->, in order, in one shell, as its administrator would.

Usage: guide.py PENSTOCK. In namespaces of its own: the network has the guide's two addresses and nothing else, and /etc, /var/lib,
/var/log, /var/tmp, /run and /mnt are copies or empty, so that the guide's own paths can be used.
"""
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PENSTOCK = pathlib.Path(sys.argv[1]).resolve()

if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
    print("skipped: needs root (namespaces) and /dev/fuse")
    sys.exit(77)
if subprocess.run(["unshare", "--net", "--mount", "--pid", "--fork", "true"], capture_output=True).returncode:
    print("skipped: no namespaces here")
    sys.exit(77)
text = (ROOT / "docs/operations.md").read_text()
setup = re.findall(r"<!-- setup -->\n```sh\n(.*?)```", text, re.S)
blocks = re.findall(r"<!-- test -->\n```sh\n(.*?)```", text, re.S)
assert len(setup) == 1 and len(blocks) >= 7, "docs/operations.md has lost its marked blocks"
prepare = f"""
set -eu
ip link set lo up
mount -t tmpfs tmpfs /media
cp -a /etc /media/etc
mkdir /media/bin
ln -s {PENSTOCK} /media/bin/penstock
for d in /var/lib /var/log /var/tmp /run /mnt; do mount -t tmpfs tmpfs $d; done
mount --bind /media/etc /etc
rm -rf /etc/penstock
export PATH=/media/bin:$PATH
naps=0
sleep() {{ [ $((naps += 1)) -lt 300 ] || exit 1; command sleep "$@"; }}    # a daemon that does not come ends the wait
"""
# What a command that must fail (! ...) does is not seen by set -e: it is made so.
script = prepare + "set -x\n" + setup[0] + re.sub(r"^! (.*)$", r"if \1; then echo 'it was not refused'; exit 1; fi",
                                                   "\n".join(blocks), flags=re.M)
env = {"HOME": "/root", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8",
       **{k: v for k, v in os.environ.items() if k.endswith("SAN_OPTIONS")}}
logs = "\nfor f in /var/log/penstock/*.log; do echo \"--- $f\"; tail -30 $f; done"
command = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-m", "-c",
           "set -o pipefail\ntrap 'code=$?; set +ex; [ $code = 0 ] || { " + logs.strip() + "; }; exit $code' EXIT\n" + script]
sys.exit(subprocess.run(command, env=env, stdin=subprocess.DEVNULL, timeout=230).returncode)
