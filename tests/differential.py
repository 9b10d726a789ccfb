"""Graphs computed in several ways: by the oracle, as the chosen plan means it, as its code does."""

from __future__ import annotations

import ctypes
import os
import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

import gpu_launching
import launching
from drawing import random_schedule
from kernels import PLAIN, native
from lumc.codegen.code import Code
from lumc.codegen.generate import generate
from lumc.graph.graph import Graph, Node, Operand, Read
from lumc.graph.ops import DType, Op, from_bf16
from lumc.graph.text import parse_graph, print_graph
from lumc.graph.verify import verify_graph
from lumc.kernel.target import Target
from lumc.link.toolchain import KERNEL_FLAGS
from lumc.oracle import graph as oracle
from lumc.profile.choose import estimate
from lumc.schedule.operands import computed
from lumc.schedule.plan import Plan
from lumc.search import search
from lumc.search.saturate import Limits
from random_graphs import leaf_values
from searching import as_the_graph_sees, run_kernels

Array = np.ndarray[Any, Any]
Leaf = Callable[[Node], Array]
EPSILON = {DType.F32: 2.0**-24, DType.F64: 2.0**-53, DType.F16: 2.0**-11, DType.BF16: 2.0**-8}
RUNS = 3  # with noise
SLACK = 8  # how much larger than the noise an error may be
LIMITS = Limits(nodes=1500, iterations=10, seconds=100.0)  # time never ends it: deterministic
PARTS = (1, 2)
# deep tests compile as users do, and those of bundles; what C leaves open is for sanitizers
FLAGS = KERNEL_FLAGS if os.environ.get("LUMC_FUZZ") else PLAIN


class Noisy(oracle.Run):
    """The oracle in f64 where what is read is off by the rounding of its dtype, so that it ends
    about as far from the truth as an honest program. Integers are exact, and leaves but in sums,
    which round on the way."""

    rng: np.random.Generator
    steps = 0  # of the sum that reads: what it has so far grows as a random walk

    def reduced(self, node: Node) -> Array:
        below: Node | None = node
        while below and below.op is Op.SUM:
            self.steps = max(self.steps, 1) * int(str(below.reduced[1] if below.reduced else 1))
            (read,) = below.operands
            below = read.source if isinstance(read, Read) and read.source in self.lazy else None
        out = super().reduced(node)
        self.steps = 0
        return out

    def loaded(self, o: Operand, spans: Sequence[oracle.Span]) -> Array:
        value = super().loaded(o, spans)
        finite = value[np.isfinite(value)] if o.dtype.is_float else np.empty(0)
        if np.array_equal(finite, np.rint(finite)):
            return value
        leaf = isinstance(o, Read) and o.source.is_leaf
        size = max(0 if leaf else EPSILON[o.dtype], EPSILON[computed(o.dtype)] * self.steps**0.5)
        return value * (1 + self.rng.choice((-size, size), value.shape))


def evaluate(
    graph: Graph,
    entry: str,
    leaf: Leaf,
    noise: np.random.Generator | None = None,
    declared: bool = False,
) -> dict[str, Array]:
    """Outputs and updated states of an entry: in f64, perhaps with noise, or as declared."""
    run = (Noisy if noise else oracle.Run)(graph.entry(entry), graph.states, declared)
    if isinstance(run, Noisy):
        run.rng = noise
    run.give("input", run.entry.inputs, {n.name: leaf(n) for n in run.entry.inputs})
    run.give("state", graph.states, {s.name: leaf(s) for s in graph.states})
    with np.errstate(all="ignore"):
        outputs, states = run.outputs(leaf)
    written = {u.state.name for u in run.entry.writes}
    return outputs | {name: value for name, value in states.items() if name in written}


