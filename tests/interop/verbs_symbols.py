#!/usr/bin/python3
"""The drop-in libraries beside the distribution's: verbs_symbols.py LIBIBVERBS LIBRDMACM.

Each has the same names with the same versions, no more and no fewer; hidden versions ("NAME@VERSION", of before 2007)
apart. The distribution's providers and librdmacm load on top with all symbols bound; names and rates are told alike;
ibv_devices and ibv_devinfo see the device.
"""
import os
import pathlib
import re
import subprocess
import sys

LIBRARY, RDMACM = (pathlib.Path(a).resolve() for a in sys.argv[1:])
ENV = {**os.environ, "LD_LIBRARY_PATH": str(LIBRARY.parent), "LD_BIND_NOW": "1", "UROCE_HOLDER": "off"}


def exported(path):
    out = subprocess.run(["nm", "-D", "--defined-only", "--with-symbol-versions", path], check=True,
                         capture_output=True, text=True).stdout
    return {w[2] for w in (line.split() for line in out.splitlines()) if len(w) == 3 and "@@" in w[2]}


def in_namespace(command):
    """As a plain user in a network namespace of its own, with loopback up."""
    r = subprocess.run(["unshare", "-r", "-n", "sh", "-c", "ip link set lo up && " + command], env=ENV,
                       capture_output=True, text=True)
    assert r.returncode == 0, f"{command}: {r.returncode}: {r.stdout}{r.stderr}"
    return r.stdout


def stock(name):
    out = subprocess.run(["gcc", "-print-file-name=" + name], check=True, capture_output=True, text=True).stdout.strip()
    return out if os.path.isabs(out) else None


def the_symbols_are_the_distributions():
    for library in (LIBRARY, RDMACM):
        theirs, ours = exported(stock(library.name)), exported(library)
        assert theirs == ours, f"{library.name}: missing: {sorted(theirs - ours)}; extra: {sorted(ours - theirs)}"
        print(f"{library.name}: {len(ours)} symbols and versions, as the distribution's")


def stock_libraries_load():
    load = "import ctypes, sys; ctypes.CDLL(sys.argv[1]); print(open('/proc/self/maps').read())"
    loaded = 0
    for name in ("libmlx5.so.1", "libmlx4.so.1", "libefa.so.1", "libmana.so.1", "librdmacm.so.1"):
        if not stock(name):
            print(f"{name}: not installed")
            continue
        r = subprocess.run(["/usr/bin/python3", "-c", load, stock(name)], env=ENV, capture_output=True, text=True)
        assert r.returncode == 0, f"{name}: {r.stderr}"
        libs = set(re.findall(r"/\S*libibverbs\.so\S*", r.stdout))
        assert {os.path.realpath(p) for p in libs} == {str(LIBRARY)}, f"{name}: {libs}"
        loaded += 1
    assert loaded >= 3, "libmlx5, libmlx4 and libefa are in ibverbs-providers"
    print(f"{loaded} stock libraries load on top")


NAMES_AND_RATES = """
import ctypes, sys
lib = ctypes.CDLL(sys.argv[1])
for name in ("ibv_node_type_str", "ibv_port_state_str", "ibv_event_type_str", "ibv_wc_status_str"):
    fn = getattr(lib, name)
    fn.restype = ctypes.c_char_p
    print(name, [fn(i) for i in range(-1, 40)])
for name, values in (("ibv_rate_to_mult", range(-1, 40)), ("ibv_rate_to_mbps", range(-1, 40)),
                     ("mult_to_ibv_rate", range(-1, 600)), ("mbps_to_ibv_rate", range(0, 1300000, 125))):
    print(name, [getattr(lib, name)(i) for i in values])
"""


def names_and_rates_are_the_distributions():
    said = [subprocess.run(["/usr/bin/python3", "-c", NAMES_AND_RATES, lib], check=True, capture_output=True,
                           text=True).stdout.splitlines() for lib in (stock(LIBRARY.name), LIBRARY)]
    for theirs, ours in zip(*said):
        assert theirs == ours, f"theirs: {theirs}\nours:   {ours}"
    print(f"{len(said[0])} functions name and convert alike")


def the_tools_see_the_device():
    assert re.search(r"^\s+uroce0\s+0275\S+", in_namespace("ibv_devices"), re.M)
    info = in_namespace("ibv_devinfo -v")
    for want in ("PORT_ACTIVE", r"link_layer:\s+Ethernet", r"GID\[\s+0\]:\s+::ffff:127.0.0.1, RoCE v2",
                 r"active_mtu:\s+4096"):
        assert re.search(want, info), f"ibv_devinfo -v: no {want} in:\n{info}"
    print("ibv_devices and ibv_devinfo see the device")


the_symbols_are_the_distributions()
stock_libraries_load()
names_and_rates_are_the_distributions()
the_tools_see_the_device()
