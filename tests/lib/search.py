#!/usr/bin/python3
"""Looks for bytes that nobody may have: in a process's memory, in files, in packets.

search.py capture FILE [ADDRESS]
         packets of the loopback device of this network namespace, from and to ADDRESS, go to FILE until SIGTERM
search.py find PLACE... SECRET... MUST...
    PLACE    --pid N, --files DIRECTORY, --packets FILE
    SECRET   --secret NAME=HEX: must be in none of them
    MUST     --must NAME=HEX: must be in each, so that it is known to have been searched
"""
import os
import re
import signal
import socket
import sys

MiB = 1 << 20
PIECE = 8 * MiB
OVERLAP = 4096
PACKETS_MAX = 1024 * MiB
SOL_PACKET, PACKET_STATISTICS = 263, 6


def capture(path, address):
    address = address and socket.inet_aton(address)
    s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    s.bind(("lo", 0))
    s.setsockopt(socket.SOL_SOCKET, 33, 256 * MiB)  # SO_RCVBUFFORCE
    s.settimeout(0.2)
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
    n = 0
    with open(path, "wb") as f:
        print("ready", flush=True)
        while True:
            try:
                data, frm = s.recvfrom(1 << 17)
            except socket.timeout:
                if stop:
                    break
                continue
            if frm[2] == 4 or n > PACKETS_MAX:  # PACKET_OUTGOING: it comes once more
                continue
            if address and address not in (data[26:30], data[30:34]):
                continue
            data = data[66:] if data[12:14] == b"\x08\x00" and data[23] == 6 else data  # a segment follows on the last one
            f.write(data)
            n += len(data)
    drops = int.from_bytes(s.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8)[4:8], "little")
    print("captured %d bytes, %d packets missed" % (n, drops), flush=True)


class Search:
    def __init__(self, words):
        self.found = {w: False for w in words}
        self.words = words

    def look(self, data):
        for name, b in self.words.items():
            self.found[name] = self.found[name] or b in data

    def range(self, fd, start, end):
        while start < end:
            try:
                data = os.pread(fd, min(PIECE + OVERLAP, end - start), start)
            except OSError:
                return
            self.look(data)
            if len(data) < PIECE + OVERLAP:
                return
            start += PIECE

    def file(self, path):
        fd = os.open(path, os.O_RDONLY)
        self.range(fd, 0, os.fstat(fd).st_size)
        os.close(fd)

    def files(self, root):
        for d, _, names in os.walk(root):
            for name in names:
                if os.path.isfile(os.path.join(d, name)):
                    self.file(os.path.join(d, name))

    def memory(self, pid):
        fd = os.open("/proc/%d/mem" % pid, os.O_RDONLY)
        for line in open("/proc/%d/maps" % pid):
            m = re.match(r"([0-9a-f]+)-([0-9a-f]+) r", line)
            if m and "[v" not in line and int(m[2], 16) - int(m[1], 16) < 64 << 30:  # larger: a sanitizer's map
                self.range(fd, int(m[1], 16), int(m[2], 16))
        os.close(fd)


def find(argv):
    places, secrets, musts = [], {}, {}
    for opt, value in zip(argv[::2], argv[1::2]):
        if opt in ("--secret", "--must"):
            name, _, hexa = value.partition("=")
            (secrets if opt == "--secret" else musts)[name] = bytes.fromhex(hexa)
        else:
            places.append((opt, value))
    bad = 0
    for opt, value in places:
        s = Search({**secrets, **musts})
        {"--pid": lambda: s.memory(int(value)), "--files": lambda: s.files(value), "--packets": lambda: s.file(value)}[opt]()
        for name in secrets:
            if s.found[name]:
                print("%s %s has %s" % (opt[2:], value, name))
                bad = 1
        for name in musts:
            if not s.found[name]:
                print("%s %s was not searched well: %s is not found" % (opt[2:], value, name))
                bad = 1
    return bad


sys.exit(capture(sys.argv[2], (sys.argv + [""])[3]) if sys.argv[1] == "capture" else find(sys.argv[2:]))
