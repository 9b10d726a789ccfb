"""The derivative of every primitive.

A rule gives for an operand the factors whose product, at every point of the node's loops, is what
flows back to that operand; a bool among them selects. ``dy`` is what flows back to the node, ``y``
the node, ``args`` its operands, all of them over its loops.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from lumc.frontend.api.elementwise import logical_not, reciprocal, select
from lumc.frontend.api.minimax import in_f32
from lumc.frontend.api.tensor import Tensor
from lumc.graph.graph import Node, Scalar
from lumc.graph.ops import DType, Op

Factors = Sequence[Tensor]
LN2 = math.log(2.0)


def factors(
    node: Node, dy: Tensor, y: Tensor, args: Sequence[Tensor], bounded: bool = True
) -> dict[int, Factors]:
    """Per operand, by its position, the factors; operands without a derivative are left out. A
    power that is not ``bounded`` may be infinite."""
    a, b = args[0], args[-1]
    match node.op:
        case Op.LOG2:
            return {0: [dy * (1.0 / LN2), reciprocal(a)]}
        case Op.EXP2:
            return {0: [dy, (y if bounded else _finite(y, dy)) * LN2]}
        case Op.SIN:
            return {0: [dy, _cosine(a)]}
        case Op.SQRT:
            return {0: [dy * 0.5, reciprocal(y)]}
        case Op.RECIP:
            return {0: [dy * -1.0, y, y]}
        case Op.ADD:
            return {0: [dy], 1: [dy]}
        case Op.MUL if a.dtype is DType.BOOL:
            return {1: [a, dy]}
        case Op.MUL:
            return {0: [dy, b], 1: [dy, a]}
        case Op.MOD:  # a - y is the multiple of b that was taken away
            return {0: [dy], 1: [dy, (y - a) * reciprocal(b)]}
        case Op.SUM:
            return {0: [dy]}
        case Op.CONTIGUOUS:
            return {0: [dy.to(a.dtype)]} if a.dtype.is_float else {}
        case "update":  # the state before counts where nothing was written
            written = Tensor(dy.model, Scalar(DType.BOOL, True, b.operand.bounds), dy.shape)
            return {0: [logical_not(written), dy], 1: [dy]}
    return {}


def of_maximum(dy: Tensor, y: Tensor, a: Tensor, rank: int) -> Factors:
    """The factors of the maximum of ``a`` over its axes from ``rank`` on, of which ``y`` and ``dy``
    do not depend: those that are equal to it share evenly."""
    top = logical_not(a < y)
    count = top.to(dy.dtype).sum(tuple(range(rank, a.ndim)), keepdim=True)
    return [top, dy * reciprocal(count).expand(*a.shape)]


def _finite(y: Tensor, dy: Tensor) -> Tensor:
    """``y``, but 0 where it is infinite and nothing flows back: of ``1 / (1 + 2^x)`` nothing does
    where ``2^x`` overflows, and 0 times infinity would be NaN. Of all finite ``y`` nothing changes,
    whatever flows, so derivatives of this are those of ``y``."""
    return select((y < math.inf) | (dy != 0.0), y)


@in_f32
def _cosine(x: Tensor) -> Tensor:
    """As a sine, so that its derivatives are sines, too."""
    return (x + math.pi / 2).unary(Op.SIN)
