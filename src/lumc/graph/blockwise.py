"""Graphs that compute some values in blocks of an axis, so that one block is in memory at a time.

    p[i, j] = f(q[i], k[j])          for each block I of i:    p' = f(q[I], k)
    y[i] = sum_j p[i, j] * v[j]                                y[I] = sum_j p' * v[j]
    z[j] = sum_i p[i, j] * u[i]                                z = z + sum_(i in I) p'[i, j] * u[i]

An axis of one value is one of those that read it at this axis alone, and of what it reads so. What
has the axis is made again for every block, of as many elements as the block has: that takes no more
operations. Where it is read as a whole, blocks are joined; a sum over the axis is one of partial
sums. What depends on something whole comes after the last block.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

from lumc.graph.expr import Expr, add, axis, substitute
from lumc.graph.graph import Bound, Entry, Iota, Node, Operand, Read, Scalar, Update, reachable
from lumc.graph.ops import DType, Op

LARGE = 4  # of the elements of a value, this part makes another one large too; a guess
NARROW = (DType.F16, DType.BF16)  # partial sums of which would be rounded


@dataclass
class _Loop:
    """What is made in blocks: the axis of every node, which may be the one that it reduces."""

    large: frozenset[Node]
    axis: dict[Node, str] = field(default_factory=dict)

    def is_sum(self, n: Node) -> bool:
        """Is it a sum over the axis?"""
        return n.reduced is not None and n.reduced[0] == self.axis[n]


def blockwise(
    entry: Entry, seed: Node, sizes: Sequence[tuple[str, int]], given: Iterable[str]
) -> Entry | None:
    """The entry with ``seed`` made in blocks of so many elements along some of its axes, the outer
    ones first, and with it all that is as large and goes along these; names of new nodes are none
    of those ``given``. None where an extent is no multiple or is a dim, where all of the seed is
    needed at once, and where truth values would have to be joined."""
    (name, size), *inner = sizes
    extent = seed.sizes[seed.axes.index(name)]
    loop = _pruned(entry, _loop(entry, seed, name)) if not seed.dims else _Loop(frozenset())
    written = _Written(entry, loop, size, extent // size, {*given})
    if extent % size or extent == size or seed not in loop.axis or seed in written.joined:
        return None
    if any(n.dtype is DType.BOOL for n in written.joined):
        return None
    made: Entry | None = written.entry()
    for block in written.blocks[seed] if inner else []:
        made = made and blockwise(made, block, inner, written.given)
        written.given |= {n.name for n in made.nodes} if made else set()
    return made


def _results(entry: Entry) -> list[Node]:
    return [*(n for _, n in entry.outputs), *(u.value for u in entry.writes)]


def _loop(entry: Entry, seed: Node, name: str) -> _Loop:
    """What may be made in blocks: the large values that go along the axis, and what is made of them
    as far as nothing else asks for all blocks of one."""
    linked = _linked(entry, seed, name)
    loop, late = _Loop(frozenset(linked)), set[Node]()
    for n in (n for n in entry.nodes if isinstance(n.op, Op)):
        inside, below = [r for r in n.reads if r.source in loop.axis], [r.source for r in n.reads]
        along = {_along(r, loop.axis[r.source]) for r in inside}
        along |= {linked[n]} if n in linked else set()
        after = any(s in late or (s in loop.axis and loop.is_sum(s)) for s in below)
        (own,) = along if len(along) == 1 else ("",)
        if after or not own or not _is_split(n, own):
            late |= {n} if inside or after else set()
            continue
        loop.axis[n] = own
    return loop


def _linked(entry: Entry, seed: Node, name: str) -> dict[Node, str]:
    """The large values that go along an axis of one, and which of their axes that is."""
    readers = dict[Node, list[tuple[Node, Read]]]()
    for n in entry.nodes:
        for r in n.reads:
            readers.setdefault(r.source, []).append((n, r))
    out, todo = {seed: name}, [seed]
    while todo:
        n = todo.pop()
        near = [(r, _along(read, out[n])) for r, read in readers.get(n, [])]
        near += [(r.source, _under(r, out[n])) for r in n.reads]
        for other, own in near:
            large = isinstance(other.op, Op) and other.size * LARGE > seed.size
            if own and large and own in other.axes and other not in out:
                out[other] = own
                todo.append(other)
    return out


def _along(r: Read, name: str) -> str:
    """The axis of a reader that goes along this one of its source; none where that is no axis."""
    index = r.index[r.source.axes.index(name)] if name in r.source.axes else None
    return index.attr[0] if index is not None and index.kind == "axis" else ""


def _under(r: Read, name: str) -> str:
    """The axis of a source that goes along this one of its reader."""
    found = [a for a, i in zip(r.source.axes, r.index, strict=True) if name in i.free]
    return found[0] if len(found) == 1 and _along(r, found[0]) == name else ""


def _is_split(n: Node, name: str) -> bool:
    """May a node be made in blocks of an axis?"""
    reduced = n.reduced is not None and n.reduced[0] == name
    return not reduced or (n.op is Op.SUM and n.dtype not in NARROW)


def _pruned(entry: Entry, loop: _Loop) -> _Loop:
    """Without what is made of blocks of small values only, which are joined, unless something large
    is made of it."""
    kept, needed = dict[Node, str](), set[Node]()
    for n in reversed([n for n in entry.nodes if n in loop.axis]):
        sources = {r.source for r in n.reads if r.source in loop.axis}
        if n in loop.large or n in needed or sources & loop.large:
            kept[n] = loop.axis[n]
            needed |= sources
    return replace(loop, axis={n: kept[n] for n in entry.nodes if n in kept})


class _Written:
    """The nodes of an entry with a loop, written out."""

    def __init__(self, entry: Entry, loop: _Loop, size: int, count: int, given: set[str]) -> None:
        self.before, self.loop, self.size, self.count, self.given = entry, loop, size, count, given
        self.nodes, self.made = list[Node](), dict[Node, Node]()
        self.blocks = dict[Node, list[Node]]()
        inside, nodes = loop.axis, entry.nodes
        below = reachable(inside, lambda n: (r.source for r in n.reads))
        first = next((i for i, n in enumerate(nodes) if n in inside), 0)
        early = {n for i, n in enumerate(nodes) if i < first or n in below} - {*inside}
        self.first = [n for n in nodes if n in early]
        self.last = [n for n in nodes if n not in early and n not in inside]
        whole = {*_results(entry), *(r.source for n in self.last for r in n.reads)}
        self.joined = {n for n in inside if n in whole and not loop.is_sum(n)}

    def entry(self) -> Entry:
        """All of them."""
        inside = self.loop.axis
        self.nodes += self.first
        for b in range(self.count):
            for n in inside:
                self.block(n, b)
        for n in inside:
            if n in self.joined:
                self.join(n, self.blocks[n])
            elif self.loop.is_sum(n):
                self.made[n] = self.blocks[n][-1]
        for n in self.last:
            operands = tuple(self.whole(o) for o in n.operands)
            changed = operands != n.operands
            new = replace(n, operands=operands) if changed else n
            self.made[n] = new
            self.nodes.append(new)
        before, get = self.before, self.made.get
        outputs = tuple((name, get(n, n)) for name, n in before.outputs)
        updates = tuple(Update(u.state, u.index, get(u.value, u.value)) for u in before.updates)
        return replace(before, nodes=tuple(self.nodes), outputs=outputs, updates=updates)

    def whole(self, o: Operand) -> Operand:
        if isinstance(o, Read) and o.source in self.made:
            return replace(o, source=self.made[o.source])
        return o

    def add(self, node: Node) -> Node:
        """With a name of its own."""
        name, count = node.name, 1
        while name in self.given:
            count += 1
            name = f"{node.name}.{count}"
        self.given.add(name)
        self.nodes.append(replace(node, name=name))
        return self.nodes[-1]

    def block(self, n: Node, b: int) -> None:
        """The node for one block; of a sum over the axis, with those before."""
        name, last = self.loop.axis[n], b == self.count - 1
        moved = {axis(name): add(axis(name), b * self.size)}
        operands = tuple(self.operand(o, moved, b) for o in n.operands)
        shape = tuple(self.size if a == name else s for a, s in zip(n.axes, n.shape, strict=True))
        own = replace(n, shape=shape, operands=operands)
        if self.loop.is_sum(n):
            own = self.add(replace(own, reduced=(name, self.size)))
            if b:
                sums = (_plain(self.blocks[n][-1]), _plain(own))
                own = self.add(replace(n, op=Op.ADD, operands=sums, reduced=None))
            if not last:
                own = self.add(stored(own))
        else:
            own = self.add(own)
        self.blocks.setdefault(n, []).append(own)

    def operand(self, o: Operand, moved: Mapping[Expr, Expr], b: int) -> Operand:
        """What a block reads: of what has blocks its own one."""
        guards = tuple(Bound(substitute(g.index, moved), g.lo, g.hi) for g in o.bounds)
        if isinstance(o, Scalar):
            return replace(o, bounds=guards)
        if isinstance(o, Iota):
            return replace(o, index=substitute(o.index, moved), bounds=guards)
        index = [substitute(i, moved) for i in o.index]
        if o.source in self.loop.axis:
            at = o.source.axes.index(self.loop.axis[o.source])
            index[at] = o.index[at]
            return Read(self.blocks[o.source][b], tuple(index), guards)
        return Read(o.source, tuple(index), guards)

    def join(self, n: Node, blocks: Sequence[Node]) -> None:
        """All blocks of a value, which is stored as one."""
        name = self.loop.axis[n]
        at = n.axes.index(name)

        def own(b: int) -> Read:
            place = add(axis(name), -b * self.size)
            index = tuple(place if d == at else axis(a) for d, a in enumerate(n.axes))
            return Read(blocks[b], index, (Bound(place, 0, self.size),))

        plain = replace(n, op=Op.ADD, reduced=None)
        two = self.add(replace(plain, operands=(own(0), own(1))))
        every = reduce(
            lambda x, b: self.add(replace(plain, operands=(_plain(x), own(b)))),
            range(2, self.count),
            two,
        )
        self.made[n] = self.add(stored(every))


def _plain(n: Node) -> Read:
    return Read(n, tuple(map(axis, n.axes)))


def stored(n: Node) -> Node:
    """A copy of a value as it is: what is stored, whatever reads it."""
    return replace(n, op=Op.CONTIGUOUS, operands=(_plain(n),), reduced=None)


def is_stored(n: Node) -> bool:
    """Is it such a copy?"""
    (r,) = n.reads if n.op is Op.CONTIGUOUS and len(n.reads) == 1 else (None,)
    plain = r is not None and r == _plain(r.source) and isinstance(r.source.op, Op)
    return bool(plain and r and r.dtype is n.dtype and r.source.axes == n.axes)
