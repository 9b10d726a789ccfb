"""Any legal sharding computes what the graph computes, and mutants of the pass do not."""

from __future__ import annotations

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
from mutating import replace
from sharded_models import decoding, llama, training
from sharding import check, check_random, sharded_at_random, wide

SEEDS = 200


def leaves(graph: Graph, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    every = [*graph.weights, *graph.states, *(n for e in graph.entries for n in e.inputs)]
    values = {}
    for n in every:
        drawn = rng.uniform(-1.0, 1.0, n.whole.sizes)
        whole = rng.integers(*(n.values or (0, 3)), n.whole.sizes, endpoint=True)
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
    g.output("top", s.max(1))
    g.output("any", (x > 0.5).max(1).to("f32") + s.sum(1))
    return g.graph()


def squares() -> Graph:
    """What is not linear in a sum."""
    g = Model()
    s = g.input("x", (3, 12)) @ g.input("w", (12, 3))
    g.output("squared", s * s)
    g.output("cast", (s * 100.0).to("i32"))
    return g.graph()


def halves() -> Graph:
    g = Model()
    x, w = g.input("x", (8, 64), "f16"), g.input("w", (64, 8), "bf16")
    y = x @ w.to("f16")
    g.output("y", y + 1.0)
    g.output("scaled", y * 2.0)
    g.output("z", (w.sum(1).to("f32") * 2.0) @ x.to("f32").transpose(0, 1) + y.sum(1).to("f32"))
    return g.graph()


def counted() -> Graph:
    """States that are read before and after updates, in blocks and whole."""
    return parse_graph("""lumc graph 1
state rows f32[4, 8]
state wide f32[4, 12]
state sums f32[8]
state turned f32[8, 4]

input x f32[4, 8]
before f32[j:8] = sum i:4 of rows[i, j]
t1 f32[i:8] = add before[i], sums[i]
t2 f32[i:4, j:8] = mul x[i, j], 2.0
new = update rows[i, j] = t2[i, j]
t3 f32[i:4] = max j:8 of new[i, j]
t4 f32[j:8] = add new[2, j], t1[j]
again = update rows[3, j] = t4[j]
t5 f32[i:4, j:8] = add again[i, j], rows[i, j]
part = update wide[i, j + 4] = t5[i, j]
t6 f32[i:4, j:12] = add part[i, j], wide[i, j]
t7 f32[i:8] = add x[1, i], sums[i]
output before = t1
output after = t3
output both = t5
output wide = t6
update sums[i] = t7[i]
update turned[j, i] = t2[i, j]
""")


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


def ranked() -> Graph:
    """A graph for a mesh already, whose collectives are of sums and maxima."""
    return parse_graph("""lumc graph 1
mesh pp 2
input x f32[6, 8] part 1 by pp
s f32[i:6] = sum k:8 of x[i, k]
m f32[i:6] = max k:8 of x[i, k]
ss f32[i:6] = all_reduce sum by pp of s[i]
sm f32[i:6] = all_reduce max by pp of s[i]
ms f32[i:6] = all_reduce sum by pp of m[i]
mm f32[i:6] = all_reduce max by pp of m[i]
g f32[i:6, j:16] = all_gather concat j by pp of x[i, j]
t f32[i:3, j:16] = all_to_all split i concat j by pp of x[i, j]
output ss = ss
output sm = sm
output ms = ms
output mm = mm
output g = g
output t = t part 0 by pp
""")


GRAPHS: dict[str, Callable[[], Graph]] = {
    f.__name__: f for f in (slices, places, partial, squares, halves, counted, diagonal, ranked)
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


def test_entries_repeat_on_every_rank() -> None:
    graph = parse_graph("""lumc graph 1
dim t in 0..3
state kept f32[8]

entry main repeat t
input x f32[4, 8]
y f32[i:4, j:8] = add x[i, j], kept[j]
s f32[j:8] = sum i:4 of y[i, j]
n f32[j:8] = add s[j], f32(t)
output y = y
update kept[j] = n[j]
""")
    values = leaves(graph, 0)
    given = "main", {"x": values["x"]}, lambda n: values[n.name], {"kept": values["kept"]}
    want = evaluate(graph, *given)
    for seed in range(10):
        ranks = sharded_at_random(graph, seed)
        assert ranks.entries[0].repeat == "t"
        for got, whole in zip(evaluate_mesh(ranks, *given), want, strict=True):
            for name, value in whole.items():
                np.testing.assert_allclose(got[name], value, rtol=1e-12)


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
DEATHS = AssertionError, LumcError, ValueError, KeyError, RecursionError, StopIteration
MUTANTS = [  # what is changed, and the graphs that notice
    (WAYS, "or size != move * self.ranks", "", "diagonal"),
    (WAYS, "if need != WHOLE or not", "if not", "diagonal"),
    (WAYS, "if found is None or found[0]:", "if found is None:", "diagonal"),
    (WAYS, "if moved is None or moved[0]:", "if moved is None:", "places"),
    (WAYS, "Way(name, Held(op=node.op), needs)", "Way(name, SUMS, needs)", "counted"),
    (WAYS, "SUMS if i == at else WHOLE for", "SUMS for", "squares"),
    (WAYS, "(SUMS, (SUMS, SUMS))", "(SUMS, (SUMS, WHOLE))", "counted"),
    (WAYS, "is not DType.BOOL and dtype not in HALVES", "is not DType.BOOL", "halves"),
    (WAYS, "and node.operands[0].dtype is node.dtype", "", "squares"),
    (WAYS, "and d not in (op.split, op.concat)", "", "counted"),
    (WAYS, "if op.op is not Op.MAX and is", "if is", "ranked"),
    (WAYS, "if op.op is not Op.SUM:", "if True:", "ranked"),
    (WAYS, "(same or node.op is Op.MAX)", "(same or node.op is Op.SUM)", "partial"),
    (WAYS, "(same or node.op is Op.SUM)", "(same or node.op is Op.MAX)", "partial"),
    (WAYS, "size % ranks == 0", "True", "partial"),
    (WAYS, 'return None if "@rank" in rest.free else (move, rest)', "return move, rest", "places"),
    (
        HELD,
        "return DType.F32 if dtype in HALVES and held == SUMS else dtype",
        "return dtype",
        "rounded",
    ),
    (HELD, "Kind.ALL_REDUCE if want == WHOLE", "Kind.ALL_REDUCE if want", "counted"),
    (HELD, "have.op, split)", "Op.SUM, split)", "counted"),
    (HELD, "ranks, None, split, concat)", "ranks, None, concat, split)", "counted"),
    (EMIT, "next(h for h in there if not h.op)", "there[0]", "counted"),
    (EMIT, "(*n.parts, *self.parts(held))", "(*self.parts(held), *n.parts)", "counted"),
    (EMIT, "(*entry.parts.get(name, ()), *self.parts(held))", "self.parts(held)", "counted"),
    (EMIT, "return WHOLE if whole else next", "return next", "counted"),
    (CHOOSE, "way.needs[i] == choice.way.result", "True", "counted"),
    (CHOOSE, "if choice.gives(need) else inf", "", "counted"),
    (CHOOSE, "for i, held in found if held == state", "for i, held in found", "counted"),
    (CHOOSE, "[WHOLE] if state == WHOLE else", "", "counted"),
    (CHOOSE, "if n in self.must and all(h.op for h in choice.there):", "if False:", "counted"),
]


@pytest.mark.parametrize(("module", "old", "new", "graph"), MUTANTS)
def test_mutants_die(
    module: ModuleType, old: str, new: str, graph: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace(module, old, new, monkeypatch)
    with pytest.raises(
        (AssertionError, LumcError, ValueError, KeyError, RecursionError, StopIteration)
    ):
        if graph == "rounded":
            test_partial_sums_of_16_bits_travel_as_f32()
        else:
            agrees(graph, range(25))


def test_modules_that_are_replaced_by_themselves_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (WAYS, HELD, EMIT, CHOOSE):
        first = "from __future__ import annotations"
        replace(module, first, first, monkeypatch)
    for name in GRAPHS:
        agrees(name, range(5))
