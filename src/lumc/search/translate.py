"""A region of the graph as one term: views are substituted here, never by a rule.

Starting at the region's result, every node is written out at the indices where it is read. Axes
bound by reductions get level names: the first name of the pool ``r128_0, r128_1, ..`` that is
not free where the reduction is read, so equal sums become equal terms. Axes of extent 1 are
left out, and so are dims of one element: memory does not know them, and a row of a batch is the
row alone. A reduced axis that its operands split (``c // 32``, ``c % 32``) is bound as two axes; a
sum whose operands have phases that do not divide it goes on with zeros to the end of the last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import TypeVar

from msgspec import UNSET

from lumc.graph.derive import bits_of
from lumc.graph.dim import Dim, Extent, as_expr, dim_ranges, extent, largest
from lumc.graph.expr import (
    Expr,
    Range,
    add,
    axis,
    bound_axes,
    bounds,
    is_large,
    mul,
    num,
    rebuild,
    simplify,
    substitute,
)
from lumc.graph.graph import Bound, Iota, Node, Operand, Read, Scalar
from lumc.graph.index import is_inside
from lumc.graph.ops import DType, Op
from lumc.kernel import term
from lumc.kernel.lengths import STATIC, Lengths, values
from lumc.kernel.normal import identity
from lumc.kernel.term import Buffer
from lumc.search import fold
from lumc.search.divisors import divisors, parts_of, phases
from lumc.search.phases import at, pinned

MAX_VIEWS = 32  # ways in which one node of a region may be read

Index = tuple[Expr, ...]
T = TypeVar("T")


class TooManyViews(Exception):
    """Nodes are read in so many ways that writing them out would not end."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        super().__init__(", ".join(n.name for n in nodes))
        self.nodes = nodes


@dataclass(frozen=True)
class Body:
    """A region as a term: ``out[index] = value``, an index for each dim, reading b0, b1, .."""

    value: Expr
    index: Index
    output: Buffer
    inputs: tuple[Buffer, ...]
    sources: tuple[Node, ...]  # what b0, b1, .. are
    read: tuple[str, ...]  # and their names
    extent: Mapping[str, int]
    own: tuple[Expr, ...]  # the axes of the node
    lengths: Lengths = STATIC  # of its live axes, those of symbolic extent
    equal: tuple[tuple[Expr, Expr], ...] = ()  # terms that are equal, whatever the laws say


def translate(
    node: Node, inputs: frozenset[Node], state: Node | None = None, index: Index = ()
) -> Body:
    """The region of ``node``, down to ``inputs`` and leaves.

    With a ``state``, the one that writes it to ``state[index]``, index over the axes of ``node``: a
    copy, where the node is an input. Raises TooManyViews (nodes that have to be inputs too).
    """
    t = _Translation(inputs, node.dims)
    own = tuple(t.place(node, a, n) for a, n in zip(node.axes, node.shape, strict=True))
    env = dict(zip(map(axis, node.axes), own, strict=True))
    value = t.read(node, own, ())
    if t.torn:
        raise TooManyViews(list(t.torn))
    place = tuple(t.simple(i, env) for i in index) if state else own
    stored = state or node
    place = along(place, stored.sizes)
    output = Buffer("out", stored.dtype, along(stored.sizes, stored.sizes))
    buffers = tuple(
        Buffer(name, s.dtype, along(s.sizes, s.sizes), s.op == "weight", bits_of(s) or UNSET)
        for s, name in t.sources.items()
    )
    lengths = Lengths(tuple(node.dims.values()), tuple(t.live.items()))
    lengths = lengths.within(t.extent, (value, *place))
    sources, read = tuple(t.sources), tuple(s.home.name for s in t.sources)
    return Body(value, place, output, buffers, sources, read, dict(t.extent), own, lengths)


def along(items: Sequence[T], sizes: Sequence[int]) -> tuple[T, ...]:
    """Those of the dims that have more than one element, or none."""
    return tuple(item for item, n in zip(items, sizes, strict=True) if n != 1)


