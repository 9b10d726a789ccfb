"""Comparisons, logic, selection and casts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lumc.frontend.api.elementwise import eq, where
from lumc.frontend.api.integers import bitwise, shift
from lumc.frontend.api.symbols import Symbolic
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.onnx.coded import NAMES, Coded, coded, decoded, encoded
from lumc.frontend.onnx.ops_math import binary
from lumc.frontend.onnx.protos import onnx_dtype
from lumc.frontend.onnx.registry import Unsupported, operator
from lumc.frontend.onnx.values import dtype_of, lumc_dtype, numpy_dtype
from lumc.graph.ops import DType

if TYPE_CHECKING:
    from lumc.frontend.onnx.lower import Call

binary("Equal", lambda a, b: eq(a, b))
binary("Less", lambda a, b: a < b)
binary("Greater", lambda a, b: a > b)
binary("LessOrEqual", lambda a, b: a <= b)
binary("GreaterOrEqual", lambda a, b: a >= b)
binary("And", lambda a, b: a & b)
binary("Or", lambda a, b: a | b)
binary("Xor", lambda a, b: a ^ b)


@operator("Not")
def not_(X: Tensor) -> Tensor:
    return ~X


@operator("IsNaN")
def is_nan(X: Tensor) -> Tensor:
    return X.isnan()


@operator("IsInf")
def is_inf(X: Tensor, *, detect_negative: int = 1, detect_positive: int = 1) -> Tensor:
    never = X.model.full(X.shape, False, DType.BOOL)
    above = eq(X, float("inf")) if detect_positive else never
    below = eq(X, float("-inf")) if detect_negative else never
    return above | below


@operator("Where")
def where_(condition: Tensor, X: Tensor, Y: Tensor) -> Tensor:
    return where(condition, X, Y)


@operator("BitwiseNot")
def bitwise_not(X: Tensor) -> Tensor:
    return -X - 1


def _bitwise(name: str, pick: Any) -> None:
    def row(A: Tensor, B: Tensor) -> Tensor:
        return bitwise(A, B, pick)

    operator(name)(row)


_bitwise("BitwiseAnd", lambda a, b: a & b)
_bitwise("BitwiseOr", lambda a, b: a | b)
_bitwise("BitwiseXor", lambda a, b: a ^ b)


@operator("BitShift", since=11)
def bit_shift(X: Tensor, Y: Tensor, *, direction: str) -> Tensor:
    return shift(X, Y, direction == "LEFT")


@operator("BitCast", note="between integers of one width, and from bool")
def bit_cast(input: Tensor, *, to: int) -> Tensor:
    dtype = dtype_of(to)
    whole = dtype.is_int and (input.dtype.is_int or input.dtype is DType.BOOL)
    if dtype is not input.dtype and not (whole and dtype.nbytes == input.dtype.nbytes):
        raise Unsupported(f"it reads the bits of {input.dtype} as {dtype}", "cast by value")
    return input.to(dtype)


# ---- casts


@operator("Cast", raw=True)
def cast(call: Call, input: Any, *, to: Any, saturate: int = 1, round_mode: str = "up") -> Any:
    if isinstance(to, str):  # opset 1 to 5 name the type
        import onnx

        to = onnx.TensorProto.DataType.Value(to.upper())
    return _cast(call, input, to, bool(saturate), round_mode)


@operator("CastLike", raw=True)
def cast_like(
    call: Call, input: Any, target_type: Any, *, saturate: int = 1, round_mode: str = "up"
) -> Any:
    import onnx

    return _cast(call, input, onnx_dtype(onnx, target_type), bool(saturate), round_mode)


def _cast(call: Call, value: Any, to: int, saturate: bool, mode: str) -> Any:
    """Known values stay known; NaN and what does not fit an int is left to the run time."""
    value = coded(call, value)
    if isinstance(value, Coded):
        value = decoded(value)
    if to in NAMES:
        return encoded(call.tensor(value), to, saturate, mode)
    dtype = dtype_of(to)
    if isinstance(value, Symbolic):
        if dtype in (DType.I64, DType.I32):
            return Symbolic(value.array, numpy_dtype(dtype))
    elif isinstance(value, np.ndarray):
        lumc_dtype(value.dtype)
        exact = value.dtype.kind in "iub" or dtype.is_float or dtype is DType.BOOL
        if exact or bool(np.all(np.abs(value.astype(np.float64)) < 2.0**31)):
            with np.errstate(all="ignore"):
                return value.astype(numpy_dtype(dtype))
    elif isinstance(value, list | type(None)):
        raise Unsupported("a cast of what is not a tensor")
    return call.tensor(value).to(dtype)


@operator("Identity", raw=True)
def identity(input: Any = None) -> Any:
    return input


@operator("Dropout", raw=True)
def dropout(
    call: Call,
    data: Any,
    ratio: Any = None,
    training_mode: Any = None,
    *,
    seed: int = 0,
    is_test: int = 0,
    consumed_inputs: Any = None,
) -> Any:
    """The identity: nothing is dropped outside training."""
    training = training_mode is not None and np.any(call.known(training_mode, "training_mode"))
    if training and (ratio is None or np.any(call.known(ratio, "ratio"))):
        raise Unsupported("dropout while training is random", "export the model in evaluation mode")
    if call.wanted < 2:
        return data
    kept = call.tensor(data)
    return kept, kept.model.full(kept.shape, True, DType.BOOL)
