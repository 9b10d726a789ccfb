"""Copies of whole tiles by tensor maps: which ones can be, and which of them blocks share.

A map knows a buffer and a box of it, so a tile has to be a box: two of its axes are axes of the
buffer, and what lies outside of the buffer is what has to be zero. Only warpgroups read such tiles.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import lumc.codegen.tile.program as ir
from lumc.codegen.gpu.dealing import Dealing
from lumc.codegen.gpu.grid import TensorMap
from lumc.codegen.gpu.program import Bulk, Step, reads
from lumc.codegen.gpu.roles import PANEL
from lumc.graph.expr import Expr, axis, num, substitute, subterms

UNIT = 8  # rows of a panel after which its pieces are exchanged alike
MOST = 256  # rows of a box (cuTensorMapEncodeTiled)
GREATEST = 1 << 31  # elements of a buffer whose coordinates the text counts to
Ends = tuple[Bulk, TensorMap]


class Maps:
    """The tensor maps of a kernel, and what is copied by them."""

    def __init__(self, d: Dealing) -> None:
        self.d, self.blocks = d, max(1, d.threads.bulk)
        self.made, self.arrivals = list[TensorMap](), 0  # barriers that count bytes
        loops = [x for op in d.program.body if isinstance(op, ir.Par) for x in op.loops]
        self.dealt = [x for x in loops if x.count > 1]

    def ring(self, steps: Sequence[Step]) -> int | None:
        """The first barrier of a loop whose copies can all be bulk, and have become so."""
        if not self.d.threads.bulk or self.d.program.kernel.lengths.dims:
            return None  # where a tensor ends is known too late
        found = [self._ends(s, s.op) for s in steps if isinstance(s.op, ir.Map)]
        if None in found:
            return None
        for step, (bulk, made) in zip(steps, filter(None, found), strict=True):
            if made not in self.made:
                self.made.append(made)
            step.bulk = replace(bulk, number=self.made.index(made))
        self.arrivals += self.d.threads.ring
        return self.arrivals - self.d.threads.ring

    def checked(self) -> tuple[tuple[TensorMap, ...], int]:
        """The maps, and how many barriers there are. Raises E0411 where blocks are to share copies
        and cannot: those of the fastest axis of the grid, in whole clusters, whose loops have
        equally many turns."""
        shared = any(s.bulk and s.bulk.blocks > 1 for s in self.d.steps)
        spans = any(b.loop.span for b in _loops(self.d.program.body))
        if self.blocks > 1 and (not shared or spans or self.dealt[-1].count % self.blocks):
            raise self.d.refuse(f"no copies that {self.blocks} blocks share")
        return tuple(self.made), self.arrivals

    def _ends(self, step: Step, op: ir.Map) -> Ends | None:
        """What is copied, and the map of its source."""
        d, load, name = self.d, op.term, self.d.name_of(op)
        sizes, inner = [x.size for x in d.places[name].dims], d.order[name][-1]
        outer = [i for i, n in enumerate(sizes) if n > 1 and i != inner]
        if load.kind != "load" or len(outer) != 1 or sizes[inner] % PANEL:
            return None
        x, y = (op.dst.kids[i].attr[0] for i in (inner, *outer))
        place, wide, rows = d.places[load.attr[0]], sizes[inner], self._reach(name, *outer)
        mine = [load.kids.index(axis(a)) for a in (x, y) if axis(a) in load.kids]
        others = [i for i, dim in enumerate(place.dims) if dim.size > 1 and i not in mine]
        moving = {a for a in op.axes if op.ranges[a].largest > 1}
        apart = all(load.kids[i].free.isdisjoint(moving) for i in others)
        if len(mine) < 2 or not apart or len(others) > 1 or not 0 < rows <= sizes[outer[0]]:
            return None
        extent = d.program.kernel.extent
        ends = all(
            place.dims[i].size == extent[a] or [*op.ranges[a].sizes] == [n]
            for i, a, n in zip(mine, (x, y), (wide, rows), strict=True)
        )
        axes = *mine, *others
        strides = [place.strides[i] * place.dtype.nbytes for i in axes]
        whole = strides[0] == place.dtype.nbytes  # the others are whole vectors, which are moved
        starts = {axis(a): op.ranges[a].lo for a in op.axes}
        at = [substitute(i, starts) for i in load.kids]
        blocks = self.blocks if self._is_shared(at, rows) else 1
        if not ends or not whole or place.size >= GREATEST or rows // blocks > MOST:
            return None
        origin = tuple(num(0) if i in mine else e for i, e in enumerate(at))
        here, stride = tuple(at[i] for i in axes), place.strides[mine[1]]
        number = [b.name for b in d.program.kernel.buffers].index(place.name)
        dims = tuple(place.dims[i].size for i in axes)
        made = TensorMap(number, dims, tuple(strides[1:]), (PANEL, rows // blocks))
        return Bulk(0, here, origin, dims[:2], stride, rows, wide, blocks), made

    def _reach(self, name: str, outer: int) -> int:
        """How many rows of a tile warpgroups read, in whole panels of every block; 0 where somebody
        else reads it too."""
        most, unit = 0, UNIT * self.blocks
        for step in self.d.steps:
            for ref in (e for e in reads(step) if e.attr[0] == name):
                op = step.op
                if not isinstance(op, ir.Contract) or op.stage.fragment != "wgmma":
                    return 0
                assert step.roles
                role = step.roles.a if ref is op.a else step.roles.b
                most = max(most, role.span(ref.kids[outer].attr[0]))
        return -(-most // unit) * unit

    def _is_shared(self, at: Sequence[Expr], rows: int) -> bool:
        """Do blocks that follow one another copy the same, which has rows for each?"""
        if self.blocks == 1 or not self.dealt or rows % (UNIT * self.blocks):
            return False
        return ir.block_start(self.dealt[-1].axis) not in subterms(*at)


def _loops(body: Sequence[ir.Op]) -> Iterator[ir.Block]:
    for op in body:
        if isinstance(op, ir.Block):
            yield op
        if isinstance(op, ir.NESTS):
            yield from _loops(op.body)
