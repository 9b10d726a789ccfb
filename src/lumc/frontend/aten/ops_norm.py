"""Normalisations, with the means and roots that derivatives ask for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lumc.frontend.api.tensor import Tensor
from lumc.frontend.aten.registry import Unsupported, aten


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


@aten("native_layer_norm")
def native_layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> Any:
    axes = list(range(input.ndim - len(normalized_shape), input.ndim))
    centred = input - input.mean(axes, True)
    root = ((centred * centred).mean(axes, True) + eps).rsqrt()
    return _affine(centred * root, weight, bias), input.mean(axes, True), root


@aten("layer_norm")
def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-05,
) -> Tensor:
    axes = list(range(input.ndim - len(normalized_shape), input.ndim))
    return input.layer_norm(weight, bias, eps, axes)


@aten("rms_norm")
def rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    axes = list(range(input.ndim - len(normalized_shape), input.ndim))
    least = 2.0**-52 if input.dtype.nbytes == 8 else 2.0**-23  # of the dtype that is computed in
    square = (input * input).mean(axes, True) + (least if eps is None else eps)
    return _affine(input * square.rsqrt(), weight, None)


@aten("group_norm")
def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-05,
) -> Tensor:
    return input.group_norm(num_groups, weight, bias, eps)


@aten("native_group_norm")
def native_group_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    N: Any,
    C: Any,
    HxW: Any,
    group: int,
    eps: float,
) -> Any:
    out = input.group_norm(group, weight, bias, eps)
    parts = input.reshape(input.shape[0], group, -1)
    root = (parts.var(-1) + eps).rsqrt()
    return out, parts.mean(-1), root


@aten("_native_batch_norm_legit_no_training")
def batch_norm_no_training(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> Any:
    empty = input.model.full((0,), 0, input.dtype)
    return input.batch_norm(running_mean, running_var, weight, bias, eps), empty, empty


@aten("_native_batch_norm_legit.no_stats")
def batch_norm_no_stats(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    axes = (0, *range(2, input.ndim))
    mean, variance = input.mean(axes), input.var(axes)
    out = input.batch_norm(mean, variance, weight, bias, eps)
    return out, mean, (variance + eps).rsqrt()


@aten("_native_batch_norm_legit", "native_batch_norm", note="not while training")
def batch_norm_legit(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    if training and running_mean is not None:
        raise Unsupported("training writes its statistics", "export the model after .eval()")
    if running_mean is None or running_var is None:
        return batch_norm_no_stats(input, weight, bias, training, momentum, eps)
    return batch_norm_no_training(input, weight, bias, running_mean, running_var, momentum, eps)


@aten("batch_norm", note="not while training")
def batch_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Tensor:
    out: Tensor = batch_norm_legit(
        input, weight, bias, running_mean, running_var, training, momentum, eps
    )[0]
    return out


@aten("instance_norm")
def instance_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
) -> Tensor:
    if use_input_stats:
        if running_mean is not None:
            raise Unsupported("training writes its statistics", "export the model after .eval()")
        return input.instance_norm(weight, bias, eps)
    return batch_norm(input, weight, bias, running_mean, running_var, False, momentum, eps)
