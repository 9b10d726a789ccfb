"""Equality saturation of one region, step by step under limits.

egglog keeps the whole text of a parse call with every term made from it, and an iteration of it
cannot be interrupted: so every command is parsed alone, limits are checked between iterations,
and the caller runs this in a process that it can kill.
"""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from typing import Any

import numpy as np

from lumc.graph.expr import Expr, subterms
from lumc.graph.ops import DType
from lumc.kernel.term import INDEX_KINDS, dtype
from lumc.process import resident
from lumc.search.egraph import LITERALS, EGraph, freeze

RULES = Path(__file__).parent / "rules"
STEP = "(run-schedule (saturate (run analysis)) (run laws) (saturate (run analysis)))"


class StopReason(Enum):
    """Why saturation ended."""

    SATURATED = "saturated"
    ITERATIONS = "iterations"
    NODES = "nodes"
    MATCHES = "matches"
    TIME = "time"
    MEMORY = "memory"

    @property
    def is_accident(self) -> bool:
        """Whether another run may end in another way."""
        return self in (StopReason.TIME, StopReason.MEMORY)


@dataclass(frozen=True)
class Limits:
    """Of one region. The first three are counts, so that the same region ends the same way on every
    machine; time of the processor and memory that it takes are the last resort. ``variants`` is how
    many of them are kept."""

    iterations: int = 14
    nodes: int = 8000
    matches: int = 250_000
    seconds: float = 120.0
    megabytes: int = 2000
    variants: int = 12


@dataclass(frozen=True)
class Stats:
    """What saturation of a region did: nodes and classes at its end."""

    nodes: int = 0
    classes: int = 0
    iterations: int = 0
    stop: StopReason = StopReason.SATURATED
    fired: dict[str, int] = field(default_factory=dict)  # rule -> matches


def rule_files() -> dict[str, str]:
    """The rule files in the order of loading, by name."""
    first = ["sorts", "free"]
    names = first + sorted(p.stem for p in RULES.glob("*.egg") if p.stem not in first)
    return {name: (RULES / f"{name}.egg").read_text() for name in names}


@cache
def _engine() -> Any:
    """egglog's compiled module alone: its package also imports what formats Python text, which
    takes longer than most saturations."""
    name = "egglog.bindings"
    package = find_spec("egglog")
    found = package and PathFinder.find_spec(name, package.submodule_search_locations)
    if name in sys.modules or not found or not found.loader:
        return import_module(name)
    module = sys.modules[name] = module_from_spec(found)
    found.loader.exec_module(module)
    return module


Equations = Sequence[tuple[Expr, Expr]]


class Session:
    """An e-graph with the rules loaded: these texts, or all files."""

    def __init__(self, rules: Sequence[str] = ()) -> None:
        self.egg = _engine().EGraph()
        for text in rules or rule_files().values():
            self.run(text)

    def run(self, command: str) -> list[Any]:
        """What egglog answers to the commands of a text, which is kept as long as the e-graph."""
        return list(self.egg.run_program(*self.egg.parse_program(command)))

    def size(self) -> tuple[int, int]:
        """Nodes and classes of terms."""
        sizes = dict(self.run("(print-size)")[0].sizes)
        return sum(sizes[op] for op in LITERALS), sizes["free"]


@cache
def _idle() -> list[Session]:
    """Those that hold all rules and no term: to load them takes longer than most saturations."""
    return []


@contextmanager
def opened(rules: Sequence[str] = ()) -> Iterator[Session]:
    """An e-graph with these rules, or all files, and no term. One whose user failed is not used
    again."""
    session = Session(rules) if rules or not _idle() else _idle().pop()
    session.run("(push)")
    yield session
    session.run("(pop)")
    if not rules:
        _idle().append(session)


def saturate(
    value: Expr,
    extent: Mapping[str, int],
    limits: Limits,
    rules: Sequence[str] = (),
    live: Mapping[str, str] | None = None,
    equal: Equations = (),
) -> tuple[EGraph, Stats]:
    """All terms that the laws find equal to ``value``, as far as the limits allow. ``extent`` has
    its bound axes too; a reduction binds one. ``live`` are the lengths of live axes as text;
    ``equal`` are pairs of terms that are known to be equal."""
    spent, table = Spent(), list[Expr]()
    with opened(rules) as session:
        steps = list(commands(value, extent, table, live or {}, equal))
        for _, command in steps:
            session.run(command)
        root = steps[-1][0]
        fired = Counter[str]()
        stop, done = None, 0
        session.run("(run-schedule (saturate (run analysis)))")
        while stop is None and done < limits.iterations:
            report = session.run(STEP)[0].report
            done += 1
            matches = report.num_matches_per_rule.items()
            fired.update({rule: n for rule, n in matches if n and not rule.startswith("(")})
            stop = _exceeded(session, limits, spent, fired.total())
            stop = stop if report.updated else StopReason.SATURATED
        nodes, classes = session.size()
        fired_by_name = dict(sorted(fired.items()))
        stats = Stats(nodes, classes, done, stop or StopReason.ITERATIONS, fired_by_name)
        return freeze(session.egg, table, extent, root, live or {}), stats


