"""Which reductions are contractions, and how their operands lie in memory.

A sum of products is a contraction along a lane axis that only some of the factors have: operand
``a`` is the product of the others, ``b`` of these. The weighted sum is one with its weights as
``a`` and its values as ``b``.
"""

from __future__ import annotations

from functools import lru_cache, partial, reduce

from lumc.graph.expr import Expr, bound_axes, subterms
from lumc.graph.ops import DType
from lumc.kernel.access import Access
from lumc.kernel.target import Target
from lumc.kernel.term import Kernel, binary, dtype, factors
from lumc.schedule.schedule import Stage

Pair = tuple[str | None, str]  # (rows axis, lane axis)

# dtypes that a register tile computes in
VECTOR = {
    DType.F32: DType.F32,
    DType.F16: DType.F32,
    DType.BF16: DType.F32,
    DType.F64: DType.F64,
    DType.I32: DType.I32,
    DType.I64: DType.I64,
}

HALF = (DType.F16, DType.BF16)
# dtypes that it converts to f32 when it loads vectors of them
NARROW = (*HALF, DType.I8, DType.U8)


def computed(kind: DType) -> DType:
    """The dtype that values of a dtype are computed and kept in."""
    return DType.F32 if kind in (DType.F16, DType.BF16) else kind


def lanes(target: Target, kind: DType) -> int:
    """How many values of a dtype one vector register holds."""
    return max(1, target.lanes * 4 // computed(kind).nbytes)


def product(parts: list[Expr]) -> Expr:
    """The terms multiplied with one another, at least one."""
    return reduce(partial(binary, "mul"), parts)


@lru_cache(maxsize=1 << 12)
def operands(stage: Expr, lane: str) -> tuple[Expr, Expr] | None:
    """``(a, b)`` of the contraction with these lanes, or None; ``a`` of a wsum are its scores."""
    if stage.kind == "wsum":
        scores, values = stage.kids
        return (scores, values) if lane in values.free - scores.free else None
    if stage.attr[0] != "sum" or lane not in stage.free:
        return None
    parts = factors(stage.kids[0])
    a = [f for f in parts if lane not in f.free]
    b = [f for f in parts if lane in f.free]
    if not a or not b or not product(a).free & set(bound_axes(stage)):
        return None
    return product(a), product(b)


def split_operands(stage: Expr, p: Stage) -> tuple[Expr, Expr] | None:
    """``operands``, as ``p`` reads them: constant factors of an operand that is read in place
    are multiplied into the other one if that is copied."""
    split = operands(stage, p.lane_axis or "")
    if split and stage.kind == "red" and p.stage_a == "none" and p.stage_b in ("inner", "hoist"):
        parts = factors(split[0])
        if constants := [f for f in parts if f.kind == "const"]:
            rest = [f for f in parts if f.kind != "const"]
            return product(rest), product([*constants, split[1]])
    return split


@lru_cache(maxsize=1 << 12)
def pairs(stage: Expr) -> tuple[Pair, ...]:
    """Every (rows axis, lane axis) that makes a stage a contraction, in a fixed order."""
    if VECTOR.get(dtype(stage)) is None:
        return ()
    out: list[Pair] = []
    for lane in sorted(stage.free):
        if split := operands(stage, lane):
            a, b = split
            only_a = sorted(a.free - b.free - set(bound_axes(stage)))
            out += [*((rows, lane) for rows in only_a), (None, lane)]
    return tuple(out)


def can_dot(stage: Expr, pair: Pair) -> bool:
    """May the lanes run along the last reduced axis? Both operands must have it."""
    split = operands(stage, pair[1])
    last = bound_axes(stage)[-1]
    return split is not None and all(last in e.free for e in split)


def loaded(operand: Expr, computes: DType) -> Expr:
    """The load that an operand is, or that it only widens to what the register tile computes in:
    no conversion that a vector load makes loses a bit."""
    inner = operand.kids[0] if operand.kind == "cast" else operand
    widens = inner.kind == "load" and dtype(inner) in NARROW and computes is DType.F32
    return inner if widens and dtype(operand) in (dtype(inner), computes) else operand


def loads(kind: DType, computes: DType, p: Stage, side: str) -> bool:
    """Can a register tile load elements of this dtype? Narrow ones as vectors only."""
    vectors = side == "b" or p.form == "dot"
    return kind is computes or (kind in NARROW and computes is DType.F32 and vectors)


def readable(load: Access, stage: Expr, p: Stage, side: str) -> bool:
    """Can a register tile read an operand that moves like this in place?

    All targets want it affine in the axes of the tile; CPUs want contiguous lanes.
    """
    if not load.is_affine(p.lane_axis if side == "b" else p.rows_axis, *bound_axes(stage)):
        return False
    if p.form == "dot":
        return load.is_contiguous(bound_axes(stage)[-1])
    return side == "a" or load.is_contiguous(p.lane_axis)


def operand_of(stage: Expr, pair: Pair, side: str) -> Expr:
    """``a`` or ``b`` of a contraction."""
    split = operands(stage, pair[1])
    assert split is not None
    return split[side == "b"]


def least_step(kernel: Kernel, operand: Expr, axis: str) -> int:
    """The least distance that a step along an axis moves a load of the operand; 0: none."""
    below = (e for e in subterms(operand) if e.kind == "load")
    strides = (abs(kernel.access(e).stride(axis)) for e in below)
    return min(filter(None, strides), default=0)
