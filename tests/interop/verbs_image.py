#!/usr/bin/python3
"""The steps of examples/rdma/Dockerfile and github-actions.yml as they stand, by a plain user in namespaces of his own:
the sources are built, installed and used as in a container. Of a container's system there is this machine's: its
packages are not fetched, and those that a step names have to be there.

Usage: verbs_image.py SOURCE. It builds the sources twice: without PENSTOCK_EXTENDED it only sees that the files can be read so.
"""
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

source = pathlib.Path(sys.argv[1]).resolve()

# What every step needs. A root of one's own: the system's files, a /usr/local and an /etc to write to.
HELPERS = r"""
set -eu
ip link set lo up
apt=$(pwd)/apt-get
root() {
    mkdir "$1"; mount -t tmpfs root "$1"
    (cd "$1"; mkdir -p usr var/lib/dpkg proc dev sys tmp run root home etc ccache
     for l in bin sbin lib lib32 lib64 libx32; do [ ! -L /$l ] || cp -d /$l .; done
     mount --rbind /usr usr; mount -t tmpfs local usr/local; mkdir -p usr/local/bin usr/local/sbin usr/local/lib
     cp "$apt" usr/local/sbin/apt-get
     cp -r /etc/. etc 2>/dev/null || true
     for d in var/lib/dpkg proc dev sys; do mount --rbind /$d $d; done
     mount --rbind "$OLDPWD/ccache" ccache; chmod 1777 tmp)
}
# step ROOT DIRECTORY COMMAND
step() {
    echo "+ $3" >&2
    mkdir -p "$1/$2"
    env -i HOME=/root CCACHE_DIR=/ccache PENSTOCK=/repository \
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin chroot "$1" sh -ec "cd $2
$3"
}
"""
# Packages are not fetched: what is asked for is here.
APT = r"""#!/bin/sh
[ "$1" != update ] || exit 0
for p; do
    case $p in -* | install) ;; *) dpkg-query -W "$p" >/dev/null || exit 1 ;; esac
done
"""


def copy(come_from, to):
    """COPY of one thing: a directory's contents, or a file into a directory (TO/) or by a new name."""
    parent = to if to.endswith("/") else os.path.dirname(to)
    return f"mkdir -p {parent}; " \
           f"if [ -d {come_from} ]; then mkdir -p {to}; cp -r {come_from}/. {to}; else cp {come_from} {to}; fi"


def of_dockerfile(text):
    """Its instructions as lines of a shell script."""
    stages, here, where = {}, None, "/"
    for line in re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", text, flags=re.M)).splitlines():
        word, _, rest = line.strip().partition(" ")
        if word == "FROM":
            words = rest.split()
            assert words[0] == "debian:12", line
            here, where = f"stage{len(stages)}", "/"
            stages[words[2] if len(words) == 3 else here] = here
            yield f"root {here}"
        elif word == "RUN":
            yield f"step {here} {where} {shlex.quote(rest)}"
        elif word == "WORKDIR":
            where = rest
        elif word == "COPY":
            words, origin = rest.split(), "source"
            if words[0].startswith("--from="):
                origin = stages[words.pop(0)[7:]]
            assert len(words) == 2, line
            yield copy(f"{origin}/{words[0].lstrip('/')}", here + words[1])
        elif word == "CMD":
            yield f"step {here} {where} {shlex.quote(shlex.join(json.loads(rest)))}"
        else:
            assert word in ("USER", ""), line  # the user who runs all this is plain


def of_job(text):
    """The steps that run something, in one directory."""
    yield "root job"
    yield "mkdir job/repository; cp -r repository/. job/repository"
    for step in re.split(r"^      - ", text, flags=re.M)[1:]:
        run = re.search(r"^ *run: (?:\|\n((?:          .*\n?)+)|(.*))", step, re.M)
        if run:
            yield f"step job /work {shlex.quote(re.sub('^          ', '', run[1] or run[2], flags=re.M))}"


def the_script():
    examples = source / "examples/rdma"
    script = "\n".join([HELPERS, *of_dockerfile((examples / "Dockerfile").read_text()),
                        *of_job((examples / "github-actions.yml").read_text())]) + "\n"
    assert script.count("meson install") == 2 and script.count("smoke") >= 3, script
    subprocess.run(["sh", "-n"], input=script, text=True, check=True)
    return script


def fill(d):
    """What the steps begin with: the sources, and a repository of them."""
    d.chmod(0o755)
    shutil.copytree(source, d / "source", symlinks=True, ignore=shutil.ignore_patterns("build*", ".git"))
    shutil.copytree(d / "source", d / "repository", symlinks=True)
    git = ["git", "-C", d / "repository", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    for argv in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "all"]):
        subprocess.run([*git, *argv], check=True)
    (d / "apt-get").write_text(APT)
    (d / "apt-get").chmod(0o755)
    (d / "ccache").mkdir()
    if os.geteuid() == 0:
        subprocess.run(["chown", "-R", "65534:65534", d], check=True)


def run(d, script):
    who = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all"]
    own = [*(who if os.geteuid() == 0 else []), "unshare", "--map-root-user", "--mount", "--net", "--pid", "--fork"]
    if subprocess.run([*own, "true"], stderr=subprocess.DEVNULL).returncode:
        print("skipped: no user namespaces here")
        sys.exit(77)
    r = subprocess.run([*own, "sh", "-c", script], cwd=d, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                       stderr=subprocess.STDOUT, text=True, timeout=3500, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"})
    print("\n".join(line for line in r.stdout.splitlines() if not line.startswith("[")))
    assert r.returncode == 0, f"status {r.returncode}"
    assert r.stdout.count("RDMA works here") == 2 and r.stdout.count("uroce0") >= 2, "a step did not do what it is for"


script = the_script()
if os.environ.get("PENSTOCK_EXTENDED"):
    directory = pathlib.Path(tempfile.mkdtemp(prefix="uroce-image-", dir="/var/tmp"))
    try:
        fill(directory)
        run(directory, script)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
