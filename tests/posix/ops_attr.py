"""Steps of ops_compare.py: attributes, and what users may do."""
import os
import stat
import subprocess
import sys
import time

from ops_base import as_user, attempt, read, st, step, write

# ---- attributes ----

@step
def chmod(d):
    write(f"{d}/cm")
    out = []
    for mode in (0o600, 0o4755, 0o2755, 0o1777, 0o7777, 0):
        os.chmod(f"{d}/cm", mode)
        out.append(st(f"{d}/cm"))
    fd = os.open(f"{d}/cm", os.O_RDWR)
    os.fchmod(fd, 0o640)
    os.close(fd)
    return out, st(f"{d}/cm"), attempt(os.chmod, f"{d}/none", 0o600)


@step
def chown(d):
    write(f"{d}/co")
    os.chmod(f"{d}/co", 0o6755)
    os.chown(f"{d}/co", 1000, 1001)
    out = [st(f"{d}/co")]
    os.chown(f"{d}/co", -1, 1002)
    os.lchown(f"{d}/l", 5, 6)
    return out + [st(f"{d}/co"), st(f"{d}/l")]


@step
def a_write_takes_rights_away(d):
    """Set-id bits and the file's capability, whoever may write: on each way that bytes can take."""
    capability = b"\1\0\0\2" + b"\0\x20\0\0" + bytes(12)  # VFS_CAP_REVISION_2, effective, cap_net_raw
    ways = {"write": os.O_WRONLY, "append": os.O_WRONLY | os.O_APPEND, "both": os.O_RDWR, "both_append": os.O_RDWR | os.O_APPEND,
            "sync": os.O_WRONLY | os.O_DSYNC}
    out = []
    for name, flags in ways.items():
        for mode in (0o6777, 0o4777, 0o2777):
            f = f"{d}/rights.{name}.{mode:o}"
            write(f)
            os.chown(f, 0, 0)
            os.chmod(f, mode)
            os.setxattr(f, "security.capability", capability)
            out += [name, st(f)[0], as_user(1000, [], lambda: write(f, b"new", flags=flags)), st(f)[0],
                    attempt(os.getxattr, f, "security.capability")]
            os.chmod(f, mode)
            fd = os.open(f, flags)  # again, on a handle that has written before, which then root's does
            os.write(fd, b"1")
            os.setxattr(f, "security.capability", capability)
            os.write(fd, b"2")
            os.close(fd)
            out += [st(f)[0], attempt(os.getxattr, f, "security.capability"), read(f)]
        code = f"import os; os.write(os.open('{f}', {flags}), b'3')"  # root, but as containers have it
        subprocess.run(["setpriv", "--bounding-set", "-fsetid", "--inh-caps", "-fsetid", sys.executable, "-c", code], check=True)
        out.append(st(f)[0])
        write(f, b"")  # empty: who only writes goes around the pages
        os.chmod(f, 0o4777)
        out += [as_user(1000, [], lambda: write(f, b"new", flags=flags)), st(f)[0]]
    return out


@step
def times(d):
    write(f"{d}/ti")
    os.utime(f"{d}/ti", ns=(1_000_000_007, 2_000_000_000_000_000_123))
    s = os.stat(f"{d}/ti")
    out = [s.st_atime_ns, s.st_mtime_ns]
    os.utime(f"{d}/ti", ns=(-5_000_000_001, 4_000_000_000 * 1_000_000_000))
    s = os.stat(f"{d}/ti")
    out += [s.st_atime_ns, s.st_mtime_ns]
    os.utime(f"{d}/l", ns=(7, 9), follow_symlinks=False)
    s = os.lstat(f"{d}/l")
    out += [s.st_atime_ns, s.st_mtime_ns]
    before = time.time()
    os.utime(f"{d}/ti")
    s = os.stat(f"{d}/ti")
    out.append(abs(s.st_mtime - before) < 60)
    return out


