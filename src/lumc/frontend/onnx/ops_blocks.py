"""Weights of ``com.microsoft`` in blocks: few bits each, a scale and a zero point for a block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from lumc.frontend.api.halves import in_f32
from lumc.frontend.api.lookup import looked_up
from lumc.frontend.api.symbols import Array
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.onnx.coded import coded, decoded, few_bits
from lumc.frontend.onnx.ops_contrib import DOMAIN
from lumc.frontend.onnx.ops_shape import integers, normal
from lumc.frontend.onnx.registry import Unsupported, operator
from lumc.graph.ops import DType

if TYPE_CHECKING:
    from lumc.frontend.onnx.lower import Call

BITS = (2, 4, 8)  # that the schemas define


Coarse = Callable[[Tensor], Tensor]  # what belongs to blocks, for every element


def unpacked(packed: Array, bits: int) -> Array:
    """The numbers u8 in bytes along the last axis, the first one in the lowest bits."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    numbers: Array = packed[..., None] >> shifts & np.uint8((1 << bits) - 1)
    return numbers.reshape(*packed.shape[:-1], -1)


def levels(call: Call, packed: Array, shape: Sequence[int], bits: int) -> Tensor:
    """Packed numbers as a weight u8 of a shape whose rows are filled up."""
    if bits not in BITS:
        raise Unsupported(f"numbers of {bits} bits", "quantise to 2, 4 or 8 bits")
    *rows, length = shape
    numbers = unpacked(packed.reshape(*rows, -1), bits)
    if numbers.shape[-1] < length:
        raise ValueError(f"{numbers.shape[-1]} numbers of {bits} bits, {length} are needed")
    form = f"{bits} bits, {numbers.shape}"
    whole = call.lowering.once(packed, form, partial(few_bits, call.model, numbers))
    return whole[..., :length]


def value_of(numbers: Tensor, zeros: Tensor | float, scales: Tensor, spread: Coarse) -> Tensor:
    """``(number - zero) * scale`` in f32."""
    wide = spread(zeros.to(DType.F32)) if isinstance(zeros, Tensor) else zeros
    return (numbers.to(DType.F32) - wide) * spread(scales)


@operator(
    "MatMulNBits",
    domain=DOMAIN,
    known=["B", "zero_points", "g_idx"],
    note="numbers of 2, 4 and 8 bits",
)
@in_f32
def matmul_nbits(
    call: Call,
    A: Tensor,
    B: Any,
    scales: Tensor,
    zero_points: Any = None,
    g_idx: Any = None,
    bias: Tensor | None = None,
    *,
    K: int,
    N: int,
    accuracy_level: int = 0,
    bits: int = 4,
    block_size: int,
    weight_prepacked: int = 0,
) -> Tensor:
    """A [.., K] times the transpose of a matrix [N, K], whose block of ``block_size`` along K has a
    scale and a zero point; or the element k those of the block ``g_idx[k]``. Computed in f32, which
    is at least what any ``accuracy_level`` asks for."""
    if weight_prepacked:
        raise Unsupported("weights in the order of a GPU", "export them with weight_prepacked = 0")
    blocks = -(-K // block_size)
    numbers = levels(call, B, (N, blocks * block_size), bits)[:, :K]
    zeros: Tensor | float = float(1 << bits - 1)
    if zero_points is not None and zero_points.dtype == np.uint8:
        zeros = levels(call, zero_points, (N, blocks), bits)
    elif zero_points is not None:
        zeros = call.tensor(zero_points).reshape(N, blocks)

    def spread(coarse: Tensor) -> Tensor:
        if g_idx is not None:
            return coarse.index_select(1, call.tensor(g_idx))
        return coarse.repeat_interleave(block_size, 1)[:, :K]

    out = A @ value_of(numbers, zeros, scales.reshape(N, blocks), spread).transpose()
    return out if bias is None else out + bias


@operator(
    "GatherBlockQuantized",
    domain=DOMAIN,
    known=["data", "zero_points"],
    note="numbers of 2, 4 and 8 bits",
)
@in_f32
def gather_block_quantized(
    call: Call,
    data: Any,
    indices: Tensor,
    scales: Tensor,
    zero_points: Any = None,
    *,
    bits: int = 4,
    block_size: int = 128,
    gather_axis: int = 0,
    quantize_axis: int = 1,
) -> Tensor:
    """Rows of a tensor in blocks along ``quantize_axis``, at ``indices`` of ``gather_axis``."""
    along, at = normal(quantize_axis, data.ndim), normal(gather_axis, data.ndim)
    zeros: Tensor | float
    if data.dtype == np.uint8:
        shape = [*data.shape[:-1], data.shape[-1] * 8 // bits]
        numbers, zeros = levels(call, data, shape, bits), float(1 << bits - 1)
        if zero_points is not None:
            zeros = levels(call, zero_points, integers(scales.shape, "a shape"), bits)
    else:
        numbers = decoded(coded(call, data))
        zeros = 0.0 if zero_points is None else decoded(coded(call, zero_points))
    length = numbers.shape[along]

    def spread(coarse: Tensor) -> Tensor:
        return coarse.repeat_interleave(block_size, along).slice(along, 0, length)

    return looked_up(value_of(numbers, zeros, scales, spread), at, indices)
