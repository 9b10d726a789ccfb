"""How tokens are chosen: beside what transformers does with the same numbers, and as often as they
are probable."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

from lumc.errors import LumcError
from lumc.generate.sampling import Sampling, uniform

Array = np.ndarray[Any, Any]
PLAIN = Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
CASES = [
    {"temperature": 0.7},
    {"top_k": 5},
    {"top_p": 0.6},
    {"min_p": 0.2},
    {"temperature": 1.5, "top_k": 9, "top_p": 0.9, "min_p": 0.05},
    {"repetition": 1.4, "temperature": 0.8, "top_k": 12},
]


def sampling(**said: Any) -> Sampling:
    return Sampling(**{"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, **said})


def logits(n: int = 40, seed: int = 0) -> Array:
    return (np.random.default_rng(seed).standard_normal(n) * 2).astype("f4")


def wanted(scores: Array, before: list[int], said: dict[str, Any]) -> Array:
    """What transformers makes of the same numbers, as probabilities."""
    torch = pytest.importorskip("torch")
    t = pytest.importorskip("transformers")
    steps = [t.RepetitionPenaltyLogitsProcessor(said["repetition"])] if "repetition" in said else []
    steps += (
        [t.TemperatureLogitsWarper(float(said["temperature"]))] if "temperature" in said else []
    )
    steps += [t.TopKLogitsWarper(said["top_k"])] if "top_k" in said else []
    steps += [t.TopPLogitsWarper(said["top_p"])] if "top_p" in said else []
    steps += [t.MinPLogitsWarper(said["min_p"])] if "min_p" in said else []
    ids, x = torch.tensor([before or [0]]), torch.from_numpy(scores)[None].double()
    for step in steps:
        x = step(ids, x)
    return np.asarray(x.softmax(-1)[0].numpy())


@pytest.mark.parametrize("said", CASES)
@pytest.mark.parametrize("seed", range(4))
def test_the_probabilities_are_those_of_transformers(said: dict[str, Any], seed: int) -> None:
    from lumc.generate.sampling import penalised

    scores, before = logits(seed=seed), [3, 17, 3, 30]
    want, s = wanted(scores, before, said), sampling(**said)
    ids, chances = s.kept(penalised(scores.astype("f8"), before, s.repetition))
    got = np.zeros(len(scores))
    got[ids] = chances / chances.sum()
    np.testing.assert_allclose(got, want, atol=1e-7)


@pytest.mark.parametrize("said", [{}, *CASES[:5]])
def test_tokens_come_as_often_as_they_are_probable(said: dict[str, Any]) -> None:
    """Chi-squared over 20,000 choices: beyond five standard deviations once in a million."""
    scores, s, n = logits(12), sampling(**said), 20_000
    found = Counter(s.choose(scores, [], place) for place in range(n))
    want = wanted(scores, [], said) * n
    assert all(want[i] > 0 for i in found)
    kept = want > 0
    off = sum((found[i] - want[i]) ** 2 / want[i] for i in np.flatnonzero(kept))
    free = int(kept.sum()) - 1
    assert off < free + 5 * math.sqrt(2 * max(free, 1)) + 5


def test_numbers_are_spread_evenly_and_known_by_their_place() -> None:
    numbers = np.array([uniform(7, i) for i in range(20_000)])
    assert numbers.min() >= 0 and numbers.max() < 1
    assert abs(numbers.mean() - 0.5) < 0.01 and abs(numbers.var() - 1 / 12) < 0.003
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.03
    assert uniform(7, 5) == numbers[5] and uniform(8, 5) != numbers[5]


def test_the_same_seed_gives_the_same_text() -> None:
    scores = logits(1000)
    several = [[Sampling(seed=seed).choose(scores, [], i) for i in range(40)] for seed in (1, 1, 2)]
    assert several[0] == several[1] != several[2]


def test_without_temperature_the_most_probable_one_is_chosen() -> None:
    scores = np.array([0.5, 3.0, 3.0, -1.0], "f4")
    assert Sampling(temperature=0).choose(scores, [], 9) == 1
    assert Sampling(temperature=0, repetition=2.0).choose(scores, [1], 9) == 2
    assert Sampling(temperature=0, repetition=2.0, window=0).choose(scores, [1], 9) == 1


def test_extremes() -> None:
    scores = np.array([-np.inf, 4.0, -np.inf, 1e30], "f4")
    assert {sampling().choose(scores, [], i) for i in range(9)} == {3}
    one = sampling(top_p=1e-9)
    assert {one.choose(logits(), [], i) for i in range(9)} == {int(logits().argmax())}
    assert sampling(top_k=99).choose(np.zeros(3, "f4"), [], 0) in range(3)
    with pytest.raises(LumcError, match="E0616"):
        sampling().choose(np.array([0, np.nan]), [], 0)


WRONG = [("temperature", -1), ("temperature", math.inf), ("top_p", 0), ("top_p", 1.1),
         ("min_p", -0.1),
         ("top_k", -1), ("repetition", 0), ("seed", -1), ("seed", 1 << 64)]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_numbers_that_mean_nothing(name: str, value: float) -> None:
    with pytest.raises(LumcError, match=f"E0617 {name.replace('_', '-')}"):
        sampling(**{name: value})


def test_every_number_says_something() -> None:
    """Each choice leaves out tokens that would be there without it."""
    scores = logits()
    every = set(PLAIN.kept(scores.astype("f8"))[0].tolist())
    for said in ({"top_k": 5}, {"top_p": 0.5}, {"min_p": 0.3}):
        assert set(sampling(**said).kept(scores.astype("f8"))[0].tolist()) < every
    pairs = itertools.pairwise(sampling(top_p=0.9).kept(scores.astype("f8"))[1])
    assert all(a >= b for a, b in pairs)
