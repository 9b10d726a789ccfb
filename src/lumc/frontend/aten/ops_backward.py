"""Derivatives of operators, as programs of training call them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from lumc.frontend.api.contract import averages, windows
from lumc.frontend.api.elementwise import where
from lumc.frontend.api.join import concat
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.aten.axes import static
from lumc.frontend.aten.ops_contract import batched, each
from lumc.frontend.aten.registry import Unsupported, aten
from lumc.graph.ops import DType

Sizes = Sequence[int]


@aten("embedding_dense_backward")
def embedding_backward(
    grad_output: Tensor,
    indices: Tensor,
    num_weights: int,
    padding_idx: int,
    scale_grad_by_freq: bool,
) -> Tensor:
    if scale_grad_by_freq:
        raise Unsupported("gradients scaled by frequencies")
    width = grad_output.shape[-1]
    rows = grad_output.reshape(-1, width)
    ids = indices.flatten()
    place = ids.model.arange(num_weights, dtype=ids.dtype)[:, None]
    hit = (place == ids[None, :]) & (ids != padding_idx)[None, :]  # [weights, n]
    return hit.to(rows.dtype) @ rows


@aten("_adaptive_avg_pool2d_backward")
def adaptive_avg_pool_backward(grad_output: Tensor, self: Tensor) -> Tensor:
    x = grad_output
    for axis in (-2, -1):
        (n,), (m,) = static(self.shape[axis:][:1], "pooling"), static(x.shape[axis:][:1], "pooling")
        table = x.model.constant(averages(n, m).T.astype(x.dtype.numpy))
        x = (x.moveaxis(axis, -1) @ table).moveaxis(-1, axis)
    return x


@aten("avg_pool2d_backward", note="without ceil_mode")
def avg_pool_backward(
    grad_output: Tensor,
    self: Tensor,
    kernel_size: Sizes,
    stride: Sizes,
    padding: Sizes,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Tensor:
    if ceil_mode:
        raise Unsupported("ceil_mode of a derivative")
    kernel = each(kernel_size, 2)
    steps, pads = each(stride, 2) if len(stride) else kernel, each(padding, 2)
    size = static(self.shape[-2:], "pooling")

    def spread(grad: Tensor) -> Tensor:
        if divisor_override is None and not count_include_pad:
            wide = [(0, 0), (0, 0), *((p, p) for p in pads)]
            ones = grad.model.full((1, 1, *size), 1, grad.dtype).pad(wide)
            grad = grad / windows(ones, kernel, steps, [1, 1]).sum((-2, -1))
        else:
            grad = grad * (1.0 / (divisor_override or math.prod(kernel)))
        n, c, *inner = grad.shape
        flat = grad.reshape(int(n) * int(c), 1, *inner)  # type: ignore[arg-type]
        ones = grad.model.full((1, 1, *kernel), 1, grad.dtype)
        more = _missing(size, static(inner, "pooling"), kernel, steps, pads, [1, 1])
        return flat.conv_transpose(ones, None, steps, pads, more).reshape(n, c, *size)

    return batched(grad_output, 2, spread)


def _missing(
    size: Sizes, out: Sizes, kernel: Sizes, steps: Sizes, pads: Sizes, gaps: Sizes
) -> list[int]:
    """What a transposed convolution has to add at the end of every axis to have this size."""
    got = [
        (n - 1) * s - 2 * p + g * (k - 1) + 1
        for n, k, s, p, g in zip(out, kernel, steps, pads, gaps, strict=True)
    ]
    return [a - b for a, b in zip(size, got, strict=True)]


@aten("max_pool2d_with_indices_backward", halves=True)
def max_pool_backward(
    grad_output: Tensor,
    self: Tensor,
    kernel_size: Sizes,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    ceil_mode: bool,
    indices: Tensor,
) -> Tensor:
    *lead, h, w = static(self.shape, "pooling")
    zeros = self.model.full((*lead, h * w), 0, grad_output.dtype)
    found = zeros.scatter(-1, indices.flatten(-2), grad_output.flatten(-2), "add")
    return found.reshape(*lead, h, w)


@aten("convolution_backward", note="not of transposed ones")
def convolution_backward(
    grad_output: Tensor,
    input: Tensor,
    weight: Tensor,
    bias_sizes: Sizes | None,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,
    groups: int,
    output_mask: Sequence[bool],
) -> Any:
    if transposed:
        raise Unsupported("the derivative of a transposed convolution")
    rank = weight.ndim - 2
    steps, pads, gaps = each(stride, rank), each(padding, rank), each(dilation, rank)
    kernel = static(weight.shape[2:], "windows")
    size, out = static(input.shape[2:], "axes"), static(grad_output.shape[2:], "axes")
    more = _missing(size, out, kernel, steps, pads, gaps)
    grad_x = grad_output.conv_transpose(weight, None, steps, pads, more, gaps, groups)
    parts = zip(input.chunk(groups, 1), grad_output.chunk(groups, 1), strict=True)
    grad_w = concat([_by_weight(x, g, kernel, steps, pads, gaps) for x, g in parts], 0)
    grad_b = grad_output.sum((0, *range(2, 2 + rank)))
    found = zip((grad_x, grad_w, grad_b), output_mask, strict=True)
    return tuple(g if wanted else None for g, wanted in found)


def _by_weight(
    x: Tensor, grad: Tensor, kernel: Sizes, steps: Sizes, pads: Sizes, gaps: Sizes
) -> Tensor:
    """[o, c, k..]: a convolution over the batch, in which steps and gaps change places."""
    out = x.transpose(0, 1).conv(grad.transpose(0, 1), None, gaps, pads, steps)
    for i, k in enumerate(kernel):  # what the last steps did not reach
        out = out.slice(2 + i, 0, k)
    return out.transpose(0, 1)


def _norm_backward(
    grad: Tensor, x: Tensor, mean: Tensor, root: Tensor, axes: Sequence[int], weight: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The derivative by x of what has mean 0 and variance 1 over the axes, times a weight; and
    x so normed."""
    normed = (x - mean) * root
    g = grad if weight is None else grad * weight
    inner = g - g.mean(axes, True) - normed * (g * normed).mean(axes, True)
    return inner * root, normed


