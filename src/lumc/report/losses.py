"""``lumc report losses.csv``: losses of a training, as a picture."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from lumc.disk import artifact
from lumc.errors import Exit, LumcError
from lumc.report.markup import Markup, tag

WIDTH, HEIGHT = 720.0, 360.0
LEFT, RIGHT, TOP, BOTTOM = 64.0, 16.0, 34.0, 40.0
POINTS = 600  # of a line, at most: the least and the greatest of every stretch
MEAN = 50  # stretches of the mean
MOST = 256 << 20  # bytes of a file
HUES = ("#2563eb", "#d97706", "#059669", "#db2777", "#7c3aed", "#64748b")
STYLE = """
  svg { background: #fff; font: 12px system-ui, sans-serif; }
  text { fill: #444; } .grid { stroke: #ddd; } .each { opacity: .35; }
  path { fill: none; stroke-width: 1; } .mean { stroke-width: 2; }
  @media (prefers-color-scheme: dark) {
    svg { background: #16181d; } text { fill: #c8ccd4; } .grid { stroke: #333842; }
  }
"""


class Line(NamedTuple):
    """A loss: its steps and its values, of which those that are not finite are left out."""

    name: str
    steps: list[float]
    values: list[float]


def is_losses(file: str) -> bool:
    """Whether a file is one of losses: its name ends with .csv."""
    return Path(file).suffix.lower() == ".csv"


def draw(file: str, output: str) -> None:
    """Write the picture of a file of losses, as ``lumc-run --losses`` writes them: SVG. Raises
    E0201, E0202, E0213 (no such file of losses)."""
    artifact.check_writable(output)
    artifact.write_text(output, str(picture(read(file), Path(file).name)) + "\n")


def read(file: str) -> list[Line]:
    """The losses of a file: a column for each, behind the step. Raises E0201, E0213."""
    try:
        path = Path(file)
        if path.stat().st_size > MOST:
            raise _odd(file, f"it has more than {MOST >> 20} MB")
        rows = path.read_text(encoding="utf-8").splitlines()
    except OSError as e:
        raise LumcError("E0201", f"cannot read {file}: {e.strerror}", exit=Exit.USAGE) from None
    except UnicodeDecodeError:
        raise _odd(file, "it is no text") from None
    heads = rows[0].split(",") if rows else []
    if len(heads) < 2 or heads[0] != "step" or len(heads) > 1 + len(HUES):
        raise _odd(file, f"its first line is not 'step' and the names of 1 to {len(HUES)} losses")
    lines = [Line(name, [], []) for name in heads[1:]]
    for at, row in enumerate(rows[1:], 2):
        cells = row.split(",")
        try:
            step, *values = map(float, cells)
        except ValueError:
            raise _odd(file, f"line {at} is not {len(heads)} numbers") from None
        if len(cells) != len(heads) or not math.isfinite(step):
            raise _odd(file, f"line {at} is not {len(heads)} numbers")
        for line, value in zip(lines, values, strict=True):
            if math.isfinite(value):
                line.steps.append(step)
                line.values.append(value)
    if not any(line.steps for line in lines):
        raise _odd(file, "it has no step")
    return lines


def _odd(file: str, what: str) -> LumcError:
    fix = "give it what lumc-run --losses FILE.csv wrote"
    return LumcError("E0213", f"{file} has no losses: {what}", fix=fix, exit=Exit.CORRUPT)


# ---- the picture


def picture(lines: Sequence[Line], title: str) -> Markup:
    """Every loss as a line, and its mean over stretches of steps as a bolder one. The axis of
    values is logarithmic where they are positive and the greatest is ten times the least."""
    shown = [line for line in lines if line.steps]
    steps = [s for line in shown for s in (min(line.steps), max(line.steps))]
    values = [v for line in shown for v in line.values]
    first, last, low, high = min(steps), max(steps), min(values), max(values)
    log = low > 0 and high >= 10 * low
    bottom, top = (math.log10(low), math.log10(high)) if log else (low, high)
    bottom, top = (bottom, top) if top > bottom else (bottom - 0.5, bottom + 0.5)

    def x(step: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (step - first) / ((last - first) or 1.0)

    def y(value: float) -> float:
        at = math.log10(value) if log else value
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (at - bottom) / (top - bottom)

    grid = list[Markup]()
    for v in _marks(bottom, top, log):
        grid.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y(v), y2=y(v), class_="grid"))
        grid.append(tag("text", f"{v:g}", x=LEFT - 8, y=y(v) + 4, text_anchor="end"))
    for v in _marks(first, last, False):
        grid.append(tag("text", f"{v:g}", x=x(v), y=HEIGHT - BOTTOM + 18, text_anchor="middle"))
    grid.append(tag("text", "step", x=WIDTH - RIGHT, y=HEIGHT - 6, text_anchor="end"))
    curves, names = list[Markup](), list[Markup]()
    for i, (line, hue) in enumerate(zip(shown, HUES, strict=False)):
        each = _path([(x(s), y(v)) for s, v in _thinned(line, POINTS)])
        mean = _path([(x(s), y(v)) for s, v in _means(line, MEAN)])
        curves.append(tag("path", d=each, stroke=hue, class_="each"))
        curves.append(tag("path", d=mean, stroke=hue, class_="mean"))
        said = f"{line.name}: {line.values[0]:.4g} to {line.values[-1]:.4g}"
        names.append(tag("text", said, x=LEFT + 220 * i, y=18, style=f"fill:{hue}"))
    return tag(
        "svg",
        tag("style", Markup(STYLE)),
        tag("g", *grid),
        *curves,
        *names,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH:.0f} {HEIGHT:.0f}",
        role="img",
        aria_label=f"Losses of {title}, {len(shown[0].steps)} steps",
    )


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _thinned(line: Line, most: int) -> Iterator[tuple[float, float]]:
    """The points of a line; of many the least and the greatest of every stretch, in order."""
    count = len(line.steps)
    each = max(1, -(-2 * count // most)) if count > most else 1
    for start in range(0, count, each):
        part = range(start, min(start + each, count))
        ends = {min(part, key=line.values.__getitem__), max(part, key=line.values.__getitem__)}
        for i in sorted(ends):
            yield line.steps[i], line.values[i]


def _means(line: Line, most: int) -> Iterator[tuple[float, float]]:
    """The mean of every stretch at the middle of it; the ends at the first and the last step."""
    count = len(line.steps)
    each = max(1, -(-count // most))
    parts = [range(s, min(s + each, count)) for s in range(0, count, each)]
    for k, part in enumerate(parts):
        place = part[0] if k == 0 else part[-1] if k == len(parts) - 1 else part[len(part) // 2]
        yield line.steps[place], sum(line.values[i] for i in part) / len(part)


def _marks(low: float, high: float, log: bool) -> list[float]:
    """Round numbers between two, or their logarithms."""
    if log:
        tens = range(math.floor(low), math.ceil(high) + 1)
        digits = (1, 2, 5) if high - low < 3 else (1,)
        return [d * 10.0**n for n in tens for d in digits if low <= math.log10(d * 10.0**n) <= high]
    size = 10.0 ** math.floor(math.log10((high - low) or 1.0))
    each = next(s * size for s in (0.1, 0.2, 0.5, 1.0, 2.0) if (high - low) / (s * size) <= 8)
    return [each * n for n in range(math.ceil(low / each), math.floor(high / each) + 1)]
