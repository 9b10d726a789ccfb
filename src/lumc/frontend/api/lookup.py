"""Lookups at positions that the model knows: views, where that is proven."""

from __future__ import annotations

from lumc.frontend.api.elementwise import constant
from lumc.frontend.api.value import V
from lumc.frontend.api.view import place, ranges_of
from lumc.graph.expr import bounds, num, substitute
from lumc.graph.graph import Iota


def looked_up(x: V, axis: int, indices: V, wrap: bool = True) -> V:
    """Rows at the indices, negative ones counted from the end if they ``wrap``; where these are an
    expression of their own positions that stays inside, a view."""
    at, length = indices.operand, x.shape[axis]
    same = constant(indices)
    if same is not None and isinstance(length, int) and -length <= same < length:
        index = num(int(same) % length)
    elif isinstance(at, Iota) and not at.bounds:
        index = at.index
    else:
        return x.index_select(axis, indices, wrap)
    low, high = bounds(index, ranges_of(indices.shape, x.model.dims))
    if low < 0 or not (isinstance(length, int) and high < length):
        return x.index_select(axis, indices, wrap)
    shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    moved = substitute(index, {place(i): place(axis + i) for i in range(indices.ndim)})
    before = [place(i) for i in range(axis)]
    after = [place(i + indices.ndim - 1) for i in range(axis + 1, x.ndim)]
    return x.view(shape, [*before, moved, *after])
