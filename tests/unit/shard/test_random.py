"""Any legal sharding computes what the graph computes, and mutants of the pass do not."""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial as partial_function
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from lumc.errors import LumcError
from lumc.frontend import Model, concat
from lumc.graph.graph import Graph
from lumc.graph.ops import DType
from lumc.graph.text import parse_graph
from lumc.oracle.graph import evaluate
from lumc.oracle.ranks import evaluate_mesh
from lumc.shard import choose, emit, held, ways
from lumc.shard.cost import Machine
from lumc.shard.mesh import collectives, shard
from sharded_models import decoding, llama, training
from sharding import check, check_random, sharded_at_random, wide

SEEDS = 200


def leaves(graph: Graph, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    every = [*graph.weights, *graph.states, *(n for e in graph.entries for n in e.inputs)]
    values = {}
    for n in every:
        drawn = rng.uniform(-1.0, 1.0, n.sizes)
        whole = rng.integers(*(n.values or (0, 3)), n.sizes, endpoint=True)
        values[n.name] = wide(n, drawn if n.dtype.is_float else whole.astype(n.dtype.numpy))
    return values


# ---- graphs that no random one has often enough


def slices() -> Graph:
    """Parts of tensors, of which some divide as the whole does."""
    g = Model()
    x = g.input("x", (8, 12))
    g.output("half", x[:4] * 2.0 + x[4:])
    g.output("columns", x[:, 6:] + x[:, :6])
    g.output("every", x[::2, ::3] * 3.0)
    g.output("back", x.flip(0) + x)
    g.output("windows", x[:, 1:11] + x[:, 0:10] + x[:, 2:12])
    g.output("halves", x.reshape(4, 2, 12).sum(1) + x.reshape(2, 4, 12).sum(0))
    return g.graph()


def places() -> Graph:
    """Diagonals, borders and numbers of places."""
    g = Model()
    x = g.input("x", (12, 12))
    at = g.arange(12)
    g.output("number", x * at.to("f32") + (at[:, None] < at[None, :]).to("f32"))
    g.output("padded", x.pad(((2, 2), (0, 4))) * 2.0)
    g.output("joined", concat([x, x * 2.0], 0).exp())
    g.output("turned", x.transpose(0, 1) + x)
    g.output("blocks", x.reshape(3, 4, 12).transpose(0, 1).reshape(12, 12) * 2.0)
    eye = (at[:, None] - at[None, :]).to("f32")
    g.output("trace", (x * eye).sum(0).sum(0))
    return g.graph()


def partial() -> Graph:
    """Sums and maxima over what is dealt, and what may follow before they are complete."""
    g = Model()
    x, w = g.input("x", (8, 12)), g.input("w", (12, 12))
    whole = g.input("n", (8, 12), "i32", values=(-9, 9))
    s = x @ w
    g.output("added", s + x @ (w * 2.0))
    g.output("scaled", s * x[:, :1] + 1.0)
    g.output("squared", s * s)
    g.output("mixed", s + x)
    g.output("cast", (s * 100.0).to("i32"))
    g.output("most", x.max(1) + x.max(0).sum(0))
    g.output("counted", whole.sum(1) * 3 + whole.max(1))
    g.output("any", (x > 0.5).max(1).to("f32") + s.sum(1))
    return g.graph()


def halves() -> Graph:
    g = Model()
    x, w = g.input("x", (8, 64), "f16"), g.input("w", (64, 8), "bf16")
    y = x @ w.to("f16")
    g.output("y", y + 1.0)
    g.output("z", (w.sum(1).to("f32") * 2.0) @ x.to("f32").transpose(0, 1) + y.sum(1).to("f32"))
    return g.graph()


def counted() -> Graph:
    """States that are read before and after updates, in blocks and whole."""
    g = Model()
    rows, sums = g.state("rows", (4, 8)), g.state("sums", (8,))
    x = g.input("x", (4, 8))
    g.output("before", rows.sum(0) + sums)
    new = g.update(rows, x * 2.0)
    g.output("after", (rows if new is None else new).max(1))
    g.update(sums, x[1] + sums * 0.5)
    return g.graph()


def diagonal() -> Graph:
    return parse_graph("""lumc graph 1
input x f32[8, 8]
c f32[i:8] = mul x[i, i], 2.0
d f32[i:8] = mul x[i, i], x[7 - i, i]
e f32[i:8, j:8] = add x[i, j], x[j, i]
f f32[i:4, j:8] = add x[i, j], x[i + 4, j]
s f32[i:8] = sum k:8 of x[i, k] if 0 <= k - i < 4
output c = c
output d = d
output e = e
output f = f
output s = s
""")


GRAPHS: dict[str, Callable[[], Graph]] = {
    f.__name__: f for f in (slices, places, partial, halves, counted, diagonal)
} | {
    "llama": lambda: llama(1, 8, 32, 4, 2),
    "training": lambda: training(12, (8, 24, 6)),
    "decoding": lambda: decoding(4, 6, 8),
}


def agrees(name: str, seeds: range) -> Counter[str]:
    total, graph = Counter[str](), GRAPHS[name]()
    for seed in seeds:
        total += check(graph, sharded_at_random(graph, seed), leaves(graph, seed))
    return total


@pytest.mark.parametrize("name", GRAPHS)
def test_ranks_compute_what_the_graph_computes(name: str) -> None:
    assert sum(agrees(name, range(25)).values())


def test_ranks_of_random_graphs_compute_what_these_compute() -> None:
    total = sum((check_random(seed) for seed in range(SEEDS)), Counter[str]())
    assert len(total) == 5 and min(total.values()) > 5


@pytest.mark.deep
@pytest.mark.timeout(1800)
def test_ranks_of_many_random_graphs() -> None:
    for seed in range(SEEDS, 10_000):
        check_random(seed)


def test_partial_sums_of_16_bits_travel_as_f32() -> None:
    """Stored in f16, each of the two parts would be rounded: 2048 + 1 is 2048 there."""
    g = Model()
    g.output("y", g.input("x", (1, 4), "f16").sum(1))
    slow = partial_function(Machine, stream=1.0, latency=0.0, price=0.0)
    ranks = shard(g.graph(), {"tp": 2}, slow, ["y"]).graph
    given = "main", {"x": np.array([[2048, 1, 1, 0]], "f2")}, lambda n: np.zeros(n.sizes)
    (want, _), (got, _) = (
        evaluate(g.graph(), *given, declared=True),
        evaluate_mesh(ranks, *given, declared=True),
    )
    (reduced,) = collectives(ranks)
    assert reduced.dtype is DType.F32 and reduced.reads[0].source.dtype is DType.F32
    assert got["y"].dtype == np.float16 and got["y"] == want["y"] == 2050


# ---- mutants


WAYS, HELD, EMIT, CHOOSE = ways, held, emit, choose
MUTANTS = [
    (WAYS, "or size != move * self.ranks", ""),
    (WAYS, "if need != WHOLE or not", "if not"),
    (WAYS, "if found is None or found[0]:", "if found is None:"),
    (WAYS, "if moved is None or moved[0]:", "if moved is None:"),
    (WAYS, "Way(name, Held(op=node.op), needs)", "Way(name, SUMS, needs)"),
    (WAYS, "SUMS if i == at else WHOLE for", "SUMS for"),
    (WAYS, "(SUMS, (SUMS, SUMS))", "(SUMS, (SUMS, WHOLE))"),
    (WAYS, "is not DType.BOOL and dtype not in HALVES", "is not DType.BOOL"),
    (WAYS, "and node.operands[0].dtype is node.dtype", ""),
    (WAYS, "and d not in (op.split, op.concat)", ""),
    (WAYS, "if op.op is not Op.MAX and is", "if is"),
    (WAYS, "if op.op is not Op.SUM:", "if True:"),
    (WAYS, "(same or node.op is Op.MAX)", "(same or node.op is Op.SUM)"),
    (WAYS, "(same or node.op is Op.SUM)", "(same or node.op is Op.MAX)"),
    (WAYS, "if found and found[0] != WHOLE:", "if found:"),
    (WAYS, "size % ranks == 0", "True"),
    (WAYS, 'return None if "@rank" in rest.free else (move, rest)', "return move, rest"),
    (HELD, "return DType.F32 if dtype in HALVES and held == SUMS else dtype", "return dtype"),
    (HELD, "Kind.ALL_REDUCE if want == WHOLE", "Kind.ALL_REDUCE if want"),
    (HELD, "have.op, split)", "Op.SUM, split)"),
    (HELD, "ranks, None, split, concat)", "ranks, None, concat, split)"),
    (EMIT, "next(h for h in there if not h.op)", "there[0]"),
    (EMIT, "(*n.parts, *self.parts(held))", "(*self.parts(held), *n.parts)"),
    (EMIT, "(*entry.parts.get(name, ()), *self.parts(held))", "self.parts(held)"),
    (EMIT, "if state == WHOLE:", "if True:"),
    (EMIT, "want in self.chosen[n].there else WHOLE", "want else WHOLE"),
    (EMIT, "return WHOLE if whole else next", "return next"),
    (CHOOSE, "way.needs[i] == choice.way.result", "True"),
    (CHOOSE, "if choice.gives(need) else inf", ""),
    (CHOOSE, "for i, held in found if held == state", "for i, held in found"),
    (CHOOSE, "[WHOLE] if state == WHOLE else", ""),
    (CHOOSE, "if found and found[0] != WHOLE", "if found"),
    (CHOOSE, "if n in self.must and all(h.op for h in choice.there):", "if False:"),
]


@pytest.mark.parametrize("mutant", range(len(MUTANTS)))
def test_mutants_die(mutant: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the graphs above, each with a few prices, or by random ones."""
    module, old, new = MUTANTS[mutant]
    replace(module, old, new, monkeypatch)
    with pytest.raises((AssertionError, LumcError, ValueError, KeyError, RecursionError)):
        test_partial_sums_of_16_bits_travel_as_f32()
        for name in GRAPHS:
            agrees(name, range(25))
        for seed in range(SEEDS):
            check_random(seed)


def replace(module: ModuleType, old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change the source of a module of the pass, for all modules of it."""
    source = inspect.getsource(module)
    assert source.count(old) == 1, old
    changed: dict[str, Any] = {"__name__": module.__name__}
    exec(compile(source.replace(old, new), module.__name__, "exec"), changed)  # noqa: S102
    rooms = [m for name, m in sys.modules.items() if name.startswith("lumc.shard.")]
    for name, value in changed.items():
        if getattr(value, "__module__", "") != module.__name__ or isinstance(value, type):
            continue
        for room in rooms:
            if hasattr(room, name):
                monkeypatch.setattr(room, name, value)
    for name, cls in changed.items():  # classes stay the same: their methods change
        if isinstance(cls, type) and cls.__module__ == module.__name__:
            for key, method in vars(cls).items():
                if inspect.isfunction(method) and not key.startswith("__"):
                    monkeypatch.setattr(getattr(module, name), key, method)


def test_modules_that_are_replaced_by_themselves_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (WAYS, HELD, EMIT, CHOOSE):
        first = "from __future__ import annotations"
        replace(module, first, first, monkeypatch)
    for name in GRAPHS:
        agrees(name, range(5))
