"""Where the threads of a block must wait for each other: derived from what is read and written.

A barrier stands before an operation that touches what another wrote, or overwrites what another
read, since the last one. Values in registers belong to one thread and need none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import NamedTuple

import lumc.codegen.tile.program as ir
from lumc.codegen.gpu.program import Combine, Nest, Node, Step, Sync, reads, steps_of, writes


class State(NamedTuple):
    """Names written and read since the last barrier."""

    written: frozenset[str] = frozenset()
    read: frozenset[str] = frozenset()

    def join(self, other: State) -> State:
        return State(self.written | other.written, self.read | other.read)


def with_barriers(body: Sequence[Node], shared: Mapping[str, Set[str]]) -> list[Node]:
    """The program with a ``Sync`` wherever one of the ``shared`` names demands it; each comes with
    all those that a write to it destroys."""
    return _Barriers(shared).walk(body, State())[0]


class _Barriers:
    def __init__(self, shared: Mapping[str, Set[str]]) -> None:
        self.shared = shared

    def walk(self, body: Sequence[Node], state: State) -> tuple[list[Node], State]:
        out: list[Node] = []
        for node in body:
            if isinstance(node, Nest):
                new, state = self._nest(node, state, out)
                out.append(new)
            elif not isinstance(node, Sync):
                state = self._before(self._touched(node), state, out)
                out.append(node)
        return out, state

    def _before(self, touched: State, state: State, out: list[Node]) -> State:
        clash = touched.read & state.written or touched.written & (state.written | state.read)
        if clash:
            out.append(Sync())
        return touched if clash else state.join(touched)

    def _touched(self, node: Step | Combine) -> State:
        read, written = ({e.attr[0] for e in each(node)} for each in (reads, writes))
        if isinstance(node, Combine):
            read |= {*node.step.partials}
        else:
            written |= {*node.partials}
        return State(self._destroyed(written), frozenset(read & self.shared.keys()))

    def _destroyed(self, names: Iterable[str]) -> frozenset[str]:
        return frozenset(n for name in names for n in self.shared.get(name, ()))

    def _nest(self, node: Nest, state: State, out: list[Node]) -> tuple[Nest, State]:
        if node.slots > 1:
            return self._ring(node, state, out)
        body, after = self.walk(node.body, state)
        if isinstance(node.op, ir.Block):
            start = state
            while not (after.written <= start.written and after.read <= start.read):
                start = start.join(after)  # the end of a tile flows into the start of the next
                body, after = self.walk(node.body, start)
        if isinstance(node.op, ir.When) or _may_be_empty(node):
            after = after.join(state)
        return Nest(node.op, body), after

    def _ring(self, node: Nest, state: State, out: list[Node]) -> tuple[Nest, State]:
        """Every tile starts with a barrier, after which its copies are there and the slot that is
        filled next is no longer read."""
        copies = [s for s in steps_of(node.body) if s.ahead]
        names = frozenset(e.attr[0] for s in copies for e in writes(s))
        self._before(State(self._destroyed(names)), state, out)
        inner = _Barriers({n: each for n, each in self.shared.items() if n not in names})
        body, after = inner.walk([n for n in node.body if n not in copies], State())
        after = after.join(State(read=names))
        after = after.join(state) if _may_be_empty(node) else after
        return replace(node, body=[*copies, *body]), after


def _may_be_empty(node: Nest) -> bool:
    """Is it a loop whose tiles, with the barriers in them, may all be left out?"""
    return isinstance(node.op, ir.Block) and node.op.loop.span is not None
