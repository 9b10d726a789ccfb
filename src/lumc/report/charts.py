"""The pictures of the page: roofline and search progress, as SVG coloured by style sheet."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lumc.report.markup import Markup, join, tag
from lumc.report.words import us

Body = Mapping[str, Any]
Scale = Callable[[float], float]
Ends = tuple[tuple[float, float], tuple[float, float]]  # of a line, x and y of each
Box = tuple[float, float, float, float]  # left, right, top, bottom
WIDTH, HEIGHT = 720.0, 400.0
LEFT, RIGHT, TOP, BOTTOM = 56.0, 20.0, 16.0, 46.0
LABELS = 8  # points with a name
CHAR = 6.4


def roofline(body: Body, classes: Mapping[str, str]) -> Markup:
    """Every kernel by its arithmetic per byte and its speed, under the limits of the machine."""
    points = [k for k in body["kernels"] if k["flops"] and k["nbytes"] and k["bound_us"]]
    if not points:
        return tag("p", "No kernel does arithmetic.", class_="note")
    top, bandwidth = body["machine"]["gflops"], body["machine"]["bandwidth"]
    at = {k["key"]: (k["flops"] / k["nbytes"], speed(k)) for k in points}
    xs = [x for x, _ in at.values()]
    ys = [y for _, y in at.values()]
    x0, x1 = _decades([*xs, top / bandwidth], 2.5)
    y0, y1 = _decades([*ys, top], 2.0)
    x, y = _log(x0, x1, LEFT, WIDTH - RIGHT), _log(y0, y1, HEIGHT - BOTTOM, TOP)
    limits = [(bandwidth, f"memory {bandwidth:.0f} GB/s")]
    fast = [k["nbytes"] / k["bound_us"] / 1e3 for k in points if k["limited_by"] == "caches"]
    if fast:
        limits.append((max(fast), f"caches {max(fast):.0f} GB/s"))
    slopes = [
        (said, ends)
        for rate, said in limits
        if (ends := _ends(x, y, (x0, x1), (y0, y1), top, rate))
    ]
    marks = [_point(k, x(at[k["key"]][0]), y(at[k["key"]][1]), y, classes) for k in points]
    return tag(
        "svg",
        _grid(x, y, (x0, x1), (y0, y1)),
        _ceiling(x, y, (x0, x1), top, body["machine"]["measured"]),
        *(_slope(said, ends) for said, ends in slopes),
        *marks,
        *_names(points, at, x, y, [(LEFT, WIDTH, y(top) - 2, y(top) + 2), *_boxes(slopes)]),
        viewBox=f"0 0 {WIDTH:.0f} {HEIGHT:.0f}",
        role="img",
        aria_label="Roofline: speed of every kernel against its arithmetic per byte",
    )


def speed(k: Body) -> float:
    """GFLOP/s, at the bound when it was not measured."""
    return float(k["flops"] / (k["time_us"] or k["bound_us"]) / 1e3)


def _decades(values: Sequence[float], room: float) -> tuple[float, float]:
    return min(values) / room, max(values) * room


def _log(lo: float, hi: float, start: float, end: float) -> Scale:
    span = math.log(hi / lo)
    return lambda v: start + (end - start) * math.log(v / lo) / span


def _ticks(lo: float, hi: float) -> list[float]:
    """Powers of ten, with 2 and 5 between where there are few."""
    tens = range(math.floor(math.log10(lo)), math.ceil(math.log10(hi)) + 1)
    steps = (1, 2, 5) if len(tens) < 5 else (1,)
    return [s * 10.0**n for n in tens for s in steps if lo <= s * 10.0**n <= hi]


def _grid(x: Scale, y: Scale, xs: tuple[float, float], ys: tuple[float, float]) -> Markup:
    base, rows = HEIGHT - BOTTOM, list[Markup]()
    for v in _ticks(*xs):
        rows.append(tag("line", x1=x(v), x2=x(v), y1=TOP, y2=base, class_="grid"))
        rows.append(tag("text", f"{v:g}", x=x(v), y=base + 16, text_anchor="middle"))
    for v in _ticks(*ys):
        rows.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y(v), y2=y(v), class_="grid"))
        rows.append(tag("text", f"{v:g}", x=LEFT - 8, y=y(v) + 4, text_anchor="end"))
    middle = (LEFT + WIDTH - RIGHT) / 2
    rows.append(tag("text", "FLOP per byte", x=middle, y=HEIGHT - 8, text_anchor="middle"))
    rows.append(
        tag(
            "text",
            "GFLOP/s",
            transform=f"translate(13 {(TOP + base) / 2:.0f}) rotate(-90)",
            text_anchor="middle",
        )
    )
    return tag("g", *rows, class_="axis")


def _ceiling(x: Scale, y: Scale, xs: tuple[float, float], top: float, measured: bool) -> Markup:
    said = f"{top:.0f} GFLOP/s{' measured' if measured else ' nominal'}"
    line = tag("line", x1=x(xs[0]), x2=x(xs[1]), y1=y(top), y2=y(top), class_="limit")
    name = tag("text", said, x=LEFT + 6, y=y(top) - 7, class_="limit")
    return tag("g", line, name)


def _ends(
    x: Scale,
    y: Scale,
    xs: tuple[float, float],
    ys: tuple[float, float],
    top: float,
    rate: float,
) -> Ends | None:
    """Where the line speed = rate x intensity enters the frame and meets the ceiling."""
    start, end = max(xs[0], ys[0] / rate), min(xs[1], top / rate)
    if start >= end:
        return None
    return (x(start), y(start * rate)), (x(end), y(end * rate))


def _slope(said: str, ends: Ends) -> Markup:
    (x1, y1), (x2, y2) = ends
    angle = math.degrees(math.atan2(y2 - y1, x2 - x1))
    place = f"translate({x1:.1f} {y1:.1f}) rotate({angle:.1f})"
    line = tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_="limit slope")
    return tag("g", line, tag("text", said, transform=place, x=14, y=-6, class_="limit"))


def _boxes(slopes: Sequence[tuple[str, Ends]]) -> list[Box]:
    """What the names of the slopes cover, piece by piece."""
    out = []
    for said, ((x1, y1), (x2, y2)) in slopes:
        length = math.hypot(x2 - x1, y2 - y1)
        for n in range(len(said) + 1):
            along = (14 + CHAR * n) / length
            px, py = x1 + (x2 - x1) * along, y1 + (y2 - y1) * along
            out.append((px - 8, px + 2, py - 18, py - 2))
    return out


def _point(k: Body, x: float, y: float, scale: Scale, classes: Mapping[str, str]) -> Markup:
    """A disc as large as the kernel's share, and a stem up to its own roofline."""
    roof = scale(k["flops"] / k["bound_us"] / 1e3)
    figure = us(k["time_us"]) if k["time_us"] else f"at least {us(k['bound_us'])}"
    title = tag("title", f"{k['name']}: {figure}, {speed(k):.1f} GFLOP/s, {k['share']:.1%}")
    hollow = "" if k["time_us"] else " hollow"
    return tag(
        "a",
        title,
        tag("line", x1=x, x2=x, y1=y, y2=roof, class_="stem"),
        tag("circle", cx=x, cy=y, r=_radius(k), class_="dot" + hollow),
        href=f"#k-{k['key']}",
        class_=classes[k["key"]],
        data_k=k["key"],
        tabindex="-1",
    )