@dataclass
class _Translation:
    inputs: frozenset[Node]
    dims: Mapping[str, Dim]
    extent: dict[str, int] = field(default_factory=dict)
    live: dict[str, Expr] = field(default_factory=dict)
    ranges: dict[str, Range] = field(default_factory=dict)
    sources: dict[Node, str] = field(default_factory=dict)
    memo: dict[tuple[Node, Index, tuple[str, ...]], Expr] = field(default_factory=dict)
    views: dict[Node, set[Index]] = field(default_factory=dict)
    torn: dict[Node, None] = field(default_factory=dict)  # with too many views, or a large one

    def __post_init__(self) -> None:
        self.ranges |= dim_ranges(self.dims)

    def fresh(self, kind: str, extent: Extent, taken: Sequence[str]) -> Expr:
        """The first axis of this extent whose name is not taken; 0 for extent 1."""
        most = largest(extent, self.dims)
        if most == 1:
            return num(0)
        live, i = self.length(extent), 0
        while (name := f"{kind}{most}_{i}") in taken or (
            name in self.extent and (kind == "o" or self.live.get(name) is not live)
        ):
            i += 1
        self.extent[name] = most
        self.ranges[name] = (0, max(most - 1, 0))
        if live is not None:
            self.live[name] = live
        return axis(name)

    def length(self, extent: Extent) -> Expr | None:
        """That of an axis of this extent, if it may have several."""
        if isinstance(extent, int) or len(values(extent, self.dims.values())) == 1:
            return None
        return extent

    def simple(self, e: Expr, env: Mapping[Expr, Expr]) -> Expr:
        return simplify(substitute(e, env), self.ranges)

    def place(self, node: Node, name: str, extent: Extent) -> Expr:
        """An axis of the result; as several where the operands divide it: a value below has axes
        of its own then, and is not computed again for every element that reads it."""
        if self.length(extent) is not None:
            return self.fresh("o", extent, ())
        extent = largest(extent, self.dims)
        probe = self.probe(extent)
        env = {axis(a): probe if a == name else axis(a) for a, _ in node.loops}
        others = {a: (0, largest(n, self.dims) - 1) for a, n in node.loops if a != name}
        known, self.ranges = self.ranges, {**self.ranges, **others}
        found = {d for o in node.operands for d in self._splits(o, env, probe)}
        self.ranges = known
        parts = parts_of(extent, sorted(found))
        return self.joined(parts, [self.fresh("o", n, ()) for n in parts])

    def probe(self, extent: int) -> Expr:
        """Stands for an axis of this extent, to see what divides it."""
        probe = axis(f"?{extent}")
        self.ranges[probe.attr[0]] = (0, max(extent - 1, 0))
        return probe

    @staticmethod
    def joined(parts: Sequence[int], axes: Sequence[Expr]) -> Expr:
        """The index that axes of these extents make, outer first."""
        place = num(0)
        for part, a in zip(parts, axes, strict=True):
            place = add(mul(place, part), a)
        return place

    # ---- nodes and operands

    def read(self, source: Node, index: Index, dropped: tuple[str, ...]) -> Expr:
        """The element of a node or leaf; ``dropped`` are bound axes in scope but not in index."""
        if source.is_leaf or source in self.inputs or source in self.torn:
            name = self.sources.setdefault(source, f"b{len(self.sources)}")
            return term.load(name, source.dtype, *along(index, source.sizes))
        if is_large(index):
            self.torn[source] = None
            return self.read(source, index, dropped)
        return self.node(source, index, dropped)

    def node(self, node: Node, index: Index, dropped: tuple[str, ...]) -> Expr:
        key = (node, index, dropped)
        if key not in self.memo:
            self.memo[key] = self._node(node, index, dropped)
            seen = self.views.setdefault(node, set())
            seen.add(index)
            if len(seen) > MAX_VIEWS:  # one walk finds all of them: it goes on as if it were cut
                self.torn[node] = None
        return self.memo[key]

    def _node(self, node: Node, index: Index, dropped: tuple[str, ...]) -> Expr:
        env = dict(zip(map(axis, node.axes), index, strict=True))
        if node.reduced:
            return self._reduction(node, env, dropped)
        operands = [self.operand(o, env, dropped) for o in node.operands]
        match node.op:
            case Op.CONTIGUOUS:
                return cast(node.dtype, operands[0])
            case Op.ADD | Op.MUL | Op.MOD | Op.LT:
                return binary(node.op, *operands)
        assert isinstance(node.op, Op)
        return term.unary(node.op.value, operands[0])

    def operand(self, operand: Operand, env: Mapping[Expr, Expr], dropped: tuple[str, ...]) -> Expr:
        guards: list[tuple[Expr, int, int]] = []  # those of its bounds that may fail
        for b in operand.bounds:
            i, top = self.simple(b.index, env), largest(b.hi, self.dims)
            lo, hi = bounds(i, self.ranges)
            if hi < b.lo or lo >= top:
                return term.const(0, operand.dtype)
            if self.dims and self.holds(i, b):
                continue
            if lo < b.lo or hi >= top:
                guards.append((i, b.lo, top))
            if not isinstance(b.hi, int):
                left = add(b.hi, mul(i, -1), -1)
                guards.append((left, 0, bounds(left, self.ranges)[1] + 1))
        match operand:
            case Scalar():
                e = term.const(operand.value, operand.dtype)
            case Iota():
                e = term.iota(self.simple(operand.index, env), operand.dtype)
            case Read():
                index = tuple(self.simple(i, env) for i in operand.index)
                scope = {a: None for i in env.values() for a in sorted(i.free) if a[0] == "r"}
                lost = [
                    a for a in (*reversed(scope), *dropped) if not any(a in i.free for i in index)
                ]
                e = self.read(operand.source, index, tuple(dict.fromkeys(lost)))
        for guard in guards:
            e = term.guard(*guard, e)
        return e

    def holds(self, index: Expr, b: Bound) -> bool:
        """Is the index inside a bound, whatever the dims are?"""
        loops: dict[str, Extent] = {**self.extent, **self.live}
        return is_inside(add(index, -b.lo), extent(add(as_expr(b.hi), -b.lo)), (), loops, self.dims)

    # ---- reductions

    def _reduction(self, node: Node, env: dict[Expr, Expr], dropped: tuple[str, ...]) -> Expr:
        assert node.reduced and isinstance(node.op, Op)
        name, full = node.reduced
        taken = {a for i in env.values() for a in i.free}
        if (live := self.length(full)) is not None:
            over = self.again(dropped, full, taken)
            body = self.operand(node.operands[0], {**env, axis(name): over}, dropped)
            return reduction(node.op, over, live, body)
        extent = largest(full, self.dims)
        probe = self.probe(extent)
        periods = set[int]()
        splits = self._splits(node.operands[0], {**env, axis(name): probe}, probe, periods)
        parts = parts_of(extent, splits)
        if len(parts) == 1 and node.op is Op.SUM and periods and splits == [*periods]:
            parts = [-(-extent // splits[0]), splits[0]]  # the last phases have fewer steps
        bound: list[Expr] = []
        for part in parts:
            bound.append(self.again(dropped, part, taken))
            taken |= bound[-1].free
        place = self.joined(parts, bound)
        body = self.operand(node.operands[0], {**env, axis(name): place}, dropped)
        if prod(parts) > extent:
            assert node.op is Op.SUM  # zeros
            body = guarded(place, extent, body)
        for part, b in zip(reversed(parts), reversed(bound), strict=True):
            body = self._reduced(node.op, b, part, body)
        return body

    def again(self, dropped: Sequence[str], extent: Extent, taken: set[str]) -> Expr:
        """A bound axis of this extent that is in scope and free to be used, else a new one."""
        alike = largest(extent, self.dims), self.length(extent)
        found = (a for a in dropped if (self.extent[a], self.live.get(a)) == alike)
        same = next((a for a in found if a not in taken), None)
        return axis(same) if same else self.fresh("r", extent, sorted(taken))

    def _reduced(self, op: Op, over: Expr, extent: int, body: Expr) -> Expr:
        if op is Op.SUM and over.kind == "axis":
            name: str = over.attr[0]
            only = pinned(body, name, extent, self.ranges)
            if only is not None:
                return at(body, name, only, self.ranges)
        return reduction(op, over, extent, body)

    def _splits(
        self,
        operand: Operand,
        env: Mapping[Expr, Expr],
        probe: Expr,
        periods: set[int] | None = None,
    ) -> list[int]:
        """By what the operands below divide the probe axis, ascending; ``periods`` are those of
        guards that hold for one phase of it."""
        found: set[int] = set()
        seen: set[tuple[Node, Index]] = set()
        todo: list[tuple[Operand, Mapping[Expr, Expr]]] = [(operand, env)]
        while todo:
            o, env = todo.pop()
            if not isinstance(o, Read):
                continue
            index = tuple(self.simple(i, env) for i in o.index)
            for i in index:
                divisors(i, probe, found)
            for b in (b for b in o.bounds if isinstance(b.hi, int)):
                size = largest(b.hi, self.dims) - b.lo
                own = phases(self.simple(b.index, env), size, probe)
                found.update(own)
                (set() if periods is None else periods).update(own)
            ends = o.source.is_leaf or o.source in self.inputs or is_large(index)
            probed = any(probe.attr[0] in i.free for i in index)
            if probed and not ends and (o.source, index) not in seen:
                seen.add((o.source, index))
                below = self._inside(
                    o.source, dict(zip(map(axis, o.source.axes), index, strict=True))
                )
                todo += [(p, below) for p in o.source.operands]
        return sorted(found)

    def _inside(self, node: Node, env: dict[Expr, Expr]) -> dict[Expr, Expr]:
        """The axes of a node's operands: with one that stands for what it reduces."""
        if not node.reduced:
            return env
        name, extent = node.reduced
        inner = f"{node.name}.{name}"
        self.ranges[inner] = (0, max(largest(extent, self.dims) - 1, 0))
        return {**env, axis(name): axis(inner)}


@lru_cache(maxsize=1 << 10)
def guarded(place: Expr, extent: int, body: Expr) -> Expr:
    """Nothing beyond the extent; below sums and products, that they stay one with those around."""
    if body.kind == "red" and body.attr[0] == "sum" and not place.free & {*bound_axes(body)}:
        return term.reduce("sum", bound_axes(body), guarded(place, extent, *body.kids))
    if body.kind == "bin" and body.attr[0] == "mul":
        return rebuild(body, [guarded(place, extent, k) for k in body.kids])
    return term.guard(place, 0, extent, body)


# ---- terms, folded where a law would make a class its own factor


def cast(dtype: DType, e: Expr) -> Expr:
    """The term in this dtype, itself where it has that."""
    return e if term.dtype(e) is dtype else term.cast(dtype, e)


def binary(op: Op, a: Expr, b: Expr) -> Expr:
    """A primitive as a term, in the dtype that the primitive gives; 1*x, 0*x of integers, and what
    a constant select gives are folded."""
    kind = term.dtype(a)
    if op is Op.ADD and kind.is_float:
        return fold.add(a, b)
    if op is Op.ADD:
        return term.binary("or" if kind is DType.BOOL else "add", a, b)
    if op is Op.MUL and kind is DType.BOOL:
        if a.kind == "const":
            return b if a.attr[1] else term.const(0, term.dtype(b))
        return term.binary("sel", a, b)
    if op is Op.MUL:
        if a.kind == b.kind == "const":  # no law folds a product that vanishes
            value = a.attr[1] * b.attr[1]
            return term.const(value if kind.is_float else kind.number(value), kind)
        for one, other in ((a, b), (b, a)):
            if one.kind == "const" and one.attr[1] == 1:
                return other
            if one.kind == "const" and one.attr[1] == 0 and kind.is_int:  # 0 * inf is NaN
                return one
        if kind.is_float:
            return fold.mul(a, b)
    return term.binary(op.value, a, b)


def reduction(op: Op, over: Expr, extent: Extent, body: Expr) -> Expr:
    """Over an axis that the body does not have, a sum is a product and a maximum is the body; over
    nothing both are constants: no law for finite values may multiply with what is not there. The
    extent of a live axis is its length."""
    if over.kind != "axis":
        return body
    name: str = over.attr[0]
    if extent == 0:
        return identity(term.reduce(op.value, name, body))
    if name in body.free:
        return term.reduce(op.value, name, body)
    if op is Op.MAX:
        return body
    kind = term.dtype(body)
    if isinstance(extent, Expr):
        return term.binary("mul", term.iota(extent, kind), body)
    count = term.const(kind.number(extent), kind)
    return binary(Op.MUL, count, body) if body.kind == "const" else term.binary("mul", count, body)
