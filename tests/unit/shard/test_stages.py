"""Stages of a pipeline: any placing of nodes computes what the graph computes, the chosen one is
even, and mutants are noticed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from types import ModuleType

import pytest

from lumc.errors import Exit, LumcError
from lumc.frontend import Model
from lumc.graph import ends, stages
from lumc.graph.collective import Collective, Kind
from lumc.graph.graph import Graph, Node
from lumc.graph.text import parse_graph, print_graph
from lumc.graph.verify import verify_graph
from lumc.oracle import ranks as oracle
from lumc.shard import stages as cutting
from lumc.shard.cost import Machine
from lumc.shard.mesh import collectives, shard
from lumc.shard.placing import numbered
from lumc.shard.stages import Writer
from mutating import replace
from random_graphs import Profile, leaf_values, random_graph
from sharded_models import decoding, llama, training
from sharding import Dice, check, wide
from shorter import shorter

SEEDS = 150
BESIDE = ({"pp": 2, "tp": 2}, {"tp": 2, "pp": 2}, {"dp": 3, "pp": 2})


def anywhere(graph: Graph, stages: int, rng: random.Random) -> dict[Node, int]:
    """A stage for every weight and state, and for every node that needs one: by chance, but where
    what is read decides."""
    nodes = [n for e in graph.entries for n in e.nodes]
    numbers = numbered(nodes, {*graph.weights, *graph.states})
    of = [rng.randrange(stages) for _ in numbers]
    found = {leaf: of[i] for leaf, i in numbers.items()}
    for n in nodes:
        own = [found[r.source.home] for r in n.reads if r.source.home in numbers]
        if own:
            found[n] = own[0]
        elif any(r.source in found for r in n.reads):
            found[n] = rng.randrange(stages)
    for u in (u for e in graph.entries for u in e.writes):
        if u.state not in found and u.value in found:
            found[u.state] = rng.randrange(stages)
    return found


def placed_at_random(graph: Graph, seed: int) -> Graph:
    """The graph in stages, as its text says."""
    rng = random.Random(seed)
    count = rng.choice((2, 3, 4))
    made = Writer(graph, "pp", count, anywhere(graph, count, rng)).written()
    return again(made)


def again(graph: Graph) -> Graph:
    verify_graph(graph)
    found = parse_graph(text := print_graph(graph))
    verify_graph(found)
    assert print_graph(found) == text
    return found


def values(graph: Graph, seed: int) -> dict[str, object]:
    inputs = (n for e in graph.entries for n in e.inputs)
    leaves = (*graph.weights, *graph.states, *inputs)
    return {n.name: wide(n, leaf_values(n, seed)) for n in leaves}


def agrees(graph: Graph, staged: Graph, seed: int) -> Counter[str]:
    """On its stages, and on every rank of the graph with whole ends."""
    given = values(graph, seed)
    check(graph, staged, given)  # type: ignore[arg-type]
    whole = ends.with_whole_ends(staged)
    verify_graph(whole)
    for entry in graph.entries:
        inputs = {n.name: given[n.name] for n in entry.inputs}
        states = {n.name: given[n.name] for n in graph.states}
        every = entry.name, inputs, lambda n: given[n.name], states
        oracle.run_ranks(staged, *every)  # type: ignore[arg-type]
        for outputs, _ in oracle.run_ranks(whole, *every).values():  # type: ignore[arg-type]
            assert outputs.keys() == {name for name, _ in entry.outputs}
    return check(graph, whole, given)  # type: ignore[arg-type]


# ---- graphs that no random one has often enough


def shared() -> Graph:
    """Entries with weights and states in common; a weight that is read first and last; states that
    are written only, or by values of another weight; values that need none."""
    return parse_graph(
        """lumc graph 1
state table f32[6, 4]
state deep f32[4, 4]
state wide f32[4, 4]
state cache f32[5, 4]
state last f32[4]
state seen f32[4]
state count f32[6]
state bias f32[4]
state copy f32[4]

