#!/usr/bin/python3
"""The axis of a plot has a few ticks, whatever the size of its values."""
import pathlib
import re
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
import svg  # noqa: E402

with tempfile.TemporaryDirectory() as d:
    for value in (0, 1e-6, 0.3, 0.888, 1.5, 6, 99, 1234.5, 700000):
        svg.bars(d + "/x.svg", "t", ["a"], [("row", [value])], "unit")
        ticks = len(re.findall(r'stroke="#e8e8e8"', pathlib.Path(d, "x.svg").read_text()))
        assert 2 <= ticks <= 7, (value, ticks)
