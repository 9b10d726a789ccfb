"""What an operand is: a number, what it depends on, whether it is all of a node."""

from __future__ import annotations

from typing import Any

import numpy as np

from lumc.frontend.api.tensor import Tensor
from lumc.frontend.api.view import indices, place, places
from lumc.graph.graph import Node, Operand, Read, Scalar
from lumc.graph.ops import DType


def is_number(o: Operand) -> bool:
    return isinstance(o, Scalar) and not o.bounds


def free_axes(o: Operand) -> frozenset[str]:
    """The places that an operand depends on."""
    return frozenset[str]().union(*(e.free for e in indices(o)))


def whole_node(t: Tensor) -> Node | None:
    """The node whose whole result is this tensor but for axes of extent 1, if there is one."""
    o, real = t.operand, [i for i, e in enumerate(t.shape) if e != 1]
    if not isinstance(o, Read) or o.source.is_leaf or o.bounds:
        return None
    if o.source.shape == t.shape and o.index == places(t.shape):
        return o.source
    same = o.index == tuple(place(i) for i in real)
    return o.source if same and o.source.shape == tuple(t.shape[i] for i in real) else None


def python_value(value: Any, dtype: DType) -> float | int | bool:
    """A constant as a Python value of the dtype's kind; integers wrap."""
    if dtype.is_float:
        return float(value)
    if dtype is DType.BOOL:
        return bool(value)
    return int(np.asarray(int(value)).astype(dtype.numpy))