@step
def what_changes_which_time(d):
    def changed(path, fn):
        a = os.stat(path)
        time.sleep(0.02)
        fn()
        b = os.stat(path)
        return a.st_mtime_ns != b.st_mtime_ns, a.st_ctime_ns != b.st_ctime_ns
    os.mkdir(f"{d}/tm")
    write(f"{d}/tm/f", b"123")
    f = f"{d}/tm/f"
    return [changed(f, lambda: write(f, b"4", flags=os.O_WRONLY)), changed(f, lambda: os.chmod(f, 0o600)),
            changed(f, lambda: os.truncate(f, 1)), changed(f, lambda: os.link(f, f + "2")),
            changed(f, lambda: os.rename(f + "2", f + "3")), changed(f"{d}/tm", lambda: write(f"{d}/tm/n")),
            changed(f"{d}/tm", lambda: os.unlink(f"{d}/tm/n")), changed(f"{d}/tm", lambda: write(f, b"q", flags=os.O_WRONLY)),
            changed(f"{d}/tm", lambda: os.rename(f + "3", f + "4")), changed(f, lambda: read(f)),
            changed(f, lambda: os.setxattr(f, "user.t", b"1"))]


@step
def xattrs(d):
    f = f"{d}/xa"
    write(f)
    out = [os.listxattr(f), attempt(os.getxattr, f, "user.none"), os.setxattr(f, "user.a", b"1"), os.setxattr(f, "user.b", b""),
           os.getxattr(f, "user.a"), os.getxattr(f, "user.b"), sorted(os.listxattr(f)),
           attempt(os.setxattr, f, "user.a", b"2", os.XATTR_CREATE), attempt(os.setxattr, f, "user.c", b"2", os.XATTR_REPLACE),
           os.setxattr(f, "user.a", b"3" * 1000, os.XATTR_REPLACE), len(os.getxattr(f, "user.a")),
           os.removexattr(f, "user.a"), attempt(os.removexattr, f, "user.a"), os.listxattr(f),
           attempt(os.setxattr, f, "bad", b"x"), attempt(os.setxattr, f, "user." + "n" * 260, b"x"),
           os.setxattr(f, "trusted.t", b"root"), os.getxattr(f, "trusted.t"),
           as_user(1000, [], lambda: os.getxattr(f, "trusted.t")), os.setxattr(f"{d}/sg", "user.d", b"dir"),
           attempt(os.setxattr, f"{d}/l", "user.x", b"1", follow_symlinks=False)]
    return out


@step
def statvfs_makes_sense(d):
    s = os.statvfs(d)
    return s.f_namemax, s.f_blocks > 0, 0 <= s.f_bavail <= s.f_bfree <= s.f_blocks, s.f_files >= s.f_ffree > 0


# ---- users ----

@step
def owners_and_others(d):
    os.mkdir(f"{d}/u", 0o777)
    os.chmod(f"{d}/u", 0o777)
    a = f"{d}/u/a"
    out = [as_user(1000, [], lambda: write(a, b"secret", 0o600)), st(a), as_user(1000, [], lambda: read(a)),
           as_user(1001, [], lambda: read(a)), as_user(1001, [], lambda: write(a, b"x", flags=os.O_WRONLY)),
           as_user(1001, [], lambda: os.chmod(a, 0o666)), as_user(1000, [], lambda: os.chown(a, 1001, -1)),
           as_user(1000, [], lambda: os.chown(a, -1, 1001)), as_user(1000, [1001], lambda: os.chown(a, -1, 1001)), st(a),
           as_user(1001, [], lambda: os.truncate(a, 0)), as_user(1001, [], lambda: os.utime(a)),
           as_user(1001, [], lambda: os.utime(a, (1, 1))), as_user(1000, [], lambda: os.utime(a, (1, 1))),
           as_user(1001, [], lambda: os.mknod(f"{d}/u/dev", stat.S_IFCHR | 0o666, 259))]
    return out


@step
def groups_decide(d):
    g = f"{d}/grp"
    write(g, b"for the group")
    os.chown(g, 1000, 3000)
    os.chmod(g, 0o640)
    out = [as_user(1001, [], lambda: read(g)), as_user(1001, [5, 3000, 6], lambda: read(g)),
           as_user(1001, [3000], lambda: write(g, flags=os.O_WRONLY))]
    os.chmod(g, 0o604)  # the group is shut out, all others may
    out += [as_user(1001, [], lambda: read(g)), as_user(1001, [3000], lambda: read(g))]
    return out


