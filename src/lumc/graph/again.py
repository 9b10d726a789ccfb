"""Nodes that compute what another one computes: a graph has them where a value is made again, not
kept."""

from __future__ import annotations

from lumc.graph.graph import Entry, Node, Operand, Read
from lumc.graph.ops import Op


def repeated(entry: Entry) -> dict[Node, Node]:
    """The nodes of an entry that do the same operation over the same axes with the same operands as
    one before, and that one."""
    first, out = dict[object, Node](), dict[Node, Node]()

    def key(o: Operand) -> object:
        if isinstance(o, Read):
            return out.get(o.source, o.source), o.index, o.bounds
        return repr(o)  # 0.0 is no -0.0, and NaN is itself

    for n in (n for n in entry.nodes if isinstance(n.op, Op)):
        what = n.op, n.dtype, n.axes, n.shape, n.reduced, tuple(map(key, n.operands))
        if (known := first.setdefault(what, n)) is not n:
            out[n] = known
    return out
