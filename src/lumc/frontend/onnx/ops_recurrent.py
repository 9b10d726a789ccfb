"""RNN, GRU and LSTM, unrolled over a sequence of static length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lumc.frontend.api.elementwise import where
from lumc.frontend.api.halves import in_f32
from lumc.frontend.api.join import stack
from lumc.frontend.api.recurrent import Cell, State, unroll
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.onnx.registry import Unsupported, operator

Product = Callable[[Tensor, Tensor], Tensor]
ACTIVATIONS: dict[str, Callable[[Tensor, float, float], Tensor]] = {
    "relu": lambda x, a, b: x.relu(),
    "tanh": lambda x, a, b: x.tanh(),
    "sigmoid": lambda x, a, b: x.sigmoid(),
    "affine": lambda x, a, b: x * a + b,
    "leakyrelu": lambda x, a, b: x.leaky_relu(a),
    "thresholdedrelu": lambda x, a, b: where(x < a, 0.0, x),
    "scaledtanh": lambda x, a, b: (x * b).tanh() * a,
    "hardsigmoid": lambda x, a, b: (x * a + b).clip(0.0, 1.0),
    "elu": lambda x, a, b: x.elu(a),
    "softsign": lambda x, a, b: x / (x.abs() + 1.0),
    "softplus": lambda x, a, b: x.softplus(),
}
DEFAULTS = {
    "leakyrelu": (0.01, 0.0),
    "hardsigmoid": (0.2, 0.5),
    "elu": (1.0, 0.0),
    "thresholdedrelu": (1.0, 0.0),
}


def product(x: Tensor, w: Tensor) -> Tensor:
    """Rows with the rows of a weight."""
    return x @ w.T


@dataclass(frozen=True)
class Weights:
    """One direction: W [gates, input], R [gates, hidden], biases [gates]."""

    w: Tensor
    r: Tensor
    wb: Tensor | None
    rb: Tensor | None
    functions: tuple[Callable[[Tensor], Tensor], ...]
    clip: float | None
    products: tuple[Product, Product] = (product, product)  # with w, and with r

    def input_part(self, x: Tensor) -> Tensor:
        out = self.products[0](x, self.w)
        return out if self.wb is None else out + self.wb

    def hidden_part(self, h: Tensor) -> Tensor:
        out = self.products[1](h, self.r)
        return out if self.rb is None else out + self.rb

    def bounded(self, x: Tensor) -> Tensor:
        return x if self.clip is None else x.clip(-self.clip, self.clip)


def directions(
    W: Tensor,
    R: Tensor,
    B: Tensor | None,
    names: Sequence[str],
    per_direction: int,
    alphas: Sequence[float],
    betas: Sequence[float],
    clip: float | None,
) -> list[Weights]:
    """The weights of every direction, with its activation functions."""
    if W.ndim != 3 or R.ndim != 3 or W.shape[0] not in (1, 2) or W.shape[0] != R.shape[0]:
        raise ValueError(f"weights {W.describe()} and {R.describe()}")
    out, free_alphas, free_betas = [], list(alphas), list(betas)
    for d in range(len(W)):
        functions = []
        for name in names[d * per_direction : (d + 1) * per_direction]:
            key = name.lower()
            if key not in ACTIVATIONS:
                known = f"use one of {', '.join(sorted(ACTIVATIONS))}"
                raise Unsupported(f"activation {name} is not known", known)
            a, b = DEFAULTS.get(key, (1.0, 0.0))
            if key not in ("relu", "tanh", "sigmoid", "softsign", "softplus"):
                a = free_alphas.pop(0) if free_alphas else a
            if key in ("affine", "scaledtanh", "hardsigmoid"):
                b = free_betas.pop(0) if free_betas else b
            functions.append(lambda x, f=ACTIVATIONS[key], a=a, b=b: f(x, a, b))
        biases = (None, None) if B is None else B[d].split(W.shape[1], 0)  # type: ignore[arg-type]
        out.append(Weights(W[d], R[d], biases[0], biases[1], tuple(functions), clip))
    return out


def recurrent(
    X: Tensor,
    ways: Sequence[Weights],
    cells: Sequence[Cell],
    initials: Sequence[Tensor | None],
    hidden: Any,
    lengths: Tensor | None,
    way: str,
    layout: int,
) -> tuple[Tensor, ...]:
    """Y and the last states, in the layout asked for."""
    if layout:
        X = X.transpose(0, 1)
        initials = [None if i is None else i.transpose(0, 1) for i in initials]
    zeros = X.model.full((X.shape[1], hidden), 0.0, X.dtype)
    starts = [tuple(zeros if i is None else i[d] for i in initials) for d in range(len(cells))]
    parts = [p.input_part(X) for p in ways]  # one product for all steps
    whole, last = unroll(parts, cells, starts, lengths, way)
    ends = [stack([state[i] for state in last], 0) for i in range(len(initials))]
    if layout:
        return (whole.permute(2, 0, 1, 3), *(e.transpose(0, 1) for e in ends))
    return (whole, *ends)


@operator("RNN", note="the sequence is unrolled: at most 512 steps")
@in_f32
def rnn(
    X: Tensor,
    W: Tensor,
    R: Tensor,
    B: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    *,
    activation_alpha: Sequence[float] = (),
    activation_beta: Sequence[float] = (),
    activations: Sequence[str] = (),
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
) -> tuple[Tensor, ...]:
    names = activations or ["Tanh"] * 2
    ways = directions(W, R, B, names, 1, activation_alpha, activation_beta, clip)

    def cell(p: Weights) -> Cell:
        def step(x: Tensor, state: State) -> State:
            total = p.bounded(x + p.hidden_part(state[0]))
            return (p.functions[0](total),)

        return step

    cells = [cell(p) for p in ways]
    return recurrent(X, ways, cells, [initial_h], R.shape[-1], sequence_lens, direction, layout)


@operator("GRU", note="the sequence is unrolled: at most 512 steps")
@in_f32
def gru(
    X: Tensor,
    W: Tensor,
    R: Tensor,
    B: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    *,
    activation_alpha: Sequence[float] = (),
    activation_beta: Sequence[float] = (),
    activations: Sequence[str] = (),
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    linear_before_reset: int = 0,
) -> tuple[Tensor, ...]:
    names = activations or ["Sigmoid", "Tanh"] * 2
    ways = directions(W, R, B, names, 2, activation_alpha, activation_beta, clip)

    def cell(p: Weights) -> Cell:
        f, g = p.functions

        def step(x: Tensor, state: State) -> State:
            h = state[0]
            xz, xr, xh = x.chunk(3, -1)
            hz, hr, hh = p.hidden_part(h).chunk(3, -1)
            z, r = f(p.bounded(xz + hz)), f(p.bounded(xr + hr))
            if linear_before_reset:
                part = r * hh
            else:
                _, _, weights = p.r.chunk(3, 0)
                part = (r * h) @ weights.T
                part = part if p.rb is None else part + p.rb.chunk(3, 0)[2]
            new = g(p.bounded(xh + part))
            return ((1.0 - z) * new + z * h,)

        return step

    cells = [cell(p) for p in ways]
    return recurrent(X, ways, cells, [initial_h], R.shape[-1], sequence_lens, direction, layout)


@operator("LSTM", note="the sequence is unrolled: at most 512 steps")
@in_f32
def lstm(
    X: Tensor,
    W: Tensor,
    R: Tensor,
    B: Tensor | None = None,
    sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None,
    initial_c: Tensor | None = None,
    P: Tensor | None = None,
    *,
    activation_alpha: Sequence[float] = (),
    activation_beta: Sequence[float] = (),
    activations: Sequence[str] = (),
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
    layout: int = 0,
) -> tuple[Tensor, ...]:
    names = activations or ["Sigmoid", "Tanh", "Tanh"] * 2
    ways = directions(W, R, B, names, 3, activation_alpha, activation_beta, clip)
    how = sequence_lens, direction, layout
    return long_short(X, ways, P, (initial_h, initial_c), bool(input_forget), *how)


def long_short(
    X: Tensor,
    ways: Sequence[Weights],
    P: Tensor | None,
    initials: Sequence[Tensor | None],
    input_forget: bool,
    sequence_lens: Tensor | None,
    direction: str,
    layout: int,
) -> tuple[Tensor, ...]:
    """An LSTM with these weights."""

    def cell(p: Weights, peep: Sequence[Tensor] | None) -> Cell:
        f, g, out = p.functions

        def gate(x: Tensor, c: Tensor, i: int) -> Tensor:
            return f(p.bounded(x if peep is None else x + peep[i] * c))

        def step(x: Tensor, state: State) -> State:
            h, c = state
            xi, xo, xf, xc = (x + p.hidden_part(h)).chunk(4, -1)
            i = gate(xi, c, 0)
            forget = 1.0 - i if input_forget else gate(xf, c, 2)
            cell_state = forget * c + i * g(p.bounded(xc))
            return gate(xo, cell_state, 1) * out(cell_state), cell_state

        return step

    peeps = [None if P is None else P[d].chunk(3, 0) for d in range(len(ways))]
    cells = [cell(p, peep) for p, peep in zip(ways, peeps, strict=True)]
    hidden = ways[0].r.shape[-1]
    return recurrent(X, ways, cells, initials, hidden, sequence_lens, direction, layout)
