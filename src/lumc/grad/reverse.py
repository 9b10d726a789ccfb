"""Gradients by reverse mode: from a result back to what it is made of, node by node.

What flows back to a node is a tensor, an operand of the model, so where it only moves no node is
made. All that comes of it are the twelve primitives, of which gradients are taken again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from lumc.frontend.api.model import Model
from lumc.frontend.api.tensor import Tensor
from lumc.frontend.api.view import move, place, places
from lumc.grad.adjoint import adjoint
from lumc.grad.degrees import moved_by
from lumc.grad.rules import factors, of_maximum
from lumc.graph.expr import Expr, axis, substitute
from lumc.graph.graph import Node, Operand, Read, map_indices, reachable
from lumc.graph.ops import Op

SHOWN = 3  # places where no derivative goes on, in a message


def gradients(loss: Tensor, wrt: Sequence[Tensor], stop: Sequence[Tensor] = ()) -> list[Tensor]:
    """The derivatives of a loss by tensors: for each of ``wrt`` a tensor of its shape and dtype.

    ``loss`` is one float, such as a mean; ``wrt`` are inputs, constants, weights, states or values
    on the way to it; what ``stop`` names counts as constant. The derivatives are part of the
    same model, as operations like any others: they can be outputs, go into updates, and be
    differentiated again. At a kink it is the derivative of the branch that the model takes; the
    greatest elements of a maximum share evenly.

    Raises E0126 (tensors of another model or entry), E0130 (the loss is not one float), E0131 (no
    float, a number, or a view that repeats elements or leaves some out), E0132 (the loss does not
    depend on it, or in steps only), E0133 (an index that is not bounded for all values of dims).
    """
    model = loss.model
    assert isinstance(model, Model)
    if isinstance(wrt, Tensor):
        raise loss.refuse("E0131", "wrt is one tensor", "put it in a list: gradients(loss, [x])")
    for t in (loss, *wrt, *stop):
        model.check_here(t)
    if any(e != 1 for e in loss.shape) or not loss.dtype.is_float:
        what = f"the loss is one float, and this is {loss.describe()}"
        raise loss.refuse("E0130", what, "sum or average it: loss.mean()")
    targets = [_target(t) for t in wrt]
    stopped = {t.operand.source for t in stop if isinstance(t.operand, Read)}
    if not isinstance(loss.operand, Read):
        raise loss.refuse("E0132", "the loss is a number, which depends on nothing")
    end = loss.operand.source
    flow = Flow(model, end, targets, stopped)
    if dead := [n for n in targets if n not in flow.alive]:
        raise loss.refuse("E0132", obstacle(flow.nodes, end, dead[0], stopped))
    origin = model.origin
    try:
        flow.give(loss.operand, loss, [model.full(loss.shape, 1.0, loss.dtype)])
        flow.run()
    finally:
        model.origin = origin
    return [_like(flow.total(n), t) for n, t in zip(targets, wrt, strict=True)]


def _target(t: Tensor) -> Node:
    """The node that a tensor is, whose elements it has each once."""
    read = t.operand
    if not isinstance(read, Read):
        raise t.refuse("E0131", f"{t.describe()} is a number that the model holds, no value of it")
    if not t.dtype.is_float:
        what = f"'{read.source.name}' is {t.describe()}: only floats have gradients"
        raise t.refuse("E0131", what)
    own = {place(i) for i, e in enumerate(t.shape) if e != 1}
    index = [e for e, n in zip(read.index, read.source.shape, strict=True) if n != 1]
    sizes = [n for n in read.source.shape if n != 1]
    here = {place(i): n for i, n in enumerate(t.shape)}
    if read.bounds or set(index) != own or [here[e] for e in index] != sizes:
        fix = "name the tensor itself, or copy the view with contiguous() before it is used"
        raise t.refuse("E0131", f"{t.describe()} is a view of '{read.source.name}'", fix)
    return read.source


def _like(total: Tensor, t: Tensor) -> Tensor:
    """What flows back to a node, as a tensor of it has its axes."""
    assert isinstance(t.operand, Read)
    moved = move(total.operand, t.shape, t.operand.index, t.model.dims)
    return Tensor(t.model, moved, t.shape)


@dataclass
class Flow:
    """What flows back from ``end``. ``parts`` has what the readers of a node gave it so far,
    ``cancelled`` maxima that ``end`` does not move with, ``bounded`` powers that have such a
    maximum subtracted, so that none of them is infinite."""

    model: Model
    end: Node
    targets: Collection[Node]
    stopped: Collection[Node]
    parts: dict[Node, list[Tensor]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        below = reachable([self.end], sources)
        self.nodes = [n for n in self.model.builder.nodes if n in below]
        self.alive = alive(self.nodes, self.end, self.stopped)
        self.readers = dict[Node, list[int]]()
        self.reached = set(self.targets)  # what depends on these
        for at, n in enumerate(self.nodes):
            for source in dict.fromkeys(sources(n)):
                self.readers.setdefault(source, []).append(at)
            if carries(n, self.stopped) and not self.reached.isdisjoint(sources(n)):
                self.reached.add(n)
        self.cancelled, self.bounded = set[Node](), set[Node]()
        for n in (n for n in self.nodes if n.op is Op.MAX and n in self.reached):
            if (found := moved_by(n, self.end, self.nodes, self.readers)) is not None:
                self.cancelled.add(n)
                self.bounded.update(e for e, d in found.items() if e.op is Op.EXP2 and d.by < 0)

    def run(self) -> None:
        """From the last node to the first."""
        for n in reversed(self.nodes):
            known = self.reached.isdisjoint(sources(n)) or not carries(n, self.stopped)
            if n in self.parts and not known:
                self.model.origin = f"the gradient of {named(n)}"
                self.back(n)

    def back(self, n: Node) -> None:
        """Give what flows back to a node to those that it reads."""
        if n.op is not Op.MAX:
            over, bounded = _Over(self, n, []), n in self.bounded
            for i, product in factors(n, over.dy, over.y, over.args, bounded).items():
                self.give(over.args[i].operand, over.args[i], product)
        elif n not in self.cancelled:
            over = _Over(self, n, self.chain(n))
            a = over.args[0]
            self.give(a.operand, a, of_maximum(over.dy, over.y, a, len(n.shape)))

    def chain(self, n: Node) -> list[Node]:
        """The maxima below a maximum that nothing else reads: together they are the maximum over
        several axes, whose greatest elements are equal to each other wherever they lie."""
        out = list[Node]()
        while isinstance(o := n.operands[0], Read) and o.source.op is Op.MAX and not o.bounds:
            n = o.source
            if len(self.readers[n]) > 1 or n in self.targets:
                break
            out.append(n)
        return out

    def give(self, o: Operand, t: Tensor, product: Sequence[Tensor]) -> None:
        """Add what flows back through an operand of the shape of ``t`` to that of its source."""
        if isinstance(o, Read) and o.source in self.reached and 0 not in t.shape:
            self.parts.setdefault(o.source, []).append(adjoint(o, t.shape, product))

    def total(self, n: Node) -> Tensor:
        """All that flows back to a node, added up once."""
        parts = self.parts.get(n) or [self.model.full(n.shape, 0.0, n.dtype)]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        self.parts[n] = [total]
        return total


class _Over:
    """A node, what flows back to it and its operands as tensors over its loops; over those of the
    maxima in its ``chain`` too, of which the last one's operand is its own."""

    def __init__(self, flow: Flow, n: Node, chain: Sequence[Node]) -> None:
        model, loops, operands = flow.model, [*n.loops], n.operands
        env: dict[Expr, Expr] = {axis(a): place(i) for i, (a, _) in enumerate(loops)}
        operands = _through(operands, env)
        for inner in chain:
            (read,) = operands
            assert isinstance(read, Read) and inner.reduced
            env = dict(zip(map(axis, inner.axes), read.index, strict=True))
            env[axis(inner.reduced[0])] = place(len(loops))
            loops.append(inner.reduced)
            operands = _through(inner.operands, env)
        shape, own = tuple(e for _, e in loops), places(n.shape)
        self.args = [Tensor(model, o, shape) for o in operands]
        self.dy = flow.total(n).view(shape, own)
        self.y = model.whole(n).view(shape, own)


