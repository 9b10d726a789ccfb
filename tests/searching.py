"""Run the results of the search pass with the numpy meaning of kernels, without any codegen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lumc.frontend.api.model import Model
from lumc.frontend.api.tensor import Tensor
from lumc.graph.graph import Graph, Node, WeightFile
from lumc.kernel.instance import elements_of, whole_of
from lumc.kernel.machines import resolve_target
from lumc.kernel.term import Kernel
from lumc.oracle.graph import evaluate
from lumc.oracle.term import evaluate_kernel
from lumc.schedule.plan import Plan

Array = np.ndarray[Any, Any]
TARGET = resolve_target("cpu:x86-64-v3")
NO_SIZES: Mapping[str, int] = {}
FILE = WeightFile("weights.safetensors", 8, "0" * 64)


def weight(g: Model, name: str, *shape: int) -> Tensor:
    """A weight of which ``random_weight`` gives the values."""
    return g.weight(name, shape, "f32", FILE)


def random_values(node: Node, seed: int = 0) -> Array:
    """Distinct random values for a leaf; ints are small and not negative."""
    rng = np.random.default_rng([seed, *node.name.encode()])
    shape = node.sizes
    if node.dtype.is_float:
        return rng.uniform(-2, 2, shape).astype(node.dtype.numpy)
    if node.dtype.is_int:
        return rng.integers(0, 5, shape).astype(node.dtype.numpy)
    return rng.integers(0, 2, shape).astype(bool)


def random_inputs(graph: Graph, entry: str, seed: int = 0) -> dict[str, Array]:
    return {n.name: random_values(n, seed) for n in graph.entry(entry).inputs}


def run_kernels(
    kernels: Sequence[Kernel],
    args: Sequence[Sequence[str]],
    values: dict[str, Array],
    sizes: Mapping[str, int] = NO_SIZES,
) -> None:
    """Run launches on named values; adds what they write, in parts to values of these sizes."""
    for kernel, names in zip(kernels, args, strict=True):
        given = {
            b.name: part(values, name).reshape(b.shape)  # kernels see merged dims
            for b, name in zip(kernel.buffers, names, strict=True)
            if whole_of(name) in values
        }
        written = evaluate_kernel(kernel, given)
        for b, name in zip(kernel.buffers, names, strict=True):
            if b.name not in written:
                continue
            new, whole = written[b.name], whole_of(name)
            if elements_of(name):
                values.setdefault(whole, np.full(sizes[whole], 7, np.asarray(new).dtype))
                part(values, name)[...] = np.reshape(new, -1)
            else:
                values[name] = new


def part(values: Mapping[str, Array], name: str) -> Array:
    """A value, or the elements of one, in its memory."""
    whole, of = np.asarray(values[whole_of(name)]), elements_of(name)
    return whole.reshape(-1)[of.start : of.stop] if of else whole


def run_plan(plan: Plan, entry: str, inputs: dict[str, Array]) -> dict[str, Array]:
    """All values of an entry after the plan, states and weights included."""
    graph = plan.graph
    values = dict(inputs)
    for leaf in (*graph.weights, *graph.states):
        values.setdefault(leaf.name, random_values(leaf))
    for node in graph.entry(entry).nodes:
        if 0 in node.shape:  # nothing writes it
            values[node.name] = np.zeros(random_values(node).shape)
    for i, instance in enumerate(plan.instances):
        if instance.entry != entry:
            continue
        region = plan.regions[instance.region]
        names = instance.names | {b.name: f"{i}.{b.name}" for b in region.local}
        kernels = [plan.kernels[s.kernel].kernel for s in region.steps]
        sizes = {n.name: n.size for n in graph.entry(entry).nodes}
        run_kernels(kernels, [[names[a] for a in s.args] for s in region.steps], values, sizes)
    return as_the_graph_sees(graph, entry, values)


def as_the_graph_sees(graph: Graph, entry: str, values: dict[str, Array]) -> dict[str, Array]:
    """Values of which kernels have merged dims, in their own shapes."""
    shapes = {n.name: n.sizes for n in (*graph.entry(entry).nodes, *graph.states)}
    return {name: np.reshape(v, shapes.get(name, np.shape(v))) for name, v in values.items()}


def oracle(graph: Graph, entry: str, inputs: dict[str, Array]) -> tuple[Any, Any]:
    states = {s.name: random_values(s) for s in graph.states}
    return evaluate(graph, entry, inputs, random_values, states)


def error(got: Array, want: Array) -> float:
    """The largest difference relative to the largest value; inf where NaN or inf differ."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape
    if not np.array_equal(np.isnan(got), np.isnan(want)):
        return np.inf
    same = np.isnan(got) | (got == want)
    if not np.isfinite(np.where(same, 0, got)).all():
        return np.inf
    worst = np.abs(np.where(same, 0, got - np.where(same, 0, want))).max(initial=0.0)
    top = np.abs(np.where(np.isfinite(want), want, 0)).max(initial=0.0)
    return float(worst / max(top, 1e-30))
