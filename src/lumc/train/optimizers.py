"""Optimizers: updates of states by their gradients, as PyTorch has them.

``params`` are states, ``grads`` a tensor of the same shape for each of them; ``lr`` is a number or
a tensor of one float, such as an input that a schedule feeds. ``decay`` and ``lr`` may also be a
list, with one for each parameter: weight decay groups, groups that learn at rates of their own.
``when`` is one bool: where it is false the step leaves everything as it was.

What an optimizer keeps of a parameter ``w`` are states ``w.m`` and ``w.v``, zero at first, in f32
where the parameter has 16 bits. All is computed in that, and rounded where it is stored.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from lumc.frontend.api.elementwise import where
from lumc.frontend.api.functions import expm1
from lumc.frontend.api.model import Model
from lumc.frontend.api.refusal import refuse
from lumc.frontend.api.tensor import Tensor
from lumc.graph.ops import DType

Rate = float | Tensor | Sequence[float | Tensor]


def sgd(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    lr: Rate,
    momentum: float = 0.0,
    decay: Rate = 0.0,
    nesterov: bool = False,
    when: Tensor | None = None,
) -> None:
    """Against the gradient; with ``momentum`` against ``w.m``, the sum of the gradients so far, of
    which each step forgets this part. ``decay`` adds so much of the parameter to its gradient."""
    for p in _each(params, grads, lr, decay):
        move = p.slope + p.value * p.decay
        if momentum:
            (m,) = p.kept("m")
            sum_ = m * momentum + move
            p.write(m, sum_, when)
            move = move + sum_ * momentum if nesterov else sum_
        p.write(p.state, p.value - move * p.lr, when)


def adam(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    lr: Rate,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    decay: Rate = 0.0,
    when: Tensor | None = None,
    name: str = "adam",
) -> None:
    """Adam (arXiv 1412.6980): the mean gradient over the root of the mean square. ``decay`` adds so
    much of the parameter to its gradient. The state ``NAME.steps``, i64, counts the steps."""
    _adam(params, grads, lr, betas, eps, decay, when, name, apart=False)


def adamw(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    lr: Rate,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    decay: Rate = 0.01,
    when: Tensor | None = None,
    name: str = "adam",
) -> None:
    """Adam with ``decay`` apart from the gradient (arXiv 1711.05101): the parameter also loses ``lr
    * decay`` of itself. The state ``NAME.steps``, i64, counts the steps."""
    _adam(params, grads, lr, betas, eps, decay, when, name, apart=True)


def _adam(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    lr: Rate,
    betas: tuple[float, float],
    eps: float,
    decay: Rate,
    when: Tensor | None,
    name: str,
    apart: bool,
) -> None:
    every, (first, second) = list(_each(params, grads, lr, decay)), betas
    model = every[0].model
    steps = model.state(f"{name}.steps", (), "i64")
    model.update(steps, _if(when, steps + 1, steps))
    exact = any(p.value.dtype is DType.F64 for p in every)
    count = (steps + 1).to(DType.F64 if exact else DType.F32)
    mean, root = _missing(first, count), _missing(second, count).sqrt()
    for p in every:
        m, v = p.kept("m", "v")
        slope = p.slope if apart else p.slope + p.value * p.decay
        m1 = m + (slope - m) * (1.0 - first)
        v1 = v * second + slope * slope * (1.0 - second)
        dtype = p.value.dtype
        size = v1.sqrt() * root.reciprocal().to(dtype) + eps
        kept = p.value - p.value * (p.lr * p.decay) if apart else p.value
        p.write(p.state, kept - m1 / size * (p.lr * mean.reciprocal().to(dtype)), when)
        p.write(m, m1, when)
        p.write(v, v1, when)


def _missing(beta: float, count: Tensor) -> Tensor:
    """``1 - beta ** count``, exact for a beta near 1 too."""
    return -expm1(count * math.log(beta)) if beta > 0 else count * 0.0 + 1.0


def lion(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    lr: Rate,
    betas: tuple[float, float] = (0.9, 0.99),
    decay: Rate = 0.0,
    when: Tensor | None = None,
) -> None:
    """Lion (arXiv 2302.06675): by ``lr`` against the sign of a mean of gradients. The parameter
    also loses ``lr * decay`` of itself."""
    first, second = betas
    for p in _each(params, grads, lr, decay):
        (m,) = p.kept("m")
        step = (m * first + p.slope * (1.0 - first)).sign() + p.value * p.decay
        p.write(p.state, p.value - step * p.lr, when)
        p.write(m, m * second + p.slope * (1.0 - second), when)


# ---- a parameter, and what belongs to it


class _Param(NamedTuple):
    model: Model
    name: str
    state: Tensor
    value: Tensor  # in the dtype that is computed in
    slope: Tensor
    lr: Any  # a number or a tensor of that dtype
    decay: Any

    def kept(self, *kinds: str) -> list[Tensor]:
        """States of its shape, zero at first."""
        shape, dtype = self.state.shape, self.value.dtype
        return [self.model.state(f"{self.name}.{kind}", shape, dtype) for kind in kinds]

    def write(self, state: Tensor, value: Tensor, when: Tensor | None) -> None:
        """The next value of a state."""
        self.model.update(state, _if(when, value.to(state.dtype), state))


def _if(when: Tensor | None, value: Tensor, before: Tensor) -> Tensor:
    return value if when is None else where(when, value, before)


def _each(
    params: Sequence[Tensor], grads: Sequence[Tensor], lr: Rate, decay: Rate
) -> Iterator[_Param]:
    """Raises E0126 (no state, no parameters), E0120 (shapes, lists of other lengths)."""
    if not params:
        raise refuse("E0126", "an optimizer without parameters", fix="give it a list of states")
    if len(params) != len(grads):
        raise refuse("E0120", f"{len(params)} parameters and {len(grads)} gradients")
    rates, decays = _one_each("lr", lr, len(params)), _one_each("decay", decay, len(params))
    for state, grad, rate, part in zip(params, grads, rates, decays, strict=True):
        source = getattr(state.operand, "source", None)
        if source is None or source.op != "state" or source.shape != state.shape:
            what = f"a parameter is a whole state, and this is {state.describe()}"
            raise state.refuse("E0126", what, "make the weight a state: model.state(.., value=w)")
        if grad.shape != state.shape:
            what = f"the gradient of '{source.name}' {state.describe()} is {grad.describe()}"
            raise state.refuse("E0120", what)
        dtype = DType.F64 if state.dtype is DType.F64 else DType.F32
        both = (x.to(dtype) if isinstance(x, Tensor) else x for x in (rate, part))
        model = state.model
        assert isinstance(model, Model)
        yield _Param(model, source.name, state, state.to(dtype), grad.to(dtype), *both)


def _one_each(name: str, value: Rate, count: int) -> Sequence[float | Tensor]:
    if isinstance(value, int | float | Tensor):
        return [value] * count
    if len(value) != count:
        raise refuse("E0120", f"{name} has {len(value)} numbers for {count} parameters")
    return list(value)
