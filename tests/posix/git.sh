#!/usr/bin/env bash
# git clones, commits, collects garbage and finds nothing wrong (users.md A35).
. "$(dirname "$0")/../lib/mount.sh"
need git
mnt_setup "$1"
export HOME=$T GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_NAME=t GIT_AUTHOR_EMAIL=t@example.org GIT_COMMITTER_NAME=t GIT_COMMITTER_EMAIL=t@example.org
git config --global init.defaultBranch main
git config --global protocol.file.allow always
git init -q "$T/origin"
for i in $(seq 40); do mkdir -p "$T/origin/d$((i % 7))"; seq $((i * 50)) >"$T/origin/d$((i % 7))/f$i"; done
git -C "$T/origin" add .
git -C "$T/origin" commit -qm first
git -C "$T/origin" tag first

git clone -q "file://$T/origin" "$MNT/clone"
cd "$MNT/clone"
n=$(count 20 200)
for i in $(seq "$n"); do
    echo "line $i" >>"d1/log"
    seq "$i" >"d2/new$i"
    git add -A
    git commit -qm "commit $i"
done
git mv d2/new1 d3/moved
git commit -qm "a move"
git gc -q --prune=now
git fsck --full --strict
git checkout -q first
[ ! -e d2/new1 ] || fail "a file of a later commit is there"
git checkout -q main
[ -z "$(git status --porcelain)" ] || fail "the work tree is not clean"
[ "$(git rev-list --count HEAD)" -eq $((n + 2)) ]
git diff --quiet first -- d0
cd /
umnt "$MNT"
