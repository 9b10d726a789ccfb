"""Arithmetic, comparisons, selects and casts, composed of the primitives."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lumc.frontend.api.dtypes import as_dtype
from lumc.frontend.api.value import Saturating, V
from lumc.frontend.api.view import places
from lumc.graph.dim import Extent
from lumc.graph.expr import Expr, linear, num
from lumc.graph.expr import add as add_index
from lumc.graph.expr import mul as mul_index
from lumc.graph.graph import Iota, Operand, Read, Scalar, shape_text
from lumc.graph.ops import INTS, UNSIGNED, DType, Op
from lumc.graph.verify import MAX_ELEMENTS

INF = math.inf

# ---- dtypes and broadcasting

RANK = {
    d: i
    for i, d in enumerate(
        (
            DType.BOOL,
            DType.U8,
            DType.U16,
            DType.U32,
            DType.U64,
            DType.I8,
            DType.I16,
            DType.I32,
            DType.I64,
            DType.BF16,
            DType.F16,
            DType.F32,
            DType.F64,
        )
    )
}


def scalar_dtype(value: bool | int | float, other: DType) -> DType:
    """The dtype of a Python number next to a tensor: the tensor's when it can hold the kind."""
    if isinstance(value, float):
        return other if other.is_float else DType.F32
    if isinstance(value, bool):
        return DType.BOOL if other is DType.BOOL else other
    return DType.I64 if other is DType.BOOL else other


def promoted(a: DType, b: DType) -> DType:
    """The dtype that holds both; as in PyTorch, floats win and keep their width. Of a signed and
    an unsigned integer it is one of 32 bits or more, i64 where no integer holds both."""
    if {a, b} == {DType.BF16, DType.F16}:
        return DType.F32
    high = max(a, b, key=RANK.__getitem__)
    low = b if high is a else a
    if low in UNSIGNED and high in INTS and high not in UNSIGNED and high.nbytes <= low.nbytes:
        return DType.I32 if low.nbytes < DType.I32.nbytes else DType.I64
    return high


def broadcast_shapes(x: V, *shapes: Sequence[Extent]) -> tuple[Extent, ...]:
    """The common shape of several, by numpy's rules; E0120 names the shapes that do not fit."""
    out: list[Extent] = [1] * max(len(s) for s in shapes)
    for s in shapes:
        for i, e in enumerate(s, len(out) - len(s)):
            if out[i] == 1:
                out[i] = e
            elif e not in (1, out[i]):
                texts = " and ".join(shape_text(s) for s in shapes)
                raise x.refuse("E0120", f"shapes {texts} do not broadcast: {out[i]} and {e}")
    return tuple(out)


def expand_to(x: V, shape: Sequence[Extent]) -> V:
    """Broadcast to a shape that is known to fit."""
    if x.shape == tuple(shape):
        return x
    ones = places(shape)[len(shape) - x.ndim :]
    env: list[Expr] = [num(0) if e == 1 else p for e, p in zip(x.shape, ones, strict=True)]
    return x.view(shape, env)


def together(op: Op, a: V, b: V) -> V:
    """A binary primitive after broadcasting."""
    shape = broadcast_shapes(a, a.shape, b.shape)
    return a.model.emit(op, [expand_to(a, shape), expand_to(b, shape)])


def pair(a: V, value: Any) -> tuple[V, V]:
    """Both operands in one dtype."""
    b = a.lift(value)
    if isinstance(value, float) and not a.dtype.is_float:
        return to(a, b.dtype), b
    dtype = promoted(a.dtype, b.dtype)
    return to(a, dtype), to(b, dtype)


def constant(x: V) -> float | int | bool | None:
    """The value of a tensor that is one number everywhere."""
    return x.operand.value if isinstance(x.operand, Scalar) and not x.operand.bounds else None


def to(x: V, dtype: DType | str) -> V:
    """Cast: floats truncate to ints, ints wrap, bool becomes 0 and 1, nonzero becomes true."""
    kind = as_dtype(dtype)
    if kind is x.dtype:
        return x
    if kind is DType.BOOL:
        return ne(x, 0)
    if x.dtype is DType.BOOL:
        return together(Op.MUL, x, x.model.full((), 1, kind))
    if isinstance(x.operand, Iota) and kind in (DType.I64, DType.I32, DType.F32, DType.F64):
        iota = Iota(kind, x.operand.index, x.operand.bounds)
        return type(x)(x.model, iota, x.shape)
    return x.model.emit(Op.CONTIGUOUS, [x], dtype=kind)


