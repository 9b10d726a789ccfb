"""Whole runs of linked plans: kernels that are fastest alone may be slower together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from operator import mul
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lumc.codegen.generate import generate
from lumc.disk.scratch import scratch
from lumc.link.link import TargetCode, Tools, link
from lumc.runtime.choose import open_bundle
from lumc.runtime.opened import Opened, shaped
from lumc.schedule.plan import Plan

ROUNDS = 8  # of all plans in turn


@contextmanager
def linked(plan: Plan, tools: Tools) -> Iterator[Opened]:
    """The open bundle of a plan. Raises LumcError when its weights are not here."""
    with scratch() as folder:
        path = folder / "plan.lb"
        link([TargetCode(generate(plan), "")], path, Path.cwd(), tools, single=False)
        with open_bundle(path, plan.target.kind) as bundle:
            yield bundle


class Run(NamedTuple):
    """An entry at the greatest dims of one of its buckets, and what it is given."""

    entry: str
    dims: Mapping[str, int]
    inputs: Mapping[str, Any]


def runs_of(plan: Plan, bundle: Opened) -> list[Run]:
    """A run of every entry, or of each of its buckets."""
    out = list[Run]()
    for e in plan.graph.entries:
        known = {**plan.graph.dims, **e.dims}
        dims = {name: d.values[-1] for name, d in known.items()}
        out.append(Run(e.title, dims, inputs_of(bundle, e.title, dims)))
    return out


def inputs_of(bundle: Opened, entry: str, dims: Mapping[str, int]) -> Mapping[str, Any]:
    """Random numbers, of the shapes for these dims; zeros where they may be positions."""
    rng = np.random.default_rng(0)
    out = {}
    for t in shaped(bundle.entry(entry).inputs, dims):
        kind = t.dtype.numpy
        out[t.name] = (
            rng.random(t.shape).astype(kind) if t.dtype.is_float else np.zeros(t.shape, kind)
        )
    return out


def race(
    plans: Sequence[Plan], tools: Tools, seconds: float, over: Callable[[], bool]
) -> list[list[float]]:
    """The least microseconds of a run of all entries of each plan, turn by turn; as many of the
    plans as could be linked before it is ``over``. ``seconds`` is what one turn of one takes. Of
    several entries, and of their buckets, each counts as if all took equally long."""
    with ExitStack() as stack:
        bundles = list[Opened]()
        for plan in plans:
            if len(bundles) > 1 and over():
                break
            bundles.append(stack.enter_context(linked(plan, tools)))
        threads, runs = plans[0].target.threads, runs_of(plans[0], bundles[0])
        turns: list[list[Sequence[float]]] = [[] for _ in bundles]
        for _ in range(ROUNDS):
            for bundle, out in zip(bundles, turns, strict=True):
                out.append([fastest(bundle, run, threads, seconds / len(runs)) for run in runs])
    weights = balanced(turns[0][0])
    return [[sum(map(mul, weights, us)) for us in each] for each in turns]


def fastest(bundle: Opened, run: Run, threads: int, seconds: float) -> float:
    """The least microseconds of a run."""
    return min(bundle.bench(run.inputs, run.entry, threads, seconds, dims=run.dims))


def balanced(us: Sequence[float]) -> list[float]:
    """Weights that make times equal and keep their sum; 1 of a single one."""
    return [sum(us) / len(us) / each if each else 1.0 for each in us]
