"""Steps of ops_compare.py: data, and open files without names."""
import mmap
import os
import random
import stat
import zlib

from ops_base import (as_user, attempt, check, fallocate, KEEP, libc, PUNCH, read, SEEK_DATA, SEEK_HOLE, st,
                      step, write)

# ---- data ----

@step
def read_write_seek(d):
    fd = os.open(f"{d}/rw", os.O_RDWR | os.O_CREAT)
    out = [os.write(fd, b"0123456789"), os.lseek(fd, 4, 0), os.read(fd, 3), os.pwrite(fd, b"AB", 8), os.pread(fd, 20, 0),
           os.lseek(fd, -2, 2), os.read(fd, 9), os.read(fd, 9), attempt(os.lseek, fd, -1, 0), os.lseek(fd, 100, 0),
           os.write(fd, b"end"), os.fstat(fd).st_size, os.pread(fd, 200, 0)]
    os.close(fd)
    fd = os.open(f"{d}/rw", os.O_RDONLY)
    out.append(attempt(os.write, fd, b"x"))
    os.close(fd)
    fd = os.open(f"{d}/rw", os.O_WRONLY)
    out.append(attempt(os.read, fd, 1))
    os.close(fd)
    return out


@step
def vectors(d):
    fd = os.open(f"{d}/vec", os.O_RDWR | os.O_CREAT)
    out = [os.writev(fd, [b"a" * 5000, b"", b"b" * 70000, b"c"])]
    bufs = [bytearray(4999), bytearray(70002)]
    out += [os.preadv(fd, bufs, 0), bytes(bufs[0][-3:]), bytes(bufs[1][:3]), bytes(bufs[1][-3:])]
    os.close(fd)
    return out


@step
def append(d):
    write(f"{d}/ap", b"start")
    fd = os.open(f"{d}/ap", os.O_WRONLY | os.O_APPEND)
    fd2 = os.open(f"{d}/ap", os.O_RDWR)
    out = [os.write(fd, b"-a"), os.pwrite(fd2, b"S", 0), os.write(fd2, b"T"), os.write(fd, b"-b"), os.lseek(fd, 0, 1)]
    os.ftruncate(fd2, 3)
    os.write(fd, b"-c")
    os.close(fd)
    os.close(fd2)
    return out, read(f"{d}/ap")


@step
def truncation(d):
    data = bytes(range(256)) * 40
    write(f"{d}/tr", data)
    out = []
    for size in (5000, 4096, 1, 0, 10000, 3):
        os.truncate(f"{d}/tr", size)
        out.append((st(f"{d}/tr"), read(f"{d}/tr") == (data + bytes(10000))[:size] if size == 5000 else len(read(f"{d}/tr"))))
    os.truncate(f"{d}/tr", 8000)
    out += [read(f"{d}/tr")[3:] == bytes(7997), attempt(os.truncate, f"{d}/tr", -1), attempt(os.truncate, f"{d}/sg", 0)]
    fd = os.open(f"{d}/tr", os.O_RDONLY)
    out.append(attempt(os.ftruncate, fd, 1))
    os.close(fd)
    fd = os.open(f"{d}/tr", os.O_WRONLY | os.O_TRUNC)
    out.append(os.fstat(fd).st_size)
    os.close(fd)
    return out


@step
def sparse(d):
    fd = os.open(f"{d}/sp", os.O_RDWR | os.O_CREAT)
    os.pwrite(fd, b"x" * 65536, 4 << 20)
    out = [os.fstat(fd).st_size, os.lseek(fd, 0, SEEK_DATA), os.lseek(fd, 4 << 20, SEEK_HOLE), os.lseek(fd, 0, SEEK_HOLE),
           attempt(os.lseek, fd, 5 << 20, SEEK_DATA), os.pread(fd, 10, 1 << 20), os.fstat(fd).st_blocks < 1024]
    os.ftruncate(fd, 8 << 20)
    out += [attempt(os.lseek, fd, 5 << 20, SEEK_DATA), os.lseek(fd, 5 << 20, SEEK_HOLE)]
    os.close(fd)
    return out


@step
def fallocate_and_punch(d):
    fd = os.open(f"{d}/fa", os.O_RDWR | os.O_CREAT)
    # Where chunks are stored in another form, space cannot be reserved (docs/filters.md).
    reserves = not (os.environ.get("PENSTOCK_TEST_FILTERS") or os.environ.get("PENSTOCK_FILTERS"))
    out = [attempt(fallocate, fd, 0, 0, 1 << 20), os.fstat(fd).st_size,
           not reserves or os.fstat(fd).st_blocks * 512 >= 1 << 20]
    out += [attempt(fallocate, fd, KEEP, 1 << 20, 1 << 20), os.fstat(fd).st_size]
    os.pwrite(fd, b"z" * (1 << 20), 0)
    out += [attempt(fallocate, fd, KEEP | PUNCH, 4096, 100000), os.pread(fd, 1 << 20, 0) ==
            b"z" * 4096 + bytes(100000) + b"z" * ((1 << 20) - 104096), os.fstat(fd).st_size]
    out += [attempt(fallocate, fd, PUNCH, 0, 4096), attempt(fallocate, fd, 0, 0, 0), attempt(fallocate, fd, 0, -1, 10)]
    os.close(fd)
    fd = os.open(f"{d}/fa", os.O_RDONLY)
    out.append(attempt(fallocate, fd, 0, 0, 4096))
    os.close(fd)
    return out


