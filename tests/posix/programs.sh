#!/usr/bin/env bash
# Unmodified programs: tar, rsync, a C build, sqlite3, python3, dd. One argument more runs only that one.
. "$(dirname "$0")/../lib/mount.sh"
here=$(cd "$(dirname "$0")" && pwd)
mnt_setup "$1"

try_tar() {
    mkdir -p "$T/tree/a/b" "$T/out"
    cp -r /usr/share/doc/base-files "$T/tree/" 2>/dev/null || true
    seq 100000 >"$T/tree/a/numbers"
    truncate -s 3M "$T/tree/a/sparse"
    ln -s ../a "$T/tree/a/b/up"
    ln "$T/tree/a/numbers" "$T/tree/a/b/numbers-too"
    mkfifo -m 640 "$T/tree/a/pipe"
    touch -d '2001-02-03 04:05:06.789' "$T/tree/a/numbers"
    setfattr -n user.note -v kept "$T/tree/a/numbers"
    chmod 2751 "$T/tree/a/b"
    tar -C "$T" --xattrs -cf "$T/one.tar" tree
    tar -C "$MNT" --xattrs -xpf "$T/one.tar"
    tar -C "$MNT" --xattrs -cf "$MNT/two.tar" tree
    tar -C "$T/out" --xattrs -xpf "$MNT/two.tar"
    diff -r --no-dereference -x pipe "$T/tree" "$T/out/tree"
    cmp <(cd "$T/tree" && find . -printf '%p %M %U %G %T@ %l %n\n' | sort) <(cd "$T/out/tree" && find . -printf '%p %M %U %G %T@ %l %n\n' | sort)
    cmp <(cd "$T/tree" && find . ! -type d -printf '%p %M %s %U %G %T@ %l %n\n' | sort) <(cd "$MNT/tree" && find . ! -type d -printf '%p %M %s %U %G %T@ %l %n\n' | sort)
    [ "$(getfattr --absolute-names --only-values -n user.note "$T/out/tree/a/numbers")" = kept ]
}

try_rsync() {
    need rsync
    rsync -aH /usr/include/net/ "$MNT/linux/"
    [ -z "$(rsync -aHi --checksum /usr/include/net/ "$MNT/linux/")" ] || fail "contents differ"
    [ -z "$(rsync -aHi /usr/include/net/ "$MNT/linux/")" ] || fail "the second rsync sent something"
    [ "$(rsync -aH --stats /usr/include/net/ "$MNT/linux/" | sed -n 's/^Number of regular files transferred: //p')" = 0 ]
}

try_make() {
    need gcc make
    mkdir "$MNT/build"
    cd "$MNT/build"
    for i in $(seq 12); do echo "int f$i(int x) { return x + $i; }" >"f$i.c"; done
    { for i in $(seq 12); do echo "int f$i(int);"; done
      echo '#include <stdio.h>'
      echo "int main(void) { int x = 0;"; for i in $(seq 12); do echo "x = f$i(x);"; done; echo 'printf("%d\n", x); return 0; }'; } >main.c
    printf 'OBJS := $(patsubst %%.c,%%.o,$(wildcard *.c))\nprog: $(OBJS)\n\tgcc -o $@ $^\n%%.o: %%.c\n\tgcc -g -c -o $@ $<\nlib: $(OBJS)\n\tar rcs lib.a $^\n' >Makefile
    make -s -j2 prog lib
    [ "$(./prog)" = 78 ]
    [ "$(make prog)" = "make: 'prog' is up to date." ]
    sleep 0.02
    touch f3.c
    make -n prog >"$T/plan"
    grep -q 'f3.o' "$T/plan"
    cd /
}

try_sqlite() {
    need sqlite3
    sqlite3 "$MNT/db" 'create table t (id integer primary key, v text);'
    seq 2000 | sed "s/.*/insert into t (v) values ('value &');/" | (echo 'begin;'; cat; echo 'commit;') | sqlite3 "$MNT/db"
    for i in $(seq 10); do sqlite3 "$MNT/db" "update t set v = v || '$i' where id % 10 = $i;"; done
    # several writers at once: locks work, nothing is lost
    for w in 1 2 3; do
        for i in $(seq 10); do sqlite3 -cmd '.timeout 60000' "$MNT/db" "insert into t (v) values ('w$w-$i');"; done &
        writers[w]=$!
    done
    for w in 1 2 3; do wait "${writers[w]}"; done
    [ "$(sqlite3 "$MNT/db" 'pragma integrity_check; select count(*) from t;' | tr '\n' ' ')" = "ok 2030 " ]
    sqlite3 "$MNT/db" 'pragma journal_mode=wal; insert into t (v) values (1); pragma wal_checkpoint(full);' >/dev/null
    [ "$(sqlite3 "$MNT/db" 'pragma integrity_check; select count(*) from t;' | tr '\n' ' ')" = "ok 2031 " ]
}

try_python() { python3 "$here/python_saves.py" "$MNT/py" "$(count 30 300)"; }

try_dd() {
    dd if=/dev/urandom of="$T/data" bs=1M count=9 status=none
    truncate -s $((9 * 1048576 - 512)) "$T/data"
    dd if="$T/data" of="$MNT/data" bs=1M oflag=direct conv=fsync status=none
    cmp "$T/data" "$MNT/data"
    dd if="$MNT/data" of="$T/back" bs=256k iflag=direct status=none
    cmp "$T/data" "$T/back"
    dd if="$T/data" of="$MNT/data2" bs=3333 status=none
    cmp "$T/data" "$MNT/data2"
    dd if=/dev/zero of="$MNT/data2" bs=4k seek=100 count=10 conv=notrunc oflag=direct status=none
    dd if=/dev/zero of="$T/data" bs=4k seek=100 count=10 conv=notrunc status=none
    cmp "$T/data" "$MNT/data2"
}

for what in ${2:-tar rsync make sqlite python dd}; do
    say "$what"
    "try_$what"
done
umnt "$MNT"
mnt "$URL" "$MNT"
say "after a remount"
if [ -e "$MNT/linux" ]; then [ -z "$(rsync -aHi --checksum /usr/include/net/ "$MNT/linux/")" ]; fi
if [ -e "$MNT/data2" ]; then cmp "$T/data" "$MNT/data2"; fi
umnt "$MNT"
