"""Quantisation: integers with a scale and a zero point."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lumc.frontend.api.tensor import Tensor
from lumc.frontend.onnx.coded import (
    FLOATS,
    INTEGERS,
    Coded,
    coded,
    decoded,
    encoded,
    limits,
    stored,
)
from lumc.frontend.onnx.ops_contract import conv
from lumc.frontend.onnx.ops_shape import normal
from lumc.frontend.onnx.protos import onnx_dtype
from lumc.frontend.onnx.registry import Unsupported, operator
from lumc.frontend.onnx.values import dtype_of
from lumc.graph.ops import DType

if TYPE_CHECKING:
    from lumc.frontend.onnx.lower import Call

NARROW = (DType.U8, DType.I8, DType.U16, DType.I16)


def quotient(x: Tensor, scale: Tensor) -> Tensor:
    """``x / scale`` rounded as one f32 division: ties in the rounding that follows are exact."""
    wide = x.to(DType.F64) * scale.to(DType.F64).reciprocal()
    return wide.to(DType.F32)


def saturated(
    x: Tensor, zero: Tensor | None, dtype: DType, ends: tuple[int, int] | None = None
) -> Tensor:
    """Round to even, shift by the zero point, clip to the range of an int type, or its ends."""
    if dtype not in NARROW:
        raise Unsupported(f"quantisation to {dtype.value}", "quantise to 8 or 16 bits")
    low, high = map(float, ends or dtype.limits)
    shifted = x.round() if zero is None else x.round() + zero.to(DType.F32)
    return shifted.clip(low, high).to(dtype)


def along(v: Tensor, x: Tensor, axis: int, block_size: int) -> Tensor:
    """A scale or zero point, one or per axis or per block, against the tensor."""
    if v.ndim == 0 or v.shape == (1,):
        return v.reshape(())
    axis = normal(axis, x.ndim)
    if v.ndim == x.ndim:
        wide = v.repeat_interleave(block_size, axis) if block_size > 1 else v
        if wide.shape[axis] != x.shape[axis]:
            wide = wide.slice(axis, 0, x.shape[axis])
        return wide
    return v.reshape(-1, *[1] * (x.ndim - axis - 1))


@operator("QuantizeLinear", raw=True, note="to 16 bits and fewer")
def quantize_linear(
    call: Call,
    x: Any,
    y_scale: Any,
    y_zero_point: Any = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
    saturate: int = 1,
) -> Any:
    import onnx

    value, scale = call.tensor(x), call.tensor(y_scale)
    number = output_dtype or onnx.TensorProto.UINT8
    if y_zero_point is not None:
        number = onnx_dtype(onnx, y_zero_point)
    exact = quotient(value, along(scale, value, axis, block_size))
    if number in FLOATS:  # whose zero points are 0
        return encoded(exact, number, bool(saturate))
    zero = None
    if y_zero_point is not None:
        zero = along(_numbers(call, y_zero_point), value, axis, block_size)
    if number in INTEGERS:
        return Coded(number, saturated(exact, zero, stored(number), limits(number)))
    return saturated(exact, zero, dtype_of(number))


def _numbers(call: Call, value: Any) -> Tensor:
    """A tensor whose elements may be coded, as numbers."""
    value = coded(call, value)
    return decoded(value) if isinstance(value, Coded) else call.tensor(value)


@operator("DequantizeLinear", raw=True, note="from 16 bits and fewer, and i32")
def dequantize_linear(
    call: Call,
    x: Any,
    x_scale: Any,
    x_zero_point: Any = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> Tensor:
    given, scale = _numbers(call, x), call.tensor(x_scale)
    kind = DType.F32 if given.dtype.is_float else DType.I32
    value = given.to(kind)
    if x_zero_point is not None:
        value = value - along(_numbers(call, x_zero_point), value, axis, block_size).to(kind)
    out = value.to(DType.F32) * along(scale, value, axis, block_size).to(DType.F32)
    return out.to(dtype_of(output_dtype) if output_dtype else scale.dtype)


def centred(x: Tensor, zero: Tensor | None, axis: int) -> Tensor:
    """The integer without its zero point, in i32."""
    value = x.to(DType.I32)
    if zero is None:
        return value
    shift = zero.to(DType.I32)
    if zero.ndim == 1 and zero.shape != (1,):
        shift = shift.reshape(-1, *[1] * (x.ndim - normal(axis, x.ndim) - 1))
    return value - (shift.reshape(()) if zero.shape in ((), (1,)) else shift)


@operator("MatMulInteger")
def matmul_integer(
    A: Tensor, B: Tensor, a_zero_point: Tensor | None = None, b_zero_point: Tensor | None = None
) -> Tensor:
    return centred(A, a_zero_point, -2) @ centred(B, b_zero_point, -1)


@operator("ConvInteger")
def conv_integer(
    call: Call,
    x: Tensor,
    w: Tensor,
    x_zero_point: Tensor | None = None,
    w_zero_point: Tensor | None = None,
    **attributes: Any,
) -> Tensor:
    a, b = centred(x, x_zero_point, 1), centred(w, w_zero_point, 0)
    out: Tensor = conv(call, a, b, None, **attributes)
    return out


@operator("QLinearMatMul")
def qlinear_matmul(
    a: Tensor,
    a_scale: Tensor,
    a_zero_point: Tensor,
    b: Tensor,
    b_scale: Tensor,
    b_zero_point: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor,
) -> Tensor:
    total = centred(a, a_zero_point, -2) @ centred(b, b_zero_point, -1)
    scale = a_scale.to(DType.F64) * b_scale.to(DType.F64)
    real = (total.to(DType.F64) * scale).to(DType.F32)
    return saturated(quotient(real, y_scale), y_zero_point, y_zero_point.dtype)


@operator("QLinearConv")
def qlinear_conv(
    call: Call,
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor,
    w: Tensor,
    w_scale: Tensor,
    w_zero_point: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor,
    B: Tensor | None = None,
    **attributes: Any,
) -> Tensor:
    a, b = centred(x, x_zero_point, 1), centred(w, w_zero_point, 0)
    total: Tensor = conv(call, a, b, B, **attributes)
    scale = x_scale.to(DType.F64) * along(w_scale, total, 1, 0).to(DType.F64)
    real = (total.to(DType.F64) * scale).to(DType.F32)
    return saturated(quotient(real, y_scale), y_zero_point, y_zero_point.dtype)
