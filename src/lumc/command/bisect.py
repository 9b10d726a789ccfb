"""Which kernel of a bundle is the first whose result is not what it should be.

Every launch is looked at twice: against the term of its kernel on the very values that it read,
and, where it wrote values of the graph, against the oracle. So a wrong kernel is told from a plan
whose right kernels do not compute the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lumc.bundle import manifest
from lumc.bundle.packing import Array
from lumc.bundle.planfile import lists_of
from lumc.bundle.restore import weight_reader
from lumc.codegen.code import Code, Launch
from lumc.codegen.generate import generate, launched
from lumc.command import lengths
from lumc.errors import Exit, LumcError
from lumc.graph.bind import bind_dims
from lumc.graph.graph import Graph
from lumc.kernel.term import Kernel
from lumc.link.link import slug
from lumc.oracle.graph import evaluate
from lumc.oracle.kernel import differences, expected
from lumc.oracle.term import widen
from lumc.runtime.steps import Steps
from lumc.schedule.plan import Plan
from lumc.search.layout import OUT, last_of, to_end

Compare = Callable[[str, Array, Array], Any]  # a value, got and wanted, to a Comparison


@dataclass(frozen=True)
class Difference:
    """The first one: where, and how far its worst element is off."""

    kernel: str
    symbol: str
    launch: int  # its position, from 1
    launches: int
    value: str
    against: str  # kernel: what its term says of what it read; graph: what the oracle says
    wrong: int  # elements that differ from the term; 0: they are not counted
    elements: int
    worst_index: tuple[int, ...]
    got: float
    want: float
    dims: str = ""  # of the run, where a bundle has any: "s=17, p=3"


class Given(NamedTuple):
    """A run: a graph of fixed shapes, an entry of it, inputs, and states as they are at first."""

    graph: Graph
    entry: str
    inputs: Mapping[str, Array]
    states: Mapping[str, Array]


def first_difference(
    bundle: Path,
    file: str,
    run: Given,
    threads: int,
    compare: Compare,
    dims: Mapping[str, int],
) -> Difference | None:
    """``file`` is the bundle as the user named it: its plan is found beside it. The shapes of the
    run are those of these ``dims``. An entry that repeats is looked at the first time. Raises E0207
    where there is no plan, E0613 for kernels that do not run on a CPU."""
    plan, code = plan_of(file, bundle)
    graph, entry, arrays, states = run
    if counter := graph.entry(entry).repeat:
        dims = {**dims, counter: graph.dims[counter].values[0]}
        graph = bind_dims(graph, {counter: dims[counter]})
    mine = next(e for e, b in lists_of(code, entry) if b.holds(dims))
    weights = weight_reader(bundle)
    given = dict(arrays) | {w.name: weights(w) for w in graph.weights}
    given |= {name: np.array(value, np.int64) for name, value in dims.items()}
    given |= states
    kernels = bundle / "kernels" / slug(code) / "kernels.so"
    steps = Steps(kernels, code, mine, given, threads)
    want, after = evaluate(with_every_value(graph, entry), entry, arrays, weights, states)
    look = Look(plan, mine.name, compare, want | after, steps, given, dims)
    first = next(look.differences(), None)
    return replace(first, dims=lengths.said(dims)) if first else None


def plan_of(file: str, bundle: Path) -> tuple[Plan, Code]:
    from lumc.report.evidence import find_plan

    plan, _, _ = find_plan(file)
    code, said = generate(plan), manifest.read(bundle)
    known = {k["symbol"]: k["key"] for k in said["kernels"]}
    if plan.target.kind != "cpu" or known != {k.symbol: k.key for k in code.kernels}:
        what = f"{file} cannot be bisected: its first target is {said['targets'][0]['name']}"
        fix = "only kernels for a CPU, of the plan beside the bundle, run one by one"
        raise LumcError("E0613", what, fix=fix, exit=Exit.UNSUPPORTED)
    return plan, code


def with_every_value(graph: Graph, entry: str) -> Graph:
    """The graph with all nodes of an entry as its outputs."""
    e = graph.entry(entry)
    named = tuple((n.name, n) for n in e.nodes if not n.is_leaf)
    return replace(graph, entries=(replace(e, outputs=named),))


@dataclass
class Look:
    """What is looked at, launch by launch."""

    plan: Plan
    entry: str
    compare: Compare
    want: Mapping[str, Array]
    steps: Steps
    given: Mapping[str, Array]
    dims: Mapping[str, int]
    last: Mapping[str, int] = field(default_factory=dict)  # the last launch that writes a state

    def differences(self) -> Iterator[Difference]:
        every, before = self.planned(), dict[str, Array]()
        writers = {name: i for i, names in enumerate(every) for name in self.written(names)}
        self.last = {s.name: writers.get(s.name, -1) + 1 for s in self.plan.graph.states}
        for i, (launch, after) in enumerate(self.steps.run()):
            names = every[i // 2]
            if not after:
                before = {n: v.copy() for n in names.args if (v := self.value(n)) is not None}
            elif names is not launch:
                yield from self.checked(names, launch, before, i // 2 + 1)

    def planned(self) -> list[Launch]:
        """Every launch on values of the graph, as the plan has it; copies as they are."""
        planned = iter(launched(self.plan, self.plan.graph.entry(self.entry)))
        launches = self.steps.entry.launches
        return [one if one.kernel.startswith("copy_") else next(planned) for one in launches]

    def written(self, planned: Launch) -> list[str]:
        """The values that a launch writes; of a copy none."""
        if planned.kernel not in self.plan.kernels:
            return []
        kernel = self.plan.kernels[planned.kernel].kernel
        names = dict(zip((b.name for b in kernel.buffers), planned.args, strict=True))
        return [names[b] for b in kernel.stored]

    def value(self, name: str) -> Array | None:
        """A value as it is in memory now; a weight that is there only in packed form as given;
        nothing for what no kernel touches."""
        return self.steps.values.get(name, self.given.get(name))

    def checked(
        self, planned: Launch, launch: Launch, before: Mapping[str, Array], at: int
    ) -> Iterator[Difference]:
        """The launch that just ran."""
        kernel = self.plan.kernels[planned.kernel].kernel.bound(self.dims)
        where = kernel.name, launch.kernel, at, len(self.steps.entry.launches)
        names = dict(zip((b.name for b in kernel.buffers), planned.args, strict=True))
        yield from self.of_kernel(kernel, names, before, where)
        for buffer in kernel.stored:
            name = names[buffer]
            value = self.value(name)
            if name not in self.want or value is None or self.last.get(name, at) != at:
                continue  # of a state it is known what it is at the end
            got = self.there(name, value)
            row = self.compare(name, got, self.want[name])
            if not row.ok:
                worst = row.worst_index, row.got, row.want
                yield Difference(*where, name, "graph", 0, got.size, *worst)

    def there(self, name: str, value: Array) -> Array:
        """What the dims leave of a value in memory, in the shape of the oracle's."""
        shape, dim = np.shape(self.want[name]), self.turned.get(name)
        if dim is not None:  # of those with more than one element
            own = [n for n in value.shape if n != 1]
            memory = value.reshape(to_end(own, dim))
            value = np.moveaxis(memory, -1, dim).reshape(value.shape)
        return value[tuple(map(slice, shape))] if self.dims else value.reshape(shape)

    @cached_property
    def turned(self) -> Mapping[str, int]:
        """The values that lie in memory with another dim last, and this dim."""
        own = [i for i in self.plan.instances if i.entry == self.entry and len(i.outputs) == 1]
        known = ((i.outputs[0], last_of(i.region).get(OUT)) for i in own)
        return {name: dim for name, dim in known if dim is not None}

    def of_kernel(
        self,
        kernel: Kernel,
        names: Mapping[str, str],
        before: Mapping[str, Array],
        where: tuple[str, str, int, int],
    ) -> Iterator[Difference]:
        """Against its term, on what it read."""
        inputs = {
            b.name: before.get(names[b.name], np.zeros(b.shape, b.dtype.numpy)).reshape(b.shape)
            for b in kernel.buffers
        }
        right = expected(kernel, inputs, 0)
        for buffer, (points, want) in right.values.items():
            kind, value = kernel.buffer(buffer).dtype, self.value(names[buffer])
            if value is None:
                continue
            got = np.asarray(value.reshape(kernel.buffer(buffer).shape)[points])
            if not right.compare(buffer, got, want):
                continue
            numbers = widen(got, kind)
            wrong, _ = differences(numbers, want, kind)
            with np.errstate(all="ignore"):
                far = np.where(wrong, np.nan_to_num(np.abs(numbers * 1.0 - want), nan=np.inf), -1.0)
            worst = np.unravel_index(int(far.argmax()), far.shape)
            index = tuple(int(np.broadcast_to(p, far.shape)[worst]) for p in points)
            pair = float(numbers[worst]), float(want[worst])
            name, sizes = names[buffer], (int(wrong.sum()), wrong.size)
            yield Difference(*where, name, "kernel", *sizes, index, *pair)


def said(found: Difference | None) -> str:
    """It in words."""
    if found is None:
        return "bisect: every launch computes what it should"
    where = ", ".join(map(str, found.worst_index))
    why = {
        "kernel": "its code does not compute its term of what it read",
        "graph": "it computes its term: the plan is not the graph, or rounding adds up",
    }[found.against]
    many = f", {found.wrong} of {found.elements} elements" if found.wrong else ""
    at = f" at {found.dims}" if found.dims else ""
    return (
        f"bisect: launch {found.launch} of {found.launches} is the first that differs{at}: "
        f"{found.kernel} ({found.symbol})\n  value {found.value}, worst [{where}] got "
        f"{found.got:.9g} want {found.want:.9g}{many}\n  {why}"
    )
