"""Gradients of f16, whose range is too small for them, by a loss that is scaled."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lumc.frontend.api.elementwise import logical_and, where
from lumc.frontend.api.model import Model
from lumc.frontend.api.tensor import Tensor
from lumc.grad import gradients

LARGEST = 64  # log2 of a scale: one over it is a normal number, too


def scaled_gradients(
    loss: Tensor,
    wrt: Sequence[Tensor],
    stop: Sequence[Tensor] = (),
    first: float = 2.0**16,
    patience: int = 2000,
    name: str = "scale",
) -> tuple[list[Tensor], Tensor]:
    """The gradients of ``loss * scale``, divided by the scale, and whether all of them are finite:
    one bool, which is an optimizer's ``when``. As torch's ``GradScaler``: the scale, ``first`` to
    begin with, is halved after a step that is not finite, and doubled after ``patience`` finite
    ones in a row. Its state has this name: how often it was doubled, less how often it was
    halved; ``NAME.good`` counts steps. What ``stop`` names counts as constant. The parameters
    are f32."""
    model = loss.model
    assert isinstance(model, Model)
    times = model.state(name, ())
    scale = times.exp2() * first  # of a whole number: exact
    good = model.state(f"{name}.good", (), "i64")
    slopes = gradients(loss * scale.to(loss.dtype), wrt, stop)
    finite = (slopes[0].abs() < float("inf")).all()
    for slope in slopes[1:]:
        finite = logical_and(finite, (slope.abs() < float("inf")).all())
    enough = good + 1 >= patience
    after = times + where(finite, where(enough, 1.0, 0.0), -1.0)
    model.update(times, after.minimum(math.floor(LARGEST - math.log2(first))))
    model.update(good, where(logical_and(finite, ~enough), good + 1, 0))
    back = scale.reciprocal()
    return [slope * back.to(slope.dtype) for slope in slopes], finite
