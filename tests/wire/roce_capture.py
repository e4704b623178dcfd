#!/usr/bin/python3
"""Capture files, read by tshark: roce_capture.py PATH/roce_capture.

Every packet in its order with its direction, addresses, id and RoCE headers; good checksums; no malformed frame; the
ICRC right for the id that is told. Then the same with headers only, a filter, and a limit of size.
"""
import os
import pathlib
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "lib"))
import roce_frames  # noqa: E402

FIELDS = ["frame.packet_flags_direction", "ip.src", "ipv6.src", "ip.dst", "ipv6.dst", "udp.srcport", "ip.id", "ip.ttl",
          "ipv6.hlim", "ip.dsfield", "ipv6.tclass", "infiniband.bth.opcode", "infiniband.bth.destqp",
          "infiniband.bth.psn", "frame.len", "frame.cap_len", "ip.checksum.status", "udp.checksum.status",
          "_ws.malformed", "frame.interface_name", "infiniband.invariant.crc", "_ws.expert.severity"]


def tshark(path):
    return roce_frames.tshark(path, FIELDS, "-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE")


def number(text):
    return int(text, 0) if text else 0


def check(frame, want, heads):
    (direction, src, dst, port, ident, hops, tclass, opcode, qpn, psn, size, head) = want.split()
    v6 = ":" in src
    below = 14 + (40 if v6 else 20) + 8
    got = [{"0x00000001": "rx", "0x00000002": "tx"}[frame["frame.packet_flags_direction"]],
           frame["ipv6.src"] or frame["ip.src"], frame["ipv6.dst"] or frame["ip.dst"], number(frame["udp.srcport"]),
           number(frame["ip.id"]), number(frame["ipv6.hlim"] or frame["ip.ttl"]),
           number(frame["ipv6.tclass"] or frame["ip.dsfield"]), number(frame["infiniband.bth.opcode"]),
           number(frame["infiniband.bth.destqp"]), number(frame["infiniband.bth.psn"]), number(frame["frame.len"])]
    expected = [direction, src, dst] + [int(x) for x in (port, ident, hops, tclass, opcode, qpn, psn)] + [int(size) + below]
    assert got == expected, (got, expected)
    kept = number(frame["frame.cap_len"])
    assert kept == below + (min(int(head), int(size)) if heads else int(size)), (kept, want)
    assert frame["frame.interface_name"] == "uroce-test", frame
    if not v6:
        assert frame["ip.checksum.status"] == "1", frame
    if not heads:
        assert frame["_ws.malformed"] == "", (frame, want)
        assert frame["udp.checksum.status"] == ("1" if v6 else "3"), (frame, want)


def main():
    roce_frames.need_tshark()
    seed = os.environ.get("PENSTOCK_SEED", "1")
    print("seed", seed)
    with tempfile.TemporaryDirectory() as tmp:
        out = subprocess.run([sys.argv[1], tmp, seed], check=True, stdout=subprocess.PIPE, text=True).stdout
        want = out.splitlines()
        for name, lines in (("all", want), ("heads", want),
                            ("some", [w for w in want if w.startswith("rx") and int(w.split()[7]) < 0x20])):
            frames = tshark(f"{tmp}/{name}.pcapng")
            assert len(frames) == len(lines), (name, len(frames), len(lines))
            for frame, line in zip(frames, lines):
                check(frame, line, name == "heads")
        small = tshark(f"{tmp}/small.pcapng")
        assert 0 < len(small) < len(want)
        for frame, line in zip(small, want):
            check(frame, line, False)
        right = [roce_frames.icrc_is_right(f)
                 for f in roce_frames.pcapng_frames(pathlib.Path(f"{tmp}/all.pcapng").read_bytes())]
        sent = [ok for ok, line in zip(right, want) if line.startswith("tx")]
        assert all(sent), "an ICRC of a sent packet is wrong for the id in the file"
        # Received payload that lay in another process's memory has none.
        assert sum(right) > 0.7 * len(right), (sum(right), len(right))
        print(len(want), "packets,", sum(right), "with a right ICRC")
    return 0


sys.exit(main())
