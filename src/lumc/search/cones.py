"""What the values of an entry are made of, as some of them are stored: their cones; and those that
their cones or readers ask to store.

A cut is made where fusing would repeat too much work, or a reader wants the value ready-made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial

from lumc.graph.expr import Expr, axis, linear, substitute, subterms
from lumc.graph.graph import Entry, Node, Read, reachable
from lumc.graph.index import is_injective
from lumc.graph.ops import DType, Op

HEAVY = 640  # operations per element that are too many to repeat
DEPTH = 120  # nodes in a row within one region
NODES = 250  # nodes within one region
REDUCTIONS = 12  # reductions within one region
SPREAD = 4  # reads of an element that are many, where it is a function of few others
FUNCTIONS = (Op.SIN, Op.EXP2, Op.LOG2)  # operations that take many instructions

View = tuple[Expr, ...]
Pieces = Mapping[Node, Sequence[Node]]  # of what nodes are made that are not computed as one


@dataclass(frozen=True, eq=False)
class Cone:
    """What a value is made of since the last cuts. Compared by identity: of the same it is made
    once."""

    nodes: frozenset[Node] = frozenset()
    depth: int = 0
    largest: int = 1  # elements of the largest tensor below; of a contraction: of its result
    linear: bool = False  # has a contraction with a constant side
    contracts: bool = False  # has any contraction
    function: bool = False  # has any of FUNCTIONS
    read: frozenset[Node] = frozenset()  # leaves and stored values


@dataclass
class Sweep:
    """One entry's nodes with their readers; ``cuts`` grows."""

    nodes: list[Node]
    cuts: set[Node]
    readers: dict[Node, list[tuple[Node, Read]]] = field(default_factory=dict)
    constant: set[Node] = field(default_factory=set)  # weights; made of these and scalars only
    products: set[Node] = field(default_factory=set)
    inner: set[Node] = field(default_factory=set)  # products and their partial sums
    flops: dict[Node, int] = field(default_factory=dict)
    cones: dict[Node, Cone] = field(default_factory=dict)
    late: set[Node] = field(default_factory=set)  # what makes stored values that are read late

    def __post_init__(self) -> None:
        """Sweeps follow each other: what they find depends on cuts only by the cones."""
        self.joined, self.is_cut = cache(partial(_joined, self)), cache(partial(_is_cut, self))


def prepare(entry: Entry, results: Iterable[Node], pieces: Pieces) -> Sweep:
    """What an entry computes for these results, without any cut; ``pieces`` in the place of what is
    made of them."""
    used = reachable(results, lambda n: pieces.get(n) or [r.source for r in n.reads])
    nodes = (n for n in entry.nodes if n in used and isinstance(n.op, Op))
    sweep = Sweep([each for n in nodes for each in pieces.get(n, [n])], set())
    sweep.constant = {s for s in used if s.op == "weight"}
    for node in sweep.nodes:
        for read in node.reads:
            sweep.readers.setdefault(read.source, []).append((node, read))
        if all(r.source in sweep.constant for r in node.reads):
            sweep.constant.add(node)
    sweep.products = {n for n in sweep.nodes if _is_product(sweep, n)}
    sweep.inner = set(sweep.products)
    for node in sweep.nodes:
        if _summand(node) in sweep.inner and _is_summed(sweep, node):
            sweep.inner.add(node)
    sweep.flops = {n: _flops(sweep, n) for n in sweep.nodes}
    return sweep


# ---- what a node is


def _is_product(sweep: Sweep, node: Node) -> bool:
    """The product of a contraction, only ever summed: larger than both factors, or than the one
    that a constant matrix is multiplied with."""
    smaller = [r.source.size < node.size for r in node.reads]
    constant = [r.source in sweep.constant for r in node.reads]
    fits = any(smaller) and all(s or c for s, c in zip(smaller, constant, strict=True))
    return node.op is Op.MUL and fits and _is_summed(sweep, node)


def _is_summed(sweep: Sweep, node: Node) -> bool:
    readers = sweep.readers.get(node, [])
    return bool(readers) and all(r.op is Op.SUM for r, _ in readers)


def selects(node: Node) -> bool:
    """Is it a product with a bool?"""
    return node.op is Op.MUL and node.operands[0].dtype is DType.BOOL


def _summand(node: Node) -> Node | None:
    return node.reads[0].source if node.op is Op.SUM and node.reads else None


def _flops(sweep: Sweep, node: Node) -> int:
    """Operations of a node; a sum that selects is expected to become a load."""
    if node in sweep.products:
        return 0
    summand = _summand(node)
    if node.reduced and not (summand and selects(summand)):
        return 2 * node.points
    return node.size


def is_factor(sweep: Sweep, node: Node) -> bool:
    """Does a product read it that does not select?"""
    return any(r in sweep.products and not selects(r) for r, _ in sweep.readers.get(node, []))


def _is_linear(sweep: Sweep, product: Node) -> bool:
    return any(r.source in sweep.constant for r in product.reads)


def _cone(sweep: Sweep, node: Node) -> Cone:
    """The cone of a node from those of its operands; stored values have empty ones."""
    sources = (r.source for r in node.reads)
    return sweep.joined(node, *(s if s in sweep.cuts else sweep.cones.get(s, s) for s in sources))


def _joined(sweep: Sweep, node: Node, *sources: Node | Cone) -> Cone:
    below = [c for c in sources if isinstance(c, Cone)]
    product = node in sweep.products and not selects(node)
    sizes = [0 if node in sweep.inner else node.size]
    if _summand(node) not in sweep.inner:
        read = (r.source for r in node.reads)
        sizes += [c.largest for c in below] + [s.size for s in read if s not in sweep.inner]
    return Cone(
        nodes=frozenset({node}).union(*(c.nodes for c in below)),
        depth=1 + max((c.depth for c in below), default=0),
        largest=max(1, *sizes),
        linear=any(c.linear for c in below) or (product and _is_linear(sweep, node)),
        contracts=any(c.contracts for c in below) or product,
        function=any(c.function for c in below) or node.op in FUNCTIONS,
        read=frozenset(s for s in sources if isinstance(s, Node)).union(*(c.read for c in below)),
    )


