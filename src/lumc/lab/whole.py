"""Whole runs of linked plans: kernels that are fastest alone may be slower together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from lumc.codegen.generate import generate
from lumc.disk.scratch import scratch
from lumc.link.link import TargetCode, Tools, link
from lumc.runtime.choose import open_bundle
from lumc.runtime.opened import Opened
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


def inputs_of(bundle: Opened, entry: str) -> Mapping[str, Any]:
    """Random numbers, of the greatest shapes; zeros where they may be positions."""
    rng = np.random.default_rng(0)
    out = {}
    for t in bundle.entry(entry).inputs:
        kind = t.dtype.numpy
        out[t.name] = (
            rng.random(t.shape).astype(kind) if t.dtype.is_float else np.zeros(t.shape, kind)
        )
    return out


def race(
    plans: Sequence[Plan], tools: Tools, seconds: float, over: Callable[[], bool]
) -> list[list[float]]:
    """The least microseconds of a run of all entries of each plan, turn by turn; as many of the
    plans as could be linked before it is ``over``. ``seconds`` is what one turn of one takes."""
    with ExitStack() as stack:
        bundles = list[Opened]()
        for plan in plans:
            if len(bundles) > 1 and over():
                break
            bundles.append(stack.enter_context(linked(plan, tools)))
        threads, entries = plans[0].target.threads, bundles[0].entries
        given = {e: inputs_of(bundles[0], e) for e in entries}
        turns: list[list[float]] = [[] for _ in bundles]
        for _ in range(ROUNDS):
            for bundle, out in zip(bundles, turns, strict=True):
                share = seconds / len(entries)
                most = {d.name: d.values[-1] for d in bundle.dims.values()}
                runs = (bundle.bench(given[e], e, threads, share, dims=most) for e in entries)
                out.append(sum(map(min, runs)))
    return turns
