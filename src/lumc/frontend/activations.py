"""Activations of 8 bits as a choice: what products with quantised weights read is rounded, too.

Of 32 neighbours along the axis of the sum, ``by = max |x| / 127`` and ``code = round(x / by)`` in
i8, ties away from zero; what is multiplied is ``code * by``. All of it is primitives: a kernel may
multiply the codes with levels as integers, which gives the same numbers. Zeros stay zeros.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lumc.frontend.storage import BLOCK, Rewriting, Uses
from lumc.graph.derive import WORDS
from lumc.graph.dim import Extent
from lumc.graph.expr import add, axis, floordiv, mul, substitute, subterms, text
from lumc.graph.graph import Entry, Graph, Node, Read, Scalar, reachable
from lumc.graph.ops import DType, Op

Axes = Sequence[tuple[str, Extent]]

MOST = 127.0  # of the codes
LEAST = 1e-30  # of a block is taken for its greatest, where that is 0


def quantise_activations(graph: Graph) -> Graph:
    """The graph with rounded activations; applying it again changes nothing."""
    uses, found = Uses(graph), dict[Node, tuple[int, str]]()
    levels = {w for w in graph.weights if w.how and w.how.part in ("levels", *WORDS)}
    for c in uses.contractions.values():
        constant = [r.source in uses.constant for r in c.product.reads]
        if c.selects or len(c.reduced) != 1 or sum(constant) != 1:
            continue
        at, (over,) = constant.index(False), c.reduced
        x, w = c.product.reads[at], c.product.reads[1 - at]
        n = dict(c.product.loops)[over]
        plain = isinstance(n, int) and n % BLOCK == 0 and not x.bounds
        made = reachable([w.source], lambda n: [r.source for r in n.reads])
        if plain and levels.intersection(made) and not _is_coded(x.source):
            found[c.product] = at, over
    return _Coding(graph, DType.F32, {}, set(), products=found).graph() if found else graph


def _is_coded(node: Node) -> bool:
    """Is it a product of codes already?"""
    wide = (r.source for r in node.reads if node.op is Op.MUL)
    casts = [r.source.dtype for n in wide if n.op is Op.CONTIGUOUS for r in n.reads]
    return DType.I8 in casts


@dataclass
class _Coding(Rewriting):
    """Makes every node again; ``products`` read rounded values: of which operand, along which
    axis."""

    products: Mapping[Node, tuple[int, str]] = field(default_factory=dict)
    coded: dict[tuple[Node, str, str], Node] = field(default_factory=dict)

    def _entry(self, entry: Entry, leaves: Mapping[Node, Sequence[Node]]) -> None:
        self.coded = {}
        super()._entry(entry, leaves)

    def _node(self, n: Node) -> Node:
        if n not in self.products:
            return super()._node(n)
        at, over = self.products[n]
        reads = [Read(self.read[r.source], r.index, r.bounds) for r in n.reads]
        x, self.b.origin, sizes = reads[at], n.origin, dict(n.loops)
        found = [e.attr[0] for e in subterms(*x.index) if e.kind == "axis"]
        kept = [(a, sizes[a]) for a in dict.fromkeys(found) if a != over]
        names = {axis(a): axis(f"x{i}") for i, (a, _) in enumerate(kept)} | {axis(over): axis("k")}
        said = ", ".join(text(substitute(i, names)) for i in x.index)
        key = x.source, said, str([*(size for _, size in kept), sizes[over]])
        if key not in self.coded:
            size = sizes[over]
            assert isinstance(size, int)
            self.coded[key] = self._rounded(x, kept, over, size, f"{n.name}.x")
        reads[at] = Read(self.coded[key], tuple(axis(a) for a, _ in (*kept, (over, 0))))
        return self.b.node(Op.MUL, reads, n.loops, dtype=n.dtype, name=n.name)

    def _rounded(self, x: Read, kept: Axes, over: str, size: int, stem: str) -> Node:
        """``code * by`` over the kept axes and the one of the sum."""
        whole = [*kept, (over, size)]
        blocks, lane = [*kept, (f"{over}_o", size // BLOCK)], (f"{over}_k", BLOCK)
        inside = add(mul(axis(f"{over}_o"), BLOCK), axis(f"{over}_k"))
        own = Read(x.source, tuple(substitute(i, {axis(over): inside}) for i in x.index))

        def node(
            op: Op,
            loops: Axes,
            *operands: Node | Read | Scalar,
            last: tuple[str, int] | None = None,
            kind: DType | None = None,
        ) -> Node:
            read = [
                o if isinstance(o, Read | Scalar) else Read(o, tuple(axis(a) for a in o.axes))
                for o in operands
            ]
            return self.b.node(op, read, loops, last, kind, self._fresh(stem))

        def number(value: float) -> Scalar:
            return Scalar(DType.F32, value)

        squares = node(Op.MUL, [*blocks, lane], own, own)
        most = node(Op.SQRT, blocks, node(Op.MAX, blocks, squares, last=lane))
        ranges = {over: (0, size - 1)}
        here = (*(axis(a) for a, _ in kept), floordiv(axis(over), BLOCK, ranges))
        up = node(Op.RECIP, whole, node(Op.ADD, whole, Read(most, here), number(LEAST)))
        scaled = node(Op.MUL, whole, Read(x.source, x.index), node(Op.MUL, whole, up, number(MOST)))
        below = node(Op.MUL, whole, node(Op.LT, whole, scaled, number(0.0)), number(-1.0))
        half = node(Op.ADD, whole, below, number(0.5))  # a cast to integers goes towards zero
        code = node(Op.CONTIGUOUS, whole, node(Op.ADD, whole, scaled, half), kind=DType.I8)
        wide = node(Op.CONTIGUOUS, whole, code, kind=DType.F32)
        by = node(Op.MUL, whole, Read(most, here), number(1 / MOST))
        return node(Op.MUL, whole, wide, by)