# ---- where to cut


def cut(sweep: Sweep, stays: Callable[[Node], bool] = lambda n: False) -> None:
    """One forward sweep: cut every value that ``stays``, or whose cone asks for it."""
    for node in sweep.nodes:
        sweep.cones[node] = cone = _cone(sweep, node)
        if node in sweep.cuts or node in sweep.inner:
            continue
        if stays(node) or sweep.is_cut(node, cone):
            sweep.cuts.add(stored_of(node))
            sweep.cones[node] = _cone(sweep, node)


def stored_of(node: Node) -> Node:
    """The value, or what it only widens, and maybe scales: that takes less memory, and a cast costs
    nothing."""
    for read in node.reads if node.op in (Op.CONTIGUOUS, Op.MUL) else []:
        same = read.index == tuple(map(axis, node.axes)) and read.source.shape == node.shape
        if not same or read.bounds:
            continue
        if node.op is Op.MUL:
            if read.source.op is Op.CONTIGUOUS and (found := stored_of(read.source)) != read.source:
                return found
        elif read.source.dtype.nbytes < node.dtype.nbytes and not read.source.is_leaf:
            return read.source
    return node


def _is_cut(sweep: Sweep, node: Node, cone: Cone) -> bool:
    reductions = sum(n.reduced is not None for n in cone.nodes)
    if cone.depth > DEPTH or len(cone.nodes) > NODES or reductions > REDUCTIONS:
        return True
    readers = sweep.readers.get(node, [])
    heavy = per_element(sweep, cone, cone.largest) > HEAVY
    views = {_view(read.index) for _, read in readers}
    if (heavy or cone.contracts) and len(views) > 1:
        return True  # each view would compute it again
    if not reductions and _is_table(sweep, node, cone):
        return True  # each reader would compute it again
    if cone.contracts and any(read.bounds for _, read in readers):
        return True  # padding belongs to the reader
    if cone.contracts and any(r.points < node.size for r, _ in readers) and _has_phases(cone):
        return True  # what is left may not have whole phases
    if reductions and any(_repeats(reader, read.index) for reader, read in readers):
        return True  # neighbouring points would compute it again
    if cone.contracts and node not in sweep.constant:
        factors = [r for r, _ in readers if r in sweep.products and not selects(r)]
        if any(cone.linear or _is_linear(sweep, r) for r in factors):
            return True  # an operand of a contraction that can be read ready-made
    if heavy and any(r in sweep.products or r.points > node.size for r, _ in readers):
        return True  # every point of the larger reader would compute it again
    return heavy and len(readers) > 1 and not _joins(sweep, node) and _is_reduced(sweep, node)


def _is_table(sweep: Sweep, node: Node, cone: Cone) -> bool:
    """Functions of few values or of indices, read more often than there are elements: angles of
    positions, for every head, row and layer."""
    read = sum(s.size for s in cone.read if s not in sweep.constant)
    often = sum(r.points for r, _ in sweep.readers.get(node, [])) >= SPREAD * node.size
    return cone.function and often and SPREAD * read <= node.size


def _has_phases(cone: Cone) -> bool:
    """Is something read for every second, third, .. point only?"""
    bounds = (b for n in cone.nodes for r in n.reads for b in r.bounds)
    return any(b.index.kind == "mod" for b in bounds)


def per_element(sweep: Sweep, cone: Cone, elements: int) -> float:
    """Operations of a cone for each of so many elements."""
    return sum(sweep.flops[n] for n in cone.nodes) / max(elements, 1)


def _view(index: View) -> View:
    """The indices with axes numbered by first visit, to compare readers with other names."""
    axes = [e for e in subterms(*index) if e.kind == "axis"]
    names = {a: axis(f"x{n}") for n, a in enumerate(axes)}
    return tuple(substitute(i, names) for i in index)


def _repeats(reader: Node, index: View) -> bool:
    """Whether points along the mentioned axes read the same element (windows, ``h // 4``)."""
    atoms = [a for i in index for a in linear(i)[1]]
    if any(a.kind != "axis" for a in atoms):
        rests = {name for a in atoms if a.kind == "mod" for name in a.free}
        return any(a.kind == "div" and not a.free <= rests for a in atoms)
    mentioned = {a: n for a, n in reader.loops if any(a in i.free for i in index)}
    return not is_injective(index, mentioned, {})


def _joins(sweep: Sweep, node: Node) -> bool:
    """Whether its readers all lead to one elementwise value of the same size."""
    pending = {r for r, _ in sweep.readers.get(node, [])}
    for first in (n for n in sweep.nodes if n in pending):
        if not _is_plain(sweep, first, node):
            return False
        if len(pending) == 1:
            return True
        pending.remove(first)
        pending |= {r for r, _ in sweep.readers.get(first, [])}
    return False


def _is_plain(sweep: Sweep, reader: Node, node: Node) -> bool:
    return reader not in sweep.inner and reader.size == node.size and reader.reduced is None


def _is_reduced(sweep: Sweep, node: Node) -> bool:
    """Whether an elementwise path of the same size leads into a reduction."""

    def readers(n: Node) -> list[Node]:
        return [r for r, _ in sweep.readers.get(n, [])]

    path = reachable([node], lambda n: [r for r in readers(n) if _is_plain(sweep, r, node)])
    return any(r.reduced for n in path for r in readers(n))
