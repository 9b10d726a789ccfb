"""Elements of 8 bits and fewer that no graph has: floats as codes in u8, integers in i8 and u8.

A code is looked up in the table of all values of its type. A float becomes the code that is the
number of its neighbours' midpoints below it, for codes are in the order of the values. Midpoints
that round to an even code below them are moved up by one bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from lumc.disk.weights import words
from lumc.frontend.api.elementwise import where
from lumc.frontend.api.symbols import Array
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.onnx.registry import Unsupported
from lumc.frontend.onnx.values import constant_tensor, unsupported_dtype
from lumc.graph.derive import NIBBLE
from lumc.graph.dim import Extent
from lumc.graph.graph import Derivation
from lumc.graph.ops import DType

if TYPE_CHECKING:
    from lumc.frontend.api.model import Model

# ONNX's numbers, with the names in ml_dtypes
FLOATS = {
    17: "float8_e4m3fn",
    18: "float8_e4m3fnuz",
    19: "float8_e5m2",
    20: "float8_e5m2fnuz",
    23: "float4_e2m1fn",
    24: "float8_e8m0fnu",
}
INTEGERS = {21: "uint4", 22: "int4", 25: "uint2", 26: "int2"}
NAMES = FLOATS | INTEGERS
NUMBERS = {name: number for number, name in NAMES.items()}
EIGHT = 8  # numbers of 4 bits in a word
SCALE = 24  # powers of two, without a sign
# what these do is the same whatever the elements are
MOVES = {
    *("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten"),
    *("Concat", "Slice", "Gather", "Expand", "Split"),
}


@dataclass(frozen=True)
class Coded:
    """Elements of a type, by its ONNX number, as the integers that stand for them."""

    number: int
    tensor: Tensor  # u8 or i8

    @property
    def shape(self) -> tuple[Extent, ...]:
        return self.tensor.shape


def stored(number: int) -> DType:
    """The dtype of the integers that stand for elements."""
    return DType.I8 if NAMES[number].startswith("int") else DType.U8


def numpy_type(number: int) -> np.dtype[Any]:
    """The type as numpy has it."""
    import ml_dtypes

    if not hasattr(ml_dtypes, NAMES[number]):
        raise unsupported_dtype(NAMES[number])
    return np.dtype(getattr(ml_dtypes, NAMES[number]))


def limits(number: int) -> tuple[int, int]:
    """The least and the greatest integer."""
    bits = int(NAMES[number][-1])
    signed = stored(number) is DType.I8
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)


def codes(array: Array) -> Array:
    """The integers that stand for the elements of an array."""
    number = NUMBERS[array.dtype.name]
    if number in INTEGERS:
        return array.astype(stored(number).numpy)
    return np.ascontiguousarray(array).view(np.uint8).reshape(array.shape)


def elements(array: Array, number: int) -> Array:
    """The elements that integers stand for."""
    kind = numpy_type(number)
    return array.astype(kind) if number in INTEGERS else array.view(kind)


def coded(call: Any, value: Any) -> Any:
    """A value with coded elements as ``Coded``; others are as they are."""
    if isinstance(value, np.ndarray) and value.dtype.name in NUMBERS:
        number = NUMBERS[value.dtype.name]
        if number not in INTEGERS or not value.size:
            return Coded(number, call.tensor(codes(value)))
        low, _ = limits(number)
        raised = (codes(value) - low).astype(np.uint8)
        kept = call.lowering.once(
            value, f"as {raised.shape}", partial(few_bits, call.model, raised)
        )
        return Coded(number, kept if low == 0 else kept.to(DType.I8) + low)
    return value


def few_bits(model: Model, numbers: Array, name: str) -> Tensor:
    """Numbers u8 as a weight: eight in a word of 32 bits, the first one in its lowest bits, where
    they are below 16 and fill words."""
    fits = numbers.ndim > 0 and numbers.shape[-1] % EIGHT == 0 and numbers.max() < 1 << NIBBLE
    if not fits or numbers.min() == numbers.max():
        return constant_tensor(model, numbers, name)
    how = Derivation(DType.I32, "nibbles", numbers.ndim - 1, EIGHT)
    tensor = model.weight(name, numbers.shape, DType.U8, None, name, how)
    model.constants[name] = words(numbers)
    return tensor


def moved(call: Any, inputs: Sequence[Any]) -> tuple[list[Any], int]:
    """The inputs without what says of which type they are, and that: 0 if of none."""
    found = [coded(call, value) for value in inputs]
    numbers = {value.number for value in found if isinstance(value, Coded)}
    if len(numbers) > 1:
        raise Unsupported(f"{' and '.join(sorted(NAMES[n] for n in numbers))} together")
    plain = [value.tensor if isinstance(value, Coded) else value for value in found]
    return plain, max(numbers, default=0)


# ---- from and to numbers


def table(number: int) -> Array:
    """f32: the value of every code."""
    bits = 16 if number == NUMBERS["float4_e2m1fn"] else 256
    return np.arange(bits, dtype=np.uint8).view(numpy_type(number)).astype(np.float32)


def decoded(value: Coded) -> Tensor:
    """The numbers: f32 of floats, the integers themselves of others."""
    if value.number in INTEGERS:
        return value.tensor
    code, values = value.tensor.to(DType.I32), table(value.number)
    if value.number == SCALE:
        return constant_tensor(code.model, values).index_select(0, code)
    sizes = constant_tensor(code.model, np.abs(values)).index_select(0, code)
    return sizes * where(code < len(values) // 2, 1.0, -1.0)  # a lookup has no negative zero


def encoded(x: Tensor, number: int, saturate: bool = True, mode: str = "up") -> Coded:
    """The nearest element, of two the even one; integers wrap. What is too large becomes the
    greatest one, or unless it should ``saturate`` infinite or NaN. ``mode``: how scales round."""
    if number in INTEGERS:
        return Coded(number, _wrapped(x, number))
    x = x if x.dtype is DType.F64 else x.to(DType.F32)
    if number == SCALE:
        return Coded(number, _scale(x, mode))
    values = table(number)
    half = len(values) // 2
    finite = np.flatnonzero(np.isfinite(values[:half]))
    greatest = int(finite[-1])
    code = _count(x.abs(), _midpoints(values[: greatest + 1], x.dtype))
    past = values[greatest] + (values[greatest] - values[greatest - 1]) / 2
    nan = [int(i) for i in np.flatnonzero(np.isnan(values))]
    if not saturate and nan:
        infinite = np.isinf(values[:half]).any()
        size, far = x.abs(), float(past)
        beyond = size >= far if greatest % 2 else size > far  # a tie goes to the even code
        code = where(beyond, greatest + 1 if infinite else nan[0], code)
    negative = (x < 0.0) | ((x == 0.0) & (x.reciprocal() < 0.0))
    signed = code + half
    if np.isnan(values[half]):  # there is no negative zero
        signed = where(code == 0, 0, where(code == nan[0], code, signed))
    code = where(negative, signed, code)
    return Coded(number, where(x.isnan(), nan[0] if nan else 0, code).to(DType.U8))


def _midpoints(values: Array, kind: DType) -> Array:
    """What lies above the i-th is nearer to the next value."""
    middle = ((values[1:].astype(np.float64) + values[:-1]) / 2).astype(kind.numpy)
    below = np.nextafter(middle, kind.numpy.type(-1))
    return np.where(np.arange(1, len(values)) % 2 == 0, below, middle)  # ties to even codes


def _count(x: Tensor, bounds: Array) -> Tensor:
    """i64: how many of the bounds are below each element."""
    return (x.unsqueeze(-1) > constant_tensor(x.model, bounds)).sum(-1)


def _scale(x: Tensor, mode: str) -> Tensor:
    """Powers of two: the next one above, below, or the nearest."""
    values = table(SCALE)[:-1].astype(x.dtype.numpy)
    bounds = values[:-1]
    if mode == "down":
        bounds = np.nextafter(values[1:], x.dtype.numpy.type(-1))
    elif mode == "nearest":
        bounds = np.nextafter(values[:-1] * x.dtype.numpy.type(1.5), x.dtype.numpy.type(-1))
    elif mode != "up":
        raise Unsupported(f"round_mode {mode}")
    return where(x.isnan(), 255, _count(x, bounds)).to(DType.U8)


def _wrapped(x: Tensor, number: int) -> Tensor:
    low, high = limits(number)
    whole = x.to(DType.I32) if x.dtype.is_float or x.dtype is DType.BOOL else x.to(DType.I64)
    return ((whole - low).remainder(high - low + 1) + low).to(stored(number))
