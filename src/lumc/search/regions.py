"""Where a model is cut before any search: the nodes whose values are stored in memory.

A region is what lies between cuts; its only result is stored. Cutting everywhere would leave
nothing to fuse, cutting nowhere would make terms too large to search. So a cut is made where
fusing would repeat much work, or compute an operand that could be read ready-made; everything
else is left to the search.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Iterable, Mapping, Set
from functools import partial
from itertools import accumulate, permutations

from lumc.graph.blockwise import is_stored
from lumc.graph.graph import Entry, Node, Read, Scalar
from lumc.graph.ops import Op
from lumc.graph.ranks import exchanged
from lumc.limits import AGAIN, LEVELS
from lumc.search.cones import (
    Pieces,
    Sweep,
    cut,
    is_factor,
    per_element,
    prepare,
    selects,
    stored_of,
)

SWEEPS = 8
LATE = 8 << 20  # bytes stored before a value is read: caches of a core hold less; a guess
MORE = 16  # operations per element that take no longer than to read such a value; a guess
COPIED = 8  # operations per element that such a copy takes; a guess
ABOVE = 32  # nodes on the way from a value to what it is compared with, at most; a guess
BASES = 8  # rounded values that a compared one is picked from, at most; else it is stored itself

Above = Mapping[Node, Set[Node]]  # the stored values that are made of a node
Reads = dict[Node, frozenset[Node]]
Before = dict[Node, frozenset[Hashable]]  # what values are like that one follows from
NO_PIECES: Pieces = {}


def partition(
    entry: Entry,
    extra: Iterable[Node] = (),
    pieces: Pieces = NO_PIECES,
    again: int = AGAIN,
) -> list[Node]:
    """The nodes of an entry whose values are stored, in execution order.

    Outputs, the values of updates and what ranks exchange are stored in any case, and so are
    ``extra``. Several regions make a value of up to ``again`` operations per element, each for
    itself, where that is possible. Those that are made of ``pieces`` are not among them: these are,
    in their place. What collectives make is there for regions as leaves are, and in none.
    """
    results = [n for _, n in entry.outputs] + [u.value for u in entry.writes]
    results += [n.reads[0].source for n in exchanged(entry)]
    sweep = prepare(entry, results, pieces)
    kept = (n for n in sweep.nodes if is_stored(n))
    asked = {*results, *extra, *kept, *_compared(sweep)}.union(*pieces.values())
    # where a little less is done again, other values may be stored, and fewer of them
    levels = [*(level for level in LEVELS if level < again), again]
    found = [(_cuts(sweep, asked, level), _room(sweep, results)) for level in levels]
    cuts, _ = min(found, key=lambda each: each[1])
    return [n for n in sweep.nodes if n in cuts]


def _cuts(sweep: Sweep, asked: Set[Node], again: int) -> set[Node]:
    """Those that are ``asked`` for, and all that follow."""
    sweep.cuts = {*asked}
    cut(sweep)
    _store_shared(sweep, again)
    sweep.late = _read_late(sweep)
    _take_back(sweep, sweep.cuts - asked - sweep.constant, again)
    _store_shared(sweep, again)
    return sweep.cuts


def _room(sweep: Sweep, results: Iterable[Node]) -> int:
    """The most bytes of stored values that later regions still read, as the nodes are ordered, but
    for results, which have places of their own."""
    order = [n for n in sweep.nodes if n in sweep.cuts]
    last = {s: i for i, n in enumerate(order) for s in sweep.cones[n].read}
    own, change = {*results}, [0] * (len(order) + 1)
    for i, n in ((i, n) for i, n in enumerate(order) if n not in own):
        change[i] += _nbytes([n])
        change[max(i, last.get(n, i)) + 1] -= _nbytes([n])
    return max(accumulate(change))


def _store_shared(sweep: Sweep, again: int) -> None:
    """Cut what several regions would compute, counted from what is stored, until nothing is."""
    for _ in range(SWEEPS):
        shared = _shared(sweep, again)
        if not shared:
            break
        sweep.cuts |= shared
        cut(sweep)


def _shared(sweep: Sweep, again: int) -> set[Node]:
    """Values that several regions would compute, as far down as possible. A product that computes
    its operand copies it."""
    reach: dict[Node, Node | None] = {}  # the one region that makes it, none where several do
    out, known = set[Node](), sweep.cuts | sweep.inner | sweep.constant
    for node in reversed(sweep.nodes):
        readers = [r for r, _ in sweep.readers.get(node, [])]
        above = {r if r in sweep.cuts or r in out else reach[r] for r in readers}
        reach[node] = above.pop() if len(above) == 1 else None
        if readers and reach[node] is None and node not in known:
            spent = per_element(sweep, sweep.cones[node], node.size)
            if spent + COPIED * is_factor(sweep, node) > _limit(sweep, node, again):
                out.add(stored_of(node))
    return out


def _take_back(sweep: Sweep, cuts: Set[Node], again: int) -> None:
    """Of these ``cuts``, store no more what regions make of what else is stored with little work,
    each for itself, and without more bytes to read. Products read their operands ready-made."""
    above = {n: _above(sweep, n) for n in cuts if n in sweep.late or not is_factor(sweep, n)}
    read = {n: cone.read for n, cone in sweep.cones.items() if n in sweep.cuts}
    before, few = Before(), set[Node]()
    sweep.cuts = sweep.cuts - above.keys()
    cut(sweep, partial(_stays, sweep, above, read, before, few, again))
    sweep.cuts |= few
    cut(sweep)


def _stays(
    sweep: Sweep, above: Above, read: Reads, before: Before, few: set[Node], again: int, node: Node
) -> bool:
    """Whether a value takes its regions too much; else these ``read`` what it is made of, and what
    of that are ``few`` elements that take more is stored. If one like it is stored that it follows
    from, element by element, it is too: equal steps of a recurrence stay equal regions."""
    if node not in above:
        return False
    cone, own = sweep.cones[node], _likeness(sweep, node)
    steps = () if any(n.reduced for n in cone.nodes) else cone.read
    earlier = frozenset[Hashable]().union(*(before.get(s, frozenset()) for s in steps))
    before[node] = earlier | {own}
    sources = _sources(sweep, node, again)
    if own in earlier or not sources:
        return True
    summed = sources & cone.nodes
    more = [*summed, *(s for top in above[node] for s in sources - read[top])]
    if _nbytes(more) > (1 + len(above[node])) * _nbytes([node]):
        return True
    read.update({top: read[top] - {node} | sources for top in above[node]})
    few |= summed
    return False


def _read_late(sweep: Sweep) -> set[Node]:
    """What makes stored values that are read when much else has been stored since: on the way back
    of a gradient."""
    order = [n for n in sweep.nodes if n in sweep.cuts]
    last = {s: i for i, n in enumerate(order) for s in sweep.cones[n].read}
    stored = [0, *accumulate(_nbytes([n]) for n in order)]
    late = (n for i, n in enumerate(order) if stored[last.get(n, i)] - stored[i + 1] >= LATE)
    return {n for each in late for n in sweep.cones[each].nodes}


def _limit(sweep: Sweep, node: Node, again: int) -> int:
    """Operations per element of a value that several regions make, each for itself."""
    return max(again, MORE) if node in sweep.late else again


def _sources(sweep: Sweep, node: Node, again: int) -> frozenset[Node]:
    """What a value is made of by at most so many operations per element: of what is stored, and of
    fewer elements that take more. None if there is no such thing."""
    spent, seen, out, pending = 0, {node}, set[Node](), [node]
    while pending:
        n = pending.pop()
        spent += sweep.flops[n]
        for source in (r.source for r in n.reads if r.source not in seen):
            seen.add(source)
            stored = source not in sweep.cones or source in sweep.cuts
            if stored or _is_summary(sweep, source, node, again):
                out.add(source)
            else:
                pending.append(source)
    most = _limit(sweep, node, again) - COPIED * is_factor(sweep, node)
    return frozenset(out) if spent <= most * node.size else frozenset()


def _is_summary(sweep: Sweep, source: Node, node: Node, again: int) -> bool:
    """Fewer elements, each of which takes more than what is done again."""
    few, most = source.size < node.size, _limit(sweep, node, again)
    more = per_element(sweep, sweep.cones[source], source.size) > most
    return few and more and source not in sweep.inner


def _nbytes(nodes: Iterable[Node]) -> int:
    return sum(n.size * n.dtype.nbytes for n in nodes)


def _above(sweep: Sweep, node: Node) -> set[Node]:
    """The stored values that are made of it."""
    out, seen, pending = set[Node](), {node}, [node]
    while pending:
        for reader, _ in sweep.readers.get(pending.pop(), []):
            if reader in sweep.cuts:
                out.add(reader)
            elif reader not in seen:
                seen.add(reader)
                pending.append(reader)
    return out


def _likeness(sweep: Sweep, node: Node) -> Hashable:
    """Equal for nodes that look the same from nearby, wherever they begin and end."""
    read = tuple((r.source.shape, r.source.dtype) for r in node.reads)
    readers = Counter((r.op, r.shape, r.dtype) for r, _ in sweep.readers.get(node, []))
    return node.op, node.shape, node.dtype, read, frozenset(readers.items())


def _compared(sweep: Sweep) -> set[Node]:
    """Values that are compared with other elements of themselves, as with the greatest of them: in
    two places they might be rounded in two ways, and none would be the greatest. Of those that are
    picked from others, or negated, these."""
    rounded, out = dict[Node, frozenset[Node]](), set[Node]()
    for node in sweep.nodes:
        below = (rounded.get(r.source, frozenset()) for r in node.reads)
        picked = frozenset[Node]().union(*below)
        own = _rounds(node) or len(picked) > BASES
        rounded[node] = frozenset([node]) if own else picked
        for one, other in permutations(node.reads, 2) if node.op is Op.LT else ():
            if one.source in rounded and _reaches(other, one):
                out |= rounded[one.source]
    return out - sweep.inner


def _rounds(node: Node) -> bool:
    """Not if its elements are those of its operands, or negated, or integers."""
    if node.op is Op.CONTIGUOUS:
        return any(r.dtype.is_float and r.dtype.nbytes > node.dtype.nbytes for r in node.reads)
    if node.op is Op.MUL and node.dtype.is_float:
        sign = any(isinstance(o, Scalar) and abs(o.value) == 1 for o in node.operands)
        return not (sign or selects(node))
    return node.dtype.is_float and node.op is not Op.MAX


def _reaches(other: Read, one: Read) -> bool:
    """Whether a value is made of other elements of another one, not far from it."""
    if other.source is one.source:
        return other.index != one.index
    seen, pending = {other.source}, deque([other.source])
    while pending and len(seen) < ABOVE and one.source not in seen:
        more = [r.source for r in pending.popleft().reads if r.source not in seen]
        seen.update(more)
        pending += more
    return one.source in seen and any(n.reduced for n in seen)