@step
def a_closed_directory_hides_what_is_in_it(d):
    os.mkdir(f"{d}/closed")
    write(f"{d}/closed/f", b"in")
    os.chown(f"{d}/closed", 1000, 1000)
    os.chmod(f"{d}/closed", 0o700)
    out = [as_user(1000, [], lambda: read(f"{d}/closed/f"))]  # the names are in the kernel's cache now
    out += [as_user(1001, [], lambda: read(f"{d}/closed/f")), as_user(1001, [], lambda: os.listdir(f"{d}/closed"))]
    os.chmod(f"{d}/closed", 0o711)
    out += [as_user(1001, [], lambda: read(f"{d}/closed/f")), as_user(1001, [], lambda: os.listdir(f"{d}/closed"))]
    os.chmod(f"{d}/closed", 0o744)
    return out + [as_user(1001, [], lambda: sorted(os.listdir(f"{d}/closed"))), as_user(1001, [], lambda: os.stat(f"{d}/closed/f"))]


@step
def sticky_directory(d):
    os.mkdir(f"{d}/st")
    os.chmod(f"{d}/st", 0o1777)
    as_user(1000, [], lambda: write(f"{d}/st/mine"))
    return [as_user(1001, [], lambda: os.unlink(f"{d}/st/mine")), as_user(1001, [], lambda: os.rename(f"{d}/st/mine", f"{d}/st/x")),
            as_user(1001, [], lambda: write(f"{d}/st/his")), as_user(1001, [], lambda: os.rename(f"{d}/st/his", f"{d}/st/mine")),
            as_user(1000, [], lambda: os.unlink(f"{d}/st/mine"))]


@step
def set_id_bits_fall_on_writes_by_others(d):
    f = f"{d}/suid"
    write(f, b"prog")
    os.chown(f, 1000, 1000)
    out = []
    for who, groups, fn in ((1001, [1000], lambda: write(f, b"x", flags=os.O_WRONLY)), (1000, [], lambda: write(f, b"x", flags=os.O_WRONLY)),
                            (1001, [1000], lambda: os.truncate(f, 1)), (1000, [], lambda: os.chown(f, -1, 1000)),
                            (0, [0], lambda: write(f, b"x", flags=os.O_WRONLY))):
        os.chmod(f, 0o6775)
        r = as_user(who, groups, fn)
        out.append((r, st(f)))
    os.chmod(f, 0o640)
    os.chown(f, 1000, 3000)
    return out, as_user(1000, [], lambda: os.chmod(f, 0o2750)), st(f)


@step
def running_without_read_right(d):
    f = f"{d}/prog"
    write(f, read("/bin/true"), 0o711)
    os.chmod(f, 0o711)
    return as_user(1000, [], lambda: os.spawnv(os.P_WAIT, f, [f])), as_user(1000, [], lambda: read(f))


@step
def text_file_busy(d):
    f = f"{d}/busy"
    write(f, read("/bin/sleep"), 0o755)
    os.chmod(f, 0o755)
    pid = os.spawnv(os.P_NOWAIT, f, [f, "20"])
    for _ in range(500):  # until the child runs it
        if attempt(os.readlink, f"/proc/{pid}/exe") == f:
            break
        time.sleep(0.01)
    r = attempt(os.open, f, os.O_WRONLY)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return r


@step
def a_handle_serves_another_user(d):
    """Rights are checked at the open: who gets the handle afterwards may use it."""
    f = f"{d}/handed"
    write(f, b"handed over", 0o600)
    os.mkdir(f"{d}/handed-dir", 0o700)
    write(f"{d}/handed-dir/x")
    fd = os.open(f, os.O_RDWR)
    dd = os.open(f"{d}/handed-dir", os.O_RDONLY)
    out = [as_user(1000, [], lambda: os.pread(fd, 20, 0)), as_user(1000, [], lambda: os.pwrite(fd, b"H", 0)),
           as_user(1000, [], lambda: os.ftruncate(fd, 6)), as_user(1000, [], lambda: os.fsync(fd)),
           as_user(1000, [], lambda: os.listdir(dd)), as_user(1000, [], lambda: os.fchmod(fd, 0o777))]
    os.close(fd)
    os.close(dd)
    return out, read(f)