def _radius(k: Body) -> float:
    return 4.0 + 9.0 * math.sqrt(k["share"])


def _names(
    points: Sequence[Body],
    at: Mapping[str, tuple[float, float]],
    x: Scale,
    y: Scale,
    taken: list[Box],
) -> list[Markup]:
    """Names beside the largest points, where there is room for them."""
    for k in points:
        cx, cy, r = x(at[k["key"]][0]), y(at[k["key"]][1]), _radius(k)
        taken.append((cx - r, cx + r, cy - r, cy + r))
    out = []
    for k in points[:LABELS]:
        cx, cy = x(at[k["key"]][0]), y(at[k["key"]][1])
        off, width = _radius(k) + 3, CHAR * len(k["name"])
        for left, base in (
            (cx + off, cy + 4),
            (cx - off - width, cy + 4),
            (cx - width / 2, cy + off + 11),
            (cx - width / 2, cy - off - 4),
            (cx + off, cy + 18),
            (cx + off, cy - 10),
            (cx - off - width, cy + 18),
            (cx - off - width, cy - 10),
        ):
            box = (left, left + width, base - 9, base + 2)
            inside = box[0] > LEFT and box[1] < WIDTH and box[2] > TOP and box[3] < HEIGHT - BOTTOM
            if inside and not any(_overlap(box, other) for other in taken):
                taken.append(box)
                name = tag("text", k["name"], x=left, y=base, class_="name", data_k=k["key"])
                out.append(name)
                break
    return out


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[1] and b[0] < a[1] and a[2] < b[3] and b[2] < a[3]


