"""Random numbers of a seed: other ones in every run, the same whenever the model starts anew."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from lumc.frontend.api.random import Generator
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.onnx.refused import RANDOM, RANDOM_FIX
from lumc.frontend.onnx.registry import Unsupported, operator
from lumc.frontend.onnx.values import dtype_of
from lumc.graph.dim import Extent
from lumc.graph.ops import DType

if TYPE_CHECKING:
    from lumc.frontend.onnx.lower import Call

SEEDED = "with a `seed`, from a state that counts the runs; the numbers are not onnxruntime's"


def generator(call: Call, seed: float | None) -> Generator:
    """That of a node: in a loop it goes on; other nodes of the same seed have the same numbers."""
    if seed is None:
        raise Unsupported(RANDOM, f"give it a seed, or {RANDOM_FIX}")
    known = call.lowering.generators
    if id(call.proto) not in known:
        bits = int(np.float32(seed).view(np.uint32))  # another stream for every f32
        known[id(call.proto)] = Generator(call.model, bits, call.lowering.unique("random"))
    return known[id(call.proto)]


def _rounded(x: Tensor, number: int | None, like: Tensor | None = None) -> Tensor:
    """In the dtype that an attribute names, or of a tensor."""
    kind = dtype_of(number) if number else DType.F32 if like is None else like.dtype
    if not kind.is_float:
        raise Unsupported(f"random numbers of {kind.value}", "give it a dtype of floats")
    return x.to(kind)


def _normal(
    call: Call, shape: Sequence[Extent], mean: float, scale: float, seed: float | None
) -> Tensor:
    return generator(call, seed).normal(*shape) * scale + mean


def _uniform(
    call: Call, shape: Sequence[Extent], low: float, high: float, seed: float | None
) -> Tensor:
    return generator(call, seed).uniform(*shape) * (high - low) + low


@operator("RandomNormal", note=SEEDED)
def random_normal(
    call: Call,
    *,
    dtype: int = 1,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
    shape: Sequence[int],
) -> Tensor:
    return _rounded(_normal(call, shape, mean, scale, seed), dtype)


@operator("RandomNormalLike", note=SEEDED)
def random_normal_like(
    call: Call,
    input: Tensor,
    *,
    dtype: int | None = None,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
) -> Tensor:
    return _rounded(_normal(call, input.shape, mean, scale, seed), dtype, input)


@operator("RandomUniform", note=SEEDED)
def random_uniform(
    call: Call,
    *,
    dtype: int = 1,
    high: float = 1.0,
    low: float = 0.0,
    seed: float | None = None,
    shape: Sequence[int],
) -> Tensor:
    return _rounded(_uniform(call, shape, low, high, seed), dtype)


@operator("RandomUniformLike", note=SEEDED)
def random_uniform_like(
    call: Call,
    input: Tensor,
    *,
    dtype: int | None = None,
    high: float = 1.0,
    low: float = 0.0,
    seed: float | None = None,
) -> Tensor:
    return _rounded(_uniform(call, input.shape, low, high, seed), dtype, input)
