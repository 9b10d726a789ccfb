"""The memory of a block: strides and offsets of shared tiles, registers of values, and whether all
of it fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import lumc.codegen.tile.program as ir
from lumc.codegen.gpu.dealing import Dealing
from lumc.codegen.gpu.program import Combine, Nest, Node, Step, Tile, plain, reads, steps_of, writes
from lumc.codegen.gpu.roles import PACKED, PANEL
from lumc.codegen.gpu.swizzle import swizzle_of
from lumc.codegen.tile.memory import Interval, aligned, allocate
from lumc.schedule.operands import HALF

ROW = 16  # bytes: what fragments load and copies store starts at a multiple
BANK = 4
ARRIVAL = 8  # bytes of a barrier
WHOLE = 1024  # bytes: eight rows of a panel, in which pieces of 16 bytes are exchanged
OVERHEAD = 32  # registers of addresses and operands, at least
LARGEST = 255  # registers of one thread


def lay_out(
    d: Dealing, body: Sequence[Node], memory: Mapping[str, str], arrivals: int = 0
) -> tuple[dict[str, Tile], int]:
    """(tiles, bytes of shared memory, at the end so many barriers that count bytes); raises E0411
    if they do not fit."""
    tiles, offset = dict[str, Tile](), 0
    slots = {e.attr[0]: d.threads.ring for s in steps_of(body) if s.ahead for e in writes(s)}
    panels = {
        name
        for s in steps_of(body)
        if isinstance(s.op, ir.Contract) and s.op.stage.fragment == "wgmma"
        for name in _read_whole(d, s, s.op, memory)
    }
    matrices = _read_by_warps(body, memory) - panels
    for name, where in memory.items():
        kind = d.stored[name]
        if where == "register":
            value = d.values[name]
            pairs = bool(value.registers) and value.registers[-1][1:] == (2, 1)
            tiles[name] = Tile(where, kind, value, kind in HALF and pairs)
            continue
        tile = _tile(d, name, "panel" * (name in panels) or "piece" * (name in matrices), offset)
        tile = replace(tile, slots=slots.get(name, 1))
        tiles[name], offset = tile, tile.offset + aligned(tile.nbytes, ROW)
    for step in steps_of(body):
        if isinstance(step.op, ir.Contract) and step.op.stage.fragment in PACKED:
            _check_fragments(d, step, step.op, memory)
    lives = _lives(body)
    values = _live(lives, tiles)
    if (
        offset > d.gpu.shared // d.threads.resident and not panels
    ):  # those that are not alive at once share bytes
        shared = {n: t for n, t in tiles.items() if t.memory == "shared"}
        arena = allocate(Interval(n, t.nbytes, *lives[n]) for n, t in shared.items())
        tiles |= {n: replace(t, offset=arena.offsets[n]) for n, t in shared.items()}
        offset = arena.nbytes
    offset += arrivals * ARRIVAL
    most = min(LARGEST, d.gpu.registers // (d.threads.count * d.threads.resident))
    if offset > d.gpu.shared // d.threads.resident:
        raise d.refuse(f"{offset} bytes of shared memory")
    if values > d.gpu.values or values + OVERHEAD > most:
        raise d.refuse(f"{values} registers of values")
    return tiles, offset


def _tile(d: Dealing, name: str, exchanged: str, offset: int) -> Tile:
    """In shared memory, from there on; ``exchanged``: "panel" of warpgroups, "piece" of warps, or
    nothing is."""
    strides, size = _strides(d, name, bool(exchanged))
    tile = Tile("shared", d.stored[name], strides=strides, size=size, offset=offset)
    if exchanged == "panel":
        wide = _panels(d, name, strides, size)
        return replace(tile, panels=wide, offset=aligned(offset, WHOLE))
    if exchanged == "piece":
        row = d.places[name].dims[d.order.get(name, (-1,))[-1]].size
        return replace(tile, swizzle=swizzle_of(row, tile.dtype.nbytes))
    return tile


def _read_whole(d: Dealing, step: Step, op: ir.Contract, memory: Mapping[str, str]) -> list[str]:
    """The tiles that warpgroups read from shared memory: the right operand, and the left one unless
    it comes from registers."""
    assert step.roles
    found = [e for e in (op.a, op.b) if memory.get(e.attr[0]) == "shared"]
    if op.b not in found:
        raise d.refuse("warpgroups read the right operand from shared memory")
    others = [a for a in op.red if a != step.roles.along and op.ranges[a].largest > 1]
    if others or not all(plain(e) and d.still(op, e) for e in found):
        raise d.refuse("warpgroups read whole tiles, along one axis of the sum")
    return [e.attr[0] for e in found]


def _read_by_warps(body: Sequence[Node], memory: Mapping[str, str]) -> set[str]:
    """The shared tiles of which single warps read matrices of 8 rows of 16 bytes."""
    found = set[str]()
    for step in steps_of(body):
        product = step.roles and step.roles.product
        if product and product.fragment == "mma" and product.word > 1:
            assert isinstance(step.op, ir.Contract)
            found.update(e.attr[0] for e in (step.op.a, step.op.b))
    return {name for name in found if memory.get(name) == "shared"}


def _panels(d: Dealing, name: str, strides: Sequence[int], size: int) -> int:
    """The elements of a row of a tile that warpgroups read, which are whole panels."""
    dims = d.places[name].dims
    inner = strides.index(1)
    wide = dims[inner].size
    outer = [x.size for i, x in enumerate(dims) if i != inner and x.size > 1]
    if wide % PANEL or len(outer) > 1 or size // wide % 8 or d.stored[name].nbytes != 2:
        raise d.refuse("an operand of warpgroups whose rows are not panels of 128 bytes")
    return wide


def _strides(d: Dealing, name: str, packed: bool = False) -> tuple[tuple[int, ...], int]:
    """Strides and size of a shared tile in elements. Rows are padded: those of a transpose by one
    word, so that its columns lie in different banks; others keep the alignment of vectors.
    ``packed``: those of operands whose pieces are exchanged are not."""
    dims, nbytes = d.places[name].dims, d.stored[name].nbytes
    order = d.order.get(name, tuple(range(len(dims))))
    strides, n = [0] * len(dims), 1
    for position, i in enumerate(reversed(order)):
        strides[i] = n
        n *= dims[i].size
        if position == 0 and len(dims) > 1 and not packed and not name.startswith("partial"):
            if name in d.turned:
                word = max(1, BANK // nbytes)
                n += word if n // word % 2 == 0 else 0
            else:
                n = aligned(n * nbytes + d.threads.pad, ROW) // nbytes
    return tuple(strides), aligned(n * nbytes, ROW) // nbytes


def _check_fragments(d: Dealing, step: Step, op: ir.Contract, memory: Mapping[str, str]) -> None:
    """Rows of shared operands start on 16 bytes, and all that fragments read is written."""
    assert step.roles and step.roles.product
    packed = step.roles.product.word > 1  # otherwise every element is loaded by itself
    for ref, other in ((op.a, op.stage.rows_axis), (op.b, op.stage.lane_axis)):
        name = ref.attr[0]
        if memory.get(name) != "shared":
            continue
        dims = d.places[name].dims
        inner = d.order.get(name, tuple(range(len(dims))))[-1]
        i, row = ref.kids[inner], dims[inner]
        if packed and (i.kind != "axis" or i.attr[0] not in step.roles.runs(other)):
            raise d.refuse("an operand without a contiguous axis")
        r, whole = op.ranges.get(i.attr[0]), ROW // d.stored[name].nbytes
        if packed and r and r.lo is not row.origin and r.largest % whole:
            raise d.refuse("tiles of an operand that are not aligned to 16 bytes")
        for writer in d.steps:
            for dst in (w for w in writes(writer) if w.attr[0] == name):
                spans = (writer.points.span(k.attr[0]) for k in dst.kids)
                if any(n < x.size for n, x in zip(spans, dims, strict=True)):
                    raise d.refuse("the padding of an operand is not written")


def _lives(body: Sequence[Node]) -> dict[str, tuple[int, int]]:
    """The first and the last operation, in order, during which values are alive: a loop that
    carries one from turn to turn, or copies it ahead, keeps it from its start to its end."""
    order, loops = list[Step | Combine](), list[tuple[int, int, set[str]]]()

    def walk(nodes: Sequence[Node]) -> None:
        for node in nodes:
            if isinstance(node, Nest):
                start = len(order)
                walk(node.body)
                inside = [s for s in steps_of(node.body) if s.ahead or isinstance(node.op, ir.When)]
                ahead = {e.attr[0] for s in inside for e in writes(s)}
                loops.append((start, len(order) - 1, ahead))
            elif isinstance(node, Step | Combine):
                order.append(node)

    walk(body)
    uses = dict[str, list[int]]()
    for i, node in enumerate(order):
        partials = node.step.partials if isinstance(node, Combine) else node.partials
        for name in (*(e.attr[0] for e in [*reads(node), *writes(node)]), *partials):
            uses.setdefault(name, []).append(i)
    out = dict[str, tuple[int, int]]()
    for name, each in uses.items():
        first, last = each[0], each[-1]
        carried = any(e.attr[0] == name for e in reads(order[first]))
        for start, end, ahead in loops:
            stays = carried or name in ahead or first < start or last > end
            if first <= end and last >= start and stays:
                first, last = min(first, start), max(last, end)
        out[name] = first, last
    return out


def pressure(body: Sequence[Node], tiles: Mapping[str, Tile]) -> int:
    """Registers of the values of a thread that live at once, at most."""
    return _live(_lives(body), tiles)


def _live(lives: Mapping[str, tuple[int, int]], tiles: Mapping[str, Tile]) -> int:
    """Registers of the values that live at once, at most."""
    live = dict[int, int]()
    for name, tile in ((n, t) for n, t in tiles.items() if t.memory == "register"):
        words = tile.distribution.size * (2 if tile.dtype.nbytes == 8 else 1)
        for i in range(lives[name][0], lives[name][1] + 1):
            live[i] = live.get(i, 0) + (words // 2 if tile.packed else words)
    return max(live.values(), default=0)
