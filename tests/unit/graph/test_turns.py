"""One forward, one backward: the order of a stage, what it keeps open, and that no stage waits for
ever."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import accumulate

import pytest

import mutating
from lumc.graph import turns
from lumc.graph.turns import Turn, most_open
from lumc.shard import pipeline

SIZES = [(s, b) for s in (1, 2, 3, 4, 8) for b in (1, 2, 3, 4, 8, 16)]


def text(stage: int, stages: int, batches: int) -> str:
    return " ".join(map(str, turns.order(stage, stages, batches)))


def follows_both_rules(stages: int, batches: int) -> None:
    """As the planner's simulation of the two rules has it, where all stages take equally long."""
    found = pipeline.turns([1.0] * stages, [2.0] * stages, batches)
    for s in range(stages):
        own = turns.order(s, stages, batches)
        assert own == [Turn(t.batch, t.backward) for t in found if t.stage == s]
        opened = [*accumulate(-1 if t.back else 1 for t in own)]
        assert max(opened) == most_open(s, stages, batches) <= stages - s and min(opened) == 0
        for back in (False, True):
            assert [t.batch for t in own if t.back == back] == [*range(batches)]


@pytest.mark.parametrize(("stages", "batches"), SIZES)
def test_the_order_is_that_of_two_rules(stages: int, batches: int) -> None:
    follows_both_rules(stages, batches)


def test_the_order_of_four_stages() -> None:
    assert text(0, 4, 8) == "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7"
    assert text(2, 4, 3) == "F0 F1 B0 F2 B1 B2"
    assert text(3, 4, 2) == "F0 B0 F1 B1" and text(0, 8, 2) == "F0 F1 B0 B1"


Order = Callable[[int, int, int], list[Turn]]
Ends = tuple[int, int]  # from a stage to another


def run_all(
    order: Order, stages: int, batches: int, waits: bool = False
) -> tuple[bool, Counter[Ends]]:
    """Whether all stages end that run in this order; how many messages from one to another are on
    their way at once, at most. Who sends ``waits`` until it is taken, or goes on."""
    sent, taken, most = Counter[Ends](), Counter[Ends](), Counter[Ends]()
    todo, owed = [order(s, stages, batches) for s in range(stages)], dict[int, Ends]()
    moved = True
    while moved:
        moved = False
        for s in range(stages):
            if s in owed and taken[owed[s]] < sent[owed[s]]:
                continue
            moved |= owed.pop(s, None) is not None
            if not todo[s]:
                continue
            back = todo[s][0].back
            source, target = (s + 1, s - 1) if back else (s - 1, s + 1)
            if 0 <= source < stages:
                if taken[source, s] == sent[source, s]:
                    continue
                taken[source, s] += 1
            todo[s].pop(0)
            moved = True
            if 0 <= target < stages:
                sent[s, target] += 1
                most[s, target] = max(most[s, target], sent[s, target] - taken[s, target])
                owed |= {s: (s, target)} if waits else {}
    return not any(todo), most


def one_after_the_other(stage: int, stages: int, batches: int) -> list[Turn]:
    every = range(batches)
    return [*(Turn(b, False) for b in every), *(Turn(b, True) for b in every)]


@pytest.mark.parametrize(("stages", "batches"), SIZES)
def test_no_stage_waits_for_ever(stages: int, batches: int) -> None:
    """Of one message no more are on their way than the earlier of both stages has open."""
    done, most = run_all(turns.order, stages, batches)
    assert done
    assert all(n <= most_open(min(ends), stages, batches) for ends, n in most.items())
    assert run_all(one_after_the_other, stages, batches)[0]


def test_stages_that_wait_until_it_is_taken_wait_for_ever() -> None:
    """One sends forward, the other one back: so the runner keeps what is on its way."""
    assert not run_all(turns.order, 2, 2, waits=True)[0]
    assert run_all(one_after_the_other, 2, 2, waits=True)[0]


MUTANTS = [
    ("forward - back < most_open(", "forward - back <= most_open("),
    ("forward - back < most_open(", "forward - back + 1 < 1 + 0 * most_open("),
    ("min(stages - stage, batches)", "min(stages - stage + 1, batches)"),
    ("min(stages - stage, batches)", "min(stage + 1, batches)"),
    ("forward if more else back, not more", "back if more else back, not more"),
]


@pytest.mark.parametrize(("old", "new"), MUTANTS)
def test_mutants_die(old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutating.replace(turns, old, new, monkeypatch)
    with pytest.raises(AssertionError):
        for stages, batches in ((2, 4), (4, 2), (4, 8)):
            follows_both_rules(stages, batches)
