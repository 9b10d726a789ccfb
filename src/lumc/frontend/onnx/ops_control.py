"""Control flow, unrolled at import, and sequences, which are lists while importing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lumc.frontend.api.elementwise import where
from lumc.frontend.api.join import concat, stack
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.onnx.ops_shape import integers, normal
from lumc.frontend.onnx.registry import Unsupported, operator
from lumc.frontend.onnx.values import constant_value

if TYPE_CHECKING:
    from lumc.frontend.onnx.lower import Call

MAX_TRIPS = 4096  # iterations of a loop


def condition(call: Call, value: Any) -> bool | None:
    """The value of a scalar condition, when it is known at import."""
    found = constant_value(call.model, value) if isinstance(value, Tensor) else value
    return None if found is None else bool(found.item())


@operator("If", raw=True, note="a condition known only at run time selects between equal shapes")
def if_(call: Call, cond: Any, *, then_branch: Any, else_branch: Any) -> Any:
    known = condition(call, cond)
    if known is not None:
        return tuple(call.subgraph(then_branch if known else else_branch, []))
    both = zip(call.subgraph(then_branch, []), call.subgraph(else_branch, []), strict=True)
    return tuple(_selected(call, cond, a, b) for a, b in both)


def _selected(call: Call, cond: Tensor, a: Any, b: Any) -> Tensor:
    if isinstance(a, list | type(None)) or isinstance(b, list | type(None)):
        call.ask(cond)
        what = "branches that give sequences, chosen by run-time values"
        raise Unsupported(what, call.way_out(cond))
    x, y = call.tensor(a), call.tensor(b)
    if x.shape != y.shape or x.dtype is not y.dtype:
        call.ask(cond)
        types = f"{x.describe()} and {y.describe()}"
        way_out = call.way_out(cond)
        raise Unsupported(f"branches of different types, {types}, by run-time values", way_out)
    return where(cond.reshape(()), x, y)


@operator("Loop", raw=True, note="unrolled: the number of iterations is known at import")
def loop(call: Call, M: Any, cond: Any = None, *v_initial: Any, body: Any) -> Any:
    trips = None if M is None else integers(call.known(M, "the trip count"), "the trip count")[0]
    going, state = True if cond is None else condition(call, cond), list(v_initial)
    last = cond
    scans: list[list[Any]] = [[] for _ in range(len(body.output) - 1 - len(state))]
    step = 0
    while trips is None or step < trips:
        if going is None:
            call.ask(last)
            raise Unsupported("a loop that ends on run-time values", "export an unrolled model")
        if not going:
            break
        if step >= MAX_TRIPS:
            raise Unsupported(f"a loop of more than {MAX_TRIPS} iterations")
        inputs = [np.array(step, np.int64), np.array(True), *state]
        last, *results = call.subgraph(body, inputs)
        going, state = condition(call, last), results[: len(state)]
        for collected, value in zip(scans, results[len(state) :], strict=True):
            collected.append(value)
        step += 1
    return (*state, *(_stacked(call, parts) for parts in scans))


def unbound(x: Tensor, axis: int) -> list[Tensor]:
    """The slices of an axis, one by one."""
    length = x.shape[axis]
    if isinstance(length, int) and length > MAX_TRIPS:
        raise Unsupported(f"{length} slices, one by one: more than {MAX_TRIPS}")
    return x.unbind(axis)


def _stacked(call: Call, parts: list[Any], axis: int = 0) -> Any:
    if not parts:
        raise Unsupported("an output of a loop that never runs")
    return stack([call.tensor(p) for p in parts], axis)


@operator("Scan", since=9, raw=True, note="unrolled: the length of the sequence is known at import")
def scan(
    call: Call,
    *initial: Any,
    body: Any,
    num_scan_inputs: int,
    scan_input_axes: Sequence[int] = (),
    scan_input_directions: Sequence[int] = (),
    scan_output_axes: Sequence[int] = (),
    scan_output_directions: Sequence[int] = (),
) -> Any:
    count = len(initial) - num_scan_inputs
    state = list(initial[:count])
    slices = []
    for i, value in enumerate(initial[count:]):
        x = call.tensor(value)
        axis = normal(scan_input_axes[i], x.ndim) if scan_input_axes else 0
        if not isinstance(x.shape[axis], int):
            raise Unsupported("a scan over a symbolic dim", "bind the dim with --dim")
        parts = unbound(x, axis)
        backwards = bool(scan_input_directions) and scan_input_directions[i] == 1
        slices.append(parts[::-1] if backwards else parts)
    scans: list[list[Any]] = [[] for _ in range(len(body.output) - count)]
    for step in zip(*slices, strict=True):
        results = call.subgraph(body, [*state, *step])
        state = results[:count]
        for collected, value in zip(scans, results[count:], strict=True):
            collected.append(value)
    outputs = []
    for i, parts in enumerate(scans):
        backwards = bool(scan_output_directions) and scan_output_directions[i] == 1
        axis = scan_output_axes[i] if scan_output_axes else 0
        rank = call.tensor(parts[0]).ndim + 1 if parts else 1
        outputs.append(_stacked(call, parts[::-1] if backwards else parts, normal(axis, rank)))
    return (*state, *outputs)


@operator("Scan", since=1, raw=True, note="unrolled: the length of the sequence is known at import")
def scan_8(
    call: Call,
    sequence_lens: Any,
    *initial: Any,
    body: Any,
    num_scan_inputs: int,
    directions: Sequence[int] = (),
) -> Any:
    """Before opset 9 the first axis is one of batches."""
    if sequence_lens is not None:
        raise Unsupported("sequences of several lengths", "pad them")
    rows = zip(*(unbound(call.tensor(v), 0) for v in initial), strict=True)
    done = [
        scan(
            call,
            *row,
            body=body,
            num_scan_inputs=num_scan_inputs,
            scan_input_directions=directions,
        )
        for row in rows
    ]
    return tuple(_stacked(call, list(parts)) for parts in zip(*done, strict=True))


# ---- sequences and optionals


@operator("SequenceEmpty", raw=True)
def sequence_empty(call: Call, *, dtype: int = 1) -> list[Any]:
    return []


@operator("SequenceConstruct", raw=True)
def sequence_construct(call: Call, *inputs: Any) -> list[Any]:
    return list(inputs)


@operator("SequenceInsert", raw=True)
def sequence_insert(
    call: Call, input_sequence: list[Any], tensor: Any, position: Any = None
) -> list[Any]:
    at = len(input_sequence) if position is None else _position(call, position, input_sequence, 1)
    return [*input_sequence[:at], tensor, *input_sequence[at:]]


@operator("SequenceErase", raw=True)
def sequence_erase(call: Call, input_sequence: list[Any], position: Any = None) -> list[Any]:
    at = -1 if position is None else _position(call, position, input_sequence, 0)
    return [v for i, v in enumerate(input_sequence) if i != at % len(input_sequence)]


@operator("SequenceAt", raw=True)
def sequence_at(call: Call, input_sequence: list[Any], position: Any) -> Any:
    return input_sequence[_position(call, position, input_sequence, 0)]


def _position(call: Call, position: Any, sequence: list[Any], extra: int) -> int:
    (at,) = integers(call.known(position, "the position"), "the position")
    if not -len(sequence) <= at < len(sequence) + extra:
        raise ValueError(f"position {at} of a sequence of {len(sequence)}")
    return at % len(sequence) if at < 0 else at


@operator("SequenceLength", raw=True)
def sequence_length(input_sequence: list[Any]) -> Any:
    return np.array(len(input_sequence), np.int64)


@operator("ConcatFromSequence", raw=True)
def concat_from_sequence(
    call: Call, input_sequence: list[Any], *, axis: int, new_axis: int = 0
) -> Tensor:
    parts = [call.tensor(v) for v in input_sequence]
    rank = parts[0].ndim + new_axis
    return (stack if new_axis else concat)(parts, normal(axis, rank))


@operator("SplitToSequence", raw=True)
def split_to_sequence(
    call: Call, input: Any, split: Any = None, *, axis: int = 0, keepdims: int = 1
) -> list[Any]:
    x = call.tensor(input)
    axis = normal(axis, x.ndim)
    if split is None:
        parts = unbound(x, axis)
        return [p.unsqueeze(axis) for p in parts] if keepdims else parts
    known = call.known(split, "split")
    sizes = integers(known, "split")
    return list(x.split(sizes if known.ndim else sizes[0], axis))


@operator("Optional", raw=True)
def optional(call: Call, input: Any = None, *, type: Any = None) -> Any:
    return input


@operator("OptionalGetElement", raw=True)
def optional_get_element(input: Any) -> Any:
    return input


@operator("OptionalHasElement", raw=True)
def optional_has_element(call: Call, input: Any = None) -> Any:
    return np.array(input is not None)
