"""Several texts, each of its own length, that one model goes on with in one run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from lumc.errors import Exit, LumcError
from lumc.graph.dim import Dim
from lumc.runtime.opened import usage

Array = np.ndarray[Any, Any]


class Keeping(Protocol):
    """What is asked of a bundle, as ``lumc.load`` opens it."""

    @property
    def dims(self) -> Mapping[str, Dim]:
        """The dims that every run chooses."""
        ...

    def run(
        self, inputs: Mapping[str, Any], entry: str = ..., *, dims: Mapping[str, int] = ...
    ) -> dict[str, Array]:
        """The outputs of an entry."""
        ...

    def copy_state(self, source: Any, target: Any) -> None:
        """In every state, what is at one index to another one."""
        ...


class Sequences:
    """The texts of a bundle that was imported with ``--sequences``.

    ``lengths`` has how many tokens each of them has; those of none are free. In the cache the last
    rows of all lie side by side: ``end`` is the row behind them. Where a text would begin before
    the first row, or after the last that one may begin at, rows are moved.
    Raises E0618 for another bundle.
    """

    def __init__(self, bundle: Keeping) -> None:
        if not {"sequence", "start", "n", "p", "s"} <= set(bundle.dims):
            what = "the bundle is no language model of several texts"
            fix = "lumc import MODEL --context 2048 --sequences 8 -o model.lg, then compile it"
            raise LumcError("E0618", what, fix=fix, exit=Exit.USAGE)
        self.bundle, dims = bundle, bundle.dims
        self.context, self.rows = dims["p"].hi + 1, dims["s"].hi
        self.lengths, self.end = [0] * (dims["sequence"].hi + 1), 0

    def read(self, sequence: int, ids: Sequence[int]) -> Array:
        """The logits after these tokens, which follow those that a text has: f32[words], or
        f32[s, words] of the last part where the model has those of all. Raises E0610."""
        length = self._known(sequence) + len(ids)
        if not ids or length > self.context:
            raise usage(f"a text of {length} tokens, {len(ids)} of them new", self._fix)
        self._begin(sequence, length)
        start, logits = self.end - length, np.empty(0)
        for at in range(0, len(ids), self.rows):
            part = np.asarray(ids[at : at + self.rows], np.int64)
            dims = {"sequence": sequence, "start": start, "p": self.lengths[sequence]}
            logits = self._run("prefill", {"input_ids": part}, dims)
            self.lengths[sequence] += len(part)
        return logits

    def step(self, ids: Sequence[int]) -> Array:
        """A token more for the first so many texts, at least for all that have any: the logits
        f32[n, words]. What the token of a free one is does not matter. Raises E0610."""
        n, longest = len(ids), max(self.lengths)
        if not 0 < n <= len(self.lengths) or any(self.lengths[n:]):
            raise usage(f"{n} tokens, for {len(self.lengths)} texts", "a token for each text")
        if longest >= self.context:
            raise usage(f"a text has {longest} tokens already", self._fix)
        if self.end - longest > self.context:
            self._end_at(longest)
        given = {"input_ids": np.asarray(ids, np.int64), "lengths": np.asarray(self.lengths[:n])}
        logits = self._run("decode", given, {"start": self.end - longest, "p": longest})
        self.lengths = [length + (length > 0) for length in self.lengths]
        self.end += 1
        return logits

    def copy(self, source: int, target: int, count: int | None = None) -> None:
        """The first tokens of a text, all if it is not said how many, become those of another."""
        length, _ = self._known(source), self._known(target)
        count = length if count is None else count
        if not 0 <= count <= length:
            raise usage(f"{count} tokens of a text that has {length}")
        self._move(source, self.end - length, target, self.end - count, count)
        self.lengths[target] = count

    def clear(self, sequence: int) -> None:
        """Forget a text."""
        self._known(sequence)
        self.lengths[sequence] = 0

    # ---- where they lie

    @property
    def _fix(self) -> str:
        return f"at most {self.context}; a larger --context has room for more"

    def _known(self, sequence: int) -> int:
        """How many tokens a text has."""
        if not 0 <= sequence < len(self.lengths):
            raise usage(f"no text {sequence}", f"one of 0 to {len(self.lengths) - 1}")
        return self.lengths[sequence]

    def _run(self, entry: str, given: dict[str, Array], dims: dict[str, int]) -> Array:
        return self.bundle.run(given, entry, dims=dims)["logits"]

    def _begin(self, sequence: int, length: int) -> None:
        """Move rows such that those of a text end with all others when it has so many."""
        own, here = self.lengths[sequence], self.end - self.lengths[sequence]
        self.lengths[sequence] = 0  # the others move without it
        if not 0 <= self.end - length <= self.context:
            self._end_at(max(length, *self.lengths))
        self._move(sequence, here, sequence, self.end - length, own)
        self.lengths[sequence] = own

    def _end_at(self, end: int) -> None:
        """Move all texts such that they end before this row."""
        for sequence, length in enumerate(self.lengths):
            self._move(sequence, self.end - length, sequence, end - length, length)
        self.end = end

    def _move(self, source: int, row: int, target: int, to: int, count: int) -> None:
        if count and (source, row) != (target, to):
            rows = np.s_[source, :, row : row + count], np.s_[target, :, to : to + count]
            self.bundle.copy_state(*rows)
