"""The zoo as a picture: the ratio of every network, and of all operators in order.

Written by ``make zoo-table`` beside docs/zoo.md. It is light or dark as the system is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

Row = dict[str, Any]
LEFT, WIDE, LINE, TOP, HIGH = 170, 520, 32, 56, 220  # in pixels
MOST = 1.5  # ratio at the end of a bar
RANGE = (0.5, 16.0)  # of the ratios of operators
STYLE = """text { font: 12px sans-serif; fill: #1f2937 } .small { font-size: 11px }
.head { font-weight: bold } .t1 { fill: #2563eb } .t2 { fill: #d97706 } .grid { stroke: #d1d5db }
.one { stroke: #6b7280 } .back { fill: #ffffff } .c1 { stroke: #2563eb } .c2 { stroke: #d97706 }
polyline { fill: none; stroke-width: 2 }
@media (prefers-color-scheme: dark) { text { fill: #e5e7eb } .back { fill: #1f2328 }
.grid { stroke: #4b5563 } .one { stroke: #9ca3af } .t1 { fill: #60a5fa } .t2 { fill: #fbbf24 }
.c1 { stroke: #60a5fa } .c2 { stroke: #fbbf24 } }"""


def picture(rows: Sequence[Row]) -> str:
    """An SVG of the rows that were searched."""
    searched = [r for r in rows if r["how"] == "searched" and r["mine_us"] and r["best_us"]]
    networks = [r for r in searched if r["suite"] == "networks"]
    names = sorted({r["workload"] for r in networks})
    middle = TOP + LINE * len(names) + 60
    width, height = LEFT + WIDE + 60, middle + HIGH + 50
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
    lines = [
        head + f'width="{width}" height="{height}" role="img">',
        "<title>Times of the best peer over those of lumc</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="back" width="{width}" height="{height}"/>',
        *bars(networks, names),
        *curves([r for r in searched if r["suite"] == "operators"], middle),
    ]
    return "\n".join([*lines, "</svg>", ""])


def ratio(row: Row) -> float:
    return float(row["best_us"] / row["mine_us"])


def bars(rows: Sequence[Row], names: Sequence[str]) -> Iterator[str]:
    """Two bars for each network, of one thread and of two."""
    bottom = TOP + LINE * len(names)
    yield text(
        LEFT, 18, "Networks: time of the best peer / time of lumc (above 1, lumc is faster)", "head"
    )
    yield from legend(LEFT, 36)
    for tick in (0.5, 1.0, 1.5):
        x = LEFT + WIDE * tick / MOST
        kind = "one" if tick == 1 else "grid"
        yield f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 4}" y2="{bottom}"/>'
        yield text(x, bottom + 14, f"{tick:g}", "small", "middle")
    for i, name in enumerate(names):
        y = TOP + LINE * i
        yield text(LEFT - 8, y + 19, name, "small", "end")
        for row in (r for r in rows if r["workload"] == name):
            n = row["threads"]
            length = WIDE * min(ratio(row), MOST) / MOST
            top = y + 3 + 13 * (n - 1)
            yield f'<rect class="t{n}" x="{LEFT}" y="{top}" width="{length:.1f}" height="11"/>'
            yield text(LEFT + length + 4, top + 10, f"{ratio(row):.2f}", "small")


def curves(rows: Sequence[Row], top: int) -> Iterator[str]:
    """The ratios of all operators, the least first, on a logarithmic scale."""
    count = len({r["workload"] for r in rows})
    yield text(LEFT, top - 12, f"{count} operators, the least ratio first", "head")
    for tick in (0.5, 1, 2, 4, 8, 16):
        y, kind = height_of(tick, top), "one" if tick == 1 else "grid"
        yield f'<line class="{kind}" x1="{LEFT}" x2="{LEFT + WIDE}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield text(LEFT - 8, y + 4, f"{tick:g}", "small", "end")
    for n in sorted({r["threads"] for r in rows}):
        own = sorted(ratio(r) for r in rows if r["threads"] == n)
        step = WIDE / max(1, len(own) - 1)
        points = (f"{LEFT + step * i:.1f},{height_of(r, top):.1f}" for i, r in enumerate(own))
        yield f'<polyline class="c{n}" points="{" ".join(points)}"/>'


def height_of(value: float, top: int) -> float:
    low, high = map(math.log, RANGE)
    share = (min(max(math.log(value), low), high) - low) / (high - low)
    return top + HIGH * (1 - share)


def legend(x: int, y: int) -> Iterator[str]:
    for n, words in ((1, "1 thread"), (2, "2 threads")):
        yield f'<rect class="t{n}" x="{x + 90 * (n - 1)}" y="{y - 9}" width="10" height="10"/>'
        yield text(x + 90 * (n - 1) + 15, y, words, "small")


def text(x: float, y: float, said: str, kind: str, anchor: str = "start") -> str:
    at = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text class="{kind}" {at}>{escape(said)}</text>'