def _through(operands: Sequence[Operand], env: Mapping[Expr, Expr]) -> tuple[Operand, ...]:
    return map_indices(operands, lambda e: substitute(e, env), lambda e: e)


# ---- what carries a derivative


def sources(n: Node) -> list[Node]:
    """What a node reads."""
    return [r.source for r in n.reads]


def carries(n: Node, stopped: Collection[Node]) -> bool:
    """Whether a derivative goes through a node: it is a float, and does not count as constant."""
    return n.dtype.is_float and n not in stopped


def alive(nodes: Sequence[Node], end: Node, stopped: Collection[Node]) -> set[Node]:
    """What ``end`` has a derivative by, of the nodes that it is made of and of leaves."""
    out = {end}
    for n in reversed(nodes):
        if n in out and carries(n, stopped):
            out.update(s for s in sources(n) if s.dtype.is_float)
    return out


def obstacle(nodes: Sequence[Node], end: Node, target: Node, stopped: Collection[Node]) -> str:
    """Why the end has no derivative by a node; ``nodes`` are those that it is made of."""
    touched, ends = {target}, list[str]()
    for n in (n for n in nodes if not touched.isdisjoint(sources(n))):
        if carries(n, stopped):
            touched.add(n)
        elif n in stopped:
            ends.append(f"{named(n)} counts as constant")
        else:
            what = "a comparison" if n.op is Op.LT else f"of {n.dtype}"
            ends.append(f"{named(n)} is {what}")
    if not ends:
        return f"the loss does not depend on '{target.name}'"
    more = f", and {len(ends) - SHOWN} more" if len(ends) > SHOWN else ""
    return f"the loss has no derivative by '{target.name}': {', '.join(ends[:SHOWN])}{more}"


def named(n: Node) -> str:
    """A node, and where it comes from."""
    return f"'{n.name}'" + (f" ({n.origin})" if n.origin else "")
