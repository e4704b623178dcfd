#!/usr/bin/python3
"""The manual names every command, option and key that there is, the example configuration is a good one, and the
units hold what systemd takes. So does uroce's, with its environment.

Usage: manual.py PENSTOCK SOURCE-ROOT UROCE
"""
import pathlib
import re
import subprocess
import sys

penstock, root = sys.argv[1], pathlib.Path(sys.argv[2])
page = (root / "man/penstock.1").read_text()
yaml_page = (root / "man/penstock.yaml.5").read_text()
bad = []


def run(*args):
    r = subprocess.run([penstock, *args], capture_output=True, text=True)
    if r.returncode != 0:
        bad.append(f"penstock {' '.join(args)}: {r.stderr.strip()}")
    return r.stdout


for line in run("--help").splitlines():
    m = re.match(r"  (\S+(?: \S+)?)  +\S", line)
    if not m:
        continue
    command = m[1]
    part = page.split(f".Ss {command}\n", 1)
    if len(part) != 2:
        bad.append(f"penstock.1 has no section for: {command}")
        continue
    part = part[1].split("\n.Ss ")[0] + page.split(".Sh CONNECTING", 1)[1].split(".Sh COMMANDS")[0]
    for option in set(re.findall(r"^ +(?:-\w, )?--([\w-]+)", run(*command.split(), "--help"), re.M)):
        if f"Fl Fl {option}" not in part:
            bad.append(f"penstock.1 does not have --{option} of: {command}")
uroce_page = (root / "man/uroce.1").read_text()
usage = subprocess.run([sys.argv[3], "--help"], capture_output=True, text=True, check=True).stdout
commands, options = re.findall(r"^  (\w+)", usage, re.M), re.findall(r"--([\w-]+)", usage)
variables = set(re.findall(r'"(UROCE_[A-Z_]+)"', "".join(p.read_text() for p in (root / "src/roce/device").glob("*.c"))))
assert len(commands) >= 3 and len(options) >= 2 and len(variables) >= 7, (commands, options, variables)
bad += [f"uroce.1 has no section for: {c}" for c in commands if f".Ss {c}\n" not in uroce_page]
bad += [f"uroce.1 does not have --{o}" for o in options if f"Fl Fl {o}" not in uroce_page]
bad += [f"{page} does not have {v}" for v in variables for page in ("man/uroce.1", "docs/roce.md")
        if v not in (root / page).read_text()]
keys = re.findall(r'"([a-z_.]+)",\s*K_[A-Z]+,', (root / "src/server/config.c").read_text())
assert len(keys) > 20, keys
for key in keys:
    if not re.search(rf"\b{re.escape(key.split('.containers')[0])}\b", yaml_page):
        bad.append(f"penstock.yaml.5 does not have {key}")
# Those of a credential and of a tenant stand in lists.
keys = re.findall(r'(?:STR|SEQ)\w*\("([a-z_]+)"', (root / "src/server/config_yaml.c").read_text())
assert len(keys) > 20, keys
bad += [f"penstock.yaml.5 does not have {key} of a list" for key in keys if not re.search(rf"\b{key}\b", yaml_page)]
out = run("serve", "--check-config", "-c", str(root / "dist/penstock.yaml"))
if "store.url: local:/var/lib/penstock" not in out:
    bad.append("the example configuration is not read: " + out)
for name in ("penstock.1", "penstock.yaml.5", "uroce.1"):
    try:
        r = subprocess.run(["groff", "-mdoc", "-Tutf8", str(root / "man" / name)], capture_output=True, text=True)
        bad += [f"{name}: {line}" for line in r.stderr.splitlines() if "error" in line or "mdoc" in line]
    except FileNotFoundError:
        pass
for line in bad:
    print(line)
sys.exit(bool(bad))
