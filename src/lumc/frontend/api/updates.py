"""What is written to states: values of tensors at views of a state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lumc.frontend.api.operand import whole_node
from lumc.frontend.api.refusal import refuse
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.api.view import place
from lumc.graph.expr import axis, substitute
from lumc.graph.graph import Read, Update


def update_of(state: Tensor, value: Tensor, at: Sequence[Any]) -> Update:
    """``state[at] = value``, ``at`` like an index of numpy; a value that is a view is copied.
    Raises E0124 (another shape or dtype) and E0126 (what is written is no state)."""
    target = state[tuple(at)] if at else state
    read = target.operand
    if not isinstance(read, Read) or read.source.op != "state" or read.bounds:
        raise refuse("E0126", "update writes to a state")
    if target.shape != value.shape or target.dtype is not value.dtype:
        raise refuse("E0124", f"update of {target.describe()} with {value.describe()}")
    node = whole_node(value) or whole_node(value.contiguous())
    assert node is not None
    own = [place(i) for i, e in enumerate(value.shape) if e != 1 or len(node.axes) == value.ndim]
    env = {p: axis(a) for p, a in zip(own, node.axes, strict=True)}
    return Update(read.source, tuple(substitute(e, env) for e in read.index), node)
