"""Elements in order, and products that accumulate along an axis."""

from __future__ import annotations

from lumc.frontend.api.elementwise import eq, where
from lumc.frontend.api.join import concat, stack, unbind
from lumc.frontend.api.movement import axis_of
from lumc.frontend.api.value import V

MOST_RANKED = 1024  # elements of an axis that are all compared with each other
MOST_TAKEN = 64  # of a longer one, one after the other


def topk(x: V, k: int, axis: int = -1, largest: bool = True) -> tuple[V, V]:
    """The ``k`` greatest (or least) elements in order, and their positions, i64; of equal ones the
    first. At most 64 of an axis of more than 1024."""
    axis = axis_of(x, axis)
    length = x.shape[axis]
    if isinstance(length, int) and not 0 <= k <= length:
        raise x.refuse("E0121", f"{k} elements of axis {axis} of {x.describe()}")
    if isinstance(length, int) and length <= MOST_RANKED:
        return _by_rank(x, k, axis, largest)
    if k > MOST_TAKEN or not x.dtype.is_float:
        fix = f"at most {MOST_TAKEN} of floats"
        raise x.refuse("E0125", f"K = {k} of {x.describe()}", fix)
    return _one_by_one(x, k, axis, largest)


def sort(x: V, axis: int = -1, descending: bool = False) -> tuple[V, V]:
    """The elements in order, and their positions, i64; equal ones stay in theirs. At most 1024."""
    length = x.shape[axis_of(x, axis)]
    if not isinstance(length, int) or length > MOST_RANKED:
        raise x.refuse("E0125", f"sort of axis {axis} of {x.describe()}; at most {MOST_RANKED}")
    return topk(x, length, axis, descending)


def cumprod(x: V, axis: int = -1, exclusive: bool = False, reverse: bool = False) -> V:
    """``product of x[k] where k <= i``, of up to 64 elements."""
    axis = axis_of(x, axis)
    length = x.shape[axis]
    if not isinstance(length, int) or length > MOST_TAKEN:
        raise x.refuse("E0125", "a product over more than 64 elements")
    if not length:
        return x
    parts = unbind(x.flip(axis) if reverse else x, axis)
    running, out = x.model.full(parts[0].shape, 1, x.dtype), list[V]()
    for part in parts:
        out.append(running if exclusive else running * part)
        running = running * part
    whole = stack(out, axis)
    return whole.flip(axis) if reverse else whole


def _by_rank(x: V, count: int, axis: int, largest: bool) -> tuple[V, V]:
    """The rank of an element is the number of those before it: greater, or equal and earlier."""
    x = x.moveaxis(axis, -1)
    here, there = x.unsqueeze(-1), x.unsqueeze(-2)
    place = x.model.arange(x.shape[-1])
    earlier = place[None, :] < place[:, None]
    before = (there > here if largest else there < here) | (eq(there, here) & earlier)
    rank = before.sum(-1)  # i64[.., n]
    chosen = eq(rank.unsqueeze(-2), x.model.arange(count)[:, None])
    values, positions = (chosen * x.unsqueeze(-2)).sum(-1), (chosen * place).sum(-1)
    return values.moveaxis(-1, axis), positions.moveaxis(-1, axis)


def _one_by_one(x: V, count: int, axis: int, largest: bool) -> tuple[V, V]:
    """One maximum after the other: those already taken are masked out."""
    key = x if largest else -x
    place = x.model.arange(x.shape[axis]).reshape(-1, *[1] * (x.ndim - axis - 1))
    taken: V | None = None
    values, positions = list[V](), list[V]()
    for _ in range(count):
        left = key if taken is None else where(taken, float("-inf"), key)
        at = left.argmax(axis, True)
        here = eq(place, at)
        values.append((here * x).sum(axis, True))
        positions.append(at)
        taken = here if taken is None else taken | here
    return concat(values, axis), concat(positions, axis)
