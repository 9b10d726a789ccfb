"""What could be gained: how far kernels are from their bounds, and what the plan says about why.

Causes are counted on the tile program. One is told where it is a good part of what the kernel does;
a kernel that is slow for a reason that no plan shows has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from math import ceil, prod
from typing import Any

from lumc.codegen.count import mean_size, of_operation, operations
from lumc.codegen.tile.program import Contract, Leaf, Map, Par, Program, Reduce, leaves, terms_of
from lumc.graph.expr import subterms
from lumc.kernel.term import dtype, factors
from lumc.profile.price import LAUNCH_US
from lumc.profile.tally import TURN
from lumc.schedule.operands import lanes

Body = dict[str, Any]
Counted = tuple[Leaf, float, float]  # an operation, how often it is done, and all of its work
FAR = 1.25  # times its bound: worth to ask why
MUCH = 0.1  # of the operations and loads of a kernel
AGAIN = 1.5  # times what the graph needs
MOVED = 2.0  # a load and a store
BINDS = {"arithmetic": "arithmetic", "memory": "memory bandwidth", "caches": "cache bandwidth"}


def gain(program: Program, us: float, bound_us: float, limited_by: str, launches: int) -> Body:
    """Of a kernel that takes ``us``: what all launches could take less, and what binds it."""
    small = bound_us < LAUNCH_US + program.target.launch_us
    return {
        "over": us / bound_us if bound_us else 1.0,
        "gain_us": max(0.0, us - bound_us) * launches,
        "bound_by": "launch" if small else BINDS[limited_by],
    }


def causes(program: Program, repeats: Body | None) -> list[Body]:
    """Why a kernel may be slow: ``cause``, one word, and ``said``, with the figures."""
    counted = [
        (op, times, (c.flops + c.loads) * times)
        for op, times in operations(program)
        for c in [of_operation(program, op)]
    ]
    found = [("repeats", repeated(repeats))] if again(repeats) else []
    told: dict[str, Callable[[Program, Sequence[Counted]], Iterator[str]]] = {
        "copies": _copies,
        "turned": _turned,
        "sums": _sums,
        "lanes": _lanes,
        "apart": _apart,
        "parts": _parts,
    }
    found += [(cause, said) for cause, tell in told.items() for said in tell(program, counted)]
    return [{"cause": cause, "said": said} for cause, said in found]


def again(repeats: Body | None) -> bool:
    return bool(repeats) and max((repeats or {}).values()) >= AGAIN


def repeated(repeats: Body | None) -> str:
    times = repeats or {}
    return f"{times['flops']:.1f}x its operations, {times['loads']:.1f}x its loads"


# ---- causes


def _much(work: float, counted: Sequence[Counted]) -> bool:
    return work >= MUCH * sum(own for *_, own in counted) and work > 0


def _points(program: Program, op: Map, times: float) -> float:
    return times * prod(mean_size(program, a, op.ranges[a]) for a in op.axes)


def _copies(program: Program, counted: Sequence[Counted]) -> Iterator[str]:
    """Operands that are staged."""
    ops = [(op, times) for op, times, _ in counted if isinstance(op, Map) and op.copy]
    moved = sum(_points(program, op, times) for op, times in ops)
    if _much(MOVED * moved, counted):
        turned = ", turned" if any(op.turn for op, _ in ops) else ""
        yield f"copies {number(moved)} elements of operands before it reads them{turned}"


def _turned(program: Program, counted: Sequence[Counted]) -> Iterator[str]:
    """Values that are made along one axis and stored along another."""
    ops = [(op, n) for op, n, _ in counted if isinstance(op, Map) and op.turn and not op.copy]
    turned = sum(_points(program, op, times) for op, times in ops)
    if _much(TURN * turned, counted):
        yield f"turns {number(turned)} elements through registers"


def _sums(_: Program, counted: Sequence[Counted]) -> Iterator[str]:
    """Sums of products of what does not have the same axes, without a register tile."""
    for op, _times, work in counted:
        if not isinstance(op, Reduce) or op.lanes == "windows" or not _much(work, counted):
            continue
        for o in op.outputs:
            values = [f for f in factors(o.term) if any(e.kind == "load" for e in subterms(f))]
            reuse = any({*a.free} ^ {*b.free} for a, b in combinations(values, 2))
            if o.op == "sum" and reuse:
                yield f"no contraction: products are summed over {' '.join(op.red)} row by row"
                return


def _lanes(program: Program, counted: Sequence[Counted]) -> Iterator[str]:
    """Work in vectors that are not full: what is left over at the end of the lane axis."""
    partial, where = 0.0, dict[str, float]()
    for op, _times, work in counted if program.target.lanes > 1 else ():
        lane = _lane(op)
        if lane is None or (isinstance(op, Map) and op.copy):
            continue
        width, r = lanes(program.target, dtype(terms_of(op)[0])), op.ranges[lane]
        once = len(r.sizes) == 1
        extent = r.largest if once else program.kernel.extent.get(lane, r.largest)
        full, rest = divmod(extent, r.largest or 1)
        left = (full * (r.largest % width) + rest % width) / max(1, extent)
        if left:
            partial += work * left
            said = f"{lane}:{extent} in {width} lanes"
            where[said] = where.get(said, 0.0) + work * left
    if _much(partial, counted):
        share = partial / sum(work for *_, work in counted)
        yield f"{share:.0%} of it in vectors that are not full: {max(where, key=where.__getitem__)}"


def _lane(op: Leaf) -> str | None:
    match op:
        case Map():
            return op.axes[-1] if op.axes else None
        case Reduce():
            return op.red[-1] if op.lanes == "reduced" else op.kept[-1]
        case Contract():
            return op.red[-1] if op.stage.form == "dot" else op.stage.lane_axis


def _apart(program: Program, counted: Sequence[Counted]) -> Iterator[str]:
    """Lanes that lie apart in memory: each is loaded for itself."""
    found, apart = dict[str, None](), 0.0
    for op, times, _ in counted if program.target.lanes > 1 else ():
        lane = _lane(op)
        if lane is None or isinstance(op, Contract) or (isinstance(op, Map) and op.turn):
            continue
        terms = [op.term] if isinstance(op, Map) else [o.term for o in op.outputs]
        axes = op.axes if isinstance(op, Map) else op.kept + op.red
        points = times * prod(mean_size(program, a, op.ranges[a]) for a in axes)
        for e in (e for e in subterms(*terms) if e.kind == "load" and lane in e.free):
            if program.places[e.attr[0]].access(e).is_apart(lane):
                found[f"{e.attr[0]} along {lane}"] = None
                apart += points
    if _much(apart, counted):
        yield f"reads {', '.join(list(found)[:2])} element by element"


def _parts(program: Program, counted: Sequence[Counted]) -> Iterator[str]:
    """Threads, or processors of a GPU, that have nothing to do."""
    units, tiles = program.target.units, max(1, program.tiles)
    who = {"cpu": "threads", "gpu": "processors"}[program.target.machine]
    if tiles < units or tiles / (ceil(tiles / units) * units) * FAR < 1:
        yield f"{tiles} part{'s' if tiles > 1 else ''} for {units} {who}"
    alone = {id(op) for op in leaves([op for op in program.body if not isinstance(op, Par)])}
    work = sum(own for op, _, own in counted if id(op) in alone)
    if program.tiles and units > 1 and _much(work, counted):
        share = work / sum(own for *_, own in counted)
        yield f"{share:.0%} of it in one part for {units} {who}"


def number(n: float) -> str:
    """Short: 131k, 1.05M."""
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if n >= unit:
            return f"{n / unit:.3g}{name}"
    return f"{n:.3g}"
