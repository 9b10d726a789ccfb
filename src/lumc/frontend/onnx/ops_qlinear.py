"""Quantised operators of ``com.microsoft``: integers with a scale and a zero point."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from lumc.frontend.api.elementwise import where
from lumc.frontend.api.join import concat
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.onnx.ops_attention import FILL, WHOLE, refuse, self_attention
from lumc.frontend.onnx.ops_contrib import DOMAIN, embedded, rounded
from lumc.frontend.onnx.ops_norm import leaky_relu, softmax, softmax_1
from lumc.frontend.onnx.ops_quantize import (
    centred,
    dequantize_linear,
    qlinear_conv,
    quantize_linear,
    quotient,
    saturated,
)
from lumc.frontend.onnx.ops_shape import normal
from lumc.frontend.onnx.ops_window import average_pool, global_average_pool
from lumc.frontend.onnx.registry import Function, Unsupported, operator
from lumc.graph.ops import DType

if TYPE_CHECKING:
    from lumc.frontend.onnx.lower import Call

operator("QuantizeLinear", domain=DOMAIN, raw=True, note="to 16 bits and fewer")(quantize_linear)
operator("DequantizeLinear", domain=DOMAIN, raw=True, note="from 16 bits and fewer, and i32")(
    dequantize_linear
)


def number(x: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
    """What integers with one scale stand for, f32."""
    return centred(x, zero, 0).to(DType.F32) * scale.reshape(())


def code(x: Tensor, scale: Tensor, zero: Tensor | None, dtype: DType) -> Tensor:
    """f32 as integers with one scale."""
    at = None if zero is None else zero.reshape(())
    return saturated(quotient(x, scale.reshape(())), at, dtype)


def last(x: Tensor) -> Tensor:
    """Channels behind the first axis, as the last ones."""
    return x.moveaxis(1, -1)


def over(function: Callable[..., Tensor]) -> Function:
    """A row for a function of numbers, with attributes; ``channels_last`` is not its matter."""

    def row(
        call: Call,
        X: Tensor,
        X_scale: Tensor,
        X_zero_point: Tensor | None,
        Y_scale: Tensor,
        Y_zero_point: Tensor | None = None,
        *,
        channels_last: int = 0,
        **attributes: Any,
    ) -> Tensor:
        x = number(X, X_scale, X_zero_point)
        out = function(call, x.moveaxis(-1, 1) if channels_last else x, **attributes)
        return code(last(out) if channels_last else out, Y_scale, Y_zero_point, X.dtype)

    return row


def _softmax(call: Call, x: Tensor, *, opset: int, axis: int = -1) -> Tensor:
    out: Tensor = (softmax if opset >= 13 else softmax_1)(x, axis=axis)
    return out


def _mean(call: Call, x: Tensor, *, axes: Sequence[int] = (), keepdims: int = 1) -> Tensor:
    along = tuple(normal(a, x.ndim) for a in axes) or tuple(range(x.ndim))
    return x.mean(along, bool(keepdims))


_FUNCTIONS: dict[str, Function] = {
    "QLinearSigmoid": lambda call, x: x.sigmoid(),
    "QLinearLeakyRelu": lambda call, x, alpha=0.01: leaky_relu(x, alpha=alpha),
    "QLinearAveragePool": average_pool,
    "QLinearGlobalAveragePool": lambda call, x: global_average_pool(x),
    "QLinearSoftmax": _softmax,
    "QLinearReduceMean": _mean,
}
for _name, _function in _FUNCTIONS.items():
    operator(_name, domain=DOMAIN)(over(_function))


def of_two(function: Callable[[Tensor, Tensor], Tensor]) -> Function:
    """A row for a function of two numbers."""

    def row(
        A: Tensor,
        A_scale: Tensor,
        A_zero_point: Tensor | None,
        B: Tensor,
        B_scale: Tensor,
        B_zero_point: Tensor | None,
        C_scale: Tensor,
        C_zero_point: Tensor | None = None,
    ) -> Tensor:
        a, b = number(A, A_scale, A_zero_point), number(B, B_scale, B_zero_point)
        return code(function(a, b), C_scale, C_zero_point, A.dtype)

    return row


operator("QLinearAdd", domain=DOMAIN)(of_two(lambda a, b: a + b))
operator("QLinearMul", domain=DOMAIN)(of_two(lambda a, b: a * b))


@operator("QLinearWhere", domain=DOMAIN)
def qlinear_where(
    condition: Tensor,
    X: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor,
    Y: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor,
    z_scale: Tensor,
    z_zero_point: Tensor,
) -> Tensor:
    x, y = number(X, x_scale, x_zero_point), number(Y, y_scale, y_zero_point)
    return code(where(condition, x, y), z_scale, z_zero_point, z_zero_point.dtype)


@operator("QLinearConcat", domain=DOMAIN)
def qlinear_concat(Y_scale: Tensor, Y_zero_point: Tensor, *inputs: Tensor, axis: int) -> Tensor:
    """Of tensors, their scales and their zero points in turn."""
    parts = [number(*inputs[i : i + 3]) for i in range(0, len(inputs), 3)]
    return code(
        concat(parts, normal(axis, parts[0].ndim)), Y_scale, Y_zero_point, Y_zero_point.dtype
    )


@operator("QLinearConv", domain=DOMAIN)
def qlinear_conv_last(
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
    *,
    channels_last: int = 0,
    **attributes: Any,
) -> Tensor:
    """As the standard has it; x and the result may have their channels last."""
    given = x.moveaxis(-1, 1) if channels_last else x
    rest = (x_scale, x_zero_point, w, w_scale, w_zero_point, y_scale, y_zero_point, B)
    out: Tensor = qlinear_conv(call, given, *rest, **attributes)
    return last(out) if channels_last else out


# ---- products


def _product(a: Tensor, scale: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
    """Integers without their zero points, multiplied, in f32; of ``scale`` one, or of columns."""
    out = (a @ b).to(DType.F32) * scale
    return out if bias is None else out + bias


@operator("MatMulIntegerToFloat", domain=DOMAIN)
def matmul_integer_to_float(
    A: Tensor,
    B: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    a_zero_point: Tensor | None = None,
    b_zero_point: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    if a_scale.shape not in ((), (1,)):
        raise Unsupported("a scale for each column that is summed", "give one a_scale")
    a, b = centred(A, a_zero_point, -2), centred(B, b_zero_point, -1)
    return _product(a, a_scale.reshape(()) * _of_columns(b_scale), b, bias)


@operator("DynamicQuantizeMatMul", domain=DOMAIN)
def dynamic_quantize_matmul(
    A: Tensor,
    B: Tensor,
    b_scale: Tensor,
    b_zero_point: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """A is rounded to eight bits first, as DynamicQuantizeLinear does."""
    a, scale = rounded(A)
    return _product(a, scale * _of_columns(b_scale), centred(B, b_zero_point, -1), bias)


def _of_columns(scale: Tensor) -> Tensor:
    return scale.reshape(()) if scale.shape == (1,) else scale


@operator("QGemm", domain=DOMAIN)
def qgemm(
    A: Tensor,
    a_scale: Tensor,
    a_zero_point: Tensor,
    B: Tensor,
    b_scale: Tensor,
    b_zero_point: Tensor,
    C: Tensor | None = None,
    y_scale: Tensor | None = None,
    y_zero_point: Tensor | None = None,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Tensor:
    """C is i32, in units of the product; f32 unless there is a ``y_scale``."""
    a, b = centred(A, a_zero_point, 0), centred(B.transpose() if transB else B, b_zero_point, -1)
    total = (a.transpose() if transA else a) @ b
    total = total if C is None else total + C
    out = total.to(DType.F32) * (a_scale.reshape(()) * _of_columns(b_scale) * alpha)
    if y_scale is None:
        return out
    return code(
        out, y_scale, y_zero_point, DType.U8 if y_zero_point is None else y_zero_point.dtype
    )


# ---- layers


@operator("QAttention", domain=DOMAIN)
def qattention(
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    input_scale: Tensor,
    weight_scale: Tensor,
    mask_index: Tensor | None = None,
    input_zero_point: Tensor | None = None,
    weight_zero_point: Tensor | None = None,
    past: Tensor | None = None,
    *,
    do_rotary: int = 0,
    mask_filter_value: float = FILL,
    num_heads: int,
    past_present_share_buffer: int = 0,
    scale: float = 0.0,
    unidirectional: int = 0,
) -> tuple[Tensor, ...]:
    """As ``Attention``, of integers times integers."""
    refuse("rotary positions inside", do_rotary, "export them as RotaryEmbedding")
    refuse("past and present in one buffer", past_present_share_buffer, WHOLE)
    a, b = centred(input, input_zero_point, 0), centred(weight, weight_zero_point, -1)
    mixed = _product(a, input_scale.reshape(()) * _of_columns(weight_scale), b, bias)
    return self_attention(
        mixed,
        mask_index,
        past,
        num_heads=num_heads,
        fill=mask_filter_value,
        scale=scale,
        causal=bool(unidirectional),
    )


@operator("QEmbedLayerNormalization", domain=DOMAIN)
def q_embed_layer_normalization(
    input_ids: Tensor,
    segment_ids: Tensor | None,
    word_embedding_quant: Tensor,
    position_embedding_quant: Tensor,
    segment_embedding: Tensor | None,
    gamma_quant: Tensor,
    beta_quant: Tensor,
    mask: Tensor | None,
    word_embedding_scale: Tensor,
    position_embedding_scale: Tensor,
    segment_embedding_scale: Tensor | None,
    gamma_scale: Tensor,
    beta_scale: Tensor,
    word_embedding_zero_point: Tensor,
    position_embedding_zero_point: Tensor,
    segment_embedding_zero_point: Tensor | None,
    gamma_zero_point: Tensor,
    beta_zero_point: Tensor,
    *,
    epsilon: float = 1e-12,
) -> tuple[Tensor, ...]:
    segments = None
    if segment_embedding is not None and segment_embedding_scale is not None:
        segments = number(segment_embedding, segment_embedding_scale, segment_embedding_zero_point)
    return embedded(
        input_ids,
        segment_ids,
        number(word_embedding_quant, word_embedding_scale, word_embedding_zero_point),
        number(position_embedding_quant, position_embedding_scale, position_embedding_zero_point),
        segments,
        number(gamma_quant, gamma_scale, gamma_zero_point),
        number(beta_quant, beta_scale, beta_zero_point),
        mask,
        epsilon=epsilon,
    )[:2]
