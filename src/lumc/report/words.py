"""Terms and schedules in words: what a kernel computes, how it runs, how two schedules differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from lumc.graph.expr import Expr, bound_axes, subterms, text
from lumc.kernel.term import INDEX_KINDS, REDUCTIONS, Kernel
from lumc.schedule.choices import choices_on
from lumc.schedule.schedule import Schedule

LONG = 72  # characters of a value that gets a line of its own
WIDEST = 200  # characters of an index, which may hold the term of a gather
ATOM, PRODUCT, SUM, COMPARE = 4, 3, 2, 1  # how tightly a text binds
SIGNS = {"lt": "<", "eq": "=", "or": "or"}

# ---- terms


def equations(kernel: Kernel) -> list[str]:
    """The stores of a kernel, infix, one per line; shared and long values get lines before them."""
    said = _Said()
    for root in kernel.roots:
        value = said.add(root.value)
        index = ", ".join(text(i, WIDEST) for i in root.index)
        said.lines.append(f"{root.buffer}[{index}] = {value}")
    return said.lines


class _Said:
    """The texts of the terms so far; kids first, so nothing recurses."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.texts: dict[Expr, tuple[str, int]] = {}
        self.named = 0

    def add(self, root: Expr) -> str:
        users = Counter(k for e in subterms(root) for k in dict.fromkeys(e.kids))
        for e in subterms(root):
            if e in self.texts:
                continue
            said, level = _index(e) if e.kind in INDEX_KINDS else self._value(e)
            shared = users[e] > 1 and len(said) > (40 if e.kind == "load" else 12)
            inner = e is not root and e.kind not in INDEX_KINDS
            if inner and (shared or e.kind in REDUCTIONS or len(said) > LONG):
                self.named += 1
                name = f"t{self.named}"
                self.lines.append(f"{name} = {said}")
                said, level = name, ATOM
            self.texts[e] = said, level
        return self.texts[root][0]

    def _at(self, e: Expr, least: int) -> str:
        said, level = self.texts[e]
        return said if level >= least else f"({said})"

    def _value(self, e: Expr) -> tuple[str, int]:
        match e.kind:
            case "load":
                return f"{e.attr[0]}[{', '.join(self._at(k, 0) for k in e.kids)}]", ATOM
            case "const":
                number = e.attr[1]
                return f"{number:g}" if isinstance(number, float) else str(number), ATOM
            case "iota":
                return self._at(e.kids[0], ATOM), ATOM
            case "guard":
                lo, hi = e.attr
                index, value = (self._at(k, COMPARE) for k in e.kids)
                return f"{value} where {lo} <= {index} < {hi}", 0
            case "where":
                c, a, b = (self._at(k, COMPARE) for k in e.kids)
                return f"{a} where {c}, else {b}", 0
            case "cast":
                return f"{e.attr[0]}({self._at(e.kids[0], 0)})", ATOM
            case "un" if e.attr[0] == "recip":
                return f"1 / {self._at(e.kids[0], ATOM)}", PRODUCT
            case "bin":
                return self._binary(e)
            case "red":
                return f"{e.attr[0]} over {' '.join(e.attr[1])} of {self._at(e.kids[0], 0)}", 0
            case "wsum":
                s, v = (self._at(k, SUM) for k in e.kids)
                weights = f"exp2({s} - its max)"
                said = weights if v == "1" else f"{weights} * {self._at(e.kids[1], PRODUCT)}"
                return f"sum over {e.attr[0]} of {said}, in one pass", 0
        return f"{e.attr[0]}({', '.join(self._at(k, 0) for k in e.kids)})", ATOM

    def _binary(self, e: Expr) -> tuple[str, int]:
        a, b = e.kids
        match e.attr[0]:
            case "add":
                negative = _negated(b)
                if negative is not None:
                    return f"{self._at(a, SUM)} - {self._at(negative, PRODUCT)}", SUM
                return f"{self._at(a, SUM)} + {self._at(b, SUM)}", SUM
            case "mul":
                for x, y in ((a, b), (b, a)):
                    if y.kind == "un" and y.attr[0] == "recip" and x.attr != ("recip",):
                        return f"{self._at(x, PRODUCT)} / {self._at(y.kids[0], ATOM)}", PRODUCT
                return f"{self._at(a, PRODUCT)} * {self._at(b, PRODUCT)}", PRODUCT
            case "sel":
                return f"{self._at(b, COMPARE)} where {self._at(a, COMPARE)}", 0
            case op if op in SIGNS:
                return f"{self._at(a, SUM)} {SIGNS[op]} {self._at(b, SUM)}", COMPARE
        return f"{e.attr[0]}({self._at(a, 0)}, {self._at(b, 0)})", ATOM