@dataclass(frozen=True)
class Wanted:
    """What a result has to be: near ``value`` where it is ``stable``."""

    value: Array
    stable: Array
    noise: float

    def error(self, got: Array, slack: float, floor: float) -> str:
        """What is wrong with a result, or nothing."""
        if got.shape != self.value.shape:
            return f"shape {got.shape}, not {self.value.shape}"
        same = (got == self.value) | (np.isnan(got) & np.isnan(self.value)) | ~self.stable
        both = np.isfinite(got) & np.isfinite(self.value)
        scale = np.abs(self.value[np.isfinite(self.value)]).max(initial=0.0)
        with np.errstate(all="ignore"):
            off = np.abs(got - self.value)
        wrong = ~same & ~(both & (off <= slack * self.noise + floor * scale))
        if not wrong.any():
            return ""
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        return (
            f"{wrong.sum()} of {wrong.size} wrong, first {got[at]!r} != {self.value[at]!r} "
            f"at {at}; noise {self.noise:.1e}, scale {scale:.1e}"
        )


def wanted(graph: Graph, entry: str, leaf: Leaf) -> dict[str, Wanted]:
    exact, declared = (evaluate(graph, entry, leaf, declared=d) for d in (False, True))
    noisy = [evaluate(graph, entry, leaf, np.random.default_rng(i)) for i in range(RUNS)]
    out = {}
    for name, value in exact.items():
        if value.dtype.kind != "f":
            out[name] = Wanted(value.astype(np.float64), value == declared[name], 0.0)
            continue
        stable, noise = np.ones(value.shape, bool), 0.0
        for other in (each[name] for each in noisy):
            finite = np.isfinite(value) & np.isfinite(other)
            stable &= finite | (value == other) | (np.isnan(value) & np.isnan(other))
            noise = max(noise, np.abs(value[finite] - other[finite]).max(initial=0.0))
        out[name] = Wanted(value, stable, noise)
    return out


@lru_cache(maxsize=32)  # several targets, mutants and schedules of one graph follow one another
def _wanted(text: str, entry: str, seed: int) -> dict[str, Wanted]:
    return wanted(parse_graph(text), entry, partial(leaf_values, seed=seed))


@dataclass
class Case:
    """A graph on its way through the passes. Values of leaves follow from the seed."""

    graph: Graph
    seed: int = 0
    want: dict[str, dict[str, Wanted]] = field(default_factory=dict)  # by entry
    plan: Plan | None = None
    target: Target = field(default_factory=native)

    @property
    def leaf(self) -> Leaf:
        return partial(leaf_values, seed=self.seed)

    def fail(self, what: str) -> None:
        text = print_graph(self.graph)
        raise AssertionError(f"{what}\nseed {self.seed}, graph:\n{text}")

    def evaluate(self) -> None:
        """The values that are right."""
        text = print_graph(self.graph)
        assert print_graph(parse_graph(text)) == text
        verify_graph(self.graph)
        for e in self.graph.entries:
            self.want[e.name] = _wanted(text, e.name, self.seed)

    def prepare(self, inside: bool = True) -> None:
        """The values, and the plan."""
        try:
            self.evaluate()
            space = search(self.graph, self.target, LIMITS if inside else None, inside)
            self.plan = estimate(space)
        except Exception as error:
            error.add_note(f"seed {self.seed}, graph:\n{print_graph(self.graph)}")
            raise

    def check(self, entry: str, got: Mapping[str, Array], slack: float, about: object) -> None:
        kinds = {n.name: n.dtype for n in self.graph.states}
        kinds |= {name: n.dtype for name, n in self.graph.entry(entry).outputs}
        for name, want in self.want[entry].items():
            value, kind = got[name], kinds[name]
            if kind is DType.BF16 and value.dtype == np.uint16:
                value = from_bf16(value)
            floor = 16 * EPSILON[kind] * min(slack, 1) if kind.is_float else 0.0
            error = want.error(np.asarray(value).astype(np.float64), slack, max(floor, 1e-13))
            if error:
                self.fail(f"{about}: '{name}' of entry '{entry}': {error}")

    def check_plan(self) -> None:
        """The kernels of the plan, as numpy means them, in f64."""
        assert self.plan is not None
        wide = any(n.dtype is DType.F64 for e in self.graph.entries for n in e.nodes)
        for e in self.graph.entries:
            values = run_plan(self.plan, e.name, self.leaf)
            got = {name: values[value] for name, value in self.plan.outputs[e.name]}
            got |= {u.state.name: values[u.state.name] for u in e.writes}
            self.check(e.name, got, SLACK if wide else SLACK * 1e-4, "the plan")


