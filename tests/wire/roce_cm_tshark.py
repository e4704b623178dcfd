#!/usr/bin/python3
"""Messages of the communication manager that we encode, judged by tshark: roce_cm_tshark.py PATH/roce_cm_write.

Each field must be what the writer meant. tshark knows REQ, REP, REJ, RTU, DREQ and DREP; the others (MRA, SIDR, APR) are
read here, from the tables of the specification, and so are a path's flow label and rate, which tshark takes from three
of their four bytes.
"""
import ipaddress
import pathlib
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "lib"))
import roce_frames  # noqa: E402

HEAD = {"tid": "infiniband.mad.transactionid", "mod": "infiniband.mad.attributemodifier"}
REQ = {"local": "cm.req", "service": "cm.req.serviceid", "guid": "cm.req.localcaguid", "qkey": "cm.req.localqkey",
       "qpn": "cm.req.localqpn", "eecn": "cm.req.localeecn", "reecn": "cm.req.remoteeecn", "psn": "cm.req.startpsn",
       "resources": "cm.req.responderres", "depth": "cm.req.initdepth", "rtimeout": "cm.req.remoteresptout",
       "ltimeout": "cm.req.localresptout", "transport": "cm.req.transpsvctype", "ext": "cm.req.ext_transport",
       "retry": "cm.req.retrcount", "rnr": "cm.req.rnrretrcount", "mtu": "cm.req.pppmtu",
       "cmretries": "cm.req.maxcmretr", "flow": "cm.req.e2eflowctrl", "rdc": "cm.req.rdcexist", "srq": "cm.req.srq",
       "pkey": "cm.req.pkey", "private": "cm.req.private", "sport": "cm.req.ip_cm.sport", "ipv": "cm.req.ip_cm.ipv",
       "cma_private": "cm.req.ip_cm.private", "alocal_gid": "cm.req.alt_localgid", "aremote_gid": "cm.req.alt_remotegid"}
for key, name in (("p", "prim"), ("a", "alt")):
    REQ.update({f"{key}_llid": f"cm.req.{name}_locallid", f"{key}_rlid": f"cm.req.{name}_remotelid",
                f"{key}_tclass": f"cm.req.{name}_tfcclass", f"{key}_hop": f"cm.req.{name}_hoplim",
                f"{key}_sl": f"cm.req.{name}_sl", f"{key}_local": f"cm.req.{name}_subnetlocal",
                f"{key}_ack": f"cm.req.{name}_localacktout"})
REP = {"local": "cm.rep", "remote": "cm.rep.remotecommid", "qkey": "cm.rep.localqkey", "qpn": "cm.rep.localqpn",
       "eecn": "cm.rep.localeecn", "psn": "cm.rep.startpsn", "resources": "cm.rep.respres", "depth": "cm.rep.initdepth",
       "delay": "cm.rep.tgtackdelay", "failover": "cm.rep.failoveracc", "flow": "cm.rep.e2eflowctrl",
       "rnr": "cm.rep.rnrretrcount", "srq": "cm.rep.srq", "guid": "cm.rep.localcaguid", "private": "cm.rep.private"}
REJ = {"local": "cm.rej.localcommid", "remote": "cm.rej.remotecommid", "answered": "cm.rej.msgrej",
       "infolen": "cm.rej.rejinfolen", "reason": "cm.rej.reason", "private": "cm.rej.private"}
RTU = {"local": "cm.rtu.localcommid", "remote": "cm.rtu.remotecommid", "private": "cm.rtu.private"}
DREQ = {"local": "cm.dreq.localcommid", "remote": "cm.dreq.remotecommid", "qpn": "cm.req.remoteqpneecn",
        "private": "cm.dreq.private"}
DREP = {"local": "cm.drsp.localcommid", "remote": "cm.drsp.remotecommid", "private": "cm.drsp.private"}
ADDRESSES = ["infiniband.cm.req.ip_cm.sip4", "infiniband.cm.req.ip_cm.dip4", "infiniband.cm.req.ip_cm.sip6",
             "infiniband.cm.req.ip_cm.dip6"]
KNOWN = {"REQ": REQ, "REP": REP, "REJ": REJ, "RTU": RTU, "DREQ": DREQ, "DREP": DREP}
BYTES = {"private", "cma_private", "alocal_gid", "aremote_gid"}
# Those that tshark shows as raw data: field: (offset behind the MAD header, bytes, shift right)
OTHER = {
    "MRA": {"local": (0, 4, 0), "remote": (4, 4, 0), "answered": (8, 1, 6), "timeout": (9, 1, 3), "private": 10},
    "SIDR_REQ": {"local": (0, 4, 0), "pkey": (4, 2, 0), "service": (8, 8, 0), "private": 16},
    "SIDR_REP": {"local": (0, 4, 0), "status": (4, 1, 0), "infolen": (5, 1, 0), "qpn": (8, 3, 0), "service": (12, 8, 0),
                 "qkey": (20, 4, 0), "private": 96},
    "REQ": {"p_flow": (88, 4, 12), "p_rate": (91, 1, 0), "a_flow": (132, 4, 12), "a_rate": (135, 1, 0)},
    "APR": {"local": (0, 4, 0), "remote": (4, 4, 0), "infolen": (8, 1, 0), "status": (9, 1, 0), "private": 84},
}
ATTRIBUTES = {"REQ": 16, "MRA": 17, "REJ": 18, "REP": 19, "RTU": 20, "DREQ": 21, "DREP": 22, "SIDR_REQ": 23,
              "SIDR_REP": 24, "APR": 26}


def fields():
    names = ["infiniband.mad.attributeid", "infiniband.mad.mgmtclass", "infiniband.mad.classversion",
             "infiniband.mad.method", "_ws.malformed", *HEAD.values(), *ADDRESSES]
    for known in KNOWN.values():
        names += ["infiniband." + f for f in known.values()]
    return list(dict.fromkeys(names))


def check(n, want, seen, frame):
    name, bad = want.pop("name"), []

    def expect(what, value, right):
        if value != right:
            bad.append(f"{what}: {value}, expected {right}")

    expect("malformed", seen["_ws.malformed"], "")
    for field, right in (("attributeid", ATTRIBUTES[name]), ("mgmtclass", 7), ("classversion", 2), ("method", 3)):
        expect(field, int(seen["infiniband.mad." + field], 0), right)
    for key, field in HEAD.items():
        expect(key, int(seen[field], 0), int(want.pop(key)))
    if "src" in want:
        shown = [ipaddress.ip_address(seen[a]) for a in ADDRESSES if seen[a]]
        expect("addresses", shown, [ipaddress.ip_address(want.pop(key)) for key in ("src", "dst")])
    raw = frame[-260:-4][24:]  # of the MAD's 256 bytes, before the ICRC
    for key, value in want.items():
        if key in OTHER.get(name, {}):
            where = OTHER[name][key]
            if key == "private":
                expect(key, raw[where:].hex(), value)
            else:
                expect(key, int.from_bytes(raw[where[0]:where[0] + where[1]], "big") >> where[2], int(value))
            continue
        shown = seen["infiniband." + KNOWN[name][key]]
        if key in BYTES:
            expect(key, shown.replace(":", ""), value)
        else:
            expect(key, int(shown or "-1", 0), int(value))
    for line in bad:
        print(f"frame {n} {name}: {line}")
    return not bad


def main():
    packets = roce_frames.written(sys.argv[1], fields())
    right = sum(check(n, w, s, f) for n, (w, s, f) in enumerate(zip(*packets), 1))
    print(f"{right} of {len(packets[0])} messages are right")
    return right != len(packets[0])


sys.exit(main())
