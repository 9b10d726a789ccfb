"""Launches that go forward and back: ranks that only write down what lies where find what each
launch reads, of the micro-batch that it is for."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product
from types import ModuleType
from typing import Any

import pytest

import mutating
from lumc.codegen import generate, interleave, stages
from lumc.codegen.code import Code, Launch
from lumc.codegen.exchanges import operands, turns_of
from lumc.codegen.interleave import Pipeline, pipeline_of, schedule
from lumc.codegen.stages import EVERY, words_of_launches
from lumc.command.spaces import make_space
from lumc.graph.graph import Graph
from lumc.graph.turns import most_open, order
from lumc.kernel.instance import whole_of
from lumc.profile.choose import estimate
from lumc.shard.cost import Machine
from lumc.shard.mesh import shard
from sharded_models import tied, training

NODES = 2000  # of a region in the search: what is found first will do
SIZES = (24, 16, 16, 16, 8)
Plan = Any


@cache
def plan_of(count: int, batches: int, mesh: str = "", is_tied: bool = False) -> Plan:
    graph = tied(16) if is_tied else training(16, SIZES)
    ranks = shard(graph, {"pp": count} | ({mesh: 2} if mesh else {}), near, (), batches).graph
    return estimate(make_space(ranks, "cpu:generic", NODES), lambda _: None)


def near(ranks: int) -> Machine:
    return Machine(ranks, price=1e-9)


def made(count: int, batches: int, mesh: str = "", is_tied: bool = False) -> Code:
    return generate.generate(plan_of(count, batches, mesh, is_tied))


def found(code: Code) -> Pipeline:
    (entry,), (bucket,) = code.entries, code.graph.entries
    pipe = pipeline_of(code.graph, bucket, code.packings, entry)
    assert pipe
    return pipe


class Rank:
    """What lies where in the memory of a rank of a stage: of which value, of which micro-batch."""

    def __init__(self, code: Code, pipe: Pipeline, stage: int, count: int, batches: int) -> None:
        self.code, self.pipe, self.stage = code, pipe, stage
        self.entry, self.bucket = code.entries[0], code.graph.entries[0]
        self.values = {v.name: v for v in self.entry.values}
        self.memory = dict[int, tuple[str, int]]()
        self.open = most_open(stage, count, batches)
        self.todo = [*self.launches(order(stage, count, batches))]
        self.most = 0  # bytes of the arena
        self.outs = {k.symbol: [a.startswith("out") for a in k.args] for k in code.kernels}

    def launches(self, turns: list[Any]) -> Any:
        words = words_of_launches(self.code.packings, self.entry.launches, self.bucket)
        own = [*enumerate(zip(self.entry.launches, words, strict=True))]
        first, last = turns_of(self.bucket, self.entry.launches)
        middle = self.pipe.middles[self.stage]
        runs = [(0, 0, first)]
        runs += [(t.batch, *((middle, last) if t.back else (first, middle))) for t in turns]
        for batch, lo, hi in runs:
            for i, (launch, word) in own[lo:hi]:
                if word in (EVERY, 1 + self.stage):
                    yield i, launch, batch

    def place(self, name: str, batch: int) -> range:
        v = self.values[name]
        if v.place != "arena":
            return range(0)
        start, size = self.pipe.place
        at = v.offset + (batch % self.open * size if v.offset >= start else 0)
        self.most = max(self.most, at + v.nbytes)
        return range(at, at + v.nbytes, 4)

    def reads(self, name: str, batch: int) -> None:
        want = {(whole_of(name), batch)}
        there = {self.memory.get(at) for at in self.place(name, batch)}
        assert there <= want, (self.stage, name, batch, there)

    def writes(self, name: str, batch: int) -> None:
        for at in self.place(name, batch):
            self.memory[at] = whole_of(name), batch

    def advance(self, sent: dict[tuple[int, int], bool]) -> bool:
        """Go on until something was not sent yet."""
        count = len(self.todo)
        while self.todo:
            number, launch, batch = self.todo[0]
            if not self.takes(number, launch, batch, sent):
                break
            self.todo.pop(0)
        return len(self.todo) < count

    def takes(
        self, number: int, launch: Launch, batch: int, sent: dict[tuple[int, int], bool]
    ) -> bool:
        if not launch.exchanges:
            outs = self.outs[launch.kernel]
            pairs = [(a, out) for a, out in zip(launch.args, outs, strict=False) if a]
            for name in (a for a, out in pairs if not out):
                self.reads(name, batch)
            for name in (a for a, out in pairs if out):
                self.writes(name, batch)
            return True
        op: Any = operands(self.bucket, launch)[1].op
        source, result = launch.args
        if op.kind.leaves:
            if self.stage == op.source:
                self.reads(source, batch)
                sent[number, batch] = True
            if self.stage == op.target:
                if (number, batch) not in sent:
                    return False
                self.writes(result, batch)
            return True
        self.reads(source, batch)
        if op.mesh != self.bucket.time or op.split is not None:
            self.writes(result, batch)
        return True


def agrees(code: Code, count: int, batches: int) -> None:
    pipe, sent = found(code), dict[tuple[int, int], bool]()
    ranks = [Rank(code, pipe, s, count, batches) for s in range(count)]
    while any(r.todo for r in ranks):
        assert sum(r.advance(sent) for r in ranks), "stages wait for each other"
    start, size = pipe.place
    assert size and code.entries[0].arena_bytes == start + size * most_open(0, count, batches)
    for r in ranks:
        assert r.most <= start + size * r.open
    first, last = turns_of(ranks[0].bucket, ranks[0].entry.launches)
    assert all(first < middle <= last for middle in pipe.middles)


CASES = [(2, 2, ""), (2, 8, ""), (4, 2, ""), (4, 8, ""), (2, 4, "tp")]


@pytest.mark.parametrize(("count", "batches", "mesh"), CASES)
def test_every_launch_finds_what_it_reads(count: int, batches: int, mesh: str) -> None:
    code = made(count, batches, mesh)
    agrees(code, count, batches)
    _, last = turns_of(code.graph.entries[0], code.entries[0].launches)
    assert found(code).middles[-1] == last  # nobody sends back to the last stage


def test_a_weight_that_is_read_first_and_last() -> None:
    """So that a stage goes back, sends on, and goes back again."""
    agrees(made(2, 4, is_tied=True), 2, 4)


def test_what_waits_takes_memory_for_what_is_open() -> None:
    small, large = (found(made(4, n)).place.nbytes for n in (8, 2))
    assert small == 2 * 4 * (24 + 16)  # 2 rows of what a stage is given, and what it makes of them
    assert large == 4 * small  # 8 rows
    says = schedule(made(4, 8).graph, found(made(4, 8)))
    assert [s["open"] for s in says] == [4, 3, 2, 1]
    assert found(made(4, 8)).kept == (small, 2 * 4 * 2 * 16, 2 * 4 * 2 * 16, 0)
    assert [s["open_bytes"] for s in says] == [4 * 320, 3 * 256, 2 * 256, 0]
    assert says[3]["turns"] == " ".join(f"F{i} B{i}" for i in range(8))


def test_what_only_goes_forward_is_as_it_was() -> None:
    graph = shard(forward(), {"pp": 2}, near, (), 4).graph
    code = generate.generate(estimate(make_space(graph, "cpu:generic", NODES), lambda _: None))
    (entry,), (bucket,) = code.entries, code.graph.entries
    assert pipeline_of(graph, bucket, code.packings, entry) is None


def forward() -> Graph:
    from lumc.frontend import Model

    m = Model()
    x = m.input("x", (16, 8))
    m.output("y", (x @ m.state("a", (8, 8))).relu() @ m.state("b", (8, 8)))
    return m.graph()


def test_launches_in_another_order_take_one_micro_batch_after_the_other() -> None:
    """As files have them that were made before."""
    code = made(2, 4)
    (entry,), (bucket,) = code.entries, code.graph.entries
    first, last = turns_of(bucket, entry.launches)
    own = [*entry.launches]
    middle = found(code).middles[0]
    moved = [*own[:first], *own[middle:last], *own[first:middle], *own[last:]]
    other = replace(entry, launches=tuple(moved))
    assert pipeline_of(code.graph, bucket, code.packings, other) is None
    less = replace(entry, arena_bytes=entry.arena_bytes - 64)
    assert pipeline_of(code.graph, bucket, code.packings, less) is None


MUTANTS = [
    (interleave, "(g.back, not g.back and g.stage)", "(g.back, not g.back and -g.stage)"),
    (interleave, "(g.back, not g.back and g.stage)", "(not g.back, 0)"),
    (interleave, "back = there = not late.isdisjoint(names)", "back = there = False"),
    (interleave, "there = back or (sends.target", "there = (sends.target"),
    (interleave, "touched[0] & touched[1]", "touched[0] & touched[0]"),
    (interleave, "touched[0] & touched[1]", "set() & touched[1]"),
    (interleave, "start + times * nbytes, without", "start + nbytes, without"),
    (interleave, "middle = min(middle, at)", "middle = at"),
    (interleave, "max([*touching[:1], *parts], default=-1) + 1", "len(groups)"),
    (interleave, "max([*touching[:1], *parts], default=-1) + 1", "0"),
    (stages, "offsets[name] = ends.setdefault(own, ends[EVERY])", "offsets[name] = 0"),
]


@pytest.mark.parametrize(("module", "old", "new"), MUTANTS)
def test_mutants_die(
    module: ModuleType, old: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutating.replace(module, old, new, monkeypatch)
    with pytest.raises((AssertionError, KeyError, ValueError)):
        for count, batches in product((2, 4), (2, 8)):
            agrees(made(count, batches), count, batches)
        agrees(made(2, 4, is_tied=True), 2, 4)
        test_what_waits_takes_memory_for_what_is_open()
