"""Gradients that are not too large."""

from __future__ import annotations

from collections.abc import Sequence

from lumc.frontend.api.tensor import Tensor
from lumc.graph.ops import DType


def norm(grads: Sequence[Tensor]) -> Tensor:
    """The root of the sum of the squares of all their elements: one float, f32 of 16 bits."""
    total = [(g.to(DType.F32) if g.dtype.nbytes < 4 else g).square().sum() for g in grads]
    return sum(total[1:], total[0]).sqrt()


def clip_norm(grads: Sequence[Tensor], most: float) -> list[Tensor]:
    """The gradients, scaled where their ``norm`` is above ``most``, as by torch's
    ``clip_grad_norm_``. An infinite norm makes them 0 or NaN: leave such steps out by ``when``."""
    factor = ((norm(grads) + 1e-6).reciprocal() * most).minimum(1.0)
    return [g * factor.to(g.dtype) for g in grads]


def clip_value(grads: Sequence[Tensor], most: float) -> list[Tensor]:
    """The gradients, each element between ``-most`` and ``most``."""
    return [g.clip(-most, most) for g in grads]
