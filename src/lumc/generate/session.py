"""A text and the model that goes on with it."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from lumc.errors import Exit, LumcError
from lumc.generate.sampling import Sampling

Array = np.ndarray[Any, Any]


class Language(Protocol):
    """A model that keeps what it has seen of a text."""

    @property
    def context(self) -> int:
        """How many tokens a text may have."""
        ...

    @property
    def rows(self) -> int:
        """How many new ones a run may have."""
        ...

    def step(self, ids: Sequence[int], first: int) -> Array:
        """The logits f32[words] after these tokens, which follow ``first`` others."""
        ...


@dataclass
class Spent:
    """What was done, and how long it took."""

    prompt: int = 0  # tokens that the model was given
    prompt_s: float = 0.0
    made: int = 0  # tokens that followed
    made_s: float = 0.0
    ended: str = ""  # why: "length", "stop", "word" or "context"


@dataclass(frozen=True)
class Barred:
    """Tokens that are never chosen, and those that are not chosen as the first one."""

    always: Sequence[int] = ()
    first: Sequence[int] = ()

    def without(self, logits: Array, at_first: bool) -> Array:
        """Logits f32[words] of -inf where a token is barred."""
        ids = [i for i in (*self.always, *(self.first if at_first else ())) if i < len(logits)]
        if ids:
            logits = logits.copy()
            logits[ids] = -np.inf
        return logits


@dataclass
class Session:
    """``seen`` are the tokens that the model has in its memory."""

    model: Language
    seen: list[int] = field(default_factory=list)

    def read(self, ids: Sequence[int], spent: Spent | None = None) -> Array:
        """The logits after a text. What it has in common with the one before is not computed again.
        Raises E0615 for none, and one that is longer than the context."""
        if not 0 < len(ids) <= self.model.context:
            what = (
                f"a text of {len(ids)} tokens, and the model has a context of {self.model.context}"
            )
            fix = "a shorter prompt, or a model that was imported with a larger --context"
            raise LumcError("E0615", what, fix=fix, exit=Exit.USAGE)
        start = time.perf_counter()
        at = min(common(self.seen, ids), len(ids) - 1)  # the last one again: for its logits
        logits, count = np.empty(0), len(ids) - at
        del self.seen[at:]
        while at < len(ids):
            part = ids[at : at + self.model.rows]
            logits = self.model.step(part, at)
            self.seen += part
            at += len(part)
        if spent is not None:
            spent.prompt, spent.prompt_s = count, time.perf_counter() - start
        return logits

    def tokens(
        self,
        ids: Sequence[int],
        sampling: Sampling,
        count: int,
        stops: Collection[int] = (),
        spent: Spent | None = None,
        barred: Barred = Barred(),
    ) -> Iterator[int]:
        """Up to ``count`` tokens that follow a text, none of them ``barred``, until one of
        ``stops``, which is not given."""
        spent = Spent() if spent is None else spent
        text, logits = list(ids), self.read(ids, spent)
        start = time.perf_counter()
        for place in range(count):
            chosen = sampling.choose(barred.without(logits, place == 0), text, len(text))
            spent.ended = "stop" if chosen in stops else ""
            if spent.ended:
                return
            text.append(chosen)
            spent.made, spent.made_s = place + 1, time.perf_counter() - start
            yield chosen
            if place + 1 < count:
                if len(text) > self.model.context:
                    spent.ended = "context"
                    return
                logits = self.model.step(text[-1:], len(text) - 1)
                self.seen.append(chosen)
        spent.ended = "length"


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two texts have in common at their beginning."""
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )
