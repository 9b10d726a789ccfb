"""Gradients of the pass, and what they are compared with: torch, and finite differences of the
oracle, which need no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from lumc.errors import LumcError
from lumc.frontend import Model, Tensor
from lumc.grad import with_gradients
from lumc.graph.graph import Graph, Node
from lumc.graph.ops import DType
from lumc.graph.text import parse_graph, print_graph
from lumc.graph.verify import verify_graph
from lumc.oracle.graph import evaluate
from random_graphs import Profile, leaf_values, random_graph

Array = np.ndarray[Any, Any]
Gradients = Callable[..., list[Tensor]]
EXACT = 1e-12  # of the greatest element
STEP = 1e-6


class Case(NamedTuple):
    """A function of tensors, the same one of torch's, and the shapes of its arguments. ``ints`` are
    arrays of places, behind these; values are drawn from ``span``; ``work`` is how many times as
    many points as the function its gradient may have."""

    ours: Callable[..., Tensor]
    theirs: Callable[..., Any]
    shapes: Sequence[tuple[int, ...]]
    ints: Sequence[Array] = ()
    span: tuple[float, float] = (-2.0, 2.0)
    work: float | None = None


@dataclass
class Written:
    """A case as a model: ``loss`` is the sum of its result times an input ``dy``."""

    model: Model
    xs: list[Tensor]
    y: Tensor
    loss: Tensor
    feed: dict[str, Array]
    ahead: dict[str, Array] = field(default_factory=dict)  # a direction, for every x


def written(case: Case, seed: int = 0, dtype: str = "f64") -> Written:
    rng, m = np.random.default_rng(seed), Model()
    xs = [m.input(f"x{i}", s, dtype) for i, s in enumerate(case.shapes)]
    ids = [m.input(f"id{i}", a.shape, "i64") for i, a in enumerate(case.ints)]
    y = case.ours(*xs, *ids)
    dy = m.input("dy", y.shape, dtype)
    feed = {f"x{i}": rng.uniform(*case.span, s) for i, s in enumerate(case.shapes)}
    feed |= {f"id{i}": a for i, a in enumerate(case.ints)}
    feed |= {"dy": rng.standard_normal(tuple(map(int, y.shape)))}
    ahead = {x: rng.standard_normal(np.shape(feed[x])) for x in feed if x.startswith("x")}
    return Written(m, xs, y, (y * dy).sum(), feed, ahead)


def run(model: Model, results: Mapping[str, Tensor], feed: Mapping[str, Array]) -> dict[str, Array]:
    """Tensors of a model in f64, as the oracle computes them."""
    for name, t in results.items():
        model.output(name, t)
    graph = model.graph()
    verify_graph(graph)
    given = {i.name: feed[i.name] for i in graph.entries[0].inputs}
    return evaluate(graph, "main", given, model.read_weight)[0]


def first_order(
    case: Case, gradients: Gradients, seed: int = 0
) -> tuple[Written, dict[str, Array]]:
    """The loss ``y`` and ``g0``, ``g1``, .., what the pass gives for its arguments."""
    w = written(case, seed)
    slopes = gradients(w.loss, w.xs)
    return w, run(w.model, {f"g{i}": g for i, g in enumerate(slopes)} | {"y": w.loss}, w.feed)


def along(case: Case, gradients: Gradients, seed: int = 0) -> tuple[float, float]:
    """The derivative in a direction: by the pass, and by finite differences."""
    w, found = first_order(case, gradients, seed)
    slope = sum(float((found[f"g{i}"] * w.ahead[f"x{i}"]).sum()) for i in range(len(w.xs)))
    ends = [w.feed | {x: w.feed[x] + h * d for x, d in w.ahead.items()} for h in (STEP, -STEP)]
    high, low = (
        float(run(v.model, {"y": v.loss}, feed)["y"])
        for v, feed in ((written(case, seed), feed) for feed in ends)
    )
    return slope, (high - low) / (2 * STEP)


def second_order(case: Case, gradients: Gradients, seed: int = 0) -> tuple[Written, list[Array]]:
    """The Hessian in a direction; zeros where the gradient does not depend on an argument."""
    w = written(case, seed)
    slopes = gradients(w.loss, w.xs)
    turned = [
        (g * w.model.input(f"v{i}", x.shape, "f64")).sum()
        for i, (g, x) in enumerate(zip(slopes, w.xs, strict=True))
    ]
    total = turned[0]
    for t in turned[1:]:
        total = total + t
    feed = w.feed | {f"v{x[1:]}": d for x, d in w.ahead.items()}
    out = list[Array]()
    curves = dict[str, Tensor]()
    for i, x in enumerate(w.xs):
        try:
            (curves[f"h{i}"],) = gradients(total, [x])
        except LumcError as e:
            assert e.code == "E0132"
    found = run(w.model, curves, feed) if curves else {}
    for i, x in enumerate(w.xs):
        out.append(found.get(f"h{i}", np.zeros(tuple(map(int, x.shape)))))
    return w, out


def points(graph: Graph) -> int:
    return sum(n.points for e in graph.entries for n in e.nodes)


def work(case: Case, gradients: Gradients) -> float:
    """The points of the gradient beside those of the function."""
    w = written(case)
    w.model.output("y", w.loss)
    forward = points(w.model.graph())
    w = written(case)
    for i, g in enumerate(gradients(w.loss, w.xs)):
        w.model.output(f"g{i}", g)
    w.model.output("y", w.loss)
    return (points(w.model.graph()) - forward) / max(forward, 1)


def error(found: Array, wanted: Array) -> float:
    """The greatest difference beside the greatest element."""
    assert found.shape == wanted.shape
    return float(np.abs(found - wanted).max(initial=0.0) / (1 + np.abs(wanted).max(initial=0.0)))


# ---- graphs at random


@dataclass(frozen=True)
class Drawn:
    """A random graph with a loss: the sum of its results times inputs. ``values`` are those of its
    leaves, by name; they lie where nothing has a kink or a step, but for copies of one value."""

    graph: Graph
    values: dict[str, Array]

    @property
    def nodes(self) -> list[Node]:
        """What is computed."""
        return [n for n in self.graph.entries[0].nodes if n.op != "update"]

    @property
    def leaves(self) -> list[Node]:
        return [*self.graph.entries[0].inputs, *self.graph.weights, *self.graph.states]

    def evaluated(self, graph: Graph, values: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs of the first entry of a graph with the same leaves."""
        entry = graph.entries[0]
        inputs = {n.name: values[n.name] for n in entry.inputs}
        states = {n.name: values[n.name] for n in graph.states}
        return evaluate(graph, entry.name, inputs, lambda n: values[n.name], states)[0]


