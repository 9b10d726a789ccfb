"""Operators of the domain ``com.microsoft``, as onnxruntime's optimizer writes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lumc.frontend.api.elementwise import logical_not
from lumc.frontend.api.halves import in_f32
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.onnx.ops_contract import conv, gemm
from lumc.frontend.onnx.ops_index import bounded
from lumc.frontend.onnx.ops_quantize import quotient
from lumc.frontend.onnx.ops_recurrent import Product, directions, long_short
from lumc.frontend.onnx.registry import PLAINLY, Unsupported, operator
from lumc.graph.ops import DType

if TYPE_CHECKING:
    from lumc.frontend.onnx.lower import Call

DOMAIN = "com.microsoft"


@operator("Gelu", domain=DOMAIN)
@in_f32
def gelu(X: Tensor) -> Tensor:
    return X.gelu()


@operator("BiasGelu", domain=DOMAIN)
@in_f32
def bias_gelu(A: Tensor, B: Tensor) -> Tensor:
    return (A + B).gelu()


@operator("FastGelu", domain=DOMAIN)
@in_f32
def fast_gelu(X: Tensor, bias: Tensor | None = None) -> Tensor:
    return (X if bias is None else X + bias).gelu("tanh")


@operator("QuickGelu", domain=DOMAIN)
@in_f32
def quick_gelu(X: Tensor, *, alpha: float = 1.702) -> Tensor:
    return X * (X * alpha).sigmoid()


@operator("BiasSplitGelu", domain=DOMAIN)
@in_f32
def bias_split_gelu(X: Tensor, bias: Tensor) -> Tensor:
    value, gate = (X + bias).chunk(2, -1)
    return value * gate.gelu()


@operator("FusedMatMul", domain=DOMAIN)
@in_f32
def fused_matmul(
    A: Tensor,
    B: Tensor,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> Tensor:
    a, b = (x.moveaxis(0, -2) if batch else x for x, batch in ((A, transBatchA), (B, transBatchB)))
    out = (a.transpose() if transA else a) @ (b.transpose() if transB else b)
    return out if alpha == 1.0 else out * alpha


@operator("FusedGemm", domain=DOMAIN)
def fused_gemm(
    A: Tensor,
    B: Tensor,
    C: Tensor | None = None,
    *,
    activation: str = "Relu",
    activation_alpha: float = 0.01,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Tensor:
    out: Tensor = gemm(A, B, C, alpha=alpha, beta=beta, transA=transA, transB=transB)
    given = [activation_alpha] if activation == "LeakyRelu" else []
    return activated(out, activation, given)


def activated(x: Tensor, name: str, given: Sequence[float]) -> Tensor:
    """An activation that onnxruntime fuses, with its parameters."""
    match name, [float(v) for v in given]:
        case (("Relu" | "Tanh" | "Sigmoid"), _):
            out: Tensor = {"Relu": x.relu, "Tanh": x.tanh, "Sigmoid": x.sigmoid}[name]()
            return out
        case "LeakyRelu", [slope]:
            return x.leaky_relu(slope)
        case "Clip", [low, high]:
            return x.clip(low, high)
        case "HardSigmoid", [slope, shift]:
            return (x * slope + shift).clip(0.0, 1.0)
    raise Unsupported(f"activation {name} of {len(given)} parameters", PLAINLY)


@operator("FusedConv", domain=DOMAIN)
@in_f32
def fused_conv(
    call: Call,
    X: Tensor,
    W: Tensor,
    B: Tensor | None = None,
    Z: Tensor | None = None,
    *,
    activation: str = "",
    activation_params: Sequence[float] = (),
    **attributes: Any,
) -> Tensor:
    """A convolution, what is added to it, an activation."""
    out: Tensor = conv(call, X, W, B, **attributes)
    out = out if Z is None else out + Z
    return activated(out, activation, activation_params) if activation else out


@operator("EmbedLayerNormalization", domain=DOMAIN)
@in_f32
def embed_layer_normalization(
    input_ids: Tensor,
    segment_ids: Tensor | None,
    word_embedding: Tensor,
    position_embedding: Tensor,
    segment_embedding: Tensor | None,
    gamma: Tensor,
    beta: Tensor,
    mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    *,
    epsilon: float = 1e-12,
    mask_index_type: int = 1,
) -> tuple[Tensor, ...]:
    given = input_ids, segment_ids, word_embedding, position_embedding, segment_embedding
    return embedded(*given, gamma, beta, mask, position_ids, epsilon=epsilon)


def embedded(
    ids: Tensor,
    segment_ids: Tensor | None,
    words: Tensor,
    positions: Tensor,
    segments: Tensor | None,
    gamma: Tensor,
    beta: Tensor,
    mask: Tensor | None,
    position_ids: Tensor | None = None,
    *,
    epsilon: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """ids [b, s] -> the normalised sum [b, s, d], how many of the mask are 1 i32[b], the sum."""
    model = ids.model
    places = model.arange(ids.shape[1]) if position_ids is None else position_ids
    total = words.embedding(ids) + bounded(positions, 0, places)
    if segments is not None and segment_ids is not None:
        total = total + segments.embedding(segment_ids)
    count = model.full((ids.shape[0],), 0, DType.I32)
    if mask is not None:
        count = (mask == 1).to(DType.I32).sum(1)
    return total.layer_norm(gamma, beta, epsilon), count, total


@operator("SkipLayerNormalization", domain=DOMAIN)
@in_f32
def skip_layer_normalization(
    input: Tensor,
    skip: Tensor,
    gamma: Tensor,
    beta: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    epsilon: float = 1e-12,
) -> Sequence[Tensor | None]:
    total = _sum(input, skip, bias)
    return total.layer_norm(gamma, beta, epsilon), None, None, total


@operator("SkipSimplifiedLayerNormalization", domain=DOMAIN)
@in_f32
def skip_rms_normalization(
    input: Tensor,
    skip: Tensor,
    gamma: Tensor,
    bias: Tensor | None = None,
    *,
    epsilon: float = 1e-12,
) -> Sequence[Tensor | None]:
    total = _sum(input, skip, bias)
    return total.rms_norm(gamma, epsilon), None, None, total


# ---- quantised while it runs


def rounded(x: Tensor) -> tuple[Tensor, Tensor]:
    """A tensor as integers i32 between -255 and 255 and their scale, f32[]: eight bits between its
    least and its greatest value and 0, as DynamicQuantizeLinear, less the zero point. It has few
    nodes, since it is there at every step of an unrolled sequence."""
    high, low = x.max().relu(), (-x).max().relu()  # low is that of -x
    width = quotient(high + low, x.model.full((), 255.0))
    scale = width + logical_not(width > 0.0).to(DType.F32)
    zero = nearest(quotient(low, scale))
    levels = nearest(quotient(x, scale)) + zero
    levels = levels - (levels > 255).to(DType.I32) + (levels < 0).to(DType.I32)  # one too far
    return levels - zero, scale


def nearest(x: Tensor) -> Tensor:
    """The nearest integer of f32 between -256 and 256 as i32, even at ties."""
    exact = x.to(DType.F64)
    up = (exact + (512.0 + 0.5)).to(DType.I32)
    down = (exact + (512.0 + 0.5 - 2.0**-27)).to(DType.I32)  # another number at ties only
    return down + (down % 2) * (up - down) - 512


def scaled(scale: Tensor) -> Product:
    """The product of rows rounded to eight bits with integers i32 whose scale, one or one for each
    of their rows, is this: exact in integers, scaled in f32."""

    def product(x: Tensor, w: Tensor) -> Tensor:
        levels, own = rounded(x)
        return (levels @ w.T).to(DType.F32) * (own * scale)

    return product


@operator("DynamicQuantizeLSTM", domain=DOMAIN, note="the sequence is unrolled: at most 512 steps")
def dynamic_quantize_lstm(
    X: Tensor,
    W: Tensor,
    R: Tensor,
    B: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    initial_c: Tensor | None = None,
    P: Tensor | None = None,
    W_scale: Tensor | None = None,
    W_zero_point: Tensor | None = None,
    R_scale: Tensor | None = None,
    R_zero_point: Tensor | None = None,
    *,
    activation_alpha: Sequence[float] = (),
    activation_beta: Sequence[float] = (),
    activations: Sequence[str] = (),
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
) -> tuple[Tensor, ...]:
    """W and R lie as [directions, k, gates]."""
    if W_scale is None or R_scale is None:
        raise Unsupported("weights without a scale", "give W_scale and R_scale")
    names = activations or ["Sigmoid", "Tanh", "Tanh"] * 2
    w, r = _centred(W, W_zero_point), _centred(R, R_zero_point)
    ways = directions(w, r, B, names, 3, activation_alpha, activation_beta, clip)
    ways = [
        replace(way, products=(scaled(W_scale[d]), scaled(R_scale[d])))
        for d, way in enumerate(ways)
    ]
    initials = initial_h, initial_c
    return long_short(X, ways, P, initials, bool(input_forget), sequence_lens, direction, 0)


def _centred(w: Tensor, zero: Tensor | None) -> Tensor:
    """[directions, k, n] without its zero points, [directions] or [directions, n], as i32
    [directions, n, k]."""
    turned = w.to(DType.I32).transpose()
    if zero is None:
        return turned
    shift = zero.to(DType.I32)
    return turned - shift.reshape(*shift.shape, *[1] * (3 - shift.ndim))


def _sum(x: Tensor, skip: Tensor, bias: Tensor | None) -> Tensor:
    return x + skip if bias is None else x + skip + bias
