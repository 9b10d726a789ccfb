"""The race as a picture: per workload, which share of the roofline lumc and its rivals reach."""

from __future__ import annotations

import math
from html import escape
from typing import Any

from peers import PEERS
from report import Verdict, is_valid, judged, verdict, verdict_line

LEFT, PANEL, GAP, LINE, TOP = 170, 330, 130, 26, 64
MINE, BEST, OTHER = "#2563eb", "#9ca3af", "#d97706"
COLOURS = {"green": "#15803d", "yellow": "#b45309", "red": "#b91c1c"}  # as in the tables
Row = dict[str, Any]


def draw(rows: list[Row]) -> str:
    """An SVG with one panel per number of threads."""
    panels = sorted({row["threads"] for row in rows})
    names = list(dict.fromkeys(row["workload"] for row in rows))
    width = LEFT + len(panels) * (PANEL + GAP)
    height = TOP + LINE * len(names) + 40
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for i, name in enumerate(names):
        out.append(text(LEFT - 8, TOP + LINE * i + 15, name, anchor="end"))
    for p, threads in enumerate(panels):
        own = {row["workload"]: row for row in rows if row["threads"] == threads}
        x = LEFT + p * (PANEL + GAP)
        out += _axis(x, threads, list(own.values()), TOP + LINE * len(names))
        for i, name in enumerate(names):
            if name in own:
                out += _bars(x, TOP + LINE * i, own[name])
    out += _legend(LEFT, height - 14)
    return "\n".join([*out, "</svg>", ""])


def _axis(x: int, threads: int, rows: list[Row], bottom: int) -> list[str]:
    title = f"{threads} thread{'s' * (threads > 1)}: share of the roofline"
    out = [text(x, 20, title, weight="bold"), text(x, 38, verdict_line(rows), size=11)]
    for percent in (0, 25, 50, 75, 100):
        at = x + PANEL * percent / 100
        out.append(
            f'<line x1="{at}" y1="{TOP - 6}" x2="{at}" y2="{bottom}" '
            f'stroke="{"#9ca3af" if percent == 100 else "#e5e7eb"}"/>'
        )
        out.append(text(at, TOP - 10, f"{percent}%", anchor="middle", size=10))
    return out


def _bars(x: int, y: int, row: Row) -> list[str]:
    """lumc above, the best peer below it, the others as marks."""
    v, out = verdict(row), []
    for us, top, colour in ((v.mine_us, y + 2, MINE), (v.best_us, y + 12, BEST)):
        if not math.isnan(us):
            out.append(
                f'<rect x="{x}" y="{top}" width="{_length(v, us):.1f}" height="9" fill="{colour}"/>'
            )
    for name, record in row["peers"].items():
        if name in ("lumc", v.best) or "min_us" not in record or not is_valid(record):
            continue
        if PEERS[name].exact:
            at = x + _length(v, record["min_us"])
            label = f"{name}: {record['min_us'] / 1e3:.3f} ms"
            out.append(
                f'<circle cx="{at:.1f}" cy="{y + 16.5}" r="2.5" fill="{OTHER}">'
                f"<title>{escape(label)}</title></circle>"
            )
    if not math.isnan(v.ratio):
        colour = COLOURS[judged(v.ratio)]
        note = f"{v.ratio:.2f} {v.best}"
        out.append(text(x + PANEL + 6, y + 15, note, colour=colour, size=11))
    return out


def _length(v: Verdict, us: float) -> float:
    return PANEL * min(v.roofline_us / us, 1)


def _legend(x: int, y: int) -> list[str]:
    out = []
    labels = ((MINE, "lumc"), (BEST, "best peer"), (OTHER, "other peers"))
    for i, (colour, label) in enumerate(labels):
        at = x + 110 * i
        out.append(f'<rect x="{at}" y="{y - 9}" width="10" height="10" fill="{colour}"/>')
        out.append(text(at + 15, y, label))
    out.append(text(x + 340, y, "beside the bars: time of the best peer / time of lumc"))
    return out


def text(
    x: float,
    y: float,
    value: str,
    anchor: str = "start",
    size: int = 12,
    weight: str = "normal",
    colour: str = "#111827",
) -> str:
    return (
        f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-size="{size}" font-weight="{weight}" '
        f'fill="{colour}">{escape(value)}</text>'
    )