# ---- search progress


def progress(k: Body, css: str) -> Markup:
    """The best time against the number of trials, down to the roofline."""
    width, height, left, base = 240.0, 84.0, 6.0, 68.0
    steps, bound = k["curve"], k["bound_us"]
    tried = steps[-1][0]
    last = max(tried, 2)
    low, high = min(bound, steps[-1][1]), max(steps[0][1], bound) * 1.02
    span = math.log(high / low) or 1.0

    def x(n: float) -> float:
        return left + (width - 2 * left) * (n - 1) / float(last - 1)

    def y(value: float) -> float:
        return base - (base - 10) * math.log(value / low) / span

    trials = f"{tried} trial{'s' if tried > 1 else ''}"
    path = f"M{x(steps[0][0]):.1f},{y(steps[0][1]):.1f}"
    for n, value in steps[1:]:
        path += f"H{x(n):.1f}V{y(value):.1f}"
    end = steps[-1]
    picture = tag(
        "svg",
        tag("line", x1=left, x2=width - left, y1=y(bound), y2=y(bound), class_="limit slope"),
        tag("path", d=path, class_="curve"),
        tag("circle", cx=x(end[0]), cy=y(end[1]), r=3, class_="dot"),
        tag("text", "1", x=left, y=height - 3),
        tag("text", trials, x=width - left, y=height - 3, text_anchor="end"),
        viewBox=f"0 0 {width:.0f} {height:.0f}",
        role="img",
        aria_label=f"{k['name']}: from {us(steps[0][1])} to {us(end[1])} in {trials}",
    )
    gain = steps[0][1] / end[1]
    said = f"{us(steps[0][1])} to {us(end[1])}" + (f", {gain:.2f} x" if gain > 1.005 else "")
    head = tag("a", k["name"], href=f"#k-{k['key']}")
    caption = tag("figcaption", head, tag("span", said))
    return tag("figure", caption, picture, class_=f"progress {css}", data_k=k["key"])


def timeline(rows: Sequence[Mapping[str, Any]], total: float) -> Markup:
    """One row per kernel: when it runs, in a run of all launches one after the other."""
    out = []
    for row in rows:
        bars = [
            tag("i", style=f"left:{start / total:.4%};width:{max(end - start, 0) / total:.4%}")
            for start, end in row["spans"]
        ]
        name = tag("a", row["name"], href=row["href"]) if row["href"] else tag("span", row["name"])
        out.append(
            tag(
                "div",
                tag("span", name, class_="label"),
                tag("span", *bars, class_="track"),
                tag("span", row["said"], class_="figure"),
                class_=f"row {row['css']}",
                data_k=row["key"],
            )
        )
    unit, of = ("ms", 1e3) if total >= 1e3 else ("us", 1.0)
    marks = [tag("span", f"{total * n / 4 / of:.3g}{f' {unit}' * (n == 4)}") for n in range(5)]
    ruler = tag("div", tag("span", class_="label"), tag("span", *marks, class_="ruler"))
    return tag("div", join(out), ruler, class_="timeline")
