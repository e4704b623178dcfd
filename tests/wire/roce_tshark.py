#!/usr/bin/python3
"""Packets that we encode, judged by tshark: roce_tshark.py PATH/roce_write.

Each field must be what the writer meant, no frame may be malformed, and the ICRC must be the one computed with zlib.
tshark shows no more than the BTH of XRC, CNP and SACK: the rest of those is read here from docs/roce.md's tables.
"""
import pathlib
import struct
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "lib"))
import roce_frames  # noqa: E402

FIELDS = {
    "opcode": "infiniband.bth.opcode", "se": "infiniband.bth.se", "m": "infiniband.bth.m",
    "pad": "infiniband.bth.padcnt", "pkey": "infiniband.bth.p_key", "destqp": "infiniband.bth.destqp",
    "ackreq": "infiniband.bth.a", "psn": "infiniband.bth.psn", "qkey": "infiniband.deth.q_key",
    "srcqp": "infiniband.deth.srcqp", "va": "infiniband.reth.va", "rkey": "infiniband.reth.r_key",
    "dmalen": "infiniband.reth.dmalen", "swap": "infiniband.atomiceth.swapdt", "cmp": "infiniband.atomiceth.cmpdt",
    "syndrome": "infiniband.aeth.syndrome", "msn": "infiniband.aeth.msn", "orig": "infiniband.atomicacketh.origremdt",
    "imm": "infiniband.immdt", "inv": "infiniband.ieth",
}
OTHERS = {"tver": "infiniband.bth.tver", "icrc": "infiniband.invariant.crc", "malformed": "_ws.malformed",
          "class": "infiniband.mad.mgmtclass", "vendor": "infiniband.vendor"}
HEX = {"imm", "inv"}  # shown as bytes


def rest_of(want, body):
    """The headers and payload behind the BTH that tshark does not know, from docs/roce.md."""
    name, got = want["name"], {}

    def take(*keys_bytes):
        nonlocal body
        for key, n in keys_bytes:
            got[key] = int.from_bytes(body[:n], "big")
            body = body[n:]

    if name.startswith("XRC_") and "ACK" not in name and "RESP" not in name:
        take(("zero", 1), ("srqn", 3))
    if "dmalen" in want:
        take(("va", 8), ("rkey", 4), ("dmalen", 4))
    if "swap" in want:
        take(("va", 8), ("rkey", 4), ("swap", 8), ("cmp", 8))
    if "syndrome" in want:
        take(("syndrome", 1), ("msn", 3))
    if "orig" in want:
        take(("orig", 8))
    if name == "SACK":
        take(("flags", 1), ("trigger", 3), ("bits", 2), ("zero", 2))
    for key in ("imm", "inv"):
        if key in want:
            take((key, 4))
    if name == "CNP":
        take(("zero", 16))
    got["payload"] = body[:len(body) - int(want["pad"])].hex()
    return got


def check(n, want, seen, frame):
    ip = frame[14:]
    udp = 20 if ip[0] >> 4 == 4 else 40
    bth = ip[udp + 8:]
    bad = []

    def expect(what, value, right):
        if value != right:
            bad.append(f"{what}: {value}, expected {right}")

    expect("malformed", seen["malformed"], "")
    expect("version", int(seen["tver"], 0), 0)
    expect("UDP length", struct.unpack_from(">H", ip, udp + 4)[0], 8 + int(want["bytes"]))
    expect("length", len(bth), int(want["bytes"]))
    expect("ICRC", struct.unpack("<I", bth[-4:])[0], roce_frames.icrc(ip[:-4]))
    expect("FECN BECN", bth[4], int(want["fecn"]) << 7 | int(want["becn"]) << 6)
    known = want["name"][:2] in ("RC", "UC", "UD")
    if known:
        # It stops at a vendor's MAD.
        if not seen["class"]:
            expect("ICRC as shown", int(seen["icrc"], 0), struct.unpack(">I", bth[-4:])[0])
    else:
        seen.update(rest_of(want, bth[12:-4]))
        expect("vendor bytes begin", bth[12:].hex().startswith(seen["vendor"] or "?"), True)
        expect("reserved", seen.pop("zero", 0), 0)
    for key, value in want.items():
        if key in FIELDS or (not known and key in seen):
            shown = seen[key]
            if isinstance(shown, str) and key != "payload":
                shown = int(shown, 16) if key in HEX else int(shown, 0)
            expect(key, shown, value if key == "payload" else int(value))
    # Fields that the opcode has not, tshark must not see either.
    for key in FIELDS:
        if known and key not in want and seen[key]:
            bad.append(f"{key} is there")
    if known:
        pad = int(want["pad"])
        tail = bytes.fromhex(want["payload"]) + bytes(pad)
        expect("payload and pad", bth[len(bth) - 4 - len(tail):-4], tail)
    for line in bad:
        print(f"frame {n} {want['name']}: {line}")
    return not bad


def main():
    names = {**FIELDS, **OTHERS}
    wanted, shown, raw = roce_frames.written(sys.argv[1], list(names.values()))
    seen = [{key: line[field] for key, field in names.items()} for line in shown]
    right = sum(check(n, w, s, f) for n, (w, s, f) in enumerate(zip(wanted, seen, raw), 1))
    print(f"{right} of {len(wanted)} frames are right")
    hello = int(seen[-1]["class"], 0)
    if hello != 0x3d:
        print(f"the hello has class {hello:#x}")
        return 1
    return right != len(wanted)


sys.exit(main())
