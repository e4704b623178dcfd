#!/usr/bin/python3
"""Decodes data-plane messages, written from docs/protocol.md alone.

Standard input: one message a line, `session-key ticket kind message` in hex (kind: request or reply), or
`hello bytes`, `head bytes`. Standard output: one line each, `name=value` pairs in the order of the page, or `refused`.
"""
import hashlib
import hmac
import struct
import sys

OPCODES = {1: "BIND", 2: "UNBIND", 3: "READ", 4: "WRITE", 5: "PUNCH", 6: "ALLOCATE", 7: "SEEK_DATA", 8: "SEEK_HOLE",
           9: "FSYNC", 10: "SYNCFS", 11: "CHUNK_READ", 12: "CHUNK_REPLACE", 13: "PING"}
APPEND, DSYNC, KEEP_SIZE, GROW, SET_SIZE, INLINE, IF_UNCHANGED, EXPORTED, THIRD = 1, 2, 4, 8, 16, 32, 64, 128, 256
KILL_SETID = 512
WHERE = INLINE | EXPORTED | THIRD
FLAGS = {"READ": WHERE, "WRITE": WHERE | APPEND | DSYNC | KILL_SETID, "PUNCH": KILL_SETID,
         "ALLOCATE": KEEP_SIZE | KILL_SETID, "CHUNK_READ": WHERE,
         "CHUNK_REPLACE": WHERE | DSYNC | GROW | SET_SIZE | IF_UNCHANGED | KILL_SETID}
MUTATING = {"WRITE", "PUNCH", "ALLOCATE", "CHUNK_REPLACE"}
OBJECT = set(OPCODES.values()) - {"BIND", "UNBIND", "SYNCFS", "PING"}
OFFSET = OBJECT - {"FSYNC"}
SPAN = {"READ", "WRITE", "PUNCH", "ALLOCATE", "CHUNK_READ", "CHUNK_REPLACE"}


class Refused(Exception):
    pass


def need(ok, why):
    if not ok:
        raise Refused(why)


def open_message(session_key, ticket, kind, msg):
    need(len(msg) >= 1 and msg[0] == 1, "version")
    need(len(msg) >= 104, "length")
    key = hmac.new(session_key, b"penstock dp 1\0" + ticket, hashlib.sha256).digest()
    side = b"\x43" if kind == "request" else b"\x53"
    need(hmac.compare_digest(hmac.new(key, side + msg[:-16], hashlib.sha256).digest()[:16], msg[-16:]), "mac")
    _, kind_byte, opcode, meta_len, payload_len, total = struct.unpack("<BBBBII", msg[:12])
    need(kind_byte == (0x51 if kind == "request" else 0x52), "type")
    need(total == len(msg), "total")
    need(opcode in OPCODES, "opcode")
    need(meta_len <= 64 and payload_len <= 4096, "sizes")
    return OPCODES[opcode], meta_len, payload_len


def request(session_key, ticket, msg):
    op, meta_len, payload_len = open_message(session_key, ticket, "request", msg)
    flags, nsegs, zero, msgno, tag, cap, slot, seq, ino, offset, length, version, new_size = struct.unpack(
        "<HBBQQIIQQQQQQ", msg[12:88])
    need(zero == 0 and nsegs <= 4, "segments")
    need(len(msg) == 88 + meta_len + 20 * nsegs + payload_len + 16, "parts")
    at = 88 + meta_len
    segs = [struct.unpack("<QQI", msg[at + 20 * i:at + 20 * i + 20]) for i in range(nsegs)]
    payload = msg[at + 20 * nsegs:-16]
    need(flags & ~FLAGS.get(op, 0) == 0, "flags")
    need(not (flags & GROW and flags & SET_SIZE), "flags")
    need(msgno >= 1, "number")
    need(cap < 4096 and (op != "PING" or cap == 0), "capability")
    origin, slot = slot >> 16, slot & 0xffff
    need(not origin or seq, "origin")
    need(slot < 1024 and (seq or not slot) and (op in MUTATING or not seq), "slot")
    need((ino != 0) == (op in OBJECT), "object")
    need(op in OFFSET and not flags & APPEND or offset == 0, "offset")
    need(op in SPAN or length == 0, "length")
    need(offset + length <= 2**63 - 1, "range")
    need(op == "CHUNK_REPLACE" or (version == 0 and meta_len == 0), "chunk fields")
    need(new_size == 0 or flags & (GROW | SET_SIZE) and new_size <= 2**63 - 1, "new size")
    if flags & THIRD:
        need(nsegs >= 2 and segs[0][1] != 0 and segs[0][2] == 0, "third party")
    for addr, _, seg_len in segs[1 if flags & THIRD else 0:]:
        need(seg_len > 0 and addr + seg_len < 2**64, "segment")
    if op == "BIND":
        need(not nsegs and 1 <= payload_len <= 1024, "data")
    elif op in ("READ", "WRITE", "CHUNK_READ", "CHUNK_REPLACE"):
        need(length <= (16 << 20 if op.startswith("CHUNK") else 8 << 20), "length")
        takes = op in ("WRITE", "CHUNK_REPLACE")
        need(bin(flags & WHERE).count("1") <= 1 and (length or not flags & (EXPORTED | THIRD)), "where")
        if flags & INLINE:
            need(not nsegs and length <= 4096 and payload_len == (length if takes else 0), "data")
        else:
            need(not payload_len and sum(s[2] for s in segs) == length, "data")
    else:
        need(not nsegs and not payload_len, "data")
    return dict(op=op, flags=flags, msgno=msgno, tag=tag, cap=cap, origin=origin, slot=slot, seq=seq, ino=ino, offset=offset,
                length=length, version=version, new_size=new_size, meta=msg[88:at].hex(),
                segs=",".join("%d:%d:%d" % s for s in segs), payload=payload.hex())


def reply(session_key, ticket, msg):
    op, meta_len, payload_len = open_message(session_key, ticket, "reply", msg)
    status, msgno, tag, result, offset, version, size, used, change, mtime = struct.unpack("<iQQQQQQQQq", msg[12:88])
    need(len(msg) == 88 + meta_len + payload_len + 16, "parts")
    need(-4095 <= status <= 0 and msgno >= 1 and result <= 2**63 - 1, "values")
    need(not payload_len or (op in ("READ", "CHUNK_READ") and status == 0 and result == payload_len), "payload")
    need(not meta_len or (op == "CHUNK_READ" and status == 0), "metadata")
    return dict(op=op, status=status, msgno=msgno, tag=tag, result=result, offset=offset, version=version, size=size,
                used=used, change=change, mtime=mtime, meta=msg[88:88 + meta_len].hex(), payload=msg[88 + meta_len:-16].hex())


def main():
    for line in sys.stdin:
        key, ticket, kind, msg = (line.split() + [""])[:4]
        key, ticket = bytes.fromhex(key), bytes.fromhex(ticket.replace("-", ""))
        try:
            fields = (request if kind == "request" else reply)(key, ticket, bytes.fromhex(msg))
            print(" ".join("%s=%s" % kv for kv in fields.items()), flush=True)
        except Refused:
            print("refused", flush=True)


if __name__ == "__main__":
    main()
