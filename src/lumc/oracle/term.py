"""The meaning of kernel terms, in numpy: floats in float64, integers in their own width.

A value is ``(array, axes)``: one array dimension per free axis, axes in alphabetical order.
Used by the tests of rules, lowering and printers; nothing that ships computes with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from lumc.graph.expr import Expr, subterms
from lumc.graph.ops import DType, from_bf16
from lumc.kernel.term import Kernel, dtype

Array = np.ndarray[Any, np.dtype[Any]]
Value = tuple[Array, tuple[str, ...]]

_UNARY: dict[str, Callable[[Array], Array]] = {
    "exp2": np.exp2,
    "log2": np.log2,
    "sin": np.sin,
    "sqrt": np.sqrt,
    "recip": np.reciprocal,
}
_BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "mul": np.multiply,
    "mod": np.fmod,  # of integers by 0: 0, as numpy
    "lt": np.less,
    "eq": np.equal,
    "or": np.logical_or,
    "sel": lambda a, b: np.where(a, b, np.zeros((), b.dtype)),
}


def evaluate_term(
    term: Expr,
    extent: Mapping[str, int],
    buffers: Mapping[str, Array],
    points: Mapping[str, Array] | None = None,
    narrow: bool = False,
    shaken: np.random.Generator | None = None,
) -> Value:
    """The value of a term over its free axes, each of the given extent.

    ``buffers`` holds numpy arrays by name; bf16 buffers hold their uint16 bits. A load outside its
    buffer that is not under a guard gives NaN (integers: the least value). ``points`` evaluates
    only at these positions of some axes, whose extent is then the number of positions. ``narrow``:
    values on the way are as f32 has them, where no f64 is asked for: too large ones are infinite,
    and those below the normal numbers are zero. ``shaken``: they are off by half of their last bit
    or so, up or down, as f32 rounds them (f64 where that is asked for).
    """
    at = points or {}
    memo: dict[Expr, Value] = {}
    with np.errstate(all="ignore"):
        for e in subterms(term):
            if e.kind == "axis" and e.attr[0] in at:
                memo[e] = at[e.attr[0]], e.attr
            else:
                memo[e] = _evaluate(e, [memo[k] for k in e.kids], extent, buffers)
            if narrow and memo[e][0].dtype.kind == "f" and dtype(e) is not DType.F64:
                memo[e] = _in_f32(memo[e][0]), memo[e][1]
            if shaken and memo[e][0].dtype.kind == "f":
                memo[e] = _shaken(memo[e][0], dtype(e), shaken), memo[e][1]
    return memo[term]


def _shaken(array: Array, kind: DType, rng: np.random.Generator) -> Array:
    bit = np.finfo(np.float64 if kind is DType.F64 else np.float32).epsneg
    return np.asarray(array * (1 + rng.choice((-bit, bit), array.shape)))


def _in_f32(array: Array) -> Array:
    single = array.astype(np.float32)
    small = np.abs(single) < np.finfo(np.float32).smallest_normal
    return np.where(small, 0.0, single.astype(np.float64))


def evaluate_kernel(kernel: Kernel, buffers: Mapping[str, Array]) -> dict[str, Array]:
    """Every stored buffer after the kernel, floats in float64; reads see the state before it."""
    out: dict[str, Array] = {}
    for b in (kernel.buffer(name) for name in kernel.stored):
        given = buffers.get(b.name, np.zeros(b.shape, b.dtype.numpy))
        out[b.name] = widen(given, b.dtype)
    for root in kernel.roots:
        value = evaluate_term(root.value, kernel.extent, buffers)
        index = [evaluate_term(i, kernel.extent, buffers) for i in root.index]
        axes = {a for _, names in index for a in names}
        over: Value = (np.zeros([kernel.extent[a] for a in sorted(axes)]), tuple(sorted(axes)))
        arrays, _ = _align([value, over, *index], kernel.extent)
        parts = np.broadcast_arrays(*arrays)
        out[root.buffer][tuple(parts[2:])] = parts[0]
    return out


def widen(array: Array, kind: DType) -> Array:
    """Stored elements as computed with: floats as float64 (bf16 from its bits), others as is."""
    if kind is DType.BF16 and array.dtype == np.uint16:
        array = from_bf16(array)
    with np.errstate(invalid="ignore"):  # a signalling NaN
        return array.astype(_type(kind))


def _type(kind: DType) -> np.dtype[Any]:
    return np.dtype(np.float64) if kind.is_float else kind.numpy


def _align(values: Sequence[Value], extent: Mapping[str, int]) -> tuple[list[Array], Any]:
    """The same values, each with one dimension per axis of any of them (1 where it has none)."""
    axes = tuple(sorted({a for _, names in values for a in names}))
    shaped = [v.reshape([extent[a] if a in names else 1 for a in axes]) for v, names in values]
    return shaped, axes


def _least(kind: np.dtype[Any]) -> Any:
    if kind.kind == "f":
        return -np.inf
    return False if kind.kind == "b" else np.iinfo(kind).min


def _evaluate(
    e: Expr, kids: list[Value], extent: Mapping[str, int], buffers: Mapping[str, Array]
) -> Value:
    match e.kind:
        case "axis":
            return np.arange(extent[e.attr[0]]), (e.attr[0],)
        case "num":
            return np.array(e.attr[0], np.int64), ()
        case "const":
            return np.array(e.attr[1], _type(dtype(e))), ()
        case "dyn":
            return kids[0][0].astype(np.int64), kids[0][1]
        case "iota" | "cast":
            return kids[0][0].astype(_type(dtype(e))), kids[0][1]
        case "div":
            return kids[0][0] // e.attr[0], kids[0][1]
        case "mod":
            return kids[0][0] % e.attr[0], kids[0][1]
        case "un":
            return _UNARY[e.attr[0]](kids[0][0]), kids[0][1]
        case "red":
            return _reduce(e.attr[0], e.attr[1], kids[0], extent)
    arrays, axes = _align(kids, extent)
    match e.kind:
        case "where":
            return np.where(*arrays), axes
        case "lin":
            total = sum((c * a for c, a in zip(e.attr[1], arrays, strict=True)), np.int64(0))
            return np.asarray(total) + e.attr[0], axes
        case "load":
            return _load(widen(buffers[e.attr[0]], dtype(e)), arrays), axes
        case "guard":
            inside = (arrays[0] >= e.attr[0]) & (arrays[0] < e.attr[1])
            return np.where(inside, arrays[1], np.zeros((), arrays[1].dtype)), axes
        case "bin":
            return _BINARY[e.attr[0]](arrays[0], arrays[1]), axes
        case "wsum":
            top, names = _reduce("max", e.attr, kids[0], extent)
            (s, v, m), axes = _align([*kids, (top, names)], extent)
            return _reduce("sum", e.attr, (np.exp2(s - m) * v, axes), extent)
    raise ValueError(f"no value: {e.kind}")


def _load(array: Array, index: list[Array]) -> Array:
    if not index:
        return array
    inside = np.ones((), bool)
    for i, n in zip(index, array.shape, strict=True):
        inside = inside & (i >= 0) & (i < n)
    poison = np.nan if array.dtype.kind == "f" else _least(array.dtype)
    if not array.size:
        return np.full(inside.shape, poison, array.dtype)
    near = [np.clip(i, 0, n - 1) for i, n in zip(index, array.shape, strict=True)]
    return np.where(inside, array[tuple(np.broadcast_arrays(*near))], poison).astype(array.dtype)


def _reduce(op: str, over: Sequence[str], value: Value, extent: Mapping[str, int]) -> Value:
    """One value per point of the other axes; a bound axis that the body lacks still counts."""
    array, axes = value
    for a in over:
        if a not in axes:
            array, axes = np.repeat(array[..., None], extent[a], axis=-1), (*axes, a)
    at = tuple(axes.index(a) for a in over)
    kept = tuple(a for a in axes if a not in over)
    if op == "sum":
        return np.asarray(array.sum(at, dtype=array.dtype)), kept
    return np.asarray(array.max(at, initial=_least(array.dtype))), kept
