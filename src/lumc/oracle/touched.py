"""Which elements an infinity or NaN has touched on their way: there a law may give another one.

A law may turn ``sum_k a * b[k]`` into ``a * sum_k b[k]``: with an infinite ``a`` the first may be
NaN where the second is infinite (docs/formats.md, "NaN and infinities"). The graph is evaluated
with NaN for every value that is not finite in its dtype; bools and integers are f64 too, so that
what a comparison made of one is NaN as well. A select hides what it does not choose.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from lumc.graph.bind import bind_dims
from lumc.graph.graph import Graph, Node, Operand, Read
from lumc.graph.ops import DType, Op
from lumc.oracle.graph import FUNCTIONS, Array, Run, Weights, evaluate
from lumc.oracle.reading import Span

# beyond these a rounded value may be infinite: a little less than the greatest number
MOST = {DType.F16: 65_500.0, DType.BF16: 3.38e38, DType.F32: 3.402e38}
LOGICAL: dict[Op, Callable[..., Array]] = {  # where a bool is made or chooses
    Op.ADD: np.maximum,
    Op.MUL: lambda c, x: np.where(np.isnan(c), np.nan, np.where(c != 0, x, 0.0)),
    Op.LT: lambda a, b: np.where(np.isnan(a) | np.isnan(b), np.nan, a < b),
    Op.CONTIGUOUS: lambda x: np.where(np.isnan(x), np.nan, x != 0),
}


def touched(
    graph: Graph,
    entry: str,
    inputs: Mapping[str, Array],
    weights: Weights,
    states: Mapping[str, Array] | None = None,
) -> dict[str, Array]:
    """Where an output, and a state NAME after the run under ``state NAME``, depends on a value that
    is not finite; its own value may be infinite. States are zero at first. Of an entry that repeats
    it is the last time, on states that are not finite by then."""
    if counter := graph.entry(entry).repeat:
        *before, last = graph.dims[counter].values
        for n in before:
            turn = bind_dims(graph, {counter: n})
            states = evaluate(turn, entry, inputs, weights, states)[1]
        graph = bind_dims(graph, {counter: last})
    run = _Touching(graph.entry(entry), graph.states, declared=False)
    run.give("input", run.entry.inputs, inputs)
    zeros = {s.name: np.zeros(s.sizes, s.dtype.numpy) for s in graph.states}
    run.give("state", graph.states, zeros | dict(states or {}))
    with np.errstate(all="ignore"):
        outputs, after = run.outputs(weights)
    every = outputs | {f"state {name}": value for name, value in after.items()}
    return {name: np.isnan(value) for name, value in every.items()}


class _Touching(Run):
    """The evaluation with NaN for what is not finite."""

    def work(self, dtype: DType) -> np.dtype[np.float64]:
        return np.dtype(np.float64)

    def applied(self, node: Node, operands: Sequence[Operand], spans: Sequence[Span]) -> Array:
        args = [self.loaded(o, spans) for o in operands]
        assert isinstance(node.op, Op)
        if node.op is Op.CONTIGUOUS and node.dtype is not DType.BOOL:
            value = np.trunc(args[0]) if node.dtype.is_int else args[0]
        elif DType.BOOL in (node.dtype, operands[0].dtype):
            value = LOGICAL[node.op](*args)
        else:
            value = FUNCTIONS[node.op](*args)
        return self.rounded(value, node.dtype)

    def loaded(self, o: Operand, spans: Sequence[Span]) -> Array:
        value = super().loaded(o, spans)
        if not isinstance(o, Read) or not o.dtype.is_float:
            return value
        finite = np.isfinite(value) & (np.abs(value) <= MOST.get(o.dtype, np.inf))
        return np.where(finite, value, np.nan)
