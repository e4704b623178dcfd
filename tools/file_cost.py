#!/usr/bin/python3
"""file_cost.py write|read FILE PID [SOURCE]: what it costs to write FILE with the bytes of SOURCE, durably, or to read it.

A program that saves what it has in memory: SOURCE is read before the clocks start. Prints four numbers, in seconds: of the process
PID (the mount's), of this one, of all processors, and on the clock.
"""
import os
import sys
import time

PIECE = 1 << 20
TICK = os.sysconf("SC_CLK_TCK")


def cpu_of(pid):
    """The processor clock of a process, as clock_getcpuclockid(3) makes it."""
    return time.clock_gettime((~pid << 3) | 2)


def busy():
    f = [int(x) for x in open("/proc/stat", encoding="utf-8").readline().split()[1:]]
    return (sum(f[:7]) - f[3] - f[4]) / TICK


def write(path, data):
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    while data:
        data = data[os.write(fd, data[:PIECE]):]
    os.fsync(fd)
    os.close(fd)


def read(path, data):
    fd = os.open(path, os.O_RDONLY)
    while os.readv(fd, [data]):
        pass
    os.close(fd)


what, path, pid = sys.argv[1], sys.argv[2], int(sys.argv[3])
if what == "write":
    work, data = write, memoryview(open(sys.argv[4], "rb").read())
else:
    work, data = read, bytearray(PIECE)
clocks = (lambda: cpu_of(pid), time.process_time, busy, time.monotonic)
before = [c() for c in clocks]
work(path, data)
print(*(c() - b for c, b in zip(clocks, before)))
