"""What tests look for in captured RoCEv2 frames, beside tshark, which does not check the ICRC."""
import shutil
import subprocess
import sys
import tempfile
import zlib

# tshark guesses what payload is; random bytes then look malformed. These guesses are switched off.
GUESSES = ["eth_over_ib", "mellanox_eoib", "rpcrdma_infiniband", "smb_direct_infiniband", "smcr_infiniband",
           "iser_infiniband", "lnet_ib", "sdp_infiniband", "fc_infiniband"]
NO_GUESSES = [word for name in GUESSES for word in ("--disable-heuristic", name)]


def tshark(path, fields, *options):
    """What it shows of each packet: a dictionary by field."""
    cmd = ["tshark", "-r", path, "-T", "fields", "-E", "separator=|", "-E", "occurrence=f", *options, *NO_GUESSES]
    for field in fields:
        cmd += ["-e", field]
    out = subprocess.run(cmd, check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True).stdout
    return [dict(zip(fields, line.split("|"))) for line in out.splitlines()]


def need_tshark():
    if not shutil.which("tshark"):
        print("tshark is not installed")
        sys.exit(77)


def written(writer, fields):
    """Of the packets of a program that writes hundreds of them: what it meant, what tshark shows, the frames."""
    need_tshark()
    with tempfile.TemporaryDirectory(prefix="pst-roce-") as tmp:
        pcap, text = tmp + "/a.pcap", tmp + "/a.txt"
        subprocess.run([writer, pcap, text], check=True)
        wanted = [dict(item.split("=", 1) for item in line.split()) for line in open(text)]
        seen, frames = tshark(pcap, fields), list(pcap_frames(open(pcap, "rb").read()))
    if not len(wanted) == len(seen) == len(frames) or len(wanted) < 400:
        print(f"{len(wanted)} written, {len(seen)} seen, {len(frames)} in the file")
        sys.exit(1)
    return wanted, seen, frames


def pcap_frames(data):
    at = 24
    while at < len(data):
        n = int.from_bytes(data[at + 8:at + 12], "little")
        yield data[at + 16:at + 16 + n]
        at += 16 + n


def pcapng_frames(data):
    at = 0
    while at < len(data):
        kind, length = (int.from_bytes(data[at + i:at + i + 4], "little") for i in (0, 4))
        assert length % 4 == 0 and data[at + length - 4:at + length] == data[at + 4:at + 8]
        if kind == 6:
            kept = int.from_bytes(data[at + 20:at + 24], "little")
            yield data[at + 28:at + 28 + kept]
        at += length


def icrc(ip):
    """Of an IP packet without its ICRC."""
    b = bytearray(ip)
    udp, ones = (20, [1, 8, 10, 11]) if b[0] >> 4 == 4 else (40, [1, 2, 3, 7])
    if udp == 40:
        b[0] |= 0x0f
    for i in ones + [udp + 6, udp + 7, udp + 12]:
        b[i] = 0xff
    return zlib.crc32(b"\xff" * 8 + b)


def icrc_is_right(frame):
    """Of an Ethernet frame."""
    return icrc(frame[14:-4]).to_bytes(4, "little") == frame[-4:]