@aten("native_layer_norm_backward")
def layer_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    normalized_shape: Sizes,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    output_mask: Sequence[bool],
) -> Any:
    first = input.ndim - len(normalized_shape)
    axes, outer = list(range(first, input.ndim)), list(range(first))
    grad_x, normed = _norm_backward(grad_out, input, mean, rstd, axes, weight)
    grads = (grad_x, (grad_out * normed).sum(outer), grad_out.sum(outer))
    return tuple(g if wanted else None for g, wanted in zip(grads, output_mask, strict=True))


@aten("native_group_norm_backward")
def group_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    output_mask: Sequence[bool],
) -> Any:
    shape = (N, group, C // group, HxW)
    x, grad = input.reshape(shape), grad_out.reshape(shape)
    scale = None if weight is None else weight.reshape(1, group, C // group, 1)
    grad_x, normed = _norm_backward(
        grad, x, mean.reshape(N, group, 1, 1), rstd.reshape(N, group, 1, 1), [2, 3], scale
    )
    outer = (grad * normed).sum((0, 3)).reshape(C), grad.sum((0, 3)).reshape(C)
    grads = (grad_x.reshape(input.shape), *outer)
    return tuple(g if wanted else None for g, wanted in zip(grads, output_mask, strict=True))


@aten("threshold_backward")
def threshold_backward(grad_output: Tensor, self: Tensor, threshold: Any) -> Tensor:
    return where(self <= threshold, grad_output.lift(0.0, grad_output.dtype), grad_output)


@aten("_softmax_backward_data")
def softmax_backward(grad_output: Tensor, output: Tensor, dim: int, input_dtype: DType) -> Tensor:
    inner = grad_output * output
    return inner - output * inner.sum(dim, True)


@aten("_log_softmax_backward_data")
def log_softmax_backward(
    grad_output: Tensor, output: Tensor, dim: int, input_dtype: DType
) -> Tensor:
    return grad_output - output.exp() * grad_output.sum(dim, True)
