"""When stages do what."""

from __future__ import annotations

from itertools import groupby, pairwise

import pytest

from lumc.graph.batches import AFTER, BEFORE, WITHIN
from lumc.graph.turns import Turn, order
from lumc.shard.cost import Machine
from lumc.shard.mesh import shard
from lumc.shard.pipeline import turns
from lumc.shard.schedule import Step, scheduled, steps_of
from sharded_models import training


def chain(stages: int, seconds: float = 1.0) -> list[Step]:
    """One step on each stage, with a message to the next one."""
    out = list[Step]()
    for s in range(stages):
        out.append(Step(WITHIN, (s,), seconds))
        if s + 1 < stages:
            out.append(Step(WITHIN, (s + 1,), 0.0, s))
    return out


@pytest.mark.parametrize(("stages", "batches"), [(1, 1), (2, 1), (2, 5), (4, 8), (3, 2)])
def test_what_goes_forward_only_is_a_pipeline(stages: int, batches: int) -> None:
    """As the planner's two rules have it: nothing waits but for the first micro-batch."""
    found = scheduled(chain(stages), stages, batches)
    want = turns([1.0] * stages, (), batches)
    assert sorted(found) == sorted(want)
    assert max(t.end for t in found) == stages + batches - 1


def test_the_slowest_stage_keeps_the_others_waiting() -> None:
    steps = chain(3)
    steps[2] = steps[2]._replace(seconds=3.0)
    found = scheduled(steps, 3, 4)
    assert max(t.end for t in found) == 1 + 4 * 3 + 1
    ends = [t.end for t in found if t.stage == 2]
    assert ends == [5, 8, 11, 14]


def test_a_way_back_is_a_turn_of_its_own() -> None:
    back = [Step(WITHIN, (0,), 0.0, 1, (0,)), Step(WITHIN, (0,), 2.0, None, (0,))]
    found = scheduled([*chain(2), *back], 2, 2)
    first = [(t.batch, t.backward, t.start, t.end) for t in found if t.stage == 0]
    assert first == [(0, False, 0, 1), (1, False, 1, 2), (0, True, 2, 4), (1, True, 4, 6)]
    one_by_one = scheduled([s._replace(back=()) for s in (*chain(2), *back)], 2, 2)
    ends = [(t.start, t.end) for t in one_by_one if t.stage == 0]
    assert ends == [(0, 1), (2, 4), (4, 5), (6, 8)]


def test_stages_that_wait_for_each_other_are_told() -> None:
    """The first one would go forward once the other one is back, and that needs it to be back."""
    steps = [Step(WITHIN, (1,), 0.0, 0, (0, 1)), Step(WITHIN, (0,), 0.0, 1, (1,))]
    with pytest.raises(ValueError, match="wait for each other"):
        scheduled(steps, 2, 2)


def test_the_order_is_that_of_the_planner() -> None:
    """Of stages that take equally long on each way: one forward, one backward."""
    graph = shard(training(64, (64, 64, 64, 64, 64)), {"pp": 4}, batches=8).graph
    steps = [
        s._replace(seconds=float(s.source is None))
        for s in steps_of(graph, graph.entries[0], Machine(4))
    ]
    found = scheduled(steps, 4, 8)
    for stage in range(4):
        own = [t for t in found if t.stage == stage]
        ways = [Turn(t.batch, t.backward) for t in own if t.batch < 8]
        last = [Turn(b, False) for b in range(8)]  # the last stage hears of none behind it
        want = order(stage, 4, 8) if stage < 3 else last
        assert [t for t, _ in groupby(ways)] == want


def test_what_is_before_and_after_is_done_once() -> None:
    steps = [Step(BEFORE, (0, 1), 5.0), *chain(2)]
    steps += [Step(AFTER, (0, 1), 0.5, 1), Step(AFTER, (0,), 1)]
    found = scheduled(steps, 2, 3)
    assert max(t.end for t in found if t.stage == 1) == 5 + 4 + 0.5
    assert max(t.end for t in found if t.stage == 0) == 5 + 4 + 0.5 + 1


def test_the_steps_of_a_graph_are_those_of_its_stages() -> None:
    graph = shard(training(64, (64, 64, 64)), {"pp": 2}, batches=4).graph
    machine = Machine(2)
    steps = steps_of(graph, graph.entries[0], machine)
    assert {s.source for s in steps} == {None, 0, 1}
    assert {s.phase for s in steps} == {WITHIN, AFTER}
    found = scheduled(steps, 2, 4)
    assert {t.batch for t in found if t.backward and t.stage == 0} == {0, 1, 2, 3}
    for stage in range(2):
        own = sorted(t for t in found if t.stage == stage)
        in_order = sorted(own, key=lambda t: t.start)
        assert all(a.end <= b.start + 1e-12 for a, b in pairwise(in_order))