def run_plan(plan: Plan, entry: str, leaf: Leaf) -> dict[str, Array]:
    """Every value of an entry after the plan."""
    graph, values = plan.graph, dict[str, Array]()
    for node in (*graph.weights, *graph.states, *graph.entry(entry).inputs):
        values[node.name] = leaf(node)
    for node in graph.entry(entry).nodes:
        if 0 in node.shape:  # nothing writes it
            values[node.name] = np.zeros([int(str(n)) for n in node.shape])
    for i, instance in enumerate(plan.instances):
        if instance.entry != entry:
            continue
        region = plan.regions[instance.region]
        names = instance.names | {b.name: f"{i}.{b.name}" for b in region.local}
        kernels = [plan.kernels[s.kernel].kernel for s in region.steps]
        sizes = {n.name: n.size for n in graph.entry(entry).nodes}
        run_kernels(kernels, [[names[a] for a in s.args] for s in region.steps], values, sizes)
    return as_the_graph_sees(graph, entry, values)


def with_random_schedules(plan: Plan, seed: int) -> Plan:
    """The same kernels, each with a schedule drawn for it."""
    kernels = {
        key: replace(
            k, schedule=random_schedule(k.kernel, plan.target, random.Random(f"{seed} {i}"))
        )
        for i, (key, k) in enumerate(plan.kernels.items())
    }
    return replace(plan, kernels=kernels)


def check_compiled(folder: Path, cases: Sequence[Case], plans: Sequence[Plan]) -> list[Code]:
    """The code of plans in this process, in one part and in two."""
    codes = [generated(c, p) for c, p in zip(cases, plans, strict=True)]
    folder.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=folder))  # a loaded library is known by its path
    lib = ctypes.CDLL(str(launching.library(fresh, codes, FLAGS)))
    for i, (case, code) in enumerate(zip(cases, codes, strict=True)):
        for entry in case.graph.entries:
            for parts in PARTS:
                got = launching.run(lib, f"g{i}_", code, entry.name, case.leaf, parts)
                case.check(entry.name, got, SLACK, f"compiled, {parts} parts")
    return codes


def check_emulated(folder: Path, cases: Sequence[Case], checked: bool = False) -> list[Code]:
    """The code of the plans of cases for a GPU, on its emulator."""
    codes = [generated(c, c.plan) for c in cases if c.plan]
    kernels = gpu_launching.module(folder, codes, checked)
    for i, (case, code) in enumerate(zip(cases, codes, strict=True)):
        for entry in case.graph.entries:
            got = gpu_launching.run(kernels, f"g{i}_", code, entry.name, case.leaf)
            case.check(entry.name, got, SLACK, f"emulated {case.target.name}")
    return codes


def check_sanitized(folder: Path, cases: Sequence[Case]) -> None:
    """Random schedules without optimisation, under sanitizers, in a process of its own."""
    plans = [with_random_schedules(c.plan, c.seed) for c in cases if c.plan]
    codes = [generated(c, p) for c, p in zip(cases, plans, strict=True)]
    found = launching.run_checked(folder, codes, [c.leaf for c in cases])
    for case, entries in zip(cases, found, strict=True):
        for entry, got in entries.items():
            case.check(entry, got, SLACK, "random schedules")


def generated(case: Case, plan: Plan) -> Code:
    try:
        return generate(plan)
    except Exception as error:
        error.add_note(f"seed {case.seed}, graph:\n{print_graph(case.graph)}")
        raise
