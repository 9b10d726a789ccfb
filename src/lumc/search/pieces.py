"""Values that are joined from many others, as the stack of all steps of a recurrence is: every
piece is stored where it lies.

    y[i, j] = (a[j] if 0 <= i < 1) + (b[j] if 0 <= i - 1 < 1) + ..
        =    y[0, j] = a[j];    y[1, j] = b[j];    ..

A region of the whole sum would ask for every element which piece it is of, and would be another one
for every number of pieces.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod

from lumc.graph.blockwise import is_stored
from lumc.graph.expr import add, axis, linear, substitute
from lumc.graph.graph import Entry, Node, Operand, Read
from lumc.graph.ops import Op
from lumc.kernel.instance import PLACE, part_of

MANY = 16  # pieces; one region of fewer saves the memory between: a guess


@dataclass(frozen=True)
class Piece:
    """A node, and which elements of another one it is, in the order of memory."""

    node: Node
    whole: Node
    elements: range

    @property
    def name(self) -> str:
        """What the elements are called."""
        return part_of(self.whole.name, self.elements.start, self.elements.stop)


@dataclass
class _Link:
    """A sum of what is there for some values of an axis only, and of what was joined before."""

    own: list[tuple[Read, str, range]] = field(default_factory=list)
    before: Node | None = None


def pieces_of(entry: Entry) -> dict[Node, list[Piece]]:
    """The nodes that are stored in pieces, and these in the order of memory."""
    count = Counter(r.source for n in entry.nodes for r in n.reads)
    updates = {u.value for u in entry.writes}
    needed = updates | {n for _, n in entry.outputs}
    links = dict[Node, _Link]()
    for node in entry.nodes:
        link = _link(node)
        if link and (b := link.before) and (b not in links or count[b] > 1 or b in needed):
            link = None
        if link:
            links[node] = link
    inner = {link.before for link in links.values()}
    joins = {n: n.reads[0].source for n in entry.nodes if is_stored(n)}
    joins = {n: s for n, s in joins.items() if s in links and count[s] == 1}
    inner |= {*joins.values()}
    tops = [n for n in entry.nodes if (n in links and n not in inner) or n in joins]
    out = dict[Node, list[Piece]]()
    for node in (n for n in tops if n not in updates):
        found = _pieces(node, links, joins.get(node))
        if found:
            out[node] = [p for piece in found for p in _apart(piece, out, count, needed)]
    return out


def _link(node: Node) -> _Link | None:
    if node.op is not Op.ADD:
        return None
    link = _Link()
    for o in node.operands:
        own = _own(o, node)
        if isinstance(o, Read) and own:
            link.own.append((o, *own))
        elif isinstance(o, Read) and _is_whole(o, node) and not link.before:
            link.before = o.source
        else:
            return None
    return link


def _own(o: Operand, node: Node) -> tuple[str, range] | None:
    """The axis, and its values, for which an operand is there."""
    if len(o.bounds) != 1 or not isinstance(o.bounds[0].hi, int):
        return None
    (b,) = o.bounds
    constant, coefs = linear(b.index)
    atom = next(iter(coefs), b.index)
    if coefs != {atom: 1} or atom.kind != "axis":
        return None
    return atom.attr[0], range(b.lo - constant, o.bounds[0].hi - constant)


def _is_whole(o: Read, node: Node) -> bool:
    return not o.bounds and o.index == tuple(map(axis, node.axes)) and o.source.shape == node.shape


def _apart(
    piece: Piece, known: dict[Node, list[Piece]], count: Mapping[Node, int], needed: set[Node]
) -> list[Piece]:
    """The piece, or those of it, if it is a value in pieces that nothing else reads."""
    (read,), at = piece.node.reads, piece.elements.start
    source = read.source
    alone = count[source] == 1 and source not in needed and _is_whole(read, piece.node)
    if not alone or source not in known:
        return [piece]
    inner = ((p.node, p.elements) for p in known.pop(source))
    return [Piece(n, piece.whole, range(at + e.start, at + e.stop)) for n, e in inner]


def _pieces(node: Node, links: Mapping[Node, _Link], join: Node | None) -> list[Piece]:
    """None where there are few, unless they are a ``join`` that is stored; where they are not side
    by side, or begin where no value may."""
    own, at = list[tuple[Read, str, range]](), links.get(join or node)
    while at:
        own += at.own
        at = links.get(at.before) if at.before else None
    own.sort(key=lambda piece: piece[2].start)
    name = own[0][1]
    d = node.axes.index(name)
    sizes = [n for n in node.shape if isinstance(n, int)]
    ends = [0, *(values.stop for *_, values in own)]
    joined = all(
        a == name and v.start == end < v.stop for (_, a, v), end in zip(own, ends, strict=False)
    )
    enough = len(own) >= MANY or join
    if not enough or len(sizes) < len(node.shape) or not joined or ends[-1] != sizes[d]:
        return []
    inner = prod(sizes[d + 1 :])
    if prod(sizes[:d]) != 1 or any(e * inner * node.dtype.nbytes % PLACE for e in ends[:-1]):
        return []
    return [_piece(node, read, d, values, inner) for read, _, values in own]


def _piece(node: Node, read: Read, d: int, values: range, inner: int) -> Piece:
    moved = {axis(node.axes[d]): add(axis(node.axes[d]), values.start)}
    index = tuple(substitute(i, moved) for i in read.index)
    shape = (*node.shape[:d], len(values), *node.shape[d + 1 :])
    own = (Read(read.source, index),)
    part = replace(node, op=Op.CONTIGUOUS, shape=shape, operands=own)
    return Piece(part, node, range(values.start * inner, values.stop * inner))
