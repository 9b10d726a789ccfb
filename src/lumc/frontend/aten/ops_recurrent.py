"""RNN, GRU and LSTM, unrolled over a sequence of static length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lumc.frontend.api.join import concat, stack
from lumc.frontend.api.recurrent import Cell, State, unroll
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.aten.refused import SIMPLER
from lumc.frontend.aten.registry import Unsupported, aten

LIMIT = "at most 512 steps"
_LSTM = 2  # of ATen's modes: relu, tanh, LSTM, GRU
Step = Callable[[Tensor, Tensor, State], State]  # input part, hidden part, state -> state


def _lstm(x: Tensor, h: Tensor, state: State) -> State:
    i, f, g, o = (x + h).chunk(4, -1)
    cell = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * cell.tanh(), cell


def _gru(x: Tensor, h: Tensor, state: State) -> State:
    (xr, xz, xn), (hr, hz, hn) = x.chunk(3, -1), h.chunk(3, -1)
    z = (xz + hz).sigmoid()
    n = (xn + (xr + hr).sigmoid() * hn).tanh()
    return (n + z * (state[0] - n),)


def _layers(
    step: Step,
    x: Tensor,
    initial: Sequence[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    ways: int,
    batch_first: bool,
    reverse: bool = False,
) -> tuple[Tensor, ...]:
    """The outputs of the last layer, and the last states of all: each [layers * ways, b, h]."""
    alone = x.ndim == 2
    if alone:
        x, initial = x.unsqueeze(1), [s.unsqueeze(1) for s in initial]
    elif batch_first:
        x = x.transpose(0, 1)
    each, last = 4 if has_biases else 2, list[State]()
    if len(params) != each * num_layers * ways:
        raise Unsupported("weights of a projection", "use it without proj_size")
    for layer in range(num_layers):
        cells, parts, starts = list[Cell](), list[Tensor](), list[State]()
        for way in range(ways):
            at = layer * ways + way
            w, r, *biases = params[each * at : each * (at + 1)]
            part = x @ w.T
            parts.append(part + biases[0] if biases else part)
            cells.append(_cell(step, r, biases[1] if biases else None))
            starts.append(tuple(s[at] for s in initial))
        whole, states = unroll(parts, cells, starts, None, "reverse" if reverse else "forward")
        x = concat([whole[:, way] for way in range(ways)], -1)
        last += states
    ends = [stack([s[i] for s in last], 0) for i in range(len(initial))]
    if alone:
        return x.squeeze(1), *(e.squeeze(1) for e in ends)
    return x.transpose(0, 1) if batch_first else x, *ends


def _cell(step: Step, r: Tensor, bias: Tensor | None) -> Cell:
    def cell(part: Tensor, state: State) -> State:
        hidden = state[0] @ r.T
        return step(part, hidden if bias is None else hidden + bias, state)

    return cell


def _in_use(dropout: float, train: bool, num_layers: int) -> None:
    if train and dropout and num_layers > 1:
        raise Unsupported("dropout while training is random", "export the model after .eval()")


@aten("lstm.input", note=LIMIT)
def lstm(
    input: Tensor,
    hx: Sequence[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    _in_use(dropout, train, num_layers)
    ways = 1 + bidirectional
    return _layers(_lstm, input, hx, params, has_biases, num_layers, ways, batch_first)


@aten("mkldnn_rnn_layer", note=f"{LIMIT}, without the workspace of derivatives")
def mkldnn_rnn_layer(
    input: Tensor,
    weight0: Tensor,
    weight1: Tensor,
    weight2: Tensor,
    weight3: Tensor,
    hx_: Tensor,
    cx_: Tensor,
    reverse: bool,
    batch_sizes: Sequence[int],
    mode: int,
    hidden_size: int,
    num_layers: int,
    has_biases: bool,
    bidirectional: bool,
    batch_first: bool,
    train: bool,
) -> Any:
    """One layer of an LSTM in one direction, as oneDNN has it; without biases those given are 0."""
    if mode != _LSTM or num_layers != 1 or bidirectional or batch_first or batch_sizes:
        raise Unsupported("a layer that torch does not make of nn.LSTM", SIMPLER)
    params = [weight0, weight1, weight2, weight3]
    return *_layers(_lstm, input, [hx_, cx_], params, True, 1, 1, False, reverse), None


def _single(name: str, step: Step) -> None:
    @aten(name, note=LIMIT)
    def row(
        input: Tensor,
        hx: Tensor,
        params: Sequence[Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> Any:
        _in_use(dropout, train, num_layers)
        ways = 1 + bidirectional
        return _layers(step, input, [hx], params, has_biases, num_layers, ways, batch_first)


_single("gru.input", _gru)
_single("rnn_tanh.input", lambda x, h, _: ((x + h).tanh(),))
_single("rnn_relu.input", lambda x, h, _: ((x + h).relu(),))
