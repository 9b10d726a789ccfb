"""Pipelines: where they are cut, where values are computed, and in what order stages work."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import numpy as np
import pytest

from lumc.shard.pipeline import Turn, cut, turns


def test_cuts_are_the_best_of_all() -> None:
    rng = random.Random(0)
    for _ in range(200):
        n = rng.randint(1, 7)
        own = np.array([rng.choice((0.0, rng.random(), 5 * rng.random())) for _ in range(n)])
        enter, leave = (np.array([rng.random() for _ in range(n + 1)]) for _ in range(2))

        def greatest(
            cuts: Sequence[int],
            own: np.ndarray = own,
            enter: np.ndarray = enter,
            leave: np.ndarray = leave,
        ) -> float:
            return max(own[a:b].sum() + enter[a] + leave[b] for a, b in itertools.pairwise(cuts))

        found = cut(own, enter, leave, n)
        assert len(found) == n
        for stages, (cuts, seconds) in enumerate(found, 1):
            inner = itertools.combinations(range(1, n), stages - 1)
            best = min(greatest((0, *c, n)) for c in inner)
            assert len(cuts) == stages + 1
            assert seconds == pytest.approx(best) == pytest.approx(greatest(cuts))


def order(found: Sequence[Turn], stage: int) -> str:
    return " ".join(f"{'FB'[t.backward]}{t.batch}" for t in found if t.stage == stage)


def test_one_forward_one_backward_comes_of_two_rules() -> None:
    found = turns([1.0, 1.0], [2.0, 2.0], 4)
    assert order(found, 0) == "F0 F1 B0 F2 B1 F3 B2 B3"
    assert order(found, 1) == "F0 B0 F1 B1 F2 B2 F3 B3"
    four = turns([1.0] * 4, [2.0] * 4, 8)
    assert order(four, 0).startswith("F0 F1 F2 F3 B0 F4 B1")
    assert order(four, 3) == " ".join(f"F{i} B{i}" for i in range(8))
    assert max(t.end for t in four) == (8 + 4 - 1) * 3.0


def test_without_a_backward_all_goes_forward() -> None:
    found = turns([1.0, 2.0], (), 3)
    assert order(found, 0) == order(found, 1) == "F0 F1 F2"
    assert max(t.end for t in found) == 1 + 3 * 2


def test_stages_do_one_thing_at_a_time_and_keep_few_micro_batches_open() -> None:
    rng = random.Random(1)
    for _ in range(60):
        stages, batches = rng.randint(1, 6), rng.randint(1, 12)
        seconds = [[rng.uniform(0.5, 2) for _ in range(stages)] for _ in range(2)]
        found = turns(*seconds, batches)
        assert len(found) == 2 * stages * batches
        at = {(t.stage, t.batch, t.backward): t for t in found}
        for t in found:
            assert t.end - t.start == pytest.approx(seconds[t.backward][t.stage])
            if t.backward:
                last = t.stage == stages - 1
                needs = at[t.stage, t.batch, False] if last else at[t.stage + 1, t.batch, True]
                assert t.start >= needs.end
            elif t.stage:
                assert t.start >= at[t.stage - 1, t.batch, False].end
        for s in range(stages):
            mine = sorted((t for t in found if t.stage == s), key=lambda t: t.start)
            assert all(a.end <= b.start + 1e-12 for a, b in itertools.pairwise(mine))
            opened = list(itertools.accumulate(-1 if t.backward else 1 for t in mine))
            assert max(opened) <= stages - s


def test_a_step_takes_what_the_slowest_stage_does_and_one_way_through() -> None:
    """The closed form of ``plan.choice``, beside the simulation: exact where stages are alike."""
    rng, ratios = random.Random(2), list[float]()
    for _ in range(60):
        stages, batches = rng.randint(2, 8), rng.choice((8, 16, 64))
        forward = [rng.uniform(0.9, 1.1) for _ in range(stages)]
        backward = [2 * f for f in forward]
        both = [f + b for f, b in zip(forward, backward, strict=True)]
        closed = sum(both) + (batches - 1) * max(both)
        ratios.append(max(t.end for t in turns(forward, backward, batches)) / closed)
    assert min(ratios) > 0.95 and max(ratios) < 1.05, (min(ratios), max(ratios))