def _index(e: Expr) -> tuple[str, int]:
    plain = e.kind in ("axis", "dim", "num", "dyn")
    return text(e, WIDEST), ATOM if plain else PRODUCT


def _negated(e: Expr) -> Expr | None:
    """``x`` of ``-1 * x``."""
    if e.kind == "bin" and e.attr[0] == "mul":
        for one, other in (e.kids, e.kids[::-1]):
            if one.kind == "const" and one.attr[1] == -1:
                return other
    return None


# ---- schedules


def schedule_words(kernel: Kernel, schedule: Schedule, threads: int) -> list[str]:
    """Line by line: the loops, the tiles, how every reduction is computed, what is unusual."""
    out = [_loops(kernel, schedule, threads)]
    if schedule.tile:
        tiles = ", ".join(f"{a} by {n}" for a, n in schedule.tile.items())
        out.append(f"{'tiles of a block' if schedule.threads else 'cache tiles'}: {tiles}")
    rows = choices_on(schedule.threads is not None)
    for reduction, stage in zip(kernel.stages, schedule.stages, strict=False):
        axes = ", ".join(f"{a}:{kernel.extent[a]}" for a in bound_axes(reduction))
        what = reduction.attr[0] if reduction.kind == "red" else "weighted sum"
        words = [row.words(stage) for row in rows if row.of == "reduction"]
        out.append(f"{what} over {axes}: " + "; ".join(filter(None, words)))
    block = [row.words(schedule.threads) for row in rows if row.of in ("block", "threads")]
    other = [row.words(schedule) for row in rows if row.of in ("nest", "kernel")]
    return [*out, *(", ".join(filter(None, words)) for words in (block, other) if any(words))]


def _loops(kernel: Kernel, schedule: Schedule, threads: int) -> str:
    if not schedule.order:
        return "no loop outside of the reductions"
    loops = ", ".join(f"{a}:{kernel.extent[a]}" for a in schedule.order)
    dealt = ", ".join(schedule.order[: schedule.parallel])
    if not dealt:
        return f"loops {loops}, all in one part"
    over = f"{threads} threads" if threads > 1 else "the threads"
    over = "blocks of threads" if schedule.threads else over
    return f"loops {loops}, outer ones first; {dealt} dealt to {over}"


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return " ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def difference(chosen: Schedule, other: Schedule) -> list[str]:
    """What another schedule does differently: ``tile j none -> 64``."""
    a, b = _flat(asdict(chosen)), _flat(asdict(other))
    out = []
    for name in dict.fromkeys((*a, *b)):
        old, new = a.get(name, "none"), b.get(name, "none")
        if old != new:
            out.append(f"{name} {old} -> {new}")
    return out


def _flat(data: Mapping[str, Any]) -> dict[str, str]:
    """Tiles by axis, fields of stages by the number of the stage."""
    out = {k: v for k, v in data.items() if k not in ("tile", "stages")}
    out |= {f"tile {a}": n for a, n in data["tile"].items()}
    many = len(data["stages"]) > 1
    for i, stage in enumerate(data["stages"]):
        out |= {f"stage {i} {k}" if many else k: v for k, v in stage.items()}
    return {k: _plain(v) for k, v in out.items()}


def us(value: float) -> str:
    """Microseconds with the unit that reads best."""
    return f"{value / 1e3:.4g} ms" if value >= 1e3 else f"{value:.4g} us"
