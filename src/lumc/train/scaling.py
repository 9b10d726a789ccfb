"""Gradients of f16, whose range is too small for them, by a loss that is scaled."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lumc.frontend.api.elementwise import logical_and, where
from lumc.frontend.api.model import Model
from lumc.frontend.api.tensor import Tensor
from lumc.grad import gradients

LARGEST = 2.0**64  # of a scale: one over it is a normal number, too


def scaled_gradients(
    loss: Tensor,
    wrt: Sequence[Tensor],
    stop: Sequence[Tensor] = (),
    first: float = 2.0**16,
    patience: int = 2000,
    name: str = "scale",
) -> tuple[list[Tensor], Tensor]:
    """The gradients of ``loss * scale``, divided by the scale, and whether all of them are finite:
    one bool, which is an optimizer's ``when``. As torch's ``GradScaler``: the scale, a state of
    this name that begins with ``first``, is halved after a step that is not finite, and doubled
    after ``patience`` finite ones in a row, which ``NAME.good`` counts. What ``stop`` names counts
    as constant. The parameters are f32."""
    model = loss.model
    assert isinstance(model, Model)
    scale = model.state(name, (), value=np.float32(first))
    good = model.state(f"{name}.good", (), "i64")
    slopes = gradients(loss * scale.to(loss.dtype), wrt, stop)
    finite = (slopes[0].abs() < float("inf")).all()
    for slope in slopes[1:]:
        finite = logical_and(finite, (slope.abs() < float("inf")).all())
    enough = good + 1 >= patience
    after = scale * where(finite, where(enough, 2.0, 1.0), 0.5)
    model.update(scale, after.minimum(LARGEST))
    model.update(good, where(logical_and(finite, ~enough), good + 1, 0))
    back = scale.reciprocal()
    return [slope * back.to(slope.dtype) for slope in slopes], finite
