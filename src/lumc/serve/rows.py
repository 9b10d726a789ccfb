"""May requests of several callers share one run? The proof that no row of a batch sees another.

A *row* is what lies at one index of the first axis of all inputs. Every value of a graph is walked
in order, and each of its axes is one of three: along it lie the rows, the value is the same all
along it, or it is neither. Rows stay apart where every read of a value with rows takes the row that
is being made. A sum over rows, a number of a row, an index that is shifted by a row or an extent
that counts rows is no such read, and then there is no proof.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lumc.graph.dim import Dim, Extent, as_expr
from lumc.graph.expr import Expr, axis, subterms
from lumc.graph.graph import Entry, Iota, Node, Read

ROW, SAME, OTHER = "row", "same", "other"
Kinds = tuple[str, ...]  # of each axis


class Mixed(Exception):
    """Rows meet; the argument says where."""


def rows_of(entry: Entry, dims: Mapping[str, Dim]) -> Extent | None:
    """How many rows an entry takes in one run, a number or a dim, if it does with each of them what
    it would do with it alone; else None."""
    try:
        return proven(entry, dims)
    except Mixed:
        return None


def proven(entry: Entry, dims: Mapping[str, Dim]) -> Extent:
    """The same; raises Mixed."""
    first = {n.shape[0] for n in entry.inputs if n.shape}
    if len(first) != 1 or not all(n.shape for n in entry.inputs):
        raise Mixed("the inputs have no first axis in common")
    (count,) = first
    if entry.writes or not (isinstance(count, int) or count.kind == "dim"):
        raise Mixed("it keeps states" if entry.writes else f"{count} rows")
    kinds = {n: (ROW, *(OTHER for _ in n.shape[1:])) for n in entry.inputs}
    for node in (*entry.inputs, *entry.nodes):
        if node not in kinds:
            kinds[node] = kinds_of(node, kinds, count)
        check_extents(node, kinds[node], count)
    for name, node in entry.outputs:
        if kinds.get(node, ())[:1] != (ROW,):
            raise Mixed(f"output {name} has no row for each of the inputs")
        if counts(map(as_expr, node.shape[1:]), count):
            raise Mixed(f"output {name} is as long as there are rows")
    return count


def kinds_of(node: Node, known: Mapping[Node, Kinds], count: Extent) -> Kinds:
    """What each axis of a node is, of what its operands are read at."""
    found = dict[str, str]()

    def meet(name: str, kind: str) -> None:
        if found.setdefault(name, kind) != kind:
            raise Mixed(f"{node.name}: axis {name} is of rows, and its number counts")

    for o in node.operands:
        loose = [b.index for b in o.bounds]
        extents: list[Extent] = [b.hi for b in o.bounds]
        if isinstance(o, Iota):
            loose.append(o.index)
        if isinstance(o, Read):
            source = known.get(o.source, (OTHER,) * len(o.source.shape))
            for e, kind in zip(o.index, source, strict=True):
                if kind == ROW:
                    meet(name_of(e, node), ROW)
                elif kind == OTHER:
                    loose.append(e)
        for e in loose:
            for name in sorted(e.free):
                meet(name, OTHER)
        if counts((*loose, *map(as_expr, extents)), count):
            raise Mixed(f"{node.name}: the number of rows is a value")
    if sum(kind == ROW for kind in found.values()) > 1:
        raise Mixed(f"{node.name}: every row with every row")
    if node.reduced and found.get(node.reduced[0]) == ROW:
        raise Mixed(f"{node.name}: rows become one")
    return tuple(found.get(a, SAME) for a in node.axes)


def name_of(e: Expr, node: Node) -> str:
    """The axis whose number is this index."""
    if e.kind != "axis" or e is not axis(e.attr[0]):
        raise Mixed(f"{node.name}: reads rows at {e}")
    return str(e.attr[0])


def check_extents(node: Node, kinds: Kinds, count: Extent) -> None:
    """Rows are as many as there are; no other extent is made of their number. Raises Mixed."""
    for kind, size in zip(kinds, node.shape, strict=True):
        if kind == ROW and size != count:
            raise Mixed(f"{node.name}: {size} rows of {count}")
        if kind == OTHER and counts((as_expr(size),), count):
            raise Mixed(f"{node.name}: as long as there are rows")
    if node.reduced and counts((as_expr(node.reduced[1]),), count):
        raise Mixed(f"{node.name}: reduces as many as there are rows")


def counts(exprs: Iterable[Expr], count: Extent) -> bool:
    """Does the dim of the rows occur in these? (A number is no dim.)"""
    if isinstance(count, int):
        return False
    return any(count in subterms(e) for e in exprs)
