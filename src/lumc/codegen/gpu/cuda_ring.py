"""Loops whose copies run ahead: how they go round, and those that copy whole tiles."""

from __future__ import annotations

from collections.abc import Sequence

import lumc.codegen.tile.program as ir
from lumc.codegen.gpu.operations import print_nodes
from lumc.codegen.gpu.program import Nest, Step
from lumc.codegen.gpu.writer import GpuWriter
from lumc.codegen.text.statements import new
from lumc.codegen.text.writer import about
from lumc.graph.expr import Expr

UNROLLED = (1, 2, 4, 8, 16)  # times, as lumc_dev/hardware.h has words for


def written_out(nest: Nest) -> bool:
    """Are the rounds of a ring written out, so that the places of its slots are known? Products
    alone are few instructions; they wait for nobody but for those that come between."""
    return nest.behind and nest.slots in UNROLLED


def rounds(w: GpuWriter, nest: Nest, loop: ir.Loop) -> str:
    """The head of the loop of a ring."""
    start, slots = w.index(ir.block_start(loop.axis)), nest.slots
    head = f"for (int {new(start)} = {w.first(loop)}{{}}; {start} < {w.last(loop)}; "
    step = f"{start} += {loop.tile}"
    if written_out(nest):
        return f"LUMC_UNROLL_{slots} {head.format('')}{step})"
    step += f", `SLOT` = `SLOT` + 1 == {slots} ? 0 : `SLOT` + 1"
    return f"{head.format(', `:SLOT` = 0')}{step})"


def slot_of(w: GpuWriter, nest: Nest, loop: ir.Loop) -> None:
    """The slot of a round that is written out."""
    if written_out(nest):
        start, begin = w.index(ir.block_start(loop.axis)), w.first(loop)
        count = f"(unsigned){start if begin == '0' else f'({start} - {begin})'}"
        w.line(f"const unsigned `:SLOT` = {count} / {loop.tile} % {nest.slots};")


def bulk_ring(w: GpuWriter, nest: Nest, loop: ir.Loop, arrivals: int) -> None:
    """One thread asks for tiles as soon as everybody has read what lay there. Products that are
    still under way are those of the present tile, whose slot is filled in the next round."""
    slots, ahead = nest.slots, nest.slots - 1
    start = w.index(ir.block_start(loop.axis))
    copies = [n for n in nest.body if isinstance(n, Step) and n.bulk]
    rest = [n for n in nest.body if n not in copies]
    arrived = f"{arrivals} + `SLOT`" if arrivals else "`SLOT`"
    parity = f"`PARITY` >> ({arrived}) & 1"
    whole = {s.op.dst.attr[0] for s in copies if isinstance(s.op, ir.Map)}
    stored = any(t.panels and name not in whole for name, t in w.tiles.items())
    apart = f"lumc_sync_blocks<{w.d.blocks}>();"
    sync = [*["lumc_fence_async();"] * stored, *["lumc_sync();"] * (w.d.blocks > 1), apart]
    with w.block("", f"{about(loop)}, {slots} slots of whole tiles"):
        w.lines_of(sync)  # barriers are there, and what lay in the slots was read
        more = "" if w.first(loop) == "0" else f"{w.first(loop)} + "
        for s in range(ahead):
            _ask(w, loop, copies, (f"{more}{s * loop.tile}", f"{s}"), arrivals)
        with w.block(rounds(w, nest, loop)):
            slot_of(w, nest, loop)
            w.tile_size(loop)
            w.line(f"lumc_arrived<{ahead - 1}>(&`ARRIVED`[{arrived}], {parity});")
            w.line(f"`PARITY` ^= 1u << ({arrived});")
            w.slot = "`SLOT`"
            if nest.behind:
                print_nodes(w, rest)
                w.line("lumc_wgmma_wait<1>();")
            w.lines_of([apart] if nest.behind else sync)
            w.let("`AHEAD`", f"{start} + {ahead * loop.tile}")
            _ask(w, loop, copies, ("`AHEAD`", f"(`SLOT` + {ahead}) % {slots}"), arrivals)
            w.slot = "`SLOT`"
            if not nest.behind:
                print_nodes(w, rest)
        if nest.behind:
            w.line("lumc_wgmma_wait<0>();")


def _ask(
    w: GpuWriter, loop: ir.Loop, copies: Sequence[Step], at: tuple[str, str], arrivals: int
) -> None:
    """For the tiles of a round, if there is one."""
    w.slot = at[1]
    with w.block():
        start = w.index(ir.block_start(loop.axis))
        w.let(start, at[0])
        with w.when([f"{start} < {w.last(loop)}"]):
            w.let("`BAR`", f"{arrivals} + {w.slot}" if arrivals else w.slot)
            nbytes = sum(s.bulk.nbytes for s in copies if s.bulk)
            w.line(f"lumc_expect(&`ARRIVED`[`BAR`], {nbytes});")
            for step in copies:
                _copy(w, step)
        w.line("lumc_asked();")


def _copy(w: GpuWriter, step: Step) -> None:
    op, bulk = step.op, step.bulk
    assert isinstance(op, ir.Map) and bulk
    name = op.dst.attr[0]
    tile, place = w.tiles[name], w.places[op.term.attr[0]]
    to = f"&{w.array(name)}[({w.slot}) * {tile.size}], {tile.size // tile.panels * 64}"
    first = w.index(place.offset(bulk.origin))
    origin = f"&{w.names.place(place)}[{first}]"
    width, height = bulk.size
    at: Sequence[Expr] = bulk.at
    where = ", ".join(w.index(e) for e in at)
    kind = f"{bulk.wide}, {bulk.rows}, {bulk.blocks}"
    ends = f"`M{bulk.number}`, &`ARRIVED`[`BAR`], {to}"
    w.line(f"lumc_copy_tile<{kind}>({ends}, {origin}, {width}, {height}, {bulk.stride}, {where});")
