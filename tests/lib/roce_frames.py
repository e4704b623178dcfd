"""What tests look for in captured RoCEv2 frames, beside tshark, which does not check the ICRC."""
import zlib

# tshark guesses what payload is; random bytes then look malformed. These guesses are switched off.
GUESSES = ["eth_over_ib", "mellanox_eoib", "rpcrdma_infiniband", "smb_direct_infiniband", "smcr_infiniband",
           "iser_infiniband", "lnet_ib", "sdp_infiniband", "fc_infiniband"]
NO_GUESSES = [word for name in GUESSES for word in ("--disable-heuristic", name)]


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
