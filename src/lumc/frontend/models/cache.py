"""Texts that a model is given whole, or in parts: what it has seen of them is kept in states.

A family asks a ``Text`` for ids and positions, and which keys and values its rows see. With a
``Cache`` a run has ``s`` new rows of a text behind the ``p`` that earlier runs had, and there is an
entry for parts of a text, ``prefill``, and one for the next token, ``decode``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from lumc.errors import Exit, LumcError
from lumc.frontend.api.elementwise import where
from lumc.frontend.api.model import Model
from lumc.frontend.api.nn import LEAST, causal_bias
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.api.view import minus
from lumc.frontend.models.config import MAX_BATCH
from lumc.graph.dim import Extent, as_expr
from lumc.graph.expr import add

ROWS = 256  # of one run, if nobody says


@dataclass(frozen=True)
class Cache:
    """How much of a text is kept: ``context`` rows, of which a run has at most ``rows`` new ones.
    Logits are those of the last row, or of ``every`` new one."""

    context: int
    rows: int = ROWS
    every: bool = False


@dataclass
class Text:
    """The rows of a run. ``first`` of them are in the cache."""

    model: Model
    ids: Tensor  # i64[b, s]
    first: Extent
    count: Extent
    cache: Cache | None = None
    states: dict[str, Tensor] = field(default_factory=dict)  # of all entries

    @property
    def end(self) -> Extent:
        """How many rows of the text there are after the run."""
        return self.count if self.cache is None else add(as_expr(self.first), as_expr(self.count))

    def positions(self) -> Tensor:
        """Of the new rows: i64[s]."""
        return self.model.arange(self.first, self.end)

    def bias(self, window: int | None = None) -> Tensor:
        """[s, keys]: a row sees those up to itself, the last ``window`` of them if it is given."""
        if self.cache is None:
            return causal_bias(self.model, self.count, window)
        i, j = self.positions()[:, None], self.model.arange(self.end)[None]
        late = where(i < j, LEAST, 0.0)
        return late if window is None else where(j + window <= i, LEAST, late)

    def seen(self, name: str, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values [b, heads, rows, d] that there are, of the new ones."""
        return self._kept(f"{name}.keys", keys), self._kept(f"{name}.values", values)

    def _kept(self, name: str, new: Tensor) -> Tensor:
        if self.cache is None:
            return new
        _, n, _, d = new.shape
        if name not in self.states:
            rows = self.cache.context + self.cache.rows - 1  # the last part may reach beyond
            self.states[name] = self.model.state(name, (n, rows, d))
        at = (slice(None), slice(self.first, self.end))
        return self.model.updated(self.states[name], new[0], at)[None, :, : self.end]

    def asked(self, x: Tensor) -> Tensor:
        """The rows [b, s, d] of which results are asked for."""
        if self.cache is None or self.cache.every:
            return x
        return x[:, minus(self.count, 1) :]

    def result(self, name: str, x: Tensor) -> None:
        """An output [b, s, d]: of one text [s, d], and of one row [d]."""
        if self.cache is not None:
            x = x[0] if self.cache.every else x[0, 0]
        self.model.output(name, x)


def texts(model: Model, cache: Cache | None, longest: int, vocabulary: int) -> Iterator[Text]:
    """One for each entry that a family is to fill; ``longest`` is the longest text that a model was
    made for. Raises E0326."""
    if cache is None:
        b, s = model.dim("b", 1, MAX_BATCH), model.dim("s", 1, longest)
        ids = model.input("input_ids", (b, s), "i64", values=(0, vocabulary - 1))
        yield Text(model, ids, 0, s)
        return
    if not 1 <= cache.rows <= cache.context <= longest:
        what = f"a context of {cache.context} rows, {cache.rows} of them in one run"
        fix = f"this model is made for 1 to {longest} rows, and a run has no more than the context"
        raise LumcError("E0326", what, fix=fix, exit=Exit.USAGE)
    p, s = model.dim("p", 0, cache.context - 1), model.dim("s", 1, cache.rows)
    states = dict[str, Tensor]()
    counts: dict[str, Extent] = {"prefill": s, "decode": 1}
    for name, count in counts.items():
        model.entry(name)
        ids = model.input("input_ids", (count,), "i64", values=(0, vocabulary - 1))
        yield Text(model, ids[None], p, count, cache, states)