@step
def copy_file_range(d):
    write(f"{d}/cp1", bytes(range(256)) * 1000)
    a = os.open(f"{d}/cp1", os.O_RDONLY)
    b = os.open(f"{d}/cp2", os.O_RDWR | os.O_CREAT)
    n = os.copy_file_range(a, b, 100000, 1000, 5)
    os.close(a)
    os.close(b)
    return n, read(f"{d}/cp2") == bytes(5) + (bytes(range(256)) * 1000)[1000:101000]


@step
def big_writes(d):
    block = os.urandom(1 << 20) * 5 + b"tail"
    write(f"{d}/big", block)
    return read(f"{d}/big") == block, st(f"{d}/big")


@step
def mappings(d):
    fd = os.open(f"{d}/mm", os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, 20000)
    m = mmap.mmap(fd, 20000, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    m[5000:5005] = b"hello"
    m.flush()
    out = [os.pread(fd, 5, 5000)]
    os.pwrite(fd, b"HE", 5000)
    out.append(bytes(m[5000:5005]))
    m[19990:20000] = b"0123456789"
    m.close()
    os.close(fd)
    out.append(read(f"{d}/mm")[-10:])
    fd = os.open(f"{d}/mm", os.O_RDONLY)
    p = mmap.mmap(fd, 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    p[0:3] = b"abc"
    out += [read(f"{d}/mm")[:3], bytes(p[5000:5005])]
    p.close()
    os.close(fd)
    return out


@step
def who_reads_or_maps_a_file_sees_each_write_of_others(d):
    f = f"{d}/seen"
    write(f, bytes(range(256)) * 100)
    seed = int(os.environ.get("PENSTOCK_SEED", "7"))
    rng = random.Random(seed)
    out = []
    for before in (False, True):  # whether the reader is there before the writers
        writers = [] if before else [os.open(f, os.O_WRONLY), os.open(f, os.O_WRONLY | os.O_APPEND)]
        r = os.open(f, os.O_RDONLY)
        shared = mmap.mmap(r, 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        whole = zlib.crc32(shared[:]), zlib.crc32(os.pread(r, 1 << 20, 0))  # all pages are there now
        writers = writers or [os.open(f, os.O_WRONLY), os.open(f, os.O_WRONLY | os.O_APPEND)]
        for i in range(200):
            w = rng.randrange(2)
            data = bytes([rng.randrange(256)]) * rng.choice((1, 10, 4096, 5000))
            at = rng.randrange(20000)
            os.pwrite(writers[w], data, at)
            size = os.fstat(r).st_size
            out.append((size, shared[at:at + len(data)] == data if w == 0 else os.pread(r, 5000, size - len(data)) == data,
                        zlib.crc32(os.pread(r, 9000, max(at - 2000, 0)))))
        out += [whole, zlib.crc32(shared[:]), zlib.crc32(os.pread(r, 1 << 22, 0))]
        shared.close()
        for fd in writers + [r]:
            os.close(fd)
    return out, zlib.crc32(read(f))


@step
def sync_calls(d):
    fd = os.open(f"{d}/sy", os.O_RDWR | os.O_CREAT | os.O_SYNC)
    out = [os.write(fd, b"s"), os.fsync(fd), os.fdatasync(fd)]
    os.close(fd)
    dd = os.open(d, os.O_RDONLY)
    out += [os.fsync(dd), check(libc.syncfs(dd))]
    os.close(dd)
    return out


@step
def direct(d):
    fd = os.open(f"{d}/od", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    m = mmap.mmap(-1, 1 << 20)
    m[:] = bytes(range(256)) * 4096
    out = [os.writev(fd, [m]), os.fstat(fd).st_size]
    back = mmap.mmap(-1, 1 << 20)
    out += [os.preadv(fd, [back], 0), back[:] == m[:], os.preadv(fd, [memoryview(back)[:4096]], 1 << 20)]
    os.close(fd)
    return out, read(f"{d}/od") == m[:]


# ---- open files without names ----

@step
def unlinked_file_lives_while_open(d):
    fd = os.open(f"{d}/ul", os.O_RDWR | os.O_CREAT)
    os.write(fd, b"before")
    os.unlink(f"{d}/ul")
    out = [os.fstat(fd).st_nlink, os.pread(fd, 10, 0), os.write(fd, b"after"), os.pread(fd, 20, 0), os.fstat(fd).st_size,
           attempt(os.stat, f"{d}/ul")]
    os.ftruncate(fd, 3)
    os.fchmod(fd, 0o600)
    out += [os.pread(fd, 20, 0), stat.filemode(os.fstat(fd).st_mode), os.fsync(fd)]
    os.close(fd)
    return out, [n for n in os.listdir(d) if "ul" in n]


@step
def replaced_file_keeps_its_old_readers(d):
    write(f"{d}/old", b"old data")
    fd = os.open(f"{d}/old", os.O_RDONLY)
    write(f"{d}/new", b"new")
    os.rename(f"{d}/new", f"{d}/old")
    out = [os.read(fd, 20), os.fstat(fd).st_nlink, read(f"{d}/old")]
    os.close(fd)
    return out


@step
def read_only_file_just_created_is_writable_through_its_handle(d):
    fd = os.open(f"{d}/ro", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o444)
    out = [os.write(fd, b"w")]
    os.close(fd)
    return out, st(f"{d}/ro"), as_user(1000, [], lambda: os.open(f"{d}/ro", os.O_RDWR))
