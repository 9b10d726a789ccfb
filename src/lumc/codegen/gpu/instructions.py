"""How many instructions a GPU is expected to issue for a step of a distributed program: beside what
no compiler can leave out (``codegen.gpu.counts``) addresses, conditions, conversions, and the parts
of functions that are no sums.

The numbers are how many nvcc 13 makes for sm_90 of one such term, counted in its machine code;
``tests/gpu/test_price_code.py`` compares whole kernels.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from math import prod

import lumc.codegen.tile.program as ir
from lumc.codegen.gpu.counts import Counter
from lumc.codegen.gpu.distribution import Distribution
from lumc.codegen.gpu.exchange import PAIRS
from lumc.codegen.gpu.program import Combine, Distributed, Nest, Step, loads_of
from lumc.codegen.gpu.roles import PANEL
from lumc.graph.expr import Expr, linear, subterms
from lumc.graph.ops import DType
from lumc.kernel.term import dtype

# counted: of a function, beside its sums, products and functions of the hardware
BESIDE = {
    **{"exp2": 7, "exp2_ftz": 5, "exp": 7, "exp_ftz": 5, "decay": 0, "log2": 14, "sin": 85},
    **{"recip": 6, "sqrt": 7, "mod": 20},
}
BOUND = 1.5  # counted: of a guard: two comparisons, half of which know their answer; a selection
DIVIDED = 3.0  # counted: of a quotient of a number with a sign, powers of two included
BOTH = 5.0  # counted: of a remainder, or both
PROLOGUE = 10.0  # counted: of a thread: who it is, in which block, its exit
ARGUMENT = 2.5  # counted: of a buffer: its address, loaded and added to
INSIDE = 2.0  # counted: of an axis that threads reach beyond the end of
ENTERED = 1.0  # counted: of a digit of the thread's or block's index
AHEAD = 2.3  # counted: of an asynchronous copy: an address of 64 bits, whether there is more
STARTED = 8.0  # counted: of one before the loop of a ring
ASKED = 13.0  # counted: of a panel that one thread asks for: its place, which thread asks
ROUND = 14.0  # counted: of a round of a ring: waits, fences, the slot
DESCRIPTOR = 3.0  # counted: of a product of warpgroups: two descriptors, in uniform registers
GATHERED = 4.0  # counted: of an index that is data: it is clamped, and 64 bits wide
EXCHANGED = 3.0  # of four results, beside the shuffle: which of them are sent, and go where
MATRIX = 0.5  # counted: of a product of a warp: addresses of its matrices


def prologue(d: Distributed) -> float:
    """Of a warp, once: indices and addresses."""
    loops = [
        x for n in d.body if isinstance(n, Nest) and isinstance(n.op, ir.Par) for x in n.op.loops
    ]
    cut = sum(x.count > 1 for x in loops)
    return PROLOGUE + ARGUMENT * len(d.program.kernel.buffers) + BOTH * max(0, cut - 1)


def per_round(nest: Nest) -> float:
    """Of a warp, in a round of a loop: its counter, and what a ring waits for."""
    return ROUND if nest.slots > 1 else 3.0


def beside(counter: Counter, node: Step | Combine) -> float:
    """Of all warps, in one round of the loops around it, but for what is counted."""
    if isinstance(node, Combine):
        return _combined(counter, node)
    op = node.op
    if isinstance(op, ir.Contract):
        return _contracted(counter, node, op)
    points = node.points
    if node.ahead:
        return copied(counter, node, AHEAD)
    out = ENTERED * len([t for t in points.threads if t.axis])
    terms = [op.term] if isinstance(op, ir.Map) else [o.term for o in op.outputs]
    if node.stored:
        out += EXCHANGED * points.size / PAIRS
    stores = [op.dst] if isinstance(op, ir.Map) else [dst for dst, _ in op.stores]
    out += _evaluated(counter, terms, node) + sum(
        _loaded(counter, e, points) for e in loads_of(*terms)
    )
    out += sum(_stored(counter, e, points, node) for e in stores)
    out += sum(map(partial(_addressed, counter), [*loads_of(*terms), *stores]))
    out += INSIDE * sum(points.span(a) > op.ranges[a].largest for a in op.ranges)
    if isinstance(op, ir.Reduce):
        rows = points.on(op.kept).size
        return (out + 2.0 * rows * len(op.outputs) * bool(node.partials)) * counter.warps
    return out * counter.warps * counter.share(points, op.dst)


def copied(counter: Counter, step: Step, each: float) -> float:
    """Of all warps, for an asynchronous copy each of whose accesses takes so many. For a whole tile
    one thread of the block asks, a panel at a time."""
    if step.bulk:
        return ASKED * step.bulk.wide / PANEL
    return each * counter.warps * max(1.0, step.points.size / step.vector)


def _evaluated(counter: Counter, terms: Iterable[Expr], step: Step) -> float:
    moved = step.vector if step.moves else 1  # under a guard, at once
    every = ((e, step.points.on(e.free).size / moved) for e in subterms(*terms))
    return sum(_own(e) * n / counter.outside(e, step.op) for e, n in every)


def _own(e: Expr) -> float:
    match e.kind:
        case "un" | "bin":
            if dtype(e).is_float:  # one is counted of what is spelled as nothing else
                return float(BESIDE.get(e.attr[0], 0))
            return 1.0
        case "cast":
            kinds = dtype(e.kids[0]), dtype(e)
            return 0.0 if kinds[0] is kinds[1] or _free(*kinds) else 1.0
        case "where":
            return 1.0
        case "guard":
            return BOUND + 1
        case "div" | "mod":
            return BOTH if e.kind == "mod" else DIVIDED
    return 0.0


def _free(a: DType, b: DType) -> bool:
    """Is it in a register as it was?"""
    return a.is_float and b.is_float and DType.F64 not in (a, b)  # where it is loaded or stored


def _loaded(counter: Counter, e: Expr, points: Distribution) -> float:
    """What is done with an element that was loaded, and its address."""
    tile, place = counter.d.tiles.get(e.attr[0]), counter.places[e.attr[0]]
    n = points.on(e.free).size
    if tile and tile.memory == "register":
        return 0.5 * n if tile.packed else 0.0
    kind = tile.dtype if tile else place.dtype
    widened = 1.0 if kind.nbytes < 4 else 0.0
    gathers = (k for k in subterms(*e.kids) if k.kind == "dyn")
    return widened * n + sum(GATHERED * points.on(k.free).size for k in gathers)


def _stored(counter: Counter, e: Expr, points: Distribution, step: Step) -> float:
    tile, place = counter.d.tiles.get(e.attr[0]), counter.places[e.attr[0]]
    n = points.on(e.free).size
    if tile and tile.memory == "register":
        return 0.5 * n
    kind = tile.dtype if tile else place.dtype
    return (0.5 if step.vector > 1 else 1.0) * n * (kind.nbytes < 4)


def _addressed(counter: Counter, e: Expr) -> float:
    """What is multiplied for an address, once."""
    atoms = linear(counter.places[e.attr[0]].offset(e.kids))[1]
    return float(sum(abs(n) != 1 for n in atoms.values()))


def _combined(counter: Counter, node: Combine) -> float:
    """All warps read what each of them made, four words at once, and join it."""
    step, op = node.step, node.op
    rows, parts = (
        step.points.on(op.kept).size,
        prod(t.mod for t in step.points.across_warps(op.red, counter.d.warp)),
    )
    return counter.warps * rows * len(op.outputs) * parts * 1.25


def _contracted(counter: Counter, node: Step, op: ir.Contract) -> float:
    assert node.roles
    roles, product = node.roles, node.roles.product
    others = prod(op.ranges[a].largest for a in op.red if a != roles.along)
    if product is None:
        return 0.0
    rows, lanes, steps = roles.counts
    if product.fragment == "wgmma":
        held = any(t.memory == "register" for t in [counter.d.tiles.get(op.a.attr[0])] if t)
        return counter.warps * others * (steps * (DESCRIPTOR + 4 * held) + 6)
    return counter.warps * others * steps * rows * lanes * MATRIX
