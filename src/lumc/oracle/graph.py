"""The numpy oracle: what a graph means, computed in f64 or in the declared dtypes.

Nothing here knows a layer. Two things keep it usable on real models: a product that only a sum
reads is contracted by matmul over strided views, and large values with one reader are not stored
but computed block by block where they are read.

In f64 mode every float is f64 and ints stay ints. In declared mode a stored value is rounded to
its dtype; f16 and bf16 compute in f32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from lumc.errors import Exit, LumcError
from lumc.graph.bind import bind_dims, dims_of, require_static
from lumc.graph.collective import Collective
from lumc.graph.expr import Expr, axis, substitute
from lumc.graph.graph import Entry, Graph, Iota, Node, Operand, Read, Scalar, map_indices
from lumc.graph.ops import REDUCE, DType, Op, from_bf16, to_bf16
from lumc.graph.ranks import require_one_rank
from lumc.oracle.reading import Span, flat, gathered, mask_of, values_of

Array = npt.NDArray[Any]
Weights = Callable[[Node], Array]
BLOCK = 1 << 24  # elements that one step touches: 128 MB of f64
FUNCTIONS: dict[Op, Callable[..., Array]] = {
    Op.LOG2: np.log2,
    Op.EXP2: np.exp2,
    Op.SIN: np.sin,
    Op.SQRT: np.sqrt,
    Op.RECIP: np.reciprocal,
    Op.ADD: np.add,
    Op.MUL: lambda a, b: np.where(a, b, b.dtype.type(0)) if a.dtype == bool else a * b,
    Op.MOD: np.fmod,
    Op.LT: np.less,
}


def evaluate(
    graph: Graph,
    entry: str,
    inputs: Mapping[str, Array],
    weights: Weights,
    states: Mapping[str, Array] | None = None,
    declared: bool = False,
    dims: Mapping[str, int] | None = None,
) -> tuple[dict[str, Array], dict[str, Array]]:
    """The outputs of an entry by name, and the states after the run.

    Arrays are of the declared dtypes (bf16: its bits as uint16, or f32); in f64 mode floats may
    be of any float type and leave as f64. States are zero at first. ``dims`` are those that the
    shapes of the inputs do not tell. An entry that repeats gives what it does the last time. Raises
    E0113, E0112 (a dim without a value), E0111 (one that it may not have) and E0140 (a graph for a
    mesh: ``oracle.ranks``).
    """
    require_one_rank(graph, "the oracle of one rank")
    if counter := graph.entry(entry).repeat:
        outputs, after = dict[str, Array](), dict(states or {})
        for n in graph.dims[counter].values:
            turn = bind_dims(graph, {counter: n})
            own = {name: value for name, value in (dims or {}).items() if name != counter}
            outputs, after = evaluate(turn, entry, inputs, weights, after, declared, own)
        return outputs, after
    if graph.dims:
        shapes = {name: np.shape(a) for name, a in inputs.items()}
        told = dims_of(graph.entry(entry).inputs, shapes)
        graph = bind_dims(graph, {**told, **(dims or {})})
    require_static(graph, "the oracle")
    run = Run(graph.entry(entry), graph.states, declared)
    run.give("input", run.entry.inputs, inputs)
    zeros = {s.name: np.zeros(s.sizes, s.dtype.numpy) for s in graph.states}
    run.give("state", graph.states, zeros | dict(states or {}))
    with np.errstate(all="ignore"):
        return run.outputs(weights)


class Run:
    """One evaluation: the values still needed, and which nodes are never stored."""

    def __init__(self, entry: Entry, states: Sequence[Node], declared: bool) -> None:
        self.entry, self.states, self.declared = entry, states, declared
        self.values: dict[Node, Array] = {}
        ends = (*states, *(n for _, n in entry.outputs), *(u.value for u in entry.writes))
        readers: dict[Node, list[Node]] = {n: [] for n in ends}
        for node in reversed(entry.nodes):
            for source in _sources(node) if node in readers else ():
                readers.setdefault(source, []).append(node)
        self.ends = dict.fromkeys(ends)
        self.lazy = {n for n, by in readers.items() if n not in self.ends and _is_lazy(n, by)}
        self.stored = [n for n in entry.nodes if n in readers and n not in self.lazy]
        self.last = {s: n for n in self.stored for s in self.below(n)}  # who reads it last

    def below(self, node: Node) -> list[Node]:
        """The stored nodes that a node is computed from."""
        found, stack = list[Node](), [node]
        while stack:
            for source in _sources(stack.pop()):
                (stack if source in self.lazy else found).append(source)
        return found

    def give(self, kind: str, nodes: Sequence[Node], arrays: Mapping[str, Array]) -> None:
        """Take the values of leaves, by name."""
        names = [n.name for n in nodes]
        wrong = sorted(set(names) ^ set(arrays))
        if wrong:
            what = f"{kind}s missing or unknown: {', '.join(wrong)}"
            fix = f"{kind}s of entry '{self.entry.name}': {', '.join(names)}"
            raise LumcError("E0113", what, fix=fix, exit=Exit.USAGE)
        for node in nodes:
            self.values[node] = self.decoded(node, arrays[node.name])

    def decoded(self, leaf: Node, array: Array) -> Array:
        """The array of a leaf, checked; bf16 as f32."""
        array = np.asarray(array)
        other = leaf.dtype is DType.BF16 and array.dtype == np.float32
        other |= leaf.dtype.is_float and not self.declared and array.dtype.kind == "f"
        if array.shape != leaf.shape or not (other or array.dtype == leaf.dtype.numpy):
            what = f"{leaf.op} '{leaf.name}' is {leaf.dtype}{list(leaf.shape)}"
            got = f"got {array.dtype}{list(array.shape)}"
            raise LumcError("E0113", f"{what}, {got}", exit=Exit.USAGE)
        if leaf.dtype is DType.BF16 and array.dtype == np.uint16:
            return from_bf16(array)
        return np.ascontiguousarray(array).reshape(array.shape)

    def outputs(self, weights: Weights) -> tuple[dict[str, Array], dict[str, Array]]:
        """Compute every stored node in order; drop values after their last use."""
        for node in self.order:
            self.step(node, weights)
        return self.results(self.ends)

    @property
    def order(self) -> list[Node]:
        """What is computed, one after the other; then the leaves that are results."""
        return [*self.stored, *(n for n in self.ends if n.is_leaf)]

    def step(self, node: Node, weights: Weights) -> None:
        """Compute a node, unless its value is known; drop the values that it read last."""
        sources = self.load(node, weights)
        if node not in self.values:
            self.values[node] = self.computed(node)
        for source in sources:
            if self.last.get(source) is node and source not in self.ends:
                self.values.pop(source, None)

    def load(self, node: Node, weights: Weights) -> list[Node]:
        """Take the values of the weights that a node reads; all that it reads."""
        sources = [node] if node.is_leaf and not node.reads else self.below(node)
        for leaf in (s for s in sources if s.op == "weight" and s not in self.values):
            self.values[leaf] = self.decoded(leaf, weights(leaf))
        return sources

    def results(self, there: Container[Node]) -> tuple[dict[str, Array], dict[str, Array]]:
        """The outputs by name, and the states after the run, of values that are ``there``."""
        results = {n: self.encoded(value) for n, value in self.entry.outputs if value in there}
        after = {s.name: np.array(self.encoded(s)) for s in self.states if s in there}
        for u in (u for u in self.entry.writes if u.state in there):
            spans = _spans([*zip(u.value.axes, u.value.sizes, strict=True)])
            places = values_of(flat(u.index, u.state.sizes), spans)
            target = after[u.state.name].reshape(-1)
            target[np.broadcast_to(places, u.value.sizes)] = self.encoded(u.value)
        return results, after

    def work(self, dtype: DType) -> np.dtype[Any]:
        """The numpy dtype that values of a dtype are computed in."""
        if dtype.is_float and not self.declared:
            return np.dtype(np.float64)
        return np.dtype(np.float32) if dtype in (DType.F16, DType.BF16) else dtype.numpy

    def rounded(self, value: Array, dtype: DType) -> Array:
        """To the precision of the dtype, as computed on."""
        if self.declared and dtype is DType.F16:
            value = value.astype(np.float16)
        if self.declared and dtype is DType.BF16:
            value = from_bf16(to_bf16(value))
        return value.astype(self.work(dtype), copy=False)

    def encoded(self, node: Node) -> Array:
        """A value as the caller sees it."""
        value = self.values[node].astype(self.work(node.dtype), copy=False)
        if self.declared and node.dtype is DType.BF16:
            return to_bf16(value)
        return value.astype(node.dtype.numpy, copy=False) if self.declared else value

    # ---- values of nodes

    def computed(self, node: Node) -> Array:
        if node.op == "update":
            return self.updated(node)
        if node.op in REDUCE:
            return self.rounded(self.reduced(node), node.dtype)
        out = np.empty(node.sizes, self.work(node.dtype))
        for block in _blocks(_spans(node.loops), _points):
            out[_slices(block)] = self.applied(node, node.operands, block)
        return out

    def updated(self, node: Node) -> Array:
        """A state after an update: its value where the bounds of that hold."""
        before, value = node.reads
        out = self.values[before.source].astype(self.work(node.dtype))
        for block in _blocks(_spans(node.loops), _points):
            mask, here = mask_of(value.bounds, block), out[_slices(block)]
            new = self.loaded(value, block)
            out[_slices(block)] = new if mask is None else np.where(mask, new, here)
        return out

    def applied(self, node: Node, operands: Sequence[Operand], spans: Sequence[Span]) -> Array:
        """An elementwise node over spans; of size 1 where nothing depends on an axis."""
        args = [self.loaded(o, spans) for o in operands]
        assert isinstance(node.op, Op)
        if node.op is Op.CONTIGUOUS:
            value = args[0] != 0 if node.dtype is DType.BOOL else args[0]
        else:
            value = FUNCTIONS[node.op](*args)
        return self.rounded(value, node.dtype)

    def loaded(self, o: Operand, spans: Sequence[Span]) -> Array:
        """An operand over spans: zero outside its bounds, where nothing is read."""
        mask, work = mask_of(o.bounds, spans), self.work(o.dtype)
        if isinstance(o, Scalar):
            value = np.full([1] * len(spans), o.value, work)
        elif isinstance(o, Iota):
            value = values_of(o.index, spans).astype(work)
        elif o.source in self.lazy:
            value = self.applied(o.source, [_inlined(o, i) for i in o.source.operands], spans)
        else:
            place = flat(o.index, o.source.sizes)
            value = gathered(self.values[o.source], place, spans, mask is not None)
            value = value.astype(work, copy=False)
        return value if mask is None else np.where(mask, value, work.type(0))

    def reduced(self, node: Node) -> Array:
        """A sum or max; sums of sums are taken at once, of products by matmul."""
        summand, spans, rank = node.operands[0], _spans(node.loops), len(node.shape)
        while self.is_lazy(summand) and summand.source.reduced:
            (inner,) = _spans([summand.source.reduced])
            spans.append(Span(f"{inner.axis} {len(spans)}", 0, inner.count))
            fresh = {axis(inner.axis): axis(spans[-1].axis)}
            summand = _inlined(summand, summand.source.operands[0], fresh)
        factors: list[Operand] = []
        if node.op is Op.SUM and self.is_lazy(summand) and summand.source.op is Op.MUL:
            factors = [_inlined(summand, o) for o in summand.source.operands]
        out = np.full(node.sizes, _identity(node), self.work(node.dtype))
        outer = {s.axis for s in spans[:rank]}
        used = [outer, *(self.depends(f) for f in factors)]

        def cost(block: Sequence[Span]) -> int:
            return sum(math.prod(s.count for s in block if s.axis in axes) for axes in used)

        for block in _blocks(spans, cost if factors else _points):
            values = [self.loaded(f, block) for f in factors]
            if values and all(np.isfinite(v).all() for v in values):
                out[_slices(block[:rank])] += _contracted(values[0], values[1], block, rank)
                continue
            for part in _blocks(block, _points):
                self.accumulate(node, out[_slices(part[:rank])], summand, part)
        return out

    def is_lazy(self, o: Operand) -> TypeGuard[Read]:
        return isinstance(o, Read) and o.source in self.lazy

    def accumulate(self, node: Node, out: Array, o: Operand, spans: Sequence[Span]) -> None:
        """Reduce a block of an operand into its part of the result."""
        value = np.broadcast_to(self.loaded(o, spans), [s.count for s in spans])
        over = tuple(range(out.ndim, len(spans)))
        if node.op is Op.SUM:
            out += value.sum(over, out.dtype)
        else:
            np.maximum(out, value.max(over, initial=_identity(node)), out=out)

    def depends(self, o: Operand) -> set[str]:
        """The axes that an operand varies over."""
        index, inner = [b.index for b in o.bounds], list[Operand]()
        if isinstance(o, Iota):
            index.append(o.index)
        elif self.is_lazy(o):
            inner = [_inlined(o, i) for i in o.source.operands]
        elif isinstance(o, Read):
            index += o.index
        return set[str]().union(*(e.free for e in index), *map(self.depends, inner))


def _is_lazy(node: Node, readers: Sequence[Node]) -> bool:
    """Whether a node is computed where it is read instead of stored: it has one reader, which
    reads no more points than it has, and it is a product or sum below a sum, or large."""
    size = node.size
    if any(isinstance(n.op, Collective) for n in (node, *readers)):
        return False
    if node.is_leaf or len(readers) != 1 or readers[0].points > size:
        return False
    if readers[0].op is Op.SUM and node.op in (Op.MUL, Op.SUM):
        return True
    return node.op not in REDUCE and size > BLOCK


def _inlined(read: Operand, o: Operand, fresh: Mapping[Expr, Expr] | None = None) -> Operand:
    """An operand of the node that is read, in the loops of the reader; ``fresh`` renames more."""
    assert isinstance(read, Read)
    env = dict(zip(map(axis, read.source.axes), read.index, strict=True)) | dict(fresh or {})
    (inner,) = map_indices((o,), lambda e: substitute(e, env), lambda size: size)
    return replace(inner, bounds=read.bounds + inner.bounds)


def _sources(node: Node) -> list[Node]:
    return [r.source for r in node.reads]


def _identity(node: Node) -> float:
    """What an empty reduction gives."""
    if node.op is Op.SUM or node.dtype is DType.BOOL:
        return 0
    return -np.inf if node.dtype.is_float else node.dtype.limits[0]


# ---- blocks of loops


def _spans(loops: Sequence[tuple[str, Any]]) -> list[Span]:
    return [Span(name, 0, size) for name, size in loops]


def _points(spans: Sequence[Span]) -> int:
    return math.prod(s.count for s in spans)


def _slices(spans: Sequence[Span]) -> tuple[Any, ...]:
    return (*(slice(s.start, s.start + s.count) for s in spans), ...)


def _blocks(spans: Sequence[Span], cost: Callable[[Sequence[Span]], int]) -> Iterator[list[Span]]:
    """Parts of the loops that cost at most BLOCK each; the axis that saves most is halved."""
    best = [list(spans), list(spans)]
    for i, s in enumerate(spans if cost(spans) > BLOCK else ()):
        n = (s.count + 1) // 2
        halves = Span(s.axis, s.start, n), Span(s.axis, s.start + n, s.count - n)
        best = min(
            best, [[*spans[:i], h, *spans[i + 1 :]] for h in halves], key=lambda b: cost(b[0])
        )
    if cost(best[0]) == cost(spans):
        yield list(spans)
        return
    for half in best:
        yield from _blocks(half, cost)


def _contracted(a: Array, b: Array, spans: Sequence[Span], rank: int) -> Array:
    """The sum of ``a * b`` over all spans but the first ``rank``, through BLAS where it can."""
    mine, yours = ([i for i, n in enumerate(x.shape) if n != 1] for x in (a, b))
    kept = [i for i in range(rank) if i in mine or i in yours]
    rest = [s.count for i, s in enumerate(spans[rank:], rank) if i not in mine and i not in yours]
    a, b = a.astype(b.dtype, copy=False).squeeze(), b.squeeze()
    out: Array = np.einsum(a, mine, b, yours, kept, optimize=True)
    out = out.reshape([spans[i].count if i in kept else 1 for i in range(rank)])
    out *= np.asarray(math.prod(rest)).astype(b.dtype)
    return out
