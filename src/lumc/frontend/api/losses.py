"""Losses: how far results are from what they should be, as one float.

All take what a model computes before its softmax or sigmoid, so nothing overflows and no logarithm
is taken of 0, and average over everything but the classes.
"""

from __future__ import annotations

from lumc.frontend.api.elementwise import ne, select
from lumc.frontend.api.movement import axis_of, unsqueeze
from lumc.frontend.api.value import V
from lumc.graph.dim import Extent
from lumc.graph.graph import shape_text


def cross_entropy(
    x: V, target: V, axis: int = -1, smoothing: float = 0.0, ignore: int | None = None
) -> V:
    """The mean of ``-log softmax(x)[target]``. ``target`` has the classes, integers of the shape of
    ``x`` without the axis, or a float for each class, of the shape of ``x``. ``smoothing`` spreads
    this part of every target over all classes; places whose class is ``ignore`` do not count."""
    axis = axis_of(x, axis)
    log = x.log_softmax(axis)
    if target.dtype.is_float:
        _check(x, target, x.shape)
        if ignore is not None:
            raise x.refuse("E0120", "ignore goes with targets that are classes")
        each = -(log * target).sum(axis)
    else:
        _check(x, target, (*x.shape[:axis], *x.shape[axis + 1 :]))
        each = -log.gather(axis, unsqueeze(target, axis)).squeeze(axis)
    if smoothing:
        each = each * (1.0 - smoothing) - log.mean(axis) * smoothing
    if ignore is None:
        return each.mean()
    counts = ne(target, ignore)
    return select(counts, each).sum() * counts.to(x.dtype).sum().reciprocal()


def mse(x: V, target: V) -> V:
    """The mean of ``(x - target) ** 2``; shapes are equal."""
    _check(x, target, x.shape)
    return (x - target).square().mean()


def binary_cross_entropy(x: V, target: V, weight: float = 1.0) -> V:
    """The mean of ``-t log s - (1 - t) log(1 - s)`` for ``s = sigmoid(x)`` and targets t from 0 to
    1, of the shape of ``x``; ``weight`` multiplies the first part."""
    _check(x, target, x.shape)
    below = (-x).softplus()  # -log s; -log(1 - s) is x more
    part = target.to(x.dtype)
    each = x - part * x + below * (part * (weight - 1.0) + 1.0)
    return each.mean()


def kl_divergence(x: V, target: V, axis: int = -1) -> V:
    """The mean over all rows of ``sum of p (log p - log q)`` for ``p = softmax(target)`` and ``q =
    softmax(x)`` along the axis: how far x is from what it should be, as in a distillation."""
    _check(x, target, x.shape)
    want = target.log_softmax(axis)
    return (want.exp() * (want - x.log_softmax(axis))).sum(axis).mean()


def _check(x: V, target: V, shape: tuple[Extent, ...]) -> None:
    if target.shape != shape:
        what = f"the target of {x.describe()} is {target.describe()}, not {shape_text(shape)}"
        raise x.refuse("E0120", what)
