"""Recurrences, unrolled over a sequence of static length."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lumc.frontend.api.elementwise import where
from lumc.frontend.api.join import stack
from lumc.frontend.api.tensor import Tensor

MAX_STEPS = 512  # of an unrolled sequence


State = tuple[Tensor, ...]  # h, and the cell of an LSTM: [batch, hidden]


Cell = Callable[[Tensor, State], State]  # what a step adds of its input, and the state before


def unroll(
    parts: Sequence[Tensor],
    cells: Sequence[Cell],
    initial: Sequence[State],
    lengths: Tensor | None,
    way: str,
) -> tuple[Tensor, list[State]]:
    """Of every direction what the input adds, [seq, batch, gates] -> hidden states [seq,
    directions, batch, hidden], last states."""
    count = parts[0].shape[0]
    if not isinstance(count, int) or count > MAX_STEPS:
        fix = f"at most {MAX_STEPS} are unrolled: give it a sequence in parts, with its states"
        if not isinstance(count, int):
            fix = f"bind the dim, to at most {MAX_STEPS}: --dim NAME=N"
        raise parts[0].refuse("E0125", f"a recurrence over {count} steps", fix)
    steps, last = list[list[Tensor]](), list[State]()
    for d, cell in enumerate(cells):
        backwards = way == "reverse" or d == 1
        state, outputs = initial[d], list[Tensor]()
        for t in reversed(range(count)) if backwards else range(count):
            new = cell(parts[d][t], state)
            shown = new[0]
            if lengths is not None:  # a sequence that has ended keeps its state and shows zeros
                runs = (lengths > t).unsqueeze(-1)
                shown = runs * shown
                new = tuple(where(runs, n, o) for n, o in zip(new, state, strict=True))
            state = new
            outputs.append(shown)
        steps.append(outputs[::-1] if backwards else outputs)
        last.append(state)
    whole = stack([stack(list(at), 0) for at in zip(*steps, strict=True)], 0)
    return whole, last
