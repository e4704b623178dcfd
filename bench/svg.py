"""Bar charts as SVG, without any package."""
import math
from html import escape

COLOURS = ["#1f6f8b", "#c8c8c8", "#e0a030", "#7a5195", "#4f9d69", "#b04a4a"]
ROW, GAP, LEFT, WIDTH, RIGHT = 17, 12, 300, 470, 110


def _nice(top):
    """The distance of the ticks: 1, 2 or 5 times a power of ten, six of them at most."""
    step = 10.0 ** math.floor(math.log10(top / 6))
    return next(step * k for k in (1, 2, 5, 10) if top / (step * k) <= 6)


def bars(path, title, series, rows, unit, marks=None, fmt="%.0f", note=""):
    """rows: (label, [value or None for each series]); marks: a goal for each row, or None."""
    values = [v for _, vs in rows for v in vs if v is not None] + [m for m in marks or [] if m]
    top = (max(values, default=0) or 1) * 1.05
    height = 62 + sum(len([v for v in vs if v is not None]) * ROW + GAP for _, vs in rows) + 34
    out = ['<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">'
           % (LEFT + WIDTH + RIGHT, height),
           '<rect width="100%" height="100%" fill="white"/>',
           '<text x="12" y="20" font-size="15" font-weight="bold">%s</text>' % escape(title)]
    x = 12
    for i, name in enumerate(series):
        out.append('<rect x="%d" y="31" width="11" height="11" fill="%s"/><text x="%d" y="41">%s</text>'
                   % (x, COLOURS[i % len(COLOURS)], x + 15, escape(name)))
        x += 32 + 7 * len(name)
    if marks:
        out.append('<line x1="%d" x2="%d" y1="30" y2="43" stroke="#d00000" stroke-width="2"/><text x="%d" y="41">goal'
                   '</text>' % (x, x, x + 6))
    y = 58
    step, tick = _nice(top), 0
    bottom = height - 30
    while tick <= top:
        px = LEFT + WIDTH * tick / top
        out.append('<line x1="%.1f" x2="%.1f" y1="52" y2="%d" stroke="#e8e8e8"/><text x="%.1f" y="%d" '
                   'text-anchor="middle" fill="#606060">%g</text>' % (px, px, bottom, px, bottom + 14, tick))
        tick += step
    out.append('<text x="%d" y="%d" fill="#606060">%s</text>' % (LEFT + WIDTH + 22, bottom + 14, escape(unit)))
    for r, (label, vs) in enumerate(rows):
        shown = [(i, v) for i, v in enumerate(vs) if v is not None]
        out.append('<text x="%d" y="%.1f" text-anchor="end">%s</text>'
                   % (LEFT - 8, y + len(shown) * ROW / 2 + 4, escape(label)))
        first = y
        for i, v in shown:
            w = WIDTH * v / top
            out.append('<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/><text x="%.1f" y="%d">%s</text>'
                       % (LEFT, y, w, ROW - 3, COLOURS[i % len(COLOURS)], LEFT + w + 5, y + 11, escape(fmt % v)))
            y += ROW
        if marks and marks[r]:
            px = LEFT + WIDTH * marks[r] / top
            out.append('<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="#d00000" stroke-width="2"/>'
                       % (px, px, first - 3, y))
        y += GAP
    if note:
        out.append('<text x="12" y="%d" fill="#606060" font-size="10">%s</text>' % (height - 3, escape(note)))
    out.append("</svg>\n")
    with open(path, "w", encoding="utf-8") as f:
        f.write("\n".join(out))
