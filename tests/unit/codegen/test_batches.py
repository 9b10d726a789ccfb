"""Launches of micro-batches stand together; what is there all the time has memory of its own."""

from __future__ import annotations

from types import ModuleType

import pytest

import mutating
from collectives import BATCHES
from lumc.codegen import exchanges
from lumc.codegen.code import Code
from lumc.codegen.exchanges import turns_of
from lumc.codegen.generate import generate
from lumc.command.spaces import make_space
from lumc.graph.batches import AFTER, BEFORE, WITHIN, phases_of, runs
from lumc.graph.text import parse_graph
from lumc.kernel.instance import whole_of
from lumc.profile.choose import estimate
from lumc.search import order

NODES = 2000  # of a region in the search: what is found first will do
MORE = """heavy f32[l:6] = mul grad[l], most[l]
late f32[l:6] = all_reduce max by a of heavy[l]
output late = late
"""


def made() -> Code:
    graph = parse_graph(BATCHES.replace("output v = v2", MORE + "output v = v2"))
    return generate(estimate(make_space(graph, "cpu:generic", NODES), lambda _: None))


def agrees(code: Code) -> None:
    (entry,), (bucket,) = code.entries, code.graph.entries
    first, last = turns_of(bucket, entry.launches)
    phases = {n.name: phase for n, phase in phases_of(bucket).items()}
    when = {n.name: phase for n, phase in runs(bucket).items()}
    touched = dict[str, set[int]]()
    for i, launch in enumerate(entry.launches):
        own = BEFORE if i < first else WITHIN if i < last else AFTER
        names = [whole_of(a) for a in launch.args if a]
        for name in names:
            touched.setdefault(name, set()).add(own)
        assert own == WITHIN or WITHIN not in {phases.get(n) for n in names}
        assert own == AFTER or AFTER not in {when.get(n) for n in names}
        states = {s.name for s in code.graph.states} & {names[-1]}
        assert own == AFTER or not states or launch.exchanges
        if launch.exchanges:
            assert names[0] != names[1] or phases[names[1]] != AFTER or own == AFTER
    inside = [v for v in entry.values if v.place == "arena" and WITHIN in touched[whole_of(v.name)]]
    kept = [v for v in inside if len(touched[whole_of(v.name)]) > 1]
    assert len(kept) > 2 and {BEFORE, WITHIN} in touched.values()
    for v in kept:
        for other in inside:
            apart = v.offset + v.nbytes <= other.offset or other.offset + other.nbytes <= v.offset
            assert v is other or apart, (v.name, other.name)


def test_launches_of_micro_batches_stand_together() -> None:
    agrees(made())


MUTANTS = [
    (exchanges, "limit[when.get(n, AFTER)])", "len(instances))"),
    (exchanges, "key=lambda x: order.get(x.args[1], AFTER)", "key=lambda x: 0"),
    (exchanges, "if not touched or first <= i.first <= i.last <= last:", "if True:"),
    (exchanges, "if op.mesh == entry.time:", "if False:"),
    (order, "(phases.get(f.whole or f.node, BEFORE), place", "(BEFORE, place"),
    (order, "last = AFTER if phases else BEFORE", "last = BEFORE"),
]


@pytest.mark.parametrize(("module", "old", "new"), MUTANTS)
def test_mutants_die(
    module: ModuleType, old: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutating.replace(module, old, new, monkeypatch)
    with pytest.raises((AssertionError, KeyError, LookupError)):
        agrees(made())