def drawn(seed: int) -> Drawn | None:
    """The graph of a seed, if it has a float that depends on one."""
    graph = random_graph(seed, Profile(dtypes=(DType.F64,)))
    entry = graph.entries[0]
    ends = [n for n in dict.fromkeys(n for _, n in entry.outputs) if n.dtype.is_float]
    text, rest = "", ""
    for i, n in enumerate(ends):
        axes, own = ", ".join(n.axes), ", ".join(f"{a}:{e}" for a, e in n.loops[: len(n.axes)])
        text += f"input dy_{i} f64[{', '.join(map(str, n.shape))}]\n"
        rest += f"q{i}. f64[{own}] = contiguous {n.name}[{axes}]\n"
        rest += f"p{i}. f64[{own}] = mul q{i}.[{axes}], dy_{i}[{axes}]\n"
        left, last = list(zip(n.axes, n.shape, strict=True)), f"p{i}."
        while left:
            a, e = left.pop()
            over = ", ".join(f"{a}:{e}" for a, e in left)
            inner = ", ".join(b for b, _ in (*left, (a, e)))
            rest += f"{last}s f64[{over}] = sum {a}:{e} of {last}[{inner}]\n"
            last += "s"
        rest += f"l{i}. f64[] = " + (
            f"add l{i - 1}.[], {last}[]\n" if i else f"contiguous {last}[]\n"
        )
    if not ends:
        return None
    alone = replace(graph, entries=(replace(entry, name="main", updates=()),))
    head, _, body = print_graph(alone).partition("\n\n")
    graph = parse_graph(f"{head}\n{text}\n{body}{rest}output loss = l{len(ends) - 1}.\n")
    rng = np.random.default_rng(seed)
    values = {
        n.name: leaf_values(n, seed)
        for n in (*graph.entries[0].inputs, *graph.weights, *graph.states)
    }
    for n in leaves(graph):
        values[n.name] = values[n.name] + rng.uniform(1e-3, 2e-2, n.sizes)
    return Drawn(graph, values)


def leaves(graph: Graph) -> list[Node]:
    """The floats that a graph is given, in its first entry."""
    every = (*graph.entries[0].inputs, *graph.weights, *graph.states)
    return [n for n in every if n.dtype.is_float]


def is_same(seed: int, by_others: Callable[[Drawn], Mapping[str, Array]]) -> bool:
    """Whether there is a graph of this seed; then it has the gradients by all floats that others
    find."""
    d = drawn(seed)
    if d is None:
        return False
    made = with_gradients(d.graph, "main", "loss", ["*"])
    verify_graph(made.graph)
    found = d.evaluated(made.graph, d.values)
    assert {*made.wrt, *made.unused} == {n.name for n in leaves(d.graph)}
    for name, wanted in by_others(d).items():
        known = np.isfinite(wanted)
        got = np.zeros(wanted.shape) if name in made.unused else found[f"{name}.grad"]
        off = error(np.where(known, got, 0.0), np.where(known, wanted, 0.0))
        assert off < EXACT, f"seed {seed}, '{name}': {off}"
    return True