def contiguous(x: V) -> V:
    """A stored copy."""
    return x.model.emit(Op.CONTIGUOUS, [x], dtype=x.dtype, whole=True)


# ---- arithmetic


def _positions(op: Op, a: V, b: V) -> V | None:
    """Sums of positions and multiples of them are positions: index maps, not nodes."""
    if not all(_is_position(t.operand) for t in (a, b)):
        return None
    indices = list[Expr]()
    shape = broadcast_shapes(a, a.shape, b.shape)
    for t in (expand_to(a, shape), expand_to(b, shape)):
        o = t.operand
        assert not isinstance(o, Read)
        indices.append(o.index if isinstance(o, Iota) else num(int(o.value)))
    if indices[0].kind == indices[1].kind == "num":
        return None
    constants = [e for e in indices if e.kind == "num"]
    if op is Op.ADD:
        index = add_index(*indices)
    elif constants:
        other = indices[1] if indices[0] is constants[0] else indices[0]
        index = mul_index(other, constants[0].attr[0])
    else:
        return None
    constant, factors = linear(index)
    if max(map(abs, (constant, *factors.values()))) > MAX_ELEMENTS:  # no graph has such an index
        return None
    return type(a)(a.model, Iota(a.dtype, index), shape)


def _is_position(o: Operand) -> bool:
    """Whether an operand is an integer that is known where it is read."""
    return not isinstance(o, Read) and not o.bounds and o.dtype in (DType.I64, DType.I32)


def add(x: V, y: Any) -> V:
    """x + y."""
    a, b = pair(x, y)
    positions = _positions(Op.ADD, a, b)
    if positions is not None:
        return positions
    for one, other in ((a, b), (b, a)):
        if constant(one) == 0 and one.dtype.is_int:  # x + 0.0 would turn -0.0 into 0.0
            return expand_to(other, broadcast_shapes(a, a.shape, b.shape))
        ends, value = other.ends, constant(one)
        if ends and value is not None and math.fabs(value) == math.fabs(ends.scale):
            end = mul(ends.end(1 if value == ends.scale else -1), ends.scale)
            return expand_to(end, broadcast_shapes(a, a.shape, b.shape))
    return together(Op.ADD, b, a) if _is_left_constant(a, b) else together(Op.ADD, a, b)


def mul(x: V, y: Any) -> V:
    """The product; by a bool tensor a select: ``false * x = 0`` even for inf and NaN."""
    b = x.lift(y)
    if DType.BOOL in (x.dtype, b.dtype):
        return select(x, b) if x.dtype is DType.BOOL else select(b, x)
    x, b = pair(x, y)
    positions = _positions(Op.MUL, x, b)
    if positions is not None:
        return positions
    for one, other in ((x, b), (b, x)):
        if constant(one) == 1:
            return expand_to(other, broadcast_shapes(x, x.shape, b.shape))
        factor, ends = constant(one), other.ends
        if factor is not None and ends:
            return replace(
                together(Op.MUL, other, one), ends=Saturating(factor * ends.scale, ends.end)
            )
    return together(Op.MUL, b, x) if _is_left_constant(x, b) else together(Op.MUL, x, b)


def _is_left_constant(a: V, b: V) -> bool:
    return constant(a) is not None and constant(b) is None


def select(c: V, x: V) -> V:
    """``x`` where ``c``, else 0."""
    known = constant(c)
    if known is None:
        return together(Op.MUL, c, x)
    shape = broadcast_shapes(c, c.shape, x.shape)
    return expand_to(x if known else x.model.full((), 0, x.dtype), shape)


def neg(x: V) -> V:
    """-x."""
    return mul(x, -1)


def sub(x: V, y: Any) -> V:
    """x - y."""
    a, b = pair(x, y)
    return add(a, mul(b, -1))


def rsub(x: V, y: Any) -> V:
    b, a = pair(x, y)
    return add(a, mul(b, -1))


def div(x: V, y: Any) -> V:
    """x / y, in floats."""
    a, b = floats(*pair(x, y))
    return mul(a, reciprocal(b))


def rdiv(x: V, y: Any) -> V:
    b, a = floats(*pair(x, y))
    return mul(reciprocal(b), a)


def floats(a: V, b: V) -> tuple[V, V]:
    return (a, b) if a.dtype.is_float else (to(a, DType.F32), to(b, DType.F32))


def reciprocal(x: V) -> V:
    """1 / x."""
    return x.unary(Op.RECIP)