def _exceeded(session: Session, limits: Limits, spent: Spent, matches: int) -> StopReason | None:
    if session.size()[0] > limits.nodes:
        return StopReason.NODES
    if matches > limits.matches:
        return StopReason.MATCHES
    if spent.seconds() > limits.seconds:
        return StopReason.TIME
    return StopReason.MEMORY if spent.nbytes() > limits.megabytes << 20 else None


class Spent:
    """What this process took since then: other work of the machine, and what the process that
    started it holds, are not counted."""

    def __init__(self) -> None:
        self.start_s, self.start_bytes = time.process_time(), resident()

    def seconds(self) -> float:
        """Seconds of the processor."""
        return time.process_time() - self.start_s

    def nbytes(self) -> int:
        """Bytes of memory that it holds more than at the start."""
        return resident() - self.start_bytes


# ---- terms as egglog text


def commands(
    value: Expr,
    extent: Mapping[str, int],
    table: list[Expr],
    live: Container[str] = (),
    equal: Equations = (),
) -> Iterator[tuple[str, str]]:
    """Commands that add a term, and terms that are equal, one each; ``table`` collects index
    expressions by number. Of axes that are ``live`` no law may take the extent for the length.

    Gives ``(name, command)``; the last name that starts with ``$e`` is the term's. Names end
    with a dot: egglog adds a number for every use, and $e19 with 10 is $e191 with 0.
    """
    names: dict[object, str] = {}
    for name in sorted(extent):
        names["axis", name] = f"$a{len(names)}."
        kind = "Live" if name in live else "Axis"
        yield names["axis", name], f'(let {names["axis", name]} ({kind} "{name}" {extent[name]}))'
    for e in subterms(*(e for pair in equal for e in pair), value):
        if e.kind in INDEX_KINDS:
            if e.kind in ("axis", "dyn"):
                inner = names["axis", e.attr[0]] if e.kind == "axis" else names[e.kids[0]]
                text = f"({'IAx' if e.kind == 'axis' else 'IDyn'} {inner})"
            else:
                free = " ".join(names["axis", a] for a in sorted(e.free))
                text = f"(IExp {len(table)} {f'(set-of {free})' if free else '(set-empty)'})"
                table.append(e)
            names[e] = f"$i{len(names)}."
        else:
            text = _term(e, names)
            names[e] = f"$e{len(names)}."
        yield names[e], f"(let {names[e]} {text})"
        if e.kind == "bin" and e.attr[0] == "lt" and dtype(e.kids[0]).is_int:
            for k in e.kids:
                yield names[e], f"(integer {names[k]})"
    for one, other in equal:
        yield names[value], f"(union {names[one]} {names[other]})"


def _term(e: Expr, names: dict[object, str]) -> str:
    kids = " ".join(names[k] for k in e.kids)
    match e.kind:
        case "load":
            index = "(INil)"
            for k in reversed(e.kids):
                index = f"(ICons {names[k]} {index})"
            return f'(Load "{e.attr[0]}" "{e.attr[1]}" {index})'
        case "const":
            return _constant(*e.attr)
        case "guard":
            return f"(Guard {names[e.kids[0]]} {e.attr[0]} {e.attr[1]} {names[e.kids[1]]})"
        case "red":
            assert len(e.attr[1]) == 1
            return f'(Red "{e.attr[0]}" {names["axis", e.attr[1][0]]} {kids})'
        case "wsum":
            return f"(WSum {names['axis', e.attr[0]]} {kids})"
    return f'({e.kind.capitalize()} "{e.attr[0]}" {kids})'  # iota, cast, un, bin


def _constant(name: str, value: float | int | bool) -> str:
    """Laws compute with floats that their dtype can hold; other constants are only compared."""
    if DType(name).is_float:
        wide = np.float64 if name == "f64" else np.float32
        with np.errstate(over="ignore"):
            rounded = float(wide(value))
        if math.isfinite(rounded) and (rounded or (value == 0 and math.copysign(1, value) > 0)):
            return f'(Const "{name}" {float(value)!r})'
    return f'(Lit "{name}" "{value!r}")'