entry first
input x f32[6]
mask f32[i:6] = exp2 x[i]
e f32[i:6, j:4] = mul table[i, j], mask[i]
h f32[j:4] = sum i:6 of e[i, j]
d0 f32[j:4, k:4] = mul h[k], deep[k, j]
d f32[j:4] = sum k:4 of d0[j, k]
w0 f32[j:4, k:4] = mul d[k], wide[k, j]
w f32[j:4] = sum k:4 of w0[j, k]
old f32[j:4] = sum i:5 of cache[i, j]
o f32[j:4] = add w[j], old[j]
y0 f32[i:6, j:4] = mul table[i, j], o[j]
y f32[i:6] = sum j:4 of y0[i, j]
z f32[i:6] = mul y[i], mask[i]
q f32[j:4] = add d[j], bias[j]
output z = z
output q = q
output mask = mask
output table = table
update copy[j] = bias[j]
update cache[2, j] = d[j]
update last[j] = w[j]
update count[j] = mask[j]
now = update seen[j] = h[j]

entry second
input v f32[4]
w0 f32[j:4, k:4] = mul v[k], wide[k, j]
w f32[j:4] = sum k:4 of w0[j, k]
new = update seen[j] = w[j]
r f32[j:4] = add new[j], cache[4, j]
s f32[j:4] = add r[j], v[j]
output r = s
update copy[j] = bias[j]
update cache[0, j] = s[j]
""".replace("s f32[j:4] = add r[j], h[j]", "s f32[j:4] = add r[j], v[j]")
    )


GRAPHS: dict[str, Callable[[], Graph]] = {
    "shared": shared,
    "llama": lambda: llama(2, 8, 32, 4, 2),
    "training": lambda: training(12, (8, 24, 6)),
    "decoding": lambda: decoding(4, 6, 8),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_stages_compute_what_the_graph_computes(name: str) -> None:
    graph = GRAPHS[name]()
    total = sum((agrees(graph, placed_at_random(graph, s), s) for s in range(12)), Counter[str]())
    assert total["send"] and (name == "training" or total["broadcast"])


def test_stages_of_random_graphs_compute_what_these_compute() -> None:
    total = Counter[str]()
    for seed in range(SEEDS):
        graph = random_graph(seed, Profile())
        total += agrees(graph, placed_at_random(graph, seed), seed)
    assert total["send"] > 50 and total["broadcast"] > 50


@pytest.mark.deep
@pytest.mark.timeout(1800)
def test_stages_of_many_random_graphs() -> None:
    for seed in range(SEEDS, 5000):
        graph = random_graph(seed, Profile())
        agrees(graph, placed_at_random(graph, seed), seed)


@pytest.mark.parametrize("mesh", shorter(BESIDE), ids=str)
def test_stages_beside_other_axes(mesh: dict[str, int]) -> None:
    """By prices at random."""
    total = Counter[str]()
    for name in GRAPHS:
        for seed in range(6):
            graph, rng = GRAPHS[name](), random.Random(seed)
            made = shard(graph, mesh, lambda ranks, rng=rng: Dice(ranks, price=0.0, rng=rng)).graph
            total += agrees(graph, again(made), seed)
    assert len(total) > 3 and total["send"]


# ---- which stages


def test_equal_layers_are_stages_and_what_is_between_is_sent_once() -> None:
    ranks = shard(llama(4), {"pp": 4}).graph
    held = {s.name: s.stage.at for s in ranks.states if s.stage}
    assert held == {s.name: int(s.name.split(".")[1]) for s in ranks.states}
    ops = [n.op for n in collectives(ranks)]
    ends = [(op.source, op.target) for op in ops if isinstance(op, Collective)]
    assert ends == [(0, 1), (1, 2), (2, 3)]


def test_the_way_back_of_a_step_goes_through_the_stages_again() -> None:
    ranks = shard(training(32, (64, 64, 64)), {"pp": 2}).graph
    sent = [n.op for n in collectives(ranks) if isinstance(n.op, Collective)]
    assert [(op.source, op.target) for op in sent] == [(0, 1), (1, 0)]
    assert [s.stage.at for s in ranks.states if s.stage] == [0, 0, 1, 1]


def test_memory_decides_where_it_has_a_price() -> None:
    """Two small weights with most of the operations, and a large one with few."""
    g = Model()
    x, narrow = g.input("x", (2000, 16)), [g.state(f"w{i}", (16, 16)) for i in range(2)]
    for w in narrow:
        x = (x @ w).relu()
    g.output("y", x.sum(0) @ g.state("wide", (16, 4096)))

    def stages_of(price: float) -> list[int]:
        machine = partial(Machine, flops=1e10, latency=0.0, price=price)
        made = shard(g.graph(), {"pp": 2}, machine).graph
        return [s.stage.at for s in made.states if s.stage]

    assert stages_of(0.0) == [0, 1, 1] and stages_of(1.0) == [0, 0, 1]


def test_there_are_no_more_stages_than_weights() -> None:
    with pytest.raises(LumcError) as e:
        shard(llama(1), {"pp": 64})
    assert e.value.code == "E0143" and e.value.exit == Exit.UNSUPPORTED
    assert "64 stages of 9 weights" in e.value.what and e.value.fix == "at most pp=9"


# ---- mutants

CUT, GRAPH, ENDS, ORACLE = cutting, stages, ends, oracle
MUTANTS = [  # what is changed, and the graphs that notice
    (CUT, "if own is None or own == stage:", "if True:", "shared"),
    (CUT, "source=own, target=stage)", "source=stage, target=own)", "shared"),
    (CUT, "self.there(s, self.stage[n]) for s in kept", "self.made[s] for s in kept", "shared"),
    (CUT, "self.made[value] = self.there(value, self.stage[n])", "pass", "shared"),
    (CUT, "value = self.there(u.value, self.stage[u.state])", "pass", "shared"),
    (CUT, "self.made |= kept", "pass", "shared"),
    (CUT, "self.sent.clear()", "pass", "shared"),
    (CUT, "replace(n, stage=Stage(at, self.mesh, self.ranks))", "n", "shared"),
    (GRAPH, "own = n.op.target", "own = n.op.source", "shared"),
    (GRAPH, "return found | {n: n.stage.at for n in ends if n.stage}", "return found", "shared"),
    (ENDS, "source=stages[n])", "source=0)", "shared"),
    (ENDS, "if n in stages:", "if False:", "shared"),
    (ENDS, " or _left_by_stages(e) for", " for", "shared"),
    (ORACLE, "array = group[op.source]", "array = group[0]", "shared"),
    (ORACLE, "[group[op.target]]", "[group[0]]", "shared"),
    (ORACLE, "if node not in stages:", "if True:", "shared"),
]


@pytest.mark.parametrize(("module", "old", "new", "graph"), MUTANTS)
def test_mutants_die(
    module: ModuleType, old: str, new: str, graph: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace(module, old, new, monkeypatch)
    with pytest.raises((AssertionError, LumcError, ValueError, KeyError, RuntimeError)):
        made = GRAPHS[graph]()
        for seed in range(12):
            agrees(made, placed_at_random(made, seed), seed)


def test_modules_that_are_replaced_by_themselves_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (CUT, GRAPH, ENDS, ORACLE):
        first = "from __future__ import annotations"
        replace(module, first, first, monkeypatch)
    made = shared()
    for seed in range(12):
        agrees(made, placed_at_random(made, seed), seed)


def test_what_is_sent_is_a_kind_of_its_own() -> None:
    assert [k for k in Kind if k.leaves] == [Kind.SEND, Kind.BROADCAST]
    assert not any(k.leaves and (k.reduces or k.splits or k.joins) for k in Kind)
