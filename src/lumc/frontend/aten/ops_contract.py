"""Products that are summed: matrices, attention, convolutions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from lumc.frontend.api.einsum import einsum as sum_of_products
from lumc.frontend.api.elementwise import where
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.aten.registry import Unsupported, aten
from lumc.graph.ops import DType

Sizes = Sequence[int]


@aten("mm", halves=True)
def mm(self: Tensor, mat2: Tensor) -> Tensor:
    return self @ mat2


@aten("bmm", halves=True)
def bmm(self: Tensor, mat2: Tensor) -> Tensor:
    return self @ mat2


@aten("matmul", halves=True)
def matmul(self: Tensor, other: Tensor) -> Tensor:
    return self @ other


@aten("mv", halves=True)
def mv(self: Tensor, vec: Tensor) -> Tensor:
    return self @ vec


@aten("dot", halves=True)
def dot(self: Tensor, tensor: Tensor) -> Tensor:
    return self @ tensor


@aten("outer", halves=True)
def outer(self: Tensor, vec2: Tensor) -> Tensor:
    return self[:, None] * vec2[None, :]


@aten("linear", halves=True)
def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    y = input @ weight.T
    return y if bias is None else y + bias


def _sum(bias: Tensor, product: Tensor, beta: Any, alpha: Any) -> Tensor:
    """``beta * bias + alpha * product``; what is multiplied by 0 is not read."""
    product = product if alpha == 1 else product * alpha
    if beta == 0:
        return product
    return product + (bias if beta == 1 else bias * beta)


@aten("addmm", halves=True)
def addmm(self: Tensor, mat1: Tensor, mat2: Tensor, beta: Any = 1, alpha: Any = 1) -> Tensor:
    return _sum(self, mat1 @ mat2, beta, alpha)


@aten("baddbmm", halves=True)
def baddbmm(self: Tensor, batch1: Tensor, batch2: Tensor, beta: Any = 1, alpha: Any = 1) -> Tensor:
    return _sum(self, batch1 @ batch2, beta, alpha)


@aten("addmv", halves=True)
def addmv(self: Tensor, mat: Tensor, vec: Tensor, beta: Any = 1, alpha: Any = 1) -> Tensor:
    return _sum(self, mat @ vec, beta, alpha)


@aten("einsum", halves=True)
def einsum(equation: str, tensors: Sequence[Tensor], path: Any = None) -> Tensor:
    return sum_of_products(equation, tensors)


# ---- attention


@aten("scaled_dot_product_attention")
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    if dropout_p:
        raise Unsupported("dropout while training is random", "export the model after .eval()")
    width = query.shape[-1]
    if not isinstance(width, int):
        raise Unsupported("heads of symbolic width", "bind the dim with --dim")
    if enable_gqa:
        times = int(query.shape[-3]) // int(key.shape[-3])  # type: ignore[arg-type]
        key, value = key.repeat_interleave(times, -3), value.repeat_interleave(times, -3)
    scores = (query @ key.transpose()) * (1.0 / math.sqrt(width) if scale is None else scale)
    seen: Tensor | None = None
    if is_causal:
        rows, columns = query.model.arange(query.shape[-2]), query.model.arange(key.shape[-2])
        scores = where(columns[None, :] <= rows[:, None], scores, -math.inf)
    if attn_mask is not None and attn_mask.dtype is DType.BOOL:
        scores, seen = where(attn_mask, scores, -math.inf), attn_mask.any(-1, True)
    elif attn_mask is not None:
        scores = scores + attn_mask
    out = scores.softmax(-1)
    return (out if seen is None else where(seen, out, 0.0)) @ value


@aten("_scaled_dot_product_flash_attention_for_cpu")
def flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> Any:
    return attention(query, key, value, attn_mask, dropout_p, is_causal, scale), None


@aten("_native_multi_head_attention")
def multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> Any:
    """What ``torch.nn.MultiheadAttention`` calls in inference. A mask is true, or not 0, where
    nothing is seen: of queries and keys (type 0), of texts and keys (1), or of all (2)."""
    weights, biases = qkv_weight.split(embed_dim), qkv_bias.split(embed_dim)
    given = zip((query, key, value), weights, biases, strict=True)
    q, k, v = (
        p.reshape(*p.shape[:-1], num_head, embed_dim // num_head).transpose(1, 2)
        for p in (linear(*each) for each in given)
    )
    scores = (q @ k.transpose()) * (1.0 / math.sqrt(embed_dim // num_head))
    if mask is not None:
        hidden = mask if mask.dtype is DType.BOOL else mask != 0
        hidden = hidden[:, None, None, :] if mask_type == 1 else hidden
        scores = where(hidden, -math.inf, scores)
    seen = scores.softmax(-1)
    out = (seen @ v).transpose(1, 2).reshape(*query.shape)
    told = (seen.mean(1) if average_attn_weights else seen) if need_weights else None
    return linear(out, proj_weight, proj_bias), told


@aten("_transformer_encoder_layer_fwd")
def encoder_layer(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Tensor:
    """What ``torch.nn.TransformerEncoderLayer`` calls in inference."""

    def first(x: Tensor) -> Tensor:
        return x.layer_norm(norm_weight_1, norm_bias_1, eps, [x.ndim - 1])

    def second(x: Tensor) -> Tensor:
        return x.layer_norm(norm_weight_2, norm_bias_2, eps, [x.ndim - 1])

    def attend(x: Tensor) -> Tensor:
        given = (qkv_weight, qkv_bias, proj_weight, proj_bias, mask, False, True, mask_type)
        found: Tensor = multi_head_attention(x, x, x, embed_dim, num_heads, *given)[0]
        return found

    def feed(x: Tensor) -> Tensor:
        inner = linear(x, ffn_weight_1, ffn_bias_1)
        return linear(inner.gelu() if use_gelu else inner.relu(), ffn_weight_2, ffn_bias_2)

    if norm_first:
        src = src + attend(first(src))
        return src + feed(second(src))
    src = first(src + attend(src))
    return second(src + feed(src))


# ---- convolutions


def batched(x: Tensor, rank: int, function: Any) -> Any:
    """A function of [n, c, in..], also of [c, in..]."""
    if x.ndim == rank + 2:
        return function(x)
    found = function(x.unsqueeze(0))
    return tuple(f.squeeze(0) for f in found) if isinstance(found, tuple) else found.squeeze(0)


def each(values: Any, rank: int) -> list[int]:
    """One number for every spatial axis."""
    listed = [values] if isinstance(values, int) else list(values)
    return listed * rank if len(listed) == 1 else listed


@aten("convolution")
def convolution(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,
    groups: int,
) -> Tensor:
    rank = weight.ndim - 2
    steps, pads, gaps = each(stride, rank), each(padding, rank), each(dilation, rank)
    if transposed:
        extra = each(output_padding, rank)
        return batched(
            input, rank, lambda x: x.conv_transpose(weight, bias, steps, pads, extra, gaps, groups)
        )
    return batched(input, rank, lambda x: x.conv(weight, bias, steps, pads, gaps, groups))


@aten("conv1d.padding", "conv2d.padding", "conv3d.padding")
def conv_padded(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: str = "valid",
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    return conv(input, weight, bias, stride, padding, dilation, groups)


@aten("conv1d", "conv2d", "conv3d")
def conv(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    rank = weight.ndim - 2
    steps, gaps = each(stride, rank), each(dilation, rank)
    pads: list[Any] = [0] * rank if padding == "valid" else []
    if padding == "same":
        kernel = [e for e in weight.shape[2:] if isinstance(e, int)]
        spans = [d * (k - 1) for d, k in zip(gaps, kernel, strict=True)]
        pads = [(n // 2, n - n // 2) for n in spans]
    pads = pads or list(each(padding, rank))
    return batched(input, rank, lambda x: x.conv(weight, bias, steps, pads, gaps, groups))


@aten("conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input")
def conv_transpose(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor:
    return convolution(input, weight, bias, stride, padding, dilation, True, output_padding, groups)
