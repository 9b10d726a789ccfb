"""Which token comes next: what is chosen of logits.

A choice is a function of the logits, of the tokens before, of a seed and of the place in the text.
The random number is Philox's at that place, not the next one of a stream: a text that is continued
later goes on as it would have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lumc.errors import Exit, LumcError

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen. With a ``temperature`` of 0 the most probable one is; the others then
    say nothing, but for the penalty. They work one after the other, in this order."""

    repetition: float = 1.0  # logits of tokens that were there are divided by it, or multiplied
    window: int = 64  # tokens before in which they are looked for
    temperature: float = 0.8  # logits are divided by it
    top_k: int = 40  # so many of the most probable ones; 0: all
    top_p: float = 0.95  # as few of the most probable ones as have this probability together
    min_p: float = 0.05  # those that are at least so probable, compared with the most probable one
    seed: int = 0

    def __post_init__(self) -> None:
        """Raises E0617 for numbers that mean nothing."""
        fine = {
            "repetition": 0 < self.repetition < np.inf,
            "window": self.window >= 0,
            "temperature": 0 <= self.temperature < np.inf,
            "top_k": self.top_k >= 0,
            "top_p": 0 < self.top_p <= 1,
            "min_p": 0 <= self.min_p <= 1,
            "seed": 0 <= self.seed < 1 << 64,
        }
        for name, allowed in fine.items():
            if not allowed:
                what = f"{name.replace('_', '-')} = {getattr(self, name)} means nothing"
                raise LumcError("E0617", what, exit=Exit.USAGE)

    def choose(self, logits: Array, before: Sequence[int], place: int) -> int:
        """The id of the next token: logits f32[words], the ids ``before``, and the place of the new
        one in its text. Raises E0616 where a logit is NaN."""
        scores = np.asarray(logits, np.float64)
        if np.isnan(scores).any():
            raise LumcError("E0616", "the model gives logits that are NaN")
        scores = penalised(scores, before[max(len(before) - self.window, 0) :], self.repetition)
        if self.temperature == 0:
            return int(scores.argmax())
        ids, chances = self.kept(scores)
        ends = np.cumsum(chances)
        at = np.searchsorted(ends, uniform(self.seed, place) * ends[-1], side="right")
        return int(ids[min(int(at), len(ids) - 1)])

    def kept(self, scores: Array) -> tuple[Array, Array]:
        """The ids that may be chosen, and how probable each is beside the most probable one."""
        ids: Array = np.arange(len(scores))
        if 0 < self.top_k < len(scores):
            least = np.partition(scores, -self.top_k)[-self.top_k]
            ids = np.flatnonzero(scores >= least)  # with all that are equal to the last one
        chances = np.exp((scores[ids] - scores.max()) / self.temperature)
        if self.top_p < 1:
            chosen = nucleus(chances, self.top_p)
            ids, chances = ids[chosen], chances[chosen]
        likely = chances >= self.min_p
        return ids[likely], chances[likely]


def nucleus(chances: Array, share: float) -> Array:
    """Where the fewest are that have this share of all together, the most probable one first."""
    total = chances.sum()
    least = (1 - share) * total / len(chances)  # what is below has less than the rest, together
    near = np.flatnonzero(chances >= least)
    near = near[np.argsort(-chances[near], kind="stable")]
    before = np.concatenate([[0.0], np.cumsum(chances[near])[:-1]])
    count = int((before < share * total).sum())
    found: Array = near[: max(count, 1)]
    return found


def penalised(scores: Array, before: Sequence[int], by: float) -> Array:
    """Less for tokens that were there before."""
    if by == 1 or not before:
        return scores
    out, seen = scores.copy(), np.unique(np.asarray(before))
    out[seen] = np.where(scores[seen] < 0, scores[seen] * by, scores[seen] / by)
    return out


def uniform(seed: int, place: int) -> float:
    """A number in [0, 1), that of this place: Philox4x64-10 with the seed as key and the place as
    counter."""
    raw = np.random.Philox(key=seed, counter=place).random_raw()
    return (int(raw) >> 11) * 2.0**-53
