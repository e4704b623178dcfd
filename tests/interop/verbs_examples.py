#!/usr/bin/python3
"""What README.md and examples/rdma tell users to do works as a plain user in a network namespace of its own: the README's
two commands, the container's program, the steps of the CI job.

Usage: verbs_examples.py SOURCE BUILD
"""
import os
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "lib"))
import programs
import two_nets

source, build = map(os.path.abspath, sys.argv[1:3])
source = pathlib.Path(source)
nets = two_nets.enter()
stage = pathlib.Path(nets.dir) / "image"
subprocess.run(["meson", "install", "-C", build, "--no-rebuild", "--quiet", "--destdir", str(stage)], check=True,
               stdout=subprocess.DEVNULL)
(uroce,) = stage.rglob("bin/uroce")
prefix = uroce.parent.parent
(libraries,) = prefix.rglob("uroce/libibverbs.so.1")

# Not over the system's, and what the Dockerfile copies is all that is needed.
assert libraries.parent.name == "uroce" and not (libraries.parent.parent / "libibverbs.so.1").exists()
docker = (source / "examples/rdma/Dockerfile").read_text()
packages = set(re.findall(r"^\w+ (\S+)$", (source / "tools/packages.txt").read_text(), re.M))
named = set(re.search(r"recommends \\\n(.*)\n", docker)[1].split())
for name in named - packages:
    # Libraries, which the development packages of the list bring with them.
    assert subprocess.run(["dpkg-query", "-W", name], capture_output=True).returncode == 0, name
kept = [name for name in re.findall(r"^COPY --from=build /image/usr/local/(\S+)", docker, re.M)]
assert kept == ["bin/uroce", "lib/"], kept
env = {"PATH": f"{uroce.parent}:{source}/examples/rdma:/usr/bin:/bin"}

# The container's own program.
assert re.search(r"^COPY examples/rdma/smoke.sh /usr/local/bin/rdma-smoke$", docker, re.M) and 'CMD ["rdma-smoke"]' in docker
r = nets.run(0, ["smoke.sh"], env=env, timeout=200)
assert r.returncode == 0 and r.stdout.endswith("RDMA works here\n"), r

# The job's steps from the point where all is installed.
job = (source / "examples/rdma/github-actions.yml").read_text()
steps = re.split(r"^      - ", job, flags=re.M)[1:]
runs = [re.search(r"^        run: (?:\|\n((?:          .*\n)+)|(.*))", s, re.M) for s in steps]
runs = [re.sub(r"^          ", "", m[1] or m[2] + "\n", flags=re.M) for m in runs if m]
assert "meson install" in runs[-3] and "smoke.sh" in runs[-2], runs
for text in runs[-1:]:
    r = nets.run(0, ["sh", "-ec", text], env=env)
    assert r.returncode == 0 and "uroce0" in r.stdout, r

# The README: a command on each of two machines.
readme = (source / "README.md").read_text()
block = re.search(r"## Run any RDMA program with no RDMA NIC\n.*?```sh\n(.*?)```", readme, re.S)[1]
lines = [line.partition("#")[0].strip() for line in block.splitlines() if line.strip()]
assert len(lines) == 2 and lines[1].startswith(lines[0]) and all(line.startswith("uroce run") for line in lines), lines
p = programs.Programs(uroce, nets)
server = nets.popen(0, ["sh", "-c", lines[0]], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
while not p.listens(server, 18515):
    assert server.poll() is None, server.communicate()
client = nets.run(1, ["sh", "-c", lines[1].replace("192.0.2.1", two_nets.ADDRESS[0])], env=env)
assert client.returncode == 0 and "#bytes" in client.stdout and two_nets.ADDRESS[0] not in lines[1], client
assert server.wait(30) == 0, server.communicate()
nets.close()
