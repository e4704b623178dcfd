#!/usr/bin/env bash
# Many hard links, deep trees: every name is there, the limits are those that are documented, and removing works.
. "$(dirname "$0")/../lib/mount.sh"
mnt_setup "$1" --durability fsync
links=$(count 3000 100000)

say "$links hard links"
python3 - "$MNT" "$links" <<'P'
import errno, os, sys
mnt, links = sys.argv[1], int(sys.argv[2])
LIMIT = 65000 # names of one object, as docs/engine.md says
os.makedirs(f"{mnt}/links/more")
d = os.open(f"{mnt}/links", os.O_RDONLY)
def new(i):
    with open(f"{mnt}/links/file{i}", "w") as f:
        f.write(f"file {i}")
    return 1
files, names = 0, new(0)
for i in range(links):
    to = f"more/l{i}" if i % 3 else f"l{i}"
    try:
        os.link(f"file{files}", to, src_dir_fd=d, dst_dir_fd=d)
    except OSError as e:
        assert e.errno == errno.EMLINK and names == LIMIT, (e, names)
        files += 1
        names = new(files)
        os.link(f"file{files}", to, src_dir_fd=d, dst_dir_fd=d)
    names += 1
assert files == links // LIMIT, files
assert os.stat(f"{mnt}/links/file{files}").st_nlink == names
for i in range(0, links, max(1, links // 500)):
    s = os.stat(f"{mnt}/links/" + (f"more/l{i}" if i % 3 else f"l{i}"))
    assert s.st_ino == os.stat(f"{mnt}/links/file{i // (LIMIT - 1)}").st_ino, i
os.fsync(d)
assert len(os.listdir(f"{mnt}/links")) + len(os.listdir(f"{mnt}/links/more")) == links + files + 2
# half of them go; what is left still has its bytes
for i in range(0, links, 2):
    os.unlink(f"{mnt}/links/" + (f"more/l{i}" if i % 3 else f"l{i}"))
for i in range(files + 1):
    os.unlink(f"{mnt}/links/file{i}")
left = {}
for i in range(1, links, 2):
    s = os.stat(f"{mnt}/links/" + (f"more/l{i}" if i % 3 else f"l{i}"))
    left.setdefault((s.st_ino, s.st_nlink), []).append(i)
assert all(len(v) == n for (_, n), v in left.items()), [(k, len(v)) for k, v in left.items()]
i = links - 1 | 1
with open(f"{mnt}/links/" + (f"more/l{i}" if i % 3 else f"l{i}")) as f:
    assert f.read() == f"file {files}"
P
rm -r "$MNT/links"

say "a tree 400 levels deep"
python3 - "$T/deep" <<'P'
import os, sys
os.mkdir(sys.argv[1])
os.chdir(sys.argv[1])
for i in range(400):
    os.mkdir(f"lev{i:03d}")
    os.chdir(f"lev{i:03d}")
    with open("file", "w") as f:
        f.write(f"{i}\n")
P
start=$(date +%s%N)
cp -r "$T/deep" "$MNT/deep"
diff -r "$T/deep" "$MNT/deep"
mv "$MNT/deep/lev000/lev001" "$MNT/deep/moved"
[ "$(find "$MNT/deep" -name file | wc -l)" -eq 400 ]
rm -r "$MNT/deep"
say "copied, compared, moved, removed in $((($(date +%s%N) - start) / 1000000)) ms"
[ -z "$(ls -A "$MNT")" ]
umnt "$MNT"
