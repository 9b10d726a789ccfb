"""Texts that a model is given whole, or in parts: what it has seen of them is kept in states.

A family asks a ``Text`` for ids and positions, and which keys and values its rows see. With a
``Cache`` a run has ``s`` new rows of a text behind the ``p`` that earlier runs had, and there is an
entry for parts of a text, ``prefill``, and one for the next token, ``decode``.

A cache of several ``sequences`` keeps a text of each, of its own length. ``prefill`` goes on with
one of them, whose first row is row ``start`` of its part of the cache. ``decode`` goes on with the
first ``n`` of them, by a token each, in one run: their last rows lie side by side, so all write one
row, and a text of fewer than ``p`` tokens starts as many rows behind ``start``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
Encoded = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Cache:
    """How much of a text is kept: ``context`` rows, of which a run has at most ``rows`` new ones.
    Logits are those of the last row, or of ``every`` new one. Of several ``sequences`` each has as
    many."""

    context: int
    rows: int = ROWS
    every: bool = False
    sequences: int = 1

    @property
    def room(self) -> int:
        """Rows of a state: the last part may reach beyond the context, and of several sequences a
        text may start at any row up to the last."""
        return self.context + self.rows - 1 + (self.context if self.sequences > 1 else 0)


@dataclass
class Text:
    """The rows of a run. ``first`` of them are in the cache; of several texts that go on by a row
    each, these are the rows of the longest one, and ``lengths`` those of each."""

    model: Model
    ids: Tensor  # i64[b, s]
    first: Extent
    count: Extent
    cache: Cache | None = None
    states: dict[str, Tensor] = field(default_factory=dict)  # of all entries
    part: slice | None = None  # of the sequences, where there are several
    start: Extent = 0  # the row of the cache that ``first`` are counted from
    lengths: Tensor | None = None  # i64[b]

    @property
    def end(self) -> Extent:
        """How many rows of the text there are after the run."""
        return self.count if self.cache is None else add(as_expr(self.first), as_expr(self.count))

    def positions(self) -> Tensor:
        """Of the new rows: i64[s], of several texts i64[b, 1, s]."""
        if self.lengths is None:
            return self.model.arange(self.first, self.end)
        return self.lengths[:, None, None]

    def placed(self, table: Tensor) -> Tensor:
        """The rows [s, d], or [b, s, d], that a table has for the positions."""
        if self.lengths is None:
            return table[self.first : self.end]
        return table.embedding(self.lengths[:, None])

    def bias(self, window: int | None = None) -> Tensor:
        """[s, keys], of several texts [b, 1, s, keys]: a row sees those up to itself, the last
        ``window`` of them if it is given."""
        if self.cache is None:
            return causal_bias(self.model, self.count, window)
        i = self.model.arange(self.first, self.end)[:, None]
        j = self.model.arange(self.end)[None]
        late = where(i < j, LEAST, 0.0)
        if self.lengths is not None:  # a text has no rows before its first one
            late = where(j + self.positions()[..., None] < i, LEAST, 0.0)
        return late if window is None else where(j + window <= i, LEAST, late)

    def seen(self, name: str, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values [b, heads, rows, d] that there are, of the new ones."""
        return self._kept(f"{name}.keys", keys), self._kept(f"{name}.values", values)

    def _kept(self, name: str, new: Tensor) -> Tensor:
        if self.cache is None:
            return new
        _, n, _, d = new.shape
        if name not in self.states:
            every = (self.cache.sequences,) if self.part else ()
            self.states[name] = self.model.state(name, (*every, n, self.cache.room, d))
        begin, first, end = (
            add(as_expr(self.start), as_expr(e)) for e in (0, self.first, self.end)
        )
        if self.part is None:
            now = self.model.updated(self.states[name], new[0], (slice(None), slice(first, end)))
            return now[None, :, begin:end]
        at = (self.part, slice(None), slice(first, end))
        return self.model.updated(self.states[name], new, at)[self.part, :, begin:end]

    def asked(self, x: Tensor) -> Tensor:
        """The rows [b, s, d] of which results are asked for."""
        if self.cache is None or self.cache.every:
            return x
        return x[:, minus(self.count, 1) :]

    def result(self, name: str, x: Tensor) -> None:
        """An output [b, s, d]: of one text [s, d], and of one row [d]; of several texts [b, d]."""
        if self.lengths is not None:
            x = x[:, 0]
        elif self.cache is not None:
            x = x[0] if self.cache.every else x[0, 0]
        self.model.output(name, x)


def encoded(model: Model, shape: tuple[int, int, int], layers: Iterable[str]) -> Encoded:
    """Room for the keys and values that layers of a decoder see of what was encoded: two states
    [heads, rows, head] for each."""
    names = [(f"{layer}.keys", f"{layer}.values") for layer in layers]
    return [(model.state(keys, shape), model.state(values, shape)) for keys, values in names]


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
    states, known = dict[str, Tensor](), (0, vocabulary - 1)
    if cache.sequences > 1:
        yield from _several(model, cache, p, s, known)
        return
    counts: dict[str, Extent] = {"prefill": s, "decode": 1}
    for name, count in counts.items():
        model.entry(name)
        ids = model.input("input_ids", (count,), "i64", values=known)
        yield Text(model, ids[None], p, count, cache, states)


def _several(
    model: Model, cache: Cache, p: Extent, s: Extent, known: tuple[int, int]
) -> Iterator[Text]:
    """Parts of one of several texts, and a token of each."""
    one = model.dim("sequence", 0, cache.sequences - 1)
    start = model.dim("start", 0, cache.context)
    n, states = model.dim("n", 1, cache.sequences), dict[str, Tensor]()
    model.entry("prefill")
    ids = model.input("input_ids", (s,), "i64", values=known)
    own = slice(one, add(as_expr(one), 1))
    yield Text(model, ids[None], p, s, cache, states, own, start)
    model.entry("decode")
    ids = model.input("input_ids", (n,), "i64", values=known)
    lengths = model.input("lengths", (n,), "i64", values=(0, cache.context - 1))
    yield Text(model, ids[:, None], p, 1, cache, states, slice(0, n), start, lengths)