def fmod(x: V, y: Any) -> V:
    """The remainder with the sign of the dividend, as C's fmod."""
    return together(Op.MOD, *pair(x, y))


def remainder(x: V, y: Any) -> V:
    """The remainder with the sign of the divisor, as Python's %."""
    a, b = pair(x, y)
    rest = together(Op.MOD, a, b)
    divisor = constant(b)
    if divisor is not None and divisor > 0:
        wrong = lt(rest, 0)
    elif divisor is not None and divisor < 0:
        wrong = gt(rest, 0)
    else:
        wrong = (lt(rest, 0) & gt(b, 0)) | (gt(rest, 0) & lt(b, 0))
    return rest + select(wrong, b)


# ---- comparisons: false when an operand is NaN


def lt(x: V, y: Any) -> V:
    return together(Op.LT, *pair(x, y))


def gt(x: V, y: Any) -> V:
    a, b = pair(x, y)
    return together(Op.LT, b, a)


def le(x: V, y: Any) -> V:
    a, b = pair(x, y)
    return _ordered(logical_not(together(Op.LT, b, a)), a, b)


def ge(x: V, y: Any) -> V:
    a, b = pair(x, y)
    return _ordered(logical_not(together(Op.LT, a, b)), a, b)


def eq(x: V, y: Any) -> V:
    a, b = pair(x, y)
    return _ordered(logical_not(_differ(a, b)), a, b)


def ne(x: V, y: Any) -> V:
    """True when an operand is NaN."""
    a, b = pair(x, y)
    if a.dtype.is_float:
        return logical_not(eq(a, b))
    return _differ(a, b)


def _differ(a: V, b: V) -> V:
    return together(Op.ADD, together(Op.LT, a, b), together(Op.LT, b, a))


def _ordered(holds: V, *values: V) -> V:
    """``holds`` and none of the values is NaN."""
    for v in values:
        if v.dtype.is_float and not never_nan(v):
            holds = select(_comparable(v), holds)
    return holds


def never_nan(x: V) -> bool:
    o = x.operand
    return isinstance(o, Iota) or (isinstance(o, Scalar) and not math.isnan(o.value))


def _comparable(x: V) -> V:
    """True unless NaN: every other float is below inf or above -inf."""
    return together(Op.ADD, lt(x, INF), gt(x, -INF))


def isnan(x: V) -> V:
    """Whether an element is NaN."""
    if not x.dtype.is_float:
        return x.model.full(x.shape, False, DType.BOOL)
    return logical_not(_comparable(x))


def isinf(x: V) -> V:
    """Whether an element is infinite."""
    return logical_or(eq(x, INF), eq(x, -INF))


# ---- bool


def _bools(x: V, y: Any) -> tuple[V, V]:
    b = x.lift(y)
    if x.dtype is not DType.BOOL or b.dtype is not DType.BOOL:
        raise x.refuse("E0123", f"& | ^ ~ need bool, got {x.describe()} and {b.describe()}")
    return x, b


def logical_not(x: V) -> V:
    a, _ = _bools(x, True)
    return together(Op.LT, a, a.model.full((), True, DType.BOOL))


def logical_and(x: V, y: Any) -> V:
    return select(*_bools(x, y))


def logical_or(x: V, y: Any) -> V:
    return together(Op.ADD, *_bools(x, y))


def logical_xor(x: V, y: Any) -> V:
    return _differ(*_bools(x, y))


def where(c: V, x: Any, y: Any) -> V:
    """``x`` where ``c``, else ``y``; at least one of the three is a tensor of the model."""
    if isinstance(x, bool | int | float) and isinstance(y, bool | int | float):
        kind = scalar_dtype(x, scalar_dtype(y, DType.BOOL))
        a, b = c.lift(x, kind), c.lift(y, kind)
    elif isinstance(x, bool | int | float):
        b, a = pair(c.lift(y), x)
    else:
        a, b = pair(c.lift(x), y)
    shape = broadcast_shapes(c, c.shape, a.shape, b.shape)
    if constant(b) == 0:
        return expand_to(select(c, a), shape)
    if constant(a) == 0:
        return expand_to(select(logical_not(c), b), shape)
    return add(select(c, a), select(logical_not(c), b))


def where_self(x: V, c: V, y: Any) -> V:
    """``x.where(c, y)``: x where c, else y."""
    return where(c, x, y)


def masked_fill(x: V, mask: V, value: float) -> V:
    """``value`` where the mask is true."""
    return where(mask, x.lift(value, x.dtype), x)
