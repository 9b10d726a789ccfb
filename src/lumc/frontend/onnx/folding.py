"""Values known at import: shape subgraphs and small constant expressions, computed in numpy.

A row computes an operator on arrays that may hold expressions over symbolic dims. A row that
cannot (or whose result would be larger than its inputs justify) gives ``NotImplemented``, and the
node is lowered like any other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lumc.frontend.api.symbols import Arithmetic, Array, Symbolic, Undecided, settle
from lumc.frontend.onnx.registry import Function

SMALL = 4096  # elements: a result up to this size is always folded
FOLDS: dict[str, Function] = {}

_UFUNCS: dict[str, Callable[..., Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Neg": np.negative,
    "Abs": np.abs,
    "Sqrt": np.sqrt,
    "Exp": np.exp,
    "Log": np.log,
    "Floor": np.floor,
    "Ceil": np.ceil,
    "Equal": np.equal,
    "Less": np.less,
    "Greater": np.greater,
    "LessOrEqual": np.less_equal,
    "GreaterOrEqual": np.greater_equal,
    "And": np.logical_and,
    "Or": np.logical_or,
    "Xor": np.logical_xor,
    "Not": np.logical_not,
}


@dataclass
class Folder:
    """Folds nodes whose inputs are all known, while the budget of elements lasts."""

    arithmetic: Arithmetic
    budget: int = 1 << 27

    def fold(
        self, name: str, inputs: Sequence[Any], attributes: Mapping[str, Any]
    ) -> tuple[Any, ...] | None:
        """The outputs, or None when the node has to be lowered. Raises ValueError and the like."""
        if not all(i is None or isinstance(i, np.ndarray | Symbolic) for i in inputs):
            return None
        if sum(i.size for i in inputs if isinstance(i, np.ndarray)) > self.budget:
            return None
        symbols = [i for i in inputs if isinstance(i, Symbolic)]
        if not symbols and not _affordable(name, inputs):
            return None
        arrays = [i.array if isinstance(i, Symbolic) else i for i in inputs]
        with np.errstate(all="ignore"):
            try:
                if symbols and name in _SYMBOLIC:
                    result = _SYMBOLIC[name](self.arithmetic, *arrays, **attributes)
                elif name in FOLDS:
                    result = FOLDS[name](*arrays, **attributes)
                elif name in _UFUNCS and not symbols and not attributes:
                    result = _UFUNCS[name](*arrays)
                else:
                    return None
            except Undecided:
                return None
        if result is NotImplemented:
            return None
        results = result if isinstance(result, tuple) else (result,)
        self.budget -= sum(np.size(r) for r in results)
        dtype = symbols[0].dtype if symbols else None
        return tuple(_finished(r, dtype) for r in results)


def _finished(result: Any, dtype: np.dtype[Any] | None) -> Any:
    array = np.asarray(result)
    return settle(array, dtype) if dtype is not None and array.dtype == object else array


def _affordable(name: str, inputs: Sequence[Any]) -> bool:
    """Broadcasting must not blow a result up beyond its inputs."""
    sizes: list[int] = [i.size for i in inputs if i is not None]
    if name not in _UFUNCS and name not in ("Where", "Div", "Mod", "Pow", "Min", "Max"):
        return True
    shape = np.broadcast_shapes(*(i.shape for i in inputs if i is not None))
    return math.prod(shape) <= max(SMALL, sum(sizes))


def _fits(shape: Sequence[int], base: int = 0) -> bool:
    return math.prod(int(s) for s in shape) <= max(SMALL, base)


def folding(*names: str) -> Callable[[Function], Function]:
    """Register a numpy row; ``axes`` and the like may come as inputs or as attributes."""

    def register(function: Function) -> Function:
        for name in names:
            FOLDS[name] = function
        return function

    return register


def ints(values: Any) -> list[int]:
    """A list of plain ints; raises Undecided where one is symbolic."""
    flat = [values] if isinstance(values, int) else list(np.ravel(values))
    if not all(isinstance(v, int | np.integer) for v in flat):
        raise Undecided("a symbolic index")
    return [int(v) for v in flat]


# ---- symbolic arithmetic

_SYMBOLIC: dict[str, Callable[..., Any]] = {
    "Add": lambda f, a, b, **_: f.apply("add", _plain(a), _plain(b)),
    "Sub": lambda f, a, b, **_: f.apply("sub", _plain(a), _plain(b)),
    "Mul": lambda f, a, b, **_: f.apply("mul", _plain(a), _plain(b)),
    "Div": lambda f, a, b, **_: f.apply("div", _plain(a), _plain(b)),
    "Mod": lambda f, a, b, **_: f.apply("mod", _plain(a), _plain(b)),
    "Neg": lambda f, a, **_: f.apply("mul", a, _plain(np.array(-1))),
    "Equal": lambda f, a, b, **_: f.apply("equal", _plain(a), _plain(b)),
    "Less": lambda f, a, b, **_: f.apply("less", _plain(a), _plain(b)),
    "Greater": lambda f, a, b, **_: f.apply("less", _plain(b), _plain(a)),
    "GreaterOrEqual": lambda f, a, b, **_: ~f.apply("less", _plain(a), _plain(b)),
    "LessOrEqual": lambda f, a, b, **_: ~f.apply("less", _plain(b), _plain(a)),
    "Max": lambda f, *a, **_: _chain(f, "max", a),
    "Min": lambda f, *a, **_: _chain(f, "min", a),
    "ReduceProd": lambda f, a, axes=None, **said: _product(f, a, axes, **said),
}


def _plain(array: Array) -> Array:
    """The elements as Python ints (or expressions), so that arithmetic never wraps."""
    return array if array.dtype == object else array.astype(object)


def _chain(f: Arithmetic, name: str, operands: Sequence[Array]) -> Array:
    result = _plain(operands[0])
    for operand in operands[1:]:
        result = f.apply(name, result, _plain(operand))
    return result


def _product(
    f: Arithmetic, data: Array, axes: Any, keepdims: int = 1, noop_with_empty_axes: int = 0
) -> Any:
    """Of all elements of a list."""
    if data.ndim != 1 or not data.size or (axes is None and noop_with_empty_axes):
        return NotImplemented
    whole = _chain(f, "mul", list(data.reshape(-1, 1)))
    return whole if keepdims else whole.reshape(())


# ---- arithmetic


@folding("Div")
def div(a: Array, b: Array) -> Any:
    if a.dtype.kind == "f" or not a.dtype.kind == b.dtype.kind == "i" or (b == 0).any():
        return np.divide(a, b) if a.dtype.kind == "f" else NotImplemented
    return ((a - np.fmod(a, b)) // b).astype(a.dtype)


@folding("Mod")
def mod(a: Array, b: Array, fmod: int = 0) -> Any:
    if a.dtype.kind != "i" or (b == 0).any():
        return NotImplemented
    return np.fmod(a, b) if fmod else np.mod(a, b)


@folding("Pow")
def power(a: Array, b: Array) -> Any:
    if a.dtype.kind not in "fi" or (a.dtype.kind == "i" and b.dtype.kind != "f" and (b < 0).any()):
        return NotImplemented
    return np.power(a, b).astype(a.dtype)


@folding("Min")
def minimum(*inputs: Array) -> Any:
    return np.minimum.reduce(np.broadcast_arrays(*inputs))


@folding("Max")
def maximum(*inputs: Array) -> Any:
    return np.maximum.reduce(np.broadcast_arrays(*inputs))


@folding("Where")
def where(condition: Array, a: Array, b: Array) -> Array:
    return np.where(condition, a, b)


@folding("Identity")
def identity(a: Any = None) -> Any:
    return NotImplemented if a is None else a  # an optional that is none


# ---- shapes


@folding("Reshape")
def reshape(data: Array, shape: Array, allowzero: int = 0) -> Array:
    target = ints(shape)
    if not allowzero:
        target = [data.shape[i] if n == 0 else n for i, n in enumerate(target)]
    return data.reshape(target)


@folding("Flatten")
def flatten(data: Array, axis: int = 1) -> Array:
    axis = axis + data.ndim if axis < 0 else axis
    return data.reshape(int(np.prod(data.shape[:axis], dtype=np.int64)), -1)


@folding("Squeeze")
def squeeze(data: Array, axes: Any = None) -> Array:
    return np.squeeze(data, None if axes is None else tuple(ints(axes)))


@folding("Unsqueeze")
def unsqueeze(data: Array, axes: Any) -> Array:
    return np.expand_dims(data, tuple(ints(axes)))


@folding("Transpose")
def transpose(data: Array, perm: Any = None) -> Array:
    return np.transpose(data, perm)


@folding("Concat")
def concat(*inputs: Array, axis: int = 1) -> Array:
    return np.concatenate(inputs, axis)


@folding("Gather")
def gather(data: Array, indices: Array, axis: int = 0) -> Any:
    count = data.shape[axis]
    where = np.array(ints(indices), np.int64).reshape(indices.shape)
    if where.size * data.size > max(SMALL, data.size) * max(count, 1):
        return NotImplemented
    if where.size and not -count <= where.min() <= where.max() < count:
        raise ValueError(f"index {where.min()}..{where.max()} of an axis of {count}")
    return np.take(data, where, axis)


@folding("Slice")
def slice_(data: Array, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Array:
    begin, end = ints(starts), ints(ends)
    along = list(range(len(begin))) if axes is None else ints(axes)
    stride = [1] * len(begin) if steps is None else ints(steps)
    index = [slice(None)] * data.ndim
    for axis, b, e, s in zip(along, begin, end, stride, strict=True):
        index[axis] = slice(b, e, s)
    return data[tuple(index)]


@folding("Expand")
def expand(data: Array, shape: Array) -> Any:
    target = np.broadcast_shapes(data.shape, tuple(ints(shape)))
    return np.broadcast_to(data, target).copy() if _fits(target) else NotImplemented


@folding("Tile")
def tile(data: Array, repeats: Array) -> Any:
    times = ints(repeats)
    shape = [n * r for n, r in zip(data.shape, times, strict=True)]
    return np.tile(data, times) if _fits(shape) else NotImplemented


@folding("ConstantOfShape")
def constant_of_shape(shape: Array, value: Any = None) -> Any:
    fill = np.zeros(1, np.float32) if value is None else value
    return np.full(ints(shape), fill.ravel()[0]) if _fits(ints(shape)) else NotImplemented


@folding("Range")
def range_(start: Array, limit: Array, delta: Array, stash_type: int = 1) -> Any:
    """In f64 or integers, which are as exact as any type that sums may be kept in."""
    if start.dtype == object or limit.dtype == object or delta.dtype == object:
        return NotImplemented
    count = max(int(np.ceil((limit.item() - start.item()) / delta.item())), 0)
    if count > SMALL:
        return NotImplemented
    return (start + np.arange(count) * delta).astype(start.dtype)


@folding("ReduceProd")
def reduce_prod(
    data: Array, axes: Any = None, keepdims: int = 1, noop_with_empty_axes: int = 0
) -> Any:
    some = axes is not None and len(ints(axes)) != 1
    if data.dtype == object or some or (axes is None and noop_with_empty_axes):
        return NotImplemented
    along = None if axes is None else ints(axes)[0]
    return np.prod(data, along, keepdims=bool(keepdims)).astype(data.dtype)


@folding("NonZero")
def nonzero(data: Array) -> Any:
    return np.array(np.nonzero(data), np.int64)


@folding("ScatterND")
def scatter_nd(data: Array, indices: Array, updates: Array, reduction: str = "none") -> Any:
    if reduction != "none":
        return NotImplemented
    result = data.copy()
    where = np.array(ints(indices), np.int64).reshape(indices.shape)
    result[tuple(np.moveaxis(where, -1, 0))] = updates
    return result
